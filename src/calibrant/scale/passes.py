"""Rows on disk as a row source: each requested sum is a pass over the shards, recorded in a journal so that a fit resumes."""

import base64
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from calibrant._core.constraints import Kind, checked
from calibrant._core.files import error_boundary, hash_arrays
from calibrant._core.paths import as_path, check_source, write_whole
from calibrant.calibrators import Calibrator
from calibrant.data.checks import calibrated
from calibrant.data.predictions import Predictions
from calibrant.errors import FileFormatError, InputError
from calibrant.rows import Chunk, RowSource, chunks_of
from calibrant.rows.source import reduced
from calibrant.scale.execute import Executor, PassProgress, Runner, in_turn
from calibrant.scale.rows import ParquetRows, Shard, file_identity

SomeCalibrator = Annotated[
    Calibrator, Kind(Calibrator, "fit one of calibrant.calibrators or load one", "a fitted calibrator")
]
_KEPT = 1 << 20  # largest result in bytes that a fit keeps; larger ones are recomputed when it resumes

Units = Callable[[ParquetRows, Shard], Iterator[Any]]
Step = tuple[Callable[..., Any], tuple[Any, ...]]


class Passes:
    """Passes over a data set whose results are cached in memory and in a journal on disk.

    Args:
        rows: The data set.
        fit: Description of the fit; a journal of another fit is refused.
        executor: Runs the shards.
        journal: The JSON file, or None to cache in memory only.
        progress: Called with (passes begun, rows done in this pass, total rows).
        most: Largest result in bytes that is kept.

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
        most: int = _KEPT,
    ) -> None:
        self.rows, self.executor, self.progress, self.count, self.most = rows, executor, progress, 0, most
        self.journal = None if journal is None else as_path(journal, name="checkpoint")
        # the data without reading its rows: row groups, and each file's size, times and hash of its footer
        shards = [[shard.name, shard.rows] for shard in rows.shards]
        self._identity = {"shards": shards, "files": [file_identity(file) for file in rows.files], "fit": fit}
        self._results: dict[str, Any] = {}
        self._open: tuple[str, int, Any] = ("", 0, None)  # key of the current request, shards done, their joined result
        # the results of the journal, and its last open request, as JSON until they are asked for again
        self._kept: dict[str, Any] = {}
        self._stopped: tuple[str, int, Any] = ("", 0, None)
        if self.journal is not None and self.journal.exists():
            self._load(self.journal)

    def part(self, job: "Job") -> Any:
        """Return the job's result for all shards, joined in order, None without rows; a repeated request returns the cached result."""
        # a request is the same if its functions, numbers, tensors and calibrators are: a journal answers it again
        content = _content((job.units, job.steps, job.work, job.join, job.parameters))
        key = hashlib.sha256(b"\0".join(content)).hexdigest()
        self._restore(key, job)
        if key in self._results:
            return self._results[key]
        self.count += 1
        # a request that a stop interrupted goes on behind its last shard
        begun, result = (self._open[1], self._open[2]) if self._open[0] == key else (0, None)
        left = self.rows.shards[begun:]
        finished = self.rows.rows - sum(shard.rows for shard in left)
        self._report(finished)
        for shard, part in zip(left, self.executor(partial(shard_result, self.rows, job), left), strict=True):
            result = part if result is None else result if part is None else job.join(result, part)
            del part  # else it would be held while the next shard is read
            begun, finished = begun + 1, finished + shard.rows
            self._open = (key, begun, result)
            self._save()
            self._report(finished)
        if _size(result) <= self.most:
            self._results[key] = result
            if self.journal is not None:
                with suppress(TypeError):  # a state of another kind is summed again after a stop
                    self._kept[key] = state_to_plain(result)
        return result

    def forget(self) -> None:
        """Free the results in memory; the journal keeps them."""
        self._results, self._open = {}, ("", 0, None)

    def remove(self) -> None:
        """Delete the journal, after the fit is finished."""
        if self.journal is not None:
            self.journal.unlink(missing_ok=True)

    def _report(self, finished: int) -> None:
        if self.progress is not None:
            self.progress(self.count, finished, self.rows.rows)

    def _restore(self, key: str, job: "Job") -> None:
        """Read what the journal holds of a request, the whole result or that of the shards before the stop."""
        if key in self._kept and key not in self._results:
            self._results[key] = self._read(self._kept[key], job)
            self.count += 1
        elif key == self._stopped[0]:
            (_, done, plain), self._stopped = self._stopped, ("", 0, None)
            self._open = (key, done, self._read(plain, job))

    def _read(self, plain: Any, job: "Job") -> Any:
        with suppress(FileFormatError):
            return state_from_plain(plain)
        # a state with records in it needs another such state, which gives their classes
        parts = (shard_result(self.rows, job, shard) for shard in self.rows.shards)
        return state_from_plain(plain, next((part for part in parts if part is not None), None))

    def _save(self) -> None:
        key, done, value = self._open
        if self.journal is None or _size(value) > self.most:
            return
        try:
            content = {"identity": self._identity, "results": self._kept, "open": [key, done, state_to_plain(value)]}
        except TypeError:
            return
        # only now, so that invalid inputs leave no folder behind
        self.journal.parent.mkdir(parents=True, exist_ok=True)
        # whole file anew each time: it is renamed into place, so that a kill leaves the one before
        write_whole(self.journal, json.dumps(content))

    def _load(self, journal: Path) -> None:
        check_source(journal)
        with error_boundary("a checkpoint", f"something else in {journal}", "delete it"):
            content = json.loads(journal.read_text())
            same = content["identity"] == json.loads(json.dumps(self._identity))
            key, done, value = content["open"]
            self._kept, self._stopped = dict(content["results"]), (str(key), int(done), value)
        if not same:
            raise FileFormatError("a checkpoint of these data and metrics", f"another in {journal}", "delete it")


