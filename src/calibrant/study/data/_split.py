"""Base classes of data sets and splits, and the papers' rules for splitting.

A data set has options, sizes that are known before a file is read, and splits that return batches.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant._files import shown
from calibrant.errors import FileFormatError, InputError

CPU = torch.device("cpu")
Indices = npt.NDArray[np.int64]
Prepare = Callable[[Tensor], Tensor]
Augment = Callable[[Tensor, torch.Generator], Tensor]


class Split(Protocol):
    """The interface of a split: labelled samples that can be moved to a device and returned in batches.

    Examples:
        >>> split: Split = TensorSplit(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))
        >>> inputs, labels = split.batch(torch.tensor([0, 3]))
        >>> inputs.shape, labels
        (torch.Size([2, 2]), tensor([0, 1]))
    """

    @property
    def labels(self) -> Tensor:
        """The labels, (N,) int64."""

    @property
    def decided(self) -> tuple[int, ...]:
        """The classes among which predictions are decided; () for all classes."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def to(self, device: torch.device) -> "Split":
        """Return the split with its arrays on ``device``."""

    def batch(self, rows: Tensor, *, training: bool = False) -> tuple[Any, Tensor]:
        """Return the network's input for the samples ``rows``, and the labels of its outputs.

        Args:
            rows: (B,) int64 indices of the samples.
            training: Whether the batch is for training. This matters for trees, whose nodes all count in training, while
                only the root counts in evaluation, and for images that are cropped at random.
        """


@dataclass(frozen=True, eq=False)
class TensorSplit:
    """A split whose samples are the rows of one tensor.

    Args:
        inputs: (N, …) samples in any dtype, such as compact bytes.
        labels: (N,) int64 labels.
        prepare: Function that converts a batch of rows to the network's input, or None.
        decided: As in ``Split``.

    Examples:
        >>> split = TensorSplit(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))
        >>> len(split), split[:2].labels
        (4, tensor([0, 1]))
    """

    inputs: Tensor
    labels: Tensor
    prepare: Prepare | None = None
    decided: tuple[int, ...] = ()

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    def __getitem__(self, rows: Any) -> "TensorSplit":
        return replace(self, inputs=self.inputs[rows], labels=self.labels[rows])

    def to(self, device: torch.device) -> "TensorSplit":
        """Return the split with its tensors on ``device``."""
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))

    def batch(self, rows: Tensor, *, training: bool = False) -> tuple[Tensor, Tensor]:
        """Return the inputs (B, …) and labels (B,) of ``rows``, which are the same for training and evaluation."""
        inputs = self.inputs[rows]
        return inputs if self.prepare is None else self.prepare(inputs), self.labels[rows]


@dataclass(frozen=True, eq=False)
class Fold:
    """The training, validation and test splits of one run.

    Args:
        train: Samples to train on.
        validation: Samples for adapting AdaFocal, selecting the epoch, and fitting calibrators.
        test: Samples for evaluation only.
        sizes: Sizes of the data that a network needs, ``{"classes": K, …}``, and word vectors if there are any.
        augment: Function that augments a prepared batch of training inputs, or None.
        ood: Dict from names to out-of-distribution sets, for prediction only.

    Examples:
        >>> split = TensorSplit(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))
        >>> fold = Fold(split[:2], split[2:3], split[3:], sizes={"classes": 2, "inputs": 2})
        >>> len(fold.train), len(fold.test)
        (2, 1)
    """

    train: Split
    validation: Split
    test: Split
    sizes: Mapping[str, Any]
    augment: Augment | None = None
    ood: Mapping[str, Split] = field(default_factory=dict)

    def to(self, device: torch.device) -> "Fold":
        """Return the fold with the arrays of its three splits on ``device``.

        Out-of-distribution sets stay where they are, and are moved when they are read.
        """
        moved = {name: getattr(self, name).to(device) for name in ("train", "validation", "test")}
        return replace(self, **moved)


class DataSet(ABC):
    """The base class of data sets, whose options are the fields of a record."""

    outside: tuple[str, ...] = ("gaussian-noise", "pure-noise")  # names that ``ood`` may have

    @abstractmethod
    def sizes(self) -> dict[str, Any]:
        """Return the sizes that building a network requires, such as ``classes`` and ``inputs``.

        If possible, no data are read.
        """

    @abstractmethod
    def load(self, *, seed: int, fold: int) -> Fold:
        """Return the training, validation and test splits; ``seed`` is used if samples are drawn at random."""


def data_folder(place: Path, *, name: str) -> Path:
    """Return the folder of the data set ``name``, or raise ``FileFormatError`` if there is none."""
    if not place.is_dir():
        raise FileFormatError(f"the folder of {name}", f"no such folder: {shown(place)}", "check the path")
    return place


def draw_rows(rows: Indices, count: int | None, *, seed: int, what: str) -> Indices:
    """Return ``count`` of the rows, drawn by the seed, or all rows in order if ``count`` is None.

    Raises:
        InputError: If there are fewer rows, because this would be another experiment.
    """
    if count is None:
        return rows
    if count > len(rows):
        raise InputError(f"at most {len(rows)} {what}", f"{count}", "ask for fewer")
    return np.random.default_rng(seed).permutation(rows)[:count]


def split_rows(
    rows: int, *, validation: int, rule: str, seed: int, labels: Indices | None = None
) -> tuple[Indices, Indices]:
    """Return the rows to train on and the rows to validate on.

    Args:
        rows: Number of rows N.
        validation: Number of validation rows.
        rule: Which rows are for validation. ``"mukhoti"``: the first rows after shuffling by NumPy's legacy generator;
            ``"wang"``: the last rows of a permutation by the legacy generator; ``"plain"``: the last rows of a permutation
            by NumPy's current generator; ``"per-class"``: the same number of rows from each class (50 per class for
            Tiny-ImageNet in Mukhoti et al.), drawn by the current generator.
        seed: Seed of the generator; 1 in the code of Mukhoti et al., and 101 … in the code of Wang et al.
        labels: (N,) classes, for ``"per-class"``.

    Raises:
        InputError: If there are too few samples, or ``validation`` is not a multiple of the number of classes.
    """
    if not 0 < validation < rows:
        raise InputError(f"validation in 1 … {rows - 1} samples", f"{validation}", "ask for fewer")
    if rule == "per-class" and labels is not None:
        classes, counts = np.unique(labels, return_counts=True)
        # the same number from each class, so that every class has validation rows
        each, odd = divmod(validation, len(classes))
        if odd or each >= counts.min():
            wanted = f"a multiple of {len(classes)} (the classes) below {len(classes) * counts.min()} for validation"
            raise InputError(wanted, f"{validation}", "choose one")
        rng = np.random.default_rng(seed)
        held = np.concatenate([rng.permutation(np.flatnonzero(labels == k))[:each] for k in classes])
        return np.setdiff1d(np.arange(rows), held), held
    if rule == "mukhoti":
        listed = list(range(rows))
        np.random.RandomState(seed).shuffle(listed)  # shuffling a list draws the same swaps as np.random.seed + shuffle
        order = np.asarray(listed)
        return order[validation:], order[:validation]
    order = (np.random.RandomState(seed) if rule == "wang" else np.random.default_rng(seed)).permutation(rows)
    return order[: rows - validation], order[rows - validation :]
