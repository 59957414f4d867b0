"""The content of a report on a model, from sums over rows that need not fit in memory."""

import hashlib
import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import add
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import check_count, refuse
from calibrant._core.constraints import checked
from calibrant.binning import BinTable, EqualWidth
from calibrant.calibrators import Calibrator
from calibrant.data.checks import Data, Summed, need_predictions
from calibrant.data.predictions import Predictions
from calibrant.data.record import is_beside
from calibrant.metrics import ECE, MCE, NLL, Accuracy, Brier, DebiasedECE, Metric
from calibrant.plot.arguments import check_label, check_names
from calibrant.plot.diagrams import diagram_from
from calibrant.plot.risk import POINTS, Curve
from calibrant.report.advice import MARGIN, NOTHING, Gain, check_margin
from calibrant.report.events import Cells, mass_table
from calibrant.report.groups_report import Audit, audit, unread
from calibrant.report.model import Subject, fingerprint, name_of_class
from calibrant.report.section import BINS, CLASSES, Binned, Figures, Section, class_bins, equal_edges, section_of
from calibrant.report.tables import Row, in_percent, label_of
from calibrant.scale.execute import Executor, check_execution, in_turn
from calibrant.scale.passes import ParquetSource, Passes, SomeCalibrator, calibrator_identity
from calibrant.scale.rows import ParquetRows, Shard
from calibrant.scale.stream import Moments, Progress, metric_passes, one_pass, sums_of
from calibrant.statistics.interval import normal_quantile
from calibrant.statistics.means import FEWEST_COMPARED

__all__ = ["diagnose_streamed"]

LEVEL = 0.95
States = dict[Summed, Any]
_ECE = ECE(EqualWidth(BINS))
_PANEL: tuple[Metric, ...] = (
    Accuracy(), NLL(), Brier(), _ECE, MCE(EqualWidth(BINS)), DebiasedECE(EqualWidth(BINS)),
)  # fmt: skip
_EVENT = Moments(_ECE, event=True)  # of the probability of the second of two classes
_OMITTED = (
    "These figures are sums over rows read from disk in pieces. Figures that need all rows at once are left out: the ECE in "
    "equal-mass bins, SmoothECE, AURC, the limit of the class-by-class error, the gain over plain temperature scaling, and "
    "intervals and limits for rows with groups."
)
_MANY_GROUPS = "There are more than 10,000 groups, so figures by group are left out."


