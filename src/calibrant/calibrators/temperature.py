"""Temperature scaling, which divides all logits by one number, and ensemble temperature scaling.

The log-loss is convex in 1/T. It is minimised by Newton's method in log T inside a bracket, in float64.
"""

import math

import torch
from torch import Tensor

from calibrant._core.check import check_number, refuse
from calibrant._core.newton import newton
from calibrant._core.warn import warn_user
from calibrant._kernel import temperature_moments
from calibrant.binning import Binning, as_binning
from calibrant.calibrators.base import Certified, Tempered, check_label_logits, narrowed
from calibrant.calibrators.grids import Criterion, Grid, GridSearch, check_grid
from calibrant.errors import BoundWarning, FitError
from calibrant.rows import Batch, MemoryRows, RowSource

T_LOW, T_HIGH = 1e-3, 1e3
_LOW, _HIGH = math.log(T_LOW), math.log(T_HIGH)
_TOLERANCE = 1e-7  # size of the last step in log T; convergence is quadratic, and 1e-4 is documented
_NEAR, _SAMPLE = 1e-3, 8192  # with many rows, the search starts at a sample's optimum, with this tolerance and size
_LARGE = 1 << 20  # number of entries from which a pass over all rows takes longer than the search on a sample
PRIOR = 0.5  # standard deviation of the usual prior on log T, which keeps T from its bound if no row is wrong
_LONGEST_STEP = 2.0  # longest step in log T, so that a flat start cannot throw the search across the interval
_FLAT = 1e-20  # β at which all classes that are not excluded have the same probability
# smallest weight in a mixture; it costs far less than sampling error, and keeps the order of the classes
_LEAST_WEIGHT = 1e-9
_LEAST = 1e-200  # smaller mean differences count as 0: in the compiled loops, an excluded class contributes 1e-277


class TemperatureScaling(Tempered, Certified):
    """Temperature scaling, softmax(z / T) with one T > 0 (Guo et al. 2017). The decision never changes.

    By default, T minimises the log-loss on [1e-3, 1e3]. The log-loss is convex in 1/T. It is minimised by Newton's method in
    log T inside a bracket, in float64, and the fit ends with a certificate, the derivative at the solution. If the optimum is
    outside the interval (because every row is correct, or the logits are no better than chance), T is the bound, and a
    ``BoundWarning`` is issued. A second fit starts from the fitted temperature.

    With a grid, T is the best candidate, and the smallest one if several are equally good. The published grids have names,
    which imply a criterion and bins: "mukhoti" (.1 … 10, ECE), "wang" (.01 … 10, ECE), "wang-code" (.01 … 4.99, ECE, ignoring
    an ECE of exactly 0), "komisarenko" (.01 … 5, equal-mass ECE), "komisarenko-code" (.05 … 5, equal-mass ECE, interpolated
    bins).

    Args:
        criterion: "nll" or "ece". None uses the criterion of the preset in ``grid``, or "nll". The ECE is not continuous in T,
            so minimising it finds only the best candidate of a grid, which can increase the log-loss. With row weights, the ECE
            needs bins of equal width.
        binning: Bins for the ECE, or a number of equal-width bins. None uses those of the preset, or ``EqualWidth(15)``.
        grid: Temperatures > 0, or the name of a preset. None means the continuous fit for "nll" and .01 … 10 for "ece".
        prior: Standard deviation > 0 of a normal prior on log T with mean 0, for the continuous fit; None for no prior. With a
            prior, T stays near 1 instead of going to its bound if no row is wrong. ``AutoCalibrator`` uses 0.5.

    Attributes:
        temperature: The fitted T.
        gradient: d log-loss / d log T at a continuously fitted T, in nats: the certificate; NaN after a grid search.

    Raises:
        InputError: If ``prior`` is combined with the criterion "ece" or a grid.

    Examples:
        >>> import math
        >>> z = torch.tensor([[2 * math.log(4), 0.0]] * 10)
        >>> y = torch.tensor([0] * 8 + [1] * 2)
        >>> round(TemperatureScaling().fit(z, y).temperature, 6)
        2.0
        >>> TemperatureScaling(grid="mukhoti").fit(z, y).temperature
        2.0

    References:
        Guo et al. 2017, On Calibration of Modern Neural Networks, §4.2. Mukhoti et al. 2020, §1; Wang et al. 2021, §3;
        Komisarenko & Kull 2024, §5, for the grids.
    """

    preserves_argmax = True

    def __init__(
        self,
        criterion: Criterion = None,
        *,
        binning: Binning | int | None = None,
        grid: Grid = None,
        prior: float | None = None,
    ) -> None:
        super().__init__()
        self.criterion = criterion
        self.binning = None if binning is None else as_binning(binning, name="binning")
        self.grid = None if criterion is None and grid is None else check_grid(criterion, grid)
        self.prior = check_prior(prior)
        if prior is not None and (criterion == "ece" or grid is not None):
            raise refuse("prior only with the continuous log-loss fit", "a criterion or grid as well", "leave one out")

    def _fit(self, rows: RowSource) -> None:
        if self.criterion == "ece" or self.grid is not None:
            search = GridSearch(rows, self.criterion, self.binning, self.grid, otherwise="wang")
            # γ = 0 is plain temperature scaling
            log_temperature, gradient = math.log(search.full([0.0]).temperature), math.nan
        else:
            start = float(self.log_temperature) if self._columns else 0.0
            log_temperature, gradient = fit_log_temperature(rows, start=start, prior=self.prior)
        self.log_temperature, self.certificate = torch.tensor([log_temperature, gradient], dtype=torch.float64)

    def _transform(self, logits: Tensor) -> Tensor:
        return logits * torch.exp(-self.log_temperature).to(logits.dtype)


