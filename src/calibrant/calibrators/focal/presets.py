"""The grids of temperature that the papers and their programs search, each with the criterion it goes by."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from calibrant._core.check import as_tensor, check_choice, check_number, shown
from calibrant.binning import Binning, EqualMass, EqualWidth
from calibrant.errors import InputError

Criterion = Literal["nll", "ece"]


@dataclass(frozen=True)
class Preset:
    """T = step, 2·step … count·step, as exact quotients: the programs that add up T drift to 9.99999999999998."""

    per_unit: int
    count: int
    binning: Binning
    ignore_zero: bool = False

    @property
    def temperatures(self) -> list[float]:
        """The candidates, ascending."""
        return [i / self.per_unit for i in range(1, self.count + 1)]


# All go by ECE. "wang-code" also holds T = 0, whose NaN its comparison passes over, and never takes an ECE of exactly 0.
PRESETS = {
    "mukhoti": Preset(10, 100, EqualWidth(15)),
    "wang": Preset(100, 1000, EqualWidth(15)),
    "wang-code": Preset(100, 499, EqualWidth(15), ignore_zero=True),
    "komisarenko": Preset(100, 500, EqualMass(15)),
    "komisarenko-code": Preset(20, 100, EqualMass(15, ties="interpolated")),
}
Grid = Sequence[float] | str | None


def check_grid(grid: Grid) -> list[float] | str | None:
    """Return ``grid`` if it names a preset, or as ascending positive temperatures."""
    if grid is None:
        return None
    if isinstance(grid, str):
        return check_choice(grid, name="grid", choices=PRESETS)
    values = sorted({check_number(t, name="grid", low=0, open_low=True) for t in as_list(grid, name="grid")})
    if not values:
        raise InputError("at least one temperature in grid", "none", "name some, or a preset")
    return values


def as_list(values: Sequence[float], *, name: str) -> list[float]:
    """Return numbers given as a sequence, an array or a tensor as a list."""
    if isinstance(values, list | tuple):
        return list(values)
    listed = as_tensor(values, name=name).tolist()
    return listed if isinstance(listed, list) else [listed]


def resolve(
    criterion: str | None, binning: Binning | None, grid: list[float] | str | None, *, otherwise: Preset
) -> tuple[str, Preset, list[float]]:
    """Return criterion, preset and temperatures of what was given; what was not is the preset's, or ``otherwise``'s."""
    preset = PRESETS[grid] if isinstance(grid, str) else otherwise
    chosen = criterion or ("ece" if isinstance(grid, str) else "nll")
    if binning is not None:
        preset = Preset(preset.per_unit, preset.count, binning, preset.ignore_zero)
    return chosen, preset, grid if isinstance(grid, list) else preset.temperatures


def check_weights_count(binning: Binning) -> None:
    """Refuse weighted rows with bins of equal mass: their parts differ by a row, which a row of weight 2.5 cannot split."""
    if isinstance(binning, EqualMass):
        raise InputError(
            "no sample_weight with bins of equal mass", "one", "use binning=EqualWidth(15), or repeat the rows"
        )


def check_binning(binning: Binning | None) -> Binning | None:
    """Return ``binning`` if it is None or a binning."""
    if binning is not None and not isinstance(binning, Binning):
        raise InputError("a binning such as EqualWidth(15)", f"{shown(binning)}", "see calibrant.binning")
    return binning
