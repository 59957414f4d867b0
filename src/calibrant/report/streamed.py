"""The content of a report on a model, from sums over rows that need not fit in memory."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from calibrant._core.check import check_count, refuse
from calibrant.binning import BinTable, EqualWidth
from calibrant.calibrators import Calibrator
from calibrant.metrics import ECE, MCE, NLL, Accuracy, Brier, ClasswiseECE, DebiasedECE, Metric, SumMetric
from calibrant.plot.arguments import check_label, check_names
from calibrant.plot.diagrams import diagram_from
from calibrant.plot.risk import Curve
from calibrant.report.advice import NOTHING, Gain, mean_gain
from calibrant.report.diagnosis import BINS, PANELS, Part, worst_first
from calibrant.report.for_whom import found_for_whom
from calibrant.report.model import Subject
from calibrant.report.render import Section, before_after
from calibrant.report.streamed_audit import audit_passes, audit_streamed, has_features
from calibrant.report.sums import (
    ByGroup,
    Digest,
    FineCells,
    GroupSums,
    LossGain,
    Moments,
    MomentSums,
    mass_table,
    null_tables,
)
from calibrant.report.tables import Row, in_percent, label_of
from calibrant.report.verdict import MARGIN, check_margin, verdict_of
from calibrant.report.words import summary
from calibrant.scale.checkpoint import calibrator_identity, check_calibrator
from calibrant.scale.execute import Executor, check_execution, in_turn
from calibrant.scale.rows import ParquetRows
from calibrant.scale.stream import Progress, States, metric_passes, sums_of
from calibrant.statistics import error_interval, normal_quantile, wilson

__all__ = ["diagnose_streamed"]

LEVEL = 0.95
_CURVE_POINTS = 200
_MEANS: list[Metric] = [Accuracy(), NLL(), Brier()]
_BINNED: list[ECE | MCE | DebiasedECE] = [ECE(EqualWidth(BINS)), MCE(EqualWidth(BINS)), DebiasedECE(EqualWidth(BINS))]
_ECE, _CLASSES = ECE(EqualWidth(BINS)), ClasswiseECE(EqualWidth(BINS))
_OMITTED = (
    "These figures are sums over rows read from disk in pieces. Figures that need all rows at once are left out: the ECE in "
    "equal-mass bins, SmoothECE, AURC, the limit of the class-by-class error, the gain over plain temperature scaling, and "
    "intervals and limits for rows with groups."
)
_MANY_GROUPS = "There are more than 10,000 groups, so figures by group are left out."


def diagnose_streamed(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    calibrator: Calibrator | None = None,
    class_names: Sequence[str] | None = None,
    source: str | None = None,
    split: str = "all",
    draws: int = 1000,
    margin: float = MARGIN,
    checkpoint: str | os.PathLike[str] | None = None,
    executor: Executor = in_turn,
    progress: Progress | None = None,
) -> Section:
    """Return the content of a report on a Parquet data set of any size, for ``report.write_report([section], path)``.

    One pass over the rows, one more with the calibrator, and one where features lie beside the rows: groups are tested on all
    of at most a million rows, else on a random sample of about a million. Counts equal those computed in memory, sums agree within
    1e-12, and limits if calibrated are simulated from the same cells as in memory. Intervals are Wilson's for the
    accuracy, normal for the other means, and for the ECE the same as in memory.

    Args:
        path: A file or a folder with labels, as for ``ParquetRows``.
        name: Name of the model; None takes the path's last part.
        calibrator: A fitted calibrator to report on as well, or None. It must not have been fitted on these rows.
        class_names: K names, or None for the class indices.
        source: Source of the rows as printed in the report; None takes the path.
        split: Name of the split.
        draws: Simulation draws for limits if calibrated; 0 leaves them and the intervals out.
        margin: ECE above which a miscalibration is called large, in (0, 1).
        checkpoint: A JSON file that is updated after every shard, and in the same folder one for the pass with the
            calibrator and one for that of groups; a repeated call resumes from them. They are removed at the end.
        executor: Runs the shards: ``in_turn``, ``processes(n)`` or ``ray_cluster(address)``.
        progress: Called with (rows done, total rows) of all passes together.

    Raises:
        InputError: If labels are missing, class names are not K, or data are not valid: file, row group and row are named.
        FileFormatError: If a file is broken, or the checkpoint belongs to other data.
    """
    check_margin(margin)
    check_count(draws, name="draws", low=0)
    check_label(name, name="name")
    check_label(source, name="source")
    check_calibrator(calibrator)
    check_execution(executor, progress)
    rows = _unweighted(ParquetRows(path))
    shown = Subject(name or Path(path).name, calibrator, source or os.fspath(path), split)
    class_names = check_names(class_names, classes=rows.classes)
    passes = [None] if calibrator is None else [None, calibrator]
    gain = [] if calibrator is None else [LossGain(calibrator_identity(calibrator), calibrator)]
    metrics: list[list[SumMetric[Any]]] = [[*_metrics(), Digest(), *gain], _metrics()]
    done, total = [], (len(passes) + has_features(rows)) * rows.rows
    for i, chosen in enumerate(passes):
        file = _second_file(checkpoint, "after") if chosen else checkpoint
        report = None if progress is None else _PassProgress(progress, i * rows.rows, total)
        done.append(metric_passes(rows, metrics[i], chosen, executor=executor, checkpoint=file, progress=report))
    states = [sums_of(done[i], metrics[i], chosen) for i, chosen in enumerate(passes)]
    of_all = None if progress is None else _PassProgress(progress, len(passes) * rows.rows, total)
    file = _second_file(checkpoint, "groups")
    sample = audit_passes(rows, calibrator, executor=executor, checkpoint=file, progress=of_all)
    groups = audit_streamed(sample, calibrator)
    for one in (*done, *([] if sample is None else [sample])):
        one.remove()
    section = _section(shown, states, class_names, draws=draws, margin=margin)
    return replace(section, audit=groups, words=section.words + found_for_whom(groups))


def _metrics() -> list[SumMetric[Any]]:
    return [*(Moments(metric) for metric in _MEANS), _ECE, _CLASSES, FineCells(), ByGroup()]


def _second_file(checkpoint: str | os.PathLike[str] | None, word: str) -> Path | None:
    return None if checkpoint is None else Path(checkpoint).with_suffix(f".{word}.json")


@dataclass(frozen=True)
class _PassProgress:
    """Reports the progress of one of several passes as that of all."""

    report: Progress
    before: int
    total: int

    def __call__(self, done: int, _: int = 0) -> None:
        self.report(self.before + done, self.total)


def _section(
    subject: Subject, states: list[States], names: Sequence[str] | None, *, draws: int, margin: float
) -> Section:
    calibrators = (None, subject.calibrated_with)
    figures = [_rows(subject, state, name, draws=draws) for state, name in zip(states, calibrators, strict=False)]
    last, edges = states[-1], _edges()
    histograms = [diagram_from(state[_ECE], edges=edges) for state in states]
    masses = [mass_table(state[FineCells()]) for state in states]
    diagrams = [diagram_from(table, edges=ends) for table, ends in masses]
    classes, groups = _classes(states, names), _groups(states)
    tables = {"class": _class_tables(last), "group": dict(last[ByGroup()].tables())}
    panels = {
        kind: [(part.name, diagram_from(tables[kind][part.key], edges=edges)) for part in parts[:PANELS]]
        for kind, parts in (("class", classes), ("group", groups))
    }
    verdicts = [verdict_of(rows, found, margin=margin) for rows, found in zip(figures, diagrams, strict=True)]
    return Section(
        model=subject,
        before=figures[0],
        after=figures[1] if len(figures) > 1 else [],
        diagrams=before_after(diagrams),
        histograms=before_after(histograms),
        verdicts=before_after(verdicts),
        gains=_gains(states[0]),
        margin=margin,
        curves=[(label, _curve(state[FineCells()])) for label, state in zip(("before", "after"), states, strict=False)],
        classes=classes,
        groups=groups,
        panels=panels,
        words=summary(subject, figures[0], figures[1] if len(figures) > 1 else [], diagrams[0]),
        fingerprint=states[0][Digest()].fingerprint,
        remarks=[_OMITTED] + ([_MANY_GROUPS] if last[ByGroup()].dropped else []),
    )


def _gains(states: States) -> list[Gain]:
    """Return the calibrator's gain over doing nothing; none for rows with groups, for which its interval does not hold."""
    groups: GroupSums = states[ByGroup()]
    if len(groups.keys) or groups.dropped:
        return []
    sums = [state for metric, state in states.items() if isinstance(metric, LossGain)]
    found = [
        mean_gain(one.total, one.squares, one.rows, against=NOTHING, quantile=normal_quantile((1 + LEVEL) / 2))
        for one in sums
    ]
    return [gain for gain in found if gain is not None]


