"""The page of benchmarks is what its records give, and the way of timing does what it says."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from benchmarks import growth, page, race
from benchmarks.records import Store

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"


def a_record(ours: float, theirs: float, **changed: Any) -> dict[str, Any]:
    contenders = [
        {
            "name": "calibrant",
            "role": "ours",
            "seconds": [ours] * 3,
            "ratio": None,
            "peak_bytes": 0,
            "error": 0.0,
            "note": "",
        },
        {
            "name": "peer",
            "role": "peer",
            "seconds": [theirs] * 3,
            "ratio": race.ratio([theirs] * 3, [ours] * 3),
            "peak_bytes": 1 << 20,
            "error": None,
            "note": "",
        },
    ]
    record = {"name": "x", "title": "X", "rows": 5, "classes": 2, "threads": 1, "clock": "CPU", "error_is": "error"}
    return {**record, "contenders": contenders, "left_out": {}, **changed}


def test_the_page_is_what_its_records_give() -> None:
    assert page.render(page.load(RESULTS)) == (ROOT / "docs" / "benchmarks.md").read_text()


def test_every_row_that_is_behind_says_why() -> None:
    records = page.load(RESULTS)
    found = {page.key_of(one) for family in page.FAMILIES for one in records[family]["records"] if page.behind(one)}
    assert found == set(page.REASONS)


def test_records_say_nothing_of_the_machine_but_processor_and_cores() -> None:
    for content in page.load(RESULTS).values():
        assert set(content["machine"]) == {"processor", "cores"}


def test_a_rival_that_is_ahead_by_more_than_5_percent_is_behind_us_no_longer() -> None:
    assert not page.behind(a_record(1.0, 0.96))
    assert page.behind(a_record(1.0, 0.95))
    assert page.verdict(a_record(1.0, 1.0)) == "first"
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
