"""For whom: the groups in a report, their one test, and reports on weighted rows."""

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant import Pairs, Predictions
from calibrant.calibrators import GroupScaling, TemperatureScaling
from calibrant.errors import InputError
from calibrant.evaluate import subgroups
from calibrant.metrics import ECE
from calibrant.report import Model, write_report
from calibrant.report.advice import CHANCE, Advice
from calibrant.report.figures import distinct
from calibrant.report.finding import diagnose
from calibrant.report.groups_report import PROMISE, audit_of
from calibrant.report.model import Picture
from calibrant.report.sections import page_of


def people(rows: int = 1200, *, seed: int = 0, off: float = 1.2, **beside: Any) -> Predictions:
    """Return two classes with a group of which the model asks too much, and columns beside the rows."""
    rng = np.random.default_rng(seed)
    z, site = rng.normal(0, 1.5, rows), rng.choice(["a", "b", "<i>c</i>|d"], rows)
    y = rng.random(rows) < 1 / (1 + np.exp(-(z - off * (site == "b"))))
    columns = {"site": site, "age": rng.integers(20, 80, rows), "name": np.array([f"p{i}" for i in range(rows)])}
    return Predictions.from_binary_logits(z, y.astype(int), features=columns, **beside)


def page(folder: Path, model: Model, suffix: str = "html") -> str:
    return write_report([model], folder / f"r.{suffix}", draws=10).read_text()


def numbers(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if isinstance(value, int | float)}


def test_the_groups_are_those_of_subgroups_and_the_worst_is_named_at_the_top(tmp_path: Path, undrawn: None) -> None:
    data = people()
    model = Model("net", data)
    found = subgroups(data, ["site", "age"])
    audit = audit_of(model)
    assert (audit.before, audit.after, audit.unread) == (found, None, ("name",))
    assert found.rows[0].group == "site = b"
    text = page(tmp_path, model)
    said = html.escape(found.verdict)
    assert text.replace("\u00a0", " ").index(f"For whom: {said}") < text.index("<h3>For whom</h3>")
    worst = found.rows[0]
    for shown in (f"{100 * worst.gap:+.2f}", f"{100 * worst.all_low:+.2f}", f"{100 * worst.ece:.2f}", "site = b"):
        assert shown in text
    assert "site = &lt;i&gt;c&lt;/i&gt;|d" in text
    assert PROMISE.replace("95 %", "95\u00a0%") in text
    assert "Left out for more than 200 categories: name." in text


@pytest.mark.parametrize(
    ("off", "fitted", "opens", "advises"),
    [
        (0.0, False, "Probabilities of class 1 are|No |Over|Under", "Collect|Its calib|Calibrate it"),
        (1.2, False, r"too high by \d+\.\d points for site = b", "Calibrate by site: one correction"),
        (1.2, True, r"too high by \d+\.\d points for site = b", "Calibrate by site: one correction"),
    ],
)
def test_the_first_screen_opens_with_the_clearest_group(off: float, fitted: bool, opens: str, advises: str) -> None:
    data = people(3000, off=off)
    calibrator = TemperatureScaling().fit(people(3000, seed=1, off=off)) if fitted else None
    model = Model("net", data, data.calibrated_by(calibrator) if calibrator else None, calibrator, by=["site"])
    section = diagnose(model, draws=20)
    assert re.search(opens, section.screen.headline), section.screen
    assert re.match(advises, section.advice.headline), section.advice
    page = page_of(section)
    assert ("Gap by group" in page.pictures[0].caption) is (off > 0)
    folded = next(one for one in page.sections if one.title.startswith("Bins"))
    more = [block for block in folded.blocks if isinstance(block, Picture)]
    assert len([*page.pictures, *more]) == 1 + fitted + (off > 0)
    if off:
        assert "GroupScaling(['site']).fit(val)" in section.advice.commands[0][1]
        grouped = GroupScaling(["site"], folds=2).fit(people(3000, seed=1, off=off))
        after = diagnose(Model("net", data, data.calibrated_by(grouped), grouped, by=["site"]), draws=20)
        assert after.advice.headline == "Calibrate by site with GroupScaling."
        assert "GroupScaling(['site']).fit(val)" in after.advice.commands[0][1]
        average = Advice("Calibrate.", ["It gains.", f"{CHANCE}: use plain temperature scaling."], [])
        assert section.audit.advice(average, model).reasons == ["It gains."], "one recommendation"


