"""The row source: what a fit may ask of labelled rows, wherever they lie, so that each algorithm is written once.

A fit asks for sums. ``source.total(work, *parameters)`` is Σ over the rows' chunks of ``work(chunk, *parameters)``, a pure
function that returns float64 tensors; ``largest`` is their maximum, and ``fold`` joins anything else that merges. Chunks
keep their order, so every executor gives the same bits. Rows in memory answer at once; ``calibrant.scale`` answers from
Parquet files, a pass over them for each question, and ``DistributedRows`` from the ranks of ``torch.distributed``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any

import torch
from torch import Tensor

from calibrant._arguments import check_kind
from calibrant._beside import Features, check_features, join_columns, taken
from calibrant._check import (
    as_tensor,
    check_count,
    check_flag,
    check_groups,
    check_labels,
    check_logits,
    check_weights,
    refuse,
    shown,
)
from calibrant._numerics import CHUNK_BYTES, DEVICE_CHUNK_BYTES
from calibrant.errors import InputError

__all__ = ["Chunk", "DistributedRows", "LazyRows", "MemoryRows", "RowSource", "chunks_of"]

Work = Callable[..., Any]
Join = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows, checked.

    Args:
        logits: (n, K) floating.
        labels: (n,) int64 in [0, K).
        weight: (n,) float64 > 0, or None for 1 each.
        groups: (n,) int64, or None.
        features: Named columns (n,): numbers as tensors, names as arrays of text.
        start: Number of the first row in what the caller gave.
        place: What goes before a message about these rows: a file and row group, or nothing.
    """

    logits: Tensor
    labels: Tensor
    weight: Tensor | None = None
    groups: Tensor | None = None
    features: Features = field(default_factory=dict)
    start: int = 0
    place: str = ""

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    @property
    def weights(self) -> Tensor:
        """(n,) float64: the weights, 1 each if there are none."""
        one = torch.ones(len(self), dtype=torch.float64, device=self.logits.device)
        return one if self.weight is None else self.weight

    def where(self, rows: Any) -> "Chunk":
        """Return the selected rows: a slice, a mask (n,) or indices."""

        def take(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[rows.to(values.device) if isinstance(rows, Tensor) else rows]

        start = self.start + (rows.start or 0) if isinstance(rows, slice) else self.start
        features = {name: taken(values, rows) for name, values in self.features.items()}
        return Chunk(
            self.logits[rows], self.labels[rows], take(self.weight), take(self.groups), features, start, self.place
        )


class RowSource(ABC):
    """Rows that answer questions by sums. Implementations give ``fold`` and ``prepared``.

    Attributes:
        classes: K.
        count: Rows.
        weighted: Whether they carry weights.
        device: Where the chunks lie.
        rough: Whether an answer will do that is near the best: fits on such rows are compared and not kept. What is
            selected from or prepared of rough rows is rough.
    """

    classes: int
    count: int
    weighted: bool
    device: torch.device
    rough: bool = False

    @abstractmethod
    def fold(self, work: Work, join: Join, *parameters: Any) -> Any:
        """Return ``work(chunk, *parameters)`` of all chunks, joined in order by the associative ``join``.

        Args:
            work: A function of a module, so that it can be sent to a worker; pure.
            join: Likewise, of two results.
            parameters: Numbers, names, tensors and tuples of them.
        """

    @abstractmethod
    def prepared(self, make: Work, *parameters: Any) -> "RowSource":
        """Return a source whose chunks are ``make(chunk, *parameters)``, or are left out where that is None.

        In memory they are made once and kept; elsewhere anew in each pass.
        """

    def total(self, work: Work, *parameters: Any) -> Any:
        """Return Σ work(chunk, *parameters): a tensor, or a tuple of them."""
        return self.fold(work, _added, *parameters)

    def largest(self, work: Work, *parameters: Any) -> Tensor:
        """Return the entrywise maximum of ``work(chunk, *parameters)``."""
        found: Tensor = self.fold(work, torch.maximum, *parameters)
        return found

    def totals(self, questions: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the total of each question ``(work, *parameters)``: all of them in one pass."""
        return list(self.fold(_answers, _added, tuple(questions)))

    def once(self, work: Work, join: Join, *parameters: float | str) -> Any:
        """Return ``fold`` of these, and keep it: for what several fits ask of one source, and that is small beside its logits."""
        kept: dict[Any, Any] = self.__dict__.setdefault("_kept", {})
        key = (work, join, *parameters)
        if key not in kept:
            kept[key] = self.fold(work, join, *parameters)
        return kept[key]

    @cached_property
    def mass(self) -> float:
        """The rows' weights, summed; their number where there are none."""
        return float(self.total(_mass)) if self.weighted else float(self.count)

    def where(self, select: Work, *parameters: Any) -> "RowSource":
        """Return the rows of which the mask ``select(chunk, *parameters)`` (n,) is true.

        Raises:
            InputError: If there are none.
        """
        chosen = self.prepared(_selected, select, parameters)
        chosen.rough = self.rough
        chosen.count = int(self.total(_selected_count, select, parameters))
        if not chosen.count:
            raise InputError("expected at least one row, got none that is selected; use more rows")
        return chosen

    def gathered(self, *, values: int = 1 << 25, why: str = "") -> Chunk:
        """Return all rows as one chunk, for a method that needs them at once.

        Args:
            values: Logits that may be held, N · K; rows in memory are there already.
            why: What needs them, for the message.

        Raises:
            InputError: If there are more.
        """
        if self.count * self.classes > values:
            raise InputError(
                f"expected at most {values // self.classes} rows of {self.classes} classes for {why or 'this method'}, which "
                f"needs all of them at once, got {self.count}; fit it on a random sample of so many"
            )
        found: Chunk = self.fold(_itself, _concatenated)
        return found


class MemoryRows(RowSource):
    """Rows in memory, in chunks that stay in the cache.

    Args:
        chunks: The chunks, or what was prepared of them.
        classes: K.
        count: Rows.
        weighted: Whether they carry weights.

    Examples:
        >>> rows = MemoryRows.of(2 * torch.eye(3), [0, 1, 1])
        >>> rows.count, rows.mass
        (3, 3.0)
    """

    def __init__(
        self, chunks: Sequence[Any], *, classes: int, count: int, weighted: bool, device: torch.device
    ) -> None:
        if not isinstance(chunks, Sequence) or isinstance(chunks, str | bytes):
            raise refuse("chunks as a list", shown(chunks), "use MemoryRows.of(logits, labels)")
        _check_facts(classes, count, device)
        self.chunks, self.classes, self.count, self.device = chunks, classes, count, device
        self.weighted = check_flag(weighted, name="weighted")

    @classmethod
    def of(
        cls,
        logits: Any,
        labels: Any,
        *,
        weight: Any = None,
        groups: Any = None,
        features: Mapping[str, Any] | None = None,
    ) -> "MemoryRows":
        """Return checked rows; those of weight 0 are left out, since they must not count in bins or folds.

        Args:
            logits: (N, K) floating.
            labels: (N,) integers in [0, K).
            weight: (N,) ≥ 0, or None.
            groups: (N,) integers or names, or None.
            features: Named columns (N,), or None.

        Raises:
            InputError: If the data are not valid.
        """
        z = as_tensor(logits, name="logits")
        check_logits(z)
        rows = int(z.shape[0])
        y = check_labels(as_tensor(labels, name="labels").to(z.device), rows=rows, classes=z.shape[1])
        w = None
        if weight is not None:
            w = check_weights(as_tensor(weight, name="sample_weight").to(z.device), rows=rows)
        whole = Chunk(z, y, w, check_groups(groups, rows=rows), check_features(features, rows=rows) or {})
        if w is not None and not bool((w > 0).all()):
            whole = whole.where(w > 0)
        return cls.of_chunk(whole)

    @classmethod
    def of_chunk(cls, whole: Chunk) -> "MemoryRows":
        """Return the rows of one checked chunk, cut where it is large."""
        device = whole.logits.device
        weighted = whole.weight is not None
        return cls(chunks_of(whole), classes=whole.logits.shape[1], count=len(whole), weighted=weighted, device=device)

    def fold(self, work: Work, join: Join, *parameters: Any) -> Any:
        """Return ``work(chunk, *parameters)`` of all chunks, joined in order."""
        return reduce(join, (work(chunk, *parameters) for chunk in self.chunks))

    def prepared(self, make: Work, *parameters: Any) -> "MemoryRows":
        """Return what ``make`` makes of every chunk."""
        made = [one for chunk in self.chunks if (one := make(chunk, *parameters)) is not None]
        rows = MemoryRows(made, classes=self.classes, count=self.count, weighted=self.weighted, device=self.device)
        rows.rough = self.rough
        return rows

    def gathered(self, *, values: int = 1 << 25, why: str = "") -> Chunk:
        """Return all rows as one chunk, however many."""
        found: Chunk = self.fold(_itself, _concatenated)
        return found


class LazyRows(RowSource):
    """Rows whose chunks are computed anew in each pass, such as logits that a last layer gives.

    Args:
        chunks: Returns an iterator over the chunks.
        classes: K.
        count: Rows.
        device: Where the chunks lie.
    """

    weighted = False

    def __init__(self, chunks: Callable[[], Iterator[Any]], *, classes: int, count: int, device: torch.device) -> None:
        if not callable(chunks):
            raise refuse("a function that returns an iterator over chunks", shown(chunks), "pass lambda: iter(chunks)")
        _check_facts(classes, count, device)
        self.chunks, self.classes, self.count, self.device = chunks, classes, count, device

    def fold(self, work: Work, join: Join, *parameters: Any) -> Any:
        """Return ``work(chunk, *parameters)`` of all chunks, joined in order."""
        return reduce(join, (work(chunk, *parameters) for chunk in self.chunks()))

    def prepared(self, make: Work, *parameters: Any) -> "LazyRows":
        """Return a source whose chunks are ``make(chunk, *parameters)``, made anew in each pass."""

        def made() -> Iterator[Any]:
            return (one for chunk in self.chunks() if (one := make(chunk, *parameters)) is not None)

        rows = LazyRows(made, classes=self.classes, count=self.count, device=self.device)
        rows.rough = self.rough
        return rows


class DistributedRows(RowSource):
    """The rows of all ranks of a ``torch.distributed`` group, of which each holds some; every rank gets the same answers.

    Args:
        local: This rank's rows.
        group: The process group; None is the default one.
    """

    def __init__(self, local: RowSource, group: Any = None) -> None:
        remedy = "make it with MemoryRows.of(logits, labels)"
        check_kind(local, RowSource, name="local", remedy=remedy)  # type: ignore[type-abstract]
        from torch import distributed

        if not distributed.is_available() or not distributed.is_initialized():
            raise refuse("a process group", "none", "call torch.distributed.init_process_group first")
        if group is not None and not isinstance(group, distributed.ProcessGroup):
            raise refuse("a process group or None", shown(group), "make one with torch.distributed.new_group")
        self.local, self.group = local, group
        ranks = self._gathered((local.count, local.classes, local.weighted))
        if len({classes for _, classes, _ in ranks}) > 1:
            raise InputError(f"expected ranks with equally many classes, got {ranks}; use outputs of one model")
        self.count, self.classes = sum(count for count, _, _ in ranks), local.classes
        self.weighted, self.device = any(weighted for _, _, weighted in ranks), local.device

    def fold(self, work: Work, join: Join, *parameters: Any) -> Any:
        """Return ``work(chunk, *parameters)`` of all ranks' chunks, joined in the order of the ranks."""
        return reduce(join, self._gathered(self.local.fold(work, join, *parameters)))

    def prepared(self, make: Work, *parameters: Any) -> "DistributedRows":
        """Return what ``make`` makes of every chunk, on its rank."""
        rows = DistributedRows(self.local.prepared(make, *parameters), self.group)
        rows.rough = self.rough
        return rows

    def _gathered(self, mine: Any) -> list[Any]:
        from torch import distributed

        found: list[Any] = [None] * distributed.get_world_size(self.group)
        distributed.all_gather_object(found, mine, group=self.group)
        return found


def chunks_of(rows: Chunk) -> list[Chunk]:
    """Return ``rows`` cut into chunks of 1 MiB of float64 logits, or of 256 MiB on an accelerator.

    Args:
        rows: Rows in memory, N ≥ 1.
    """
    check_kind(rows, Chunk, name="rows", remedy="use MemoryRows.of(logits, labels)")
    block = CHUNK_BYTES if rows.logits.device.type == "cpu" else DEVICE_CHUNK_BYTES
    step = max(1, block // (8 * rows.logits.shape[1]))
    if len(rows) <= step:
        return [rows]
    return [rows.where(slice(start, start + step)) for start in range(0, len(rows), step)]


def _check_facts(classes: Any, count: Any, device: Any) -> None:
    """Refuse numbers of classes and rows, and a device, that no rows have."""
    check_count(classes, name="classes", low=2)
    check_count(count, name="count", low=0)
    check_kind(device, torch.device, name="device", remedy="pass logits.device")


def _added(left: Any, right: Any) -> Any:
    if isinstance(left, tuple):
        return tuple(_added(a, b) for a, b in zip(left, right, strict=True))
    return left + right


def _answers(chunk: Any, questions: tuple[tuple[Any, ...], ...]) -> tuple[Any, ...]:
    return tuple(work(chunk, *parameters) for work, *parameters in questions)


def _mass(chunk: Chunk) -> Tensor:
    return chunk.weights.sum()


def _selected(chunk: Chunk, select: Work, parameters: tuple[Any, ...]) -> Chunk | None:
    found = chunk.where(select(chunk, *parameters))
    return found if len(found) else None


def _selected_count(chunk: Chunk, select: Work, parameters: tuple[Any, ...]) -> Tensor:
    count: Tensor = select(chunk, *parameters).sum()
    return count


def _itself(chunk: Chunk) -> Chunk:
    return chunk


def _concatenated(left: Chunk, right: Chunk) -> Chunk:
    def both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
        return None if a is None or b is None else torch.cat([a, b])

    features = {name: join_columns([left.features[name], right.features[name]], name=name) for name in left.features}
    logits, labels = torch.cat([left.logits, right.logits]), torch.cat([left.labels, right.labels])
    return Chunk(logits, labels, both(left.weight, right.weight), both(left.groups, right.groups), features, left.start)
