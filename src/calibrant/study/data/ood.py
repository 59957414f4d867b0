"""Out-of-distribution data: inputs of the same shape from other sources, for prediction only.

``data = {name = "cifar10", ood = ["gaussian-noise", "svhn", {name = "pure-noise", deviation = 0.5}]}``
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.check import check_count, check_number
from calibrant.errors import FileFormatError, InputError
from calibrant.study.data._split import Split, TensorSplit
from calibrant.study.data.images import test_pixels

NOISE_STREAM = 20260103  # makes this noise independent of other draws with the same seed
ROWS = 4096  # images per block


def ood_splits(
    entries: Sequence[str | Mapping[str, Any]], *, inside: Split, seed: int, folder: str | None
) -> dict[str, Split]:
    """Return the out-of-distribution sets of a recipe, by name, preprocessed like the test samples.

    Args:
        entries: Names, or tables with a ``name`` and options.
        inside: The test samples: they set the shape, and ``"gaussian-noise"`` is added to them.
        seed: Draws noise and samples.
        folder: Folder of the data set; those of other data sets must have the same parent. None downloads from the hub.

    Raises:
        InputError: If the data are not images or rows of numbers.
        FileFormatError: If the folder of another data set does not exist.
    """
    tables: list[dict[str, Any]] = [{"name": e} if isinstance(e, str) else dict(e) for e in entries]
    made: dict[str, Split] = {}
    for table in tables:  # checked by preview
        name = table.pop("name")
        if not isinstance(inside, TensorSplit) or (inside.inputs.dtype not in (torch.uint8, torch.float32)):
            raise InputError(f"images beside the ood set {name!r}", "text", "leave ood out")
        if name in MAKERS:
            made[name] = MAKERS[name](inside, seed=seed, **table)
        else:
            made[name] = _other(name, inside, seed=seed, folder=folder, **table)
    return made


def gaussian_noise(inside: TensorSplit, *, seed: int, deviation: float = 0.1) -> TensorSplit:
    """Return the test images with noise added, clipped to [0, 1] and rounded down to bytes as in CIFAR-10-C.

    Args:
        inside: Test images (N, H, W, 3) uint8, or rows of float32, which are not clipped.
        seed: Draws the noise.
        deviation: Standard deviation on pixels in [0, 1]; 0.1 is severity 5 of CIFAR-10-C.

    References:
        Hendrycks & Dietterich 2019 (CIFAR-10-C); Ghosh et al. 2022 (AdaFocal), Figure on OOD detection.
    """
    check_number(deviation, name="deviation", low=0)
    return _noisy(inside, seed=seed, draw=lambda pixels, noise: pixels + deviation * noise)


def pure_noise(inside: TensorSplit, *, seed: int, mean: float = 0.5, deviation: float = 1.0) -> TensorSplit:
    """Return as many images of pure noise as there are test images.

    Args:
        inside: Test images, for their number, shape and dtype.
        seed: Draws the noise.
        mean: Mean of every pixel, in [0, 1].
        deviation: Standard deviation of every pixel; values of uint8 images are clipped.

    References:
        Liang et al. 2018 (ODIN), Appendix.
    """
    check_number(deviation, name="deviation", low=0)
    check_number(mean, name="mean")
    return _noisy(inside, seed=seed, draw=lambda pixels, noise: mean + deviation * noise)


MAKERS: Mapping[str, Callable[..., TensorSplit]] = {"gaussian-noise": gaussian_noise, "pure-noise": pure_noise}


def _noisy(inside: TensorSplit, *, seed: int, draw: Callable[[Tensor, Tensor], Tensor]) -> TensorSplit:
    rng, parts = np.random.default_rng([NOISE_STREAM, seed]), []
    whole = inside.inputs.dtype == torch.uint8
    for rows in inside.inputs.split(ROWS):
        noise = torch.from_numpy(rng.standard_normal(tuple(rows.shape), dtype=np.float32))
        drawn = draw(rows.float() / (255 if whole else 1), noise)
        parts.append((drawn.clamp(0, 1) * 255).to(torch.uint8) if whole else drawn)
    return replace(inside, inputs=torch.cat(parts))


def _other(name: str, inside: TensorSplit, *, seed: int, folder: str | None, test: int | None = None) -> TensorSplit:
    """Return the test images of another data set, resized to the size of ``inside`` if they have another."""
    if inside.inputs.dtype != torch.uint8:
        raise InputError(f"images beside the ood set {name!r}", "rows of numbers", "use 'gaussian-noise'")
    place = None if folder is None else Path(folder).parent / name
    if place is not None and not place.is_dir():
        raise FileFormatError(f"the ood set {name!r} beside the data", f"no such folder: {place}", "put it there")
    pixels = torch.from_numpy(test_pixels(name, None if place is None else str(place)))
    if test is not None:
        drawn = np.random.default_rng(seed).permutation(len(pixels))[: check_count(test, name="test")]
        pixels = pixels[torch.from_numpy(drawn)]
    size = inside.inputs.shape[1:3]
    if pixels.shape[1:3] != size:
        pixels = torch.cat([_resized(rows, size) for rows in pixels.split(ROWS)])
    return replace(inside, inputs=pixels, labels=torch.full((len(pixels),), -1))


def _resized(pixels: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return images (N, H, W, 3) uint8 in another size, bilinear with antialiasing."""
    moved = pixels.permute(0, 3, 1, 2).float()
    out = F.interpolate(moved, size=size, mode="bilinear", antialias=True, align_corners=False)
    return out.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
