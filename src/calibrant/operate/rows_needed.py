"""How many rows ``check`` needs for a limit on the ECE, by simulation."""

import math

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant._core.check import check_count, check_number
from calibrant.binning import EqualWidth
from calibrant.data.checks import Data
from calibrant.errors import InputError
from calibrant.operate.bounds import Moments, fails_limit, log_below
from calibrant.operate.check import DIRECTION
from calibrant.operate.rows import WINDOW

Floats = NDArray[np.float64]
_BINS = 15
_ATOMS = 100  # quantiles that represent the distribution of the confidence
_LARGEST = 10_000_000


def rows_needed(
    predictions: Data | None = None,
    *,
    ece: float,
    power: float = 0.9,
    accuracy: float | None = None,
    true_ece: float = 0.0,
    draws: int = 500,
    seed: int = 0,
) -> int:
    """Return how many labelled rows ``check(maximum={"ece": ece})`` needs to reach the correct verdict, to a factor of 1.4.

    Args:
        predictions: The distribution of their confidences is used (labels are not needed); None assumes confidences
            distributed as Beta(5 a, 5 (1 − a)) with ``accuracy`` a.
        ece: The limit, in (0, 1).
        power: Probability of the correct verdict, in (0, 1).
        accuracy: In (0, 1), if there are no predictions.
        true_ece: The assumed ECE, in [0, 1): all confidences are too high by this much, as far as possible. Below the limit
            the correct verdict is "pass", above it "fail".
        draws: Number of simulated checks per number of rows.
        seed: Same seed, same number.

    Raises:
        InputError: If both or neither of predictions and accuracy are given, the true ECE is the limit itself or cannot be reached,
            or ten million rows are not enough.

    Examples:
        >>> rows_needed(accuracy=0.9, ece=0.05, draws=200)
        1473
    """
    for name, value in (("ece", ece), ("power", power), ("accuracy", 0.5 if accuracy is None else accuracy)):
        check_number(value, name=name, low=0, high=1, open_low=True, open_high=True)
    check_number(true_ece, name="true_ece", low=0, high=1, open_high=True)
    check_count(draws, name="draws", low=10)
    if true_ece == ece:
        raise InputError("true_ece must differ from the limit ece: no number of rows decides between equals")
    p, mass = _assumed_confidences(predictions, accuracy)
    truth = _shifted(p, mass, true_ece)
    rng, rows = np.random.default_rng(seed), 64
    while rows <= _LARGEST:
        passes, fails = decisions(*simulated(p, mass, truth, rows, draws=draws, rng=rng), ece)
        if float((passes if true_ece < ece else fails & ~passes).mean()) >= power:
            return rows
        rows = math.ceil(rows * math.sqrt(2))
    raise InputError(f"{_LARGEST:,} rows are not enough: an ECE of {true_ece:g} is too close to the limit {ece:g}")


def decisions(moments: Moments, confidences: Floats, limit: float) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return whether each of many checks (R,) passes and whether it fails, as ``check`` decides.

    Args:
        moments: (R, B) sums of p − y by bin.
        confidences: (R, B) sums of p by bin.
        limit: Limit on the ECE.
    """
    passes = log_below(moments, limit, alpha=DIRECTION) >= math.log(1 / DIRECTION)
    return passes, fails_limit(moments, confidences=confidences, limit=limit, alpha=DIRECTION)


def simulated(
    p: Floats, mass: Floats, truth: Floats, rows: int, *, draws: int, rng: np.random.Generator
) -> tuple[Moments, Floats]:
    """Return the moments (R, B) and the sums of confidences (R, B) of ``draws`` samples of ``rows`` rows.

    Args:
        p: (A,) confidences.
        mass: (A,) their probabilities.
        truth: (A,) probability of a correct decision at each.
        rows: Number of rows of each sample.
        draws: R.
        rng: Source of randomness.
    """
    count = rng.multinomial(rows, mass, size=draws)
    right = rng.binomial(count, truth)
    in_bin = np.eye(_BINS)[EqualWidth(_BINS).assign(torch.from_numpy(p)).numpy()]
    # Σ (p − y)² of an atom: its right answers lie 1 − p off, its wrong ones p
    squares = right * (1 - p) ** 2 + (count - right) * p**2
    return Moments(count @ in_bin, (count * p - right) @ in_bin, squares @ in_bin), (count * p) @ in_bin


def _assumed_confidences(predictions: Data | None, accuracy: float | None) -> tuple[Floats, Floats]:
    if (predictions is None) == (accuracy is None):
        raise InputError("rows_needed takes either predictions or an accuracy to assume, and not both")
    quantiles = (np.arange(_ATOMS) + 0.5) / _ATOMS
    if accuracy is None:
        rows = WINDOW.check(predictions, "predictions", "rows_needed")
        p = np.quantile(rows.confidence.cpu().numpy(), quantiles)
    else:
        from scipy.special import betaincinv

        # Beta(5 a, 5 (1 − a)) has the mean a and the variance a (1 − a) / 6: confidences differ from row to row
        p = betaincinv(5 * accuracy, 5 * (1 - accuracy), quantiles)
    return np.asarray(p), np.full(_ATOMS, 1 / _ATOMS)


def _shifted(p: Floats, mass: Floats, ece: float) -> Floats:
    """Return the probabilities of a correct decision for which confidences ``p`` are too high by ``ece`` on average."""
    low, high = 0.0, 1.0
    for _ in range(60):
        # bisection: lowering all probabilities by m raises the ECE with m, until they reach 0
        middle = (low + high) / 2
        low, high = (middle, high) if float(mass @ (p - np.clip(p - middle, 0, 1))) < ece else (low, middle)
    if float(mass @ (p - np.clip(p - high, 0, 1))) < ece - 1e-9:
        raise InputError(f"confidences of mean {float(mass @ p):.3f} cannot have a true ECE of {ece:g}; assume less")
    return np.asarray(np.clip(p - high, 0, 1))
