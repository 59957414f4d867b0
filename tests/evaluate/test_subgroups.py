"""Groups of rows: what is found, what is controlled, what is refused."""

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import late

from calibrant import Pairs, Predictions
from calibrant.errors import InputError, NoIntervalError
from calibrant.evaluate import subgroups
from calibrant.metrics import ECE
from calibrant.statistics.means import mean_interval

stats = late("scipy.stats")


def sample(rows: int = 4000, *, gap: float = 0.0, seed: int = 0, **beside: Any) -> Pairs:
    """Return calibrated pairs, but for site c, whose events are rarer by ``gap``."""
    rng = np.random.default_rng(seed)
    p = 1 / (1 + np.exp(-rng.normal(0.3, 1.3, rows)))
    site = rng.integers(0, 4, rows)
    y = (rng.random(rows) < p - gap * (site == 2)).astype(int)
    features = {"site": np.array(list("abcd"))[site], "age": rng.normal(50, 10, rows), "sex": rng.integers(0, 2, rows)}
    return Pairs.from_probs(p, y, features=features, **beside)


def test_the_group_that_is_off_comes_first() -> None:
    found = subgroups(sample(gap=0.1))
    worst = found.rows[0]
    assert worst.name == "site = c"
    assert worst.columns == (("site", "c"),)
    assert worst.low < 0.1 < worst.high
    assert worst.all_low < worst.low < worst.high < worst.all_high
    assert found.p_value == worst.p_adjusted < 0.001
    significant = sum(row.p_adjusted < 0.05 for row in found.rows)  # of 4 sites, 4 ranges of ages and 2 sexes
    assert re.search(rf"\b{significant} of 10 groups (is|are) significantly miscalibrated", found.verdict)
    assert subgroups(sample()).verdict.startswith("No group is significantly miscalibrated")
    assert {row.columns[0][0] for row in found.rows} == {"site", "age", "sex"}
    assert sum(row.n for row in found.rows) == 3 * 4000
    ranked = [row.p_adjusted for row in found.rows]
    assert ranked == sorted(ranked)
    assert all(row.p <= row.p_adjusted <= 1 for row in found.rows)


def test_figures_are_those_of_the_rows() -> None:
    data = sample(gap=0.05)
    row = next(row for row in subgroups(data, ["site"]).rows if row.name == "site = b")
    part = data[torch.from_numpy(np.asarray(data.features["site"]) == "b")]
    assert row.n == len(part)
    assert row.confidence == pytest.approx(float(part.p.mean()), rel=1e-12)
    assert row.gap == pytest.approx(float((part.p - part.y).mean()), rel=1e-9)
    assert row.ece == pytest.approx(ECE()(part), rel=1e-9)
    z = row.gap * len(part) / math.sqrt(float((part.p * (1 - part.p)).sum()))
    assert row.p == pytest.approx(math.erfc(abs(z) / math.sqrt(2)), rel=0.05)  # the skewness is taken out


def test_intersections_go_to_the_depth() -> None:
    found = subgroups(sample(), ["site", "sex"], depth=2)
    assert {len(row.columns) for row in found.rows} == {1, 2}
    assert len(found.rows) == 4 + 2 + 8
    assert "site = a and sex = 0" in {row.name for row in found.rows}
    assert len(subgroups(sample(), ["site", "sex"], depth=1).rows) == 6


def test_the_event_follows_the_kind_of_data() -> None:
    z = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    features = {"x": torch.arange(400) % 2}
    three = Predictions.from_logits(z, torch.arange(400) % 3, features=features)
    assert subgroups(three).event == "the decision is right"
    one = subgroups(three.one_vs_rest(2))
    assert one.event == "the outcome"
    assert one.rows[0].confidence != subgroups(three).rows[0].confidence
    two = Predictions.from_logits(z[:, :2], torch.arange(400) % 2, features=features)
    assert subgroups(two).event == "class 1"
    assert subgroups(two.one_vs_rest(1)).event == "the outcome"


def test_rows_of_one_cluster_are_not_independent() -> None:
    data = sample(600, gap=0.06)
    times = np.repeat(np.arange(600), 5)
    base = data[times]
    alone = Pairs(base.p, base.y, features=base.features)
    together = Pairs(base.p, base.y, groups=torch.from_numpy(times), features=base.features)
    loose, honest = (subgroups(one, ["site"]).rows[0] for one in (alone, together))
    assert honest.high - honest.low > 2 * (loose.high - loose.low)
    with pytest.raises(NoIntervalError, match="at least 10 groups"):
        subgroups(Pairs(data.p, data.y, groups=torch.arange(600) % 5, features=data.features))


