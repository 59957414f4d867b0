"""The 1,797 handwritten digits of scikit-learn, made harder by noise and few training images."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from calibrant._core.check import check_count
from calibrant._core.constraints import Natural, Seed, checked
from calibrant.errors import InputError, MissingExtraError
from calibrant.study.data._split import Fold, TensorSplit

IMAGES = 1797
SPLIT_SEED, NOISE_SEED = 20260101, 20260102  # fixed: folds and noise are the same for every seed of a study


@dataclass(frozen=True)
class DigitOptions:
    """Options of the digits.

    Args:
        folds: Number of folds, from 2 to the number of images.
        noise: Standard deviation of the Gaussian noise on pixels in [0, 1].
        train: Number of training images.
        validation: Number of validation images.
    """

    folds: int = 5
    noise: float = 0.22
    train: int = 400
    validation: int = 400


@checked
def digits(*, seed: Seed, fold: Natural, **options: Any) -> Fold:
    """Return one fold of the digits.

    Every image is in the test set of exactly one fold; training and validation images are drawn from the others with ``seed``.

    Args:
        seed: Draws the training and validation images.
        fold: Index of the test fold, from 0.
        options: Fields of ``DigitOptions``.

    Raises:
        InputError: If an option has an impossible value, or there are too few images.
        MissingExtraError: If scikit-learn is not installed.
    """
    chosen = check_digits(options, fold=fold)
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtraError("scikit-learn", extra="study") from error
    found = load_digits()
    pixels = found.data / 16 + np.random.default_rng(NOISE_SEED).normal(0, chosen.noise, found.data.shape)
    inputs = torch.from_numpy(pixels.astype(np.float32))  # (1797, 64)
    labels = torch.from_numpy(found.target.astype(np.int64))
    parts = np.array_split(np.random.default_rng(SPLIT_SEED).permutation(len(labels)), chosen.folds)
    rest = np.concatenate([part for index, part in enumerate(parts) if index != fold])
    drawn = np.random.default_rng([SPLIT_SEED, seed, fold]).permutation(rest)
    whole = TensorSplit(inputs, labels)
    return Fold(
        train=whole[torch.from_numpy(drawn[: chosen.train])],
        validation=whole[torch.from_numpy(drawn[chosen.train : chosen.train + chosen.validation])],
        test=whole[torch.from_numpy(np.sort(parts[fold]))],
        sizes={"classes": 10, "inputs": 64},
    )


def check_digits(options: Mapping[str, Any], *, fold: int) -> DigitOptions:
    """Return the options of the digits if they are valid together.

    Args:
        options: Fields of ``DigitOptions``, each of which has been checked by itself.
        fold: From 0.

    Raises:
        InputError: With the first that is not.
    """
    chosen = DigitOptions(**options)
    check_count(chosen.folds, name="folds of data set 'digits'", low=2, high=IMAGES)
    if fold >= chosen.folds:
        raise InputError(f"fold in 0 … {chosen.folds - 1}", f"{fold}", "raise folds or lower it")
    rest = (
        IMAGES - IMAGES // chosen.folds - int(fold < IMAGES % chosen.folds)
    )  # array_split makes the first parts larger
    if chosen.train + chosen.validation > rest:
        raise InputError(f"train + validation ≤ {rest}", f"{chosen.train + chosen.validation}", "ask for fewer images")
    return chosen
