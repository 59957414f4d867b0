"""Measures that need a fit: the best ECE a temperature can reach, calibration and refinement, slope and intercept."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from calibrant._core.check import check_choice, check_count, check_number, refuse
from calibrant.binning import Binning, EqualWidth
from calibrant.data.checks import Data, require_predictions, require_rows
from calibrant.data.predictions import Predictions
from calibrant.data.record import fitting_weights
from calibrant.errors import FitError, InputError
from calibrant.metrics import ECE, NLL, Brier
from calibrant.metrics.canonical import recalibrated_in_blocks
from calibrant.statistics.enough import FEWEST_COMPARED, LossOfLabels, scarce_errors
from calibrant.statistics.means import Interval, normal_quantile
from calibrant.statistics.paired import paired_test

if TYPE_CHECKING:
    from calibrant.calibrators import Calibrator
    from calibrant.losses import RowLoss

_STEPS = 100  # of Newton's method; five to ten are needed
# of the summed gradient at the maximum, and of the curvature there: where the maximum is at infinity, both fall together
_GRADIENT, _CURVATURE = 1e-9, 1e-7
_PROPER = 1e-5  # of the largest term, that their sum may miss 0 by: ``ProperFocalLoss`` finds roots to about 1e-7


@dataclass(frozen=True)
class OptimalECE:
    """The smallest ECE over temperatures, on the very data that chose it.

    Args:
        value: The ECE.
        temperature: Where.
    """

    value: float
    temperature: float


def optimal_ece(
    predictions: Predictions, *, binning: Binning | None = None, low: float = 0.05, high: float = 20.0, steps: int = 200
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
    data = require_predictions(predictions, what="the optimal ECE")
    data.require_labels()
    check_count(steps, name="steps", low=3)
    if not 0 < low < high < math.inf:
        raise InputError("0 < low < high", f"{low} and {high}", "choose a range of temperatures")
    metric = ECE(EqualWidth(15) if binning is None else binning)

    def error(log_temperature: float) -> float:
        logits = data.logits.double() / math.exp(log_temperature)
        return metric(replace(data, logits=logits, decision=data.predicted, given_probs=None))

    def best_of(points: Tensor) -> tuple[float, float]:
        return min((error(point), point) for point in points.tolist())

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


def refinement(
    predictions: Predictions,
    *,
    score: "Literal['log', 'brier'] | RowLoss" = "log",
    calibrator: "Callable[[], Calibrator] | Literal['canonical'] | None" = None,
    folds: int = 5,
    seed: int = 0,
    level: float = 0.95,
) -> Refinement:
    """Split a proper score into calibration and refinement, by recalibrating every row with a fit on other rows.

    Args:
        predictions: Labelled predictions; rows of one group stay in one fold.
        score: "log" (``NLL``), "brier", or a proper loss of ``calibrant.losses`` such as ``ProperFocalLoss(2.0)``.
        calibrator: Makes the unfitted calibrator; None is ``TemperatureScaling``. The richer it is, the closer the bound, and the
            more it can overfit. "canonical" is the recalibration of ``CanonicalError``, a slope and a bias for each class, fitted on
            the blocks before a row's; all figures are then of the rows after the first tenth.
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
    data = require_predictions(predictions, what="a refinement")
    check_count(folds, name="folds", low=2)
    rows_of, loss = _scores_by_row(score)
    if isinstance(calibrator, str):
        check_choice(calibrator, name="calibrator", choices=["canonical"])
        _, recalibrated, block = recalibrated_in_blocks(data)
        measured = block > 0
        data = data[measured]
        changed = Predictions.from_probs(recalibrated[measured], data.require_labels())
        method = "recalibrated by the blocks before"
    else:
        from calibrant.calibrators import TemperatureScaling

        changed = _calibrated_in_folds(data, calibrator or TemperatureScaling, folds=folds, seed=seed)
        method = f"{folds}-fold cross-fitting"
    before, after = rows_of(data).cpu(), rows_of(changed).cpu()
    share = data.row_weights / data.row_weights.sum()
    total, left = float(before.double() @ share), float(after.double() @ share)
    if scarce_errors(data, changed, loss=loss) is not None:
        why = f"none: fewer than {FEWEST_COMPARED} wrong decisions whose score the recalibration changes"
        return Refinement(total, left, Interval(total - left, -math.inf, math.inf, level, why), False)
    gain = paired_test(before - after, groups=data.groups, level=level, weight=data.weights)
    interval = Interval(gain.difference, gain.low, gain.high, level, f"{method}, paired Student's t")
    return Refinement(total, left, interval, gain.low > 0)


