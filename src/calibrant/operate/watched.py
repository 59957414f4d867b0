"""The state of a monitor: sums by block of labels with their priors of a change, and hashes of rows seen, in one safetensors file."""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant._core.check import refuse
from calibrant._core.check import shown as told
from calibrant._core.files import error_boundary, read_sealed, write_sealed
from calibrant._core.notebook import to_html
from calibrant._core.numerics import add_records
from calibrant._core.paths import shown
from calibrant.data.checks import Data
from calibrant.data.predictions import Predictions
from calibrant.operate.evidence import NO_CURVE, NO_CURVES, NODES, ClassCurves, Group, ReferenceCurve, quantity_names
from calibrant.operate.rows import values_of_rows

Floats = NDArray[np.float64]
FORMAT = "calibrant-monitor-1"
_COLUMNS = ("rows", "confidence", "right", "loss", "squares", "weight", "evidence", "first", "last")
_AT_ONCE = 0.9  # prior probability that a change, if any, precedes the first row
_TYPICAL = 5000.0  # prior median of the number of rows before a later change
_OPEN = 100  # batches are added to a block while it then has at most this many rows
_MOST = 200  # largest number of blocks; beyond, neighbours are merged


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
        evidence = max(self.evidence, other.evidence)
        return add_records(self, other, first=self.first, last=other.last, weight=self.weight, evidence=evidence)


def appended(blocks: tuple[Block, ...], new: Block) -> tuple[Block, ...]:
    """Return ``blocks`` with ``new`` added to the last one if that is small, else appended with its prior probability.

    Args:
        blocks: In order of time.
        new: The block of the newest labels.
    """
    if blocks and blocks[-1].rows + new.rows <= _OPEN:
        return (*blocks[:-1], blocks[-1] + new)
    return _merged_blocks((*blocks, _with_prior(blocks, new)))


