"""Verdicts on the papers' claims for each data set with a record, and the gain of focal loss by temperature."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from calibrant.study.recipe import Claim
from calibrant.study.tables import verdict_of

__all__ = ["ClaimLine", "Gain", "Threshold", "claim_index", "focal_gains", "focal_threshold"]

Record = Mapping[str, Any]
DRAWS = 2000


@dataclass(frozen=True)
class ClaimLine:
    """One claim on one data set.

    Args:
        claim: The claim as text.
        paper: The paper, and its table or section.
        data: Data and network.
        outcome: ``"shows"``, ``"shows in part"``, ``"shows the opposite"``, ``"not told apart"`` or ``"not run"``.
        p: p-value of the paired t-test over seeds between the first and the last objective; None without one.
        seeds: Number of seeds shared by the first and the last objective.
        measure: The compared measure, a key of ``measures.MEASURES``.
        values: (objective, mean over seeds) in the claimed order; empty where not run.
    """

    claim: str
    paper: str
    data: str
    outcome: str
    p: float | None
    seeds: int
    measure: str
    values: tuple[tuple[str, float], ...]


def claim_index(records: Mapping[str, Record]) -> list[ClaimLine]:
    """Return the verdict on each claim for each data set, from the records of studies.

    Args:
        records: File name without suffix → record written by ``record_of``.

    Examples:
        >>> {line.outcome for line in claim_index({})}
        {'not run'}
    """
    known = _known()
    return [_line(entry, place, records.get(place["record"])) for entry in known["claims"] for place in known["data"]]


def _line(entry: Mapping[str, Any], place: Mapping[str, str], record: Record | None) -> ClaimLine:
    measures = entry.get("measures") or [entry["measure"]] * len(entry["falls"])
    labels, figures = [], []
    for alternatives, measure in zip(entry["falls"], measures, strict=True):
        label, found = "", {}
        for name in alternatives:
            found = {} if record is None else _by_seed(record, place["setting"], name, measure)
            if found:
                label = name
                break
        labels.append(label)
        figures.append(found)
    claim = Claim(entry["text"], entry["paper"], measures[0], tuple(labels))
    verdict = verdict_of(claim, place["name"], figures)
    values = tuple(zip(labels, verdict.values, strict=True)) if verdict.values else ()
    return ClaimLine(
        entry["text"], entry["paper"], place["name"], verdict.outcome, verdict.p, verdict.seeds, measures[-1], values
    )


def _by_seed(record: Record, setting: str, objective: str, measure: str) -> dict[int, float]:
    return {
        row["seed"]: row[measure]
        for row in record["figures"]
        if (row["setting"], row["objective"]) == (setting, objective) and measure in row
    }


def _known() -> dict[str, Any]:
    return tomllib.loads(resources.files("calibrant.study").joinpath("claims.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Gain:
    """The gain of a focal loss over cross-entropy on one data set.

    Args:
        data: Data and network.
        gamma: γ of the focal loss.
        seeds: Number of seeds shared with cross-entropy.
        temperature: Temperature fitted to cross-entropy, geometric mean over seeds.
        raw: ECE of cross-entropy minus that of the focal loss, before calibration: mean, low, high; the 95 % t-interval of
            the mean over seeds, NaN for one seed.
        after: The same after temperature scaling of both.
    """

    data: str
    gamma: float
    seeds: int
    temperature: float
    raw: tuple[float, float, float]
    after: tuple[float, float, float]


def focal_gains(records: Mapping[str, Record]) -> list[Gain]:
    """Return the gain of every focal loss on every data set that has a record with cross-entropy.

    Args:
        records: As for ``claim_index``.
    """
    found = []
    for place in _known()["data"]:
        record = records.get(place["record"])
        if record is None:
            continue
        for objective in record["objectives"]:
            loss = objective["loss"]
            if loss["type"] != "FocalLoss":
                continue
            pairs = {
                measure: _pairs(record, place["setting"], str(objective["label"]), measure)
                for measure in ("ece", "ece_at_t")
            }
            temperatures = _by_seed(record, place["setting"], "Cross-entropy", "temperature")
            if pairs["ece"] and temperatures:
                mean = math.exp(float(np.mean(np.log(list(temperatures.values())))))
                intervals = [_interval(pairs[measure]) for measure in ("ece", "ece_at_t")]
                found.append(Gain(place["name"], float(loss["gamma"]), len(pairs["ece"]), mean, *intervals))
    return found


def _pairs(record: Record, setting: str, objective: str, measure: str) -> list[float]:
    base = _by_seed(record, setting, "Cross-entropy", measure)
    focal = _by_seed(record, setting, objective, measure)
    return [base[seed] - focal[seed] for seed in sorted(base.keys() & focal.keys())]


def _interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """Return mean, low and high of the 95 % t-interval; NaN ends for a single difference."""
    from scipy.stats import t

    mean, n = float(np.mean(differences)), len(differences)
    if n < 2:
        return mean, math.nan, math.nan
    half = float(t.ppf(0.975, n - 1)) * float(np.std(differences, ddof=1)) / math.sqrt(n)
    return mean, mean - half, mean + half


@dataclass(frozen=True)
class Threshold:
    """The temperature fitted to cross-entropy above which a focal loss lowers ECE.

    Args:
        temperature: Where the line of the gain over log T crosses 0; NaN if it does not increase.
        low: 2.5 % quantile over resampled data sets.
        high: 97.5 % quantile.
        sets: Number of data sets.
    """

    temperature: float
    low: float
    high: float
    sets: int


def focal_threshold(gains: Sequence[Gain], *, gamma: float = 3.0, after: bool = False, seed: int = 0) -> Threshold:
    """Return where the least-squares line of the gain over log T crosses 0, with an interval over data sets.

    Data sets are resampled with replacement; a resample whose line does not increase has no crossing (an infinite T).

    Args:
        gains: The result of ``focal_gains``.
        gamma: γ of the focal loss.
        after: Whether to use the gain after temperature scaling.
        seed: Seed of the resampling.
    """
    chosen = [gain for gain in gains if gain.gamma == gamma]
    x = np.log([gain.temperature for gain in chosen])
    y = np.array([(gain.after if after else gain.raw)[0] for gain in chosen])
    if len(chosen) < 3:
        return Threshold(math.nan, math.nan, math.nan, len(chosen))
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, len(x), size=(DRAWS, len(x)))
    drawn = [_crossing(x[row], y[row]) for row in rows if len(set(row)) > 2]
    low, high = (float(np.quantile(drawn, q, method="inverted_cdf")) for q in (0.025, 0.975))
    crossing = _crossing(x, y)
    return Threshold(crossing if math.isfinite(crossing) else math.nan, low, high, len(chosen))


def _crossing(x: np.ndarray, y: np.ndarray) -> float:
    """Return exp(x₀), x₀ the zero of the least-squares line; infinity if its slope is not positive."""
    spread = float(((x - x.mean()) ** 2).sum())
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread if spread > 0 else 0.0
    return math.exp(min(50.0, float(x.mean()) - float(y.mean()) / slope)) if slope > 0 else math.inf