@dataclass(frozen=True)
class Job:
    """What is computed of every shard.

    Args:
        units: Yields what a shard is worked on in: chunks of labelled rows, or predictions.
        steps: Functions applied to every unit, in order.
        work: Pure function of what results.
        join: Associative, of two results.
        parameters: Further arguments of ``work``.
    """

    units: Units
    steps: tuple[Step, ...]
    work: Callable[..., Any]
    join: Callable[..., Any]
    parameters: tuple[Any, ...]


def labelled_chunks(rows: ParquetRows, shard: Shard) -> Iterator[Chunk]:
    """Yield the labelled rows of positive weight of a shard, in chunks that stay in the cache."""
    start = 0
    for piece in rows.read(shard):
        if piece.labels is None:
            raise InputError("a column label to fit on", "none", "add it")
        weight = None if piece.weights is None else piece.weights.double()
        place = f"{rows.folder / shard.file}, row group {shard.row_group}"
        beside: dict[str, Any] = {"groups": piece.groups, "features": piece.features or {}}
        whole = Chunk(piece.logits, labels=piece.labels, weight=weight, start=start, place=place, **beside)
        start += len(piece)
        if weight is not None:
            whole = whole.where(weight > 0)
        if len(whole):
            yield from chunks_of(whole)


class ParquetSource(RowSource):
    """The rows of a Parquet data set.

    Args:
        passes: Reads the rows and caches the results.
        steps: Functions applied to every unit, in order.
        units: Yields the rows of a shard; by default labelled chunks, as fits take them.
    """

    def __init__(self, passes: Passes, steps: tuple[Step, ...] = (), units: Units = labelled_chunks) -> None:
        self.passes, self.steps = passes, steps
        self.units = units
        self.classes, self.count = passes.rows.classes, passes.rows.rows
        self.weighted = passes.rows.weighted
        self.device = torch.device("cpu")

    @classmethod
    def of(cls, passes: Passes) -> "ParquetSource":
        """Return the rows with positive weight, with weights scaled to mean 1."""
        source = cls(passes)
        if not passes.rows.weighted:
            return source
        count, mass = source.total(_count_and_mass)
        source.count = int(count)
        return source.prepared(_weighted_by, float(count / mass))

    def part(self, work: Callable[..., Any], join: Callable[..., Any], *parameters: Any) -> Any:
        """Return ``work(chunk, *parameters)`` of all chunks, joined in order, by one pass; None without rows."""
        return self.passes.part(Job(self.units, self.steps, work, join, parameters))

    def prepared(self, make: Callable[..., Any], *parameters: Any) -> "ParquetSource":
        """Return a source whose chunks are ``make(chunk, *parameters)``, recomputed in each pass."""
        made = ParquetSource(self.passes, (*self.steps, (make, parameters)), self.units)
        made.count, made.rough = self.count, self.rough
        return made


