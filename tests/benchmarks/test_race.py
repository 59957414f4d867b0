"""Races time what they say, keep their records, and name what those show."""

import json
import random
from pathlib import Path

import pytest
from benchmarks.race.__main__ import table
from benchmarks.records import Store

from benchmarks import growth, race

ROOT = Path(__file__).parent.parent.parent


def test_the_page_holds_the_tables_of_the_records() -> None:
    records, page = ROOT / "benchmarks" / "records", (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
    assert table(records) in page
    assert growth.table([json.loads(line) for line in (records / "growth.jsonl").read_text().splitlines()]) in page


def test_the_ratio_is_that_of_medians_within_its_interval() -> None:
    draw = random.Random(0)
    ours = [1 + 0.1 * draw.random() for _ in range(15)]
    value, low, high = race.ratio([2 * one for one in ours], ours)
    assert low == value == high == 2.0
    noisy, low, high = race.ratio([2 + draw.random() for _ in ours], ours)
    assert low < noisy < high
    assert race.ratio([4.0], ours) == [pytest.approx(4 / sorted(ours)[7], rel=0.01)]


def test_a_stopped_run_keeps_its_records_and_refuses_those_of_other_versions(tmp_path: Path) -> None:
    Store(tmp_path, "family").add({"name": "one", "rows": 3})
    again = Store(tmp_path, "family")
    assert again.find({"name": "one", "rows": 3}) == {"name": "one", "rows": 3}
    assert again.find({"name": "one", "rows": 4}) is None
    path = tmp_path / "bench-family.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "versions": {"torch": "0.1"}}))
    with pytest.raises(SystemExit, match="expected records of this versions"):
        Store(tmp_path, "family")
