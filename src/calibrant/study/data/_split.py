"""The splits of a data set for training, validation and testing, and how batches of each are made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

Prepare = Callable[[Tensor], Tensor]
Augment = Callable[[Tensor, torch.Generator], Tensor]


class Split(Protocol):
    """Labelled samples of one split."""

    @property
    def labels(self) -> Tensor:
        """(N,) int64."""

    @property
    def decided(self) -> tuple[int, ...]:
        """Classes that a prediction may have; () for all."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def to(self, device: torch.device) -> "Split":
        """Return the split with its arrays on ``device``."""

    def batch(self, rows: Tensor, *, training: bool = False) -> tuple[Any, Tensor]:
        """Return the network's input for the samples ``rows``, and the labels of its outputs.

        Args:
            rows: (B,) int64.
            training: Whether to train on, where that differs (a tree is trained on all its nodes, judged at its root).
        """


@dataclass(frozen=True, eq=False)
class TensorSplit:
    """Samples that are rows of one tensor.

    Args:
        inputs: (N, …) of any dtype, as compact as the data are.
        labels: (N,) int64.
        prepare: Makes a network's input of a batch of rows, or None.
    """

    inputs: Tensor
    labels: Tensor
    prepare: Prepare | None = None

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    @property
    def decided(self) -> tuple[int, ...]:
        """Empty: a prediction may have any class."""
        return ()

    def __getitem__(self, rows: Any) -> "TensorSplit":
        return replace(self, inputs=self.inputs[rows], labels=self.labels[rows])

    def to(self, device: torch.device) -> "TensorSplit":
        """Return the split with its tensors on ``device``."""
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))

    def batch(self, rows: Tensor, *, training: bool = False) -> tuple[Tensor, Tensor]:
        """Return inputs (B, …) and labels (B,) of ``rows``, for training and evaluation alike."""
        inputs = self.inputs[rows]
        return inputs if self.prepare is None else self.prepare(inputs), self.labels[rows]


@dataclass(frozen=True, eq=False)
class Fold:
    """The three splits of one run: ``train`` for training, ``validation`` for choices and fits, ``test`` for evaluation alone.

    Args:
        train: Samples to train on.
        validation: Samples that AdaFocal, selection and temperature may use.
        test: Samples that nothing but the measurement uses.
        sizes: What a network must know of the data: ``{"classes": K, …}``, and word vectors where there are some.
        augment: Changes a prepared batch of training inputs, or None.
        ood: Out-of-distribution sets by name: predicted by the trained network, and nothing else.
    """

    train: Split
    validation: Split
    test: Split
    sizes: Mapping[str, Any]
    augment: Augment | None = None
    ood: Mapping[str, Split] = field(default_factory=dict)

    def to(self, device: torch.device) -> "Fold":
        """Return the fold with the arrays of its three splits on ``device``; out-of-distribution sets move when they are predicted."""
        moved = {name: getattr(self, name).to(device) for name in ("train", "validation", "test")}
        return replace(self, **moved)
