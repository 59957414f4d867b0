"""Predictions with several labels a row: binary metrics pooled and averaged over labels, and one test for the worst label."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from calibrant._core.check import check_kind
from calibrant._core.constraints import MOST_DRAWS, Count, Integer, Level, Seed, checked
from calibrant._core.notebook import to_html
from calibrant._core.warn import warn_user
from calibrant.data.multilabel import MultiLabel
from calibrant.data.pairs import Pairs
from calibrant.data.predictions import Predictions
from calibrant.errors import NoIntervalError, ZeroProbabilityWarning
from calibrant.evaluate._group_sums import EventRows, Floats, GroupSums, covariance_of, partitions_of
from calibrant.evaluate._label_sums import FIGURES, LabelSums, RowSums
from calibrant.evaluate.subgroups import Subgroup, TestedPart, enough, rows_of, verdict_on
from calibrant.statistics.enough import need_groups

_MADE = "make them with MultiLabel.from_logits(logits, labels)"


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
        n: Rows.
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


@checked
def multilabel_panel(
    predictions: MultiLabel,
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
        >>> from calibrant import MultiLabel
        >>> data = MultiLabel.from_probs([[0.8, 0.3], [0.8, 0.3]] * 50, [[1, 0], [1, 1]] * 25 + [[1, 0], [0, 0]] * 25)
        >>> rows = multilabel_panel(data)
        >>> [(row.metric, row.average, round(row.value, 3)) for row in rows][4:6]
        [('Bias', 'pooled', 0.05), ('Bias', 'macro', 0.05)]
    """
    data = counted(predictions)
    return panel_of(lambda: [data], draws=draws, seed=seed, level=level)


def panel_of(
    pieces: Callable[[], Iterable[MultiLabel]], *, draws: int, seed: int = 0, level: float = 0.95
) -> list[MultiLabelRow]:
    """Return the panel of labelled rows that are read twice, the second time for the intervals alone.

    Args:
        pieces: Yields the rows, in pieces of any size; called once a pass.
        draws: As in ``multilabel_panel``.
        seed: As there.
        level: As there.
    """
    sums = LabelSums.of(pieces())
    why = sums.few_events if draws else "left out"
    rows = None if why is not None else RowSums.of(pieces(), sums)
    if not math.isfinite(sums.value("NLL", "pooled")):
        warn_user(
            "expected a positive probability of what happened for every label, got 0, so the log-loss is infinite; give the "
            "calibrator a floor",
            ZeroProbabilityWarning,
        )

    made = []
    for metric, average in FIGURES:
        value, ends, refused = sums.value(metric, average), None, why
        if (metric, average) == ("ECE", "macro"):
            refused = "more bins than an interval is known for" if draws else "left out"
        elif not math.isfinite(value):
            refused = "an infinite log-loss has no interval"
        elif rows is not None:
            try:
                ends = rows.interval(metric, average, value, draws=max(draws, 2), seed=seed, level=level)
            except NoIntervalError as error:
                refused = str(error)
        low, high = (None, None) if ends is None else (ends.low, ends.high)
        null_mean = sums.null_mean if (metric, average) == ("ECE", "macro") else None
        made.append(MultiLabelRow(metric, average, value, low, high, null_mean, sums.n, len(sums.names), refused))
    return made


def counted(predictions: Any) -> MultiLabel:
    """Return predictions of several labels a row without rows of weight 0.

    Raises:
        InputError: If they are anything else.
    """
    remedy = _MADE
    if isinstance(predictions, Predictions | Pairs):
        remedy = "use panel and subgroups for one class a row, or make MultiLabel where several can be true"
    return check_kind(predictions, MultiLabel, name="predictions", remedy=remedy).counted


@dataclass(frozen=True, kw_only=True)
class LabelRow(TestedPart):
    """The figures of one label; None where there are too few rows.

    Args:
        label: Its name.
        positives: Rows in which it is 1.
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
    predictions: MultiLabel,
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
    intervals of a gap are corrected for the skewness of its rows (Hall), except with weights.

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
        >>> from calibrant import MultiLabel
        >>> y = [[1, 0]] * 70 + [[0, 1]] * 70 + [[0, 0]] * 60
        >>> found = label_table(MultiLabel.from_probs([[0.35, 0.8]] * 200, y, names=["cat", "dog"]))
        >>> found.rows[0].label, round(found.rows[0].gap, 2), found.rows[0].p_adjusted < 0.001
        ('dog', 0.45, True)

    References:
        Westfall & Young 1993 (the maximum statistic); Cornish & Fisher 1938; Hall 1992, Eq. 2.5 (intervals).
    """
    data = counted(predictions)
    sums = LabelSums.of([data])
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
    made = _label_rows_of(data, sums, {row.columns[0][1]: row for row in tested})
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


def _label_rows_of(data: MultiLabel, sums: LabelSums, tested: dict[str, Subgroup]) -> tuple[LabelRow, ...]:
    """Return one row a label: the tested ones first, in their order, then the others, the largest gap first."""
    positives = (data.need_labels() == 1).sum(dim=0)
    nll, brier, bias, ece = (sums.means(metric).tolist() for metric in ("NLL", "Brier", "Bias", "ECE"))
    rate = (sums.positives / sums.mass).tolist()
    columns = zip(rate, bias, nll, brier, ece, strict=True)
    plain = {
        name: LabelRow(
            label=name,
            n=int(sums.count[at]),
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
