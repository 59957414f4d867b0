"""GroupScaling and BoostedScaling beside MCGrad 0.1.5: the record of the groups tutorial's comparison.

    python -m benchmarks.multicalibration WHEEL --peer PYTHON [--record docs/results/multicalibration.json]
    python -m benchmarks.multicalibration WHEEL --peer PYTHON --worst     # the worst group's paired differences alone

WHEEL is PyPI's nannyml (see benchmarks.acs_groups), PYTHON that of an environment with mcgrad==0.1.5. On ACS a fit on one random half
of a year is looked at on the other; on sets that scikit-learn carries a naive Bayes model learns from a third of the rows, a
calibrator from the second, and the last is looked at, over eight random splits: figures are means, and a row that several splits
look at is one unit of their intervals. CPU seconds of one thread, of fit and application; memory is what either
process takes beyond what it held before the fit, at its peak.
"""

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.naive_bayes import GaussianNB

from benchmarks.acs_groups import COLUMNS, read
from benchmarks.multicalibration_memory import forget_peak, memory
from benchmarks.worst_groups import paired_worst
from calibrant import Predictions
from calibrant.calibrators import BoostedScaling, Calibrator, GroupScaling, VectorScaling
from calibrant.evaluate import compare, subgroups
from calibrant.metrics import NLL, MulticalibrationError

RECORD = Path("docs/results/multicalibration.json")
SETS: dict[str, Callable[[], Any]] = {
    "breast cancer": datasets.load_breast_cancer,
    "wine": datasets.load_wine,
    "diabetes": datasets.load_diabetes,
    "digits": datasets.load_digits,
}
SPLITS, DRAWS, FEWER = 8, 100, 30  # random splits; resamples, and of many rows
Pair = tuple[Predictions, Predictions]


def carried(name: str, split: int = 0, *, classes: bool = False) -> tuple[Predictions, Predictions]:
    """Return rows to fit on and to look at; two classes unless ``classes``: above the median, or the first against the others."""
    x, y = SETS[name](return_X_y=True)
    if not classes:
        y = (y > np.median(y)).astype(int) if name in ("diabetes", "digits") else (y == 0).astype(int)
    order = np.random.default_rng(split).permutation(len(y))
    train, *others = np.array_split(order, 3)
    noisy = x + 1e-6 * np.random.default_rng(1).normal(size=x.shape)
    chosen = np.argsort(-x.std(axis=0) / (np.abs(x).mean(axis=0) + 1e-12))[:4]
    model = GaussianNB(var_smoothing=1e-3).fit(noisy[train], y[train])
    made = []
    for rows in others:
        p = model.predict_proba(noisy[rows]).clip(1e-6, None)
        features = {f"x{at}": (x[rows, at] > np.median(x[:, at])).astype(int) for at in chosen}
        p /= p.sum(axis=1, keepdims=True)
        made.append(Predictions.from_probs(p, y[rows], features=features, groups=rows))
    return replace(made[0], groups=None), made[1]


def write(folder: Path, name: str, pair: tuple[Predictions, Predictions]) -> None:
    """Write both parts as tables for the peer."""
    for part, data in zip(("fit", "rest"), pair, strict=True):
        columns = {"p": data.probs[:, 1].numpy(), "y": data.need_labels().numpy()}
        for key, values in (data.features or {}).items():
            number = isinstance(values, torch.Tensor)
            columns[f"{'number' if number else 'name'}_{key}"] = (
                values.numpy() if isinstance(values, torch.Tensor) else values
            )
        pd.DataFrame(columns).to_csv(folder / f"{name}-{part}.csv", index=False)


def figures(data: Predictions) -> dict[str, Any]:
    """Return log-loss, multicalibration error and what the groups show."""
    found = subgroups(replace(data, groups=None)).rows
    large = [row for row in found if row.n > 5000]
    record: dict[str, Any] = {"NLL": round(NLL()(data), 5)}
    if data.classes == 2:
        record["MCE"] = round(MulticalibrationError()(data), 5)
    record["worst_group_ece"] = max((round(row.ece, 4) for row in found), default=None)
    record["groups_flagged"] = f"{sum(row.p_adjusted < 0.05 for row in found)} of {len(found)}"
    record["large_outside"] = f"{sum(row.all_low > 0 or row.all_high < 0 for row in large)} of {len(large)}"
    return record


