"""Out-of-distribution data, for prediction only: noise, test images corrupted as in CIFAR-10-C, and images of other data sets.

A recipe names them with its data: ``data = {name = "cifar10", ood = ["svhn", {name = "pure-noise", deviation = 0.5}]}``.
"""

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from calibrant.errors import InputError, optional
from calibrant.study.data._split import Split, TensorSplit, data_folder
from calibrant.study.data.images import Corrupted, read_images
from calibrant.study.record import NonNegative, Real, Size, naming, record, require_once

NOISE_STREAM = 20260103  # makes this noise independent of other draws with the same seed
ROWS = 4096  # images per block
# parameters of corruptions by severity: standard deviations of a blur in pixels, factors on the contrast, JPEG qualities
DEVIATIONS = (0.4, 0.6, 0.7, 0.8, 1.0)
FACTORS = (0.75, 0.5, 0.4, 0.3, 0.15)
QUALITIES = (80, 65, 58, 50, 40)


class Outside(ABC):
    """The base class of out-of-distribution sets, whose options are the fields of a record."""

    @abstractmethod
    def of(self, inside: TensorSplit, *, name: str, seed: int, folder: Path | None) -> TensorSplit:
        """Return the samples of the set, with the shape and preprocessing of the test samples ``inside``."""


def _noisy(inside: TensorSplit, seed: int, draw: Callable[[Tensor, Tensor], Tensor]) -> TensorSplit:
    """Return noisy samples, as many as in ``inside``; images are clipped to [0, 1] and rounded down to bytes.

    Args:
        inside: The test samples.
        seed: Seed of the noise.
        draw: Function that makes samples from test samples and standard normal numbers of the same shape.
    """
    # drawn by NumPy on the CPU, so that the noise is the same on every device
    rng, parts = np.random.default_rng([NOISE_STREAM, seed]), []
    whole = inside.inputs.dtype == torch.uint8
    for rows in inside.inputs.split(ROWS):
        noise = torch.from_numpy(rng.standard_normal(tuple(rows.shape), dtype=np.float32))
        drawn = draw(rows.float() / (255 if whole else 1), noise)
        parts.append((drawn.clamp(0, 1) * 255).to(torch.uint8) if whole else drawn)
    return replace(inside, inputs=torch.cat(parts))


@record
class GaussianNoise(Outside):
    """The test samples with Gaussian noise added, as in CIFAR-10-C.

    Args:
        deviation: Standard deviation of the noise on pixels in [0, 1]; 0.1 is severity 5 of CIFAR-10-C.

    References:
        Hendrycks & Dietterich 2019 (CIFAR-10-C); Ghosh et al. 2022 (AdaFocal), Figure on OOD detection.
    """

    deviation: NonNegative = 0.1

    def of(self, inside: TensorSplit, *, name: str, seed: int, folder: Path | None) -> TensorSplit:
        """Return x + σ ε."""
        return _noisy(inside, seed, lambda pixels, noise: pixels + self.deviation * noise)


@record
class PureNoise(Outside):
    """Pure Gaussian noise.

    Args:
        mean: Mean of every pixel, in [0, 1].
        deviation: Standard deviation of every pixel.

    References:
        Liang et al. 2018 (ODIN), Appendix.
    """

    mean: Real = 0.5
    deviation: NonNegative = 1.0

    def of(self, inside: TensorSplit, *, name: str, seed: int, folder: Path | None) -> TensorSplit:
        """Return μ + σ ε."""
        return _noisy(inside, seed, lambda _, noise: self.mean + self.deviation * noise)


