"""The content of a report on a model, from sums over rows that need not fit in memory."""

import hashlib
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import check_count, refuse
from calibrant.binning import BinTable, EqualWidth
from calibrant.calibrators import Calibrator
from calibrant.data.checks import Data, need_predictions
from calibrant.data.predictions import BinaryPairs, Predictions
from calibrant.data.record import Features, is_beside, join_columns
from calibrant.metrics import ECE, MCE, NLL, Accuracy, Brier, ClasswiseECE, DebiasedECE, Metric, SumMetric
from calibrant.plot.arguments import check_label, check_names
from calibrant.plot.diagrams import diagram_from
from calibrant.plot.risk import Curve
from calibrant.report.advice import NOTHING, Gain, mean_gain
from calibrant.report.events import EventCells, ReportSum, mass_table
from calibrant.report.groups_report import Audit, audit, unread
from calibrant.report.model import Subject, name_of_class
from calibrant.report.section import BINS, Binned, Figures, Section, equal_edges, section_of
from calibrant.report.tables import Row, in_percent, label_of
from calibrant.report.verdict import MARGIN, check_margin
from calibrant.rows.source import added
from calibrant.scale.checkpoint import calibrator_identity, check_calibrator
from calibrant.scale.execute import Executor, check_execution, in_turn
from calibrant.scale.passes import ParquetSource, Passes
from calibrant.scale.rows import ParquetRows, Shard
from calibrant.scale.stream import Moments, Progress, States, metric_passes, one_pass, sums_of
from calibrant.statistics.interval import normal_quantile
from calibrant.statistics.means import FEWEST_COMPARED
from calibrant.statistics.null import CELLS

__all__ = ["diagnose_streamed"]

LEVEL = 0.95
_CURVE_POINTS = 200
_MEANS: list[Metric] = [Accuracy(), NLL(), Brier()]
_BINNED: list[ECE | MCE | DebiasedECE] = [ECE(EqualWidth(BINS)), MCE(EqualWidth(BINS)), DebiasedECE(EqualWidth(BINS))]
_ECE, _CLASSES = ECE(EqualWidth(BINS)), ClasswiseECE(EqualWidth(BINS))
_EVENT = Moments(_ECE, event=True)  # of the probability of the second of two classes
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
    1e-12, and intervals and limits if calibrated are those of memory, from the same sums.

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
    metrics: list[list[SumMetric[Any]]] = [[*_metrics(rows.classes), Digest(), *gain], _metrics(rows.classes)]
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
    measured = [
        _figures(*_rows(shown, state, with_, draws=draws), state)
        for state, with_ in zip(states, (None, shown.calibrated_with), strict=False)
    ]
    return section_of(
        shown,
        measured,
        class_name=lambda k: name_of_class(k, class_names, event=rows.classes == 2),
        margin=margin,
        gains=_gains(states[0], states[-1]),
        fingerprint=states[0][Digest()].fingerprint,
        remarks=[_OMITTED] + ([_MANY_GROUPS] if states[-1][ByGroup()].dropped else []),
        audit=groups,
    )


def _metrics(classes: int) -> list[SumMetric[Any]]:
    return [
        *(Moments(metric) for metric in (*_MEANS, *_BINNED)),
        _ECE,
        _CLASSES,
        FineCells(),
        ByGroup(),
        EventCells(),
        *([_EVENT] if classes == 2 else []),
    ]


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


def _figures(rows: list[Row], event: Row | None, states: States) -> Figures:
    """Return the figures of rows on disk, from their sums; ``event`` is the ECE of an event's probability."""
    cells, flat = states[FineCells()], states[_CLASSES].table
    mass, ends = mass_table(cells)
    sums = zip(*(part.view(-1, BINS) for part in (flat.count, flat.sum_p, flat.sum_y)), strict=True)
    classes = [BinTable(count, p, y, flat.total) for count, p, y in sums]
    return Figures(
        rows,
        diagram_from(mass, edges=ends),
        diagram_from(states[_ECE], edges=equal_edges()),
        _curve(cells),
        {k: Binned(table, round(float(table.sum_y.sum()))) for k, table in enumerate(classes)},
        {key: Binned(table, int(table.total)) for key, table in states[ByGroup()].tables()},
        states[EventCells()],
        event_ece=event,
        independent=not _clustered(states),
    )


def _clustered(states: States) -> bool:
    groups: GroupSums = states[ByGroup()]
    return bool(len(groups.keys) or groups.dropped)


