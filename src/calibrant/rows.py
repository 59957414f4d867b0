"""Labelled rows that a fit sums over, wherever they lie, so that each algorithm is written once.

A fit asks for sums: ``rows.total(work, *parameters)`` is Σ over the rows' chunks of ``work(chunk, *parameters)``, a pure
function that returns float64 tensors; ``largest`` is their maximum, and ``fold`` joins anything else that merges. Chunks keep
their order. ``MemoryRows`` holds them; ``calibrant.scale`` reads them from Parquet files, once for each sum, or adds the
sums of the ranks of ``torch.distributed``.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, Self

import torch
from torch import Tensor

from calibrant._core.check import as_tensor, check_groups, check_labels, check_logits
from calibrant._core.numerics import CHUNK_BYTES, DEVICE_CHUNK_BYTES
from calibrant.data.record import Columns, Features, check_features, check_weights
from calibrant.errors import InputError

__all__ = ["Chunk", "MemoryRows", "RowSource"]

Work = Callable[..., Any]
Join = Callable[[Any, Any], Any]


@dataclass(frozen=True, eq=False, repr=False)
class Chunk(Columns):
    """Consecutive rows of positive weight, checked: what a fit sums over, piece by piece.

    Args:
        logits: (n, K) floating.
        labels: (n,) int64 in [0, K).
        weight: (n,) float64 > 0, or None for 1 each.
        groups: (n,) int64, or None.
        features: Named columns (n,): numbers as tensors, names as arrays of text.
        start: Number of the first row in what the caller gave.
        place: File and row group that a message about these rows names; empty in memory.
    """

    logits: Tensor
    _: KW_ONLY
    labels: Tensor
    weight: Tensor | None = None
    features: Features = field(default_factory=dict)
    start: int = 0
    place: str = ""

    @property
    def scores(self) -> Tensor:
        """(n, K): the logits."""
        return self.logits

    @property
    def weights(self) -> Tensor:
        """(n,) float64: the weights, 1 each if there are none."""
        one = torch.ones(len(self), dtype=torch.float64, device=self.logits.device)
        return one if self.weight is None else self.weight

    def _about(self) -> list[str]:
        return [f"{self.logits.shape[1]} classes", f"from row {self.start}"]

    def where(self, rows: Any) -> "Chunk":
        """Return the selected rows: a slice, a mask (n,) or indices."""
        start = self.start + (rows.start or 0) if isinstance(rows, slice) else self.start
        return replace(self.selected(rows), start=start)


class RowSource(ABC):
    """Rows that answer questions by sums. Implementations give ``part`` and ``prepared``.

    Attributes:
        classes: K.
        count: Rows.
        weighted: Whether they carry weights.
        device: Where the chunks lie.
    """

    classes: int
    count: int
    weighted: bool
    device: torch.device

    @abstractmethod
    def part(self, work: Work, join: Join, *parameters: Any) -> Any:
        """Return ``work(chunk, *parameters)`` of all chunks, joined in order by the associative ``join``; None without rows.

        Args:
            work: A function of a module, so that it can be sent to a worker; pure.
            join: Likewise, of two results.
            parameters: Numbers, names, tensors and tuples of them.
        """

    @abstractmethod
    def prepared(self, make: Work, *parameters: Any) -> "RowSource":
        """Return a source whose chunks are ``make(chunk, *parameters)``, or are left out where that is None.

        In memory they are made once and kept; elsewhere anew for each sum.
        """

    @cached_property
    def uncut(self) -> "RowSource":
        """The same rows in chunks as large as they lie, for work that cuts them itself."""
        return self

    def fold(self, work: Work, join: Join, *parameters: Any) -> Any:
        """Return the same as ``part``.

        Raises:
            InputError: If no row is left.
        """
        found = self.part(work, join, *parameters)
        if found is None:
            raise InputError("at least one row", "none that is selected", "use more rows")
        return found

    def total(self, work: Work, *parameters: Any) -> Any:
        """Return Σ work(chunk, *parameters): a tensor, or a tuple of them."""
        return self.fold(work, added, *parameters)

    def largest(self, work: Work, *parameters: Any) -> Tensor:
        """Return the entrywise maximum of ``work(chunk, *parameters)``."""
        found: Tensor = self.fold(work, torch.maximum, *parameters)
        return found

    def collected(self, work: Work, *parameters: Any) -> list[Any]:
        """Return the list of ``work(chunk, *parameters)`` of all chunks, in order."""
        found: list[Any] = self.fold(_list_of_one, added, work, parameters)
        return found

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
        chosen.count = int(self.total(_selected_count, select, parameters))
        if not chosen.count:
            raise InputError("at least one row", "none that is selected", "use more rows")
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
            most = f"at most {values // self.classes} rows of {self.classes} classes for {why or 'this method'}"
            raise InputError(f"{most}, which needs all of them at once", f"{self.count}", "fit it on a random sample")
        return Chunk.cat(self.collected(itself))

    def _changed(self, **attributes: Any) -> Self:
        """Return these rows with other attributes, and without what was kept of them."""
        rows = copy.copy(self)
        for known in ("mass", "uncut"):
            vars(rows).pop(known, None)
        vars(rows).update(attributes)
        return rows


class MemoryRows(RowSource):
    """Rows in memory, in chunks that stay in the cache.

    Args:
        chunks: The chunks, or what was prepared of them.
        classes: K.
        count: Rows.
        weighted: Whether they carry weights.
        device: Where they lie.

    Examples:
        >>> rows = MemoryRows.of(2 * torch.eye(3), [0, 1, 1])
        >>> rows.count, rows.mass
        (3, 3.0)
    """

    def __init__(
        self, chunks: Sequence[Any], *, classes: int, count: int, weighted: bool, device: torch.device
    ) -> None:
        self.chunks, self.classes, self.count, self.device = chunks, classes, count, device
        self.weighted = weighted
        self._whole: Chunk | None = None

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
        w = None if weight is None else check_weights(weight, rows=rows, device=z.device, name="sample_weight")
        columns = check_features(features, rows=rows) or {}
        whole = Chunk(z, labels=y, weight=w, groups=check_groups(groups, rows=rows), features=columns)
        if w is not None and not bool((w > 0).all()):
            whole = whole.where(w > 0)
        return cls.of_chunk(whole)

    @classmethod
    def of_chunk(cls, whole: Chunk) -> "MemoryRows":
        """Return the rows of one checked chunk, cut where it is large."""
        device = whole.logits.device
        weighted = whole.weight is not None
        rows = cls(chunks_of(whole), classes=whole.logits.shape[1], count=len(whole), weighted=weighted, device=device)
        rows._whole = whole
        return rows

    @cached_property
    def uncut(self) -> "MemoryRows":
        """The same rows as one chunk, where they are not prepared."""
        return self if self._whole is None else self._changed(chunks=[self._whole], _whole=None)

    def part(self, work: Work, join: Join, *parameters: Any) -> Any:
        """Return ``work(chunk, *parameters)`` of all chunks, joined in order; None without chunks."""
        return reduced(join, (work(chunk, *parameters) for chunk in self.chunks))

    def prepared(self, make: Work, *parameters: Any) -> "MemoryRows":
        """Return what ``make`` makes of every chunk."""
        made = [one for chunk in self.chunks if (one := make(chunk, *parameters)) is not None]
        return self._changed(chunks=made, _whole=None)

    def gathered(self, *, values: int = 1 << 25, why: str = "") -> Chunk:
        """Return all rows as one chunk, however many."""
        return Chunk.cat(self.collected(itself))


def chunks_of(rows: Chunk) -> list[Chunk]:
    """Return ``rows`` cut into chunks of 1 MiB of float64 logits, or of 256 MiB on an accelerator.

    Args:
        rows: Rows in memory, N ≥ 1.
    """
    block = CHUNK_BYTES if rows.logits.device.type == "cpu" else DEVICE_CHUNK_BYTES
    step = max(1, block // (8 * rows.logits.shape[1]))
    if len(rows) <= step:
        return [rows]
    return [rows.where(slice(start, start + step)) for start in range(0, len(rows), step)]


def reduced(join: Join, results: Iterator[Any]) -> Any:
    """Return the results joined in order, or None if there are none.

    Args:
        join: Associative, of two results.
        results: They are consumed.
    """
    first = next(results, None)
    return None if first is None else reduce(join, results, first)


def added(left: Any, right: Any) -> Any:
    """Return the sum of two results: whatever adds, and tuples entry by entry."""
    if isinstance(left, tuple):
        return tuple(added(a, b) for a, b in zip(left, right, strict=True))
    return left + right


def itself(chunk: Any) -> Any:
    """Return the chunk: what ``collected`` asks of each when all are wanted."""
    return chunk


def _list_of_one(chunk: Any, work: Work, parameters: tuple[Any, ...]) -> list[Any]:
    return [work(chunk, *parameters)]


def _mass(chunk: Chunk) -> Tensor:
    return chunk.weights.sum()


def _selected(chunk: Chunk, select: Work, parameters: tuple[Any, ...]) -> Chunk | None:
    found = chunk.where(select(chunk, *parameters))
    return found if len(found) else None


def _selected_count(chunk: Chunk, select: Work, parameters: tuple[Any, ...]) -> Tensor:
    count: Tensor = select(chunk, *parameters).sum()
    return count