def _rows(subject: Subject, states: States, calibrator: str | None, *, draws: int) -> list[Row]:
    """Return a row for each metric of the panel that is a sum."""
    table: BinTable = states[_ECE]
    groups: GroupSums = states[ByGroup()]
    clustered = bool(len(groups.keys) or groups.dropped)
    # labels drawn independently by row would give clustered rows a limit that they exceed too often
    nulls = null_tables(states[FineCells()], table, draws=draws) if draws and not clustered else None

    def row(
        metric: Metric,
        value: float,
        ends: tuple[float, float] | None,
        null_high: float | None = None,
        null_mean: float | None = None,
    ) -> Row:
        low, high = ends or (None, None)
        place = (subject.source or subject.name, subject.split, calibrator, repr(metric))
        return Row(
            *place, value, low, high, null_high, int(table.total), label_of(metric), in_percent(metric), null_mean
        )

    found = []
    for metric in _MEANS:
        sums: MomentSums = states[Moments(metric)]
        ends = _mean_interval(metric, sums) if draws and not clustered else None
        found.append(row(metric, sums.total / sums.rows, ends))
    for binned in _BINNED:
        null = None if nulls is None else binned.errors(nulls)
        level = None if null is None else float(torch.quantile(null, (1 + LEVEL) / 2))
        ends = None
        if null is not None and not clustered and binned == _ECE:
            interval = error_interval(table, null, level=LEVEL)
            ends = interval.low, interval.high
        mean = None if null is None else float(null.mean())
        found.append(row(binned, binned.value(table), ends, level, mean))
    found.append(row(_CLASSES, _CLASSES.value(states[_CLASSES]), None))
    return found