def as_of_one_monitor(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Return the blocks of several monitors with the prior probabilities of a single monitor that got them in this order.

    The prior probabilities of several monitors would sum to more than 1.
    """
    found: tuple[Block, ...] = ()
    for block in blocks:
        found = (*found, _with_prior(found, block))
    return _merged_blocks(found)


def _with_prior(blocks: tuple[Block, ...], new: Block) -> Block:
    """Return ``new`` with the prior probability that a change began with it, after ``blocks``."""
    if not blocks:
        return replace(new, weight=_AT_ONCE)
    rows = sum(block.rows for block in blocks)
    spent = sum(block.weight for block in blocks)
    # P(no change within r rows) = m / (m + r), whose median is m: the hazard falls as 1 / r, for changes on every scale
    later = _TYPICAL / (_TYPICAL + rows), _TYPICAL / (_TYPICAL + rows + max(new.rows, _OPEN))
    return replace(new, weight=(1 - spent) * (1 - later[1] / later[0]))


def _merged_blocks(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Return at most ``_MOST`` blocks: in the older half neighbours are merged, so that no change can begin between them."""
    while len(blocks) > _MOST:
        # the older half in pairs: near the present each block keeps its own possible change
        half = len(blocks) // 4
        pairs = [blocks[2 * at] + blocks[2 * at + 1] for at in range(half)]
        blocks = (*pairs, *blocks[2 * half :])
    return blocks


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
        curve: How far the reference's bins of confidence are off; none in files of before version 1.0.
        curves: How frequent each class is in bins of its probability; likewise.
        blocks: In order of time.
        batches: Hashes of the batches seen.
        ids: Hashes of the ids seen.
        peak: Largest log evidence seen.
        costs: costs[true, action] of the decisions that are monitored, or None.
    """

    classes: int
    reference: Floats
    rows: int
    confidence: float
    accuracy: float
    cap: float
    limit: float
    groups: tuple[Group, ...] = ()
    curve: ReferenceCurve = NO_CURVE
    curves: ClassCurves = NO_CURVES
    blocks: tuple[Block, ...] = ()
    batches: NDArray[np.int64] = field(default_factory=_none)
    ids: NDArray[np.int64] = field(default_factory=_none)
    peak: float = 0.0
    costs: Sequence[Sequence[float]] | None = None

    @cached_property
    def key(self) -> str:
        """Hash of the reference: equal for two states made from the same reference."""
        numbers = np.array([self.classes, self.rows, self.confidence, self.accuracy, self.cap, self.limit])
        groups = json.dumps(self.groups).encode() if self.groups else b""
        groups += json.dumps(self.costs).encode() if self.costs else b""
        return hashlib.sha256(numbers.tobytes() + np.ascontiguousarray(self.reference).tobytes() + groups).hexdigest()


def save_state(path: str | os.PathLike[str], state: State) -> None:
    """Write ``state`` to ``path``, which ends in .safetensors, atomically."""
    table = [
        [math.nan if getattr(block, name) is None else float(getattr(block, name)) for name in _COLUMNS]
        for block in state.blocks
    ]
    lines = len(quantity_names(state.classes, state.groups))
    arrays = {
        "reference": state.reference,
        "blocks": np.array(table).reshape(-1, len(_COLUMNS)),
        "sums": np.array([block.sums for block in state.blocks]).reshape(-1, lines, NODES),
        "batches": state.batches,
        "ids": state.ids,
    }
    if len(state.curve.offsets):
        arrays |= {"edges": state.curve.edges, "offsets": state.curve.offsets}
    if len(state.curves.log_odds):
        arrays |= {"class_edges": state.curves.edges, "class_log_odds": state.curves.log_odds}
    numbers = {
        name: getattr(state, name)
        for name in ("classes", "rows", "confidence", "accuracy", "cap", "limit", "groups", "peak", "costs")
    }
    metadata = {"format": FORMAT, "numbers": json.dumps(numbers, sort_keys=True)}
    write_sealed(path, arrays, metadata=metadata, what="a monitor's state")


def load_state(path: str | os.PathLike[str]) -> State:
    """Read a state that ``save_state`` wrote."""
    arrays, metadata = read_sealed(path, format=FORMAT, what="a monitor's state", former={"numbers", "content"})
    with error_boundary("a whole state", f"a broken one in {shown(path)}", "restore it from a copy"):
        numbers = json.loads(metadata["numbers"])
        names = ("reference", "blocks", "sums", "batches", "ids")
        # what files of before version 1.0 have in place of a seal: a digest of the arrays alone
        former = hashlib.sha256(b"".join(np.ascontiguousarray(arrays[name]).tobytes() for name in names)).hexdigest()
        if metadata.get("content", former) != former:
            raise ValueError("its content is not what was saved")
        groups = tuple((str(column), str(value)) for column, value in numbers.pop("groups", ()))
        if arrays["reference"].shape != (len(quantity_names(numbers["classes"], groups)), NODES):
            raise ValueError("its sums are not those of its classes and groups")
        blocks = tuple(_block(row, sums) for row, sums in zip(arrays["blocks"], arrays["sums"], strict=True))
        return State(
            **numbers,
            groups=groups,
            curve=ReferenceCurve(arrays["edges"], arrays["offsets"]) if "edges" in arrays else NO_CURVE,
            curves=ClassCurves(arrays["class_edges"], arrays["class_log_odds"])
            if "class_edges" in arrays
            else NO_CURVES,
            reference=arrays["reference"],
            blocks=blocks,
            batches=arrays["batches"],
            ids=arrays["ids"],
        )


def _block(row: Floats, sums: Floats) -> Block:
    values = {name: None if math.isnan(value) else float(value) for name, value in zip(_COLUMNS, row, strict=True)}
    rows = int(row[0])
    return Block(**{**values, "rows": rows}, sums=sums)  # type: ignore[arg-type]


def marks(data: Data, ids: Iterable[Any] | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a hash (1,) of the batch and the hashes (N,) of its ids, or (0,).

    Args:
        data: The batch.
        ids: (N,) names or integers, or None.

    Raises:
        InputError: If ids are not one per row and distinct.
    """
    content = hashlib.blake2b(digest_size=8)
    for values in (data.logits if isinstance(data, Predictions) else data.p, data.labels, data.correct):
        if values is not None:
            content.update(np.ascontiguousarray(values.detach().cpu().float().numpy()).tobytes())
    names = np.empty(0, dtype=np.int64)
    if ids is not None:
        listed = [str(one).encode(errors="surrogatepass") for one in _ids_as_list(ids, len(data))]
        if len(listed) != len(data) or len(set(listed)) != len(listed):
            raise refuse(
                f"{len(data)} different ids", f"{len(listed)}, {len(set(listed))} of them different", "pass one per row"
            )
        content.update(b"\n".join(listed))
        names = np.array([_hash(hashlib.blake2b(one, digest_size=8)) for one in listed], dtype=np.int64)
    return np.array([_hash(content)], dtype=np.int64), names


def _ids_as_list(ids: Any, rows: int) -> list[Any]:
    if isinstance(ids, torch.Tensor | np.ndarray):
        return list(values_of_rows(ids, name="ids", rows=rows).tolist())
    if isinstance(ids, str | bytes | Mapping) or not isinstance(ids, Iterable):
        raise refuse("ids as a list, one per row", told(ids), "pass names or integers")
    return list(ids)


def _hash(content: "hashlib.blake2b") -> int:
    return int.from_bytes(content.digest(), "little", signed=True)


@dataclass(frozen=True)
class Status:
    """The status of a monitor.

    Args:
        verdict: "quiet" or "alarm".
        evidence: Likelihood ratio of a change against no change; the alarm threshold is 1 / 0.049 = 20.4.
        peak: The largest evidence so far.
        rows: Number of labels so far.
        since: Time of the first label after the most likely change, if times were given; else None.
        changed_rows: Number of labels since then.
        confidence: Mean confidence since then.
        accuracy: Accuracy since then.
        accuracy_low: Lower 97.5 % bound of the accuracy.
        accuracy_high: Upper 97.5 % bound of the accuracy.
        direction: "overconfident", "underconfident" or "as confident as before" since then, relative to the reference.
        classes: Classes whose own evidence exceeds the threshold; class 1 alone of two, whose probabilities say the same.
        groups: Groups whose own evidence exceeds the threshold, with their direction: "region = north (overconfident)".
        advice: What to do: nothing, re-fit the bias, re-fit by group, re-fit all, or retrain.
        cost_gap: Mean realised less foreseen cost of the decisions since then, if costs are monitored; else None.
    """

    verdict: Literal["quiet", "alarm"]
    evidence: float
    peak: float
    rows: int
    since: float | None
    changed_rows: int
    confidence: float
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    direction: str
    classes: tuple[int, ...]
    groups: tuple[str, ...]
    advice: str
    cost_gap: float | None = None

    _repr_html_ = to_html

    def plain(self) -> dict[str, Any]:
        """Return the status as JSON data."""
        return asdict(self)

    def __str__(self) -> str:
        return self.sentence()

    def classes_shown(self, names: Sequence[str] = ()) -> str:
        """Return the classes that clearly changed, by their names or, without any, by their numbers."""
        return ", ".join(names[one] if names else f"{one} (counted from 0)" for one in self.classes)

    def sentence(self, names: Sequence[str] = ()) -> str:
        """Return the status in words.

        Args:
            names: Those of the classes; without them, classes are called by their numbers.
        """
        if self.verdict == "quiet":
            return f"quiet: {self.rows:,} labels, evidence of a change {self.peak:.3g} at most, an alarm from 20.4 on"
        when = "" if self.since is None else f" since {show_time(self.since)}"
        which = f", most in class {self.classes_shown(names)}" if self.classes else ""
        which += f", by group {', '.join(self.groups)}" if self.groups else ""
        return (
            f"alarm: {self.direction}{when}{which}: mean confidence {self.confidence:.3f}, accuracy {self.accuracy:.3f} "
            f"(between {self.accuracy_low:.3f} and {self.accuracy_high:.3f}) on {self.changed_rows:,} labels; {self.advice}"
        )


def show_time(seconds: float) -> str:
    """Return a time as "2026-01-31 12:00:00", or a day as "2026-01-31"."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S").removesuffix(" 00:00:00")
