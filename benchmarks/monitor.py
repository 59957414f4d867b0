"""How often a monitor raises a false alarm, and after how many labels it sees a change: simulations behind docs/operate.md.

    python -m benchmarks.monitor [--simulations 240] [--data ../shared/data] [--json docs/results/monitor.json]

False alarms: a temperature is fitted on 1,000 rows of an overconfident model, and those rows are the reference; then 100,000
rows without any change, looked at 28 times. Detection: accuracy falls by five points with the confidences unchanged.
Real data: cifar10lt-resnet110, whose validation rows are long-tailed and whose test rows are balanced.
"""

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant import BinaryPairs, Predictions, load_predictions
from calibrant.calibrators import TemperatureScaling
from calibrant.operate import Monitor

Floats = NDArray[np.float64]
SEED = 20261122
_IDS = count()
LOOKS = [200] * 10 + [1000] * 8 + [9000] * 10  # 100,000 rows


def true_odds(shape: str, rows: int, rng: np.random.Generator) -> Floats:
    """Return the log-odds (N,) that the decision is right."""
    if shape == "one":
        return np.full(rows, math.log(9))
    p = rng.beta(4.5, 0.5, rows).clip(0.2, 1 - 1e-6)
    return np.asarray(np.log(p) - np.log1p(-p))


def drawn(odds: Floats, rng: np.random.Generator, *, temperature: float = 1.0, lost: float = 0.0) -> BinaryPairs:
    """Return pairs whose probability of being right is that of ``odds`` less ``lost``, shown at ``odds`` / ``temperature``."""
    true, shown = (1 / (1 + np.exp(-odds / t)) for t in (1.0, temperature))
    right = rng.random(len(odds)) < true - lost
    return BinaryPairs.from_probs(shown, right.astype(np.int64))


def fitted_temperature(odds: Floats, rng: np.random.Generator) -> tuple[float, BinaryPairs]:
    """Return the temperature fitted on these rows by Newton's method, and the rows at it."""
    right = rng.random(len(odds)) < 1 / (1 + np.exp(-odds))
    b = 1.0
    for _ in range(20):
        p = 1 / (1 + np.exp(-b * odds))
        b += float((odds * (right - p)).sum() / (odds**2 * p * (1 - p)).sum())
    return 1 / b, BinaryPairs.from_probs(1 / (1 + np.exp(-b * odds)), right.astype(np.int64))


def false_alarms(simulations: int) -> Iterator[dict[str, Any]]:
    """Yield the rate of alarms over 100,000 good rows."""
    for shape in ("one", "spread"):
        rng = np.random.default_rng(SEED)
        alarms = 0
        for _ in range(simulations):
            temperature, reference = fitted_temperature(true_odds(shape, 1000, rng), rng)
            monitor = Monitor(reference)
            for rows in LOOKS:
                monitor.update(drawn(true_odds(shape, rows, rng), rng, temperature=temperature))
            alarms += monitor.alarm
        yield {"part": "false alarms", "shape": shape, "alarms": alarms, "runs": simulations, "rows": sum(LOOKS)}


def detections(simulations: int) -> Iterator[dict[str, Any]]:
    """Yield how many labels after a fall of accuracy by five points the alarm comes."""
    for shape in ("one", "spread"):
        for reference in (1000, 5000):
            for good in (0, 10_000):
                rng = np.random.default_rng(SEED)
                found = []
                for _ in range(simulations):
                    monitor = Monitor(drawn(true_odds(shape, reference, rng), rng))
                    for _ in range(good // 500):
                        monitor.update(drawn(true_odds(shape, 500, rng), rng), ids=_new(500))
                    found.append(_until_alarm(monitor, shape, rng))
                quartiles = [float(value) for value in np.quantile(found, [0.25, 0.5, 0.75])]
                where = {"shape": shape, "reference": reference, "good": good, "runs": simulations}
                yield {"part": "detection", **where, "labels": quartiles}


def _new(rows: int) -> list[int]:
    """Return ids not given before: batches of one confidence may well be equal by chance."""
    return list(islice(_IDS, rows))


def _until_alarm(monitor: Monitor, shape: str, rng: np.random.Generator) -> int:
    if monitor.alarm:
        return 0  # an alarm before the change; counted as at once
    for labels in range(50, 5001, 50):
        if monitor.update(drawn(true_odds(shape, 50, rng), rng, lost=0.05), ids=_new(50)).verdict == "alarm":
            return labels
    return 5000


def real(folder: Path, runs: int) -> Iterator[dict[str, Any]]:
    """Yield what a monitor sees on cifar10lt-resnet110."""
    path = folder / "logits" / "cifar10lt-resnet110.npz"
    val, test = (load_predictions(path, split) for split in ("val", "test"))
    assert isinstance(val, Predictions)
    assert isinstance(test, Predictions)
    rng = np.random.default_rng(SEED)
    good, until = 0, []
    for _ in range(runs):
        order = torch.from_numpy(rng.permutation(len(val)))
        fit, rest = val[order[:1000]], val[order[1000:]]
        calibrator = TemperatureScaling().fit(fit.logits, fit.labels)
        first = Monitor(_through(calibrator, fit))
        for start in range(0, len(rest), 500):
            first.update(_through(calibrator, rest[start : start + 500]))
        good += first.alarm
        second, labels = Monitor(_through(calibrator, fit)), 0
        shuffled = test[torch.from_numpy(rng.permutation(len(test)))]
        while not second.alarm and labels < len(test):
            second.update(_through(calibrator, shuffled[labels : labels + 50]))
            labels += 50
        until.append(labels)
    quartiles = [float(value) for value in np.quantile(until, [0.25, 0.5, 0.75])]
    rows = {"reference": 1000, "runs": runs, "good_rows": len(val) - 1000}
    yield {
        "part": "cifar10lt-resnet110",
        **rows,
        "false_alarms": good,
        "labels": quartiles,
        "advice": second.status.advice,
    }


def _through(calibrator: TemperatureScaling, data: Predictions) -> Predictions:
    return replace(data, logits=calibrator(data.logits))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--simulations", type=int, default=240)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    found = []
    parts = [false_alarms(chosen.simulations), detections(max(1, chosen.simulations // 6))]
    if chosen.data:
        parts.append(real(chosen.data, max(1, chosen.simulations // 25)))
    for part in parts:
        for one in part:
            found.append(one)
            print(json.dumps(one), flush=True)
            if chosen.json:
                chosen.json.write_text(json.dumps({"seed": SEED, "results": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