def _gains(states: States, after: States) -> list[Gain]:
    """Return the calibrator's gain over doing nothing; none for rows with groups, or few errors, for which it does not hold."""
    wrong = min(float(one[Moments(_MEANS[0])].decided[0, 0]) for one in (states, after))
    if _clustered(states) or wrong < FEWEST_COMPARED:
        return []
    sums = [state for metric, state in states.items() if isinstance(metric, LossGain)]
    found = [
        mean_gain(one.total, one.squares, one.rows, against=NOTHING, quantile=normal_quantile((1 + LEVEL) / 2))
        for one in sums
    ]
    return [gain for gain in found if gain is not None]


def _rows(subject: Subject, states: States, calibrator: str | None, *, draws: int) -> tuple[list[Row], Row | None]:
    """Return a row for each metric of the panel that is a sum, and the ECE of the event's probability of two classes."""
    # labels drawn independently by row would give clustered rows a limit that they exceed too often
    uncertain = draws > 0 and not _clustered(states)

    def row(metric: Metric, value: float, ends: Mapping[str, float]) -> Row:
        place = (subject.source or subject.name, subject.split, calibrator, repr(metric))
        low, high, limit, mean = (ends.get(name) for name in ("low", "high", "null_high", "null_mean"))
        n = int(states[_ECE].total)
        return Row(*place, value, low, high, limit, n, label_of(metric), in_percent(metric), mean)

    def measured(moments: Moments) -> Row:
        state = states[moments]
        ends = moments.figures(state, draws=draws, seed=0, level=LEVEL) if uncertain else {}
        return row(moments.metric, moments.value(state), ends)

    found = [measured(Moments(metric)) for metric in (*_MEANS, *_BINNED)]
    found.append(row(_CLASSES, _CLASSES.value(states[_CLASSES]), {}))
    return found, measured(_EVENT) if _EVENT in states else None


def _unweighted(rows: ParquetRows) -> ParquetRows:
    if rows.weight_kind is not None:
        remedy = (
            "its limits if calibrated are drawn from counts of rows: leave that column out, evaluate these rows by "
            "evaluate_streamed, or report on a file of them, which is read whole"
        )
        raise refuse("rows without weights for a report on streamed data", f"{rows.weight_kind} weights", remedy)
    return rows


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


MOST_GROUPS = 10_000  # most groups with sums of their own: a million users would exceed the memory bound
_OCTAVES, _STEPS = 43, 16  # cells next to p = 1: 1 − p from 2⁻¹⁰ down to 2⁻⁵³, sixteen per octave


@dataclass(frozen=True)
class MomentSums:
    """Sums over rows of a number and of its square.

    Args:
        total: Σ x.
        squares: Σ x².
        rows: Number of rows.
    """

    total: float
    squares: float
    rows: int

    def __add__(self, other: "MomentSums") -> "MomentSums":
        return MomentSums(self.total + other.total, self.squares + other.squares, self.rows + other.rows)

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        mean = self.total / self.rows
        return float(np.sqrt(max(self.squares / self.rows - mean**2, 0.0) / self.rows))


@dataclass(frozen=True)
class LossGain(ReportSum):
    """Sums of the reduction of each row's log-loss by a calibrator.

    Args:
        identity: Hash of the calibrator, which identifies this sum in a checkpoint and between processes.
        calibrator: The calibrator.
    """

    identity: str
    calibrator: Calibrator = field(compare=False, repr=False)  # its hash says which it is

    def state(self, data: Data) -> MomentSums:
        """Return the sums of ``data``."""
        predictions = need_predictions(data, metric=self)
        after = predictions.calibrated_by(self.calibrator)
        gain = (predictions.nll - after.nll).double()
        return MomentSums(float(gain.sum()), float(gain.square().sum()), gain.shape[0])


@dataclass(frozen=True)
class FineCells(ReportSum):
    """Counts and sums in cells of confidence: the 15 bins cut at every 1/1024, and above 1 − 1/1024 by octaves of 1 − p.

    Together they give points of the risk-coverage curve, exact at the cells' edges.
    """

    def state(self, data: Data) -> BinTable:
        """Return the table of the cells."""
        p = data.confidence.double()
        fine = (p * CELLS).long().clamp(0, CELLS - 1)
        # both indices are non-decreasing in p and never increase at the same p, so their sum identifies the pair
        cell = fine + EqualWidth(BINS).assign(p)
        octave = torch.log2((1 - p).clamp(2.0**-53, 2.0**-10)).neg() - 10
        last = fine == CELLS - 1
        cell = cell + torch.where(last, (octave * _STEPS).long().clamp(0, _OCTAVES * _STEPS), 0)
        return BinTable.from_pairs(cell, p, data.correct, bins=_cells())


def _cells() -> int:
    return CELLS + BINS - 1 + _OCTAVES * _STEPS


