"""Focal temperature scaling: a temperature, then the focal calibration map."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from calibrant._core.check import check_choice
from calibrant.binning import Binning
from calibrant.calibrators._base import Calibrator
from calibrant.calibrators._focal_grid import FocalGrid
from calibrant.calibrators._focal_newton import focal_minimum
from calibrant.calibrators._focal_search import Best, Search, least_change, warn_at_end
from calibrant.calibrators._grids import PRESETS, Grid, as_list, check_binning, check_grid, check_weights_count, resolve
from calibrant.calibrators._log_temperature import fit_log_temperature
from calibrant.calibrators._tempering import check_prior, fit_temperature, narrowed
from calibrant.calibrators.focal import focal_log_probs
from calibrant.errors import InputError
from calibrant.rows import RowSource
from calibrant.scores import FocalScore

__all__ = ["FocalTemperatureScaling"]

PUBLISHED_GAMMAS = (-0.5, -0.25, 0.05, 0.25, 0.37, 0.5, 0.75, 1.0, 5.0)


class FocalTemperatureScaling(Calibrator):
    """FC_γ(softmax(z / T)): temperature scaling with a second parameter that curves the map (Komisarenko & Kull 2024).

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
            Kull §5.2). "continuous" leaves the grid: γ between the outermost two and any T in [1e-3, 1e3], by Newton's
            method in (log T, log(1 + γ)) for "nll"; for "ece", which jumps, by grids around the best, to 1/64 of the grid's
            step. Without a ``grid`` the best temperature at γ = 0 is tried as well, also beyond the grid's ends.
        prior: Standard deviation of normal priors on log T and on log(1 + γ) about 0, or None for none; a small or
            all-correct validation set cannot then drive them to their bounds. It needs "nll" and "continuous", which then
            starts at the best temperature with γ = 0, or at its previous solution if it was fitted before.

    Attributes:
        temperature: The fitted T.
        gamma: The fitted γ.
        objective: The criterion's value at the solution, on the data of the fit.

    Examples:
        >>> generator = torch.Generator().manual_seed(0)
        >>> z = torch.randn(500, 3, generator=generator)
        >>> y = torch.multinomial(torch.softmax(z / 2, dim=1), 1, generator=generator)[:, 0]
        >>> FocalTemperatureScaling(gammas=[0.0, 1.0], grid=[1.0, 2.0, 3.0, 4.0]).fit(z, y).temperature
        2.0

    References:
        Komisarenko & Kull 2024, Improving Calibration by Relating Focal Loss, Temperature Scaling, and Properness, §4–5.
    """

    preserves_argmax = True
    published = PUBLISHED_GAMMAS

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

    def learned(self) -> str:
        """Return both numbers."""
        return f"gamma={self.gamma:.4g}, temperature={self.temperature:.4g}"

    def _fit(self, rows: RowSource) -> None:
        criterion, preset, temps = resolve(self.criterion, self.binning, self.grid, otherwise=PRESETS["komisarenko"])
        binning = preset.binning if criterion == "ece" else None
        if binning is not None and rows.weighted:
            check_weights_count(binning)
        if self.prior is not None:
            best = self._penalised(rows, self.prior)
        else:
            search = Search(FocalGrid(rows, binning), least_change, ignore_zero=preset.ignore_zero)
            best = min(self._candidates(rows, search, temps), key=least_change)
            warn_at_end(best, temps)
        values = (math.log(best.temperature), best.gamma, best.value)
        self.log_temperature, self.exponent, self.reached = (
            torch.tensor(value, dtype=torch.float64, device=rows.device) for value in values
        )

    def _penalised(self, rows: RowSource, prior: float) -> Best:
        """Return the minimum with a prior, from the best temperature at γ = 0, or from what was fitted before."""
        again = self.fitted and self.temperature > 0
        start = (self.gamma, self.temperature) if again else (0.0, fit_temperature(rows, prior))
        gamma, temperature, value = focal_minimum(rows, self._ends, start, pull=prior**-2 / rows.mass)
        return Best(value, gamma, temperature)

    def _candidates(self, rows: RowSource, search: Search, temps: list[float]) -> list[Best]:
        """Return the best pair of the chosen search, and the best temperatures with γ = 0 that compete with it."""
        by_loss, off_grid = search.grid.binning is None, self.search == "continuous"
        if self.search == "line":
            found = [search.line(self.gammas, temps), search.best([0.0], temps)]
        else:
            found = [search.best(self.gammas, temps)]
        plain = self.search != "full" or (self.grid is None and 0.0 in self.gammas)
        if plain and by_loss:
            root = fit_log_temperature(rows)
            found += search.at([(0.0, math.exp(root.x))])
        elif plain and self.grid is None:
            found.append(search.best([0.0], PRESETS["wang"].temperatures))
        if off_grid and by_loss:
            for start in list(found):
                gamma, temperature, _ = focal_minimum(rows, self._ends, (start.gamma, start.temperature))
                found += search.at([(gamma, temperature)])
        elif off_grid:
            found.append(search.finer(min(found, key=least_change), self._ends, temps))
        return found

    @property
    def _ends(self) -> tuple[float, float]:
        return self.gammas[0], self.gammas[-1]

    def _transform(self, logits: Tensor) -> Tensor:
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        tempered = wide * torch.exp(-self.log_temperature).to(wide.dtype)
        return narrowed(focal_log_probs(tempered, self.exponent.to(wide.dtype)), logits.dtype)
