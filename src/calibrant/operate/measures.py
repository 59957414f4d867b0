"""The metrics that can have limits: their value, finite-sample bounds, and difference to a baseline."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant._core.check import refuse
from calibrant.binning import EqualWidth
from calibrant.data.checks import Data, need_predictions
from calibrant.evaluate.cost_calibration import decided_costs
from calibrant.metrics import ECE, NLL, Accuracy, Brier, Error, Metric
from calibrant.operate.bounds import calibration_ends, mean_ends, share_ends
from calibrant.operate.moments import Moments
from calibrant.operate.rows import need_classes
from calibrant.statistics.means import FEWEST_COMPARED, paired_test, scarce_errors

__all__ = ["COST_GAP", "LIMITED", "WORST", "Bounded", "better_of", "bounded", "change", "cost_gap"]

Floats = NDArray[np.float64]

LIMITED = ("accuracy", "error", "brier", "ece")
WORST = "worst-group-"
COST_GAP = "cost-gap"
_METRICS: dict[str, Metric] = {"accuracy": Accuracy(), "error": Error(), "brier": Brier(), "ece": ECE(), "nll": NLL()}
_RANGE = {"accuracy": (0.0, 1.0), "error": (0.0, 1.0), "brier": (0.0, 2.0)}
_BINS = EqualWidth(15)


@dataclass(frozen=True)
class Bounded:
    """A value with bounds, each missed with probability at most α, and the centre to which they converge with more rows.

    ``more`` and ``note`` say how many more rows would give bounds, and why there are none.
    """

    value: float
    low: float
    high: float
    centre: float
    n: int
    more: int | None = None
    note: str = ""


def better_of(metric: str) -> Literal["lower", "higher", "zero"]:
    """Return whether a lower or a higher value of ``metric`` is better."""
    return _METRICS[metric.removeprefix(WORST)].better


def bounded(metric: str, data: Data, *, alpha: float) -> Bounded:
    """Return the value of ``metric`` (one of ``LIMITED``) on ``data`` with its bounds.

    Args:
        metric: Accuracy and error have exact binomial bounds, brier and ece those of ``operate.bounds``.
        data: Labelled, of independent rows.
        alpha: Error probability of each bound.
    """
    value, n = _METRICS[metric](data), len(data)
    if metric == "ece":
        x, index = _gaps(data)
        moments = Moments.of(x, index, bins=_BINS.bins)
        weight = data.confidence.cpu().double().numpy()
        confidences = np.bincount(index, weight, minlength=_BINS.bins).astype(np.float64)
        ends = calibration_ends(moments, confidences=confidences, alpha=alpha)
        centre = _centre(moments)
    elif metric == "brier":
        rows = _rows(metric, data)
        ends, centre = mean_ends(Moments.of(rows), low=0, high=2, alpha=alpha), value
    else:
        ends, centre = share_ends(round(value * n), n, alpha=alpha), value
    return Bounded(value, min(ends[0], value), max(ends[1], value), centre, n)


def cost_gap(data: Data, costs: Any, *, alpha: float) -> Bounded:
    """Return |realised − foreseen| of the mean cost of the decisions of least expected cost, with bounds at any number of rows.

    Args:
        data: Labelled, of independent rows, with all classes.
        costs: (K, A) costs[true, action].
        alpha: Error probability of each bound of the difference.
    """
    predictions = need_classes(data, name="predictions")
    _, own, foreseen = decided_costs(predictions, costs)
    rows = (own.gather(1, predictions.need_labels()[:, None])[:, 0] - foreseen).cpu().numpy()
    reach = max(float(own.max() - own.min()), 1e-300)
    low, high = mean_ends(Moments.of(rows), low=-reach, high=reach, alpha=alpha)
    mean = float(rows.mean())
    nearest = max(0.0, low, -high)  # 0 where the difference may have either sign
    return Bounded(abs(mean), min(nearest, abs(mean)), max(abs(low), abs(high), abs(mean)), abs(mean), len(rows))


def change(metric: str, data: Data, baseline: Data, *, paired: bool, alpha: float) -> Bounded:
    """Return how much worse ``data`` is than ``baseline`` (positive is worse), with bounds.

    Args:
        metric: One of ``LIMITED``, or nll.
        data: Predictions of the new model.
        baseline: Predictions of the old model.
        paired: Whether both are of the same rows in the same order.
        alpha: Error probability of each bound.

    Raises:
        InputError: For an infinite log-loss.
    """
    sign = 1 if better_of(metric) == "lower" else -1
    n = min(len(data), len(baseline))
    if metric == "ece" or (metric != "nll" and not paired):
        new, old = bounded(metric, data, alpha=alpha / 2), bounded(metric, baseline, alpha=alpha / 2)
        ends = sorted((sign * (new.low - old.high), sign * (new.high - old.low)))
        return Bounded(sign * (new.value - old.value), ends[0], ends[1], sign * (new.centre - old.centre), n)
    new_rows, old_rows = _rows(metric, data), _rows(metric, baseline)
    if metric == "nll":
        change_of = float(new_rows.mean() - old_rows.mean())
        if scarce := scarce_errors(data, baseline):
            seen, enough = scarce
            note = f"{FEWEST_COMPARED} wrong decisions of both are needed to compare log-losses, {seen:.0f} were seen"
            return Bounded(change_of, -math.inf, math.inf, change_of, n, max(enough - n, 1), note)
        if paired:
            test = paired_test(torch.from_numpy(new_rows - old_rows), level=1 - 2 * alpha)[0]
            return Bounded(change_of, test.low, test.high, change_of, n)
        return _change_of_means(new_rows, old_rows, alpha=alpha)
    rows = sign * (new_rows - old_rows)
    reach = _RANGE[metric][1]
    low, high = mean_ends(Moments.of(rows), low=-reach, high=reach, alpha=alpha)
    return Bounded(float(rows.mean()), low, high, float(rows.mean()), n)


def _change_of_means(new: Floats, old: Floats, *, alpha: float) -> Bounded:
    """Return the change of an unbounded mean between other rows, with asymptotic bounds by Welch's t."""
    from scipy.special import stdtrit

    parts = [float(rows.var(ddof=1)) / len(rows) for rows in (new, old)]
    shares = [part**2 / (len(rows) - 1) for part, rows in zip(parts, (new, old), strict=True)]
    freedom = sum(parts) ** 2 / sum(shares) if sum(shares) > 0 else 1.0
    mean = float(new.mean() - old.mean())
    half = float(stdtrit(freedom, 1 - alpha)) * math.sqrt(sum(parts))
    return Bounded(mean, mean - half, mean + half, mean, min(len(new), len(old)))


