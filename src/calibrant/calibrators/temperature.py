"""Temperature scaling: one number that softens or sharpens all logits, the one of least log-loss unless a grid is asked for.

The search is Newton's method in log T inside a bracket, in float64; on many rows it starts where a sample of them ends.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Self

import torch
from torch import Tensor

from calibrant._core.check import refuse
from calibrant._core.constraints import Positive
from calibrant._core.numerics import Root, increasing_root, row_chunks, scale_logits
from calibrant._core.warn import warn_user
from calibrant._kernels import cpu, cuda
from calibrant.binning import AnyBinning
from calibrant.calibrators.base import Certified, Tempered
from calibrant.calibrators.chunks import check_label_logits
from calibrant.calibrators.focal_search import PRESETS, Best, Grid, search_of
from calibrant.errors import BoundWarning, FitError
from calibrant.rows import Batch, MemoryRows, RowSource

T_LOW, T_HIGH = 1e-3, 1e3
_TOLERANCE = 1e-7  # of log T at the last float64 step; convergence is quadratic, and 1e-4 is documented
_NEAR = 1e-3  # of log T, where a search on a sample ends
_FLAT = 1e-20  # β at which all classes weigh the same, but for excluded ones, which weigh nothing
_SAMPLE = 8192  # rows of a sample that gives the starting point


class TemperatureScaling(Tempered, Certified):
    """softmax(z / T) with one T > 0, fitted on validation data (Guo et al. 2017). The decision never changes.

    By default T minimises the log-loss on [1e-3, 1e3]. The log-loss is convex in 1/T; the fit is Newton's method in
    log T inside a bracket and ends, in float64, with a certificate: the derivative at the answer. Where the optimum
    lies outside (every row right, or logits no better than chance) the bound comes back with a ``BoundWarning``. A
    fitted one that is fitted again starts from its temperature.

    With a grid, T is the best candidate, the smallest of equals. The papers' grids go by name, each with its criterion
    and bins: "mukhoti" (.1 … 10, ECE), "wang" (.01 … 10, ECE), "wang-code" (.01 … 4.99, ECE, never one of exactly 0),
    "komisarenko" (.01 … 5, equal-mass ECE), "komisarenko-code" (.05 … 5, equal-mass ECE with interpolated bins).

    Args:
        criterion: "nll" or "ece"; None is the preset's, else "nll". The ECE jumps with T, so a T chosen by it is the
            best of its grid and no more, and it can cost log-loss. It takes weights with bins of equal width only.
        binning: Bins of the ECE; None is the preset's, else ``EqualWidth(15)``.
        grid: Temperatures, or a preset's name; None is the continuous fit for "nll" and .01 … 10 for "ece".
        prior: Standard deviation of a normal prior on log T about 0, for the continuous fit, such as the 0.5 of ``AutoCalibrator``:
            without a wrong row T then stays near 1, and does not go to its bound. None for none.

    Attributes:
        temperature: The fitted T.
        gradient: d log-loss / d log T at a continuously fitted T, in nats: the certificate; NaN after a grid.

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
        criterion: Literal["nll", "ece"] | None = None,
        *,
        binning: AnyBinning | None = None,
        grid: Grid = None,
        prior: Positive | None = None,
    ) -> None:
        super().__init__()
        self.criterion = criterion
        self.binning = binning
        self.grid = grid if grid is None or isinstance(grid, str) else sorted(set(grid))
        self.prior = prior
        if self.prior is not None and (self.criterion == "ece" or self.grid is not None):
            raise refuse(
                "prior with the continuous fit by log-loss",
                "criterion or grid beside it",
                "leave one out",
            )

    def _fit(self, rows: RowSource) -> None:
        if self.criterion != "ece" and self.grid is None:
            start = float(self.log_temperature) if self.fitted else 0.0
            root = fit_log_temperature(rows, start=start, prior=self.prior)
            found, certificate = root.x, [root.value]
        else:
            given = (self.criterion, self.binning, self.grid)
            search, temperatures = search_of(rows, *given, Best.smallest_temperature, otherwise=PRESETS["wang"])
            best = search.best([0.0], temperatures)
            best.warn_at_end(temperatures)
            found, certificate = math.log(best.temperature), []
        self._temper(found, rows)
        self.certificate = torch.tensor(certificate, dtype=torch.float64, device=rows.device)

    def _transform(self, logits: Tensor) -> Tensor:
        return scale_logits(logits, torch.exp(-self.log_temperature))

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return 1/T for every class, and zeros."""
        ones = torch.ones(int(self.classes), dtype=torch.float64, device=self.log_temperature.device)
        return ones * torch.exp(-self.log_temperature), torch.zeros_like(ones)


def fit_log_temperature(rows: RowSource, *, start: float = 0.0, prior: float | None = None) -> Root:
    """Return the log T on [log 1e-3, log 1e3] at which the log-loss is least, with its derivative there; a bound comes with a warning.

    The log-loss is convex in 1/T, so its derivative by log T has one change of sign. In memory a sample of many rows only chooses
    where the search starts, since every step costs a pass.

    Args:
        rows: Checked rows.
        start: log T to begin at.
        prior: Standard deviation of a normal prior on log T, whose penalty (log T)² / (2 prior²) joins the summed
            log-loss; None for none.

    Raises:
        InputError: If a label's logit is −inf, which makes the log-loss infinite at every T.
        FitError: If the search did not end.
    """
    ready = rows.uncut.map(TemperatureRows.of_chunk)  # a pass cuts its chunks itself
    try:
        if isinstance(ready, MemoryRows) and rows.count >= 4 * _SAMPLE:
            thin = ready.map(TemperatureRows.sample, rows.count // _SAMPLE)
            if (mass := float(thin.total(TemperatureRows.mass_of))) > 0:
                start = _search(thin, mass, prior, start=start, tolerance=_NEAR).x
        root = _search(ready, rows.mass, prior, start=start, tolerance=_TOLERANCE)
    except ArithmeticError as error:
        raise FitError("the temperature search to end", f"{error}", "check the logits' range") from error
    if root.bound is not None:
        why = "every row is right" if root.bound == "low" else "the logits say no more than chance"
        warn_user(
            f"expected a finite best temperature, got none ({why}), so the bound {math.exp(root.x):g} was returned; "
            "use more validation data",
            BoundWarning,
        )
    # The step that ended the search was too short to need another pass: it is below 1e-7, and Newton squares that, so that the
    # answer no longer depends on where the search began. The certificate stays the derivative where it was computed, an upper
    # bound of that at the answer.
    step = -root.value / root.slope if root.slope > 0 else 0.0
    return replace(root, x=root.x + step) if root.bound is None and abs(step) <= _TOLERANCE else root


def _search(rows: RowSource, mass: float, prior: float | None, *, start: float, tolerance: float) -> Root:
    """Return the root of the derivative of the mean log-loss by log T.

    Args:
        rows: A source of ``TemperatureRows``.
        mass: Σ weights.
        prior: As for ``fit_log_temperature``.
        start: log T to begin at.
        tolerance: Of log T.
    """
    margin, pull = float(rows.total(TemperatureRows.margin_sum)) / mass, 0.0 if prior is None else 1 / (prior**2 * mass)
    # if every label has the largest logit (margin 0), the log-loss decreases down to T = 0, soon by less than rounding,
    # so there is no root to search for
    if not pull and margin >= 0:
        return _separable(rows, start=start, last=tolerance == _TOLERANCE)

    def slope(t: float) -> tuple[float, float]:
        """Return first and second derivative of the mean log-loss by log T, at log T = t."""
        beta = math.exp(-t)
        first, second = (rows.total(TemperatureRows.moments, beta) / mass).tolist()
        by_beta = first - margin
        return -beta * by_beta + pull * t, beta * by_beta + beta**2 * second + pull

    return increasing_root(slope, low=math.log(T_LOW), high=math.log(T_HIGH), start=start, tolerance=tolerance)


def _separable(rows: RowSource, *, start: float, last: bool) -> Root:
    """Return the lower bound where every label has the largest logit of its row; T = 1 where all logits are equal."""
    if not last:
        return Root(start, 0.0, 0.0, 0, None)
    if float(rows.total(TemperatureRows.moments, _FLAT)[0]) != 0:  # the mean gap to the largest logit
        return Root(math.log(T_LOW), 0.0, 0.0, 1, "low")
    warn_user(
        "expected logits that differ within a row, got rows of equal ones, to which every temperature is the same, so "
        "1 was returned; check the model's outputs",
        BoundWarning,
    )
    return Root(0.0, 0.0, 0.0, 1, None)


@dataclass(frozen=True)
class TemperatureRows:
    """Logits with what a pass over them needs beside them; ``masked`` says that a class is excluded somewhere by −inf."""

    logits: Tensor
    labels: Tensor
    weight: Tensor | None
    masked: bool

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor, weight: Tensor | None) -> Self:
        """Return the rows of ``logits`` (N, K) with ``labels`` (N,) and ``weight`` (N,), or 1 each."""
        return cls(logits, labels, weight, masked=bool(torch.isinf(logits.amin())))

    @classmethod
    def of_chunk(cls, chunk: Batch) -> Self:
        """Return the rows of a chunk.

        Raises:
            InputError: If a label's logit is −inf.
        """
        found = cls.of(chunk.logits, chunk.labels, chunk.row_weights)
        if found.masked:
            check_label_logits(chunk)
        return found

    @cached_property
    def top(self) -> Tensor:
        """(N, 1): the largest logit of each row."""
        return self.logits.amax(dim=1, keepdim=True)

    @property
    def count(self) -> int:
        return int(self.logits.shape[0])

    def mass_of(self) -> Tensor:
        """Return Σ weights."""
        one = torch.tensor(float(self.count), dtype=torch.float64)
        return one if self.weight is None else self.weight.sum().cpu()

    def margin_sum(self) -> Tensor:
        """Return Σ w (z_y − max z)."""
        if cpu.serves(self.logits) and not cpu.walks_columns(self.logits):
            return torch.tensor(cpu.margin_sum(self.logits, self.labels, self.weight), dtype=torch.float64)
        below = self.logits.gather(1, self.labels[:, None])[:, 0].double() - self.top[:, 0].double()
        return (below if self.weight is None else below * self.weight).sum()

    def sample(self, step: int) -> "TemperatureRows | None":
        """Return every ``step``-th row."""
        take = slice(None, None, step)
        weight = None if self.weight is None else self.weight[take]
        return TemperatureRows(self.logits[take], self.labels[take], weight, self.masked)

    def moments(self, beta: float) -> Tensor:
        """Return the sums of mean and variance of z − max z under softmax(βz), (2,)."""
        if self.logits.is_cuda and cuda.available():
            both = cuda.row_moments(self.logits, self.top, beta, torch.float64)
            return (both.sum(dim=1) if self.weight is None else both @ self.weight).cpu()
        if cpu.serves(self.logits):
            top = self.top[:, 0] if cpu.walks_columns(self.logits) else None
            found = cpu.temperature_moments(self.logits, top, self.weight, beta, torch.float64)
            return torch.tensor(found, dtype=torch.float64)
        sums = torch.zeros(2, dtype=torch.float64, device=self.logits.device)
        for rows in row_chunks(*self.logits.shape, device=self.logits.device):
            d = self.logits[rows].double() - self.top[rows].double()
            d = d.clamp_min(-1e30) if self.masked else d  # exp of it is 0, and 0 times it is not NaN
            e = (d * beta).exp_()
            norm = e.sum(dim=1)
            mean = e.mul_(d).sum(dim=1) / norm
            both = torch.stack([mean, e.mul_(d).sum(dim=1) / norm - mean**2])
            sums += both.sum(dim=1) if self.weight is None else both @ self.weight[rows]
        return sums.cpu()


# Temperature as a first step of other methods: the plain optimum, or one held near 1 by a weak prior.


def fit_temperature(rows: RowSource, prior: float | None) -> float:
    """Return the T that minimises log-loss, or its sum plus (log T)² / (2 · prior²).

    Raises:
        InputError: If a true class is excluded by −inf.
        FitError: If the search did not end.
    """
    return math.exp(fit_log_temperature(rows, prior=prior).x)


def mix_with_uniform(log_p: Tensor, share: Tensor | float) -> Tensor:
    """Return log((1 − share) · p + share / K) of ``log_p`` (N, K), finite wherever share > 0."""
    share = torch.as_tensor(share, dtype=log_p.dtype, device=log_p.device)
    return torch.logaddexp(torch.log1p(-share) + log_p, (share / log_p.shape[1]).log().expand_as(log_p))
