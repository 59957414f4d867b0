"""Measures how much the test rows that all seeds share add to the variance of an effect, and writes the record ``test-rows.json``.

    python -m papers.shared_rows STORE papers/records/test-rows.json --data FOLDER

All seeds of a place are tested on the same rows, or on rows from one pool. Part of the difference between two objectives is therefore
common to all seeds, and more seeds do not average it out. The rows of the pool are resampled (with Poisson weights) for all stored
seeds at once; the covariance of two seeds' effects over the resamples is the variance of the common part. With few seeds, a single
covariance is noisy, so its fraction of an effect's variance over resamples is pooled over the comparisons of a place and of a kind of
measure. A place whose outputs were not stored has no entry, and its verdicts apply to its test rows only.
"""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch

import calibrant
from calibrant import Predictions
from calibrant.study import Store, load_study
from calibrant.study.data import load_fold
from calibrant.study.measures import CALIBRATORS, DERIVED, FEW, METRICS, Measured, Run
from calibrant.study.recipe import Recipe
from calibrant.study.tables import collect
from papers.index import NO_TEST_ROWS, Claim, Place, claims, labels_at, places

DRAWS = 400  # number of resamples; the standard error of a covariance is then 5 % of a variance
BINS = 15
Array = np.ndarray[Any, Any]


def main() -> None:
    """Write the record of every place with at least two seeds in the store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("record", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--place", action="append", help="measure only this place; may be repeated")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    if given.record.exists():  # keep the entries of other places
        rows = json.loads(given.record.read_text(encoding="utf-8"))["sets"]
    for place in places():
        if not place.study or place.scale != "cpu" or (given.place and place.name not in given.place):
            continue
        study = load_study(place.study).with_data_from(given.data).restricted(settings=[place.setting])
        found = collect(study, Store(given.store))
        made = pooled(list(deviations(place, found)))
        if made:
            rows = [row for row in rows if row["place"] != place.name] + made
            print(place.name, len(made), flush=True)
    text = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in rows)
    head = json.dumps(
        {
            "study": "test-rows",
            "draws": DRAWS,
            "versions": {"calibrant": calibrant.__version__, "torch": torch.__version__},
        }
    )
    given.record.write_text(f'{head[:-1]}, "sets": [\n{text}\n]}}\n', encoding="utf-8")


def deviations(place: Place, found: Sequence[Measured]) -> Iterator[dict[str, Any]]:
    """Yield the variability over resampled rows of every claim's effect at a place whose outputs are stored."""
    fits = {(one.objective, one.seed): one for one in found}
    labels = {one.objective for one in found}
    rng = np.random.default_rng(0)
    ids = {one.seed: test_rows(one.recipes) for one in found}
    pool = {row: index for index, row in enumerate(dict.fromkeys(row for of in ids.values() for row in of))}
    weights = rng.poisson(1.0, size=(DRAWS, len(pool))).astype(np.float32)
    seen = set()
    for claim in claims():
        ends = _ends(claim, place, labels)
        if ends is None or ends in seen or ends[::-1] in seen:
            continue
        seen.add(ends)
        effects: dict[int, Array] = {}
        for seed, of in ids.items():
            if all((label, seed) in fits for label, _ in ends):
                drawn = weights[:, [pool[row] for row in of]]
                both = [resampled(fits[label, seed], measure, drawn) for label, measure in ends]
                if all(one is not None for one in both):
                    effects[seed] = both[0] - both[1]
        if not effects:
            continue
        pairs = [float(np.cov(effects[a], effects[b])[0, 1]) for a, b in combinations(effects, 2)]
        own = math.sqrt(float(np.mean([effect.var(ddof=1) for effect in effects.values()])))
        if not own:
            continue
        yield {
            "place": place.name,
            "first": " ".join(ends[0]),
            "last": " ".join(ends[1]),
            "of_a_seed": float(f"{own:.4g}"),
            "share": round(float(np.mean(pairs)) / own**2, 4) if pairs else None,
            "seeds": len(effects),
        }


def pooled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with the common deviation by the mean share of their kind, weighted by pairs of seeds.

    A comparison of which one seed is kept has its own variance over resamples, and the share of the others of its kind.
    """
    made = []
    for kind in sorted({kind_of(row) for row in rows}):
        mine = [row for row in rows if kind_of(row) == kind]
        pairs = [(row["share"], row["seeds"] * (row["seeds"] - 1) / 2) for row in mine if row["share"] is not None]
        if not pairs:
            continue
        shares, weights = zip(*pairs, strict=True)
        share = max(0.0, float(np.average(shares, weights=weights)))
        for row in mine:
            deviation = float(f"{row['of_a_seed'] * math.sqrt(share):.4g}")
            made.append({**row, "pooled": round(share, 4), "deviation": deviation})
    return made


def kind_of(row: dict[str, Any]) -> str:
    """Return the kind of a comparison's measures: least confident rows, losses, or calibration errors before or after calibration."""
    ends = [row[end].rpartition(" ")[2] for end in ("first", "last")]
    if any(end.startswith("excess") for end in ends):
        return "least confident"
    if all(end.startswith(("error", "nll", "entropy")) for end in ends):
        return "losses"
    return "raw" if "ece" in ends or set(ends) & {"ece_mass", "ece_class"} else "after"


