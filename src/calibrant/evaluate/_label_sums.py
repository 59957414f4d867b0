"""Sums over rows with several labels each, of which figures and intervals are made: in two passes, in memory and on disk.

What a row adds to a mean over labels depends on how many rows each label is known in and on the labels' means, and how much a row
weighs in the variance of the pooled ECE on the sizes of all rows. So a first pass sums these, ``LabelSums``, and a second one,
``RowSums``, what rows (or their groups) vary by: moments of the rows' parts in each mean, and products of their bins' residuals.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.check import refuse
from calibrant._core.numerics import add_records
from calibrant.binning import BinTable, EqualWidth
from calibrant.data.multilabel import MultiLabel
from calibrant.errors import NoIntervalError
from calibrant.metrics import ECE
from calibrant.rows import added
from calibrant.statistics.binned import BinnedRows
from calibrant.statistics.clusters import RowUnits, UnitSizes, clustered_interval, clustered_table, unit_sums
from calibrant.statistics.enough import FEWEST
from calibrant.statistics.means import Interval, Powers, UnitSums, interval_from
from calibrant.statistics.null import band_of

Average = Literal["pooled", "macro"]
MetricName = Literal["NLL", "Brier", "Bias", "ECE"]

BINS = 15
METRICS: tuple[MetricName, ...] = ("NLL", "Brier", "Bias")  # means over rows; the ECE is a function of the bins' sums
AVERAGES: tuple[Average, ...] = ("pooled", "macro")
MEANS = tuple(product(METRICS, AVERAGES))
FIGURES: tuple[tuple[MetricName, Average], ...] = (*MEANS, ("ECE", "pooled"), ("ECE", "macro"))
_CHUNK = 1 << 20  # scores looked at together


def chunks(pieces: Iterable[MultiLabel]) -> Iterator[MultiLabel]:
    """Yield the rows of positive weight in pieces of bounded size."""
    for piece in pieces:
        data = piece.counted
        step = max(1, _CHUNK // data.logits.shape[1])
        yield from (data[start : start + step] for start in range(0, len(data), step))


@dataclass(frozen=True, eq=False)
class LabelSums:
    """Weighted sums of each of L labels; they add across batches and files.

    Args:
        names: L names of the labels.
        n: Rows.
        weight: Σ w of the rows.
        mass: (L,) weight of the rows in which each is known.
        positives: (L,) weight of those in which it is 1.
        count: (L,) rows in which it is known.
        totals: (3, L) of ``METRICS``.
        gaps: (L, 15) Σ w (p − y) of each bin of equal width.
        noise: (L, 15) Σ v p (1 − p), with v = w²: of each gap the variance if calibrated.
        holding: (2, 2) Σ w and Σ v of the rows with a positive and with a negative label.
        rows: How many pairs of row and label each row has, and their weights; None for rows in groups.
        groups: How many rows of each group have a positive and a negative label, or None.
        grouped: Whether some rows, and whether some others, have groups.
    """

    names: tuple[str, ...]
    n: int
    weight: float
    mass: Tensor
    positives: Tensor
    count: Tensor
    totals: Tensor
    gaps: Tensor
    noise: Tensor
    holding: Tensor
    rows: UnitSizes | None
    groups: UnitSums | None
    grouped: frozenset[bool]

    @classmethod
    def of(cls, pieces: Iterable[MultiLabel]) -> "LabelSums":
        """Return the sums of the rows of positive weight of all ``pieces``.

        Raises:
            InputError: If there are no such rows or no labels, or a label is missing in all rows.
        """
        found: LabelSums | None = added(cls._of(part) for part in chunks(pieces))
        if found is None:
            raise refuse("at least one row of positive weight", "none", "check how the rows were selected")
        if not bool(found.mass.any()):
            raise refuse("at least one known label", "-1 (missing) in all rows", "select other rows")
        unknown = [name for name, mass in zip(found.names, found.mass.tolist(), strict=True) if not mass]
        if unknown:
            remedy = "leave its column out"
            raise refuse("each label known in at least one row", f"{unknown[0]!r} missing (-1) in all", remedy)
        return found

    @classmethod
    def _of(cls, data: MultiLabel) -> "LabelSums":
        labels, known, columns = data.need_labels(), data.known, data.logits.shape[1]
        p, w, v = data.probs.double(), data.row_weights, data.row_weights.square()
        weight, y = w[:, None] * known, (labels == 1).double()
        # one count over labels × bins
        home = EqualWidth(BINS).assign(p.reshape(-1)) + BINS * torch.arange(columns, device=p.device).repeat(len(p))
        values = (weight * (p - y), v[:, None] * known * p * (1 - p))
        gaps, noise = (
            torch.bincount(home, weights=one.reshape(-1), minlength=columns * BINS).view(columns, BINS)
            for one in values
        )
        holds = torch.stack([(labels == value).any(dim=1) for value in (1, 0)])
        rows = groups = None
        if data.groups is None:
            rows = UnitSizes.of(*_of_rows(data))
        else:
            column = torch.where(holds.T, torch.arange(2, device=p.device), -1)
            groups = UnitSums.of(data.groups, w, 2, [(slice(None), column, torch.ones_like(column).double())])
        return cls(
            names=data.names,
            n=data.count,
            weight=float(w.sum()),
            mass=weight.sum(dim=0),
            positives=(weight * y).sum(dim=0),
            count=known.sum(dim=0),
            totals=torch.stack([_weighted(label_terms(data, name), weight) for name in METRICS]),
            gaps=gaps,
            noise=noise,
            holding=holds.double() @ torch.stack([w, v], dim=1),
            rows=rows,
            groups=groups,
            grouped=frozenset([data.groups is not None]),
        )

    def __add__(self, other: "LabelSums") -> "LabelSums":
        return add_records(self, other, names=self.names, grouped=self.grouped | other.grouped)

    def means(self, metric: MetricName) -> Tensor:
        """Return a metric (L,) of each label: "NLL", "Brier", "Bias" or "ECE"."""
        if metric == "ECE":
            return self.gaps.abs().sum(dim=1) / self.mass
        return self.totals[METRICS.index(metric)] / self.mass

    def value(self, metric: MetricName, average: Average) -> float:
        """Return a metric of all labels pooled, or its mean over labels."""
        if average == "macro":
            return float(self.means(metric).mean())
        if metric == "ECE":
            return float(self.gaps.sum(dim=0).abs().sum() / self.mass.sum())
        return float(self.totals[METRICS.index(metric)].sum() / self.mass.sum())

    @property
    def null_mean(self) -> float:
        """The mean of the macro ECE over calibrated models: of each bin's gap the mean of a folded normal.

        The mean of a sum does not depend on how the labels of a row depend on each other.
        """
        # E |N(0, σ²)| = σ √(2 / π), with σ² = Σ v p (1 − p) of each bin
        return float((self.noise.sqrt().sum(dim=1) * math.sqrt(2 / math.pi) / self.mass).mean())

    @property
    def few_events(self) -> str | None:
        """Why no interval is offered where few rows, or groups, hold an event or its absence; None where enough do."""
        if len(self.grouped) > 1:
            return "expected groups in all rows or in none for an interval, got both; drop or add groups"
        if self.groups is None:
            worth = self.holding[:, 0].square() / self.holding[:, 1].clamp_min(1e-300)
        else:
            try:
                self.groups.need(what="several labels a row", least=FEWEST)
            except NoIntervalError as error:
                return str(error)
            worth = (self.groups.sums > 0).sum(dim=0)
        for kind, rows in zip(("positive", "negative"), worth.tolist(), strict=True):
            if rows < FEWEST:
                return f"expected at least {FEWEST} rows with a {kind} label for an interval, got {rows:.3g}; measure on more rows"
        return None


@dataclass(frozen=True, eq=False)
class RowSums:
    """What rows, or their groups, vary by: of which the intervals of figures over all labels are made; they add.

    Args:
        n: Rows.
        powers: Of the rows' parts in each of ``MEANS``, None for an infinite one and for rows in groups.
        units: (G, 6) of the same by group, or None.
        table: Of the pooled ECE; None of rows without a known label.
        residuals: Σ w (p − y) by unit and bin, or their products where a unit is a row; likewise.
    """

    n: int
    powers: tuple[Powers | None, ...]
    units: UnitSums | None
    table: BinTable | None
    residuals: UnitSums | RowUnits | None

    @classmethod
    def of(cls, pieces: Iterable[MultiLabel], sums: LabelSums) -> "RowSums":
        """Return the sums of the rows of positive weight of ``pieces``, whose first sums are ``sums``.

        Raises:
            InputError: If there are other rows than the first time.
        """
        found: RowSums | None = added(cls._of(part, sums) for part in chunks(pieces))
        if found is None or found.n != sums.n:
            got = f"{sums.n:,} the first time and {0 if found is None else found.n:,} the second"
            raise refuse("the same rows in two passes", got, "measure when nothing writes to the files")
        return found

    @classmethod
    def _of(cls, data: MultiLabel, sums: LabelSums) -> "RowSums":
        scores, (table, residuals) = _row_scores(data, sums), _bin_sums(data, sums)
        if data.groups is None:
            powers = tuple(None if x is None else Powers.of(x, data.weights) for x in scores)
            return cls(data.count, powers, None, table, residuals)
        w = data.row_weights
        filled = torch.stack([torch.zeros_like(w) if x is None else x for x in scores], dim=1)
        column = torch.arange(len(MEANS), device=w.device).expand_as(filled)
        units = UnitSums.of(data.groups, w, len(MEANS), [(slice(None), column, filled * w[:, None])])
        return cls(data.count, (), units, table, residuals)

    def __add__(self, other: "RowSums") -> "RowSums":
        both = zip(self.powers, other.powers, strict=True)
        powers = tuple(None if one is None or two is None else one + two for one, two in both)
        kept: dict[str, Any] = {}
        for name in ("table", "residuals"):  # a part without a known label adds nothing
            one, two = getattr(self, name), getattr(other, name)
            kept[name] = two if one is None else one if two is None else one + two
        return add_records(self, other, powers=powers, **kept)

    def interval(
        self, metric: MetricName, average: Average, value: float, *, draws: int, seed: int, level: float
    ) -> Interval:
        """Return the interval of a mean, whose value is known and finite, or of the pooled ECE.

        Raises:
            NoIntervalError: For too few groups, or too many.
        """
        if metric == "ECE":
            assert self.table is not None
            assert self.residuals is not None
            self.residuals.need(what=ECE(EqualWidth(BINS)), least=FEWEST)
            drawn = clustered_table(self.table, self.residuals, draws=draws, seed=seed)
            gate = band_of(drawn.errors(), level=level).high
            return clustered_interval(self.table, self.residuals, gate, level=level)
        at = MEANS.index((metric, average))
        if self.units is not None:
            self.units.need(what=metric, least=FEWEST)
            return interval_from(value, self.units.contributions(at).spread, level=level)
        rows = self.powers[at]
        assert rows is not None
        return interval_from(value, rows.spread(), level=level)


def _of_rows(data: MultiLabel) -> tuple[Tensor, Tensor, Tensor]:
    """Return of rows as units by themselves Σ w (p − y) (N, 15) by bin, their known labels and Σ w (N,)."""
    p, known, w = data.probs.double(), data.known, data.row_weights
    assert data.labels is not None
    home = EqualWidth(BINS).assign(p.reshape(-1)).view_as(p) + BINS * torch.arange(len(p), device=p.device)[:, None]
    gaps = w[:, None] * known * (p - (data.labels == 1).double())
    sums = torch.bincount(home.reshape(-1), weights=gaps.reshape(-1), minlength=len(p) * BINS).view(-1, BINS)
    sizes = known.sum(dim=1).double()
    return sums, sizes, w * sizes


def _bin_sums(data: MultiLabel, sums: LabelSums) -> tuple[BinTable | None, UnitSums | RowUnits | None]:
    """Return the table of the pooled ECE, and its residuals by row or by group; None without a known label."""
    known, weight = data.known, data.weights
    if data.labels is None or not bool(known.any()):
        return None, None
    row, p = torch.nonzero(known)[:, 0], data.probs[known].double()
    y, weight = (data.labels[known] == 1).double(), None if weight is None else weight[row]
    pairs = BinnedRows(EqualWidth(BINS).assign(p), p, y, BINS, weight)
    if data.groups is not None:
        return pairs.table(), unit_sums(pairs, data.groups[row.to(data.groups.device)])
    assert sums.rows is not None
    residuals, _, mass = _of_rows(data)
    return pairs.table(), RowUnits.of(sums.rows, residuals, mass)


def _row_scores(data: MultiLabel, sums: LabelSums) -> list[Tensor | None]:
    """Return of each of ``MEANS`` one number (N,) a row whose weighted mean is the metric, and which vary as its linear part does.

    Pooled: m + (Σ_j known_ij (t_ij − m)) W / Σ_j W_j, with W the rows' mass and W_j that of rows in which label j is known.
    Macro: m + 1/L · Σ_j known_ij (t_ij − m_j) W / W_j. How many labels are known varies with the rows: it is in them.
    None for an infinite metric.
    """
    known = data.known.double()
    found: list[Tensor | None] = []
    for metric in METRICS:
        if not math.isfinite(pooled := sums.value(metric, "pooled")):
            found += [None, None]
            continue
        terms, macro = label_terms(data, metric), sums.value(metric, "macro")
        found.append(pooled + ((terms - pooled) * known).sum(dim=1) * (sums.weight / sums.mass.sum()))
        found.append(macro + ((terms - sums.means(metric)) * known * (sums.weight / sums.mass)).mean(dim=1))
    return found


def _weighted(terms: Tensor, weight: Tensor) -> Tensor:
    """Return Σ weight · terms (L,), where a weight of 0 leaves out an infinite term."""
    return torch.where(weight > 0, weight * terms, 0.0).sum(dim=0)


def label_terms(data: MultiLabel, metric: str) -> Tensor:
    """Return one number (N, L) for each label of each row, float64, 0 where it is missing.

    NLL: −log of the probability of what happened, from the logits, so that no margin rounds it to 0 or ∞. Brier: (p − y)².
    Bias: p − y.
    """
    y = data.need_labels() == 1
    if metric == "NLL":
        z = data.logits.double()
        found = F.softplus(torch.where(y, -z, z))
    else:
        gap = data.probs.double() - y.double()
        found = gap.square() if metric == "Brier" else gap
    return torch.where(data.known, found, 0.0)