def mean_figures(parts: Sequence[Predictions]) -> dict[str, Any]:
    """Return the figures of one split, or what the mean over several has a meaning for."""
    if len(parts) == 1:
        return figures(parts[0])
    found = [figures(part) for part in parts]
    names = [name for name in ("NLL", "MCE", "worst_group_ece") if all(one.get(name) is not None for one in found)]
    return {name: round(float(np.mean([one[name] for one in found])), 5) for name in names}


def counted(data: Predictions, times: NDArray[np.int64]) -> Predictions:
    """Return the rows as often as the row of the set that each is has been drawn."""
    assert data.groups is not None
    weights = times[data.groups.numpy()]
    return Predictions.from_probs(
        data.probs, data.labels, weights=weights, weight_kind="frequency", features=data.features
    )


def paired(a: Sequence[Predictions], b: Sequence[Predictions]) -> dict[str, Any]:
    """Return log-loss and multicalibration error (b less a) over all splits, the error's interval by its bootstrap's standard error."""
    test = compare(Predictions.cat(a), Predictions.cat(b), metrics=[NLL()]).rows[0]
    ends = (test.difference, test.low, test.high)
    record: dict[str, Any] = {"NLL": [None if end is None else round(end, 5) for end in ends]}
    if a[0].classes == 2:
        rng, metric = np.random.default_rng(0), MulticalibrationError()
        count = 1 + max(int(part.groups.max()) for part in a if part.groups is not None)

        def difference(times: NDArray[np.int64]) -> float:
            return float(
                np.mean([metric(counted(y, times)) - metric(counted(x, times)) for x, y in zip(a, b, strict=True)])
            )

        draws = DRAWS if count < 10_000 else FEWER
        drawn = [difference(np.bincount(rng.integers(0, count, count), minlength=count)) for _ in range(draws)]
        middle, half = difference(np.ones(count, dtype=np.int64)), 1.96 * float(np.std(drawn, ddof=1))
        record["MCE"] = [round(end, 5) for end in (middle, middle - half, middle + half)]
    return record


def add_worst(
    record: dict[str, Any], pairs: Sequence[Pair], peer: Sequence[tuple[Predictions, dict[str, float]]]
) -> None:
    """Add the paired differences of the worst group's ECE to a set's record, whose other figures stay.

    Raises:
        SystemExit: If the fits are not those of the record.
    """
    made, theirs = [ours(pair)[0] for pair in pairs], [one for one, _ in peer]
    for name in ("groups", "boosted", "MCGrad"):
        parts = theirs if name == "MCGrad" else [one[name] for one in made]
        found = mean_figures(parts)["NLL"]
        if found != record["figures"][name]["NLL"]:
            raise SystemExit(f"{name} has the log-loss {found}, not that of the record: renew the set")
        if name != "MCGrad" and "worst_group_ece" in record["figures"][name]:
            record["less MCGrad"][name]["worst_group_ece"] = paired_worst(theirs, parts)


def warm_up() -> None:
    """Fit every method once, so that no figure holds what is loaded at a first use."""
    fit, _ = carried("wine")
    for method in (VectorScaling(), GroupScaling(), BoostedScaling()):
        method.fit(fit)


def ours(pair: tuple[Predictions, Predictions]) -> tuple[dict[str, Predictions], dict[str, Any]]:
    """Return the rows to look at through each of our fits, and what the fits cost."""
    fit, rest = pair
    methods: dict[str, Calibrator] = {"vector": VectorScaling(), "groups": GroupScaling(), "boosted": BoostedScaling()}
    after, cost = {"as it is": rest}, {}
    for name, method in methods.items():
        started, before = time.process_time(), forget_peak()
        after[name] = rest.calibrated_by(method.fit(fit), allow_fit_rows=True)
        cost[name] = {
            "cpu_s": round(time.process_time() - started, 3),
            "extra_mib": round(memory("VmHWM") - before, 1),
            "learned": method.learned(),
        }
    return after, cost


