"""The runner of calibrators on saved logits: what it records, and that it computes no case twice."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import sets
from calibrant import Predictions
from calibrant.calibrators import TemperatureScaling
from calibrant.metrics import NLL


def test_it_records_the_log_loss_of_each_draw_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    arrays = {f"{split}_logits": 3 * rng.standard_normal((200, 3)) for split in ("val", "test")}
    arrays |= {f"{split}_labels": rng.integers(0, 3, 200) for split in ("val", "test")}
    np.savez(tmp_path / "noise.npz", **arrays)
    out, record = tmp_path / "out.jsonl", tmp_path / "record.json"
    words = ["--data", str(tmp_path), "--out", str(out), "--record", str(record), "--rows", "50", "--draws", "2"]
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["sets", *words, "--calibrators", "Identity", "TemperatureScaling(prior=2.0)"])
        sets.main()
    assert len(out.read_text().splitlines()) == 4
    found = json.loads(record.read_text())["noise"]["50"]
    order = np.random.default_rng(1).permutation(200)[:50]
    scaling = TemperatureScaling(prior=2.0).fit(arrays["val_logits"][order], arrays["val_labels"][order])
    test = Predictions.from_logits(arrays["test_logits"], arrays["test_labels"])
    assert found["TemperatureScaling(prior=2.0)"][1] == pytest.approx(NLL()(test.calibrated_by(scaling)), rel=1e-6)
    assert found["Identity"][0] == pytest.approx(NLL()(test), rel=1e-6)


def test_the_page_shows_the_means_of_the_record() -> None:
    root = Path(__file__).parent.parent.parent
    lines = sets.table(json.loads((root / "benchmarks" / "records" / "sets.json").read_text())).splitlines()[3:]
    page = (root / "docs" / "evidence.md").read_text()
    for line in lines:
        name, *means = (cell.strip() for cell in line.strip("|").split("|"))
        shown = f"probmetrics `{name.partition(':')[2]}`" if ":" in name else f"`{name}`"
        (row,) = {row for row in page.splitlines() if row.startswith(f"| {shown}")}
        assert row.endswith("| " + " | ".join(f"{float(mean):.3f}" for mean in means) + " |")