def test_groups_that_err_as_all_rows_do_need_no_correction_of_their_own() -> None:
    rng = np.random.default_rng(0)
    truth, site = rng.normal(-1, 1.3, 3000), rng.choice(["a", "b", "c"], 3000)
    labels = (rng.random(3000) < 1 / (1 + np.exp(-truth))).astype(int)
    data = Predictions.from_logits(np.stack([0 * truth, 1.8 * truth - 0.5], 1), labels, features={"site": site})
    section = diagnose(Model("net", data), draws=20)
    assert section.audit.before.p_value < 0.05, "each is off"
    assert "site" not in section.screen.headline
    assert section.advice.headline == "Calibrate it on labelled rows other than these."
    assert (
        "One correction for all suffices for the groups of site, as far as these rows tell." in section.advice.reasons
    )


def test_labels_are_cut_so_that_they_stay_distinct() -> None:
    assert distinct(["short", "a b\nc"], width=9) == ["short", "a b c"]
    assert distinct(["abcdefghij", "zbcdefghij"], width=6) == ["abcde…", "zbcde…"]
    assert distinct(["abcdefghij = 1", "abcdefghij = 2"], width=9) == ["abcd… = 1", "abcd… = 2"]
    for alike in (["a" * 20 + x + "a" * 20 for x in "bcd"], ["a b", "a  b"]):
        cut = distinct(alike, width=12)
        assert len(set(cut)) == len(alike)
        assert max(map(len, cut)) <= 12


def test_without_large_groups_or_columns_it_says_so(tmp_path: Path, undrawn: None) -> None:
    small = audit_of(Model("net", people(60), by=["site", "age"]))
    assert (small.verdicts, small.lines) == (["There is no group with enough rows."], [])
    assert "0 groups tested, 7 with fewer than 100 rows or 5 expected events left out." in small.scope
    assert "<h3>For whom</h3>" in page(tmp_path, Model("net", people(60)))
    assert audit_of(Model("net", people(), by=[])) is None
    assert "For whom" not in page(tmp_path, Model("net", people(), by=()))
    bare = Predictions.from_binary_logits(
        [1.0, -1.0] * 60, [1, 0] * 60, features={"name": [f"p{i}" for i in range(120)]}
    )
    assert audit_of(Model("net", bare)) is not None  # 120 names are few enough, and each too small
    clusters = people(groups=np.arange(1200) % 4)
    few = audit_of(Model("net", clusters))
    assert few.verdicts[0].startswith("Groups are not tested: ")


@pytest.mark.parametrize(
    ("by", "words"),
    [
        (["town"], "expected features out of those of the predictions for 'town', got 'age', 'name', 'site'"),
        (["name"], "categories in 'name'"),
        ({"cell": [1, 2]}, "the feature 'cell'"),
    ],
)
def test_columns_that_are_not_there_are_refused(by: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        audit_of(Model("net", people(2200), by=by))


def test_weights_weight_every_figure_whatever_their_scale(tmp_path: Path, undrawn: None) -> None:
    weights, made = np.exp(np.random.default_rng(4).normal(0, 0.8, 900)), []
    calibrator = TemperatureScaling().fit(people(seed=1))
    for scale in (1.0, 50.0):
        data = people(900, weights=scale * weights)
        model = Model("net", data, data.calibrated_by(calibrator), calibrator, by=["site"])
        made.append(json.loads(page(tmp_path, model, "json")))
    one, other = (shown["models"][0] for shown in made)
    for part in ("gains", "event"):
        for ours, theirs in zip(one[part], other[part], strict=True):
            assert numbers(ours) == pytest.approx(numbers(theirs), rel=1e-9)
    value = next(row["value"] for row in made[0]["rows"] if row["metric"] == repr(ECE()))
    assert value == pytest.approx(ECE()(data))
    assert value != pytest.approx(ECE()(people(900)))
    assert "They vary as much as" in one["remarks"][0]
    assert one["event"][0]["slope"]["low"] is None  # no interval is offered for weighted rows


def test_weights_before_and_after_are_the_same() -> None:
    pairs = Pairs.from_probs([0.2, 0.7], [0, 1], weights=[1, 2])
    other = Pairs.from_probs([0.2, 0.7], [0, 1])
    with pytest.raises(InputError, match="expected the same weights before and after for net, got others"):
        Model("net", pairs, other)
