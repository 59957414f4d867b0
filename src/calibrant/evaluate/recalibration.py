"""Measures that need a fit: the lowest ECE over all temperatures, calibration and refinement, and the calibration line."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.check import check_choice, check_count, check_number
from calibrant._core.newton import newton, no_minimum
from calibrant.binning import Binning, EqualWidth
from calibrant.data.checks import Data, require_predictions, require_rows
from calibrant.data.predictions import Predictions
from calibrant.data.record import fitting_weights
from calibrant.metrics import ECE, NLL, Brier
from calibrant.rows import Batch
from calibrant.statistics.means import Interval, normal_quantile
from calibrant.statistics.paired import FEWEST_COMPARED, paired_test, scarce_errors

if TYPE_CHECKING:
    from calibrant.calibrators import Calibrator

_CURVATURE = 1e-7  # a smaller curvature of the summed log-likelihood means that its maximum is at infinity


@dataclass(frozen=True)
class OptimalECE:
    """The lowest ECE over all temperatures, on the data that the temperature was chosen on.

    Args:
        value: The lowest ECE.
        temperature: The temperature that gives this ECE.
    """

    value: float
    temperature: float


def optimal_ece(
    predictions: Predictions, *, binning: Binning | None = None, low: float = 0.05, high: float = 20.0, steps: int = 200
) -> OptimalECE:
    """Return the smallest ECE that any temperature gives on these predictions.

    The temperature is chosen and evaluated on the same data, so the result is a bound on what temperature scaling can
    reach, not an estimate of what it will reach. The ECE is not continuous in T, so a grid of temperatures is searched, and
    then a finer grid around the best one.

    Args:
        predictions: Labelled predictions over all classes.
        binning: Bins of the ECE; None is ``EqualWidth(15)``.
        low: Lowest temperature, > 0.
        high: Highest temperature, > ``low``.
        steps: Number of temperatures in the first grid, evenly spaced in log T; the second grid has half as many. T = 1 is
            always tried.

    Returns:
        The lowest ECE and its temperature.

    Raises:
        InputError: If the predictions have no labels or no rows.

    Examples:
        >>> from calibrant import Predictions
        >>> data = Predictions.from_logits([[2.0, 0.0]] * 100, [0] * 70 + [1] * 30)
        >>> round(optimal_ece(data).temperature, 2)
        2.36

    References:
        Wang et al. 2021, Figure 4.
    """
    data = require_predictions(predictions, what="the optimal ECE")
    metric = ECE(EqualWidth(15) if binning is None else binning)

    def error(log_temperature: float) -> float:
        logits = data.logits.double() / math.exp(log_temperature)
        return metric(replace(data, logits=logits, decision=data.predicted, given_probs=None))

    def best_of(points: Tensor) -> tuple[float, float]:
        return min((error(point), point) for point in points.tolist())

    # evenly spaced in log T, because halving and doubling a temperature are equally large changes
    grid = torch.linspace(math.log(low), math.log(high), steps, dtype=torch.float64)
    coarse = best_of(grid)
    step = float(grid[1] - grid[0])
    fine = best_of(coarse[1] + torch.linspace(-step, step, steps // 2, dtype=torch.float64))
    value, point = min(coarse, fine, (error(0.0), 0.0))
    return OptimalECE(value, math.exp(point))


@dataclass(frozen=True)
class Refinement:
    """A proper score split into calibration and refinement.

    Args:
        total: The score of the predictions.
        refinement: The score after cross-fitted recalibration, which recalibration cannot remove.
        calibration: ``total`` − ``refinement``, a lower bound on the calibration loss, with its interval.
        reliable: Whether the interval of ``calibration`` lies above 0.
    """

    total: float
    refinement: float
    calibration: Interval
    reliable: bool


def refinement(
    predictions: Predictions,
    *,
    score: Literal["log", "brier"] = "log",
    calibrator: "Callable[[], Calibrator] | None" = None,
    folds: int = 5,
    level: float = 0.95,
) -> Refinement:
    """Split a proper score into calibration and refinement.

    Every row is recalibrated by a calibrator fitted on other rows. The part of the score that this removes is the
    calibration part, and the rest is the refinement.

    Args:
        predictions: Labelled predictions; rows of one group stay in one fold.
        score: "log" (``NLL``) or "brier".
        calibrator: A function that returns an unfitted calibrator; None is ``TemperatureScaling``. A more flexible
            calibrator gives a tighter bound but can overfit.
        folds: Number of folds, ≥ 2. A row's scores, or its group, determine its fold.
        level: Coverage of the interval, in (0, 1).

    Returns:
        The score, its two parts, and the interval of the calibration part.

    Raises:
        InputError: If the predictions have no labels or no rows, or ``score`` or ``folds`` is not valid.

    Examples:
        >>> from calibrant import Predictions
        >>> _ = torch.manual_seed(0)
        >>> logits = torch.randn(500, 3)
        >>> labels = torch.multinomial(logits.softmax(dim=1), 1)[:, 0]
        >>> refinement(Predictions.from_logits(logits * 4, labels)).reliable
        True

    References:
        Bröcker 2009; Berta et al. 2025 (cross-fitted refinement).
    """
    from calibrant.calibrators import TemperatureScaling

    data = require_predictions(predictions, what="a refinement")
    check_count(folds, name="folds", low=2)
    metric = NLL() if check_choice(score, name="score", choices=("log", "brier")) == "log" else Brier()
    changed = _calibrated_in_folds(data, calibrator or TemperatureScaling, folds)
    before, after = metric.rows(data).cpu(), metric.rows(changed).cpu()
    share = (data.row_weights / data.row_weights.sum()).cpu()
    total, left = float(before @ share), float(after @ share)
    if scarce_errors(data, changed, loss=metric.of_labels) is not None:
        why = f"none: fewer than {FEWEST_COMPARED} wrong decisions whose score the recalibration changes"
        return Refinement(total, left, Interval(total - left, -math.inf, math.inf, level, why), False)
    gain = paired_test(before - after, groups=data.groups, level=level, weight=data.weights)
    method = f"{folds}-fold cross-fitting, paired Student's t"
    return Refinement(total, left, Interval(gain.difference, gain.low, gain.high, level, method), gain.low > 0)


def _calibrated_in_folds(data: Predictions, make: "Callable[[], Calibrator]", folds: int) -> Predictions:
    """Return the predictions with each row calibrated by a fit on other rows, so that the gain is not optimistic.

    Rows of one group stay in one fold.
    """
    from calibrant.calibrators.folds import fold_by_scores

    labels, weight = data.require_labels(), fitting_weights(data.weights)
    part = fold_by_scores(Batch(data.logits, labels, groups=data.groups), folds)
    after = torch.full_like(data.logits, torch.nan, dtype=torch.float64)
    for fold in part.unique():
        rest = part != fold
        fitted = make().fit(data.logits[rest], labels[rest], weights=None if weight is None else weight[rest])
        after[~rest] = data[~rest].calibrated_by(fitted).log_probs
    return Predictions.from_logits(after, labels, groups=data.groups, unchecked_kind=True)


@dataclass(frozen=True)
class CalibrationLine:
    """The line logit P(y = 1) = intercept + slope · logit(p), where y is an event or whether the decision is correct.

    Args:
        slope: The slope, 1 for a calibrated model. Below 1, the probabilities are too extreme (over-confident).
        intercept: The intercept, 0 for a calibrated model.
        in_the_large: The intercept if the slope is fixed at 1; negative if probabilities are too high on average.
    """

    slope: Interval
    intercept: Interval
    in_the_large: Interval


def calibration_line(data: Data, *, event: int | None = 1, level: float = 0.95) -> CalibrationLine:
    """Fit the calibration slope and intercept of a probability, with Wald intervals.

    Args:
        data: Labelled predictions or pairs; probabilities of 0 and 1 are moved by 1e-12.
        event: For two classes, the class whose probability is used (1 or 0), or None for the confidence of the decision.
            With more classes the confidence is always used, and pairs use their own event.
        level: Coverage of the intervals, in (0, 1).

    Returns:
        The slope, the intercept, and the intercept at slope 1, with their intervals.

    Raises:
        FitError: If the likelihood has no finite maximum, because all outcomes are equal or the probability separates them
            perfectly.

    Examples:
        >>> from calibrant import Pairs
        >>> pairs = Pairs.from_probs([0.9] * 10 + [0.6] * 10, [1] * 9 + [0] + [1] * 6 + [0] * 4)
        >>> line = calibration_line(pairs)
        >>> round(line.slope.estimate, 6), abs(round(line.intercept.estimate, 6))
        (1.0, 0.0)

    References:
        Cox 1958; Van Calster et al. 2019.
    """
    check_number(level, name="level", low=0, high=1, open_low=True, open_high=True)
    rows = require_rows(data, what="a calibration line")
    two = isinstance(rows, Predictions) and rows.classes == 2 and event is not None
    pairs = rows.one_vs_rest(event) if two else rows.top_label()  # type: ignore[union-attr, arg-type]
    score, y, weight = torch.logit(pairs.p.cpu(), eps=1e-12), pairs.y.cpu(), fitting_weights(pairs.weights)
    ones = torch.ones_like(score)
    z = normal_quantile((1 + level) / 2)

    def wald(design: Tensor, offset: Tensor) -> list[Interval]:
        beta, covariance = _logistic(design, y, offset, None if weight is None else weight.cpu())
        halves = z * covariance.diagonal().sqrt()
        return [Interval(b, b - h, b + h, level, "Wald") for b, h in zip(beta.tolist(), halves.tolist(), strict=True)]

    intercept, slope = wald(torch.stack([ones, score], dim=1), 0 * score)
    return CalibrationLine(slope, intercept, *wald(ones[:, None], score))


def _logistic(design: Tensor, y: Tensor, offset: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the maximum-likelihood coefficients (C,) and their covariance (C, C).

    With weights, the covariance is the sandwich estimate from the weighted scores.

    Raises:
        FitError: If the likelihood has no finite maximum.
    """
    w = torch.ones_like(y) if weight is None else weight

    def derivatives(beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        linear = design @ beta + offset
        p = torch.sigmoid(linear)
        curvature = (design * (w * p * (1 - p))[:, None]).T @ design
        return (F.softplus(linear) - y * linear) @ w / len(y), (w * (p - y)) @ design / len(y), curvature / len(y)

    beta = newton(derivatives, torch.zeros(design.shape[1], dtype=torch.float64)).theta
    curvature = derivatives(beta)[2] * len(y)
    if not float(torch.linalg.eigvalsh(curvature)[0]) > _CURVATURE:
        raise no_minimum("probabilities that are all alike, or tell the outcomes apart perfectly")
    inverse = torch.linalg.inv(curvature)
    if weight is None:
        return beta, inverse
    scores = design * (w * (torch.sigmoid(design @ beta + offset) - y))[:, None]
    return beta, inverse @ (scores.T @ scores) @ inverse
