"""Language models: predictions from log-probabilities of answer options, of free answers, and from stated confidences."""

from calibrant.language.answers import parse_confidence, sequences, verbalized
from calibrant.language.choices import choices
from calibrant.language.lm_eval import read_lm_eval

__all__ = ["choices", "parse_confidence", "read_lm_eval", "sequences", "verbalized"]
