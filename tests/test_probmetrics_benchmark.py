"""The benchmark beside probmetrics: refusals and limits are recorded, a stopped run goes on, and its page is what the record gives."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.draws import drawn
from torch import Tensor

from benchmarks import beside_probmetrics as beside
from calibrant.calibrators import Calibrator, TemperatureScaling
from calibrant.errors import InputError
from calibrant.rows import RowSource

ROOT = Path(__file__).parent.parent


class Refusing(Calibrator):
    """A method that refuses every set."""

    preserves_argmax = True

    def _fit(self, rows: RowSource) -> None:
        raise InputError("expected two classes, got three")

    def _transform(self, logits: Tensor) -> Tensor:
        return logits


class Endless(Refusing):
    """A method that never ends, and catches what it can."""

    def _fit(self, rows: RowSource) -> None:
        while True:
            try:
                sum(range(1000))
            except Exception:
                continue


class Sure(Refusing):
    """A method that gives the first class all probability."""

    def _fit(self, rows: RowSource) -> None:
        pass

    def _transform(self, logits: Tensor) -> Tensor:
        found = torch.full_like(logits, -float("inf"))
        found[:, 0] = 0
        return found


def splits() -> dict[str, tuple[Tensor, Tensor]]:
    z, y = drawn(400, 3, spread=4, dtype=torch.float32)
    return {"val": (z[:200], y[:200]), "test": (z[200:], y[200:])}


def test_refusals_limits_and_infinite_losses_are_recorded() -> None:
    assert beside.measured(Refusing, splits(), limit=5.0) == ({"refused": "expected two classes, got three"}, None)
    start = time.process_time()
    assert beside.measured(Endless, splits(), limit=0.1) == ({"cut_off": 0.1}, None)
    assert time.process_time() - start < 1
    found, losses = beside.measured(Sure, splits(), limit=5.0)
    assert found["log_loss"] is None
    assert losses is not None
    assert found["infinite_rows"] == int((splits()["test"][1] != 0).sum())
    assert beside.against(losses, losses) == {"difference": None, "low": None, "high": None}


def test_a_run_goes_on_where_it_was_with_the_same_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {}
    for part, (logits, labels) in splits().items():
        arrays |= {f"{part}_logits": logits.numpy(), f"{part}_labels": labels.numpy()}
    np.savez(tmp_path / "some-vgg16.npz", **arrays)
    first = {beside.AUTO: TemperatureScaling}
    monkeypatch.setattr(beside, "makers", lambda: first)
    out = tmp_path / "out.jsonl"
    beside.run([tmp_path / "some-vgg16.npz"], out, limit=5.0)
    monkeypatch.setattr(beside, "makers", lambda: {**first, "twice": TemperatureScaling, "refusing": Refusing})
    rows = beside.run([tmp_path / "some-vgg16.npz"], out, limit=5.0)
    assert [row["method"] for row in rows] == [beside.AUTO, "twice", "refusing"]
    assert rows == [json.loads(line) for line in out.read_text().splitlines()]
    assert (rows[1]["difference"], rows[1]["low"], rows[1]["high"]) == (0, 0, 0)
    record = beside.recorded(rows)
    assert json.loads(beside.written(record)) == record
    assert record["sets"]["some-vgg16"]["half"] == "judged"
    assert "refusing: `expected two classes, got three` (`some-vgg16`)" in beside.left_out(record)


def case(loss: float | None, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    return {"log_loss": loss, "low": low, "high": high, "fit_seconds": 0.25}


def test_ranks_ratios_and_decided_sets() -> None:
    sets = {
        "a-vgg16": {"methods": {beside.AUTO: case(1.0), "x": case(1.5, 0.1, 0.9), "y": case(1.0, -0.1, 0.1)}},
        "b-resnet110": {"methods": {beside.AUTO: case(2.0), "x": case(1.5, -0.6, -0.4), "y": case(None)}},
        "c-resnet110": {"methods": {beside.AUTO: case(4.0), "x": {"cut_off": 60.0}, "y": {"refused": "no"}}},
    }
    by_name = {one["method"]: one for one in beside.summary(sets)}
    assert [one["method"] for one in beside.summary(sets)] == [beside.AUTO, "x", "y"]
    assert by_name[beside.AUTO]["rank"] == pytest.approx((1.5 + 2 + 1) / 3)
    x, y = by_name["x"], by_name["y"]
    assert (x["served"], x["cut_off"], x["refused"], x["infinite"]) == (2, 1, 0, 0)
    assert (x["rank"], x["lower"], x["higher"], x["seconds"]) == (2.0, 1, 1, 0.5)
    assert x["relative"] == pytest.approx(3.0 / 3.0 - 1)
    assert x["relative_held_out"] == pytest.approx(0.5)
    assert (y["served"], y["infinite"], y["lower"], y["higher"], y["rank"]) == (2, 1, 0, 1, 2.25)
