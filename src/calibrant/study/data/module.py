"""Data that a function of the user's own returns."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._core.config import imported
from calibrant.errors import InputError
from calibrant.study.data._split import DataSet, Fold, TensorSplit

PARTS = ("train", "val", "test")


@dataclass(frozen=True, init=False)
class Module(DataSet):
    """What a function of the user's own returns for the other options of the recipe's data.

    Args:
        module: ``"module:function"``; it returns a ``Fold``, or {"train": (x, y), "val": …, "test": …} of arrays or of Datasets. It is
            given ``seed`` and ``fold`` if it has such arguments.
        options: Passed on.
    """

    module: str
    options: dict[str, Any]

    def __init__(self, module: str, **options: Any) -> None:
        object.__setattr__(self, "module", module)
        object.__setattr__(self, "options", options)

    def sizes(self) -> dict[str, Any]:
        """Return none: they are known when the function is called."""
        return {}

    def sample(self) -> None:
        """Return None."""

    def load(self, *, seed: int, fold: int) -> Fold:
        """Return what the function returns.

        Raises:
            InputError: If it cannot be imported, or returns something else.
        """
        function = imported(self.module)
        accepted = inspect.signature(function).parameters
        given = {name: value for name, value in (("seed", seed), ("fold", fold)) if name in accepted}
        found = function(**given, **self.options)
        if isinstance(found, Fold):
            return found
        if not isinstance(found, Mapping) or set(found) != set(PARTS):
            wanted = f'a Fold, or {{"train": (x, y), "val": …, "test": …}}, from {self.module!r}'
            got = f"{sorted(found)}" if isinstance(found, Mapping) else type(found).__name__
            raise InputError(wanted, got, "return one")
        train, val, test = (TensorSplit(*self._tensors(found[name], name)) for name in PARTS)
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
