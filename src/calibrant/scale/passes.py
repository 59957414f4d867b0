"""Rows on disk as a row source: each requested sum is a pass over the shards, recorded in a journal so that a fit resumes."""

import base64
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._places import atomic_write
from calibrant.calibrators import Calibrator
from calibrant.errors import FileFormatError, InputError
from calibrant.rows import Chunk, RowSource, chunks_of
from calibrant.rows.source import reduced
from calibrant.scale.checkpoint import calibrator_identity, data_identity, read_checkpoint
from calibrant.scale.execute import Executor, in_turn
from calibrant.scale.rows import ParquetRows, Shard

__all__ = ["ParquetSource", "PassProgress"]

PassProgress = Callable[[int, int, int], None]
_KEPT = 1 << 20  # largest result in bytes that the journal keeps; larger ones are recomputed when a fit resumes

Step = tuple[Callable[..., Any], tuple[Any, ...]]


class Passes:
    """Passes over a data set whose results are cached in memory and in a journal on disk.

    Args:
        rows: The data set.
        fit: Description of the fit; a journal of another fit is refused.
        executor: Runs the shards.
        journal: The JSON file, or None to cache in memory only.
        progress: Called with (passes begun, rows done in this pass, total rows).

    Raises:
        FileFormatError: If the file is no journal, or belongs to other data or another fit.
    """

    def __init__(
        self,
        rows: ParquetRows,
        fit: str,
        *,
        executor: Executor = in_turn,
        journal: str | os.PathLike[str] | None = None,
        progress: PassProgress | None = None,
    ) -> None:
        self.rows, self.executor, self.progress, self.count = rows, executor, progress, 0
        self.journal = None if journal is None else Path(journal)
        self._identity = {**data_identity(rows), "fit": fit}
        self._results: dict[str, Any] = {}
        self._open: tuple[str, int, Any] = ("", 0, None)  # key of the current request, shards done, their joined result
        if self.journal is not None and self.journal.exists():
            self._load(self.journal)

    def part(self, steps: tuple[Step, ...], work: Callable[..., Any], join: Callable[..., Any], parameters: Any) -> Any:
        """Return ``work`` of all chunks, joined in order, None without rows; a repeated request returns the cached result."""
        key = digest_of((steps, work, join, parameters))
        if key in self._results:
            return self._results[key]
        self.count += 1
        begun, result = (self._open[1], self._open[2]) if self._open[0] == key else (0, None)
        left = self.rows.shards[begun:]
        finished = self.rows.rows - sum(shard.rows for shard in left)
        self._report(finished)
        job = partial(shard_result, rows=self.rows, steps=steps, work=work, join=join, parameters=parameters)
        for shard, part in zip(left, self.executor(job, left), strict=True):
            result = part if result is None else result if part is None else join(result, part)
            begun, finished = begun + 1, finished + shard.rows
            self._open = (key, begun, result)
            self._save()
            self._report(finished)
        if _size(result) <= _KEPT:
            self._results[key] = result
        return result

    def remove(self) -> None:
        """Delete the journal, after the fit is finished."""
        if self.journal is not None:
            self.journal.unlink(missing_ok=True)

    def _report(self, finished: int) -> None:
        if self.progress is not None:
            self.progress(self.count, finished, self.rows.rows)

    def _save(self) -> None:
        if self.journal is None or _size(self._open[2]) > _KEPT or not _is_kept(self._open[2]):
            return
        results = {key: _to_plain(value) for key, value in self._results.items() if _is_kept(value)}
        key, done, value = self._open
        content = {"identity": self._identity, "results": results, "open": [key, done, _to_plain(value)]}
        self.journal.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.journal) as file:
            file.write(json.dumps(content).encode())

    def _load(self, journal: Path) -> None:
        content = read_checkpoint(journal, self._identity, keys=("results", "open"))
        try:
            self._results = {key: _from_plain(value) for key, value in content["results"].items()}
            key, done, value = content["open"]
            self._open = (str(key), int(done), _from_plain(value))
        except (AttributeError, TypeError, ValueError, KeyError) as error:
            raise FileFormatError(f"expected a checkpoint, got something else in {journal}; delete it") from error


