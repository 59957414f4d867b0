"""Test images made worse as in CIFAR-10-C, for calibration under shift: their labels stay right, so that an ECE can be measured."""

import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field

from calibrant.errors import InputError, optional
from calibrant.study.data._split import Outside, TensorSplit
from calibrant.study.record import Size, record

# by severity
DEVIATIONS = (0.4, 0.6, 0.7, 0.8, 1.0)
FACTORS = (0.75, 0.5, 0.4, 0.3, 0.15)
QUALITIES = (80, 65, 58, 50, 40)


@record
class Corruption(Outside):
    """Images of the test set, each made worse by itself.

    Args:
        kind: ``"gaussian-blur"``; ``"contrast"``: pixels nearer to the mean of their channel in the image; or ``"jpeg"``.
        severity: 1 … 5: a deviation of .4, .6, .7, .8 or 1 pixel, a factor of .75, .5, .4, .3 or .15 on the distance from the
            mean, or a quality of 80, 65, 58, 50 or 40.

    References:
        Hendrycks & Dietterich 2019, code of CIFAR-10-C.
    """

    kind: Literal["gaussian-blur", "contrast", "jpeg"]
    severity: Annotated[Size, Field(le=5)] = 5

    def of(self, inside: TensorSplit, *, name: str, seed: int, folder: Path | None) -> TensorSplit:
        """Return the same images, made worse, in the same order.

        Raises:
            InputError: If the samples are not images of bytes.
        """
        if inside.inputs.dtype != torch.uint8:
            raise InputError(f"images beside the ood set {name!r}", "rows of numbers", "leave it out")
        worse = {"gaussian-blur": _blurred, "contrast": _pale, "jpeg": _compressed}[self.kind]
        images = [worse(image.numpy(), self.severity - 1) for image in inside.inputs.cpu()]
        return replace(inside, inputs=torch.from_numpy(np.stack(images)).to(inside.inputs.device))


def _blurred(image: np.ndarray, level: int) -> np.ndarray:
    """Return the image (H, W, 3) uint8 blurred within each channel by a normal kernel."""
    from scipy.ndimage import gaussian_filter

    return _bytes(gaussian_filter(image / 255.0, (DEVIATIONS[level], DEVIATIONS[level], 0), mode="nearest"))


def _pale(image: np.ndarray, level: int) -> np.ndarray:
    """Return μ + c (x − μ)."""
    pixels = image / 255.0
    mean = pixels.mean(axis=(0, 1), keepdims=True)
    return _bytes(mean + FACTORS[level] * (pixels - mean))


def _compressed(image: np.ndarray, level: int) -> np.ndarray:
    """Return the image after lossy compression."""
    with optional("PIL", extra="study"):
        from PIL import Image
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=QUALITIES[level])
    with Image.open(file) as found:
        return np.asarray(found.convert("RGB"))


def _bytes(image: np.ndarray) -> np.ndarray:
    """Return an image of numbers in [0, 1], clipped and rounded down, as that data set has it."""
    return (np.clip(image, 0, 1) * 255).astype(np.uint8)


CORRUPTIONS: dict[str, Callable[..., Outside]] = {
    kind: partial(Corruption, kind) for kind in ("gaussian-blur", "contrast", "jpeg")
}