@record
class Corruption(Outside):
    """The test images, each corrupted separately.

    The images keep their labels, so that the ECE under this shift can be measured.

    Args:
        kind: ``"gaussian-blur"``, ``"contrast"`` (which moves pixels towards the mean of their channel) or ``"jpeg"``.
        severity: From 1 to 5. The blur has a standard deviation of .4, .6, .7, .8 or 1 pixel, the contrast multiplies the
            distance from the mean by .75, .5, .4, .3 or .15, and the JPEG quality is 80, 65, 58, 50 or 40.

    References:
        Hendrycks & Dietterich 2019, code of CIFAR-10-C.
    """

    kind: Corrupted
    severity: Annotated[Size, Field(le=5)] = 5

    def of(self, inside: TensorSplit, *, name: str, seed: int, folder: Path | None) -> TensorSplit:
        """Return the corrupted images, in the same order.

        Raises:
            InputError: If the samples are not images of bytes.
        """
        if inside.inputs.dtype != torch.uint8:
            raise InputError(f"images for the ood set {name!r} to corrupt", "rows of numbers", "leave it out")
        images = np.stack([self._worse(image.numpy()) for image in inside.inputs.cpu()])
        return replace(inside, inputs=torch.from_numpy(images).to(inside.inputs.device))

    def _worse(self, image: np.ndarray) -> np.ndarray:
        """Return the corrupted image (H, W, 3) as bytes, clipped and rounded down as in CIFAR-10-C."""
        level, pixels = self.severity - 1, image / 255.0
        if self.kind == "jpeg":
            with optional("PIL", extra="study"):
                from PIL import Image
            file = io.BytesIO()
            Image.fromarray(image).save(file, "JPEG", quality=QUALITIES[level])
            with Image.open(file) as found:
                return np.asarray(found.convert("RGB"))
        if self.kind == "contrast":
            mean = pixels.mean(axis=(0, 1), keepdims=True)
            worse = mean + FACTORS[level] * (pixels - mean)
        else:  # within each channel
            from scipy.ndimage import gaussian_filter

            worse = gaussian_filter(pixels, (DEVIATIONS[level], DEVIATIONS[level], 0), mode="nearest")
        return (np.clip(worse, 0, 1) * 255).astype(np.uint8)


@record
class OtherImages(Outside):
    """The test images of another data set, resized to the size of the data's own images."""

    def of(self, inside: TensorSplit, *, name: str, seed: int, folder: Path | None) -> TensorSplit:
        """Return the images without labels, because they have other classes."""
        place = None if folder is None else str(data_folder(folder.parent / name, name=f"the ood set {name!r}"))
        pixels, size = torch.from_numpy(read_images(name, "test", place)[0]), inside.inputs.shape[1:3]
        if pixels.shape[1:3] != size:
            pixels = torch.cat([_resized(rows, size) for rows in pixels.split(ROWS)])
        return replace(inside, inputs=pixels, labels=torch.full((len(pixels),), -1))


# sets that are made from the data or from noise; all other names are data sets
KINDS: Mapping[str, Callable[..., Outside]] = {
    "gaussian-noise": GaussianNoise,
    "pure-noise": PureNoise,
    **{kind: partial(Corruption, kind) for kind in get_args(Corrupted)},
}


def outside_of(entries: Sequence[Any], *, known: Sequence[str]) -> dict[str, Outside]:
    """Return the out-of-distribution sets of a recipe by name, without reading any data.

    Args:
        entries: Names, or tables with a ``name`` and options.
        known: Names of the sets that the data can be combined with; empty for text.

    Raises:
        InputError: If a set is unknown, is named twice, or does not have such options.
    """
    tables = [dict(entry) if isinstance(entry, Mapping) else {"name": entry} for entry in entries]
    require_once([table.get("name") for table in tables], name="the ood sets")
    made = {}
    for table in tables:
        name = table.pop("name", None)
        if name not in known:
            raise InputError(f"ood sets among {', '.join(known) or 'none (text)'}", f"{name!r}", "choose among these")
        with naming(f"ood set {name!r}"):
            made[name] = KINDS.get(name, OtherImages)(**table)
    return made


def ood_splits(sets: Mapping[str, Outside], *, inside: Split, seed: int, folder: Path | None) -> dict[str, Split]:
    """Return the samples of out-of-distribution sets, preprocessed like the test samples.

    Args:
        sets: The result of ``outside_of``.
        inside: The test samples, which determine the shape, and which ``"gaussian-noise"`` is added to.
        seed: Seed for drawing noise and samples.
        folder: Folder of the data set. The folders of other data sets must be next to it. None downloads from the hub.

    Raises:
        FileFormatError: If the folder of another data set does not exist.
    """
    if not sets:
        return {}
    if not isinstance(inside, TensorSplit) or inside.inputs.dtype not in (torch.uint8, torch.float32):
        raise InputError("images or rows of numbers for ood sets", f"{type(inside).__name__}", "leave ood out")
    return {name: one.of(inside, name=name, seed=seed, folder=folder) for name, one in sets.items()}


def _resized(pixels: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return uint8 images (N, H, W, 3) in another size, by bilinear interpolation with antialiasing."""
    moved = pixels.permute(0, 3, 1, 2).float()
    out = F.interpolate(moved, size=size, mode="bilinear", antialias=True, align_corners=False)
    return out.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
