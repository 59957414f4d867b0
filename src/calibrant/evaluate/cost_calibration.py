"""Tests of whether decisions cost what the probabilities predict, on average and over ranges of the predicted cost."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from calibrant._core.check import refuse
from calibrant.data.checks import check_costs, require_predictions
from calibrant.data.predictions import Predictions
from calibrant.statistics.means import Interval, mean_interval, skewed_p
from calibrant.statistics.paired import paired_test

_ROUNDING = 1e-13  # Σ_k p_k c may differ from c by this fraction of the largest cost
_TERMS = 60  # terms of the alternating series of the tail; the last is below rounding for ranges from 0.2 on


@dataclass(frozen=True)
class CostCalibration:
    """The predicted and the actual cost of decisions.

    Args:
        foreseen: Mean over rows of the lowest expected cost.
        realised: Mean cost of the decisions.
        difference: ``realised`` − ``foreseen``, with its interval.
        p: p-value of the difference if the probabilities are calibrated.
        kuiper: The largest sum of differences over the rows of any range of predicted costs, divided by the number of all
            rows.
        kuiper_p: p-value of ``kuiper`` if the probabilities are calibrated; None if the rows have groups, because rows of
            one group are dependent.
    """

    foreseen: float
    realised: float
    difference: Interval
    p: float
    kuiper: float
    kuiper_p: float | None

    def __str__(self) -> str:
        share = f" ({100 * self.difference.estimate / self.foreseen:+.1f} %)" if self.foreseen > 0 else ""
        ranges = "" if self.kuiper_p is None else f"; test over ranges of foreseen cost: p = {self.kuiper_p:.3g}"
        tested = f"{self.difference}{share}, p = {self.p:.3g} if calibrated{ranges}"
        return f"foreseen {self.foreseen:.4g}, realised {self.realised:.4g}: difference {tested}"


def cost_calibration(
    predictions: Predictions, costs: Any, *, reject: float | None = None, level: float = 0.95
) -> CostCalibration:
    """Compare the cost that probabilities predict for the decisions of lowest expected cost with their actual cost.

    The decision a_i = argmin_a Σ_k p_ik C_ka has the predicted cost f_i and the actual cost C_{y_i a_i}. If the
    probabilities are calibrated, the differences have mean 0 and the known variance Σ_k p_ik (C_{k a_i} − f_i)². The
    p-value also accounts for their skewness (Cornish & Fisher). The Kuiper statistic is the range of the cumulative
    differences in order of the predicted cost, compared with the range of a Brownian motion (Feller 1951). This statistic
    detects gaps that cancel on average. If the rows have groups, the difference is tested over groups, and there is no
    Kuiper test.

    Args:
        predictions: Labelled predictions over all classes, which no calibrator was fitted on.
        costs: (K, A) costs of each action for each true class, ``costs[true, action]``; negative costs are gains.
        reject: Cost of abstaining, or None if abstaining is not possible.
        level: Coverage of the interval of the difference, in (0, 1).

    Returns:
        Both costs and the tests of their difference.

    Raises:
        InputError: If ``costs`` is not a finite table with one row per class.
        NoIntervalError: If there is only one row or group.

    Examples:
        >>> from calibrant import Predictions
        >>> data = Predictions.from_binary_probs([0.9, 0.2] * 100, [1, 0, 1, 1] * 50)
        >>> found = cost_calibration(data, [[0, 1], [5, 0]])
        >>> round(found.foreseen, 3), round(found.realised, 3)
        (0.45, 0.25)

    References:
        Zhao et al. 2021, Calibrating predictions to decisions; arXiv 2510.25458 (utility calibration); Feller 1951.
    """
    data = require_predictions(predictions, what="the calibration of costs")
    table = torch.tensor(check_costs(costs), dtype=torch.float64, device=data.logits.device)
    if len(table) != data.classes:
        lines = f"costs with {data.classes} rows, one per class of the predictions"
        raise refuse(lines, f"{len(table)} rows", "give one row of costs for each class")
    if reject is not None:
        table = torch.cat([table, table.new_full((len(table), 1), reject)], dim=1)
    p = data.float64_probs()
    foreseen, action = (p @ table).min(dim=1)
    own = table.T[action]  # (N, K) cost of each row's decision for every possible true class
    realised = own.gather(1, data.require_labels()[:, None])[:, 0]
    centred = own - foreseen[:, None]
    gap = realised - foreseen
    gap = torch.where(gap.abs() <= _ROUNDING * own.abs().amax(), 0.0, gap)  # rounding, where all costs are equal
    weight, counted = data.row_weights, data.row_weights.square()
    # central moments of Σ w gap for a calibrated model
    variance = float(counted @ (p * centred.square()).sum(dim=1))
    third = float(weight**3 @ (p * centred**3).sum(dim=1))
    total, mass = float(weight @ gap), float(weight.sum())
    interval = mean_interval(gap, groups=data.groups, level=level, weight=data.weights)
    # The largest minus the smallest cumulative sum is the largest |sum| over any range of predicted costs (Kuiper). Rows with the
    # same predicted cost are added together, because their order would be arbitrary.
    costs_foreseen, place = torch.unique(foreseen, return_inverse=True)
    steps = torch.bincount(place, weights=weight * gap, minlength=len(costs_foreseen))
    path = torch.cat([gap.new_zeros(1), steps.cumsum(0)])
    spread = float(path.max() - path.min())
    if data.groups is None:
        tested = skewed_p(total / math.sqrt(variance), third / variance**1.5) if variance > 0 else float(total == 0)
        ranged = range_tail(spread / math.sqrt(variance)) if variance > 0 else 1.0
    else:
        tested, ranged = paired_test(gap, groups=data.groups, weight=data.weights).p_value, None
    mean = float(weight @ foreseen) / mass
    return CostCalibration(mean, mean + total / mass, interval, tested, spread / mass, ranged)


def range_tail(ratio: float) -> float:
    """Return P(R > ratio) for the range R of a Brownian motion on [0, 1].

    This is 8 Σ_k (−1)^{k−1} k (1 − Φ(k r)), the integral of Feller's (1951) density 8 Σ_k (−1)^{k−1} k² φ(k r).

    Examples:
        >>> round(range_tail(2.4977), 3)
        0.05
    """
    if ratio < 0.5:  # P > 1 − 1e-8, where the series needs ever more terms
        return 1.0
    terms = ((1.0 if k % 2 else -1.0) * k * math.erfc(k * ratio / math.sqrt(2)) for k in range(1, _TERMS))
    return min(1.0, max(0.0, 4 * sum(terms)))
