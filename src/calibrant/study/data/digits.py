"""The 1,797 handwritten digits that come with scikit-learn, made hard: few training images, noise."""

import numpy as np
import torch

from calibrant._check import check_count, check_number
from calibrant.errors import InputError, MissingExtraError
from calibrant.study.data._split import Fold, TensorSplit

SPLIT_SEED, NOISE_SEED = 20260101, 20260102  # fixed: folds and noise are the same for every seed of a study


def digits(
    *, seed: int, fold: int, folds: int = 5, noise: float = 0.22, train: int = 400, validation: int = 400
) -> Fold:
    """Return one fold of the digits.

    Every image is tested in exactly one fold; training and validation images are drawn with ``seed`` from the others.

    Args:
        seed: Draws the training and validation images.
        fold: Which fold is tested, from 0.
        folds: Number of folds, ≥ 2.
        noise: Standard deviation of the Gaussian noise on pixels in [0, 1].
        train: Training images.
        validation: Validation images.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtraError("scikit-learn", extra="study") from error
    check_count(folds, name="folds", low=2)
    check_number(noise, name="noise", low=0)
    found = load_digits()
    pixels = found.data / 16 + np.random.default_rng(NOISE_SEED).normal(0, noise, found.data.shape)
    inputs = torch.from_numpy(pixels.astype(np.float32))  # (1797, 64)
    labels = torch.from_numpy(found.target.astype(np.int64))
    parts = np.array_split(np.random.default_rng(SPLIT_SEED).permutation(len(labels)), folds)
    if not 0 <= fold < folds:
        raise InputError(f"expected fold in 0 … {folds - 1}, got {fold}; raise folds or lower it")
    rest = np.concatenate([part for index, part in enumerate(parts) if index != fold])
    if train + validation > len(rest):
        raise InputError(f"expected train + validation ≤ {len(rest)}, got {train + validation}; ask for fewer images")
    drawn = np.random.default_rng([SPLIT_SEED, seed, fold]).permutation(rest)
    whole = TensorSplit(inputs, labels)
    return Fold(
        train=whole[torch.from_numpy(drawn[:train])],
        validation=whole[torch.from_numpy(drawn[train : train + validation])],
        test=whole[torch.from_numpy(np.sort(parts[fold]))],
        sizes={"classes": 10, "inputs": 64},
    )