def _ends(claim: Claim, place: Place, labels: set[str]) -> tuple[tuple[str, str], tuple[str, str]] | None:
    """Return the objective and measure of a claim's first and last entry, or None if they are not stored or not of test rows."""
    if not claim.falls or all(measure.startswith(NO_TEST_ROWS) for measure in claim.measures):
        return None
    entries = labels_at(claim, place)
    chosen = [next((label for label in entries[i] if label in labels), None) for i in (0, -1)]
    if None in chosen:
        return None
    first, last = (str(label) for label in chosen)
    return (first, claim.measures[0]), (last, claim.measures[-1])


def test_rows(recipes: Sequence[Recipe]) -> list[int]:
    """Return a hash of the content of every test row in the folds of a training run."""
    names: list[int] = []
    for recipe in recipes:
        rows = load_fold(recipe.data, seed=recipe.seed, fold=recipe.fold).test
        names += [hash(row.tobytes()) for row in rows.inputs.numpy()]  # type: ignore[attr-defined]
    return names


_kept: dict[tuple[int, str], Array | None] = {}


def resampled(measured: Measured, measure: str, weights: Array) -> Array | None:
    """Return a measure of resampled test rows (draws,), or None if it does not depend on the final outputs alone."""
    key = (id(measured), measure)
    if key not in _kept:
        _kept[key] = _resampled(measured, measure, weights)
    return _kept[key]


def _resampled(fits: Measured, measure: str, weights: Array) -> Array | None:
    if measure in DERIVED:
        _, parts, made = DERIVED[measure]
        values = [_resampled(fits, part, weights) for part in parts]
        if any(value is None for value in values):
            return None
        return np.array([made(*row) for row in zip(*values, strict=True)])
    if measure.endswith("_few"):
        return _ece(_few(fits, measure.removeprefix("ece_").removesuffix("_few")), weights)
    before = fits.before
    if measure in ("nll_wrong", "nll_correct", "entropy_wrong"):
        rows = (before.correct if measure.endswith("_correct") else ~before.correct).numpy()
        values = before.nll if measure.startswith("nll") else torch.special.entr(before.log_probs.exp()).sum(dim=1)
        return _mean(values.numpy()[rows], weights[:, rows])
    if measure == "excess_uncertain":
        pairs = fits.after("by_ece").top_label()
        least = torch.argsort(pairs.p, stable=True)[: len(pairs) // 3].numpy()
        return _mean((pairs.p - pairs.y.double()).numpy()[least], weights[:, least])
    known = [key for key in METRICS if measure == key or measure.startswith(f"{key}_")]
    stage = measure.removeprefix(max(known, key=len)).removeprefix("_") if known else "?"
    if stage not in ("", "optimal", *CALIBRATORS):
        return None
    after = fits.after(stage) if stage else before
    match max(known, key=len):
        case "error":
            return _mean((~after.correct).double().numpy(), weights)
        case "nll":
            return _mean(after.nll.numpy(), weights)
        case "ece":
            return _ece(after, weights)
        case "ece_mass":
            pairs = after.top_label()
            return _binned((pairs.p - pairs.y.double()).numpy(), _mass_bins(pairs.p.numpy()), weights)
        case _:
            p = after.log_probs.exp().numpy()
            y = np.eye(p.shape[1])[after.labels.numpy()]
            each = [_binned(p[:, j] - y[:, j], _width_bins(p[:, j]), weights) for j in range(p.shape[1])]
            return np.mean(each, axis=0)


def _few(fits: Measured, name: str) -> Predictions:
    return Measured([Run(run.validation[:FEW], run.test) for run in fits.runs]).after(name)


def _ece(predictions: Predictions, weights: Array) -> Array:
    pairs = predictions.top_label()
    return _binned((pairs.p - pairs.y.double()).numpy(), _width_bins(pairs.p.numpy()), weights)


def _binned(gaps: Array, which: Array, weights: Array) -> Array:
    """Return the sum over bins of |weighted sum of gaps|, divided by the total weight (draws,)."""
    columns = np.zeros((len(gaps), BINS), dtype=np.float32)
    columns[np.arange(len(gaps)), which] = gaps
    return np.abs(weights @ columns).sum(axis=1) / weights.sum(axis=1)


def _mean(values: Array, weights: Array) -> Array:
    return weights @ values.astype(np.float32) / weights.sum(axis=1)


@cache
def _edges() -> Array:
    return np.arange(BINS + 1) / BINS


def _width_bins(p: Array) -> Array:
    return np.clip(np.searchsorted(_edges(), p, side="left") - 1, 0, BINS - 1)


def _mass_bins(p: Array) -> Array:
    which = np.empty(len(p), dtype=np.int64)
    for number, rows in enumerate(np.array_split(np.argsort(p, kind="stable"), BINS)):
        which[rows] = number
    return which


if __name__ == "__main__":
    main()
