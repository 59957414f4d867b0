"""Temperature scaling: one number that softens or sharpens all logits."""

import math
from typing import Literal, Self

import torch
from torch import Tensor

from calibrant._core.check import refuse
from calibrant._core.constraints import Positive
from calibrant._core.numerics import scale_logits
from calibrant.binning import AnyBinning
from calibrant.calibrators.base.calibrator import Tempered
from calibrant.calibrators.focal.focal_search import PRESETS, Best, Grid, search_of
from calibrant.calibrators.focal.log_temperature import (
    Passes,
    certified_root,
    fit_log_temperature,
    near_minimum,
)
from calibrant.rows import RowSource

__all__ = ["TemperatureScaling"]


class TemperatureScaling(Tempered):
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

    certificate: Tensor

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
                argument="prior",
            )

    @classmethod
    def from_passes(cls, passes: Passes, *, classes: int) -> Self:
        """Return temperature scaling fitted by log-loss on rows that no one place holds, and that only give sums.

        Float32 passes lead near the optimum; it is then certified in float64. The result carries no sketch of its rows,
        so that the leakage guard does not hold.

        Args:
            passes: ``mass`` (the sum of the weights), ``margin`` (the mean of z_y − max z), and ``moments(beta, dtype)``
                (the sums of the mean and of the variance of z − max z under softmax(beta z)).
            classes: K.

        Raises:
            FitError: If the search did not end.
        """
        root = certified_root(passes, start=near_minimum(passes, 0.0, 0.0))
        fitted = cls()
        like = fitted.state_dict()
        learned = {"log_temperature": root.x, "certificate": root.value, "classes": classes}
        fitted.load_state_dict({name: torch.tensor(value, dtype=like[name].dtype) for name, value in learned.items()})
        return fitted

    @property
    def gradient(self) -> float:
        """d log-loss / d log T at the fitted T; NaN before ``fit`` and after a grid search."""
        return float(self.certificate) if self.fitted and self.certificate.numel() else math.nan

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
