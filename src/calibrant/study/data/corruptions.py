"""Test images made worse as in CIFAR-10-C, for calibration under shift: their labels stay right, so that an ECE can be measured."""

import io
from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field

from calibrant.errors import InputError, optional
from calibrant.study.data._split import Outside, TensorSplit
from calibrant.study.record import Size, record

Severity = Annotated[Size, Field(le=5)]


class Corruption(Outside):
    """Images of the test set, each made worse by itself."""

    severity: int

    def of(self, inside: TensorSplit, *, name: str, seed: int, folder: Path | None) -> TensorSplit:
        """Return the same images, made worse, in the same order.

        Raises:
            InputError: If the samples are not images of bytes.
        """
        if inside.inputs.dtype != torch.uint8:
            raise InputError(f"images beside the ood set {name!r}", "rows of numbers", "leave it out")
        images = [self.worse(image.numpy()) for image in inside.inputs.cpu()]
        return replace(inside, inputs=torch.from_numpy(np.stack(images)).to(inside.inputs.device))

    @abstractmethod
    def worse(self, image: np.ndarray) -> np.ndarray:
        """Return an image (H, W, 3) uint8 from one."""


def _bytes(image: np.ndarray) -> np.ndarray:
    """Return an image of numbers in [0, 1], clipped and rounded down, as that data set has it."""
    return (np.clip(image, 0, 1) * 255).astype(np.uint8)


@record
class GaussianBlur(Corruption):
    """Blur by a normal kernel.

    Args:
        severity: 1 … 5: a deviation of .4, .6, .7, .8 or 1 pixel.

    References:
        Hendrycks & Dietterich 2019, code of CIFAR-10-C.
    """

    severity: Severity = 5
    deviations: ClassVar = (0.4, 0.6, 0.7, 0.8, 1.0)

    def worse(self, image: np.ndarray) -> np.ndarray:
        """Return the image blurred within each channel."""
        from scipy.ndimage import gaussian_filter

        deviation = self.deviations[self.severity - 1]
        return _bytes(gaussian_filter(image / 255.0, (deviation, deviation, 0), mode="nearest"))


@record
class Contrast(Corruption):
    """Less contrast: pixels nearer to the mean of their channel in the image.

    Args:
        severity: 1 … 5: a factor of .75, .5, .4, .3 or .15 on the distance from the mean.

    References:
        Hendrycks & Dietterich 2019, code of CIFAR-10-C.
    """

    severity: Severity = 5
    factors: ClassVar = (0.75, 0.5, 0.4, 0.3, 0.15)

    def worse(self, image: np.ndarray) -> np.ndarray:
        """Return μ + c (x − μ)."""
        pixels = image / 255.0
        mean = pixels.mean(axis=(0, 1), keepdims=True)
        return _bytes(mean + self.factors[self.severity - 1] * (pixels - mean))


@record
class Jpeg(Corruption):
    """Lossy compression.

    Args:
        severity: 1 … 5: a JPEG quality of 80, 65, 58, 50 or 40.

    References:
        Hendrycks & Dietterich 2019, code of CIFAR-10-C.
    """

    severity: Severity = 5
    qualities: ClassVar = (80, 65, 58, 50, 40)

    def worse(self, image: np.ndarray) -> np.ndarray:
        """Return the image after compression."""
        with optional("PIL", extra="study"):
            from PIL import Image
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=self.qualities[self.severity - 1])
        with Image.open(file) as found:
            return np.asarray(found.convert("RGB"))


CORRUPTIONS: dict[str, type[Corruption]] = {"gaussian-blur": GaussianBlur, "contrast": Contrast, "jpeg": Jpeg}
