"""The groups in a report, their one test, and reports on weighted rows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.calibrators import GroupScaling, TemperatureScaling
from calibrant.evaluate import subgroups
from calibrant.metrics import ECE
from calibrant.report import Model, write_report
from calibrant.report.finding import diagnose
from calibrant.report.groups import audit_of
from calibrant.report.model import Table
from calibrant.report.sections import first_pictures, parts_section


def people(rows: int = 1200, *, seed: int = 0, off: float = 1.2, **beside: Any) -> Predictions:
    """Return two classes with a group of which the model asks too much, and columns beside the rows."""
    rng = np.random.default_rng(seed)
    z, site = rng.normal(0, 1.5, rows), rng.choice(["a", "b", "<i>c</i>|d"], rows)
    y = rng.random(rows) < 1 / (1 + np.exp(-(z - off * (site == "b"))))
    columns = {"site": site, "age": rng.integers(20, 80, rows), "name": np.array([f"p{i}" for i in range(rows)])}
    return Predictions.from_binary_logits(z, y.astype(int), features=columns, **beside)


def numbers(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if isinstance(value, int | float)}


def test_the_groups_are_those_of_subgroups_and_the_worst_is_named() -> None:
    data = people()
    found = diagnose(Model("net", data), draws=10)
    tested = subgroups(data, ["site", "age"])
    assert (found.audit.before, found.audit.after) == (tested, None)
    assert found.audit.notes == ("Left out for more than 200 categories: name.",)
    assert f"Groups: {tested.verdict}" in found.facts
    (table,) = (block for block in parts_section(found, panels=0).blocks if isinstance(block, Table))
    worst = tested.rows[0]
    ends = f"+{100 * worst.all_low:.2f} to +{100 * worst.all_high:.2f}"
    assert table.rows[0][:2] == ["site = b", f"{worst.n:,}"]
    assert table.rows[0][4:7] == [f"+{100 * worst.gap:.2f}", ends, f"{100 * worst.ece:.2f} %"]


@pytest.mark.parametrize(
    ("off", "method", "opens", "advises"),
    [
        (0.0, TemperatureScaling(), "No significant", "Leave the model uncalibrated"),
        (1.2, None, "Probabilities are too high by ", "Calibrate it on labelled rows other than these."),
        (1.2, TemperatureScaling(), "Probabilities are too high by ", "Calibrate by site: one correction for all"),
        (
            1.2,
            GroupScaling(["site"], strength=1.0),
            "Probabilities are too high by ",
            "Calibrate by site with GroupScaling.",
        ),
    ],
)
def test_a_group_that_stays_off_is_named_and_corrected(off: float, method: Any, opens: str, advises: str) -> None:
    data = people(3000, off=off)
    calibrator = method and method.fit(people(3000, seed=1, off=off))
    after = calibrator and data.calibrated_by(calibrator)
    found = diagnose(Model("net", data, after, calibrator, by=["site"]), draws=20)
    assert found.verdicts[0].headline.startswith(opens)
    assert ("for site = b" in found.verdicts[0].headline) is opens.endswith("by ")
    assert found.advice.headline.startswith(advises)
    first = first_pictures(found)[0]
    assert first.caption.startswith("Gap by group") is (off > 0)
    if "by site" in advises:
        assert "GroupScaling(['site']).fit(val)" in found.advice.commands[0][1]


def test_without_large_groups_or_columns_it_says_so() -> None:
    small = audit_of(Model("net", people(60), by=["site", "age"]))
    assert (small.before.rows, small.before.left_out) == ((), 7)
    assert audit_of(Model("net", people(), by=[])) is None
    few = audit_of(Model("net", people(groups=np.arange(1200) % 4)))
    assert few.before is None
    assert few.notes[-1].startswith("Groups are not tested: ")


def test_weights_weight_every_figure_whatever_their_scale(tmp_path: Path) -> None:
    weights, made = np.exp(np.random.default_rng(4).normal(0, 0.8, 900)), []
    calibrator = TemperatureScaling().fit(people(seed=1))
    for scale in (1.0, 50.0):
        data = people(900, weights=scale * weights)
        model = Model("net", data, data.calibrated_by(calibrator), calibrator, by=["site"])
        made.append(json.loads(write_report([model], tmp_path / "r.json", draws=10).read_text()))
    one, other = (shown["models"][0] for shown in made)
    for part in ("gains", "event"):
        for ours, theirs in zip(one[part], other[part], strict=True):
            assert numbers(ours) == pytest.approx(numbers(theirs), rel=1e-9)
    value = next(row["value"] for row in made[0]["rows"] if row["metric"] == repr(ECE()))
    assert value == pytest.approx(ECE()(data))
    assert value != pytest.approx(ECE()(people(900)))
    assert "They are worth" in one["remarks"][0]
    assert one["event"][0]["slope"]["low"] is None  # no interval is offered for weighted rows