def _calibrated_in_folds(data: Predictions, make: "Callable[[], Calibrator]", *, folds: int, seed: int) -> Predictions:
    """Return each row after a fit that has not seen it, so that the gain is not optimistic."""
    labels, weight = data.require_labels(), fitting_weights(data.weights)
    units = torch.arange(len(data))
    if data.groups is not None:
        _, units = torch.unique(data.groups.cpu(), return_inverse=True)
    count = int(units.max()) + 1
    if folds > count:
        raise InputError(f"at most as many folds as rows or groups ({count})", f"{folds}", "use fewer folds")
    # whole groups are dealt to the folds: rows of one must not help to predict each other
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    part = (order % folds)[units].to(data.logits.device)
    after = torch.empty_like(data.logits, dtype=torch.float64)
    for fold in range(folds):
        rest = part != fold
        fitted = make().fit(data.logits[rest], labels[rest], weights=None if weight is None else weight[rest])
        after[~rest] = data[~rest].calibrated_by(fitted).log_probs
    return Predictions.from_logits(after, labels, groups=data.groups, unchecked_kind=True)


def _scores_by_row(score: "str | RowLoss") -> tuple[Callable[[Predictions], Tensor], LossOfLabels]:
    """Return what gives the score of each row (N,), and the loss of each label by which errors count."""
    if isinstance(score, str):
        metric = NLL() if check_choice(score, name="score", choices=("log", "brier")) == "log" else Brier()
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
        return score.rows(data.log_probs, data.require_labels())

    # an unchanged row has the same loss: the log-loss of each label shows which rows change
    return rows, NLL().of_labels


@dataclass(frozen=True)
class CalibrationLine:
    """logit P(y = 1) = intercept + slope · logit(p), of an event or of the decision being right.

    Args:
        slope: 1 if calibrated; below 1 the probabilities are too extreme (over-confident).
        intercept: 0 if calibrated, given the slope.
        in_the_large: Intercept with the slope held at 1: negative if probabilities are too high on average.
    """

    slope: Interval
    intercept: Interval
    in_the_large: Interval


def calibration_line(data: Data, *, event: int | None = 1, level: float = 0.95) -> CalibrationLine:
    """Fit the calibration slope and intercept of a probability, with Wald intervals.

    Args:
        data: Labelled predictions or pairs; probabilities of 0 and 1 count as 1e-12 away from them.
        event: Of two-class predictions the class whose probability is meant, 1 or 0; None takes the confidence of the decision, as
            predictions of more classes always have it. Of pairs it is their own event.
        level: Coverage of the intervals.

    Raises:
        FitError: If the outcomes are all alike, or are separated perfectly by the probability: no finite maximum exists.

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
    score, y, weight = torch.logit(pairs.p.cpu(), eps=1e-12), pairs.y.cpu(), pairs.weights
    weight = torch.ones_like(y) if weight is None else weight.cpu() * (len(y) / weight.sum().cpu())
    ones = torch.ones_like(score)
    sandwich = pairs.weights is not None
    both, covariance = _logistic(torch.stack([ones, score], dim=1), y, 0 * score, weight, sandwich=sandwich)
    large, variance = _logistic(ones[:, None], y, score, weight, sandwich=sandwich)
    # Wald: estimate ± z standard errors
    z = normal_quantile((1 + level) / 2)

    def wald(estimate: Tensor, spread: Tensor) -> Interval:
        half = z * float(spread.sqrt())
        return Interval(float(estimate), float(estimate) - half, float(estimate) + half, level, "Wald")

    return CalibrationLine(
        wald(both[1], covariance[1, 1]), wald(both[0], covariance[0, 0]), wald(large[0], variance[0, 0])
    )


def _logistic(design: Tensor, y: Tensor, offset: Tensor, weight: Tensor, *, sandwich: bool) -> tuple[Tensor, Tensor]:
    """Return the maximum-likelihood coefficients (C,) and their covariance (C, C), with ``sandwich`` that of the weighted scores.

    Raises:
        FitError: If the likelihood has no finite maximum.
    """

    def loss(beta: Tensor) -> float:
        linear = design @ beta + offset
        return float(weight @ (torch.nn.functional.softplus(linear) - y * linear))

    beta = torch.zeros(design.shape[1], dtype=torch.float64)
    for _ in range(_STEPS):
        p = torch.sigmoid(design @ beta + offset)
        scores = design * (weight * (p - y))[:, None]
        # the Hessian Xᵀ diag(w p (1 − p)) X of the log-likelihood
        curvature = (design * (weight * p * (1 - p))[:, None]).T @ design
        if not float(torch.linalg.eigvalsh(curvature)[0]) > _CURVATURE:
            break
        step = torch.linalg.solve(curvature, scores.sum(dim=0))
        if float(scores.sum(dim=0).abs().max()) <= _GRADIENT * max(1.0, float(design.abs().max())):
            inverse = torch.linalg.inv(curvature)
            return beta - step, inverse @ (scores.T @ scores) @ inverse if sandwich else inverse
        before = loss(beta)
        while loss(beta - step) > before and float(step.abs().max()) > _GRADIENT:
            step = step / 2
        beta = beta - step
    raise FitError(
        "outcomes that the probability does not tell apart perfectly",
        "a likelihood without a finite maximum",
        "there is no calibration slope for such data",
    )
