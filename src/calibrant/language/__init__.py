"""Language models: predictions from logs of multiple-choice answers, free answers, judges and verbalized confidences."""

from calibrant.language.answers import parse_confidence, sequences, verbalized
from calibrant.language.choices import choices
from calibrant.language.inspect import read_inspect
from calibrant.language.judge_rows import judge_rows
from calibrant.language.judged import read_judged
from calibrant.language.judges import pairwise, rating, yes_no
from calibrant.language.judging import judge_audit
from calibrant.language.lm_eval import read_lm_eval
from calibrant.language.log import Log, Option, Response, Token, read_labels
from calibrant.language.openai import read_openai
from calibrant.language.scorers import read_lm_polygraph, read_uqlm, sampled, scored
from calibrant.language.tokens import token_classes

__all__ = [
    "Log",
    "Option",
    "Response",
    "Token",
    "choices",
    "judge_audit",
    "judge_rows",
    "pairwise",
    "parse_confidence",
    "rating",
    "read_inspect",
    "read_judged",
    "read_labels",
    "read_lm_eval",
    "read_lm_polygraph",
    "read_openai",
    "read_uqlm",
    "sampled",
    "scored",
    "sequences",
    "token_classes",
    "verbalized",
    "yes_no",
]