def _rows(metric: str, data: Data) -> Floats:
    """Return the rows (N,) whose mean is ``metric``."""
    # not NLL().rows, which would warn about an infinite log-loss before the error below
    rows: Tensor = need_predictions(data, metric=NLL()).nll if metric == "nll" else _METRICS[metric].rows(data)  # type: ignore[attr-defined]
    if not bool(torch.isfinite(rows).all()):
        raise refuse(
            "a finite log-loss",
            f"an infinite one in {int((~torch.isfinite(rows)).sum())} rows",
            "give the calibrator a floor, or limit brier instead",
        )
    return np.asarray(rows.cpu().double().numpy())


def _gaps(data: Data) -> tuple[Floats, NDArray[np.int64]]:
    """Return confidence − correct (N,) and the bin (N,) of each row."""
    p = data.confidence.cpu()
    x = p - data.correct.cpu().double()
    return np.asarray(x.numpy()), np.asarray(_BINS.assign(p).numpy())


def _centre(moments: Moments) -> float:
    """Return the calibration error with the sampling variance subtracted from each bin's squared gap."""
    n = moments.count.sum()
    variance = np.maximum(moments.squares - moments.total**2 / np.maximum(moments.count, 1), 0)
    return float(np.sqrt(np.maximum(moments.total**2 - variance, 0)).sum() / n)