@pytest.mark.parametrize("shift", [pytest.param(0.0, marks=pytest.mark.slow), -3.5])
def test_no_more_false_alarms_than_promised(shift: float) -> None:
    rng, alarms, held = np.random.default_rng(5), 0, 0
    for _ in range(24):
        p = 1 / (1 + np.exp(-rng.normal(shift, 1.2, 3000)))
        data = Pairs.from_probs(p, (rng.random(3000) < p).astype(int))
        columns = {"a": rng.integers(0, 10, 3000), "b": rng.integers(0, 10, 3000)}
        found = subgroups(data, columns)
        alarms += found.p_value < 0.05
        held += all(row.all_low <= 0 <= row.all_high for row in found.rows)
    assert alarms <= 4  # 1.2 expected; 5 or more have probability .006
    assert held >= 20


def test_the_gap_of_a_rare_event_has_a_skewed_interval() -> None:
    rng = np.random.default_rng(8)
    p = 1 / (1 + np.exp(-rng.normal(-4.0, 1.0, 4000)))
    y = (rng.random(4000) < p).astype(int)
    data = Pairs.from_probs(p / 2, y)  # the variance that this model gives is smaller than that of the rows
    (row,) = subgroups(data, {"all": ["x"] * 4000}).rows
    expected, length = mean_interval(data.p - data.y), row.high - row.low
    assert (row.low, row.high) == pytest.approx(
        (expected.low, expected.high), abs=1e-3 * length
    )  # normal, not Student's t
    assert row.gap - row.low > 1.1 * (row.high - row.gap)
    assert row.gap - row.all_low > 1.1 * (row.all_high - row.gap)
    # the interval is symmetric where the model's own variance is the larger one, and for weights
    larger = Pairs.from_probs(p * 2, y)
    sampled = Pairs.from_probs(p / 2, y, weights=rng.uniform(1, 3, 4000))
    for symmetric in (larger, sampled):
        (row,) = subgroups(symmetric, {"all": ["x"] * 4000}).rows
        assert row.gap - row.low == pytest.approx(row.high - row.gap, rel=1e-9)


def test_small_groups_are_left_out_and_counted() -> None:
    data = sample(1000)
    columns = {"x": np.where(np.arange(1000) < 30, "few", "many")}
    found = subgroups(data, columns)
    assert [row.name for row in found.rows] == ["x = many"]
    assert found.left_out == 1
    none = subgroups(data, columns, minimum=5000)
    assert (none.rows, none.p_value, none.verdict) == ((), 1.0, "No group has enough rows and events to be tested.")


def test_numbers_are_cut_and_missing_ones_are_a_group() -> None:
    data = sample(2000)
    age = np.where(np.arange(2000) % 5 == 0, np.nan, np.arange(2000) / 10)
    names = [row.name for row in subgroups(data, {"age": age}, bins=2).rows]
    assert sorted(names) == ["age = 0.1 to 99.9", "age = 100.1 to 199.9", "age = missing"]


@pytest.mark.parametrize(
    ("features", "words"), [({"x": [1, 2]}, r"the feature 'x' of shape \(300,\)"), ({}, "one column")]
)
def test_bad_input_is_refused(features: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        subgroups(sample(300), features)


@pytest.mark.parametrize("positives", [0, 3])
def test_few_clusters_with_the_event_do_not_shrink_its_variance(positives: int) -> None:
    y = [1] * positives + [0] * (500 - positives)  # of ten expected
    rows, clusters = (
        subgroups(Pairs.from_probs([0.02] * 500, y, groups=groups), {"site": ["a"] * 500}).rows[0]
        for groups in (None, list(range(500)))
    )
    z = (10 - positives) / np.sqrt(500 * 0.02 * 0.98)
    expected = 2 * stats.t(499).sf(z)
    assert clusters.p == pytest.approx(expected, rel=1e-6)  # before: 5e-5 of three, 0 of none
    assert clusters.high - clusters.low >= 0.99 * (rows.high - rows.low)


@pytest.mark.parametrize("top", [False, True])
def test_a_group_that_is_off_in_shape_alone_is_found(top: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(4000, 2, generator=generator, dtype=torch.float64)
    odd = torch.arange(4000) % 10 == 0
    drawn = torch.where(odd[:, None], z / 12, z)
    y = torch.multinomial(drawn.softmax(dim=1), 1, generator=generator)[:, 0]
    data = Predictions.from_logits(z, y)
    clusters = torch.arange(4000) // 4
    for predictions in (data, Predictions(data.logits, labels=data.labels, groups=clusters)):
        found = subgroups(predictions.top_label() if top else predictions, {"s": odd.long()})
        assert found.rows[0].p_adjusted < 1e-3
        if not top:
            assert found.rows[0].evidence == "shape"
            assert found.rows[1].p_adjusted > 0.05
