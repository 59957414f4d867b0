"""Estimates by simulation how many rows ``check`` needs to decide a limit on the ECE."""

import math

import numpy as np
from numpy.typing import NDArray

from calibrant._core.check import check_number
from calibrant.data.checks import Data
from calibrant.data.pairs import Pairs
from calibrant.errors import InputError
from calibrant.metrics import ECE
from calibrant.operate.check import DIRECTION
from calibrant.operate.rows import require_window
from calibrant.statistics import interval

Floats = NDArray[np.float64]
_ATOMS = 100  # number of quantiles that represent the distribution of the confidence
_START, _ROUNDS, _SIMULATED = 1000, 3, (100, 20_000)  # first size, number of rounds, and range of sizes of the samples
_LARGEST, _EQUAL = 10_000_000, 1e-12


def rows_needed(
    predictions: Data | None = None,
    *,
    ece: float,
    power: float = 0.9,
    accuracy: float | None = None,
    true_ece: float = 0.0,
    draws: int = 100,
    seed: int = 0,
) -> int:
    """Return how many labelled rows ``check(maximum={"ece": ece})`` needs for the correct verdict, accurate to about a fifth.

    The function simulates checks. In a fraction ``power`` of them, the distance between the bound and the true ECE stays below a
    quantile that shrinks with the square root of the number of rows. This quantile determines the number of rows in the next
    round of simulations.

    Args:
        predictions: Predictions whose confidences are used (labels are not needed). None assumes that confidences are
            distributed as Beta(5 a, 5 (1 − a)), where a is the ``accuracy``.
        ece: The limit, in (0, 1).
        power: Probability of the correct verdict, in (0, 1).
        accuracy: The assumed accuracy, in (0, 1), if there are no predictions.
        true_ece: The assumed true ECE, in [0, 1): all confidences are too high by this amount, as far as possible. If it is
            below the limit, the correct verdict is "pass"; if it is above, "fail".
        draws: Number of simulated checks in each round, ≥ 1.
        seed: Seed of the simulation; the same seed gives the same result.

    Returns:
        The number of rows.

    Raises:
        InputError: If both or neither of ``predictions`` and ``accuracy`` are given, if the true ECE equals the limit or is
            impossible, or if ten million rows are not enough.

    Examples:
        >>> 500 < rows_needed(accuracy=0.9, ece=0.05) < 1500
        True
    """
    for name, value in (("ece", ece), ("power", power), ("accuracy", 0.5 if accuracy is None else accuracy)):
        check_number(value, name=name, low=0, high=1, open_low=True, open_high=True)
    p = _assumed_confidences(predictions, accuracy)
    truth, rng, rows = _lowered(p, true_ece), np.random.default_rng(seed), _START
    for _ in range(_ROUNDS):
        size = min(max(rows, _SIMULATED[0]), _SIMULATED[1])
        samples = [_drawn_pairs(p, truth, size, rng) for _ in range(draws)]
        found = [interval(ECE(), sample, level=1 - 2 * DIRECTION) for sample in samples]
        # distance between the deciding bound and the true ECE
        far = [one.high - true_ece if true_ece < ece else true_ece - one.low for one in found]
        needed = size * (float(np.quantile(far, power)) / max(abs(ece - true_ece), _EQUAL)) ** 2
        if needed > _LARGEST:
            raise InputError(
                f"{_LARGEST:,} rows cannot distinguish a true ECE of {true_ece:g} from the limit {ece:g}; choose another true_ece"
            )
        rows = max(1, math.ceil(needed))
    return rows


def _drawn_pairs(p: Floats, truth: Floats, rows: int, rng: np.random.Generator) -> Pairs:
    at = rng.integers(len(p), size=rows)
    return Pairs.from_probs(p[at], (rng.random(rows) < truth[at]).astype(np.int64))


def _assumed_confidences(predictions: Data | None, accuracy: float | None) -> Floats:
    """Return equally likely confidences (A,)."""
    if (predictions is None) == (accuracy is None):
        raise InputError("rows_needed needs either predictions or an accuracy to assume, and not both")
    quantiles = (np.arange(_ATOMS) + 0.5) / _ATOMS
    if accuracy is None:
        rows = require_window(predictions, what="rows_needed", labelled=False)  # type: ignore[arg-type]
        return np.asarray(np.quantile(rows.confidence.cpu().numpy(), quantiles))
    from scipy.special import betaincinv

    # Beta(5 a, 5 (1 − a)) has mean a and variance a (1 − a) / 6, so that confidences differ between rows
    return np.asarray(betaincinv(5 * accuracy, 5 * (1 - accuracy), quantiles))


def _lowered(p: Floats, ece: float) -> Floats:
    """Return probabilities (A,) of a correct decision such that the confidences ``p`` are too high by ``ece`` on average."""
    if not 0 <= ece <= float(p.mean()) - 1e-9:
        raise InputError(f"confidences with mean {p.mean():.3f} cannot have a true ECE of {ece:g}; assume less")
    from scipy.optimize import brentq

    # lowering all probabilities by m increases the ECE, until they reach 0
    lower = brentq(lambda m: float((p - np.clip(p - m, 0, 1)).mean()) - ece, 0.0, 1.0)
    return np.asarray(np.clip(p - lower, 0, 1))
