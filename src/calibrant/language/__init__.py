"""Predictions from language models.

They come from log-probabilities of answer options, log-probabilities of free answers, or confidences stated in words.
"""

from calibrant.language.answers import parse_confidence, sequences, verbalized
from calibrant.language.choices import choices
from calibrant.language.lm_eval import read_lm_eval

__all__ = ["choices", "parse_confidence", "read_lm_eval", "sequences", "verbalized"]