def _mean_interval(metric: Metric, sums: MomentSums) -> tuple[float, float] | None:
    if isinstance(metric, Accuracy):
        interval = wilson(round(sums.total), sums.rows, level=LEVEL)
        return interval.low, interval.high
    mean, half = sums.total / sums.rows, normal_quantile((1 + LEVEL) / 2) * sums.error
    return (mean - half, mean + half) if sums.rows > 1 and half < float("inf") else None


def _edges() -> list[float]:
    return [float(edge) for edge in EqualWidth(BINS).edges(torch.zeros(1)).tolist()]


def _unweighted(rows: ParquetRows) -> ParquetRows:
    if rows.weight_kind is not None:
        remedy = (
            "its limits if calibrated are drawn from counts of rows: leave that column out, evaluate these rows by "
            "evaluate_streamed, or report on a file of them, which is read whole"
        )
        raise refuse("rows without weights for a report on streamed data", f"{rows.weight_kind} weights", remedy)
    return rows


def _class_tables(states: States) -> dict[int, BinTable]:
    """Return the bins of every class's probability."""
    flat: BinTable = states[_CLASSES].table
    sums = zip(*(part.view(-1, BINS) for part in (flat.count, flat.sum_p, flat.sum_y)), strict=True)
    return {k: BinTable(count, p, y, flat.total) for k, (count, p, y) in enumerate(sums)}


def _classes(states: list[States], names: Sequence[str] | None) -> list[Part]:
    old = _class_tables(states[0])
    new = _class_tables(states[1]) if len(states) > 1 else None
    parts = []
    for k, table in old.items():
        expected, observed = float(table.sum_p.sum()) / table.total, float(table.sum_y.sum()) / table.total
        name = str(k) if names is None else str(names[k])
        rows = round(float(table.sum_y.sum()))
        parts.append(Part(name, rows, expected, observed, table.error(), new[k].error() if new else None, k))
    return worst_first(parts)


def _groups(states: list[States]) -> list[Part]:
    new = dict(states[1][ByGroup()].tables()) if len(states) > 1 else None
    parts = []
    for key, table in states[0][ByGroup()].tables():
        expected, observed = float(table.sum_p.sum()) / table.total, float(table.sum_y.sum()) / table.total
        after = new[key].error() if new else None
        parts.append(Part(str(key), table.total, expected, observed, table.error(), after, key))
    return worst_first(parts)


def _curve(cells: BinTable) -> Curve:
    """Return points of the risk-coverage curve at the cells' edges, where it is exact, most confident first."""
    count, wrong = cells.count.flip(0), (cells.count - cells.sum_y).flip(0)
    filled = torch.nonzero(count)[:, 0]
    taken, errors = count[filled].cumsum(0).double(), wrong[filled].cumsum(0)
    if len(filled) > _CURVE_POINTS:  # points spaced evenly in coverage, the last one included
        target = torch.linspace(0, 1, _CURVE_POINTS, dtype=torch.float64)[1:] * cells.total
        keep = torch.unique(torch.searchsorted(taken, target).clamp_max(len(filled) - 1))
        taken, errors = taken[keep], errors[keep]
    return Curve((taken / cells.total).tolist(), (errors / taken).tolist())
