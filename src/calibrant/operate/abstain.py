"""Selective prediction with a guarantee: answer only above a confidence threshold that bounds the error among the answers.

If m rows have confidence ≥ t and k of them are errors, the hypothesis "the error is above α" has the exact p-value
P(Bin(m, α) ≤ k). The confidences that occur are tested as thresholds in descending order, starting with that of the m₀-th row,
until a hypothesis is not rejected (fixed-sequence testing: Angelopoulos et al. 2021, Learn then Test, §2.3).

The test is valid although the thresholds depend on the data. Let R(t) be the error among rows with confidence ≥ t, assume that
R(t) does not decrease as t decreases, and let t* be the threshold at which it crosses α. If the sequence starts above t*, the
first false rejection can only happen at t*; given their number, the rows with confidence ≥ t* are independent draws with
error ≥ α. If the sequence starts below t*, the first test decides; given the m₀-th confidence, the rows above it are such draws. In
both cases, the exact test rejects with probability at most δ. If R is not monotonic (because the model errs more often where it is
more confident), it can cross α several times, and a false rejection can happen at each crossing.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calibrant._core.check import check_number
from calibrant._core.config import json_data
from calibrant.data.checks import Data
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.operate.bounds import Line, share_ends
from calibrant.operate.rows import require_window, row_confidence

Floats = NDArray[np.float64]

ABSTAIN = -1
_FIRST = 8  # errors allowed at the first threshold if there are many rows


class Abstention(nn.Module):
    """A rule, created by ``abstain``, that returns the most probable class if its confidence reaches a threshold, else −1.

    ``forward`` takes calibrated logits (N, K) and returns answers (N,), int64, so that
    ``torch.nn.Sequential(model, calibrator, rule)`` is the deployed model.

    Args:
        threshold: Smallest confidence at which the rule answers; inf if it always abstains.
        error: The error rate among the answers, with its bounds and the requested limit.
        coverage: The proportion of rows that are answered, with exact 95 % bounds.
        confidence: Confidence level 1 − δ of the upper bound on the error rate.
    """

    level: Tensor

    def __init__(self, threshold: float, *, error: Line, coverage: Line, confidence: float) -> None:
        super().__init__()
        self.threshold, self.error, self.coverage, self.confidence = threshold, error, coverage, confidence
        self.register_buffer("level", torch.tensor(threshold, dtype=torch.float64))

    @property
    def lines(self) -> tuple[Line, ...]:
        """The error rate among the answers, and the proportion of rows that are answered."""
        return self.error, self.coverage

    @property
    def qualifies(self) -> bool:
        """Whether any threshold qualifies."""
        return math.isfinite(self.threshold)

    def forward(self, logits: Tensor) -> Tensor:
        """Return the answers (N,), int64, for calibrated ``logits`` (N, K); −1 where the rule abstains."""
        p, best = torch.softmax(logits.double(), dim=1).amax(dim=1), logits.argmax(dim=1)
        return torch.where(p >= self.level, best, ABSTAIN)

    def decide(self, predictions: Data) -> Tensor:
        """Return the answers (N,): the decided class (1 for pairs), or −1 if the rule abstains. Labels are not needed."""
        if isinstance(predictions, Predictions):
            chosen = predictions.predicted.cpu()
        else:
            chosen = torch.ones(len(predictions), dtype=torch.int64)
        return torch.where(row_confidence(predictions).cpu() >= self.threshold, chosen, ABSTAIN)

    def plain(self) -> dict[str, Any]:
        """Return the rule as JSON data; an infinite threshold becomes null."""
        names = ("qualifies", "threshold", "confidence", "lines")
        return {name: json_data(getattr(self, name)) for name in names}

    def extra_repr(self) -> str:
        """Return the guarantee as text."""
        return str(self)

    def __str__(self) -> str:
        limit, rows = self.error.limit, f"{self.coverage.n:,} rows"
        if not self.qualifies:
            return f"no threshold has an error of at most {limit:g} with confidence {self.confidence:g} on {rows}"
        of_rows = (
            f"answer if the confidence is at least {self.threshold:.4f}: {100 * self.coverage.value:.1f} % of {rows}"
        )
        wrong = f"{round(self.error.value * self.error.n)} of {self.error.n:,} answers wrong"
        return f"{of_rows}, {wrong}, error below {100 * self.error.high:.2f} % with confidence {self.confidence:g}"


def abstain(
    predictions: Data, *, error: float | None = None, coverage: float | None = None, confidence: float = 0.95
) -> Abstention:
    """Return a rule that abstains below a confidence threshold, chosen so that the error among the answers is bounded.

    The guarantee applies to new rows from the same distribution: with probability ``confidence`` over the labelled rows, the error
    rate among future answers is at most ``error``.

    Args:
        predictions: Labelled predictions for independent rows without weights, on which no calibrator was fitted.
        error: Largest error rate among the answers, in (0, 1).
        coverage: Smallest proportion of new rows to answer, in (0, 1), as an alternative to ``error``; the result's ``.error``
            then bounds the error rate.
        confidence: Confidence level 1 − δ in (0, 1).

    Returns:
        The rule, a module. If no threshold qualifies, it always abstains, and ``.qualifies`` is false.

    Raises:
        InputError: If rows are unlabelled or dependent, or if both or neither of ``error`` and ``coverage`` are given.

    Examples:
        >>> from calibrant import Predictions
        >>> probs = torch.linspace(0.5, 0.999, 4000).double()
        >>> wrong = torch.rand(4000, generator=torch.Generator().manual_seed(0)).double() > probs
        >>> rule = abstain(Predictions.from_binary_probs(probs, (~wrong).long()), error=0.05)
        >>> 0.85 < rule.threshold < 0.95, rule.error.high <= 0.05
        (True, True)

    References:
        Geifman & El-Yaniv 2017, Selective Classification for Deep Neural Networks; Angelopoulos, Bates, Candès, Jordan, Lei
        2021, Learn then Test, §2.3; Clopper & Pearson 1934.
    """
    rows = require_window(predictions, what="abstain")
    if (error is None) == (coverage is None):
        raise InputError("abstain needs either error or coverage, and not both")
    for name, value in (("error", error), ("coverage", coverage), ("confidence", confidence)):
        if value is not None:
            check_number(value, name=name, low=0, high=1, open_low=True, open_high=True)
    p, wrong = row_confidence(rows).cpu().numpy(), ~rows.correct.cpu().numpy()
    delta, n = 1 - confidence, len(p)
    if error is not None:
        threshold = _by_error(p, wrong, error, delta)
        last = 0
    else:
        threshold, last = _by_coverage(p, coverage, delta)  # type: ignore[arg-type]
        # the coverage uses half of δ
        delta = delta / 2
    answered = int((p >= threshold).sum())
    errors = int(wrong[p >= threshold].sum())
    # the row that defines the threshold for a coverage is not a draw from the rows above it, so it counts as wrong
    low, high = share_ends(min(errors + last, answered), answered, alpha=delta) if answered else (0.0, 1.0)
    value = errors / answered if answered else 0.0
    # if an error rate was requested, the test itself proves this bound
    high = high if error is None or not answered else error
    verdict = "" if error is None else "pass" if answered else "not enough evidence"
    return Abstention(
        threshold,
        error=Line("error among the answers", value, min(low, value), high, answered, error, verdict),
        coverage=Line("answered", answered / n, *share_ends(answered, n, alpha=0.025), n, coverage),
        confidence=confidence,
    )


def _by_error(p: Floats, wrong: NDArray[np.bool_], error: float, delta: float) -> float:
    from scipy.special import bdtr

    values, counts = np.unique(p, return_counts=True)
    # every value is added once so that np.unique counts all of them; the number of errors at a value is lost − 1
    _, lost = np.unique(np.concatenate([p[wrong], values]), return_counts=True)
    path, answered, errors = values[::-1], np.cumsum(counts[::-1]), np.cumsum((lost - 1)[::-1])
    tested = answered >= min(_fewest_rows(len(p), error=error, delta=delta), len(p))
    path, answered, errors = path[tested], answered[tested], errors[tested]
    stopped = bdtr(errors.astype(float), answered, error) > delta  # P(Bin(m, α) ≤ k)
    passed = int(np.argmax(stopped)) if bool(stopped.any()) else len(path)
    if passed == 0:
        return math.inf
    return 0.0 if passed == len(path) else float(path[passed - 1])  # 0 means that no confidence is too low


def _fewest_rows(rows: int, *, error: float, delta: float) -> int:
    """Return m₀, a tenth of the rows, but at least as many as qualify with 0 errors and at most as many as with ``_FIRST``."""
    from scipy.special import gammaincinv

    fewest = math.ceil(math.log(delta) / math.log1p(-error))
    largest = math.ceil(float(gammaincinv(_FIRST + 1, 1 - delta)) / error)  # the Poisson upper bound over α
    return max(fewest, min(rows // 10, largest))


def _by_coverage(p: Floats, coverage: float, delta: float) -> tuple[float, int]:
    """Return the threshold for a coverage, and the number (1 or 0) of rows that define it.

    The threshold is the highest confidence that at least ``coverage`` of new rows reach with probability ≥ 1 − δ / 2. Given the
    r-th smallest confidence t of n, the n − r rows above it are independent draws from the rows above t, so their number of errors
    is binomial. The proportion of new rows that reach t is stochastically at least Beta(n − r + 1, r).
    """
    from scipy.special import betainc

    n = len(p)
    ranks = np.arange(1, n + 1)
    enough = betainc(n - ranks + 1, ranks, coverage) <= delta / 2
    rank = int(ranks[enough].max()) if bool(enough.any()) else 0
    return (float(np.sort(p)[rank - 1]), 1) if rank else (0.0, 0)
