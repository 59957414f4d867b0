"""The benchmark of the corrected confidence: its summary by hand, and that its page has the record's figures."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import top_label

ROOT = Path(__file__).parent.parent


def row(name: str, pool: float, top: float, *, loss: float | None = 1.0) -> dict[str, Any]:
    one = {"ece": 0.1, "log_loss": loss, "seconds": 0.0}
    figures = {**dict.fromkeys(top_label.METHODS, one), "AutoCalibrator": {**one, "ece": pool}}
    return {"set": name, "size": "300", "figures": {**figures, top_label.TOP: {**one, "ece": top}}}


def test_draws_of_one_set_are_one_unit_of_the_interval() -> None:
    rows = [row("a", 0.3, 0.1), row("a", 0.5, 0.1), row("b", 0.2, 0.1, loss=None)]
    found = top_label.summary(rows)["300"]["AutoCalibrator"]
    mean, low, high = found["ece_versus"]
    assert mean == pytest.approx(0.2)  # of .3 in set a and .1 in set b, and not of three draws
    assert high - mean == pytest.approx(mean - low) == pytest.approx(top_label.Z * 0.1, abs=1e-5)
    assert found["cases"] == 3
    assert found["ece"] == pytest.approx(1 / 3, abs=1e-5)
    assert found["log_loss"] is None  # infinite on one


def test_the_page_has_the_figures_of_the_record() -> None:
    record = json.loads((ROOT / "docs" / "results" / "top-label.json").read_text())
    page = " ".join((ROOT / "docs" / "calibrators.md").read_text().split())
    large, small = (record["halves"]["judged"][size] for size in ("1000", "300"))
    ece = {
        name: f"{large[name]['ece']:.2%} and {small[name]['ece']:.2%}".replace("%", " %") for name in top_label.METHODS
    }
    pool, top, histogram = ece["AutoCalibrator"], ece[top_label.TOP], ece["HistogramBinning"]
    assert f"is {top}, beside {pool} of the pool and {histogram} of `HistogramBinning`" in page
    for size in (large, small):
        for name in ("HistogramBinning", "AutoCalibrator"):
            mean, low, high = (
                f"{100 * value:.2f}".replace("-0", "−").lstrip("0") for value in size[name]["ece_versus"]
            )
            assert f"{mean} ({low} to {high}" in page
    losses = [
        f"{size[name]['log_loss']:.4f}".lstrip("0")
        for name in (top_label.TOP, "AutoCalibrator")
        for size in (large, small)
    ]
    assert "is {} and {}, beside {} and {} of the pool".format(*losses) in page
