"""Sample size planning for ``check``: the probabilities that it passes, fails or stays undecided, by simulation."""

import math
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant._core.check import refuse
from calibrant._core.constraints import MOST_DRAWS, Integer, Level, Number, Seed, checked
from calibrant.binning import EqualWidth
from calibrant.data.checks import Data
from calibrant.operate.bounds import Moments, fails_limit, log_below
from calibrant.operate.check import DIRECTION
from calibrant.operate.rows import Window

Floats = NDArray[np.float64]
_BINS = 15
_ATOMS = 100  # quantiles that represent the distribution of the confidence
_FEWEST, _MOST = 50, 10_000_000


@dataclass(frozen=True)
class PlanPoint:
    """The probabilities of the verdicts at one number of rows.

    Args:
        rows: Labelled rows.
        passes: Probability of "pass".
        fails: Probability of "fail".
    """

    rows: int
    passes: float
    fails: float

    @property
    def undecided(self) -> float:
        """Probability of "not enough evidence"."""
        return 1 - self.passes - self.fails


@dataclass(frozen=True)
class Plan:
    """How many rows a limit on the ECE needs.

    Args:
        rows: Smallest number of rows of the curve at which the correct verdict has at least probability ``power``; None if
            ten million rows are not enough.
        limit: Largest ECE allowed.
        true_ece: The assumed true ECE.
        power: Requested probability.
        curve: Points in ascending order of rows.
        draws: Number of simulated checks per point.
    """

    rows: int | None
    limit: float
    true_ece: float
    power: float
    curve: tuple[PlanPoint, ...]
    draws: int

    def plain(self) -> dict[str, Any]:
        """Return the plan as JSON data."""
        points = [{**asdict(point), "undecided": point.undecided} for point in self.curve]
        return {**asdict(self), "curve": points}

    def __str__(self) -> str:
        verdict = "passes" if self.true_ece <= self.limit else "fails"
        if self.rows is None:
            return f"no number of rows up to {_MOST:,} was enough: an ECE of {self.true_ece:g} is too close to {self.limit:g}"
        return (
            f"{self.rows:,} labelled rows: a model with ECE {self.true_ece:g} then {verdict} ece ≤ {self.limit:g} "
            f"with probability {self.power:g} or more"
        )


@checked
def rows_needed(
    predictions: Window | None = None,
    *,
    ece: Level,
    power: Level = 0.9,
    accuracy: Level | None = None,
    true_ece: Annotated[float, Number(0, 1, open_high=True)] = 0.0,
    draws: Annotated[int, Integer(10, MOST_DRAWS)] = 500,
    seed: Seed = 0,
) -> Plan:
    """Return how many labelled rows ``check(maximum={"ece": ece})`` needs to reach the correct verdict, by simulation.

    Args:
        predictions: The distribution of their confidences is used (labels are not needed); None assumes confidences
            distributed as Beta(5 a, 5 (1 − a)) with ``accuracy`` a.
        ece: The limit, in (0, 1).
        power: Probability of the correct verdict, in (0, 1).
        accuracy: In (0, 1), if there are no predictions.
        true_ece: The assumed ECE, in [0, 1): all confidences are too high by this much, as far as possible. Below the limit
            the correct verdict is "pass", above it "fail".
        draws: Number of simulated checks per number of rows.
        seed: Same seed, same plan.

    Raises:
        InputError: If both or neither of predictions and accuracy are given, or the true ECE is the limit itself or
            cannot be reached.

    Examples:
        >>> rows_needed(accuracy=0.9, ece=0.05, draws=200).rows
        1473
    """
    if true_ece == ece:
        raise refuse("a true ECE other than the limit", f"{ece:g} for both", "no number of rows decides between equals")
    p, mass = _assumed_confidences(predictions, accuracy)
    truth = _shifted(p, mass, true_ece)
    rng = np.random.default_rng(seed)
    curve: list[PlanPoint] = []
    rows = 64
    while rows <= _MOST:
        passes, fails = decisions(*simulated(p, mass, truth, rows, draws=draws, rng=rng), ece)
        curve.append(PlanPoint(rows, float(passes.mean()), float((fails & ~passes).mean())))
        right = curve[-1].passes if true_ece < ece else curve[-1].fails
        if right >= power:
            break
        # two points a doubling: the curve is read to a factor 1.4 at the worst
        rows = math.ceil(rows * math.sqrt(2))
    enough = curve[-1].rows if right >= power else None
    return Plan(enough, ece, true_ece, power, tuple(curve), draws)


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
        got = "neither" if predictions is None else "both"
        raise refuse("predictions or an accuracy to assume", got, "pass one of them")
    quantiles = (np.arange(_ATOMS) + 0.5) / _ATOMS
    if predictions is not None:
        p = np.quantile(predictions.confidence.cpu().numpy(), quantiles)
    else:
        from scipy.special import betaincinv

        assert accuracy is not None
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
        raise refuse(f"a true ECE that confidences of mean {float(mass @ p):.3f} can have", f"{ece:g}", "assume less")
    return np.asarray(np.clip(p - high, 0, 1))