@dataclass(frozen=True, eq=False)
class GroupSums:
    """The bin table of each group of rows.

    Args:
        keys: (G,) int64 groups, ascending.
        count: (G, B) int64 rows.
        sum_p: (G, B) float64 confidences.
        sum_y: (G, B) float64 correct predictions.
        rows: Total rows.
        dropped: 1 if there were too many groups, so that none is kept, else 0.
    """

    keys: Tensor
    count: Tensor
    sum_p: Tensor
    sum_y: Tensor
    rows: int
    dropped: int = 0

    @classmethod
    def none(cls, rows: int, *, dropped: int) -> Self:
        """Return sums without any group."""
        empty = torch.zeros(0, BINS, dtype=torch.float64)
        return cls(torch.zeros(0, dtype=torch.int64), empty.long(), empty, empty, rows, dropped)

    def __add__(self, other: "GroupSums") -> "GroupSums":
        rows, dropped = self.rows + other.rows, max(self.dropped, other.dropped)
        keys, place = torch.unique(torch.cat([self.keys, other.keys]), return_inverse=True)
        if dropped or len(keys) > MOST_GROUPS:
            return GroupSums.none(rows, dropped=1)

        def joined(name: str) -> Tensor:
            parts = torch.cat([getattr(self, name), getattr(other, name)])
            return torch.zeros(len(keys), BINS, dtype=parts.dtype).index_add_(0, place, parts)

        return GroupSums(keys, joined("count"), joined("sum_p"), joined("sum_y"), rows, dropped)

    def tables(self) -> list[tuple[int, BinTable]]:
        """Return each group with its bins."""
        sums = zip(self.keys.tolist(), self.count, self.sum_p, self.sum_y, strict=True)
        return [(key, BinTable(count, p, y, int(count.sum()))) for key, count, p, y in sums]


@dataclass(frozen=True)
class ByGroup(ReportSum):
    """The bins of the top label in each group of rows, for at most 10,000 groups."""

    def state(self, data: Data) -> GroupSums:
        """Return the sums of ``data``."""
        if data.groups is None:
            return GroupSums.none(len(data), dropped=0)
        keys, code = torch.unique(data.groups, return_inverse=True)
        if len(keys) > MOST_GROUPS:
            return GroupSums.none(len(data), dropped=1)
        p = data.confidence
        index = code * BINS + EqualWidth(BINS).assign(p)
        table = BinTable.from_pairs(index, p, data.correct, bins=len(keys) * BINS)
        count, sum_p, sum_y = (part.view(-1, BINS) for part in (table.count, table.sum_p, table.sum_y))
        return GroupSums(keys, count, sum_p, sum_y, len(data))


