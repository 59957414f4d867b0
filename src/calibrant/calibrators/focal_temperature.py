"""Focal temperature scaling: a temperature, then the focal calibration map."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from calibrant._check import check_choice
from calibrant._config import to_plain
from calibrant.binning import Binning
from calibrant.calibrators._affine import total_weight
from calibrant.calibrators._base import Calibrator
from calibrant.calibrators._focal_grid import FocalGrid
from calibrant.calibrators._focal_search import Search, least_change, warn_at_end
from calibrant.calibrators._grids import PRESETS, Grid, as_list, check_binning, check_grid, check_weights_count, resolve
from calibrant.calibrators._log_temperature import fit_log_temperature
from calibrant.calibrators._tempering import check_prior, fit_temperature, narrowed
from calibrant.calibrators.focal import focal_log_probs
from calibrant.errors import InputError
from calibrant.scores import FocalScore

__all__ = ["FocalTemperatureScaling"]

PUBLISHED_GAMMAS = (-0.5, -0.25, 0.05, 0.25, 0.37, 0.5, 0.75, 1.0, 5.0)


class FocalTemperatureScaling(Calibrator):
    """FC_γ(softmax(z / T)): temperature scaling with a second number that bends the map (Komisarenko & Kull 2024).

    The order matters: first T, then the focal map. γ need not be that of training. The default γ are the published nine
    and 0, and 0 is temperature scaling, so that it is never worse than that on the data it is fitted on. Of equally
    good pairs the one with the smallest |γ| wins, then the T closest to 1. The decision never changes.

    Args:
        criterion: "nll" or "ece"; None is the preset's, else "nll". Choosing by ECE can wreck the log-loss.
        binning: Bins of the ECE; None is the preset's, else ``EqualMass(15)``. Weights need ``EqualWidth``.
        gammas: Candidates γ > −1, used as given; the published nine alone are ``FocalTemperatureScaling.published``.
        grid: Temperatures, or a preset's name as in ``TemperatureScaling``; None is "komisarenko"'s .01 … 5.
        search: "full" returns the best of all pairs, exactly, though most are ruled out unseen. "line" takes the best T
            at the outermost two γ, and searches the straight line between: 3 evaluations a temperature (Komisarenko &
            Kull §5.2). "continuous" leaves the grid: γ between the outermost two and any T in [1e-3, 1e3], to 1e-4 in
            γ and 1e-5 in log T for "nll"; for "ece", which jumps, by grids around the best, to 1/64 of the grid's step.
            Both also try the best temperature at γ = 0 and keep the better.
        prior: Standard deviation of normal priors on log T and on log(1 + γ) about 0, or None for none; a small or
            all-correct validation set cannot then drive them to their bounds. It needs "nll" and "continuous", whose search
            is then a quasi-Newton descent from the best temperature at γ = 0 (from its own answer where it was fitted
            before), to about 1e-4 in log T and log(1 + γ).

    Attributes:
        temperature: The fitted T.
        gamma: The fitted γ.
        objective: The criterion's value at the answer, on the data of the fit.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> z = torch.randn(500, 3, generator=generator)
        >>> y = torch.multinomial(torch.softmax(z / 2, dim=1), 1, generator=generator)[:, 0]
        >>> FocalTemperatureScaling(gammas=[0.0, 1.0], grid=[1.0, 2.0, 3.0, 4.0]).fit(z, y).temperature
        2.0

    References:
        Komisarenko & Kull 2024, Improving Calibration by Relating Focal Loss, Temperature Scaling, and Properness, §4–5.
    """

    preserves_argmax: ClassVar[bool] = True
    published: ClassVar[tuple[float, ...]] = PUBLISHED_GAMMAS

    log_temperature: Tensor
    exponent: Tensor
    reached: Tensor

    def __init__(
        self,
        criterion: Literal["nll", "ece"] | None = None,
        *,
        binning: Binning | None = None,
        gammas: Sequence[float] = (*PUBLISHED_GAMMAS, 0.0),
        grid: Grid = None,
        search: Literal["full", "line", "continuous"] = "full",
        prior: float | None = None,
    ) -> None:
        super().__init__()
        self.criterion = (
            None if criterion is None else check_choice(criterion, name="criterion", choices=("nll", "ece"))
        )
        self.binning = check_binning(binning)
        self.gammas = sorted({float(FocalScore(gamma).gamma) for gamma in as_list(gammas, name="gammas")})
        if not self.gammas:
            raise InputError("expected at least one of gammas, got none; name some")
        self.grid = check_grid(grid)
        self.search = check_choice(search, name="search", choices=("full", "line", "continuous"))
        self.prior = check_prior(prior)
        by, _, _ = resolve(self.criterion, None, self.grid, otherwise=PRESETS["komisarenko"])
        if self.prior is not None and (self.search, by) != ("continuous", "nll"):
            raise InputError(
                f"expected criterion 'nll' and search 'continuous' with a prior, got {by!r} and {self.search!r}; "
                "leave out the prior, or set both"
            )
        self._declare("log_temperature", "exponent", "reached")

    @property
    def temperature(self) -> float:
        """The fitted T; NaN before ``fit``."""
        return math.exp(float(self.log_temperature)) if self.fitted else math.nan

    @property
    def gamma(self) -> float:
        """The fitted γ; NaN before ``fit``."""
        return float(self.exponent) if self.fitted else math.nan

    @property
    def objective(self) -> float:
        """The criterion's value on the data of the fit; NaN before ``fit``."""
        return float(self.reached) if self.fitted else math.nan

    def config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {
            "criterion": self.criterion,
            "binning": to_plain(self.binning),
            "gammas": self.gammas,
            "grid": self.grid,
            "search": self.search,
            "prior": self.prior,
        }

    def learned(self) -> str:
        """Return both numbers."""
        return f"gamma={self.gamma:.4g}, temperature={self.temperature:.4g}"

    def _fit(self, logits: Tensor, labels: Tensor, weight: Tensor | None, groups: Tensor | None) -> None:
        criterion, preset, temps = resolve(self.criterion, self.binning, self.grid, otherwise=PRESETS["komisarenko"])
        binning = preset.binning if criterion == "ece" else None
        if binning is not None:
            check_weights_count(binning, weight)
        search = Search(FocalGrid.of(logits, labels, weight), binning, least_change, ignore_zero=preset.ignore_zero)
        if self.prior is not None:
            again = self.fitted and self.temperature > 0
            start = (
                (self.gamma, self.temperature) if again else (0.0, fit_temperature(logits, labels, weight, self.prior))
            )
            pull = self.prior**-2 / total_weight(labels, weight)
            best = search.penalised((self.gammas[0], self.gammas[-1]), start, pull=pull)
        elif self.search == "full":
            best = search.best(self.gammas, temps)
        else:
            best = search.line(self.gammas, temps) if self.search == "line" else search.continuous(self.gammas, temps)
            plain = search.best([0.0], temps)
            if binning is None:
                root = fit_log_temperature(logits, labels, weight)
                plain = min(plain, search.at(0.0, math.exp(root.x)), key=least_change)
            best = min(best, plain, key=least_change)
        if self.prior is None:
            warn_at_end(best, temps)
        values = (math.log(best.temperature), best.gamma, best.value)
        self.log_temperature, self.exponent, self.reached = (
            torch.tensor(value, dtype=torch.float64, device=logits.device) for value in values
        )

    def _transform(self, logits: Tensor) -> Tensor:
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        tempered = wide * torch.exp(-self.log_temperature).to(wide.dtype)
        return narrowed(focal_log_probs(tempered, self.exponent.to(wide.dtype)), logits.dtype)