def shard_result(rows: ParquetRows, job: Job, shard: Shard) -> Any:
    """Return what ``job`` makes of a shard's units, joined in order; None if no row remains."""
    with torch.no_grad():
        return reduced(job.join, (job.work(made, *job.parameters) for made in _prepared_chunks(rows, job, shard)))


def _prepared_chunks(rows: ParquetRows, job: Job, shard: Shard) -> Iterator[Any]:
    for unit in job.units(rows, shard):
        # preparations follow each other chunk by chunk, so that a pass holds one chunk and no copy of the data
        made: Any = unit
        for make, parameters in job.steps:
            made = None if made is None else make(made, *parameters)
        if made is not None:
            yield made


@dataclass(frozen=True)
class Pieces:
    """Yields the rows of positive weight of a shard as predictions, in pieces of bounded size.

    Args:
        calibrator: Applied to them, after a check that it was not fitted on them; or None.
    """

    calibrator: Calibrator | None = None

    def __call__(self, rows: ParquetRows, shard: Shard) -> Iterator[Predictions]:
        yield from calibrated((piece.counted for piece in rows.read(shard) if len(piece.counted)), self.calibrator)


def _count_and_mass(chunk: Chunk) -> tuple[Tensor, Tensor]:
    return torch.tensor(len(chunk), dtype=torch.float64), chunk.weights.sum()


def _weighted_by(chunk: Chunk, factor: float) -> Chunk:
    return replace(chunk, weight=chunk.weights * factor)


def _content(value: Any) -> Iterator[bytes]:
    """Yield what tells a value from others: functions by their qualified names, calibrators by their learned state."""
    if isinstance(value, Tensor):
        array = value.detach().cpu().contiguous().numpy()
        yield from (f"{array.dtype} {array.shape}".encode(), array.tobytes())
    elif isinstance(value, Calibrator):
        yield calibrator_identity(value).encode()
    elif (parts := _parts_of_state(value)) is not None and not isinstance(value, dict):
        sequence = isinstance(value, list | tuple)
        yield (f"[{len(value)}" if sequence else f"{type(value).__module__}.{type(value).__qualname__}").encode()
        for item in parts:
            yield from _content(item)
    elif callable(value):
        yield f"{value.__module__}.{value.__qualname__}".encode()
    else:
        yield f"{type(value).__name__} {value!r}".encode()


def _parts_of_state(value: Any) -> list[Any] | None:
    """Return what a sequence, a mapping or a record holds, in order; None of anything else."""
    if isinstance(value, tuple | list | dict):
        return list(value.values() if isinstance(value, dict) else value)
    record = is_dataclass(value) and not isinstance(value, type)
    return [getattr(value, one.name) for one in fields(value)] if record else None


def _size(value: Any) -> int:
    if isinstance(value, Tensor | np.ndarray):
        return value.nbytes
    return sum(map(_size, _parts_of_state(value) or ()))


def state_to_plain(state: Any) -> Any:
    """Return a state as JSON data; every bit of its numbers is kept.

    Raises:
        TypeError: If it holds anything else than numbers, texts, tensors, and tuples, mappings and dataclasses of them.
    """
    if isinstance(state, Tensor):
        array = state.detach().cpu().contiguous().numpy()
        content = base64.b64encode(array.tobytes()).decode()
        return {"dtype": str(array.dtype), "shape": list(array.shape), "bytes": content}
    if isinstance(state, dict) and all(isinstance(name, str) for name in state):
        return {"named": {name: state_to_plain(item) for name, item in state.items()}}
    if not isinstance(state, list | dict) and (parts := _parts_of_state(state)) is not None:
        return {"items" if isinstance(state, tuple) else "fields": list(map(state_to_plain, parts))}
    if isinstance(state, np.ndarray) and state.dtype.kind == "U":
        return {"texts": state.tolist()}
    if isinstance(state, float):
        # decimal text would lose the last bit, and with it equality of a resumed fit
        return {"number": state.hex()}
    if state is None or isinstance(state, int | str):
        return state
    raise TypeError(f"a {type(state).__name__} is not kept")