@checked
def diagnose_streamed(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    calibrator: SomeCalibrator | None = None,
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
    check_execution(executor, progress)
    rows = _unweighted(ParquetRows(path))
    subject = Subject(name or Path(path).name, calibrator, source or os.fspath(path), split)
    class_names = check_names(class_names, classes=rows.classes)
    passes = _AllPasses(rows, executor, checkpoint, progress, count=1 + (calibrator is not None) + has_features(rows))
    gain = [] if calibrator is None else [LossGain(calibrator_identity(calibrator), calibrator)]
    states = [passes.sums([*_sums(rows.classes), Digest(), *gain], None)]
    if calibrator is not None:
        states.append(passes.sums(_sums(rows.classes), calibrator, name="after"))
    groups = audit_streamed(passes.sample(calibrator) if has_features(rows) else None, calibrator)
    passes.remove()
    named = zip(states, (None, subject.calibrated_with), strict=False)
    return section_of(
        subject,
        [_figures(state, partial(_row, subject, state, with_, draws=draws)) for state, with_ in named],
        class_name=lambda k: name_of_class(k, class_names, event=rows.classes == 2),
        margin=margin,
        gains=_gains(states[0], states[-1], *gain),
        fingerprint=hashlib.sha256(states[0][Digest()].encode()).hexdigest()[:16],
        remarks=[_OMITTED] + ([_MANY_GROUPS] if states[-1][ByGroup()].dropped else []),
        audit=groups,
    )


def _sums(classes: int) -> list[Any]:
    """Return what every figure of the page is computed from."""
    event = [_EVENT] if classes == 2 else []
    return [*map(Moments, _PANEL), *event, _ECE, CLASSES, Cells(), Cells(decision=True), ByGroup()]


class _AllPasses:
    """The passes of a report, whose progress is reported as that of all; each has a checkpoint of its own beside the first's.

    Args:
        rows: The data set.
        executor: Runs the shards.
        checkpoint: The JSON file of the first pass, or None.
        progress: Called with (rows done, total rows) of all passes together, or None.
        count: Number of passes.
    """

    def __init__(
        self, rows: ParquetRows, executor: Executor, checkpoint: Any, progress: Progress | None, *, count: int
    ) -> None:
        self.rows, self.executor, self.checkpoint, self.progress, self.count = (
            rows,
            executor,
            checkpoint,
            progress,
            count,
        )
        self.done: list[Passes] = []

    def _settings(self, name: str) -> dict[str, Any]:
        checkpoint, before, total = self.checkpoint, len(self.done) * self.rows.rows, self.count * self.rows.rows
        if checkpoint is not None and name:
            checkpoint = Path(checkpoint).with_suffix(f".{name}.json")

        def report(done: int, _: int = 0) -> None:
            if self.progress is not None:
                self.progress(before + done, total)

        return {"executor": self.executor, "checkpoint": checkpoint, "progress": self.progress and report}

    def sums(self, asked: list[Any], calibrator: Calibrator | None, *, name: str = "") -> States:
        """Return the states of all rows, through the calibrator if there is one."""
        self.done.append(metric_passes(self.rows, asked, calibrator, **self._settings(name)))
        return sums_of(self.done[-1], asked, calibrator)

    def sample(self, calibrator: Calibrator | None) -> Passes:
        """Return the pass that ``audit_streamed`` reads rows with."""
        self.done.append(audit_passes(self.rows, calibrator, **self._settings("groups")))
        return self.done[-1]

    def remove(self) -> None:
        """Delete the checkpoints."""
        for one in self.done:
            one.remove()


def _figures(states: States, row: Any) -> Figures:
    """Return the figures of rows on disk from their sums; ``row`` makes a row of a metric."""
    decisions = states[Cells(decision=True)]
    mass, ends = mass_table(decisions)
    tables = class_bins(states[CLASSES].table, classes=states[CLASSES].classes)
    return Figures(
        [*(row(Moments(metric)) for metric in _PANEL), row(CLASSES)],
        diagram_from(mass, edges=ends),
        diagram_from(states[_ECE], edges=equal_edges()),
        _curve(decisions),
        tables,
        {key: Binned(table, int(table.total)) for key, table in states[ByGroup()].tables()},
        states[Cells()],
        event_ece=row(_EVENT) if _EVENT in states else None,
        independent=not states[ByGroup()].any,
    )


def _gains(states: States, after: States, *of: "LossGain") -> list[Gain]:
    """Return the calibrator's gain over doing nothing; none for rows with groups, or few errors, for which it does not hold."""
    wrong = min(float(one[Moments(_PANEL[0])].decided[0, 0]) for one in (states, after))
    if not of or states[ByGroup()].any or wrong < FEWEST_COMPARED:
        return []
    total, squares, rows = states[of[0]]
    if rows < 2 or not math.isfinite(squares):
        return []
    mean = total / rows
    half = normal_quantile((1 + LEVEL) / 2) * math.sqrt(max(squares / rows - mean**2, 0.0) / rows)
    return [Gain(NOTHING, mean, mean - half, mean + half)]


def _row(subject: Subject, states: States, calibrator: str | None, measured: Any, *, draws: int) -> Row:
    """Return the row of a metric: of its moments, with interval and limits; of one without them its value."""
    state, metric, ends = states[measured], measured, {}
    if isinstance(measured, Moments):
        metric = measured.metric
        # labels drawn independently by row would give clustered rows a limit that they exceed too often
        if draws and not states[ByGroup()].any:
            ends = measured.figures(state, draws=draws, seed=0, level=LEVEL)
    place = (subject.source or subject.name, subject.split, calibrator, repr(metric), measured.value(state))
    low, high, limit, mean = (ends.get(name) for name in ("low", "high", "null_high", "null_mean"))
    return Row(*place, low, high, limit, int(states[_ECE].total), label_of(metric), in_percent(metric), mean)


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
    if len(filled) > POINTS:  # points spaced evenly in coverage, the last one included
        target = torch.linspace(0, 1, POINTS, dtype=torch.float64)[1:] * cells.total
        keep = torch.unique(torch.searchsorted(taken, target).clamp_max(len(filled) - 1))
        taken, errors = taken[keep], errors[keep]
    return Curve((taken / cells.total).tolist(), (errors / taken).tolist())


MOST_GROUPS = 10_000  # most groups with sums of their own: a million users would exceed the memory bound


@dataclass(frozen=True)
class LossGain:
    """Σ x, Σ x² and the number of rows, x the reduction of a row's log-loss by a calibrator.

    Args:
        identity: Hash of the calibrator, which identifies this sum in a checkpoint and between processes.
        calibrator: The calibrator.
    """

    identity: str
    calibrator: Calibrator = field(compare=False, repr=False)  # its hash says which it is

    def state(self, data: Data) -> tuple[float, float, int]:
        """Return the sums of ``data``."""
        predictions = need_predictions(data, metric=self)
        gain = (predictions.nll - predictions.calibrated_by(self.calibrator).nll).double()
        return float(gain.sum()), float(gain.square().sum()), gain.shape[0]


@dataclass(frozen=True, eq=False)
class GroupSums:
    """The bins of each group of rows.

    Args:
        keys: (G,) int64 groups, ascending.
        sums: (G, 3, B) float64: rows, confidences and correct predictions in each bin.
        dropped: 1 if there were too many groups, so that none is kept, else 0.
    """

    keys: Tensor
    sums: Tensor
    dropped: int = 0

    @classmethod
    def of(cls, keys: Tensor, sums: Tensor, *, dropped: int = 0) -> Self:
        """Return the sums, or none of more than 10,000 groups."""
        dropped = max(dropped, int(len(keys) > MOST_GROUPS))
        return cls(keys[:0], sums[:0], dropped) if dropped else cls(keys, sums)

    def __add__(self, other: "GroupSums") -> "GroupSums":
        keys, place = torch.unique(torch.cat([self.keys, other.keys]), return_inverse=True)
        sums = torch.zeros(len(keys), 3, BINS, dtype=torch.float64)
        sums.index_add_(0, place, torch.cat([self.sums, other.sums]))
        return GroupSums.of(keys, sums, dropped=max(self.dropped, other.dropped))

    @property
    def any(self) -> bool:
        """Whether rows have groups."""
        return bool(len(self.keys) or self.dropped)

    def tables(self) -> list[tuple[int, BinTable]]:
        """Return each group with its bins."""
        named = zip(self.keys.tolist(), self.sums, strict=True)
        return [(key, BinTable(count.long(), p, y, int(count.sum()))) for key, (count, p, y) in named]


@dataclass(frozen=True)
class ByGroup:
    """The bins of the top label in each group of rows, for at most 10,000 groups."""

    def state(self, data: Data) -> GroupSums:
        """Return the sums of ``data``."""
        groups = torch.zeros(0, dtype=torch.int64) if data.groups is None else data.groups
        keys, code = torch.unique(groups, return_inverse=True)
        if data.groups is None or len(keys) > MOST_GROUPS:
            return GroupSums.of(keys, torch.zeros(len(keys), 3, BINS, dtype=torch.float64))
        p = data.confidence
        table = BinTable.from_pairs(code * BINS + EqualWidth(BINS).assign(p), p, data.correct, bins=len(keys) * BINS)
        parts = [part.double().view(-1, BINS) for part in (table.count, table.sum_p, table.sum_y)]
        return GroupSums.of(keys, torch.stack(parts, dim=1))


@dataclass(frozen=True)
class Digest:
    """The digests of the numbers and labels, piece after piece."""

    def state(self, data: Data) -> str:
        """Return the digest of ``data``."""
        return fingerprint(data, digits=32)


# Sums would need every pair of groups, and quantiles first. A million rows know a gap to 0.05 points, and take about 100 MB.
MOST_AUDITED = 1_000_000
_MOST_KEPT = (
    1 << 24
)  # bytes of the sample in a checkpoint, which is written after every shard; a larger one is drawn again


def has_features(rows: ParquetRows) -> bool:
    """Return whether features lie beside the rows."""
    return any(map(is_beside, rows.beside or ()))


def audit_passes(rows: ParquetRows, calibrator: Calibrator | None, **settings: Any) -> Passes:
    """Return the pass that ``audit_streamed`` reads rows with, which keeps a sample smaller than 16 MiB in its checkpoint.

    Args:
        rows: The data set, with labels and features.
        calibrator: A fitted one, or None.
        settings: ``executor``, ``checkpoint`` and ``progress``, as for ``one_pass``.
    """
    what = f"the groups of {MOST_AUDITED} rows of {calibrator and calibrator_identity(calibrator)}"
    return one_pass(rows, what, most=_MOST_KEPT, **settings)


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
    parts = ParquetSource(passes, units=SampledPieces(share)).part(sampled, add, calibrator)
    if parts is None:
        return Audit((), None, reason="Groups are not tested: no row of positive weight was taken.")
    # a column of too many categories in one piece is left out of all
    names = [name for name in parts[0][2] if all(name in part.features for part, _, _ in parts)]
    dropped = sorted(set(parts[0][2]) - set(names))
    alike = [replace(part, features={name: part.features[name] for name in names}) for part, _, _ in parts]
    before = type(alike[0]).cat(alike)
    after = None if calibrator is None else type(alike[0]).cat([part for _, part, _ in parts])
    count = f"all {len(before):,} rows"
    if share < 1:
        count = f"{len(before):,} of {passes.rows.rows:,} rows, drawn at random"
    bare = replace(before, features=None)
    return replace(audit(bare, after, before.features, dropped=tuple(dropped)), basis=f"Computed on {count}.")


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


def sampled(piece: Predictions, calibrator: Calibrator | None) -> tuple[tuple[Data, Data | None, tuple[str, ...]]]:
    """Return what groups are tested on: the rows with their features, the rows after calibration, and the features' names."""
    features: Mapping[str, Any] = piece.features or {}
    kept = {name: values for name, values in features.items() if not unread(values)}
    after = None if calibrator is None else piece.calibrated_by(calibrator, allow_fit_rows=True)  # checked before
    return ((_decision(piece, kept), None if after is None else _decision(after, None), tuple(features)),)


def _decision(data: Predictions, features: Any) -> Data:
    """Return what groups are tested by: of more than two classes the decision alone."""
    return replace(data if data.classes == 2 else replace(data.top_label(), labels=None), features=features)
