"""ECE and log-loss of ``AutoCalibrator(top_label=True)``, of the pool alone and of histogram binning, on the real sets.

    python -m benchmarks.top_label --data ../shared/data --half chosen --out top-label.jsonl
    python -m benchmarks.top_label --data ../shared/data --half judged --out top-label.jsonl --record docs/results/top-label.json

Cases are those of ``benchmarks.auto``, evaluated on up to 2,000 test rows. Rows go to ``--out`` as they are found; rows already
there are kept, so that a stopped run goes on where it was. The record holds the figures of every half in ``--out``.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.auto import Case, cases
from benchmarks.records import machine, versions
from calibrant import Predictions
from calibrant.calibrators import AutoCalibrator, Calibrator, HistogramBinning, Identity
from calibrant.errors import CalibrantWarning
from calibrant.metrics import ECE, NLL

TOP = "AutoCalibrator, top label"
METHODS: dict[str, Callable[[], Calibrator]] = {
    "none": Identity,
    "HistogramBinning": HistogramBinning,
    "AutoCalibrator": AutoCalibrator,
    TOP: lambda: AutoCalibrator(top_label=True),
}
Z = 1.959963984540054


def measured(case: Case) -> dict[str, dict[str, float | None]]:
    """Return ECE, log-loss (None where it is infinite) and CPU seconds of the fit, by method."""
    *_, z, y, test, labels = case
    before = Predictions.from_logits(test.double(), labels)
    found: dict[str, dict[str, float | None]] = {}
    for name, make in METHODS.items():
        start = time.process_time()
        fitted = make().fit(z, y)
        seconds = time.process_time() - start
        after = before.calibrated_by(fitted, allow_fit_rows=True)  # test rows are of another split
        loss = NLL()(after)
        kept = None if loss == float("inf") else round(loss, 6)
        found[name] = {"ece": round(ECE()(after), 6), "log_loss": kept, "seconds": round(seconds, 3)}
    return found


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return, by size, every method's means and its ECE minus the top-label variant's with an interval, paired by set."""
    found: dict[str, dict[str, Any]] = {}
    for size in sorted({row["size"] for row in rows}, reverse=True):
        here = [row for row in rows if row["size"] == size]
        found[size] = {name: _figures(here, name) for name in METHODS}
    return found


def _figures(rows: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    own = [row["figures"][name] for row in rows]
    less = np.array([row["figures"][name]["ece"] - row["figures"][TOP]["ece"] for row in rows])
    sets = np.unique([row["set"] for row in rows], return_inverse=True)[1]
    means = np.bincount(sets, less) / np.bincount(sets)  # draws of one set are one unit
    error = means.std(ddof=1) / np.sqrt(len(means)) if len(means) > 1 else float("nan")
    losses = [one["log_loss"] for one in own]
    return {
        "cases": len(rows),
        "ece": round(float(np.mean([one["ece"] for one in own])), 5),
        "log_loss": None if None in losses else round(float(np.mean(losses)), 5),
        "seconds": round(float(np.mean([one["seconds"] for one in own])), 2),
        "ece_versus": [round(float(x), 5) for x in (means.mean(), means.mean() - Z * error, means.mean() + Z * error)],
    }


def table(record: dict[str, Any]) -> str:
    """Return the page's table."""
    lines = [
        "| half, rows fitted on | method | ECE | minus the top-label variant's | log-loss | CPU seconds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for half, sizes in record["halves"].items():
        for size, methods in sizes.items():
            for name, one in methods.items():
                mean, low, high = one["ece_versus"]
                against = "" if name == TOP else f"{mean:+.2%} [{low:+.2%}, {high:+.2%}]"
                loss = "∞" if one["log_loss"] is None else f"{one['log_loss']:.4f}"
                place = f"{half}, n = {size} ({one['cases']} cases)"
                lines.append(f"| {place} | {name} | {one['ece']:.2%} | {against} | {loss} | {one['seconds']:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is not in ``--out`` yet, print the table, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--half", choices=("chosen", "judged"), default="chosen")
    parser.add_argument("--resamples", type=int, default=1)
    parser.add_argument("--sizes", nargs="*", default=["1000", "300"], help="rows to fit on; full: all")
    parser.add_argument("--out", type=Path, default=Path("top-label.jsonl"))
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", CalibrantWarning)
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {(row["half"], row["set"], row["size"], row["draw"]) for row in rows}
    with options.out.open("a") as out:
        for case in cases(options.data, options.half, range(options.resamples)):
            name, size, draw, *_ = case
            if size in options.sizes and (options.half, name, size, draw) not in done:
                row = {"half": options.half, "set": name, "size": size, "draw": draw, "figures": measured(case)}
                rows.append(row)
                print(json.dumps(row), file=out, flush=True)
    halves = {half: summary([row for row in rows if row["half"] == half]) for half in sorted({r["half"] for r in rows})}
    known = {name: number for name, number in versions().items() if name in ("python", "calibrant", "torch")}
    record = {"machine": machine(), "versions": known, "halves": halves}
    if options.record:
        options.record.write_text(json.dumps(record, indent=1) + "\n")
    print(table(record))


if __name__ == "__main__":
    main()
