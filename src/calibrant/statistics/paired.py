"""Paired tests of two models on the same rows (mean differences and squared gaps), and Holm's correction.

The test of squared gaps: let d be the weighted gaps of both models in their bins, C the covariance of these gaps, and S a
diagonal matrix of signs, −1 for the bins of A and +1 for the bins of B. Then dᵀSd − tr SC is an unbiased estimate of the
difference θ_B − θ_A of squared errors. For gaps that are normal around δ, its variance is 4 (Sδ)ᵀC(Sδ) + 2 tr (SC)², which
4 (Sd)ᵀC(Sd) − 2 tr (SC)² estimates without bias. Near δ = 0, the ratio of the estimate to its standard error is far from
normal. Its distribution is therefore simulated by a parametric bootstrap, in which gaps vary around each model's own gaps,
scaled to the same squared error.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from calibrant._core.numerics import row_chunks
from calibrant.data.checks import Data
from calibrant.data.predictions import Predictions
from calibrant.errors import NoIntervalError
from calibrant.statistics.design import Design, require_groups
from calibrant.statistics.losses import decided_of
from calibrant.statistics.means import Floats, contributions, normal_quantile, skewed_ends, student_quantile

MARGIN = 1.0
# If either model has fewer wrong decisions than this, a mean loss is not tested. Among few errors a single one decides the variance,
# and the more over-confident of two equally good models was preferred in up to 73 % of samples.
FEWEST_COMPARED = 20
# As many wrong decisions suffice for a two-sided test of the log-loss or the Brier score of equally weighted rows, if they tell the
# two models apart. In 2,000 simulations of each of 229 pairs of equally good models, no pair was found to differ more often than in
# 5 % plus two standard errors.
FEWEST_OF_ROWS = 5
# An unlikely label counts in full if its size is at least this fraction of the size of the events that decide the variance. With a
# fraction of 1, tests lost up to a fifth of their power where they are valid; with 1/3 they lost none and kept their level.
FULL_FROM = 1 / 3
CAUTION = 1.04  # the test statistic is divided by this factor, because the simulation uses estimated shapes
TAIL = 0.005  # p-values below this are extrapolated by a normal tail fitted at this quantile of the draws
# With 30 groups, the covariance of 16 or more bins is too uncertain: 12 % of tests rejected a true hypothesis
FEWEST_GROUPS = 100
EXACT = 1e-12  # smaller differences, relative to the sum of both squared errors, are rounding
_TINY = 1e-300


@dataclass(frozen=True)
class PairedTest:
    """A difference between two models on the same rows.

    Args:
        difference: Mean of b − a.
        low: Lower end of its interval; NaN if there is none.
        high: Upper end of its interval; NaN if there is none.
        p_value: Two-sided p-value of the hypothesis that the difference is 0.
    """

    difference: float
    low: float
    high: float
    p_value: float


def paired_test(
    differences: Tensor,
    *,
    groups: Tensor | None = None,
    level: float = 0.95,
    weight: Tensor | None = None,
    least_error: float = 0.0,
) -> PairedTest:
    """Test whether the mean of row-wise differences between two models is 0, by Student's t corrected for skewness.

    The degrees of freedom match the variance of Σ c², where c are the contributions of the rows: 2 (Σ c²)² / Σ c⁴
    (Satterthwaite). Differences between two models are often symmetric, and an estimated skewness that is only noise then
    makes the test reject too often. If one model is sharper, however, the skewness is real. The interval and the p-value
    are therefore computed twice, with the estimated skewness and with this skewness reduced by the factor
    max(0, 1 − 4 Σ c⁶ / (Σ c³)²), and the more cautious result is returned for each end and for the p-value.

    Args:
        differences: (N,) b − a in every row, finite.
        groups: (N,) cluster of each row, or None. Clusters are the independent units.
        level: Coverage of the interval, in (0, 1).
        weight: (N,) float64 weights > 0, or None.
        least_error: Lower bound on the standard error of the mean, to account for losses that did not occur in the sample.

    Returns:
        The difference with its interval and p-value; p < 1 − level if and only if the interval excludes 0.

    Raises:
        NoIntervalError: If there is only one row or group.

    Examples:
        >>> test = paired_test(torch.tensor([0.1, 0.2, 0.0, 0.1] * 25))
        >>> test.low > 0, test.p_value < 0.05
        (True, True)

    References:
        Hall 1992, On the removal of skewness by transformation, Eq. 2.5; Satterthwaite 1946.
    """
    from scipy.special import stdtr

    mean, part, spread = contributions(differences, Design.of(differences, groups=groups, weight=weight))
    if spread.units < 2:
        raise NoIntervalError("at least two rows, or groups of rows, to compare on", "one", "compare on more data")
    if spread.error == 0:  # equal differences have no variance, but all have one sign, so the sign test is used
        p_value = 1.0 if mean == 0 else 2.0 ** (1 - min(spread.units, 1000))
        undecided = p_value >= 1 - level
        return PairedTest(mean, min(mean, 0.0) if undecided else mean, max(mean, 0.0) if undecided else mean, p_value)
    second, third, fourth, sixth = (float(part.pow(power).sum()) for power in (2, 3, 4, 6))
    error, degrees = max(spread.error, least_error), min(spread.units - 1, 2 * second**2 / fourth)
    real = max(0.0, 1 - 4 * sixth / third**2) if third else 0.0
    quantile, t = student_quantile((1 + level) / 2, degrees), mean / error
    skews = (spread.skew, spread.skew * real)
    low, high = zip(*(skewed_ends(mean, error, skew, quantile) for skew in skews), strict=True)
    statistics = [halls_transform(t, skew) for skew in skews]
    # if they have different signs, the interval contains 0
    least = min(map(abs, statistics)) if statistics[0] * statistics[1] > 0 else 0.0
    return PairedTest(mean, min(low), max(high), float(2 * stdtr(degrees, -least)))


def halls_transform(statistic: float, skew: float) -> float:
    """Return Hall's transformation g(T) of Student's statistic T, for a mean with skewness ``skew`` (Hall 1992, Eq. 2.5)."""
    return statistic + skew * statistic**2 / 3 + skew**2 * statistic**3 / 27 + skew / 6


def paired_square_test(
    a: tuple[Tensor, Tensor],
    b: tuple[Tensor, Tensor],
    *,
    groups: Tensor | None = None,
    weight: Tensor | None = None,
    draws: int = 2000,
    seed: int = 0,
) -> PairedTest:
    """Test whether two models have the same squared calibration error.

    The difference θ̂_B − θ̂_A of the squared errors is returned without an interval.

    Args:
        a: Two tensors (N,) for the first model: each row's bin, −1 for none, and its residual, the probability minus the
            outcome.
        b: The same two tensors for the second model.
        groups: (N,) cluster of each row, or None. Clusters are the independent units.
        weight: (N,) float64 weights, or None.
        draws: Number of sets of gaps that are simulated under the hypothesis, ≥ 100.
        seed: Seed of the simulation. The same seed gives the same p-value, even if the models are swapped.

    Returns:
        The difference and its p-value; the ends of the interval are NaN.

    Raises:
        NoIntervalError: If there is only one row, or fewer than 100 groups.

    Examples:
        >>> wrong, right = torch.arange(200) % 2, torch.arange(200) % 10 > 0
        >>> test = paired_square_test(
        ...     *((torch.zeros(200, dtype=torch.int64), 0.9 - y.double()) for y in (wrong, right))
        ... )
        >>> test.difference < 0, test.p_value < 0.05
        (True, True)

    References:
        Widmann, Lindsten & Zachariah 2019 (the estimate); Efron & Tibshirani 1993, chapter 16 (tests by the parametric bootstrap).
    """
    require_groups(groups, what="squared gaps", least=FEWEST_GROUPS)
    if len(a[0]) < 2:
        raise NoIntervalError("at least two rows to compare on", "one", "compare on more rows")
    gap, covariance, half = _gaps_of(a, b, Design.of(a[1], groups=groups, weight=weight))
    own, sign = np.diag(covariance), np.repeat([-1.0, 1.0], [half, len(gap) - half])

    def estimate(gaps: Floats, sign: Floats) -> tuple[Floats, Floats]:
        """Return Σ ± (d_b² − C_bb) of gaps (…, M), and the standard error of this sum."""
        signed, least = sign * gaps, 2 * float(sign @ covariance**2 @ sign)
        variance = np.maximum(4 * ((signed @ covariance) * signed).sum(axis=-1) - least, least)
        return (signed * gaps).sum(axis=-1) - sign @ own, np.sqrt(np.maximum(variance, _TINY))

    difference, error = map(float, estimate(gap, sign))
    size = EXACT * float(gap @ gap)
    if abs(difference) <= size:
        return PairedTest(0.0, math.nan, math.nan, 1.0)
    if float(own.sum()) <= size:  # all rows are identical
        return PairedTest(difference, math.nan, math.nan, 0.0)
    if difference < 0:  # swapped models have the same p-value
        swapped = paired_square_test(b, a, groups=groups, weight=weight, draws=draws, seed=seed)
        return replace(swapped, difference=-swapped.difference)
    # Gaps vary around each model's own gaps, scaled to a common squared error, the mean of both plus its standard error
    both, spread = map(float, estimate(gap, np.ones_like(gap)))
    common = max(both, 0.0) / 2 + spread / 2
    squares = np.repeat([float(part @ part) for part in (gap[:half], gap[half:])], [half, len(gap) - half])
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    normal = np.random.default_rng(seed).standard_normal((draws, len(gap)))
    drawn, errors = estimate(gap * np.sqrt(common / np.maximum(squares, _TINY)) + normal @ root, sign)
    ratios, value = drawn / errors, difference / error / CAUTION
    edge = float(np.quantile(ratios, 1 - TAIL))
    above = float(((ratios >= value).sum() + 1) / (draws + 1))
    if value > edge:
        above = math.erfc(normal_quantile(1 - TAIL) * value / edge / math.sqrt(2)) / 2
    return PairedTest(difference, math.nan, math.nan, min(1.0, 2 * above))


def _gaps_of(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], design: Design) -> tuple[Floats, Floats, int]:
    """Return the weighted gaps (M,) of both models in their bins, their covariance (M, M), and the first model's number of gaps.

    Row i contributes s_i (ε_i 1[i in b] − d_b), where s_i is its normalised weight and ε = p − y.
    """
    from scipy.sparse import csr_array

    codes = [torch.unique(index, return_inverse=True) for index, _ in (a, b)]
    half, width = len(codes[0][0]), len(codes[0][0]) + len(codes[1][0])
    home = [codes[0][1], codes[1][1] + half]
    residuals = [torch.where(index >= 0, residual, 0.0) for index, residual in (a, b)]  # rows without a bin have gap 0
    share, rows = design.share.cpu().numpy(), np.arange(len(design.share))
    values = np.concatenate([share * residual.cpu().numpy() for residual in residuals])
    each = csr_array((values, (np.tile(rows, 2), torch.cat(home).cpu().numpy())), shape=(len(rows), width))
    gap = each.sum(axis=0)
    if design.unit is not None:
        sums = design.sums(width, [(slice(None), at, residual) for at, residual in zip(home, residuals, strict=True)])
        return gap, (sums.T @ sums).cpu().numpy(), half
    mixed, total = np.outer(each.T @ share, gap), float(share @ share)
    covariance = (each.T @ each).toarray() - mixed - mixed.T + total * np.outer(gap, gap)
    return gap, covariance / (1 - total), half


# maps log-probabilities (n, K) to each label's loss, up to a constant per row; it decreases in the label's log-probability
LossOfLabels: TypeAlias = Callable[[Tensor], Tensor]


def scarce_errors(
    a: Data, b: Data, *, loss: LossOfLabels | None = None, enough: int = FEWEST_COMPARED
) -> tuple[float, int] | None:
    """Return the smaller number of wrong decisions of two models, and about how many rows a test of a mean loss needs.

    Rows of one group are one unit, which counts once if it contains a wrong decision.

    Args:
        a: Labelled rows of one model.
        b: The same rows of the other model.
        loss: The loss to compare, or None. With a loss, only wrong decisions on which the models differ count.
        enough: Number of wrong decisions of each model that the test needs.

    Returns:
        The two numbers, or None if both models have ``enough`` wrong decisions.
    """
    wrong = []
    for data in (a, b):
        if data.groups is not None:
            wrong.append(float(torch.unique(data.groups[~data.correct.to(data.groups.device)]).shape[0]))
        else:
            mass, square = decided_of(data)[0].tolist()
            wrong.append(mass**2 / max(square, 1e-300))
    if loss and isinstance(a, Predictions) and isinstance(b, Predictions):
        wrong.append(_telling_errors(a, b, loss))
    if (fewest := min(wrong)) >= enough:
        return None
    # One more error than was seen, so that the ratio is finite without any error. With the factor 1.6, 32 errors are expected where
    # 20 are needed, and no fewer rows can contain them.
    return fewest, math.ceil(1.6 * enough * max(1.0, a.count / (fewest + 1)))


def _telling_errors(a: Predictions, b: Predictions, loss: LossOfLabels) -> float:
    """Return the effective number of unlikely labels that tell two models apart; infinite if the models do not differ.

    An unlikely label moves the mean difference δ of the two losses by s = w |δ(label) − δ(likeliest)|, where the likeliest
    label is chosen by the mean of both models. Where both models predict .5, the label is often unlikely but moves nothing,
    so hundreds of such rows must not count as much as the few that decide. An event therefore counts min(1, 3 s / s̄), where
    s̄ = Σ q s² / Σ q s is the size of the events that decide the variance, as expected by the models.
    """
    labels, weight = a.require_labels().cpu(), a.row_weights.cpu()
    size, sums = torch.zeros(len(a), dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for rows in row_chunks(len(a), a.classes):
        logs = [model.log_probs_in(rows).cpu() for model in (a, b)]
        q = (logs[0].exp() + logs[1].exp()) / 2
        change = loss(logs[1]) - loss(logs[0])
        moved = (change - change.gather(1, q.argmax(dim=1, keepdim=True))).abs()
        moved = torch.where(moved.isfinite(), moved, 0.0)  # a label of probability 0 is not expected
        moved *= weight[rows, None]
        sums += torch.stack([(q * moved.square()).sum(), (q * moved).sum()])
        size[rows] = moved.gather(1, labels[rows, None])[:, 0]
    if not sums[0]:
        return math.inf
    events = size * float(sums[1] / sums[0]) / FULL_FROM
    if a.groups is not None:
        events = torch.bincount(torch.unique(a.groups.cpu(), return_inverse=True)[1], weights=events)
    return float(events.clamp_max(1).sum())


def shown_p(p_value: float | None) -> str:
    """Return a p-value as text, with enough digits to compare it with a level, or "not tested" for None."""
    if p_value is None:
        return "not tested"
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3g}"


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for multiple tests by Holm's method.

    The smallest p-value is multiplied by m, the next by m − 1, and so on. In this order, corrected values never decrease.

    Args:
        p_values: m p-values in [0, 1], one per test.

    Returns:
        The corrected p-values, in the order of ``p_values``.

    Examples:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]

    References:
        Holm 1979.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order, corrected = np.argsort(p), np.empty_like(p)
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1.0)
    return corrected.tolist()  # type: ignore[no-any-return]
