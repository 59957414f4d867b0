"""What a data set of a recipe is: its options, the sizes known before a file is read, splits with their batches, the papers' rules."""

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
    """Labelled samples of one split."""

    @property
    def labels(self) -> Tensor:
        """(N,) int64."""

    @property
    def decided(self) -> tuple[int, ...]:
        """Classes among which predictions are decided; () for all."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def to(self, device: torch.device) -> "Split":
        """Return the split with its arrays on ``device``."""

    def batch(self, rows: Tensor, *, training: bool = False) -> tuple[Any, Tensor]:
        """Return the network's input for the samples ``rows``, and the labels of its outputs.

        Args:
            rows: (B,) int64.
            training: Whether the batch is for training, if that differs (trees: all nodes in training, the root in evaluation).
        """


@dataclass(frozen=True, eq=False)
class TensorSplit:
    """Samples that are rows of one tensor.

    Args:
        inputs: (N, …) of any dtype, as compact as the data are.
        labels: (N,) int64.
        prepare: Converts a batch of rows to a network's input, or None.
        decided: As in ``Split``: predictions may have any class.
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
        """Return inputs (B, …) and labels (B,) of ``rows``, for training and evaluation alike."""
        inputs = self.inputs[rows]
        return inputs if self.prepare is None else self.prepare(inputs), self.labels[rows]


@dataclass(frozen=True, eq=False)
class Fold:
    """The three splits of one run: ``train`` for training, ``validation`` for selection and fits, ``test`` for evaluation only.

    Args:
        train: Samples to train on.
        validation: Samples for AdaFocal, selection of the epoch, and the temperature.
        test: Samples for evaluation only.
        sizes: Sizes of the data that a network needs: ``{"classes": K, …}``, and word vectors if there are any.
        augment: Augments a prepared batch of training inputs, or None.
        ood: Out-of-distribution sets by name, for prediction only.
    """

    train: Split
    validation: Split
    test: Split
    sizes: Mapping[str, Any]
    augment: Augment | None = None
    ood: Mapping[str, Split] = field(default_factory=dict)

    def to(self, device: torch.device) -> "Fold":
        """Return the fold with the arrays of its three splits on ``device``; out-of-distribution sets, read once, are moved then."""
        moved = {name: getattr(self, name).to(device) for name in ("train", "validation", "test")}
        return replace(self, **moved)


class DataSet(ABC):
    """Data of a recipe; their options are the fields of a record."""

    outside: tuple[str, ...] = ("gaussian-noise", "pure-noise")  # names that ``ood`` may have

    @abstractmethod
    def sizes(self) -> dict[str, Any]:
        """Return what a network needs to be built, such as ``classes`` and ``inputs``; without reading where that is possible."""

    @abstractmethod
    def load(self, *, seed: int, fold: int) -> Fold:
        """Return the training, validation and test splits; ``seed`` is used if samples have to be selected at random."""

    def sample(self) -> Tensor | None:
        """Return two samples on the meta device (without values), or None for trees and for data of unknown shape."""
        return torch.empty(2, self.sizes()["inputs"], device="meta")


def data_folder(place: Path, *, name: str) -> Path:
    """Return the folder of the data set ``name``, or raise ``FileFormatError`` if there is none."""
    if not place.is_dir():
        raise FileFormatError(f"the folder of {name}", f"no such folder: {shown(place)}", "check the path")
    return place


def draw_rows(rows: Indices, count: int | None, *, seed: int, what: str) -> Indices:
    """Return ``count`` of the rows, drawn by the seed, or all in their order for None.

    Raises:
        InputError: If there are fewer: the record would be that of another experiment.
    """
    if count is None:
        return rows
    if count > len(rows):
        raise InputError(f"at most {len(rows)} {what}", f"{count}", "ask for fewer")
    return np.random.default_rng(seed).permutation(rows)[:count]


def split_rows(
    rows: int, *, validation: int, rule: str, seed: int, labels: Indices | None = None
) -> tuple[Indices, Indices]:
    """Return the rows to train on and those to validate on.

    Args:
        rows: N.
        validation: Number of validation rows.
        rule: ``"mukhoti"``: the first rows after shuffling by numpy's legacy generator; ``"wang"``: the last rows of a
            permutation by it; ``"plain"``: as "wang" by numpy's current generator; ``"per-class"``: equally many of each class
            (50 per class of Tiny-ImageNet in Mukhoti et al.), drawn by the current generator.
        seed: 1 in the code of Mukhoti et al., 101 … in that of Wang et al.
        labels: (N,) classes, for ``"per-class"``.

    Raises:
        InputError: If there are too few samples, or ``validation`` is not a multiple of the number of classes.
    """
    if not 0 < validation < rows:
        raise InputError(f"validation in 1 … {rows - 1} samples", f"{validation}", "ask for fewer")
    if rule == "per-class" and labels is not None:
        classes, counts = np.unique(labels, return_counts=True)
        # the same number of each class, so that a class is never without validation rows
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
