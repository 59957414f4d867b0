"""The tables of docs/uncertainty.md are what the record of simulations gives."""

import json
from pathlib import Path

import pytest
from benchmarks import coverage_page

ROOT = Path(__file__).parent.parent
RECORD = ROOT / coverage_page.RECORD


def a_cell(name: str, missed: float, replicates: int = 1000) -> dict[str, object]:
    figures = {"refused": 0.1, "too_high": missed, "too_low": 0.0, "length": 0.1}
    return {"cell": name, "replicates": replicates, "metrics": {"ECE": figures}, "cpu_s": 1.0}


def test_the_worst_cell_is_named_and_cells_beyond_are_counted() -> None:
    cells = [a_cell("intervals | K = 2 | n = 100", 0.05), a_cell("intervals | K = 3 | n = 100", 0.2)]
    (row,) = coverage_page.interval_rows(cells, "intervals")
    assert row == ["`ECE`", "2", "86.1 %", "20.0 %", "K = 3, n = 100", "1", "10.0 %"]


@pytest.mark.parametrize(("missed", "beyond"), [(0.086, "0"), (0.087, "1")])
def test_two_simulation_errors_are_allowed(missed: float, beyond: str) -> None:
    (row,) = coverage_page.interval_rows([a_cell("intervals | x | n = 1", missed)], "intervals")
    assert row[5] == beyond


def test_only_the_generated_part_of_a_page_changes() -> None:
    page = f"above\n{coverage_page.BEGIN}\nold\n{coverage_page.END}\nbelow"
    new = coverage_page.rendered(page, [a_cell("intervals | x | n = 1", 0.05)])
    assert new.startswith("above\n")
    assert new.endswith("\nbelow")
    assert "old" not in new
    assert coverage_page.rendered(new, [a_cell("intervals | x | n = 1", 0.05)]) == new


def test_the_page_is_what_the_record_gives() -> None:
    page = (ROOT / coverage_page.PAGE).read_text()
    assert coverage_page.rendered(page, json.loads(RECORD.read_text())["cells"]) == page
