"""Check of the disk space for a training's files before it begins, so that a full disk does not lose a finished training."""

import shutil
from pathlib import Path
from typing import Any

from torch import nn

from calibrant.errors import FileFormatError
from calibrant.study.data import Fold

__all__ = ["need_space"]

COPIES = 2  # of a checkpoint: the new one is written before the old one is deleted
MOMENTS = {"sgd": 1, "adam": 2, "adamw": 2, "adagrad": 1}  # size of the optimiser's state per parameter


def need_space(folder: Path, network: nn.Module, fold: Fold, *, optimizer: str) -> None:
    """Raise if a training's checkpoints and predictions do not fit on the disk of its folder.

    Args:
        folder: The existing folder where they are written.
        network: The network.
        fold: Its data.
        optimizer: Name of the optimiser.

    Raises:
        FileFormatError: With the bytes needed and free.
    """
    needed, free = bytes_of(network, fold, optimizer=optimizer), shutil.disk_usage(folder).free
    if needed > free:
        raise FileFormatError(
            f"{_megabytes(needed)} free for the files of one training",
            f"{_megabytes(free)} on the disk of {folder}",
            "free some, or choose another --store: finished trainings are kept",
        )


def bytes_of(network: nn.Module, fold: Fold, *, optimizer: str) -> int:
    """Return an upper bound on the bytes of the checkpoints and predictions of one training."""
    state = sum(value.numel() * value.element_size() for value in network.state_dict().values())
    checkpoint = state * (2 + MOMENTS[optimizer])  # the current network, the best one so far, the optimiser's state
    sets: list[Any] = [fold.validation, fold.test, *fold.ood.values()]
    rows = sum(len(split) for split in sets)
    return COPIES * checkpoint + rows * 4 * (int(fold.sizes["classes"]) + 4) + 16 * len(fold.train)


def _megabytes(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
