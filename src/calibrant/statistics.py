"""Uncertainty of a figure: bootstrap intervals for means, and the level a perfectly calibrated model would show.

Everything here takes a metric as a callable on predictions, so it knows no metric by name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from calibrant._check import check_count, check_number
from calibrant._numerics import row_chunks
from calibrant.errors import NoIntervalError
from calibrant.predictions import BinaryPairs, Predictions

__all__ = ["Interval", "bootstrap", "null_band"]

Data = Predictions | BinaryPairs


@runtime_checkable
class HasRows(Protocol):
    """A metric that is the mean of one number a row."""

    def rows(self, data: Data) -> Tensor:
        """Return the numbers (N,) whose mean is the metric."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval.

    Args:
        estimate: The figure itself.
        low: Lower end.
        high: Upper end.
        level: Nominal coverage in (0, 1).
        method: How it was made.
    """

    estimate: float
    low: float
    high: float
    level: float
    method: str

    def __str__(self) -> str:
        return f"{self.estimate:.4g} [{self.low:.4g}, {self.high:.4g}]"


def bootstrap(
    metric: Callable[[Data], float] | HasRows,
    predictions: Data,
    *,
    draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Return the percentile bootstrap interval of a metric that is a mean over rows.

    Args:
        metric: A metric with ``rows``, such as ``Accuracy()``, ``NLL()`` or ``Brier()``.
        predictions: The data; with ``groups`` whole groups are drawn.
        draws: Resamples, ≥ 1.
        seed: Same seed, same interval.
        level: Nominal coverage.

    Raises:
        NoIntervalError: For a metric that is no mean over rows: a percentile interval of plug-in ECE covers 0 % when
            the model is calibrated.

    Example:
        >>> from calibrant import Predictions
        >>> from calibrant.metrics import Accuracy
        >>> data = Predictions.from_logits([[1.4, 0.0]] * 100, [0] * 80 + [1] * 20)
        >>> interval = bootstrap(Accuracy(), data)
        >>> interval.low < 0.8 < interval.high
        True
    """
    check_count(draws, name="draws")
    check_number(level, name="level", low=0, high=1, open_low=True, open_high=True)
    if not isinstance(metric, HasRows):
        raise NoIntervalError(
            f"expected a metric that is a mean over rows, got {metric!r}, for which a bootstrap interval does not cover; "
            "compare it with null_band"
        )
    totals, counts = _by_group(metric.rows(predictions), predictions.groups)
    generator = torch.Generator().manual_seed(seed)
    units = totals.shape[0]
    means = []
    for rows in row_chunks(draws, units):
        chosen = torch.randint(units, (rows.stop - rows.start, units), generator=generator)
        means.append(totals[chosen].sum(dim=1) / counts[chosen].sum(dim=1))
    drawn = torch.cat(means)
    tail = (1 - level) / 2
    low, high = torch.quantile(drawn, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return Interval(float(totals.sum() / counts.sum()), low, high, level, f"percentile bootstrap, {draws} draws")


def _by_group(rows: Tensor, groups: Tensor | None) -> tuple[Tensor, Tensor]:
    rows = rows.double().cpu()
    if groups is None:
        return rows, torch.ones_like(rows)
    _, codes = torch.unique(groups.cpu(), return_inverse=True)
    return torch.bincount(codes, weights=rows), torch.bincount(codes).double()


def null_band(
    metric: Callable[[Data], float], predictions: Data, *, draws: int = 200, seed: int = 0, level: float = 0.95
) -> Interval:
    """Return what ``metric`` would show if these very probabilities were perfectly calibrated.

    Labels are drawn from the predicted probabilities; all else stays. A value inside the band cannot be told from
    calibrated.

    Args:
        metric: Any metric.
        predictions: The data; for ``BinaryPairs`` outcomes are drawn from ``p``.
        draws: Label sets drawn, ≥ 1.
        seed: Same seed, same band.
        level: Share of draws below ``high`` (and above ``low``) is (1 + level) / 2.

    Returns:
        Interval: ``estimate`` is the mean over draws.

    Example:
        >>> from calibrant import Predictions
        >>> from calibrant.metrics import ECE
        >>> data = Predictions.from_logits([[1.4, 0.0]] * 100, [0] * 80 + [1] * 20)
        >>> 0 < null_band(ECE(), data).estimate < 0.1
        True
    """
    check_count(draws, name="draws")
    generator = torch.Generator().manual_seed(seed)
    values = torch.tensor([metric(redraw(predictions, generator=generator)) for _ in range(draws)], dtype=torch.float64)
    tail = (1 - check_number(level, name="level", low=0, high=1, open_low=True, open_high=True)) / 2
    low, high = torch.quantile(values, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return Interval(float(values.mean()), low, high, level, f"labels drawn from the probabilities, {draws} draws")


def redraw(predictions: Data, *, generator: torch.Generator) -> Data:
    """Return the same predictions with labels drawn from their probabilities."""
    if isinstance(predictions, BinaryPairs):
        happened = torch.rand(len(predictions), dtype=torch.float64, generator=generator) < predictions.p.cpu()
        return BinaryPairs(predictions.p, happened.double().to(predictions.p.device), groups=predictions.groups)
    drawn = []
    for rows in row_chunks(len(predictions), predictions.classes):
        part = predictions[rows]
        p = part.log_probs.exp() if part.probs is None else part.probs.double()
        uniform = torch.rand(len(part), 1, dtype=torch.float64, generator=generator).to(p.device)
        cumulative = p.cumsum(dim=1)
        below = (cumulative < uniform * cumulative[:, -1:]).sum(dim=1)
        drawn.append(below.clamp_max(predictions.classes - 1))
    fresh = Predictions(
        predictions.logits, torch.cat(drawn), predictions.groups, predictions.decision, predictions.probs
    )
    for name in ("log_norm", "predicted", "confidence"):  # these do not depend on the labels
        if name in predictions.__dict__:
            fresh.__dict__[name] = predictions.__dict__[name]
    return fresh
