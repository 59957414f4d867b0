"""GroupScaling and BoostedScaling beside MCGrad 0.1.5: the record of the groups tutorial's comparison.

    python -m benchmarks.multicalibration WHEEL --peer PYTHON [--record docs/results/multicalibration.json]

WHEEL is PyPI's nannyml (see benchmarks.acs_groups), PYTHON that of an environment with mcgrad==0.1.5. On ACS a fit on one random half
of a year is looked at on the other; on sets that scikit-learn carries a naive Bayes model learns from a third of the rows, a
calibrator from the second, and the last is looked at. CPU seconds of one thread, of fit and application; memory is what either
process takes beyond what it held before the fit, at its peak.
"""

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn import datasets
from sklearn.naive_bayes import GaussianNB

from benchmarks.acs_groups import COLUMNS, read
from benchmarks.multicalibration_memory import forget_peak, memory
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
DRAWS, FEWER = 200, 40  # resamples, and of many rows


def carried(name: str, *, classes: bool = False) -> tuple[Predictions, Predictions]:
    """Return rows to fit on and to look at; two classes unless ``classes``: above the median, or the first against the others."""
    x, y = SETS[name](return_X_y=True)
    if not classes:
        y = (y > np.median(y)).astype(int) if name in ("diabetes", "digits") else (y == 0).astype(int)
    order = np.random.default_rng(0).permutation(len(y))
    train, *others = np.array_split(order, 3)
    noisy = x + 1e-6 * np.random.default_rng(1).normal(size=x.shape)
    chosen = np.argsort(-x.std(axis=0) / (np.abs(x).mean(axis=0) + 1e-12))[:4]
    model = GaussianNB(var_smoothing=1e-3).fit(noisy[train], y[train])
    made = []
    for rows in others:
        p = model.predict_proba(noisy[rows]).clip(1e-6, None)
        features = {f"x{at}": (x[rows, at] > np.median(x[:, at])).astype(int) for at in chosen}
        made.append(Predictions.from_probs(p / p.sum(axis=1, keepdims=True), y[rows], features=features))
    return made[0], made[1]


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
    found = subgroups(data).rows
    large = [row for row in found if row.n > 5000]
    record: dict[str, Any] = {"NLL": round(NLL()(data), 5)}
    if data.classes == 2:
        record["MCE"] = round(MulticalibrationError()(data), 5)
    record["worst_group_ece"] = max((round(row.ece, 4) for row in found), default=None)
    record["groups_flagged"] = f"{sum(row.p_adjusted < 0.05 for row in found)} of {len(found)}"
    record["large_outside"] = f"{sum(row.all_low > 0 or row.all_high < 0 for row in large)} of {len(large)}"
    return record


def paired(a: Predictions, b: Predictions) -> dict[str, Any]:
    """Return log-loss and multicalibration error (b less a) with their intervals, of the error by its bootstrap's standard error."""
    test = compare(a, b, metrics=[NLL()]).rows[0]
    record: dict[str, Any] = {
        "NLL": [None if end is None else round(end, 5) for end in (test.difference, test.low, test.high)]
    }
    if a.classes == 2:
        rng, metric = np.random.default_rng(0), MulticalibrationError()
        drawn = [torch.from_numpy(rng.integers(0, len(a), len(a))) for _ in range(DRAWS if len(a) < 10_000 else FEWER)]
        half = 1.96 * float(np.std([metric(b[rows]) - metric(a[rows]) for rows in drawn], ddof=1))
        difference = metric(b) - metric(a)
        record["MCE"] = [round(end, 5) for end in (difference, difference - half, difference + half)]
    return record


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


def main() -> None:
    """Fit, compare, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--record", type=Path, default=RECORD)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warm_up()
    pairs = {name: carried(name) for name in SETS}
    years = read(chosen.wheel)
    for year in (2015, 2016):
        order = torch.randperm(len(years[year]), generator=torch.Generator().manual_seed(0))
        half, rest = (years[year][rows] for rows in order.chunk(2))
        pairs[f"ACS {year}"] = (half, rest)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for key, pair in pairs.items():
            write(folder, key, pair)
        subprocess.run(
            [chosen.peer, str(Path(__file__).with_name("multicalibration_peer.py")), str(folder)], check=True
        )
        peer = json.loads((folder / "peer.json").read_text())
        theirs = {key: np.load(folder / f"{key}-peer.npz")["p"] for key in pairs}
    record: dict[str, Any] = {"columns": COLUMNS, "sets": {}}
    for key, pair in pairs.items():
        after, cost = ours(pair)
        rest = pair[1]
        after["MCGrad"] = Predictions.from_binary_probs(theirs[key], rest.need_labels(), features=rest.features)
        record["sets"][key] = {
            "rows": [len(part) for part in pair],
            "cost": {**cost, "MCGrad": peer[key]},
            "figures": {k: figures(v) for k, v in after.items()},
            "less MCGrad": {k: paired(after["MCGrad"], after[k]) for k in ("groups", "boosted")},
        }
        print(key, json.dumps(record["sets"][key]), flush=True)
        chosen.record.write_text(json.dumps(record, indent=1) + "\n")
    after, cost = ours(carried("digits", classes=True))
    record["ten classes"] = {"cost": cost, "figures": {k: figures(v) for k, v in after.items()},
                             "boosted less vector": paired(after["vector"], after["boosted"])}  # fmt: skip
    chosen.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
