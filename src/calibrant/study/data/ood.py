"""Out-of-distribution data: inputs of the same shape from other sources, for prediction only.

``data = {name = "cifar10", ood = ["gaussian-noise", "svhn", {name = "pure-noise", deviation = 0.5}]}``
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant.errors import InputError
from calibrant.study.data._split import Outside, Split, TensorSplit, data_folder, draw_rows
from calibrant.study.data.corruptions import CORRUPTIONS
from calibrant.study.data.images import read_images
from calibrant.study.record import NonNegative, Real, Size, naming, record, require_once

NOISE_STREAM = 20260103  # makes this noise independent of other draws with the same seed
ROWS = 4096  # images per block


class Noise(Outside):
    """Noise, clipped to [0, 1] and rounded down to bytes where the samples are images."""

    def of(self, inside: TensorSplit, *, name: str, seed: int, folder: Path | None) -> TensorSplit:
        """Return as many samples as there are in ``inside``."""
        # drawn by NumPy on the CPU: the same noise on every device
        rng, parts = np.random.default_rng([NOISE_STREAM, seed]), []
        whole = inside.inputs.dtype == torch.uint8
        for rows in inside.inputs.split(ROWS):
            noise = torch.from_numpy(rng.standard_normal(tuple(rows.shape), dtype=np.float32))
            drawn = self.drawn(rows.float() / (255 if whole else 1), noise)
            parts.append((drawn.clamp(0, 1) * 255).to(torch.uint8) if whole else drawn)
        return replace(inside, inputs=torch.cat(parts))

    @abstractmethod
    def drawn(self, pixels: Tensor, noise: Tensor) -> Tensor:
        """Return samples from those of the data and from standard normal numbers of their shape."""


@record
class GaussianNoise(Noise):
    """The test samples with noise added, as in CIFAR-10-C.

    Args:
        deviation: Standard deviation on pixels in [0, 1]; 0.1 is severity 5 of CIFAR-10-C.

    References:
        Hendrycks & Dietterich 2019 (CIFAR-10-C); Ghosh et al. 2022 (AdaFocal), Figure on OOD detection.
    """

    deviation: NonNegative = 0.1

    def drawn(self, pixels: Tensor, noise: Tensor) -> Tensor:
        """Return x + σ ε."""
        return pixels + self.deviation * noise


@record
class PureNoise(Noise):
    """Noise alone.

    Args:
        mean: Mean of every pixel, in [0, 1].
        deviation: Standard deviation of every pixel.

    References:
        Liang et al. 2018 (ODIN), Appendix.
    """

    mean: Real = 0.5
    deviation: NonNegative = 1.0

    def drawn(self, pixels: Tensor, noise: Tensor) -> Tensor:
        """Return μ + σ ε."""
        return self.mean + self.deviation * noise


@record
class OtherImages(Outside):
    """The test images of another data set, resized to the size of the data's if they have another.

    Args:
        test: Number of images to use, drawn by the seed; None is all.
    """

    test: Size | None = None

    def of(self, inside: TensorSplit, *, name: str, seed: int, folder: Path | None) -> TensorSplit:
        """Return the images, without labels: their classes are others."""
        place = None if folder is None else str(data_folder(folder.parent / name, name=f"the ood set {name!r}"))
        images = read_images(name, "test", place)[0]
        rows = draw_rows(np.arange(len(images)), self.test, seed=seed, what=f"test images of {name}")
        pixels = torch.from_numpy(images)[rows]
        size = inside.inputs.shape[1:3]
        if pixels.shape[1:3] != size:
            pixels = torch.cat([_resized(rows, size) for rows in pixels.split(ROWS)])
        return replace(inside, inputs=pixels, labels=torch.full((len(pixels),), -1))


KINDS: Mapping[str, Callable[..., Outside]] = {
    "gaussian-noise": GaussianNoise,
    "pure-noise": PureNoise,
    **CORRUPTIONS,
}  # of those that are made of the data; other names are data sets


def outside_of(entries: Sequence[Any], *, known: Sequence[str]) -> dict[str, Outside]:
    """Return the out-of-distribution sets of a recipe, by name, before anything is read.

    Args:
        entries: Names, or tables with a ``name`` and options.
        known: Names of those that can stand beside the data; none beside text.

    Raises:
        InputError: If one is unknown, named twice, or has other options.
    """
    tables = [dict(entry) if isinstance(entry, Mapping) else {"name": entry} for entry in entries]
    require_once([table.get("name") for table in tables], name="the ood sets")
    made = {}
    for table in tables:
        name = table.pop("name", None)
        if name not in known:
            raise InputError(f"ood sets of {', '.join(known) or 'none (text)'}", f"{name!r}", "choose among these")
        with naming(f"ood set {name!r}"):
            made[name] = KINDS.get(name, OtherImages)(**table)
    return made


def ood_splits(sets: Mapping[str, Outside], *, inside: Split, seed: int, folder: Path | None) -> dict[str, Split]:
    """Return the samples of out-of-distribution sets, preprocessed like the test samples.

    Args:
        sets: The result of ``outside_of``.
        inside: The test samples: they set the shape, and ``"gaussian-noise"`` is added to them.
        seed: Draws noise and samples.
        folder: Folder of the data set; those of other data sets must have the same parent. None downloads from the hub.

    Raises:
        FileFormatError: If the folder of another data set does not exist.
    """
    if not sets:
        return {}
    if not isinstance(inside, TensorSplit) or inside.inputs.dtype not in (torch.uint8, torch.float32):
        raise InputError("images or rows of numbers beside ood sets", f"{type(inside).__name__}", "leave ood out")
    return {name: one.of(inside, name=name, seed=seed, folder=folder) for name, one in sets.items()}


def _resized(pixels: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return images (N, H, W, 3) uint8 in another size, bilinear with antialiasing."""
    moved = pixels.permute(0, 3, 1, 2).float()
    out = F.interpolate(moved, size=size, mode="bilinear", antialias=True, align_corners=False)
    return out.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
