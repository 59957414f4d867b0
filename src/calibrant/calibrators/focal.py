"""The focal calibration map, and focal temperature scaling, which fits a temperature and the exponent γ of this map."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import check_choice, refuse
from calibrant._core.log_pairs import log_normalise
from calibrant.binning import Binning, as_binning
from calibrant.calibrators.base import Calibrator, Tempered, check_label_logits, narrowed
from calibrant.calibrators.grids import Criterion, Grid, GridSearch, check_grid
from calibrant.calibrators.temperature import T_HIGH, T_LOW, check_prior, fit_log_temperature
from calibrant.errors import FitError
from calibrant.rows import Batch, RowSource
from calibrant.scores import check_focal_gamma
from calibrant.theory.focal_map import focal_scores

PUBLISHED_GAMMAS = (-0.5, -0.25, 0.05, 0.25, 0.37, 0.5, 0.75, 1.0, 5.0)
_ENOUGH = 1e-5  # largest accepted gradient entry in nats; the map loses digits if γ is near −1 and rows are confident
_TOLERANCE = 1e-10  # gradient entry at which the search stops
# Each step leaves a tenth of the error or less, except if both parameters have the same effect, as they can with two classes
_NEWTON_STEPS = 10
_EXCLUDED = -1e30  # replaces −inf: its exponential is 0, but its product with 0 is not NaN
_BLOCK = 1 << 14  # number of logits per block, so that intermediate results stay in the cache of a core
_FEW_CLASSES = 32  # with fewer classes, sums run along the rows


class FocalTemperatureScaling(Tempered):
    """FC_γ(softmax(z / T)): temperature scaling with a second parameter that curves the map (Komisarenko & Kull 2024).

    T is applied first, then the focal map. γ need not be the γ used in training; γ = 0 is temperature scaling. By default, both
    minimise the log-loss, with T in [1e-3, 1e3] and γ between the smallest and the largest of ``gammas``. The search is repeated
    from each of ``gammas``, and the best result is kept. The decision never changes.

    With a grid, or with the ECE, which is not continuous, all pairs of ``gammas`` and temperatures are compared, as published.
    Among equally good pairs, the one with the smallest |γ| is chosen, and then the one with the smallest T.

    Args:
        criterion: "nll" or "ece". None uses the criterion of the preset in ``grid``, or "nll". Minimising the ECE can increase
            the log-loss considerably.
        binning: Bins for the ECE, or a number of equal-width bins. None uses those of the preset, or ``EqualMass(15)``. Weighted
            rows need ``EqualWidth``.
        gammas: Values of γ > −1. ``FocalTemperatureScaling.published`` holds the nine published values.
        grid: Temperatures > 0, or a preset's name as in ``TemperatureScaling``. None uses .01 … 5 (the preset "komisarenko") if
            candidates are compared.
        search: "full" compares all pairs. "line" finds the best T at the smallest and at the largest γ, and searches the
            straight line between these two points: 3 evaluations per temperature (Komisarenko & Kull §5.2).
        prior: Standard deviation > 0 of normal priors on log T and on log(1 + γ) with mean 0; None for no priors. A prior keeps
            a small or entirely correct validation set from driving both parameters to their bounds. With a prior, the search
            starts only at γ = 0.

    Attributes:
        temperature: The fitted T.
        gamma: The fitted γ.
        objective: The value of the criterion at the solution, on the fitting data.

    Raises:
        InputError: If ``prior`` is combined with the criterion "ece", a grid or a line.

    Examples:
        >>> generator = torch.Generator().manual_seed(0)
        >>> z = torch.randn(500, 3, generator=generator)
        >>> y = torch.multinomial(torch.softmax(z / 2, dim=1), 1, generator=generator)[:, 0]
        >>> FocalTemperatureScaling("nll", gammas=[0.0, 1.0], grid=[1.0, 2.0, 3.0, 4.0]).fit(z, y).temperature
        2.0

    References:
        Komisarenko & Kull 2024, Improving Calibration by Relating Focal Loss, Temperature Scaling, and Properness, §4–5.
    """

    preserves_argmax = True
    shows = ("gamma", "temperature")
    published = PUBLISHED_GAMMAS

    exponent: Tensor
    reached: Tensor

    def __init__(
        self,
        criterion: Criterion = None,
        *,
        binning: Binning | int | None = None,
        gammas: Sequence[float] = (*PUBLISHED_GAMMAS, 0.0),
        grid: Grid = None,
        search: Literal["full", "line"] = "full",
        prior: float | None = None,
    ) -> None:
        super().__init__()
        self.criterion = criterion
        self.binning = None if binning is None else as_binning(binning, name="binning")
        self.gammas = sorted({check_focal_gamma(gamma, name="gammas") for gamma in gammas})
        self.grid = check_grid(criterion, grid)
        self.search = check_choice(search, name="search", choices=("full", "line"))
        self.prior = check_prior(prior)
        if not self.gammas:
            raise refuse("at least one γ in gammas", "none", "name one, such as 0.0")
        self._compares = criterion == "ece" or grid is not None or search == "line"
        if prior is not None and self._compares:
            raise refuse(
                "prior only with the continuous log-loss fit", "a criterion, grid or line as well", "leave one out"
            )

    @property
    def gamma(self) -> float:
        """The fitted γ; NaN before ``fit``."""
        return float(self.exponent) if self.fitted else math.nan

    @property
    def objective(self) -> float:
        """The value of the criterion on the fitting data; NaN before ``fit``."""
        return float(self.reached) if self.fitted else math.nan

    def _fit(self, rows: RowSource) -> None:
        if self._compares:
            search = GridSearch(rows, self.criterion, self.binning, self.grid, otherwise="komisarenko")
            best = search.line(self.gammas) if self.search == "line" else search.full(self.gammas)
            found = math.log(best.temperature), best.gamma, best.value
        else:
            ends = self.gammas[0], self.gammas[-1]
            starts = [(float(self.log_temperature), self.gamma)] if self.fitted else []
            if not starts:
                t, _ = fit_log_temperature(rows, prior=self.prior)
                starts = [(t, gamma) for gamma in ([0.0] if self.prior else self.gammas)]
            tolerance = self.tolerance or _TOLERANCE
            ended = [fit_focal(rows, ends, start, self.prior, tolerance) for start in starts]
            found = min(ended, key=lambda one: one[2])
        self.log_temperature, self.exponent, self.reached = (
            torch.tensor(value, dtype=torch.float64, device=rows.device) for value in found
        )

    def _transform(self, logits: Tensor) -> Tensor:
        return focal_log_probs(self._tempered(logits), self.exponent)


def fit_focal(
    rows: RowSource, ends: tuple[float, float], start: tuple[float, float], prior: float | None, tolerance: float
) -> tuple[float, float, float]:
    """Return (log T, γ, mean log-loss) at the local minimum of the penalised log-loss that a search from ``start`` finds.

    The search is over (log T, log(1 + γ)) with T in [1e-3, 1e3] and γ within ``ends``. It uses Newton's method with the Fisher
    information, which differs from the Hessian by a term with mean 0 (and not at all at γ = 0), and SciPy's L-BFGS-B if a few
    Newton steps do not reduce the gradient.

    Args:
        rows: The data.
        ends: Smallest and largest γ.
        start: The starting point (log T, γ).
        prior: Standard deviation of the normal priors on log T and log(1 + γ); None for no priors.
        tolerance: Largest gradient entry at which the search stops.

    Returns:
        The solution and the unpenalised mean log-loss there.

    Raises:
        FitError: If the gradient at the solution is not small.
    """
    from scipy.optimize import minimize

    low, high = np.array([[math.log(T_LOW), math.log1p(ends[0])], [math.log(T_HIGH), math.log1p(ends[1])]])
    precision = 0.0 if prior is None else 1 / (prior**2 * rows.mass)

    def derivatives(x: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        value, *sums = (rows.total(_focal_sums, x[0], math.expm1(x[1])) / rows.mass).tolist()
        rise = np.array([1.0, math.exp(x[1])])  # dγ/dv for γ = e^v − 1
        information = np.array([sums[2:4], sums[3:]]) * np.outer(rise, rise) + precision * np.eye(2)
        return value + precision / 2 * float(x @ x), sums[:2] * rise + precision * x, information

    x, last = np.clip([start[0], math.log1p(start[1])], low, high), math.inf
    for _ in range(_NEWTON_STEPS):
        value, gradient, information = derivatives(x)
        worst = float(np.abs(gradient).max())
        there = x - np.linalg.lstsq(information, gradient, rcond=None)[0]
        if not tolerance < worst < last or bool(((there < low) | (there > high)).any()):
            break
        x, last = there, worst
    if not worst <= tolerance:
        options, box = {"gtol": tolerance, "ftol": 0.0, "maxls": 10}, np.stack([low, high], axis=1)
        first = lambda x: derivatives(x)[:2]  # noqa: E731
        x = minimize(first, x, jac=True, method="L-BFGS-B", bounds=box, options=options).x
        value, gradient, _ = derivatives(x)
    outwards = ((x <= low) & (gradient > 0)) | ((x >= high) & (gradient < 0))
    worst = float(np.abs(gradient[~outwards]).max(initial=0.0))
    if not worst <= _ENOUGH:
        raise FitError(f"a gradient below {_ENOUGH:g} at the optimum", f"{worst:.3g}", "use more validation data")
    return float(x[0]), math.expm1(x[1]), value - precision / 2 * float(x @ x)


def _focal_sums(batch: Batch, t: float, gamma: float) -> Tensor:
    """Return Σ ℓ, Σ ∂ℓ/∂t, Σ ∂ℓ/∂γ and the Fisher information's entries tt, tγ, γγ (6,).

    Here ℓ = −log softmax(s) at the label, and t = log T.
    """
    check_label_logits(batch)
    step = max(1, _BLOCK // batch.logits.shape[1]) if batch.logits.device.type == "cpu" else len(batch)
    parts = zip(batch.logits.split(step), batch.labels.split(step), batch.row_weights.split(step), strict=True)
    total = torch.zeros(6, dtype=torch.float64, device=batch.logits.device)
    for logits, labels, weights in parts:
        total += _block_sums(logits.double(), labels, t, gamma) @ weights
    return total


def _block_sums(z: Tensor, labels: Tensor, t: float, gamma: float) -> Tensor:
    """Return the terms of ``_focal_sums`` for each row (6, n).

    With q = softmax(z / T), L = log q, r = q / (1 − q) and u = −r L: s = L − γ log(1 − q) − log(1 + γ u) (Komisarenko & Kull
    2024, Proposition 2). By γ: s_γ = −log(1 − q) − u / (1 + γ u). By t = log T: s_t = −c ds/dL with c = a − E_q a, a = z / T,
    and ds/dL = 1 + γ (r − u' / (1 + γ u)), u' = du/dL = (1 + r) u − r.
    """
    # sums over few classes are fastest along the first dimension
    dim = 0 if z.shape[1] < _FEW_CLASSES else 1
    z, label = (z.T.contiguous(), labels[None]) if dim == 0 else (z, labels[:, None])
    highest, top = z.max(dim=dim, keepdim=True)
    a = z.sub(highest).mul_(math.exp(-t)).clamp_min_(_EXCLUDED)
    q = a.exp().scatter_(dim, top, 0.0)
    # relative to the top class, whose 1 − q would lose its digits where q is nearly 1
    others = q.sum(dim=dim, keepdim=True)
    norm = 1 + others
    log_q = a - others.log1p()
    q = q.scatter_(dim, top, 1.0).div_(norm)
    rest = (1 - q).scatter_(dim, top, others / norm).clamp_min_(1e-130)
    c = a.sub_((q * a).sum(dim=dim, keepdim=True))
    r = q.div_(rest)
    u = -r * log_q.clamp_min(-745.0)  # below this value q is 0, and so is r L
    lift = 1 + gamma * u
    log_rest = rest.log_()
    s = log_q - gamma * log_rest - lift.log()
    by_t = -c * (1 + gamma * (r - ((1 + r) * u - r) / lift))
    by_gamma = u.div_(lift).add_(log_rest).neg_()
    log_p = torch.log_softmax(s, dim=dim)
    p, at_label = log_p.exp(), [part.gather(dim, label).squeeze(dim) for part in (log_p, by_t, by_gamma)]
    weighted = p * by_t, p.mul_(by_gamma)
    means = [part.sum(dim=dim) for part in weighted]
    # the Fisher information is the covariance of (s_t, s_γ) under p
    information = [
        (weighted[i] * one).sum(dim=dim) - means[i] * means[j]
        for i, j, one in ((0, 0, by_t), (0, 1, by_gamma), (1, 1, by_gamma))
    ]
    return torch.stack([-at_label[0], means[0] - at_label[1], means[1] - at_label[2], *information])


class FocalCalibration(Calibrator):
    """The focal calibration map for a given γ, which reverses the effect of training with focal loss.

    A network that minimises focal loss with γ outputs q = softmax(z), from which the map recovers the class probabilities:
    p_j ∝ q_j / [(1 − q_j)^γ (1 + γ u(q_j))] with u(q) = −q log q / (1 − q). ``fit`` learns only the number of classes. The map
    is computed in log space, so the decision never changes, and saturated rows keep their order.

    Args:
        gamma: γ > −1, usually the γ used in training; 0 is the identity. γ > 0 makes confident rows more confident and may make
            other rows less confident; γ < 0 makes confident rows less confident.

    Examples:
        >>> z, y = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
        >>> FocalCalibration(1.0).fit(z, y)(z).softmax(dim=1)
        tensor([[0.9732, 0.0268],
                [0.1445, 0.8555]])

    References:
        Charoenphakdee et al. 2021. Komisarenko & Kull 2024, Propositions 2 and 4.
    """

    preserves_argmax = True

    def __init__(self, gamma: float) -> None:
        super().__init__()
        self.gamma = check_focal_gamma(gamma)

    def _fit(self, rows: RowSource) -> None:
        return

    def _transform(self, logits: Tensor) -> Tensor:
        return focal_log_probs(logits, self.gamma)


def focal_log_probs(logits: Tensor, gamma: float | Tensor) -> Tensor:
    """Return the log-probabilities (N, K) of the focal map.

    Unlike ``theory.focal_map``, this function does not branch on values, so that it can be traced.
    """
    # in float64, because ONNX has no log1p, and in float32 the lost digits of log(1 − q) change probabilities by 1e-4 for γ < 0
    log_p = log_normalise(focal_scores(logits.double(), gamma))
    # the top class is computed differently from the others, so rounding could put a tied class above it
    top, at = logits.max(dim=1, keepdim=True)
    lead = log_p.gather(1, at)
    log_p = torch.where(logits == top, lead, torch.minimum(log_p, lead))
    return narrowed(log_p.masked_fill(torch.isneginf(logits), -torch.inf), logits.dtype)
