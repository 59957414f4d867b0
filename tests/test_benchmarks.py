"""The page of benchmarks is what its records give, and the way of timing does what it says."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.records import Store
from benchmarks.worst_groups import WorstGroup, paired_worst

from benchmarks import growth, page, race
from calibrant import Predictions
from calibrant.evaluate import subgroups

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"


def a_record(ours: float, theirs: float, **changed: Any) -> dict[str, Any]:
    both = {"peak_bytes": 0, "error": None, "note": ""}
    contenders = [
        {"name": "calibrant", "role": "ours", "seconds": [ours] * 3, "ratio": None, **both},
        {
            "name": "peer",
            "role": "peer",
            "seconds": [theirs] * 3,
            "ratio": race.ratio([theirs] * 3, [ours] * 3),
            **both,
        },
    ]
    record = {"name": "x", "title": "X", "rows": 5, "classes": 2, "threads": 1, "clock": "CPU", "error_is": "error"}
    return {**record, "contenders": contenders, "left_out": {}, **changed}


def test_the_page_is_what_its_records_give() -> None:
    assert page.render(page.load(RESULTS)) == (ROOT / "docs" / "benchmarks.md").read_text()


def test_every_row_that_is_behind_says_why() -> None:
    records = page.load(RESULTS)
    found = {
        page.key_of(one) for family in page.FAMILIES for one in records[family]["records"] if page.clearly_behind(one)
    }
    assert found == set(page.REASONS)


def test_records_say_nothing_of_the_machine_but_processor_and_cores() -> None:
    for content in page.load(RESULTS).values():
        assert set(content["machine"]) == {"processor", "cores"}


def test_a_rival_that_is_ahead_by_more_than_5_percent_is_behind_us_no_longer() -> None:
    assert not page.behind(a_record(1.0, 0.96))
    assert page.behind(a_record(1.0, 0.95))
    assert page.verdict(a_record(1.0, 1.0)) == "first"
    noisy = a_record(1.0, 0.9)
    noisy["contenders"][1]["ratio"] = [0.9, 0.8, 1.1]
    assert page.behind(noisy)
    assert page.verdict(noisy) == "not told apart"
    assert page.verdict(a_record(1.0, 0.96)) == "within 5 % of first"


def test_the_ratio_is_that_of_medians_within_its_interval() -> None:
    draw = random.Random(0)
    ours = [1 + 0.1 * draw.random() for _ in range(15)]
    value, low, high = race.ratio([2 * one for one in ours], ours)
    assert low == value == high == 2.0
    noisy, low, high = race.ratio([2 + draw.random() for _ in ours], ours)
    assert low < noisy < high
    assert race.ratio([4.0], ours) == [pytest.approx(4 / sorted(ours)[7], rel=0.01)]


def test_peak_memory_is_that_of_the_call() -> None:
    peak = race.peak(lambda: bytearray(b"x" * (64 << 20)))
    assert peak is None or 60 << 20 < peak < 150 << 20


def test_a_stopped_run_keeps_its_records_and_refuses_those_of_other_versions(tmp_path: Path) -> None:
    Store(tmp_path, "family").add({"name": "one", "rows": 3})
    again = Store(tmp_path, "family")
    assert again.find({"name": "one", "rows": 3}) == {"name": "one", "rows": 3}
    assert again.find({"name": "one", "rows": 4}) is None
    path = tmp_path / "bench-family.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "versions": {"torch": "0.1"}}))
    with pytest.raises(SystemExit, match="expected records of this versions"):
        Store(tmp_path, "family")


def test_a_library_is_left_out_where_its_next_point_would_take_too_long(tmp_path: Path) -> None:
    store = Store(tmp_path, "growth")
    key = {"axis": "rows", "operation": "op", "library": "peer"}
    store.add({**key, "value": 10, "seconds": [0.1, 0.1]})
    assert growth.expected(store, {**key, "value": 10}, (10, 100, 1000)) == 0
    assert growth.expected(store, {**key, "value": 100}, (10, 100, 1000)) == pytest.approx(1.0)
    store.add({**key, "value": 100, "skipped": "expected over 4 s"})
    assert growth.expected(store, {**key, "value": 1000}, (10, 100, 1000)) == float("inf")


def two_calibrations(rows: int = 3000) -> tuple[Predictions, Predictions]:
    """Return the same rows through a model that is off in one group by 0.2, and through the truth."""
    rng = np.random.default_rng(0)
    site, p = rng.choice(["a", "b"], rows), rng.uniform(0.3, 0.7, rows)
    y = (rng.random(rows) < p).astype(int)
    beside = {"site": site, "age": rng.uniform(20, 80, rows)}
    return (
        Predictions.from_binary_probs(p + 0.2 * (site == "b"), y, features=beside),
        Predictions.from_binary_probs(p, y, features=beside),
    )


def test_the_worst_group_and_its_paired_interval() -> None:
    off, right = two_calibrations()
    worst = [WorstGroup.of(data).error(np.ones(len(data))) for data in (off, right)]
    for data, found in zip((off, right), worst, strict=True):
        assert found == pytest.approx(max(row.ece for row in subgroups(data).rows), abs=1e-12)
    middle, low, high = paired_worst([off], [right], draws=100)
    assert middle == pytest.approx(worst[1] - worst[0], abs=1e-5)
    assert low < middle < high < -0.1
    assert paired_worst([off], [off], draws=20) == [0, 0, 0]


def test_rows_that_occur_twice_count_twice_in_the_worst_group() -> None:
    off, _ = two_calibrations(600)
    times = np.random.default_rng(1).integers(0, 3, 600)
    rows = np.repeat(np.arange(600), times)
    only = WorstGroup.of(off)
    sites = WorstGroup(only.cells[:1], only.residual, only.large[:1])  # quantiles of ages would move
    again = max(row.ece for row in subgroups(off[rows], ["site"]).rows)
    assert sites.error(times.astype(float)) == pytest.approx(again, abs=1e-12)
