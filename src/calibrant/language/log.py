"""What the log of a language model holds, whichever program wrote it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from calibrant._pairs import check_selection

__all__ = ["Log", "Option", "Response", "Token"]


@dataclass(frozen=True)
class Token:
    """One token of an answer, with what the server returned of its rivals.

    Args:
        text: As the server spells it, a leading space included.
        log_prob: Natural logarithm of its probability; −inf where the server gave none.
        top: Token → log-probability of the most likely tokens at this place; empty where none were asked for.
    """

    text: str
    log_prob: float
    top: Mapping[str, float]


@dataclass(frozen=True)
class Option:
    """One answer of a multiple choice, as a harness scores it.

    Args:
        text: What was scored, a leading space included.
        log_prob: Natural logarithm of its probability, given the question.
    """

    text: str
    log_prob: float


@dataclass(frozen=True)
class Response:
    """One answer of a language model.

    Args:
        id: What labels are found by.
        text: The answer.
        tokens: Its tokens; empty where the log has no log-probabilities.
        options: The scored options of a multiple choice; empty for any other answer.
        target: The true answer, as far as the log has it.
        right: Whether the log calls the answer right, or None.
        features: Named facts of the row, such as model and task.
        question: What several answers to one question share, which do not vary independently; None where there is one answer.
    """

    id: str
    text: str = ""
    tokens: tuple[Token, ...] = ()
    options: tuple[Option, ...] = ()
    target: str | None = None
    right: bool | None = None
    features: Mapping[str, str] | None = None
    question: str | None = None

    @property
    def log_prob(self) -> float:
        """Σ log-probability of the tokens; −inf where the server gave none for one of them."""
        return math.fsum(token.log_prob for token in self.tokens) if self.tokens else -math.inf


@dataclass(frozen=True)
class Log:
    """The answers of a log, in its order; ``len``, iteration and slices as of a list.

    Args:
        responses: One an answer.
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