def check_prior(prior: float | None) -> float | None:
    """Return ``prior`` if it is None or the standard deviation > 0 of a normal prior, and raise an error otherwise."""
    return None if prior is None else check_number(prior, name="prior", low=0, open_low=True)


def fit_log_temperature(
    rows: RowSource, *, start: float = 0.0, prior: float | None = None, tolerance: float = _TOLERANCE
) -> tuple[float, float]:
    """Return the log T in [log 1e-3, log 1e3] with the lowest log-loss, and the derivative there; warn if it is a bound.

    Args:
        rows: Checked rows.
        start: The log T to start from. With many rows in memory, a sample is fitted first, because every step takes a pass over
            the rows.
        prior: Standard deviation of a normal prior on log T, which adds (log T)² / (2 prior²) to the summed log-loss; None for
            no prior.
        tolerance: Size of the last step in log T. If it is above the default, no warning is issued.

    Returns:
        log T and the derivative of the mean log-loss with respect to log T.

    Raises:
        InputError: If a label's logit is −inf, which makes the log-loss infinite at every T.
        FitError: If the search did not converge.
    """
    rows = rows.uncut  # each pass cuts the batches itself
    if isinstance(rows, MemoryRows) and rows.count >= 4 * _SAMPLE and rows.count * rows.classes >= _LARGE:
        spaced = torch.arange(0, rows.count, rows.count // _SAMPLE, device=rows.device)
        sample = MemoryRows(rows.gathered().selected(spaced), cut=False)
        near, _ = fit_log_temperature(sample, start=start, prior=prior, tolerance=_NEAR)
        start = near if near > _LOW else start
    precision = 0.0 if prior is None else 1 / (prior**2 * rows.mass)
    left, right, x, value = -math.inf, math.inf, min(max(start, _LOW), _HIGH), math.nan
    for passes in range(1000):
        # With d = z − max z, q = softmax(βd) and β = 1/T, the log-loss of a row is log Σ e^{βd} − β d_y. Its first two derivatives with
        # respect to β are E_q d − d_y and Var_q d; and d/dt = −β d/dβ for β = e^−t.
        beta = math.exp(-x)
        mean, variance, margin = (rows.total(_moments, beta) / rows.mass).tolist()
        value = -beta * (mean - margin) + precision * x
        curvature = beta * (mean - margin) + beta**2 * variance + precision
        if math.isnan(value):
            break
        step = -value / curvature if curvature > 0 else -math.copysign(math.inf, value)
        if margin >= 0 and not precision and x > _LOW:
            # every label has the largest logit, so the log-loss decreases down to T = 0, soon by less than rounding errors
            x = _LOW
            continue
        if (x == _LOW and value >= 0) or (x == _HIGH and value <= 0):
            return _at_bound(rows, x, value, tolerance)
        if abs(step) <= tolerance:
            # convergence is quadratic: after such a short step, the remaining error no longer depends on the start
            return x + step, value
        left, right = (left, x) if value > 0 else (x, right)
        if right - left <= tolerance:
            return x, value
        target = min(max(x + step, x - _LONGEST_STEP, _LOW), x + _LONGEST_STEP, _HIGH)
        stalled = passes > 40 and right - left < math.inf
        x = target if left < target < right and not stalled else (left + right) / 2
    raise FitError(
        "the temperature search to converge", f"a derivative of {value:g} at log T = {x:g}", "check the logits' range"
    )


def _at_bound(rows: RowSource, bound: float, gradient: float, tolerance: float) -> tuple[float, float]:
    """Return the bound and the derivative there, or T = 1 if T has no effect; warn unless the rows are only a sample."""
    if tolerance > _TOLERANCE:
        return bound, gradient
    flat = bound == _LOW and -float(rows.total(_moments, _FLAT)[0]) < _LEAST * rows.mass
    if flat:
        expected, got = "logits that differ within a row", "rows of equal logits, on which a temperature has no effect"
        advice = "1 was returned; check the model's outputs"
    else:
        why = "every row is classified correctly" if bound == _LOW else "the logits are no better than chance"
        expected, got = "a finite best temperature", f"none ({why})"
        advice = f"the bound {math.exp(bound):g} was returned; use more validation data"
    warn_user(f"expected {expected}, got {got}, so {advice}", BoundWarning)
    return (0.0, 0.0) if flat else (bound, gradient)


def _moments(batch: Batch, beta: float) -> Tensor:
    """Return the weighted sums of the mean and variance of d = z − max z under softmax(βd), and of d at the label (3,)."""
    sums = temperature_moments(batch.logits, batch.labels, batch.weights, beta)
    if sums[2] == -torch.inf:
        check_label_logits(batch)
    return sums


def fit_mixture_weights(p: Tensor, weights: Tensor) -> Tensor:
    """Return the weights w (M,) ≥ 0 with Σ w = 1 for which the mixture Σ_m w_m p_im has the lowest mean log-loss.

    The problem is convex. Adding Σ w to the mean log-loss replaces the constraint Σ w = 1: multiplying w by c decreases the
    log-loss by log c, so the minimum lies on the simplex anyway, and only the bound w ≥ 1e-9 remains. The smallest entry of the
    gradient 1 − mean(p_im / (Σ w p)_i) bounds the distance from the optimum in nats.

    Args:
        p: The probability of each row's label under each component (N, M), float64, up to a factor for each row.
        weights: Row weights (N,) > 0, float64.

    Returns:
        The weights.

    Raises:
        FitError: If the gradient at the end is not below 1e-7.
    """
    p, share = p / p.amax(dim=1, keepdim=True), weights / weights.sum()

    def derivatives(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mixed = p @ w
        ratio = p / mixed[:, None]
        return w.sum() - share @ mixed.log(), 1 - share @ ratio, (ratio * share[:, None]).T @ ratio

    w = newton(derivatives, p.new_full(p.shape[1:], 1 / p.shape[1]), low=_LEAST_WEIGHT).theta
    return w / w.sum()


class EnsembleTemperatureScaling(Tempered):
    """Ensemble temperature scaling (ETS): the mixture w₁ softmax(z / T) + w₂ softmax(z) + w₃ / K (Zhang et al. 2020).

    The mixture combines tempered, raw and uniform probabilities. As published, T is fitted first and then the weights, both by
    log-loss; each problem is convex and ends with a certificate. All three parts keep the order of the classes, so the decision
    never changes.

    Args:
        prior: Standard deviation > 0 of a normal prior on log T with mean 0; None for no prior, as published.

    Attributes:
        temperature: The fitted T.
        weights: The weights of the tempered, raw and uniform probabilities (3,).

    Examples:
        >>> z = torch.tensor([[4.0, 0.0]] * 8 + [[1.0, 0.0]] * 4)
        >>> y = torch.tensor([0] * 7 + [1] + [0, 0, 1, 1])
        >>> round(float(EnsembleTemperatureScaling().fit(z, y).weights.sum()), 6)
        1.0

    References:
        Zhang, Kailkhura, Han 2020, Mix-n-Match, §4.1.
    """

    preserves_argmax = True
    shows = ("temperature", "weights")

    weights: Tensor

    def __init__(self, *, prior: float | None = None) -> None:
        super().__init__()
        self.prior = check_prior(prior)

    def _fit(self, rows: RowSource) -> None:
        start = float(self.log_temperature) if self.fitted else 0.0
        log_temperature, _ = fit_log_temperature(rows, start=start, prior=self.prior)
        self.log_temperature = torch.tensor(log_temperature, dtype=torch.float64)
        p, weights = zip(*rows.collected(_label_probabilities, math.exp(log_temperature)), strict=True)
        self.weights = fit_mixture_weights(torch.cat(p), torch.cat(weights))

    def _transform(self, logits: Tensor) -> Tensor:
        wide = logits.double()  # if nearly all weight is on the uniform part, float32 would lose the decision
        log_w = self.weights.log()
        tempered = torch.log_softmax(self._tempered(wide), dim=1)
        mixed = torch.logaddexp(tempered + log_w[0], torch.log_softmax(wide, dim=1) + log_w[1])
        mixed = torch.logaddexp(mixed, (log_w[2] - math.log(logits.shape[1])).expand_as(mixed))
        return narrowed(mixed, logits.dtype)


def _label_probabilities(batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the tempered, raw and uniform probability (n, 3) of each label, and the row weights (n,)."""
    z, label = batch.logits.double(), batch.labels[:, None]
    parts = [torch.log_softmax(z * beta, dim=1).gather(1, label)[:, 0].exp() for beta in (1 / temperature, 1.0)]
    return torch.stack([*parts, torch.full_like(parts[0], 1 / z.shape[1])], dim=1), batch.row_weights
