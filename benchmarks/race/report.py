"""The race of reports: a self-contained HTML file on 10,000 rows of two classes."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.race import Race, Setup
from benchmarks.race.data import two_classes
from benchmarks.race.peers import optional, present
from calibrant import Predictions
from calibrant.report import Model, write_report


def report(rows: int, classes: int) -> Setup:
    p, y = two_classes(rows)
    data = Predictions.from_binary_probs(p, y)
    folder = Path(tempfile.mkdtemp(prefix="calibrant-bench-"))
    theirs = optional("probcal.report")
    calls: dict[str, Callable[[], Any]] = {
        "calibrant": lambda: write_report([Model("model", data)], folder / "ours.html"),
        "calibrant, 200 draws": lambda: write_report([Model("model", data)], folder / "few.html", draws=200),
        "probcal": lambda: theirs.validation_report(y.numpy(), p.numpy(), path=folder / "theirs.html"),
    }
    notes = {
        "calibrant": "1,000 draws an interval",
        "probcal": "200 draws an interval; other sections",
    }
    return Setup(present(calls), lambda answer: None, floors=("calibrant, 200 draws",), notes=notes)


RACES = [Race("report", "Report as one HTML file", 10_000, 2, "–", report)]
