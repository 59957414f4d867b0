"""Selective prediction with a guarantee: answer only above a confidence threshold that bounds the error among the answers.

If m rows have confidence ≥ t and k of them are errors, the hypothesis "the error is above α" has the exact p-value
P(Bin(m, α) ≤ k). The confidences that occur are tested as thresholds in descending order, beginning with that of the m₀-th row,
until a hypothesis is not rejected (fixed-sequence testing: Angelopoulos et al. 2021, Learn then Test, §2.3).

The test is valid although the thresholds depend on the data. Let R(t) be the error among rows with confidence ≥ t, assume that
it does not decrease as t decreases, and let t* be the threshold where it crosses α. If the sequence begins above t*, the first
false rejection can only happen at t*; given their number, the rows ≥ t* are independent draws with error ≥ α. If it begins below
t*, the first test decides; given the m₀-th confidence, the rows above it are such draws. In both cases the exact test rejects
with probability at most δ. If R is not monotonic (a model that errs more often where it is more confident), it can cross α
several times, and a false rejection can happen at each crossing.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calibrant._core.check import refuse
from calibrant._core.config import json_data
from calibrant._core.constraints import Kind, Level, checked
from calibrant.data.checks import Data
from calibrant.data.predictions import BinaryPairs, Predictions
from calibrant.errors import InputError
from calibrant.operate.bounds import share_ends
from calibrant.operate.decide import ABSTAIN
from calibrant.operate.rows import Labelled, confidence_of, need_logits, values_of_rows
from calibrant.statistics.means import Interval

Floats = NDArray[np.float64]
Scored = Annotated[Data, Kind((Predictions, BinaryPairs), "make them with Predictions.from_logits")]
By = Literal["class", "group"]

_FIRST = 8  # errors allowed at the first threshold if there are many rows


@dataclass(frozen=True)
class Accepted:
    """The threshold and its counts for one class, one group, or all rows.

    Args:
        name: "all", a class's number or a group's name.
        threshold: Smallest confidence to answer at; inf if it always abstains.
        rows: Number of rows of this class or group.
        answered: Number of rows at or above the threshold.
        errors: Number of wrong answers.
        error_high: Upper bound of the error among answers, at the requested confidence; 1 if none was answered.
    """

    name: str
    threshold: float
    rows: int
    answered: int
    errors: int
    error_high: float

    def __str__(self) -> str:
        if not self.answered:
            return f"{self.name}: no threshold qualifies on {self.rows:,} rows"
        share = self.answered / max(1, self.rows)
        return (
            f"{self.name}: answer from confidence {self.threshold:.4f} on, {100 * share:.1f} % of {self.rows:,} rows, "
            f"{self.errors} of {self.answered:,} answers wrong, error below {100 * self.error_high:.2f} %"
        )


class Abstention(nn.Module):
    """A rule that returns the most probable class where its confidence reaches the threshold, else −1. Made by ``abstain``.

    ``forward`` takes calibrated logits (N, K) and returns (N,) int64, so that ``torch.nn.Sequential(model, calibrator, rule)``
    is the deployed model. Thresholds by group need the groups: ``decide(predictions, features)``.

    Args:
        parts: One per threshold.
        by: None, "class" or "group".
        error: α, or None if a coverage was requested.
        confidence: 1 − δ.
    """

    levels: Tensor

    def __init__(
        self,
        parts: tuple[Accepted, ...],
        *,
        by: By | None,
        error: float | None,
        confidence: float = 0.95,
    ) -> None:
        super().__init__()
        self.parts, self.by, self.error, self.confidence = parts, by, error, confidence
        self.register_buffer("levels", torch.tensor([part.threshold for part in parts], dtype=torch.float64))

    @property
    def qualifies(self) -> bool:
        """Whether any threshold qualifies."""
        return any(math.isfinite(part.threshold) for part in self.parts)

    @property
    def threshold(self) -> float:
        """The threshold of all rows; inf if none qualifies.

        Raises:
            InputError: If there is one for each class or group.
        """
        if self.by is not None:
            raise refuse("one threshold", f"one a {self.by}", "read .parts")
        return self.parts[0].threshold

    @property
    def coverage(self) -> Interval:
        """The proportion of rows that are answered, with its exact 95 % interval."""
        rows, answered = sum(part.rows for part in self.parts), sum(part.answered for part in self.parts)
        low, high = share_ends(answered, rows, alpha=0.025)
        return Interval(answered / rows, low, high, 0.95, "Clopper–Pearson")

    def forward(self, logits: Tensor) -> Tensor:
        """Return the answers (N,) int64 for calibrated ``logits`` (N, K); −1 where it abstains."""
        if self.by == "group":
            raise InputError("the groups of the rows", "logits alone", "use decide(predictions, features)")
        need_logits(logits, classes=len(self.parts) if self.by == "class" else None, home=self.levels)
        p, best = torch.softmax(logits.double(), dim=1).amax(dim=1), logits.argmax(dim=1)
        level = self.levels[best] if self.by == "class" else self.levels
        return torch.where(p >= level, best, ABSTAIN)

    @checked
    def decide(self, predictions: Scored, features: Any = None) -> Tensor:
        """Return the answers (N,): the decided class, or 1 for pairs; −1 where it abstains.

        Args:
            predictions: Calibrated; labels are not needed.
            features: (N,) group of each row, if thresholds are by group; rows of a group without a threshold abstain.
        """
        if (features is not None) != (self.by == "group"):
            raise refuse(f"{'groups' if self.by == 'group' else 'no groups'} of the rows", "otherwise", "see abstain")
        if isinstance(predictions, Predictions):
            chosen = predictions.predicted.cpu()
        else:
            chosen = torch.ones(len(predictions), dtype=torch.int64)
        if self.by == "class" and (not isinstance(predictions, Predictions) or predictions.classes != len(self.parts)):
            raise refuse(f"predictions of {len(self.parts)} classes", "others", "pass outputs of the same model")
        level = self.levels.cpu()
        if self.by == "class":
            level = level[chosen]
        elif self.by == "group":
            places = {part.name: at for at, part in enumerate(self.parts)}
            names = _names_of_features(features, rows=len(predictions))
            level = torch.tensor([level[places[one]] if one in places else math.inf for one in names])
        return torch.where(confidence_of(predictions).cpu() >= level, chosen, ABSTAIN)

    def plain(self) -> dict[str, Any]:
        """Return the rule as JSON data; a threshold that no row reaches is null."""
        names = ("qualifies", "error", "confidence", "by", "coverage", "parts")
        return {name: json_data(getattr(self, name)) for name in names}

    def extra_repr(self) -> str:
        """Show the guarantee."""
        return str(self)

    def __str__(self) -> str:
        if self.error is None:
            head = f"answers as many rows as asked for, with confidence {self.confidence:g}"
        elif self.qualifies:
            each = "" if self.by is None else f" of each {self.by}"
            head = f"error among answers{each} at most {self.error:g}, with confidence {self.confidence:g}"
        else:
            head = f"no threshold has an error of at most {self.error:g} with confidence {self.confidence:g}"
        return "\n".join([head, *(str(part) for part in self.parts)])


@checked
def abstain(
    predictions: Labelled,
    *,
    error: Level | None = None,
    coverage: Level | None = None,
    confidence: Level = 0.95,
    by: By | None = None,
    features: Any = None,
) -> Abstention:
    """Return a rule that abstains below a confidence threshold, chosen so that the error among the answers is bounded.

    The guarantee is about new rows from the same distribution: with probability ``confidence`` over the labelled rows, the error
    among future answers is at most ``error``; with ``by``, simultaneously for all classes or groups.

    Args:
        predictions: Labelled, of independent rows that no calibrator was fitted on.
        error: Largest error among the answers, in (0, 1).
        coverage: Instead of ``error``: smallest proportion of new rows to answer, in (0, 1); ``.parts`` bounds the resulting
            error.
        confidence: 1 − δ in (0, 1).
        by: One threshold per predicted "class", or per "group" of ``features``; None for one threshold.
        features: (N,) group of each row, numbers or names, for ``by="group"``.

    Returns:
        A module; if no threshold qualifies it always abstains, and ``.qualifies`` is false.

    Raises:
        InputError: For rows that are not labelled and independent, or unless exactly one of error and coverage is given.

    Examples:
        >>> from calibrant import Predictions
        >>> probs = torch.linspace(0.5, 0.999, 4000).double()
        >>> wrong = torch.rand(4000, generator=torch.Generator().manual_seed(0)).double() > probs
        >>> rule = abstain(Predictions.from_binary_probs(probs, (~wrong).long()), error=0.05)
        >>> 0.85 < rule.threshold < 0.95, rule.parts[0].error_high <= 0.05
        (True, True)

    References:
        Geifman & El-Yaniv 2017, Selective Classification for Deep Neural Networks; Angelopoulos, Bates, Candès, Jordan, Lei
        2021, Learn then Test, §2.3; Clopper & Pearson 1934.
    """
    given = [one for one in (error, coverage) if one is not None]
    if len(given) != 1:
        remedy = "pass one of them"
        raise refuse("one of error and coverage", "both" if given else "neither", remedy)
    if (features is not None) != (by == "group"):
        raise refuse('features together with by="group"', "one of them", "pass both or neither")
    p, wrong = confidence_of(predictions).cpu().numpy(), ~predictions.correct.cpu().numpy()
    parts = _parts_of_rule(predictions, by, features)
    # Bonferroni over classes or groups
    delta = (1 - confidence) / len(parts)
    chosen = _by_error if coverage is None else _by_coverage
    found = [chosen(name, p[rows], wrong[rows], given[0], delta) for name, rows in parts]
    return Abstention(tuple(found), by=by, error=error, confidence=confidence)


def _parts_of_rule(data: Data, by: By | None, features: Any) -> list[tuple[str, NDArray[np.int64]]]:
    """Return the name and row numbers of each part: all rows, each predicted class, or each group."""
    if by is None:
        return [("all", np.arange(len(data)))]
    if by == "class":
        if not isinstance(data, Predictions):
            raise refuse("the probabilities of all classes", "pairs", 'leave by="class" out')
        chosen = data.predicted.cpu().numpy()
        return [(str(k), np.nonzero(chosen == k)[0]) for k in range(data.classes)]
    names = np.asarray(_names_of_features(features, rows=len(data)))
    return [(str(one), np.nonzero(names == one)[0]) for one in np.unique(names)]


def _names_of_features(features: Any, *, rows: int) -> list[str]:
    return [str(value) for value in values_of_rows(features, name="features", rows=rows).tolist()]


def _by_error(name: str, p: Floats, wrong: NDArray[np.bool_], error: float, delta: float) -> Accepted:
    from scipy.special import bdtr

    values, counts = np.unique(p, return_counts=True)
    # every value is put in once more, so that each is counted; lost − 1 are its errors
    _, lost = np.unique(np.concatenate([p[wrong], values]), return_counts=True)
    path, answered, errors = values[::-1], np.cumsum(counts[::-1]), np.cumsum((lost - 1)[::-1])
    tested = answered >= min(_fewest_rows(len(p), error=error, delta=delta), len(p))
    path, answered, errors = path[tested], answered[tested], errors[tested]
    stopped = bdtr(errors.astype(float), answered, error) > delta  # P(Bin(m, α) ≤ k)
    passed = int(np.argmax(stopped)) if bool(stopped.any()) else len(path)
    if passed == 0:
        return Accepted(name, math.inf, len(p), 0, 0, 1.0)
    threshold = 0.0 if passed == len(path) else float(path[passed - 1])  # 0: no confidence is too low
    return Accepted(name, threshold, len(p), *_answered_and_wrong(p, wrong, threshold), error)


def _fewest_rows(rows: int, *, error: float, delta: float) -> int:
    """Return m₀: a tenth of the rows, at least as many as qualify without errors, at most as many as qualify with ``_FIRST``."""
    from scipy.special import gammaincinv

    least = math.ceil(math.log(delta) / math.log1p(-error))
    most = math.ceil(float(gammaincinv(_FIRST + 1, 1 - delta)) / error)  # the Poisson upper bound over α
    return max(least, min(rows // 10, most))


def _by_coverage(name: str, p: Floats, wrong: NDArray[np.bool_], coverage: float, delta: float) -> Accepted:
    """Return the highest order statistic that at least ``coverage`` of new rows reach with probability ≥ 1 − δ / 2.

    Given the r-th smallest confidence t of n, the n − r rows above it are independent draws from the rows above t, so their
    number of errors is binomial; the proportion of new rows that reach t is stochastically at least Beta(n − r + 1, r).
    """
    from scipy.special import betainc

    n = len(p)
    ranks = np.arange(1, n + 1)
    enough = betainc(n - ranks + 1, ranks, coverage) <= delta / 2 if n else np.array([], dtype=bool)
    rank = int(ranks[enough].max()) if bool(enough.any()) else 0
    threshold = float(np.sort(p)[rank - 1]) if rank else 0.0
    answered, errors = _answered_and_wrong(p, wrong, threshold)
    # the row that defines the threshold is not a draw from the rows above it, so it counts as wrong
    high = share_ends(min(errors + (rank > 0), answered), answered, alpha=delta / 2)[1]
    return Accepted(name, threshold, n, answered, errors, high)


def _answered_and_wrong(p: Floats, wrong: NDArray[np.bool_], threshold: float) -> tuple[int, int]:
    """Return how many rows are answered, and how many of them wrongly."""
    taken = p >= threshold
    return int(taken.sum()), int(wrong[taken].sum())
