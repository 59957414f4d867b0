"""Data sets of arrays in memory: scikit-learn's handwritten digits, and data that a user's function returns."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from calibrant._core.config import imported
from calibrant.errors import InputError, optional
from calibrant.study.data._split import DataSet, Fold, TensorSplit
from calibrant.study.record import Count, NonNegative, Size, record

IMAGES = 1797
SPLIT_SEED, NOISE_SEED = 20260101, 20260102  # fixed: folds and noise are the same for every seed of a study


@record
class Digits(DataSet):
    """The 1,797 handwritten digits of scikit-learn, made harder by noise and by a small training set.

    Each image is a test image in exactly one fold.

    Args:
        folds: Number of folds, from 2 to the number of images.
        noise: Standard deviation of the Gaussian noise on pixels in [0, 1].
        train: Number of training images. Like the validation images, they are drawn by the seed from the other folds.
        validation: Number of validation images.
    """

    folds: Annotated[Count, Field(ge=2, le=IMAGES)] = 5
    noise: NonNegative = 0.22
    train: Size = 400
    validation: Size = 400

    def __post_init__(self) -> None:
        # array_split makes the first parts larger, so the first fold leaves the fewest images for training
        rest, asked = IMAGES - -(-IMAGES // self.folds), self.train + self.validation
        if asked > rest:
            raise InputError(f"train + validation ≤ {rest}", f"{asked}", "ask for fewer images")

    def sizes(self) -> dict[str, Any]:
        """Return the sizes."""
        return {"classes": 10, "inputs": 64}

    def load(self, *, seed: int, fold: int) -> Fold:
        """Return one fold.

        Raises:
            MissingExtraError: If scikit-learn is not installed.
        """
        with optional("scikit-learn", extra="study"):
            from sklearn.datasets import load_digits
        found = load_digits()
        pixels = found.data / 16 + np.random.default_rng(NOISE_SEED).normal(0, self.noise, found.data.shape)
        labels = torch.from_numpy(found.target.astype(np.int64))
        whole = TensorSplit(torch.from_numpy(pixels.astype(np.float32)), labels)  # (1797, 64)
        parts = np.array_split(np.random.default_rng(SPLIT_SEED).permutation(len(labels)), self.folds)
        rest = np.concatenate([part for index, part in enumerate(parts) if index != fold])
        drawn = np.random.default_rng([SPLIT_SEED, seed, fold]).permutation(rest)
        held = drawn[self.train : self.train + self.validation]
        return Fold(whole[drawn[: self.train]], whole[held], whole[np.sort(parts[fold])], self.sizes())


class Module(DataSet):
    """Data that a user's function returns.

    Args:
        module: The function, as ``"module:function"``. It returns a ``Fold``, or {"train": (x, y), "val": …, "test": …} with
            arrays or Datasets. It is called with ``seed`` and ``fold`` if it has such arguments.
        folds: Number of folds.
        options: Further arguments of the function, from the recipe's data options.
    """

    def __init__(self, module: str, folds: int = 1, **options: Any) -> None:
        self.module, self.folds, self.options = module, folds, options

    def sizes(self) -> dict[str, Any]:
        """Return no sizes, because they are known only once the function is called."""
        return {}

    def load(self, *, seed: int, fold: int) -> Fold:
        """Call the function and return its splits.

        Raises:
            InputError: If the function cannot be imported, or does not return splits.
        """
        function = imported(self.module)
        accepted = inspect.signature(function).parameters
        given = {name: value for name, value in (("seed", seed), ("fold", fold)) if name in accepted}
        found = function(**given, **self.options)
        if isinstance(found, Fold):
            return found
        if not isinstance(found, Mapping) or set(found) != {"train", "val", "test"}:
            wanted = f'a Fold, or {{"train": (x, y), "val": …, "test": …}}, from {self.module!r}'
            got = f"{sorted(found)}" if isinstance(found, Mapping) else type(found).__name__
            raise InputError(wanted, got, "return one")
        train, val, test = (TensorSplit(*self._tensors(found[name], name)) for name in ("train", "val", "test"))
        classes = 1 + max(int(split.labels.max()) for split in (train, val, test))
        return Fold(train, val, test, {"classes": classes, "inputs": train.inputs[0].numel()})

    def _tensors(self, part: Any, name: str) -> tuple[Tensor, Tensor]:
        """Return the inputs (N, …) and the labels (N,) of a split."""
        if not isinstance(part, Sequence) or len(part) != 2 or isinstance(part, torch.utils.data.Dataset):
            items = [part[index] for index in range(len(part))]  # a Dataset of (x, y)
            part = torch.stack([torch.as_tensor(x) for x, _ in items]), torch.tensor([int(y) for _, y in items])
        x, y = (torch.as_tensor(np.asarray(one)) for one in part)
        if x.dim() < 2 or y.shape != x.shape[:1] or y.is_floating_point() or not len(y) or bool((y < 0).any()):
            wanted = f"inputs (N, …) and labels (N,) of 0, 1, … in {name!r} from {self.module!r}"
            raise InputError(wanted, f"{x.dtype} {tuple(x.shape)} and {y.dtype} {tuple(y.shape)}", "correct it")
        return x if x.dtype == torch.int64 else x.to(torch.float32), y.to(torch.int64)  # int64: tokens
