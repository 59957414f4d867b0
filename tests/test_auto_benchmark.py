"""The benchmark of AutoCalibrator: what counts as harm, its record, and that its page is what the records give."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.draws import drawn

from benchmarks import auto

ROOT = Path(__file__).parent.parent


def row(change: float, error: float, *, size: str = "100", name: str = "a") -> dict[str, Any]:
    """Return a case on which AutoCalibrator's log-loss is ``change`` above 1, with this standard error of the difference."""
    losses = {
        "none": 1.0,
        "StructuredMatrixScaling": 1.0,
        "AutoCalibrator": 1 + change,
        "AutoCalibrator, decision kept": 1.0,
    }
    return {"set": name, "size": size, "draw": 0, "losses": losses, "errors": {"none": 0.0, "AutoCalibrator": error}}


@pytest.mark.parametrize(
    ("change", "error", "harmed"), [(0.02, 0.0101, 1), (0.02, 0.0103, 0), (0.009, 1e-4, 0), (-0.1, 0, 0)]
)
def test_harm_is_a_rise_beyond_one_per_cent_and_the_paired_interval(change: float, error: float, harmed: int) -> None:
    found = auto.figures([row(change, error)], "AutoCalibrator")
    assert found["harmed"] == harmed
    assert found["beyond_harm"] == (change > 0.01)
    assert found["worst"] == found["change_99"] == pytest.approx(change)


def test_the_standard_error_is_that_of_the_paired_difference() -> None:
    z, y = drawn(300, 3, spread=4, dtype=torch.float32)
    found, errors = auto.losses(["none", "TemperatureScaling"], z[:100], y[:100], z[100:], y[100:])
    assert errors["none"] == 0
    fitted = auto.TemperatureScaling().fit(z[:100], y[:100])
    pairs = [
        torch.nn.functional.cross_entropy(one.double(), y[100:], reduction="none")
        for one in (fitted(z[100:].double()), z[100:])
    ]
    gap = pairs[0] - pairs[1]
    assert found["TemperatureScaling"] - found["none"] == pytest.approx(float(gap.mean()), abs=1e-12)
    assert errors["TemperatureScaling"] == pytest.approx(float(gap.std()) / 200**0.5, abs=1e-12)


def test_later_resamples_join_those_of_the_record(tmp_path: Path) -> None:
    rows = [row(0.003 * draw**2 - 0.01, 1e-4, name=name) | {"draw": draw} for draw in range(7) for name in "ab"]
    rows = [one | {"losses": one["losses"] | {"none": 1.0 - 0.01 * (one["set"] == "b")}} for one in rows]
    rows.append(row(0.1, 0.1, size="full"))
    whole, parts = tmp_path / "whole.json", tmp_path / "parts.json"
    auto.keep(whole, "judged", rows)
    auto.keep(parts, "judged", [one for one in rows if one["draw"] < 4])
    with pytest.raises(SystemExit, match=r"expected 5 resamples of judged in .*, got 4; run from there on"):
        auto.keep(parts, "judged", rows, first=5)
    auto.keep(parts, "judged", [one for one in rows if one["draw"] >= 4], first=4)
    one, other = (json.loads(path.read_text())["parts"]["judged"] for path in (whole, parts))
    assert one["draws"] == other["draws"] == 7
    for found, expected in ((other["all"], one["all"]), (other["sets"]["b"], one["sets"]["b"])):
        assert found.keys() == expected.keys()
        ours, theirs = found["100"]["AutoCalibrator"], expected["100"]["AutoCalibrator"]
        assert {name: ours[name] for name in ("cases", "worst")} == {name: theirs[name] for name in ("cases", "worst")}
        for name in ("loss", "harmed", "beyond_harm"):
            assert ours[name] == pytest.approx(theirs[name], abs=2e-5)
        assert ours["change_99"] >= theirs["change_99"]


def test_calibrated_models_have_draws_of_their_own_at_every_size() -> None:
    found = list(auto.calibrated_cases(range(2)))
    assert len(found) == 2 * len(auto.CALIBRATED) * len(auto.CALIBRATED_SIZES)
    sizes = {int(size) for _, size, *_ in found}
    assert sizes == {50, 100, 300, 1000}
    first, other = found[0], found[len(found) // 2]
    assert (first[0], len(first[3]), len(first[5])) == ("two classes, one rare", 50, 4000)
    assert not torch.equal(first[3], other[3])


def test_a_part_of_the_record_is_replaced_and_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "auto.json"
    auto.keep(path, "judged", [row(0.1, 0.0)])
    auto.keep(path, "calibrated", [row(0.0, 0.0, name=name) for name in auto.CALIBRATED])
    auto.keep(path, "judged", [row(-0.1, 0.0)])
    parts = json.loads(path.read_text())["parts"]
    assert parts["judged"]["all"]["100"]["AutoCalibrator"]["loss"] == 0.9
    assert set(parts["calibrated"]["sets"]) == set(auto.CALIBRATED)


def test_rows_of_earlier_versions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    path.write_text('{"set": "a", "size": "100", "draw": 0, "losses": {"none": 1.0}}\n')
    with pytest.raises(SystemExit, match="expected rows with standard errors"):
        auto.read(path)
