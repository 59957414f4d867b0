"""Labelled rows that a fit sums over, in memory or elsewhere, so that each method is written only once.

A fit requests sums: ``rows.total(work, *parameters)`` is Σ ``work(batch, *parameters)`` over the batches of the rows.
``MemoryRows`` keeps the rows in memory. ``calibrant.scale`` reads them from files for each sum, or adds the sums of
several processes.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from calibrant._core.check import as_tensor, check_groups, check_labels, check_logits
from calibrant._core.numerics import CHUNK_BYTES, DEVICE_CHUNK_BYTES
from calibrant.data.record import Features, check_features, check_weights, joined_features, taken
from calibrant.errors import InputError

__all__ = ["Batch", "MemoryRows", "RowSource"]

Work = Callable[..., Any]


@dataclass(frozen=True, eq=False, repr=False)
class Batch:
    """Consecutive rows of positive weight that have been checked.

    Args:
        logits: (n, K) floating-point logits.
        labels: (n,) int64 class indices in [0, K).
        weights: (n,) positive float64 weights, or None for 1 each.
        groups: (n,) int64 group of each row, or None.
        features: Dict from names to columns (n,), with numbers as tensors on the CPU and text as arrays.

    Examples:
        >>> batch = Batch(torch.eye(2), torch.tensor([0, 1]))
        >>> len(batch), batch.row_weights
        (2, tensor([1., 1.], dtype=torch.float64))
    """

    logits: Tensor
    labels: Tensor
    weights: Tensor | None = None
    groups: Tensor | None = None
    features: Features = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.logits)

    def selected(self, rows: Any) -> "Batch":
        """Return the rows that a slice, a mask or indices select."""
        columns = {one.name: getattr(self, one.name) for one in fields(self)}
        return Batch(**{name: taken(column, rows) for name, column in columns.items() if column is not None})

    @classmethod
    def cat(cls, parts: Sequence["Batch"]) -> "Batch":
        """Return the rows of all parts, in order. The parts must come from the same source."""
        names = [name for name in ("logits", "labels", "weights", "groups") if getattr(parts[0], name) is not None]
        columns = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
        return cls(**columns, features=joined_features([part.features for part in parts]))

    @property
    def row_weights(self) -> Tensor:
        """The weights, (n,) float64; 1 each if the rows have no weights."""
        one = torch.ones(len(self), dtype=torch.float64, device=self.logits.device)
        return one if self.weights is None else self.weights

    def cut(self) -> "list[Batch]":
        """Return the rows in batches of 1 MiB of float64 logits, which fit into the cache, or 256 MiB on an accelerator."""
        block = CHUNK_BYTES if self.logits.device.type == "cpu" else DEVICE_CHUNK_BYTES
        rows, classes = self.logits.shape
        step = max(1, block // (8 * classes))
        return [self] if 0 < rows <= step else [self.selected(slice(at, at + step)) for at in range(0, rows, step)]


class RowSource(ABC):
    """Rows whose batches can be summed over repeatedly.

    Attributes:
        classes: Number of classes K.
        count: Number of rows.
        mass: Sum of the weights, or the number of rows if there are no weights.
        weighted: Whether the rows have weights.
        device: Device of the batches.

    Examples:
        >>> rows: RowSource = MemoryRows.of(2 * torch.eye(3), [0, 1, 1])
        >>> rows.total(len)
        3
    """

    classes: int
    count: int
    mass: float
    weighted: bool
    device: torch.device

    @abstractmethod
    def fold(self, work: Work, *parameters: Any) -> Any:
        """Return Σ ``work(batch, *parameters)`` in the order of the batches, or None without batches.

        Args:
            work: A pure function at module level, so that it can be sent to a worker process. Its results must support
                ``+`` (tensors, lists, metric states) or be tuples of such results.
            parameters: Numbers, strings, tensors and tuples of these, which are passed to ``work``.
        """

    @abstractmethod
    def map(self, make: Work, *parameters: Any) -> "RowSource":
        """Return a source of the batches ``make(batch, *parameters)``.

        For rows in memory they are computed once, and for other sources they are computed again for each sum.
        """

    @property
    def uncut(self) -> "RowSource":
        """The same rows in the batches in which they are stored, for work that divides them itself."""
        return self

    def normalized(self) -> "RowSource":
        """Return the same rows with weights scaled to mean 1, so that their scale does not change the influence of a prior."""
        if not self.weighted:
            return self
        rows = self.map(_reweighted, self.count / self.mass)
        rows.mass = float(self.count)
        return rows

    def total(self, work: Work, *parameters: Any) -> Any:
        """Return Σ ``work(batch, *parameters)`` in the order of the batches.

        Raises:
            InputError: If there are no rows.
        """
        found = self.fold(work, *parameters)
        if found is None:
            raise InputError("at least one row", "none", "use more rows")
        return found

    def collected(self, work: Work, *parameters: Any) -> list[Any]:
        """Return the list of ``work(batch, *parameters)``, in order."""
        found: list[Any] = self.total(_list_of_one, work, parameters)
        return found

    def gathered(self, *, values: int = 1 << 25, why: str = "this method") -> Batch:
        """Return all rows as one batch, for a method that needs all rows at once.

        Args:
            values: Largest N · K that may be gathered; rows that are already in memory have no limit.
            why: The method that needs the rows, for the error message.

        Raises:
            InputError: If N · K is larger than ``values``.
        """
        if self.count * self.classes > values:
            max_rows = f"at most {values // self.classes} rows of {self.classes} classes for {why}"
            raise InputError(f"{max_rows}, which needs all of them at once", f"{self.count}", "fit on a random sample")
        return Batch.cat(self.collected(_itself))


class MemoryRows(RowSource):
    """Rows that are kept in memory.

    Args:
        whole: All rows, which have been checked.
        cut: Whether to divide many rows into batches that fit into the cache.

    Examples:
        >>> rows = MemoryRows.of(2 * torch.eye(3), [0, 1, 1])
        >>> rows.count, rows.mass
        (3, 3.0)
    """

    def __init__(self, whole: Batch, *, cut: bool = True) -> None:
        self.whole: Batch | None = whole
        self.count, self.classes = whole.logits.shape
        self.weighted, self.device = whole.weights is not None, whole.logits.device
        self.mass = float(self.count if whole.weights is None else whole.weights.sum())
        self.batches: Sequence[Any] = [whole] if self.count and not cut else whole.cut()

    @classmethod
    def of(
        cls,
        logits: Any,
        labels: Any,
        *,
        weights: Any = None,
        groups: Any = None,
        features: Mapping[str, Any] | None = None,
    ) -> "MemoryRows":
        """Check the data and return its rows, without rows of weight 0, which must not count in bins or folds.

        Args:
            logits: (N, K) floating-point logits.
            labels: (N,) integers in [0, K).
            weights: (N,) numbers ≥ 0, or None.
            groups: (N,) integers or names, or None.
            features: Dict from names to columns (N,), or None.

        Raises:
            InputError: If the data are not valid.
        """
        z = as_tensor(logits, name="logits")
        check_logits(z)
        rows = int(z.shape[0])
        y = check_labels(as_tensor(labels, name="labels").to(z.device), rows=rows, classes=z.shape[1])
        w = None if weights is None else check_weights(weights, rows=rows, device=z.device)
        g = None if groups is None else check_groups(groups, rows=rows)
        whole = Batch(z, y, w, g, check_features(features, rows=rows) or {} if features else {})
        return cls(whole if w is None or bool((w > 0).all()) else whole.selected(w > 0))

    @property
    def uncut(self) -> "MemoryRows":
        """The same rows as one batch, or unchanged if they are the result of ``map``."""
        return self if self.whole is None else MemoryRows(self.whole, cut=False)

    def normalized(self) -> "MemoryRows":
        """Return the same rows with weights scaled to mean 1."""
        return MemoryRows(_reweighted(self.gathered(), self.count / self.mass)) if self.weighted else self

    def fold(self, work: Work, *parameters: Any) -> Any:
        """Return Σ ``work(batch, *parameters)``, or None if there are no batches."""
        return added(work(batch, *parameters) for batch in self.batches)

    def map(self, make: Work, *parameters: Any) -> "MemoryRows":
        """Return a source whose batches are the results of ``make`` for every batch."""
        rows = copy.copy(self)
        rows.batches, rows.whole = [make(batch, *parameters) for batch in self.batches], None
        return rows

    def gathered(self, *, values: int = 0, why: str = "") -> Batch:
        """Return all rows as one batch; there is no limit on their number."""
        return Batch.cat(self.batches) if self.whole is None else self.whole


def added(results: Iterable[Any]) -> Any:
    """Return the sum of results that support ``+``, or the entry-wise sum of tuples; None if there are no results."""
    first = next(remaining := iter(results), None)
    return None if first is None else reduce(_sum_of_two, remaining, first)


def _sum_of_two(left: Any, right: Any) -> Any:
    """Return ``left + right``, or for tuples the tuple of sums of their entries."""
    return tuple(map(_sum_of_two, left, right)) if isinstance(left, tuple) else left + right


def _itself(batch: Any) -> Any:
    """Return ``batch``; a function at module level can be sent to a worker process."""
    return batch


def _reweighted(batch: Batch, factor: float) -> Batch:
    """Return ``batch`` with its weights multiplied by ``factor``."""
    return replace(batch, weights=batch.row_weights * factor)


def _list_of_one(batch: Any, work: Work, parameters: tuple[Any, ...]) -> list[Any]:
    """Return the result of ``work`` for ``batch`` as a list, so that adding results concatenates them."""
    return [work(batch, *parameters)]
