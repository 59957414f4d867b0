"""Figures of the calibrators that the papers compare, on every set of saved logits: the record of the post-hoc claims.

    python -m benchmarks.posthoc docs/results/posthoc.json        # resumes: sets that the record has are left out

Each calibrator is fitted on the validation split of a set and measured on its test split. The record holds no logits, so that
``calibrant.study.claims`` recomputes the verdicts without the data. Sets of one data set share their test rows or questions and
form a cluster; it is named in the record.
"""

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.calibrators import folder, load_set
from benchmarks.records import versions
from calibrant import Predictions
from calibrant.binning import EqualMass
from calibrant.calibrators import Calibrator, FocalTemperatureScaling, HistogramBinning, Identity, TemperatureScaling
from calibrant.errors import CalibrantWarning
from calibrant.metrics import ECE, NLL, ClasswiseECE, Metric

METRICS: dict[str, Metric] = {"nll": NLL(), "ece": ECE(), "ece_mass": ECE(EqualMass(15)), "ece_class": ClasswiseECE()}

# The stages are named as the stages of calibrant.study.measures.
METHODS: dict[str, Callable[[], Calibrator]] = {
    "none": Identity,
    "at_t": TemperatureScaling,
    "by_ece": lambda: TemperatureScaling("ece"),
    "by_mass": lambda: TemperatureScaling(grid="komisarenko"),
    "binned": HistogramBinning,
    "focal": FocalTemperatureScaling,
    "focal_by_mass": lambda: FocalTemperatureScaling("ece"),
}


def cluster(name: str) -> str:
    """Return the data set of a set of logits: ``"mmbench"`` of ``"mmbench-qwen-vl"``."""
    return name.partition("-")[0]


def figures(name: str) -> dict[str, Any]:
    """Return every metric after every calibrator on one set."""
    splits = load_set(name)
    before = Predictions.from_logits(*splits["test"])
    found: dict[str, Any] = {"set": name, "cluster": cluster(name), "n": len(before), "classes": before.logits.shape[1]}
    found["error"] = round(1 - float(before.correct.double().mean()), 6)
    for stage, make in METHODS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CalibrantWarning)
            after = before.calibrated_by(make().fit(*splits["val"]))
            found[stage] = {label: round(metric(after), 8) for label, metric in METRICS.items()}
    return found


def main(path: Path) -> None:
    """Write the record, one set after the other."""
    torch.set_num_threads(1)
    record: dict[str, Any] = {"study": "posthoc", "sets": [], "versions": versions()}
    if path.exists():
        record["sets"] = json.loads(path.read_text(encoding="utf-8"))["sets"]
    finished = {row["set"] for row in record["sets"]}
    for name in sorted(file.stem for file in folder().glob("*.npz")):
        if name in finished:
            continue
        record["sets"].append(figures(name))
        record["sets"].sort(key=lambda row: str(row["set"]))
        rows = ",\n".join("  " + json.dumps(row) for row in record["sets"])
        head = json.dumps({key: record[key] for key in ("study", "versions")})
        path.write_text(f'{head[:-1]}, "sets": [\n{rows}\n]}}\n', encoding="utf-8")
        print(name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
