"""Predictions from language models.

They are created from log-probabilities of answer options, from log-probabilities of free answers, or from stated
confidences.
"""

from calibrant.language.answers import parse_confidence, sequences, verbalized
from calibrant.language.choices import choices
from calibrant.language.lm_eval import read_lm_eval

__all__ = ["choices", "parse_confidence", "read_lm_eval", "sequences", "verbalized"]
