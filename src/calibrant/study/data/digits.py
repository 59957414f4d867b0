"""The 1,797 handwritten digits of scikit-learn, made harder by noise and few training images."""

import numpy as np
import torch

from calibrant._core.check import check_count
from calibrant.errors import InputError, MissingExtraError
from calibrant.study.data._requests import check_options
from calibrant.study.data._split import Fold, TensorSplit

IMAGES = 1797
SPLIT_SEED, NOISE_SEED = 20260101, 20260102  # fixed: folds and noise are the same for every seed of a study


def digits(
    *, seed: int, fold: int, folds: int = 5, noise: float = 0.22, train: int = 400, validation: int = 400
) -> Fold:
    """Return one fold of the digits.

    Every image is in the test set of exactly one fold; training and validation images are drawn from the others with ``seed``.

    Args:
        seed: Draws the training and validation images.
        fold: Index of the test fold, from 0.
        folds: Number of folds, ≥ 2.
        noise: Standard deviation of the Gaussian noise on pixels in [0, 1].
        train: Number of training images.
        validation: Number of validation images.

    Raises:
        InputError: If an option has an impossible value, or there are too few images.
        MissingExtraError: If scikit-learn is not installed.
    """
    check_digits(seed=seed, fold=fold, folds=folds, noise=noise, train=train, validation=validation)
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtraError("scikit-learn", extra="study") from error
    found = load_digits()
    pixels = found.data / 16 + np.random.default_rng(NOISE_SEED).normal(0, noise, found.data.shape)
    inputs = torch.from_numpy(pixels.astype(np.float32))  # (1797, 64)
    labels = torch.from_numpy(found.target.astype(np.int64))
    parts = np.array_split(np.random.default_rng(SPLIT_SEED).permutation(len(labels)), folds)
    rest = np.concatenate([part for index, part in enumerate(parts) if index != fold])
    drawn = np.random.default_rng([SPLIT_SEED, seed, fold]).permutation(rest)
    whole = TensorSplit(inputs, labels)
    return Fold(
        train=whole[torch.from_numpy(drawn[:train])],
        validation=whole[torch.from_numpy(drawn[train : train + validation])],
        test=whole[torch.from_numpy(np.sort(parts[fold]))],
        sizes={"classes": 10, "inputs": 64},
    )


def check_digits(
    *, seed: int = 0, fold: int = 0, folds: int = 5, noise: float = 0.22, train: int = 400, validation: int = 400
) -> None:
    """Raise unless the options are valid for the digits.

    Args:
        seed: As in ``digits``, like the others.
        fold: From 0.
        folds: From 2 to the number of images.
        noise: ≥ 0.
        train: Number of training images.
        validation: Number of validation images.

    Raises:
        InputError: With the first option that is not valid.
    """
    check_options({"seed": seed, "fold": fold, "folds": folds, "noise": noise})
    check_count(folds, name="folds of data set 'digits'", low=2, high=IMAGES)
    for name, count in (("train", train), ("validation", validation)):
        check_count(count, name=f"{name} of data set 'digits'")
    if fold >= folds:
        raise InputError(f"fold in 0 … {folds - 1}", f"{fold}", "raise folds or lower it")
    rest = IMAGES - IMAGES // folds - int(fold < IMAGES % folds)  # numpy.array_split makes the first parts larger
    if train + validation > rest:
        raise InputError(f"train + validation ≤ {rest}", f"{train + validation}", "ask for fewer images")
