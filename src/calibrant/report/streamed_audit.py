"""For whom a model's probabilities hold on rows that stay on disk: of all rows, or of a random sample where there are many."""

import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators import Calibrator
from calibrant.data.checks import Data
from calibrant.data.predictions import BinaryPairs, Predictions
from calibrant.data.record import Features, is_beside, join_columns
from calibrant.report.for_whom import Audit, audit, unread
from calibrant.rows.source import added
from calibrant.scale.checkpoint import calibrator_identity
from calibrant.scale.execute import Executor
from calibrant.scale.passes import ParquetSource, Passes
from calibrant.scale.rows import ParquetRows, Shard
from calibrant.scale.stream import Progress, one_pass

__all__ = ["audit_passes", "audit_streamed", "has_features"]

# Sums would need every pair of groups, and quantiles first. A million rows know a gap to 0.05 points, and take about 100 MB.
MOST_ROWS = 1_000_000
_KEPT = 1 << 24  # bytes of the sample in a checkpoint, which is written after every shard; a larger one is drawn again
_NAMES = ("p", "y", "predicted", "labels", "groups", "weights")


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
    what = f"the groups of {MOST_ROWS} rows of {calibrator and calibrator_identity(calibrator)}"
    return one_pass(rows, what, executor=executor, checkpoint=checkpoint, progress=progress, most=_KEPT)


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
    share = min(1.0, MOST_ROWS / passes.rows.rows)
    found: Samples | None = ParquetSource(passes, units=SampledPieces(share)).part(sampled, added, calibrator)
    if found is None:
        return Audit((), None, reason="Groups are not tested: no row of positive weight was taken.")
    parts = found.parts
    dropped = {name for part in parts for name in part.dropped}
    shown = [name for name in parts[0].names if name not in dropped]
    columns = {name: join_columns([part.features[name] for part in parts], name=name) for name in shown}
    before = _joined([part.before for part in parts])
    after = None if calibrator is None else _joined([part.after for part in parts if part.after is not None])
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
    columns = tuple(_plain(name, values) for name, values in found.items() if name not in dropped)
    return Samples((Sampled(_event(piece), None if after is None else _event(after), columns, dropped),))


def _plain(name: str, values: Any) -> tuple[str, Tensor, tuple[str, ...]]:
    if isinstance(values, Tensor):
        return name, values, ()
    known, places = np.unique(values, return_inverse=True)
    return name, torch.from_numpy(places.reshape(-1)), tuple(map(str, known))


def _event(data: Predictions) -> Data:
    """Return what groups are tested by, without features: of more than two classes the decision alone."""
    return replace(data if data.classes == 2 else replace(data.top_label(), labels=None), features=None)


def _joined(parts: Sequence[Data]) -> Data:
    """Return the rows of parts of one kind, with their weights."""
    if isinstance(parts[0], Predictions):
        return Predictions.cat([part for part in parts if isinstance(part, Predictions)])

    def joined(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else torch.cat(values)

    return BinaryPairs(**{name: joined(name) for name in _NAMES}, weight_kind=parts[0].weight_kind)