def on_acs(wheel: Path) -> dict[str, list[Pair]]:
    """Return one random half of a year to fit on and the other to look at."""
    found, years = {}, read(wheel)
    for year in (2015, 2016):
        data = replace(years[year], groups=torch.arange(len(years[year])))
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
        half, rest = (data[rows] for rows in order.chunk(2))
        found[f"ACS {year}"] = [(replace(half, groups=None), rest)]
    return found


def with_peer(
    python: str, folder: Path, sets: Mapping[str, Sequence[Pair]]
) -> dict[str, list[tuple[Predictions, dict[str, float]]]]:
    """Return the rows of every split through MCGrad, and what its fit cost."""
    for key, pairs in sets.items():
        for split, pair in enumerate(pairs):
            write(folder, f"{key}@{split}", pair)
    subprocess.run([python, str(Path(__file__).with_name("multicalibration_peer.py")), str(folder)], check=True)
    cost = json.loads((folder / "peer.json").read_text())
    found: dict[str, list[tuple[Predictions, dict[str, float]]]] = {}
    for key, pairs in sets.items():
        for split, (_, rest) in enumerate(pairs):
            p = np.load(folder / f"{key}@{split}-peer.npz")["p"]
            after = Predictions.from_binary_probs(p, rest.need_labels(), features=rest.features, groups=rest.groups)
            found.setdefault(key, []).append((after, cost[f"{key}@{split}"]))
    return found


def beside(pairs: Sequence[Pair], peer: Sequence[tuple[Predictions, dict[str, float]]]) -> dict[str, Any]:
    """Return the record of one set."""
    made = [ours(pair) for pair in pairs]
    after = {name: [one[name] for one, _ in made] for name in made[0][0]} | {"MCGrad": [one for one, _ in peer]}
    costs = {name: [one[name] for _, one in made] for name in made[0][1]} | {"MCGrad": [one for _, one in peer]}
    record: dict[str, Any] = {
        "rows": [len(part) for part in pairs[0]],
        "cost": {
            name: {
                "cpu_s": round(float(np.mean([one["cpu_s"] for one in found])), 3),
                "extra_mib": round(max(one["extra_mib"] for one in found), 1),
                **({"learned": found[0]["learned"]} if "learned" in found[0] else {}),
            }
            for name, found in costs.items()
        },
        "figures": {name: mean_figures(parts) for name, parts in after.items()},
        "less MCGrad": {name: paired(after["MCGrad"], after[name]) for name in ("groups", "boosted")},
    }
    for name in record["less MCGrad"]:
        if "worst_group_ece" in record["figures"][name]:
            record["less MCGrad"][name]["worst_group_ece"] = paired_worst(after["MCGrad"], after[name])
    return record


def main() -> None:
    """Fit, compare, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--sets", nargs="*", help="Renew these of the record alone.")
    parser.add_argument("--worst", action="store_true", help="Add the worst group's paired differences alone.")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warm_up()
    sets = {name: [carried(name, split) for split in range(SPLITS)] for name in SETS} | on_acs(chosen.wheel)
    sets = {name: pairs for name, pairs in sets.items() if chosen.sets is None or name in chosen.sets}
    record: dict[str, Any] = {"columns": COLUMNS, "splits": SPLITS, "sets": {}}
    if chosen.sets is not None or chosen.worst:
        record = json.loads(chosen.record.read_text())
    with tempfile.TemporaryDirectory() as name:
        peer = with_peer(chosen.peer, Path(name), sets)
    for key, pairs in sets.items():
        if chosen.worst:
            add_worst(record["sets"][key], pairs, peer[key])
        else:
            record["sets"][key] = beside(pairs, peer[key])
        print(key, json.dumps(record["sets"][key]), flush=True)
        chosen.record.write_text(json.dumps(record, indent=2) + "\n")
    if not chosen.worst and (chosen.sets is None or "ten classes" in chosen.sets):
        after, cost = ours(carried("digits", classes=True))
        test = paired([after["vector"]], [after["boosted"]])
        found = {name: figures(part) for name, part in after.items()}
        record["ten classes"] = {"cost": cost, "figures": found, "boosted less vector": test}
    chosen.record.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
