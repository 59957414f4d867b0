"""Predictions with several labels a row: binary metrics pooled and averaged over labels, and one test for the worst label."""

import math
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.check import check_kind, refuse, shown
from calibrant._core.constraints import MOST_DRAWS, Count, Integer, Kind, Level, Seed, checked
from calibrant._core.notebook import to_html
from calibrant._core.numerics import add_records
from calibrant._core.warn import warn_user
from calibrant.binning import EqualWidth
from calibrant.data.multilabel import MultiLabelPredictions
from calibrant.data.predictions import BinaryPairs, Predictions
from calibrant.errors import NoIntervalError, Remedy, ZeroProbabilityWarning
from calibrant.evaluate._group_sums import EventRows, Floats, GroupSums, covariance_of, partitions_of
from calibrant.evaluate.subgroups import Subgroup, TestedPart, enough, rows_of, verdict_on
from calibrant.metrics import ECE
from calibrant.statistics import interval
from calibrant.statistics.enough import need_groups
from calibrant.statistics.means import mean_interval

Average = Literal["pooled", "macro"]

BINS = 15
MetricName = Literal["NLL", "Brier", "Bias", "ECE"]
METRICS: tuple[MetricName, ...] = ("NLL", "Brier", "Bias")  # means over rows; the ECE is a function of the bins' sums
_MADE = "make them with MultiLabelPredictions.from_logits(logits, labels)"
SeveralLabels = Annotated[MultiLabelPredictions, Kind(MultiLabelPredictions, _MADE)]
_CHUNK = 1 << 20  # scores looked at together
FEWEST = 10.0  # rows (or groups) with and without an event, below which no interval is offered
AVERAGES: tuple[Average, ...] = ("pooled", "macro")


@dataclass(frozen=True)
class MultiLabelRow:
    """One binary metric over all labels; the event of each label is that it is 1.

    Args:
        metric: "NLL" (nats), "Brier" ((p − y)², 0 to 1), "Bias" (mean probability − frequency) or "ECE" (15 bins of equal width).
        average: "pooled": over all known labels of all rows, so that frequent labels count most; "macro": the mean over labels.
        value: Its value.
        low: Lower end of its interval, or None where none is known to cover.
        high: Upper end, or None.
        null_mean: Of the macro ECE: its mean over perfectly calibrated models with these probabilities, which finite samples
            do not reach 0; None for the others.
        n: Rows, by their counts if they have any.
        labels: L.
        refused: Why there is no interval, or None.
    """

    metric: str
    average: str
    value: float
    low: float | None
    high: float | None
    null_mean: float | None
    n: int
    labels: int
    refused: str | None = None


