"""Two rows of CalArena, through the interface of its harness, beside the figures that it printed for its own calibrators.

    python -m benchmarks.calarena [--data ../shared/data] [--record docs/results/calarena.json]

CalArena (Berta, Holzmüller, Bach, Jordan 2026, arXiv 2605.30188) hands every calibrator the probabilities and labels of the
calibration rows, asks it for the probabilities of the test rows, and takes the time of both. Its rows c10/densenet40 and
c10/resnet110 are two of the sets here: without calibration both have the log-loss that it printed. Its own calibrators, which
are those of probmetrics, are not run again: ``PRINTED`` holds their figures of results/cv-multiclass in its repository.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.records import machine, versions
from calibrant import Predictions
from calibrant.adapters.arrays import ArrayCalibrator
from calibrant.binning import EqualWidth
from calibrant.calibrators import AutoCalibrator, StructuredMatrixScaling
from calibrant.errors import CalibrantWarning
from calibrant.metrics import ECE, NLL

RECORD = Path("docs/results/calarena.json")
ROWS = {"c10/densenet40": "cifar10-densenet40", "c10/resnet110": "cifar10-resnet110"}
OURS: dict[str, Callable[[], ArrayCalibrator]] = {
    "AutoCalibrator": lambda: ArrayCalibrator(AutoCalibrator()),
    "StructuredMatrixScaling": lambda: ArrayCalibrator(StructuredMatrixScaling()),
}
# Log-loss and ECE (15 bins) on c10/densenet40, then on c10/resnet110.
PRINTED: dict[str, tuple[float, float, float, float]] = {
    "SMS": (0.22062, 0.00934, 0.20312, 0.01048),
    "SVS": (0.22218, 0.01055, 0.20660, 0.01069),
    "Dirichlet": (0.22406, 0.01210, 0.20935, 0.01404),
    "VS": (0.22440, 0.01134, 0.20785, 0.01220),
    "TS": (0.22509, 0.00947, 0.20926, 0.01132),
    "ETS": (0.22693, 0.01078, 0.20893, 0.00581),
    "MS": (0.22701, 0.01312, 0.21215, 0.01560),
    "Venn-Abers": (0.22933, 0.00920, 0.21196, 0.01379),
    "Spline": (0.23454, 0.01391, 0.21608, 0.01182),
    "LightGBM": (0.24174, 0.01036, 0.21242, 0.00968),
    "CatBoost": (0.24991, 0.02170, 0.21784, 0.01423),
    "XGBoost": (0.28643, 0.04454, 0.25901, 0.04980),
    "Isotonic": (0.32732, 0.01625, 0.32740, 0.01449),
    "CIR": (0.34166, 0.02003, 0.34696, 0.01763),
    "BBQ": (0.36662, 0.01688, 0.32694, 0.00993),
    "Hist-quantile": (0.37219, 0.01516, 0.40595, 0.00855),
    "Kernel": (0.39122, 0.04716, 0.35762, 0.03734),
    "Hist-uniform": (0.41667, 0.01642, 0.53708, 0.01140),
    "Base-model": (0.43006, 0.05501, 0.35827, 0.04751),
}


def run(calibrator: Any, p_cal: Any, y_cal: Any, p_test: Any, y_test: Any) -> dict[str, float]:
    """Return log-loss, ECE and seconds of any object with ``fit`` and ``predict_proba``, as the harness takes them."""
    start = time.perf_counter()
    calibrator.fit(p_cal, y_cal)
    answer = calibrator.predict_proba(p_test)
    seconds = time.perf_counter() - start
    after = Predictions.from_probs(np.asarray(answer), y_test)
    return {
        "log_loss": round(float(NLL()(after)), 5),
        "ece": round(float(ECE(EqualWidth(15))(after)), 5),
        "seconds": round(seconds, 2),
    }


def measure(data: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Return our methods' figures by row of CalArena."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row, name in ROWS.items():
        with np.load(data / "logits" / f"{name}.npz") as file:
            val, test = (
                torch.softmax(torch.from_numpy(file[f"{one}_logits"]).double(), 1).numpy() for one in ("val", "test")
            )
            labels = file["val_labels"], file["test_labels"]
        found[row] = {}
        for method, make in OURS.items():
            found[row][method] = run(make(), val, labels[0], test, labels[1])
            print(row, method, found[row][method], flush=True)
    return found


def table(record: dict[str, Any]) -> str:
    """Return the page's table: ours as measured, its own as printed, the lowest mean log-loss first."""
    rows = record["rows"]
    lines: dict[str, tuple[float, ...]] = dict(PRINTED)
    for method in OURS:
        lines[f"**{method}**"] = tuple(rows[row][method][part] for row in ROWS for part in ("log_loss", "ece"))
    head = " | ".join(f"{row}: log-loss | ECE" for row in ROWS)
    shown = [f"| calibrator | {head} |", "| --- |" + " --- |" * (2 * len(ROWS))]
    for name, (first, ece_first, second, ece_second) in sorted(lines.items(), key=lambda one: one[1][0] + one[1][2]):
        shown.append(f"| {name} | {first:.5f} | {ece_first:.2%} | {second:.5f} | {ece_second:.2%} |")
    return "\n".join(shown)


def main() -> None:
    """Measure, print the table, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", CalibrantWarning)
    known = {name: number for name, number in versions().items() if name in ("python", "calibrant", "torch")}
    record = {"machine": machine(), "versions": known, "rows": measure(options.data)}
    options.record.write_text(json.dumps(record, indent=1) + "\n")
    print(table(record))


if __name__ == "__main__":
    main()
