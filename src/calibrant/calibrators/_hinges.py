"""Piecewise linear functions of a row's numbers and categories: the design of a fit that varies with them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import refuse
from calibrant.calibrators._groups import MOST_GROUPS, Categories, codes_of, need_column
from calibrant.data.record import Features

_ROWS_A_KNOT = 100  # of each of a number's pieces, at least


@dataclass(frozen=True)
class Sources:
    """Where a row's numbers come from: its logits, columns of numbers, and one indicator for each name of columns of names.

    Args:
        logits: Names of features of the logits.
        numbers: Names of columns.
        names: Columns of names with their categories.
    """

    logits: tuple[str, ...]
    numbers: tuple[str, ...]
    names: tuple[Categories, ...]

    @property
    def beside(self) -> bool:
        """Whether columns are needed."""
        return bool(self.numbers or self.names)

    @property
    def width(self) -> int:
        """How many numbers a row has."""
        return len(self.logits) + len(self.numbers) + sum(map(len, self.names))

    def columns(self, features: Features, *, rows: int) -> Tensor:
        """Return the numbers (n, C) that stand beside the logits; NaN at the indicators of a name that is none of them.

        Raises:
            InputError: If a column is missing, of another kind than in fit, not finite, or not of ``rows`` rows.
        """
        found = [_numbers(features, name) for name in self.numbers]
        codes = codes_of(self.names, features) if self.names else None
        start = 0
        for place, one in enumerate(self.names):
            code = (codes if codes is not None else torch.zeros(0, 0))[:, place]
            known = code < sum(map(len, self.names))
            for value in range(start, start + len(one)):
                found.append(torch.where(known, (code == value).double(), torch.nan))
            start += len(one)
        table = torch.stack(found, dim=1) if found else torch.zeros(rows, 0, dtype=torch.float64)
        if len(table) != rows:
            raise refuse(f"features of {rows} rows", str(len(table)), "pass the features of the same rows")
        return table


def sources_of(logits: Sequence[str], features: Features, columns: Sequence[str]) -> Sources:
    """Return the sources that fitting rows with the columns ``features`` give.

    Raises:
        InputError: If columns of names have too many different ones.
    """
    found = {name: need_column(features, name) for name in columns}
    numbers = tuple(name for name, column in found.items() if isinstance(column, Tensor))
    texts = {name: column for name, column in found.items() if not isinstance(column, Tensor)}
    names = tuple(Categories(name, tuple(np.unique(column).tolist())) for name, column in texts.items())
    if (count := sum(map(len, names))) > MOST_GROUPS:
        remedy = "leave that column out, or cut it into fewer categories"
        raise refuse(f"at most {MOST_GROUPS} names in all columns", str(count), remedy)
    return Sources(tuple(logits), numbers, names)


def to_bytes(sources: Sources) -> Tensor:
    """Return the sources as JSON in bytes, a tensor that is saved with what was learned."""
    names = [{"name": one.name, "values": list(one.values)} for one in sources.names]
    text = json.dumps([list(sources.logits), list(sources.numbers), names], ensure_ascii=False)
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def from_bytes(buffer: Tensor, logit_features: Sequence[str]) -> Sources:
    """Return the sources of ``to_bytes``.

    Raises:
        ValueError: If it is none: it may come from a file.
    """
    if not buffer.numel():
        return Sources((), (), ())
    logits, numbers, names = json.loads(bytes(buffer.to(torch.uint8).cpu().tolist()).decode())
    made = tuple(Categories(str(one["name"]), tuple(one["values"])) for one in names)
    texts = [*logits, *numbers, *(value for one in made for value in one.values)]
    if not all(isinstance(text, str) for text in texts) or not set(logits) <= set(logit_features):
        raise ValueError("names of features were expected")
    return Sources(tuple(logits), tuple(numbers), made)


@dataclass(frozen=True)
class Hinges:
    """Columns min(x, highest)_owner − knot, or 0 where that is negative, standardised.

    Args:
        owner: (P,) which number a column is of.
        knot: (P,) where it begins.
        highest: (P,) where it ends.
        center: (P,) its mean on the fitting rows.
        spread: (P,) its standard deviation there.
    """

    owner: Tensor
    knot: Tensor
    highest: Tensor
    center: Tensor
    spread: Tensor

    def design(self, values: Tensor) -> Tensor:
        """Return (n, 1 + P): ones, and the standardised columns of ``values`` (n, F); 0, the mean, where a value is NaN."""
        x = torch.minimum(values[:, self.owner], self.highest)
        columns = ((x - self.knot).clamp_min(0.0) - self.center) / self.spread
        columns = torch.where(torch.isnan(x), 0.0, columns)
        return torch.cat([values.new_ones(values.shape[0], 1), columns], dim=1)


def hinges_of(values: Tensor, weight: Tensor, *, knots: int, trimmed: int, indicators: int) -> Hinges:
    """Return columns for ``values`` (n, F) of rows of ``weight`` (n,).

    The knots of a number lie at its weighted quantiles, at equal distances of rank.

    Args:
        values: One number a column.
        weight: > 0.
        knots: Between the ends of each number, fewer where rows are few.
        trimmed: How many of the first columns are held between their .1 and 99.9 % quantiles instead of their extremes.
        indicators: How many of the last columns are 0 or 1.
    """
    pieces = 1 + min(knots, int(weight.sum() / _ROWS_A_KNOT))
    owners: list[int] = []
    begin: list[float] = []
    end: list[float] = []
    for column, x in enumerate(values.unbind(dim=1)):
        if column >= values.shape[1] - indicators:
            found = [0.0, 1.0]
        else:
            outer = 1e-3 if column < trimmed else 0.0
            ranks = torch.linspace(0, 1, pieces + 1, dtype=torch.float64).clamp(outer, 1 - outer)
            found = sorted(set(_quantiles(x, weight, ranks).tolist()))
        owners += [column] * (len(found) - 1)
        begin += found[:-1]
        end += [found[-1]] * (len(found) - 1)
    first, last = (torch.tensor(one, dtype=torch.float64, device=values.device) for one in (begin, end))
    owner = torch.tensor(owners, dtype=torch.int64, device=values.device)
    zero, one = torch.zeros_like(first), torch.ones_like(first)
    raw = Hinges(owner, first, last, zero, one).design(values)[:, 1:]
    mass = weight.sum()
    center = weight @ raw / mass
    spread = (weight @ (raw - center).square() / mass).sqrt()
    kept = spread > 1e-9 * raw.abs().amax(dim=0) if len(owner) else torch.zeros(0, dtype=torch.bool)
    return Hinges(owner[kept], first[kept], last[kept], center[kept], spread[kept])


def _quantiles(x: Tensor, weight: Tensor, ranks: Tensor) -> Tensor:
    """Return the smallest of ``x`` (n,) up to which at least ``ranks`` (R,) of the weight lie: as of repeated rows."""
    order = x.argsort()
    below = weight[order].cumsum(dim=0)
    place = torch.searchsorted(below, ranks.to(x.device) * below[-1] * (1 - 1e-12))
    return x[order][place.clamp_max(len(x) - 1)]


def _numbers(features: Mapping[str, Any], name: str) -> Tensor:
    column = need_column(features, name)
    if not isinstance(column, Tensor):
        raise refuse(f"numbers in the feature {name!r} as in fit", "names", "convert the column")
    values = column.double()
    if not bool(torch.isfinite(values).all()):
        raise refuse(f"finite numbers in the feature {name!r}", "NaN or inf", "drop those rows, or fill the column")
    return values