@dataclass(frozen=True)
class LabelSums:
    """Weighted sums of each of L labels; they add across batches, files and machines.

    Args:
        names: L names of the labels.
        n: Rows, by their counts if they have any.
        mass: (L,) weight of the rows in which each is known.
        positives: (L,) weight of those in which it is 1.
        count: (L,) rows in which it is known.
        totals: (3, L) of ``METRICS``.
        bins: (L, 15, 2) Σ w (p − y) and Σ w of each bin of equal width.

    Examples:
        >>> from calibrant import MultiLabelPredictions
        >>> data = MultiLabelPredictions.from_logits([[2.0, -1.0], [0.5, 3.0]], [[1, 0], [-1, 1]])
        >>> one, other = LabelSums.of(data[:1]), LabelSums.of(data[1:])
        >>> (one + other).value("Brier", "macro") == LabelSums.of(data).value("Brier", "macro")
        True
    """

    names: tuple[str, ...]
    n: int
    mass: Tensor
    positives: Tensor
    count: Tensor
    totals: Tensor
    bins: Tensor

    @classmethod
    @checked
    def of(cls, data: SeveralLabels) -> "LabelSums":
        """Return the sums of labelled predictions.

        Args:
            data: Predictions of several labels a row.

        Raises:
            InputError: If they are anything else, or without labels.
        """
        data.need_known()
        step = max(1, _CHUNK // data.logits.shape[1])
        return reduce(add, (cls._of(data[start : start + step]) for start in range(0, len(data), step)))

    @classmethod
    def _of(cls, data: MultiLabelPredictions) -> "LabelSums":
        known, y = data.known, (data.labels == 1).double() if data.labels is not None else torch.zeros(())
        p, columns = data.probs.double(), data.logits.shape[1]
        weight = data.row_weights[:, None] * known
        # one count over labels × bins
        home = homes(p)
        flat = [(weight * (p - y)).reshape(-1), weight.reshape(-1)]
        bins = [torch.bincount(home, weights=one, minlength=columns * BINS).view(columns, BINS) for one in flat]
        totals = torch.stack([_weighted(label_terms(data, name), weight) for name in METRICS])
        n = data.count if data.weight_kind == "frequency" else len(data)
        return cls(
            data.names,
            n,
            weight.sum(dim=0),
            (weight * y).sum(dim=0),
            known.sum(dim=0),
            totals,
            torch.stack(bins, dim=2),
        )

    def __add__(self, other: "LabelSums") -> "LabelSums":
        if not isinstance(other, LabelSums) or other.names != self.names:
            raise refuse("sums of the same labels", shown(other), "make both with LabelSums.of")
        return add_records(self, other, names=self.names)

    @checked
    def means(self, metric: MetricName) -> Tensor:
        """Return a metric (L,) of each label: "NLL", "Brier", "Bias" or "ECE"; NaN where none of its labels is known."""
        if metric == "ECE":
            return self.bins[:, :, 0].abs().sum(dim=1) / self.mass
        return self.totals[METRICS.index(metric)] / self.mass

    @checked
    def value(self, metric: MetricName, average: Average) -> float:
        """Return a metric of all labels pooled, or its mean over labels."""
        if average == "macro":
            return float(self.means(metric).mean())
        if metric == "ECE":
            return float(self.bins[:, :, 0].sum(dim=0).abs().sum() / self.mass.sum())
        return float(self.totals[METRICS.index(metric)].sum() / self.mass.sum())


@checked
def multilabel_panel(
    predictions: MultiLabelPredictions,
    *,
    draws: Annotated[int, Integer(0, MOST_DRAWS)] = 1000,
    seed: Seed = 0,
    level: Level = 0.95,
) -> list[MultiLabelRow]:
    """Return NLL, Brier, bias and ECE of each label's probability, pooled (micro) and averaged over labels (macro).

    The labels of one row are never taken for independent: the rows (or their ``groups``) are the units of every interval.
    Of a mean it is Student's t corrected for skewness, of each row's part in the pooled or averaged metric; of the pooled ECE
    that of ``ECE()`` for rows in groups. The macro ECE has as many bins as 15 times the labels, of which chance decides most: it
    has no interval, but what it would be if the model were calibrated.

    Args:
        predictions: Labelled predictions of several labels a row.
        draws: Of the pooled ECE if calibrated, which its interval rests on; 0 leaves all intervals out.
        seed: Same seed, same numbers.
        level: Coverage of the intervals.

    Raises:
        InputError: If a label is missing in all rows, so that it has no part in a mean over labels.

    Examples:
        >>> from calibrant import MultiLabelPredictions
        >>> data = MultiLabelPredictions.from_probs(
        ...     [[0.8, 0.3], [0.8, 0.3]] * 50, [[1, 0], [1, 1]] * 25 + [[1, 0], [0, 0]] * 25
        ... )
        >>> rows = multilabel_panel(data)
        >>> [(row.metric, row.average, round(row.value, 3)) for row in rows][4:6]
        [('Bias', 'pooled', 0.05), ('Bias', 'macro', 0.05)]
    """
    data = counted(predictions)
    sums = LabelSums.of(need_every_label(data))
    why = few_events(data) if draws else "left out"
    made = [_mean_row(data, sums, metric, average, why, level) for metric in METRICS for average in AVERAGES]
    ends, refused = None, why
    if why is None:
        try:
            found = interval(ECE(), data.pooled(), draws=max(draws, 2), seed=seed, level=level)
            ends = found.low, found.high
        except NoIntervalError as error:
            refused = str(error)
    made.append(_label_figure(data, "ECE", "pooled", sums.value("ECE", "pooled"), ends, refused))
    bins = "more bins than an interval is known for" if draws else "left out"
    return [*made, _label_figure(data, "ECE", "macro", sums.value("ECE", "macro"), None, bins, _null_mean(data))]


@checked
def panel_of_sums(
    sums: Annotated[LabelSums, Kind(LabelSums, "make them with LabelSums.of(data)")],
) -> list[MultiLabelRow]:
    """Return the panel's figures from sums over shards or batches, without intervals.

    Args:
        sums: Of all rows.

    Raises:
        InputError: If a label is missing in all rows.

    Examples:
        >>> from calibrant import MultiLabelPredictions
        >>> data = MultiLabelPredictions.from_probs([[0.8, 0.3], [0.6, 0.3]], [[1, 0], [1, 1]])
        >>> round(panel_of_sums(LabelSums.of(data[:1]) + LabelSums.of(data[1:]))[0].value, 4)
        0.5737
    """
    if bool((sums.mass <= 0).any()):
        place = int(torch.nonzero(sums.mass <= 0)[0])
        raise refuse("each label known in at least one row", f"column {place} missing (-1) in all", "leave it out")
    why, labels = "of sums over batches no interval is known", int(sums.mass.shape[0])
    return [
        MultiLabelRow(metric, average, sums.value(metric, average), None, None, None, sums.n, labels, why)
        for metric in (*METRICS, "ECE")
        for average in AVERAGES
    ]


def counted(predictions: Any) -> MultiLabelPredictions:
    """Return labelled predictions of several labels a row without rows of weight 0.

    Raises:
        InputError: If they are anything else, or no row is left.
    """
    remedy = _MADE
    if isinstance(predictions, Predictions | BinaryPairs):
        remedy = "use panel and subgroups for one class a row, or make MultiLabelPredictions where several can be true"
    data = check_kind(predictions, MultiLabelPredictions, name="predictions", remedy=remedy)
    if not len(data.counted):
        raise refuse("at least one row of positive weight", "none", "check how the rows were selected")
    data.counted.need_known()
    return data.counted


def need_every_label(data: MultiLabelPredictions) -> MultiLabelPredictions:
    """Return ``data`` if each label is known in at least one row.

    Raises:
        InputError: If one is not.
    """
    held = zip(data.names, data.known.any(dim=0).tolist(), strict=True)
    unknown = [name for name, any_known in held if not any_known]
    if unknown:
        remedy = Remedy("leave it out with select(names)", command="leave its columns out of the file")
        raise refuse("each label known in at least one row", f"{unknown[0]!r} missing (-1) in all", remedy)
    return data


def few_events(data: MultiLabelPredictions) -> str | None:
    """Return why no interval is offered where few rows, or groups, hold an event or its absence; None where enough do."""
    try:
        need_groups(data.groups, what="several labels a row")
    except NoIntervalError as error:
        return str(error)
    assert data.labels is not None
    for value, kind in ((1, "positive"), (0, "negative")):
        rows = (data.labels == value).any(dim=1)
        if (found := _effective_rows(data, rows)) < FEWEST:
            return f"expected at least {FEWEST:g} rows with a {kind} label for an interval, got {found:.3g}; measure on more rows"
    return None


def _effective_rows(data: MultiLabelPredictions, rows: Tensor) -> float:
    """Return the chosen rows: those of equal weight that would vary as much, or their groups."""
    if data.groups is not None:
        return float(torch.unique(data.groups[rows.cpu()]).shape[0])
    return data.selected(rows).effective_count


def _mean_row(
    data: MultiLabelPredictions, sums: LabelSums, metric: MetricName, average: Average, why: str | None, level: float
) -> MultiLabelRow:
    value = sums.value(metric, average)
    if not math.isfinite(value):
        if average == "pooled":
            warn_user(
                "expected a positive probability of what happened for every label, got 0, so the log-loss is infinite; give the "
                "calibrator a floor",
                ZeroProbabilityWarning,
            )
        return _label_figure(data, metric, average, value, None, "an infinite log-loss has no interval")
    if why is not None:
        return _label_figure(data, metric, average, value, None, why)
    scores = row_scores(label_terms(data, metric), data, average)
    found = mean_interval(scores, groups=data.groups, level=level, weight=data.weights)
    return _label_figure(data, metric, average, value, (found.low, found.high))


def _label_figure(
    data: MultiLabelPredictions,
    metric: str,
    average: str,
    value: float,
    ends: tuple[float, float] | None,
    refused: Any = None,
    null_mean: float | None = None,
) -> MultiLabelRow:
    n = data.count if data.weight_kind == "frequency" else len(data)
    low, high = (None, None) if ends is None else ends
    why = None if ends is not None else refused
    return MultiLabelRow(metric, average, value, low, high, null_mean, n, len(data.names), why)


def _null_mean(data: MultiLabelPredictions) -> float:
    """Return the mean of the macro ECE over calibrated models: of each bin's gap the mean of a folded normal.

    The mean of a sum does not depend on how the labels of a row depend on each other.
    """
    weight, p, columns = data.row_weights[:, None] * data.known, data.probs.double(), len(data.names)
    size = weight if data.weight_kind == "frequency" else weight.square()
    # E |N(0, σ²)| = σ √(2 / π), with σ² = Σ w² p (1 − p) of each bin; a count w of repeated rows enters once
    variance = torch.bincount(homes(p), weights=(size * p * (1 - p)).reshape(-1), minlength=columns * BINS)
    mean = variance.view(columns, -1).sqrt().sum(dim=1) * math.sqrt(2 / math.pi) / weight.sum(dim=0)
    return float(mean.mean())


def homes(p: Tensor) -> Tensor:
    """Return the bin of each probability (N, L) among the 15 L bins of all labels, flat (N · L,)."""
    return EqualWidth(BINS).assign(p.reshape(-1)) + BINS * torch.arange(p.shape[1], device=p.device).repeat(len(p))


def _weighted(terms: Tensor, weight: Tensor) -> Tensor:
    """Return Σ weight · terms (L,), where a weight of 0 leaves out an infinite term."""
    return torch.where(weight > 0, weight * terms, 0.0).sum(dim=0)


def label_terms(data: MultiLabelPredictions, metric: str) -> Tensor:
    """Return one number (N, L) for each label of each row, float64, 0 where it is missing.

    NLL: −log of the probability of what happened, from the logits, so that no margin rounds it to 0 or ∞. Brier: (p − y)².
    Bias: p − y.
    """
    y = data.labels == 1 if data.labels is not None else data.known
    if metric == "NLL":
        z = data.logits.double()
        found = F.softplus(torch.where(y, -z, z))
    else:
        gap = data.probs.double() - y.double()
        found = gap.square() if metric == "Brier" else gap
    return torch.where(data.known, found, 0.0)


def row_scores(terms: Tensor, data: MultiLabelPredictions, average: Average) -> Tensor:
    """Return one number (N,) a row whose weighted mean is the metric, and which vary as the metric's linear part does.

    Pooled: m + (Σ_j known_ij (t_ij − m)) W / Σ_j W_j, with W the rows' mass and W_j that of rows in which label j is known.
    Macro: m + 1/L · Σ_j known_ij (t_ij − m_j) W / W_j. How many labels are known varies with the rows: it is in them.
    """
    known = data.known.double()
    weight = data.row_weights
    mass = weight @ known
    means = (weight @ terms) / mass
    if average == "macro":
        value = means.mean()
        return value + ((terms - means) * known * (weight.sum() / mass)).mean(dim=1)
    value = (weight @ terms).sum() / mass.sum()
    return value + ((terms - value) * known).sum(dim=1) * (weight.sum() / mass.sum())


@dataclass(frozen=True, kw_only=True)
class LabelRow(TestedPart):
    """The figures of one label; None where there are too few rows.

    Args:
        label: Its name.
        positives: Rows in which it is 1, by their counts if they have any.
        nll: Mean log-loss in nats.
        brier: Mean (p − y)².
        low: Lower end of the gap's interval, for this label alone.
        high: Upper end.
        all_low: Lower end of an interval that holds for all labels at once.
        all_high: Upper end.
        p: Of the gap, if the label were calibrated; two-sided.
    """

    label: str
    positives: int
    nll: float
    brier: float
    low: float | None = None
    high: float | None = None
    all_low: float | None = None
    all_high: float | None = None
    p: float | None = None

    @property
    def p_shown(self) -> str:
        """The adjusted p-value as tables show it."""
        p = self.p_adjusted
        return "–" if p is None else "<0.0001" if p < 1e-4 else f"{p:.2g}"


@dataclass(frozen=True)
class LabelTable:
    """What ``label_table`` found.

    Args:
        rows: One a label, the strongest evidence first; then those with too few rows or expected events to be tested.
        p_value: Of the worst label: that no label is worse calibrated than chance.
        level: Of the intervals.

    Examples:
        >>> LabelTable((), 1.0, 0.95).verdict
        'No label has enough rows and events to be tested.'
    """

    rows: tuple[LabelRow, ...]
    p_value: float
    level: float

    _repr_html_ = to_html

    @property
    def tested(self) -> tuple[LabelRow, ...]:
        """The labels that were tested."""
        return tuple(row for row in self.rows if row.p_adjusted is not None)

    @property
    def verdict(self) -> str:
        """The result of the test in words."""
        if not self.tested:
            return "No label has enough rows and events to be tested."
        return verdict_on(self.tested, self.tested[0].label, unit="label", few="rare labels", level=self.level)

    def __str__(self) -> str:
        return self.verdict


@checked
def label_table(
    predictions: MultiLabelPredictions,
    *,
    minimum: Count = 100,
    draws: Annotated[int, Integer(100, MOST_DRAWS)] = 10_000,
    seed: Seed = 0,
    level: Level = 0.95,
) -> LabelTable:
    """Return the calibration of every label, with one test for the worst of them.

    A label's statistic is its gap over the standard error that it has if it is calibrated, which follows from its probabilities
    alone, taken to the normal distribution by its skewness (Cornish & Fisher). How the labels of a row vary together is not known
    even of a calibrated model: their correlations are those of the residuals p − y. The largest statistic is compared with that
    of ``draws`` normal ones with these correlations: the chance of a false alarm for any label is at most 1 − ``level``. The
    intervals of a gap are corrected for the skewness of its rows (Hall), except with sampling weights.

    Args:
        predictions: Labelled predictions of several labels a row; ``groups`` and weights count.
        minimum: Fewest rows of a label that is tested; those with fewer than 5 expected events are not tested either.
        draws: Sets of statistics drawn.
        seed: Same seed, same numbers.
        level: Coverage of the intervals.

    Raises:
        InputError: If a label is missing in all rows, or there are more than 2,000.
        NoIntervalError: For fewer than ten groups of rows.

    Examples:
        >>> from calibrant import MultiLabelPredictions
        >>> y = [[1, 0]] * 70 + [[0, 1]] * 70 + [[0, 0]] * 60
        >>> found = label_table(MultiLabelPredictions.from_probs([[0.35, 0.8]] * 200, y, names=["cat", "dog"]))
        >>> found.rows[0].label, round(found.rows[0].gap, 2), found.rows[0].p_adjusted < 0.001
        ('dog', 0.45, True)

    References:
        Westfall & Young 1993 (the maximum statistic); Cornish & Fisher 1938; Hall 1992, Eq. 2.5 (intervals).
    """
    data = need_every_label(counted(predictions))
    need_groups(data.groups, what="the table of labels")
    pairs = data.pooled()
    whole = EventRows.of(pairs)
    # one label has one pair a row: within a label rows are independent unless they have groups of their own
    rows = whole if data.groups is not None else replace(whole, cluster=None)
    (parts,) = partitions_of({"label": (pairs.features or {})["label"]}, pairs, depth=1, bins=2)
    kept = [
        one for at in range(len(parts.names)) if (one := GroupSums.of(rows, parts, at)).n >= minimum and enough(one)
    ]
    tested: list[Subgroup] = []
    if kept:
        tested = rows_of(kept, rows, _covariance(whole, rows, kept), draws=draws, seed=seed, level=level)
    made = _label_rows_of(data, {row.columns[0][1]: row for row in tested})
    return LabelTable(made, tested[0].p_adjusted if tested else 1.0, level)


def _covariance(whole: EventRows, rows: EventRows, kept: list[GroupSums]) -> Floats:
    """Return the covariance of the labels' gaps if calibrated: their own variances, the residuals' correlations."""
    if rows.cluster is not None:
        return covariance_of(rows, kept)
    # how labels go together is measured over rows; the variance of each label if calibrated is known
    clustered = covariance_of(whole, [GroupSums.of(whole, one.parts, one.at) for one in kept])
    spread = np.sqrt(np.maximum(np.diag(clustered), 1e-300))
    own = np.sqrt([one.noise for one in kept])
    found = clustered * np.outer(own / spread, own / spread)
    np.fill_diagonal(found, own**2)
    return np.asarray(found)


def _label_rows_of(data: MultiLabelPredictions, tested: dict[str, Subgroup]) -> tuple[LabelRow, ...]:
    """Return one row a label: the tested ones first, in their order, then the others, the largest gap first."""
    sums = LabelSums.of(data)
    frequency = data.weight_kind == "frequency"
    count = sums.mass if frequency else sums.count
    positives = (
        sums.positives if frequency else (torch.zeros(()) if data.labels is None else (data.labels == 1).sum(dim=0))
    )
    nll, brier, bias, ece = (sums.means(metric).tolist() for metric in ("NLL", "Brier", "Bias", "ECE"))
    rate = (sums.positives / sums.mass).tolist()
    columns = zip(rate, bias, nll, brier, ece, strict=True)
    plain = {
        name: LabelRow(
            label=name,
            n=int(count[at]),
            positives=int(positives[at]),
            confidence=y + gap,
            rate=y,
            gap=gap,
            nll=loss,
            brier=square,
            ece=error,
        )
        for at, (name, (y, gap, loss, square, error)) in enumerate(zip(data.names, columns, strict=True))
    }
    ends = ("low", "high", "all_low", "all_high", "ece_low", "ece_high", "p", "p_adjusted", "evidence")
    made = [replace(plain[name], **{end: getattr(row, end) for end in ends}) for name, row in tested.items()]
    # what was not tested has no order by evidence
    others = sorted((row for name, row in plain.items() if name not in tested), key=lambda row: -abs(row.gap))
    return (*made, *others)