def state_from_plain(plain: Any, like: Any = None) -> Any:
    """Return the state that ``state_to_plain`` made ``plain`` from.

    Args:
        plain: JSON data.
        like: A state of the same request, whose classes are taken; None where there are none.

    Raises:
        FileFormatError: If ``plain`` does not have the structure of ``like``.
    """
    with error_boundary("a saved sum of the same kind", "another", "delete the checkpoint"):
        return _rebuilt(plain, like)


def _rebuilt(plain: Any, like: Any) -> Any:
    if not isinstance(plain, dict):
        if isinstance(plain, list):
            raise TypeError("a number was expected")
        return plain
    if "bytes" in plain:
        array = np.frombuffer(base64.b64decode(plain["bytes"]), dtype=np.dtype(plain["dtype"]))
        return torch.from_numpy(array.reshape(plain["shape"]).copy())
    if "number" in plain:
        return float.fromhex(plain["number"])
    if "items" in plain:
        items = plain["items"]
        likes = like if like is not None and len(like) == len(items) else [like[0] if like else None] * len(items)
        return tuple(_rebuilt(item, one) for item, one in zip(items, likes, strict=True))
    if "named" in plain:
        return {name: _rebuilt(item, None) for name, item in plain["named"].items()}
    if "texts" in plain:
        return np.array(plain["texts"], dtype=np.str_)
    if not is_dataclass(like) or isinstance(like, type):
        raise TypeError("a record was not expected")
    named = zip(plain["fields"], (field.name for field in fields(like)), strict=True)
    return type(like)(**{name: _rebuilt(item, getattr(like, name)) for item, name in named})


C = TypeVar("C", bound=Calibrator)
_TO_FIT = (
    "fit one of calibrant.calibrators or load one; for several labels a row read the tables with calibrant.load_multilabel, and "
    "fit a MultiLabelCalibrator on them in memory"
)


@checked
def fit_streamed(
    calibrator: Annotated[C, Kind(Calibrator, _TO_FIT, "a calibrator of one class a row")],
    path: str | os.PathLike[str],
    *,
    executor: Runner = in_turn,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: PassProgress | None = None,
) -> C:
    """Return ``calibrator`` fitted on a Parquet data set of any size, with the result and the leakage guard of ``fit``.

    Args:
        calibrator: The calibrator to fit; a fitted one starts from its parameters.
        path: A file or a folder with labels, as for ``ParquetRows``.
        executor: Runs the shards; all executors give the same bits.
        checkpoint: A JSON file that keeps every computed sum; a repeated call replays it. It is removed at the end of the
            fit.
        progress: Called with (passes begun, rows done in this pass, total rows).

    Returns:
        ``calibrator`` itself, fitted.

    Raises:
        InputError: If labels are missing, data are not valid (the message states file, row group and row), or the
            calibrator needs all rows in memory and they do not fit, as ``VennAbers`` does.
        FileFormatError: If a file is broken, or the checkpoint belongs to other data or another fit.
        FitError: If the fit does not converge.
    """
    rows = ParquetRows(path)
    start = {name: value.tolist() for name, value in calibrator.state_dict().items()} if calibrator.fitted else None
    what = f"{type(calibrator).__name__} {calibrator.config()!r} from {start!r}"
    passes = Passes(rows, what, executor=executor, journal=checkpoint, progress=progress)
    calibrator.fit_from(ParquetSource.of(passes))
    passes.remove()
    return calibrator


def calibrator_identity(calibrator: Calibrator) -> str:
    """Return a hash of class, configuration and learned state (a repr shows only part of the state)."""
    arrays = {name: value.detach().cpu().contiguous().numpy() for name, value in calibrator.state_dict().items()}
    return hash_arrays(f"{type(calibrator).__name__} {calibrator!r}", arrays)
