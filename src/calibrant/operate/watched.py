"""The state of a monitor: sums by block of labels, in one safetensors file."""

import hashlib
import json
import math
import os
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from calibrant._core.files import read_sealed, reason_of, write_sealed
from calibrant._core.paths import shown
from calibrant.errors import FileFormatError
from calibrant.operate.evidence import NODES, names_of
from calibrant.operate.groups import Group

__all__ = ["Block", "State", "load_state", "save_state"]

Floats = NDArray[np.float64]
FORMAT = "calibrant-monitor-1"
_COLUMNS = ("rows", "confidence", "right", "loss", "squares", "weight", "evidence", "first", "last")


@dataclass(frozen=True)
class Block:
    """Sums over consecutive labels.

    Args:
        rows: Number of labels.
        confidence: Sum of the confidences.
        right: Number of correct decisions.
        loss: Sum of the capped log-losses z, in [0, 1] each.
        squares: Σ z².
        sums: (F, 16) log-likelihoods, from ``evidence.gather``.
        first: Earliest time, or None.
        last: Latest time, or None.
        weight: Prior probability that a change began here.
        evidence: Log evidence at the last update for which this block was the newest.
    """

    rows: int
    confidence: float
    right: float
    loss: float
    squares: float
    sums: Floats
    first: float | None = None
    last: float | None = None
    weight: float = 0.0
    evidence: float = 0.0

    def __add__(self, other: "Block") -> "Block":
        """Return the merged block; a change can then no longer begin between the two."""
        return Block(
            rows=self.rows + other.rows,
            confidence=self.confidence + other.confidence,
            right=self.right + other.right,
            loss=self.loss + other.loss,
            squares=self.squares + other.squares,
            sums=self.sums + other.sums,
            first=self.first,
            last=other.last,
            weight=self.weight,
            evidence=max(self.evidence, other.evidence),
        )


def _none() -> NDArray[np.int64]:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class State:
    """The state of a monitor.

    Args:
        classes: K, or 0 for top-label pairs.
        reference: (F, 16) log-likelihoods of the reference rows.
        rows: Number of reference rows.
        confidence: Their mean confidence.
        accuracy: Their accuracy.
        cap: Largest log-loss of a row; larger ones are capped.
        limit: Upper bound of the reference's mean capped log-loss, in units of ``cap``.
        groups: Column and value of each group that is monitored separately.
        blocks: In order of time.
        batches: Hashes of the batches seen.
        ids: Hashes of the ids seen.
        peak: Largest log evidence seen.
    """

    classes: int
    reference: Floats
    rows: int
    confidence: float
    accuracy: float
    cap: float
    limit: float
    groups: tuple[Group, ...] = ()
    blocks: tuple[Block, ...] = ()
    batches: NDArray[np.int64] = field(default_factory=_none)
    ids: NDArray[np.int64] = field(default_factory=_none)
    peak: float = 0.0

    @cached_property
    def key(self) -> str:
        """Hash of the reference: equal for two states made from the same reference."""
        numbers = np.array([self.classes, self.rows, self.confidence, self.accuracy, self.cap, self.limit])
        groups = json.dumps(self.groups).encode() if self.groups else b""
        return hashlib.sha256(numbers.tobytes() + np.ascontiguousarray(self.reference).tobytes() + groups).hexdigest()


def save_state(path: str | os.PathLike[str], state: State) -> None:
    """Write ``state`` to ``path``, which ends in .safetensors, atomically."""
    table = [
        [math.nan if getattr(block, name) is None else float(getattr(block, name)) for name in _COLUMNS]
        for block in state.blocks
    ]
    lines = len(names_of(state.classes, state.groups))
    arrays = {
        "reference": state.reference,
        "blocks": np.array(table).reshape(-1, len(_COLUMNS)),
        "sums": np.array([block.sums for block in state.blocks]).reshape(-1, lines, NODES),
        "batches": state.batches,
        "ids": state.ids,
    }
    numbers = {
        name: getattr(state, name)
        for name in ("classes", "rows", "confidence", "accuracy", "cap", "limit", "groups", "peak")
    }
    metadata = {"format": FORMAT, "numbers": json.dumps(numbers, sort_keys=True)}
    write_sealed(path, arrays, metadata=metadata, what="a monitor's state")


def load_state(path: str | os.PathLike[str]) -> State:
    """Read a state that ``save_state`` wrote."""
    arrays, metadata = read_sealed(path, format=FORMAT, what="a monitor's state")
    try:
        numbers = json.loads(metadata["numbers"])
        names = ("reference", "blocks", "sums", "batches", "ids")
        # what files of before version 1.0 have in place of a seal: a digest of the arrays alone
        former = hashlib.sha256(b"".join(np.ascontiguousarray(arrays[name]).tobytes() for name in names)).hexdigest()
        if metadata.get("content", former) != former:
            raise ValueError("its content is not what was saved")
        groups = tuple((str(column), str(value)) for column, value in numbers.pop("groups", ()))
        if arrays["reference"].shape != (len(names_of(numbers["classes"], groups)), NODES):
            raise ValueError("its sums are not those of its classes and groups")
        blocks = tuple(_block(row, sums) for row, sums in zip(arrays["blocks"], arrays["sums"], strict=True))
        return State(
            **numbers,
            groups=groups,
            reference=arrays["reference"],
            blocks=blocks,
            batches=arrays["batches"],
            ids=arrays["ids"],
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise FileFormatError(
            "a whole state", f"a broken one in {shown(path)} ({reason_of(error)})", "restore it from a copy"
        ) from error


def _block(row: Floats, sums: Floats) -> Block:
    values = {name: None if math.isnan(value) else float(value) for name, value in zip(_COLUMNS, row, strict=True)}
    rows = int(row[0])
    return Block(**{**values, "rows": rows}, sums=sums)  # type: ignore[arg-type]
