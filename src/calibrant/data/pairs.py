"""Probabilities of binary events and their outcomes: what every binned error is computed from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import (
    as_tensor,
    check_groups,
    check_labels,
    check_row_tensor,
    check_unit_interval,
    refuse,
    shown,
)
from calibrant.data.record import (
    Features,
    WeightKind,
    need_positive,
    normalise_beside,
    taken_or_none,
    weights_and_features,
)


@dataclass(frozen=True, eq=False)
class BinaryPairs:
    """Probabilities of binary events and whether they happened: what every binned error is computed from.

    Args:
        p: (N,) float64 in [0, 1].
        y: (N,) float64, 0 or 1.
        predicted: (N,) int64 class of which ``p`` is the confidence, or None.
        labels: (N,) int64 true class, or None.
        groups: (N,) int64 group of each row, or None.
        weights: (N,) as in ``Predictions``, or None.
        weight_kind: "frequency" or "sampling", required with weights.
        features: Named columns (N,), as in ``Predictions``, or None.

    Examples:
        >>> BinaryPairs.from_probs([0.9, 0.6], [1, 0]).p
        tensor([0.9000, 0.6000], dtype=torch.float64)
    """

    p: Tensor
    y: Tensor
    predicted: Tensor | None = None
    labels: Tensor | None = None
    groups: Tensor | None = None
    weights: Tensor | None = None
    weight_kind: WeightKind | None = None
    features: Features | None = None

    def __post_init__(self) -> None:
        check_row_tensor(self.p, name="p", floating=True)
        for name in ("y", "predicted", "labels", "groups"):
            if (values := getattr(self, name)) is not None or name == "y":
                check_row_tensor(values, name=name, rows=self.p.shape[0])
        normalise_beside(self, rows=int(self.p.shape[0]), device=self.p.device)

    @classmethod
    def from_probs(
        cls,
        p: Any,
        y: Any,
        *,
        groups: Any = None,
        weights: Any = None,
        weight_kind: WeightKind | None = None,
        features: Mapping[str, Any] | None = None,
    ) -> "BinaryPairs":
        """Make pairs from probabilities ``p`` (N,) in [0, 1] and outcomes ``y`` (N,) in {0, 1}."""
        p = check_unit_interval(as_tensor(p, name="p"), name="p")
        y = as_tensor(y, name="y")
        y = y.to(torch.int64) if y.dtype == torch.bool else y
        y = check_labels(y, rows=p.shape[0], classes=2)
        clusters = check_groups(groups, rows=p.shape[0])
        beside = {"weights": need_positive(weights), "weight_kind": weight_kind, "features": features}
        return cls(p, y.to(torch.float64), groups=clusters, **beside)

    @classmethod
    def from_top_label(
        cls,
        conf: Any,
        pred: Any,
        label: Any,
        *,
        groups: Any = None,
        weights: Any = None,
        weight_kind: WeightKind | None = None,
        features: Mapping[str, Any] | None = None,
    ) -> "BinaryPairs":
        """Make pairs from top-label confidences (N,), predicted classes (N,) and true classes (N,)."""
        p = check_unit_interval(as_tensor(conf, name="conf"), name="conf")
        largest = 1 << 31
        predicted = check_labels(as_tensor(pred, name="pred"), rows=p.shape[0], classes=largest)
        labels = check_labels(as_tensor(label, name="label"), rows=p.shape[0], classes=largest)
        y = (predicted == labels).to(torch.float64)
        beside = {"weights": need_positive(weights), "weight_kind": weight_kind, "features": features}
        return cls(p, y, predicted, labels, check_groups(groups, rows=p.shape[0]), **beside)

    def top_label(self) -> "BinaryPairs":
        """Return self: these are pairs already."""
        return self

    @property
    def confidence(self) -> Tensor:
        """(N,) float64: the same as ``p``."""
        return self.p

    @property
    def correct(self) -> Tensor:
        """(N,) bool: whether the event happened."""
        return self.y > 0

    def __len__(self) -> int:
        return int(self.p.shape[0])

    def __getitem__(self, rows: Any) -> "BinaryPairs":
        """Return the selected rows (a slice, a boolean mask or row numbers)."""
        chosen = check_selection(rows, count=len(self))

        names = ("predicted", "labels", "groups")
        beside = {name: taken_or_none(getattr(self, name), chosen) for name in names}
        return BinaryPairs(self.p[chosen], self.y[chosen], **beside, **weights_and_features(self, chosen))


def check_selection(rows: Any, *, count: int) -> Any:
    """Return ``rows`` if it selects some of ``count`` rows: a slice, a mask, or indices.

    Raises:
        InputError: For a single row's number, a mask of another length, or an index out of range.
    """
    expected = f"a slice, a mask of {count} or row numbers in [{-count}, {count})"
    if isinstance(rows, slice):
        try:
            rows.indices(count)
        except TypeError as error:
            raise refuse(expected, f"{rows!r}", "slice by integers") from error
        if rows.step is None or rows.step > 0:
            return rows
        return torch.arange(count)[np.arange(count)[rows].copy()]  # tensors know no negative steps
    if isinstance(rows, int | np.integer) and not isinstance(rows, bool):
        remedy = f"pass [{rows}:{rows + 1 or ''}] for one row" if -count <= rows < count else "pass one of these"
        raise refuse(expected, f"the single number {shown(rows)}", remedy)
    if not isinstance(rows, list | range | np.ndarray | Tensor) or getattr(rows, "ndim", 1) == 0:
        raise refuse(expected, shown(rows), "pass one of these")
    picked = as_tensor(rows if len(rows) else np.zeros(0, dtype=np.int64), name="the rows")
    if picked.dim() != 1 or picked.is_floating_point():
        raise refuse(expected, f"{picked.dtype} {tuple(picked.shape)}", "pass one of these")
    if picked.dtype == torch.bool:
        if len(picked) != count:
            raise refuse(expected, f"a mask of {len(picked)}", "pass one entry a row")
        return picked
    picked = picked.long()
    if len(picked) and not all(-count <= int(end) < count for end in picked.aminmax()):
        raise refuse(expected, f"{[int(end) for end in picked.aminmax()]}", "number rows from 0")
    return picked