@dataclass(frozen=True)
class Digests:
    """SHA-256 digests of pieces, in the order they were added.

    Args:
        pieces: Hexadecimal digests.
        rows: Rows in them.
    """

    pieces: tuple[str, ...]
    rows: int

    def __add__(self, other: "Digests") -> "Digests":
        return Digests(self.pieces + other.pieces, self.rows + other.rows)

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of all digests as 16 hexadecimal digits."""
        return hashlib.sha256("".join(self.pieces).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Digest(ReportSum):
    """A fingerprint of the numbers and labels, piece by piece."""

    def state(self, data: Data) -> Digests:
        """Return the digest of ``data``."""
        predictions = need_predictions(data, metric=self)
        digest = hashlib.sha256()
        for column in (
            predictions.logits if predictions.given_probs is None else predictions.given_probs,
            predictions.labels,
        ):
            if column is not None:
                plain = column.detach().cpu().contiguous()
                digest.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
                digest.update(plain.view(torch.uint8).numpy().data)
        return Digests((digest.hexdigest()[:32],), len(data))


# Sums would need every pair of groups, and quantiles first. A million rows know a gap to 0.05 points, and take about 100 MB.
MOST_AUDITED = 1_000_000
_MOST_KEPT = (
    1 << 24
)  # bytes of the sample in a checkpoint, which is written after every shard; a larger one is drawn again


def audit_passes(
    rows: ParquetRows,
    calibrator: Calibrator | None,
    *,
    executor: Executor,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Passes | None:
    """Return the pass that ``audit_streamed`` reads rows with; None where no features lie beside them.

    Args:
        rows: The data set, with labels.
        calibrator: A fitted one, or None.
        executor: Runs the shards.
        checkpoint: A JSON file that is updated after every shard while the sample is smaller than 16 MiB; or None.
        progress: Called with (rows done, total rows).
    """
    if not has_features(rows):
        return None
    what = f"the groups of {MOST_AUDITED} rows of {calibrator and calibrator_identity(calibrator)}"
    return one_pass(rows, what, executor=executor, checkpoint=checkpoint, progress=progress, most=_MOST_KEPT)


def audit_streamed(passes: Passes | None, calibrator: Calibrator | None) -> Audit | None:
    """Return the groups of the rows by their features before and after ``calibrator``; None without a pass.

    One pass over the rows. Of more than a million rows each is taken with the same probability, so that about a million are
    tested; which ones depends on the names of the files alone.

    Args:
        passes: As ``audit_passes`` returns it.
        calibrator: The same as there.
    """
    if passes is None:
        return None
    share = min(1.0, MOST_AUDITED / passes.rows.rows)
    found: Samples | None = ParquetSource(passes, units=SampledPieces(share)).part(sampled, added, calibrator)
    if found is None:
        return Audit((), None, reason="Groups are not tested: no row of positive weight was taken.")
    parts = found.parts
    dropped = {name for part in parts for name in part.dropped}
    shown = [name for name in parts[0].names if name not in dropped]
    columns = {name: join_columns([part.features[name] for part in parts], name=name) for name in shown}
    before = _join_rows([part.before for part in parts])
    after = None if calibrator is None else _join_rows([part.after for part in parts if part.after is not None])
    count = f"all {len(before):,} rows"
    if share < 1:
        count = f"{len(before):,} of {passes.rows.rows:,} rows, drawn at random"
    return replace(audit(before, after, columns, dropped=tuple(sorted(dropped))), basis=f"Computed on {count}.")


def has_features(rows: ParquetRows) -> bool:
    """Return whether features lie beside the rows."""
    return any(map(is_beside, rows.beside or ()))


@dataclass(frozen=True)
class Sampled:
    """Rows of one piece: what groups are tested on, in types that a checkpoint holds.

    Args:
        before: The rows, without features.
        after: The same after calibration, or None.
        columns: Their features: name, numbers or positions among the categories (n,), and the categories, none of numbers.
        dropped: Names of the columns of too many categories, which are not held.
    """

    before: Data
    after: Data | None
    columns: tuple[tuple[str, Tensor, tuple[str, ...]], ...]
    dropped: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [name for name, _, _ in self.columns]

    @property
    def features(self) -> Features:
        """The columns as predictions hold them."""
        return {name: np.array(known)[values.numpy()] if known else values for name, values, known in self.columns}


@dataclass(frozen=True)
class Samples:
    """The rows of several pieces in order."""

    parts: tuple[Sampled, ...]

    def __add__(self, other: "Samples") -> "Samples":
        return Samples(self.parts + other.parts)


@dataclass(frozen=True)
class SampledPieces:
    """Yields a random part of a shard's rows of positive weight, piece by piece, where there are any.

    Args:
        share: Probability with which each row is taken, in (0, 1].
    """

    share: float

    def __call__(self, rows: ParquetRows, shard: Shard) -> Iterator[Predictions]:
        rng = np.random.default_rng([zlib.crc32(shard.file.encode()), shard.row_group])
        for piece in rows.read(shard):
            taken = np.ones(len(piece), dtype=bool) if self.share >= 1 else rng.random(len(piece)) < self.share
            if piece.weights is not None:
                taken &= (piece.weights > 0).numpy()
            if taken.any():
                yield piece if taken.all() else piece[torch.from_numpy(np.flatnonzero(taken))]


def sampled(piece: Predictions, calibrator: Calibrator | None) -> Samples:
    """Return the rows of ``piece`` as groups are tested on them."""
    after = None if calibrator is None else piece.calibrated_by(calibrator, allow_fit_rows=True)  # checked before
    found = dict(piece.features or {})
    dropped = tuple(name for name, values in found.items() if unread(values))
    columns = tuple(_as_column(name, values) for name, values in found.items() if name not in dropped)
    return Samples(
        (Sampled(_audited_event(piece), None if after is None else _audited_event(after), columns, dropped),)
    )


def _as_column(name: str, values: Any) -> tuple[str, Tensor, tuple[str, ...]]:
    if isinstance(values, Tensor):
        return name, values, ()
    known, places = np.unique(values, return_inverse=True)
    return name, torch.from_numpy(places.reshape(-1)), tuple(map(str, known))


def _audited_event(data: Predictions) -> Data:
    """Return what groups are tested by, without features: of more than two classes the decision alone."""
    return replace(data if data.classes == 2 else replace(data.top_label(), labels=None), features=None)


def _join_rows(parts: Sequence[Data]) -> Data:
    """Return the rows of parts of one kind, with their weights."""
    if isinstance(parts[0], Predictions):
        return Predictions.cat([part for part in parts if isinstance(part, Predictions)])

    return BinaryPairs.cat([part for part in parts if isinstance(part, BinaryPairs)])