class ParquetSource(RowSource):
    """The rows of a Parquet data set.

    Args:
        passes: Reads the rows and caches the results.
        steps: Functions applied to every chunk, in order.
    """

    def __init__(self, passes: Passes, steps: tuple[Step, ...] = ()) -> None:
        self.passes, self.steps = passes, steps
        self.classes, self.count = passes.rows.classes, passes.rows.rows
        self.weighted = passes.rows.weight_kind is not None
        self.device = torch.device("cpu")

    @classmethod
    def of(cls, passes: Passes) -> "ParquetSource":
        """Return the rows with positive weight, with sampling weights scaled to mean 1."""
        source = cls(passes)
        if passes.rows.weight_kind is None:
            return source
        count, mass = source.total(_counted)
        source.count = int(count)
        return source.prepared(_scaled, float(count / mass)) if passes.rows.weight_kind == "sampling" else source

    def part(self, work: Callable[..., Any], join: Callable[..., Any], *parameters: Any) -> Any:
        """Return ``work(chunk, *parameters)`` of all chunks, joined in order, by one pass; None without rows."""
        return self.passes.part(self.steps, work, join, parameters)

    def prepared(self, make: Callable[..., Any], *parameters: Any) -> "ParquetSource":
        """Return a source whose chunks are ``make(chunk, *parameters)``, recomputed in each pass."""
        made = ParquetSource(self.passes, (*self.steps, (make, parameters)))
        made.count, made.rough = self.count, self.rough
        return made


def shard_result(
    shard: Shard,
    *,
    rows: ParquetRows,
    steps: tuple[Step, ...],
    work: Callable[..., Any],
    join: Callable[..., Any],
    parameters: tuple[Any, ...],
) -> Any:
    """Return ``work`` of a shard's chunks, joined in order; None if no row remains."""
    with torch.no_grad():
        results = (work(chunk, *parameters) for chunk in _chunks(rows, shard, steps))
        return reduced(join, results)


def _chunks(rows: ParquetRows, shard: Shard, steps: tuple[Step, ...]) -> Iterator[Any]:
    start = 0
    for piece in rows.read(shard):
        if piece.labels is None:
            raise InputError("expected a column label to fit on, got none; add it")
        weight = None if piece.weights is None else piece.weights.double()
        place = f"{rows.folder / shard.file}, row group {shard.row_group}: "
        whole = Chunk(piece.logits, piece.labels, weight, piece.groups, piece.features or {}, start, place)
        start += len(piece)
        if weight is not None:
            whole = whole.where(weight > 0)
            if not len(whole):
                continue
        for chunk in chunks_of(whole):
            made: Any = chunk
            for make, parameters in steps:
                made = None if made is None else make(made, *parameters)
            if made is not None:
                yield made


def _counted(chunk: Chunk) -> tuple[Tensor, Tensor]:
    return torch.tensor(len(chunk), dtype=torch.float64), chunk.weights.sum()


def _scaled(chunk: Chunk, factor: float) -> Chunk:
    return replace(chunk, weight=chunk.weights * factor)


@dataclass
class _Digest:
    """A running hash of the parts of a request."""

    hash: Any

    def add(self, value: Any) -> None:
        """Add a value by its content: functions by their qualified names, calibrators by their learned state."""
        if isinstance(value, Tensor):
            array = value.detach().cpu().contiguous().numpy()
            self._text(f"{array.dtype} {array.shape}")
            self.hash.update(array.tobytes())
        elif isinstance(value, Calibrator):
            self._text(calibrator_identity(value))
        elif isinstance(value, list | tuple):
            self._text(f"[{len(value)}")
            for item in value:
                self.add(item)
        elif is_dataclass(value) and not isinstance(value, type):
            self._text(type(value).__qualname__)
            for one in fields(value):
                self.add(getattr(value, one.name))
        elif callable(value):
            self._text(f"{value.__module__}.{value.__qualname__}")
        else:
            self._text(f"{type(value).__name__} {value!r}")

    def _text(self, text: str) -> None:
        self.hash.update(text.encode() + b"\0")


def digest_of(value: Any) -> str:
    """Return a hash of a request's content.

    Args:
        value: Functions, numbers, names, tensors, calibrators, and tuples and dataclasses of them.
    """
    digest = _Digest(hashlib.sha256())
    digest.add(value)
    return str(digest.hash.hexdigest())


def _size(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.itemsize
    if isinstance(value, tuple | list):
        return sum(_size(item) for item in value)
    return sum(_size(getattr(value, one.name)) for one in fields(value)) if is_dataclass(value) else 0


def _is_kept(value: Any) -> bool:
    """Return whether the journal can hold ``value``: tensors, and tuples of them. Other results are recomputed."""
    return isinstance(value, Tensor) or (isinstance(value, tuple) and all(map(_is_kept, value)))


def _to_plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        array = value.detach().cpu().contiguous().numpy()
        return {
            "dtype": str(array.dtype),
            "shape": list(array.shape),
            "bytes": base64.b64encode(array.tobytes()).decode(),
        }
    if isinstance(value, tuple):
        return [_to_plain(item) for item in value]
    raise TypeError(f"a result of tensors was expected, not {type(value).__name__}")


def _from_plain(plain: Any) -> Any:
    if isinstance(plain, list):
        return tuple(_from_plain(item) for item in plain)
    array = np.frombuffer(base64.b64decode(plain["bytes"]), dtype=np.dtype(plain["dtype"])).reshape(plain["shape"])
    return torch.from_numpy(array.copy())
