"""For whom a model's probabilities hold on rows that stay on disk: of all rows, or of a random sample where there are many."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from calibrant._beside import Features, is_beside, join_columns
from calibrant._data import Data
from calibrant.calibrators import Calibrator
from calibrant.predictions import BinaryPairs, Predictions
from calibrant.report.for_whom import Audit, audit, unread
from calibrant.scale.execute import Executor
from calibrant.scale.rows import ParquetRows, Shard

__all__ = ["audit_streamed"]

# Sums would need every pair of groups, and quantiles first. A million rows know a gap to 0.05 points, and take about 100 MB.
MOST_ROWS = 1_000_000


def audit_streamed(
    rows: ParquetRows,
    calibrator: Calibrator | None,
    *,
    executor: Executor,
    progress: Callable[[int], None] | None = None,
) -> Audit | None:
    """Return the groups of the rows by their features before and after ``calibrator``; None where no features lie beside them.

    One pass over the rows. Of more than a million rows each is taken with the same probability, so that about a million are
    tested; which ones depends on the names of the files alone.

    Args:
        rows: The data set, with labels.
        calibrator: A fitted one, or None.
        executor: Runs the shards.
        progress: Called with the rows done.
    """
    if not has_features(rows):
        return None
    work = partial(sampled, rows=rows, share=min(1.0, MOST_ROWS / rows.rows), calibrator=calibrator)
    parts, done = [], 0
    for shard, found in zip(rows.shards, executor(work, rows.shards), strict=True):
        parts += found
        done += shard.rows
        if progress is not None:
            progress(done)
    dropped = {name for part in parts for name in part.dropped}
    shown = [name for name in parts[0].columns if name not in dropped]
    columns = {name: join_columns([part.columns[name] for part in parts], name=name) for name in shown}
    before = _joined([part.before for part in parts])
    after = _joined([part.after for part in parts if part.after is not None]) if calibrator is not None else None
    count = (
        f"all {rows.rows:,} rows"
        if len(before) == rows.rows
        else f"{len(before):,} of {rows.rows:,} rows, drawn at random"
    )
    return replace(audit(before, after, columns, dropped=tuple(sorted(dropped))), basis=f"Computed on {count}.")


def has_features(rows: ParquetRows) -> bool:
    """Return whether features lie beside the rows."""
    return any(map(is_beside, rows.beside or ()))


@dataclass(frozen=True)
class Sampled:
    """Rows of one piece: what groups are tested on.

    Args:
        before: The rows, without features.
        after: The same after calibration, or None.
        columns: Their features.
        dropped: Names of the columns of too many categories, which are not held.
    """

    before: Data
    after: Data | None
    columns: Features
    dropped: tuple[str, ...]


def sampled(shard: Shard, *, rows: ParquetRows, share: float, calibrator: Calibrator | None) -> list[Sampled]:
    """Return a random ``share`` of the rows of ``shard``, piece by piece."""
    rng = np.random.default_rng([zlib.crc32(shard.file.encode()), shard.row_group])
    found = []
    for piece in rows.read(shard):
        kept = piece if share >= 1 else piece[torch.from_numpy(np.flatnonzero(rng.random(len(piece)) < share))]
        if not len(kept):
            continue
        after = None if calibrator is None else kept.calibrated_by(calibrator, allow_fit_rows=True)  # checked before
        columns = dict(kept.features or {})
        dropped = tuple(name for name, values in columns.items() if unread(values))
        columns = {name: values for name, values in columns.items() if name not in dropped}
        found.append(Sampled(_event(kept), None if after is None else _event(after), columns, dropped))
    return found


def _event(data: Predictions) -> Data:
    """Return what groups are tested by, without features: of more than two classes the decision alone."""
    return replace(data if data.classes == 2 else replace(data.top_label(), labels=None), features=None)


def _joined(parts: Sequence[Data]) -> Data:
    whole = [part for part in parts if isinstance(part, Predictions)]
    if whole:
        return Predictions.cat(whole)
    pairs = [part for part in parts if isinstance(part, BinaryPairs)]

    def joined(name: str) -> Tensor | None:
        values = [getattr(part, name) for part in pairs]
        return None if values[0] is None else torch.cat(values)

    return BinaryPairs(
        torch.cat([part.p for part in pairs]),
        torch.cat([part.y for part in pairs]),
        joined("predicted"),
        groups=joined("groups"),
    )
