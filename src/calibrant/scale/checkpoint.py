"""Checkpoints of a pass over a data set: a JSON file, replaced after every row group, from which a stopped run resumes."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibrant._check import refuse
from calibrant._places import as_path, atomic_write, check_source
from calibrant._plain import to_plain
from calibrant.calibrators import Calibrator
from calibrant.errors import FileFormatError
from calibrant.metrics import SumMetric
from calibrant.predictions import Predictions
from calibrant.scale.rows import ParquetRows, Shard, file_identity
from calibrant.scale.state import add_states, state_from_plain, state_to_plain

__all__ = ["Checkpoint", "States", "calibrator_identity", "data_identity", "read_checkpoint"]

States = dict[SumMetric[Any], Any]


class Checkpoint:
    """The metric states summed over the finished shards; with a path, saved after every shard.

    Args:
        path: The JSON file, or None to keep the states in memory only.
        rows: The data set.
        metrics: The metrics.
        calibrator: Applied to the rows first, or None.

    Raises:
        FileFormatError: If the file is no checkpoint, or belongs to other data, metrics or another calibrator.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        rows: ParquetRows,
        metrics: Sequence[SumMetric[Any]],
        calibrator: Calibrator | None,
    ) -> None:
        self.path = None if path is None else as_path(path, name="checkpoint")
        self.states: States = {}
        self.names: set[str] = set()
        self._identity = {
            **data_identity(rows),
            "metrics": [to_plain(metric) for metric in metrics],
            "calibrator": None if calibrator is None else calibrator_identity(calibrator),
        }
        if self.path is not None and self.path.exists():
            self._load(rows, metrics)

    def add(self, shard: Shard, states: States) -> None:
        """Add a finished shard and save."""
        self.states = add_states(self.states, states)
        self.names.add(shard.name)
        if self.path is None:
            return
        plain = [state_to_plain(state) for state in self.states.values()]
        content = {"identity": self._identity, "done": sorted(self.names), "states": plain}
        self.path.parent.mkdir(parents=True, exist_ok=True)  # only now, so that invalid inputs leave no folder behind
        with atomic_write(self.path) as file:
            file.write(json.dumps(content).encode())

    def remove(self) -> None:
        """Delete the file, after the pass is finished."""
        if self.path is not None and self.path.is_file():
            self.path.unlink(missing_ok=True)

    def _load(self, rows: ParquetRows, metrics: Sequence[SumMetric[Any]]) -> None:
        assert self.path is not None
        content = read_checkpoint(self.path, self._identity, keys=("done", "states"))
        example = Predictions.from_logits(
            np.eye(2, rows.classes) * 2, np.zeros(2, dtype=np.int64), groups=np.zeros(2, dtype=np.int64)
        )
        likes = [metric.state(example) for metric in metrics]
        try:
            self.names = set(content["done"])
            rebuilt = [state_from_plain(plain, like) for plain, like in zip(content["states"], likes, strict=True)]
        except (TypeError, ValueError) as error:
            raise FileFormatError(f"expected a checkpoint, got something else in {self.path}; delete it") from error
        self.states = dict(zip(metrics, rebuilt, strict=True))


def check_calibrator(calibrator: Any, *, needed: bool = False) -> None:
    """Raise unless ``calibrator`` is a calibrator, or None where it is not ``needed``.

    Raises:
        InputError: If it is something else.
    """
    if isinstance(calibrator, Calibrator) or (calibrator is None and not needed):
        return
    raise refuse("a fitted calibrator", type(calibrator).__name__, "fit one of calibrant.calibrators or load one")


def read_checkpoint(path: Path, identity: dict[str, Any], *, keys: Sequence[str]) -> dict[str, Any]:
    """Return the content of a checkpoint that has ``keys`` and was made for ``identity``.

    Raises:
        FileFormatError: If it is no checkpoint, or has another identity.
    """
    check_source(path)
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        missing = [key for key in ("identity", *keys) if key not in content]
    except (ValueError, TypeError, RecursionError) as error:
        raise FileFormatError(f"expected a checkpoint, got something else in {path}; delete it") from error
    if missing or not isinstance(content, dict):
        raise FileFormatError(f"expected a checkpoint, got something else in {path}; delete it")
    if content["identity"] != json.loads(json.dumps(identity)):
        raise FileFormatError(f"expected a checkpoint of these data and metrics, got another in {path}; delete it")
    return content


def data_identity(rows: ParquetRows) -> dict[str, Any]:
    """Return an identity of a data set without reading its rows: row groups, sizes, modification times, footer hashes."""
    return {
        "shards": [[shard.name, shard.rows] for shard in rows.shards],
        "files": [file_identity(file) for file in rows.files],
    }


def calibrator_identity(calibrator: Calibrator) -> str:
    """Return a hash of class, configuration and learned state (a repr shows only part of the state)."""
    digest = hashlib.sha256(f"{type(calibrator).__name__} {calibrator!r}".encode())
    for name, value in sorted(calibrator.state_dict().items()):
        array = value.detach().cpu().contiguous().numpy()
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
