"""The log of a language model, independent of the program that wrote it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from calibrant.data.record import check_selection

__all__ = ["Log", "Option", "Response", "Token"]


@dataclass(frozen=True)
class Token:
    """One token of an answer, with the most probable tokens at its position.

    Args:
        text: As the server spells it, including a leading space.
        log_prob: Natural logarithm of its probability; −inf if the server returned none.
        top: Token → log-probability of the most probable tokens at this position; empty if none were requested.
    """

    text: str
    log_prob: float
    top: Mapping[str, float]


@dataclass(frozen=True)
class Option:
    """One answer option of a multiple-choice question, as scored by an evaluation harness.

    Args:
        text: The scored text, including a leading space.
        log_prob: Natural logarithm of its probability, given the question.
    """

    text: str
    log_prob: float


@dataclass(frozen=True)
class Response:
    """One answer of a language model.

    Args:
        id: The id that labels refer to.
        text: The answer.
        tokens: Its tokens; empty if the log has no log-probabilities.
        options: The scored options of a multiple-choice question; empty for free answers.
        target: The true answer in the log, or None.
        right: Whether the answer is correct according to the log, or None.
        features: Named features of the row, such as model and task.
        question: Id of the question, if there are several (dependent) answers to it; else None.
        samples: Further answers to the same question, sampled to see whether they agree; empty without.
        scores: Scorer → how sure it is of the answer, higher is surer; None without.
    """

    id: str
    text: str = ""
    tokens: tuple[Token, ...] = ()
    options: tuple[Option, ...] = ()
    target: str | None = None
    right: bool | None = None
    features: Mapping[str, str] | None = None
    question: str | None = None
    samples: tuple[str, ...] = ()
    scores: Mapping[str, float] | None = None

    @property
    def log_prob(self) -> float:
        """Σ log-probability of the tokens; −inf if one is missing."""
        return math.fsum(token.log_prob for token in self.tokens) if self.tokens else -math.inf


@dataclass(frozen=True)
class Log:
    """The answers of a log in order, with ``len``, iteration and slices as for a list.

    Args:
        responses: One per answer.
        source: The file, for messages.
    """

    responses: tuple[Response, ...]
    source: str = "the log"

    def __len__(self) -> int:
        return len(self.responses)

    def __iter__(self) -> Iterator[Response]:
        return iter(self.responses)

    def __getitem__(self, rows: Any) -> "Log":
        """Return the selected answers as a log (a slice, a boolean mask or row numbers)."""
        chosen = torch.arange(len(self))[check_selection(rows, count=len(self))]
        return Log(tuple(self.responses[row] for row in chosen.tolist()), self.source)

    @property
    def ids(self) -> tuple[str, ...]:
        """The id of each answer."""
        return tuple(one.id for one in self.responses)
