"""Rows in groups: how much they say, whole groups, and where in them they are off."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.calibrators import TemperatureScaling
from calibrant.report import Model, write_report
from calibrant.report.clusters import ClusterSection, clusters_of

GROUPS, LENGTH = 60, 20


def tagged(*, drift: bool = False, groups: int = GROUPS, seed: int = 0, **beside: Any) -> Predictions:
    """Return tokens of sequences; with a drift the logits are right at the start and three times too large at the end."""
    rng = np.random.default_rng(seed)
    true = 2 * rng.normal(size=(groups, LENGTH, 3))
    labels = (true + rng.gumbel(size=true.shape)).argmax(-1).reshape(-1)
    scale = np.linspace(1, 3 if drift else 1, LENGTH)[None, :, None]
    rows = np.repeat(np.arange(groups), LENGTH)
    return Predictions.from_logits((scale * true).reshape(-1, 3), labels, groups=rows, **beside)


def found(model: Model) -> ClusterSection:
    section = clusters_of(model)
    assert section is not None
    return section


def test_rows_without_groups_have_no_such_part() -> None:
    assert clusters_of(Model("m", Predictions.from_logits([[1.5, 0.0, 0.0]] * 4, [0, 1, 2, 0]))) is None


def test_whole_groups_and_the_gap_are_those_by_hand() -> None:
    # two rows a group: confidences .9 and .8; of twelve groups three are right in both rows, six in the first alone
    probs = torch.tensor([[0.9, 0.05, 0.05], [0.8, 0.1, 0.1]]).repeat(12, 1)
    labels = [0, 0] * 3 + [0, 1] * 6 + [1, 1] * 3
    state = found(Model("m", Predictions.from_probs(probs, labels, groups=np.arange(24) // 2))).states[0]
    assert (state.rows, state.groups, state.right) == (24, 12, 3)
    assert state.product == pytest.approx(12 * 0.9 * 0.8)
    assert state.gap.estimate == pytest.approx(0.85 - 12 / 24)
    assert state.fifths == (), "two rows have no fifths"


def test_rows_that_repeat_each_other_are_worth_one_a_group() -> None:
    one = tagged()[::LENGTH]
    same = torch.arange(GROUPS).repeat_interleave(LENGTH)
    state = found(Model("m", Predictions.from_logits(one.logits[same], one.labels[same], groups=same))).states[0]
    assert state.worth == pytest.approx(GROUPS, rel=0.03)
    alone = found(Model("m", tagged())).states[0]
    assert alone.worth is not None
    assert alone.worth > 0.7 * GROUPS * LENGTH


def test_the_fifth_that_is_off_is_named_and_the_position_counts_not_the_order() -> None:
    data = tagged(drift=True)
    in_order = found(Model("m", data)).states[0]
    gaps = [one.estimate for one in in_order.fifths]
    assert gaps[0] < gaps[-1]
    assert in_order.apart[0]
    assert sum(gaps) / 5 == pytest.approx(in_order.gap.estimate)
    place = np.tile(np.arange(LENGTH), GROUPS)
    shuffled = np.random.default_rng(1).permutation(len(data))
    named = found(Model("m", tagged(drift=True, features={"position": place})[shuffled]))
    assert [one.estimate for one in named.states[0].fifths] == pytest.approx(gaps)
    assert (named.rows, named.group) == ("tokens", "sequence")
    assert "In the first fifth of each sequence confidence is too high by" in named.facts[-1]
    assert len(found(Model("m", tagged())).facts) == 1, "calibrated rows have no fifth to name"


def test_few_or_short_or_weighted_groups_have_no_intervals_that_are_not_known_to_hold() -> None:
    few = found(Model("m", tagged(groups=9)))
    assert math.isnan(few.states[0].gap.low)
    assert few.states[0].worth is None
    assert "Intervals need ten groups of equal size." in few.statistics.note
    weighted = tagged(weights=np.ones(GROUPS * LENGTH), weight_kind="sampling")
    assert found(Model("m", weighted)).states[0].fifths == ()
    two = Predictions.from_binary_logits(np.zeros(40), [0, 1] * 20, groups=np.arange(40) // 2)
    event = found(Model("m", two))
    assert event.of == "probability − frequency"
    assert event.states[0].right is None


def test_the_page_says_what_rows_are_and_what_to_do(tmp_path: Path, undrawn: None) -> None:
    data = tagged(drift=True)
    calibrator = TemperatureScaling().fit(tagged(drift=True, seed=1))
    model = Model("m", data, data.calibrated_by(calibrator), calibrator, unit="pixel")
    section = found(model)
    assert section.facts[0].startswith("The 1,200 pixels lie in 60 images: intervals count those")
    table = section.statistics
    assert [row[0] for row in table.rows] == [
        "mean confidence − accuracy, in points",
        *(f"in the {which} fifth" for which in ("first", "second", "middle", "fourth", "last")),
        "independent pixels that tell as much",
    ]
    assert all(row[-1] for row in table.rows), "each figure has a sentence on what to do"
    assert "position as a feature" in table.rows[1][-1]
    for name in ("r.html", "r.md"):
        text = write_report([model], tmp_path / name, draws=20).read_text()
        assert "Images and their pixels" in text
        assert section.facts[0] in text
    assert "Gap by place in the image" in (tmp_path / "r.html").read_text()
