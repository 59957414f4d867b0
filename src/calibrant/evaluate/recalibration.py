"""Measures that need a fit: the best ECE a temperature can reach, calibration and refinement, slope and intercept."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from calibrant._core.check import refuse, shown
from calibrant._core.constraints import Integer, Level, Positive, Seed, checked
from calibrant._core.minimise import Objective, minimise
from calibrant.binning import Binning, EqualWidth
from calibrant.calibrators import Calibrator, TemperatureScaling
from calibrant.data.checks import Data, MeasuredRows
from calibrant.data.predictions import Predictions
from calibrant.data.record import fitting_weights
from calibrant.errors import FitError, InputError
from calibrant.losses import RowLoss
from calibrant.metrics import ECE, NLL, Brier
from calibrant.metrics.canonical import recalibrated_in_blocks
from calibrant.statistics.enough import FEWEST_COMPARED, LossOfLabels, scarce_errors
from calibrant.statistics.means import Interval, normal_quantile
from calibrant.statistics.paired import PairedTest, paired_test

_TOLERANCE, _ROUNDING = 1e-11, 1e-16  # of an entry of the summed gradient; and of the sum of its terms' sizes
_ENOUGH = 1e-9  # of the mean gradient: where the search can get no lower, this is a maximum, too
# of the tolerance: scores are at most 27.6, so curvature falls to less than this where the gradient vanishes
_FLAT = 100
_PROPER = 1e-5  # of the largest term, that their sum may miss 0 by: ``ProperFocalLoss`` finds roots to about 1e-7
_NO_MAXIMUM = (
    "outcomes that the confidence does not tell apart perfectly",
    "a likelihood without a finite maximum",
    "there is no calibration slope for such data",
)


@dataclass(frozen=True)
class OptimalECE:
    """The smallest ECE over temperatures, on the very data that chose it.

    Args:
        value: The ECE.
        temperature: Where.
    """

    value: float
    temperature: float


@checked
def optimal_ece(
    predictions: Annotated[Predictions, MeasuredRows("the optimal ECE", labelled=True, classes=True)],
    *,
    binning: Binning | None = None,
    low: Positive = 0.05,
    high: Positive = 20.0,
    steps: Annotated[int, Integer(3, 100_000)] = 200,
) -> OptimalECE:
    """Return the smallest ECE that any temperature gives on these predictions.

    An oracle: the temperature is chosen on the data it is evaluated on, so this says what temperature scaling could at
    best reach, never what it does reach. The ECE is not smooth in T, hence a grid, then a finer one around its best.

    Args:
        predictions: Labelled logits.
        binning: Of the ECE; None is ``EqualWidth(15)``.
        low: Lowest temperature, > 0.
        high: Highest temperature.
        steps: Temperatures of the first grid, evenly spaced in log T; half as many again between the neighbours of
            its best. T = 1 is always tried.

    Examples:
        >>> from calibrant import Predictions
        >>> data = Predictions.from_logits([[2.0, 0.0]] * 100, [0] * 70 + [1] * 30)
        >>> round(optimal_ece(data).temperature, 2)
        2.36

    References:
        Wang et al. 2021, Figure 4.
    """
    if not low < high:
        raise InputError("0 < low < high", f"{low} and {high}", "choose a range of temperatures")
    metric = ECE(EqualWidth(15) if binning is None else binning)

    def error(log_temperature: float) -> float:
        logits = predictions.logits.double() / math.exp(log_temperature)
        return metric(replace(predictions, logits=logits, decision=predictions.predicted, given_probs=None))

    def best_of(points: Tensor) -> tuple[float, float]:
        return min((error(float(point)), float(point)) for point in points)

    # evenly spaced in log T, as halving and doubling a temperature are alike
    grid = torch.linspace(math.log(low), math.log(high), steps, dtype=torch.float64)
    coarse = best_of(grid)
    step = float(grid[1] - grid[0])
    fine = best_of(coarse[1] + torch.linspace(-step, step, steps // 2, dtype=torch.float64))
    value, point = min(coarse, fine, (error(0.0), 0.0))
    return OptimalECE(value, math.exp(point))


@dataclass(frozen=True)
class Refinement:
    """A proper score split in two.

    Args:
        total: The score.
        refinement: The score after cross-fitted recalibration: what recalibration cannot remove.
        calibration: total − refinement: a lower bound of the calibration loss, with its interval.
        reliable: Whether the interval of ``calibration`` lies above 0.
    """

    total: float
    refinement: float
    calibration: Interval
    reliable: bool


@checked
def refinement(
    predictions: Annotated[Predictions, MeasuredRows("a refinement", classes=True)],
    *,
    score: Literal["log", "brier"] | RowLoss = "log",
    calibrator: Callable[[], Calibrator] | Literal["canonical"] = TemperatureScaling,
    folds: Annotated[int, Integer(2)] = 5,
    seed: Seed = 0,
    level: Level = 0.95,
) -> Refinement:
    """Split a proper score into calibration and refinement, by recalibrating every row with a fit on other rows.

    Args:
        predictions: Labelled predictions; rows of one group stay in one fold.
        score: "log" (``NLL``), "brier", or a proper loss of ``calibrant.losses`` such as ``ProperFocalLoss(2.0)``.
        calibrator: Makes the unfitted calibrator; the richer, the closer the bound, and the more it can overfit. "canonical" is
            the recalibration of ``CanonicalError``, a slope and a bias for each class, fitted on the blocks before a row's; all
            figures are then of the rows after the first tenth.
        folds: ≥ 2; not of "canonical".
        seed: Of the folds.
        level: Coverage of the interval.

    Raises:
        InputError: For a loss that is not proper: the model's own probabilities do not minimise its expectation under them.

    Examples:
        >>> from calibrant import Predictions
        >>> _ = torch.manual_seed(0)
        >>> logits = torch.randn(500, 3)
        >>> labels = torch.multinomial(logits.softmax(dim=1), 1)[:, 0]
        >>> refinement(Predictions.from_logits(logits * 4, labels)).reliable
        True

    References:
        Bröcker 2009; Berta et al. 2025 (cross-fitted refinement); Berta et al. 2026, arXiv 2602.24230.
    """
    rows_of, loss = _scores_by_row(score)
    if isinstance(calibrator, str) and calibrator == "canonical":
        _, recalibrated, block = recalibrated_in_blocks(predictions)
        measured = block > 0
        data = predictions[measured]
        changed = Predictions.from_probs(recalibrated[measured], data.need_labels())
        method = "recalibrated by the blocks before"
    else:
        data, changed = predictions, _cross_fitted(predictions, calibrator, folds=folds, seed=seed)
        method = f"{folds}-fold cross-fitting"
    before, after = rows_of(data).cpu(), rows_of(changed).cpu()
    share = data.row_weights / data.row_weights.sum()
    total, left = float(before.double() @ share), float(after.double() @ share)
    if scarce_errors(data, changed, loss=loss) is not None:
        why = f"none: fewer than {FEWEST_COMPARED} wrong decisions whose score the recalibration changes"
        return Refinement(total, left, Interval(total - left, -math.inf, math.inf, level, why), False)
    gain: PairedTest = paired_test(before - after, groups=data.groups, level=level, weight=data.weights)
    interval = Interval(gain.difference, gain.low, gain.high, level, f"{method}, paired Student's t")
    return Refinement(total, left, interval, gain.low > 0)


def _cross_fitted(predictions: Predictions, calibrator: Any, *, folds: int, seed: int) -> Predictions:
    """Return each row after a fit that has not seen it, so that the gain is not optimistic."""
    labels, weight = predictions.need_labels(), fitting_weights(predictions.weights)
    part = _folds(predictions, folds=folds, seed=seed)
    after = torch.empty_like(predictions.logits, dtype=torch.float64)
    for fold in range(folds):
        rest = part != fold
        once = None if weight is None else weight[rest]
        fitted = _made(calibrator).fit(predictions.logits[rest], labels[rest], weights=once)
        after[part == fold] = predictions[part == fold].calibrated_by(fitted).log_probs
    return Predictions.from_logits(after, labels, groups=predictions.groups, unchecked_kind=True)


def _scores_by_row(score: str | RowLoss) -> tuple[Callable[[Predictions], Tensor], LossOfLabels]:
    """Return what gives the score of each row (N,), and the loss of each label by which errors count."""
    if not isinstance(score, RowLoss):
        metric = NLL() if score == "log" else Brier()
        return metric.rows, metric.of_labels
    # of a proper loss Σ_k p_k ∂loss(p, k)/∂z is 0: p itself is the minimum
    z = torch.randn(16, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p = torch.softmax(z, dim=1)
    each = []
    for label in range(3):
        leaf = z.clone().requires_grad_()
        own = score.rows(leaf, torch.full((16,), label))
        each.append(p[:, label, None] * torch.autograd.grad(own.sum(), leaf)[0])
    together = torch.stack(each)
    if float(together.sum(dim=0).abs().max()) > _PROPER * float(together.abs().max()):
        raise refuse(
            "a proper loss",
            f"{score}, whose minimum is not at the true probabilities",
            "choose BrierLoss or ProperFocalLoss",
        )

    def rows(data: Predictions) -> Tensor:
        return score.rows(data.log_probs, data.need_labels())

    # a row that is left as it is moves no loss: which move is told by the log-loss, label by label
    return rows, NLL().of_labels


def _made(calibrator: Any) -> Calibrator:
    """Return an unfitted calibrator made by ``calibrator``."""
    made = None
    if callable(calibrator) and not isinstance(calibrator, nn.Module):
        with suppress(TypeError):  # it cannot be called so
            made = calibrator()
    if not isinstance(made, Calibrator):
        remedy = 'pass a class such as TemperatureScaling, or lambda: FocalTemperatureScaling(search="line")'
        raise refuse("a function without arguments that makes a calibrator", shown(calibrator), remedy)
    return made


def _folds(predictions: Predictions, *, folds: int, seed: int) -> Tensor:
    """Return the fold (N,) of each row; equal groups share one."""
    units = torch.arange(len(predictions))
    if predictions.groups is not None:
        _, units = torch.unique(predictions.groups.cpu(), return_inverse=True)
    count = int(units.max()) + 1
    if folds > count:
        raise InputError(f"at most as many folds as rows or groups ({count})", f"{folds}", "use fewer folds")
    # whole groups are dealt to the folds: rows of one must not help to predict each other
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return (order % folds)[units].to(predictions.logits.device)


@dataclass(frozen=True)
class CalibrationLine:
    """logit P(correct) = intercept + slope · logit(confidence).

    Args:
        slope: 1 if calibrated; below 1 the confidences are too extreme (over-confident).
        intercept: 0 if calibrated, given the slope.
        in_the_large: Intercept with the slope held at 1: negative if confidences are too high on average.
    """

    slope: Interval
    intercept: Interval
    in_the_large: Interval


@checked
def calibration_line(
    data: Annotated[Data, MeasuredRows("a calibration line")], *, level: Level = 0.95
) -> CalibrationLine:
    """Fit the calibration slope and intercept of the confidence, with Wald intervals.

    Args:
        data: Labelled predictions or pairs; confidences of 0 and 1 count as 1e-12 away from them.
        level: Coverage of the intervals.

    Raises:
        FitError: If the outcomes are all alike, or are told apart perfectly by the confidence: no finite maximum exists.

    Examples:
        >>> from calibrant import Pairs
        >>> pairs = Pairs.from_probs([0.9] * 10 + [0.6] * 10, [1] * 9 + [0] + [1] * 6 + [0] * 4)
        >>> line = calibration_line(pairs)
        >>> round(line.slope.estimate, 6), abs(round(line.intercept.estimate, 6))
        (1.0, 0.0)

    References:
        Cox 1958; Van Calster et al. 2019.
    """
    score = torch.logit(data.confidence.double().cpu(), eps=1e-12)
    y = data.correct.double().cpu()
    ones = torch.ones_like(score)
    weight = None if data.weights is None else data.weights.cpu()
    both, covariance = _logistic(torch.stack([ones, score], dim=1), y, offset=torch.zeros_like(score), weight=weight)
    large, variance = _logistic(ones[:, None], y, offset=score, weight=weight)
    # Wald: estimate ± z standard errors
    z = normal_quantile((1 + level) / 2)

    def wald(estimate: Tensor, spread: Tensor) -> Interval:
        half = z * float(spread.sqrt())
        return Interval(float(estimate), float(estimate) - half, float(estimate) + half, level, "Wald")

    return CalibrationLine(
        wald(both[1], covariance[1, 1]), wald(both[0], covariance[0, 0]), wald(large[0], variance[0, 0])
    )


def _logistic(design: Tensor, y: Tensor, *, offset: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the maximum-likelihood coefficients (C,) and their covariance (C, C).

    Of weighted rows the covariance is the sandwich of the weighted scores.

    Raises:
        FitError: If the likelihood has no finite maximum.
    """
    once = torch.ones_like(y) if weight is None else weight * (y.shape[0] / weight.sum())

    def scores(p: Tensor) -> Tensor:
        return design * (once * (p - y))[:, None]

    def second(beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        linear = design @ beta + offset
        p = torch.sigmoid(linear)
        value = (once * (torch.nn.functional.softplus(linear) - y * linear)).sum()
        # the Hessian Xᵀ diag(w p (1 − p)) X of the log-likelihood
        curvature = (design * (once * p * (1 - p))[:, None]).T @ design
        return value, scores(p).sum(dim=0), curvature

    # of the summed gradient, of which rounding leaves this much
    tolerance = max(_TOLERANCE, _ROUNDING * float((once * design.abs().amax(dim=1)).sum()))
    try:
        start = torch.zeros(design.shape[1], dtype=torch.float64)
        enough = _ENOUGH * float(once.sum())
        beta = minimise(Objective(1.0, second), start, tolerance=tolerance, enough=enough).theta
    except FitError as error:
        raise FitError(*_NO_MAXIMUM) from error
    curvature = second(beta)[2]
    # where the maximum is at infinity, the curvature falls with the gradient
    if not float(torch.linalg.eigvalsh(curvature)[0]) > _FLAT * tolerance:
        raise FitError(*_NO_MAXIMUM)
    # Fisher information; with weights the sandwich A⁻¹ B A⁻¹, B the outer product of the scores
    inverse = torch.linalg.inv(curvature)
    if weight is not None:
        terms = scores(torch.sigmoid(design @ beta + offset))
        return beta, inverse @ (terms.T @ terms) @ inverse
    return beta, inverse
