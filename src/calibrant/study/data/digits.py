"""The 1,797 handwritten digits of scikit-learn, made harder by noise and few training images."""

from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from calibrant.errors import InputError, optional
from calibrant.study.data._split import DataSet, Fold, TensorSplit
from calibrant.study.record import Count, NonNegative, Size, record

IMAGES = 1797
SPLIT_SEED, NOISE_SEED = 20260101, 20260102  # fixed: folds and noise are the same for every seed of a study


@record
class Digits(DataSet):
    """The digits; every image is in the test set of exactly one fold.

    Args:
        folds: Number of folds, from 2 to the number of images.
        noise: Standard deviation of the Gaussian noise on pixels in [0, 1].
        train: Number of training images, drawn with the validation images from the other folds by the seed.
        validation: Number of validation images.
    """

    folds: Annotated[Count, Field(ge=2, le=IMAGES)] = 5
    noise: NonNegative = 0.22
    train: Size = 400
    validation: Size = 400

    def __post_init__(self) -> None:
        # array_split makes the first parts larger, so that the first fold leaves the fewest images
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
