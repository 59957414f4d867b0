"""The tables of docs/uncertainty.md are what the record of simulations gives."""

import json
from pathlib import Path

import pytest

from benchmarks import coverage_page, populations

ROOT = Path(__file__).parent.parent
RECORD = ROOT / coverage_page.RECORD


def a_cell(name: str, missed: float, replicates: int = 1000) -> dict[str, object]:
    figures = {"refused": 0.1, "too_high": missed, "too_low": 0.0, "length": 0.1}
    metrics = dict.fromkeys(coverage_page.EVERYDAY, figures)
    return {"cell": name, "replicates": replicates, "rows": 1000, "accuracy": 0.9, "metrics": metrics, "cpu_s": 1.0}


def a_pair(name: str, equal: list[str], told_apart: float) -> dict[str, object]:
    shares = dict.fromkeys((*coverage_page.METRICS, "any equal metric, Holm"), told_apart)
    return {"cell": f"tests | {name} | n = 300", "replicates": 4000, "equal_in": equal, "metrics": shares, "cpu_s": 1.0}


def test_the_worst_cell_is_named_and_cells_beyond_are_counted() -> None:
    cells = [a_cell("intervals | K = 2 | n = 100", 0.05), a_cell("intervals | K = 3 | n = 100", 0.2)]
    *_, row = coverage_page.interval_rows(cells, "intervals")
    assert row == ["`ECE`", "2", "86.1 %", "20.0 %", "K = 3, n = 100", "1", "10.0 %"]


@pytest.mark.parametrize(("missed", "beyond"), [(0.086, "0"), (0.087, "1")])
def test_two_simulation_errors_are_allowed(missed: float, beyond: str) -> None:
    *_, row = coverage_page.interval_rows([a_cell("intervals | x | n = 1", missed)], "intervals")
    assert row[5] == beyond


def test_tests_show_what_is_equal_and_count_what_exceeds_their_level() -> None:
    cells = [a_pair("alike", ["NLL"], 0.056), a_pair("alike too", ["NLL"], 0.058), a_pair("power: apart", [], 0.3)]
    assert next(iter(coverage_page.test_rows(cells))) == ["alike", "300", "–", "5.6 %", "–", "–", "5.6 %", "4,000"]
    assert coverage_page.beyond_tests(cells) == (4, 2)
    former = [{"cell": "former | power: apart | n = 300", "metrics": {"nominal": 0.4, "same size": 0.2}}]
    assert list(coverage_page.power_rows(cells, former)) == [["apart", "30.0 %", "20.0 %", "40.0 %"]]


def test_long_intervals_count_where_the_former_one_covered() -> None:
    def cell(part: str, name: str, ratio: float, missed: float = 0.05) -> dict[str, object]:
        found = {"offered": 100, "ratio": ratio, "former_missed_of_all": missed}
        return {"cell": f"{part} | {name} | n = 100", "metrics": {"ECE": found}}

    cells = [cell("lengths", *one) for one in (("few", 1.2), ("many", 1.0), ("missed", 9.0), ("fair", 1.2))]
    again = [cell("longer", *one) for one in (("few", 1.15), ("missed", 8.0, 0.071), ("fair", 1.1))]
    (row,) = coverage_page.length_rows(cells, again, {"few | n = 100": 3.0, "many | n = 100": 30.0})
    assert row == ["`ECE`", "4", "3.10", "2", "1", "1.15", "few, n = 100", "0"]
    *_, (*_, over) = coverage_page.length_rows(cells, again, {"few | n = 100": 10.0})
    assert over == "1, up to 1.15"


@pytest.mark.parametrize(("above", "beyond"), [(0.0348, "0"), (0.0349, "1")])
def test_limits_may_be_exceeded_by_one_calibrated_model_in_forty(above: float, beyond: str) -> None:
    cells = [
        {"cell": f"levels | K = {k} | n = 100", "metrics": {"ECE()": {"above": share, "replicates": 1000, "draws": 9}}}
        for k, share in ((2, 0.01), (3, above))
    ]
    (row,) = coverage_page.level_rows(cells)
    assert row == [
        "`ECE()`",
        "2",
        "1,000",
        f"{(1 + 100 * above) / 2:.1f} %",
        f"{100 * above:.1f} %",
        "K = 3, n = 100",
        beyond,
    ]


def test_refusals_count_where_errors_are_expected() -> None:
    cells = [a_cell("intervals | x | n = 1000", 0.05), {**a_cell("intervals | y | n = 1000", 0.05), "accuracy": 0.99}]
    assert coverage_page.refusals(cells).startswith("In the 1 cells with at least 1,000 rows")
    assert "at most 10.0 % of the samples" in coverage_page.refusals(cells)


def in_registry(promise: str, broken: float, **more: float) -> dict[str, object]:
    return {
        "promise": promise,
        "population": "far",
        "n": 300,
        "replicates": 400,
        "broken": broken,
        "shown": 0.5,
        **more,
    }


def test_a_promise_has_one_row_with_its_worst_cell() -> None:
    record = [a_cell("intervals | K = 2 | n = 100", 0.05), a_cell("intervals | K = 3 | n = 100", 0.2)]
    registry = [
        in_registry("interval-nll", 0.04),
        in_registry("interval-nll", 0.09),
        in_registry("gate-ece", 0, passed=0.1),
    ]
    made = coverage_page.summary(record, registry)
    (nll,) = (line.split(" | ") for line in made.splitlines() if line.startswith("| `NLL`: interval | Student"))
    assert nll[3:] == ["†20.0 %: K = 3, n = 100", "2 / 1<br>†2 / 1", "50 %<br>†90 % |"]
    assert (
        "6 of these cells lie three standard errors above" in made
    )  # four metrics of the older record, NLL and the gate
    assert "`monitor`" in made.partition("Not simulated")[2]
    assert "`gate-ece`" not in made.partition("Not simulated")[2]


def test_every_promise_of_the_registry_has_a_row_of_its_own() -> None:
    apart = coverage_page.GROUPED_PART  # of these, rows in groups have a row of their own
    for grouped in (False, True):
        rows = [promise for promise in coverage_page.KEPT if apart.get(promise.part, grouped) == grouped]
        assert sorted(name for promise in rows for name in promise.registry) == sorted(populations.PROMISES)


def test_pairs_count_where_they_are_equal() -> None:
    cells = [a_pair("alike", ["NLL"], 0.058), a_pair("power: apart", [], 0.3)]
    (pairs,) = (promise for promise in coverage_page.KEPT if promise.part == "tests")
    assert [(cell.broken, cell.above(), cell.samples) for cell in pairs.cells(cells, [])[1]] == [
        (0.058, True, 4000)
    ] * 2


def test_only_the_generated_part_of_a_page_changes() -> None:
    page = f"above\n{coverage_page.BEGIN}\nformer part\n{coverage_page.END}\nbelow"
    new = coverage_page.rendered(page, [a_cell("intervals | x | n = 1", 0.05)], [])
    assert new.startswith("above\n")
    assert new.endswith("\nbelow")
    assert "former part" not in new
    assert coverage_page.rendered(new, [a_cell("intervals | x | n = 1", 0.05)], []) == new


def test_the_page_is_what_the_records_give() -> None:
    page = (ROOT / coverage_page.PAGE).read_text()
    registry = coverage_page.read_registry(ROOT / coverage_page.REGISTRY)
    assert coverage_page.rendered(page, json.loads(RECORD.read_text())["cells"], registry) == page
    assert len(page.split()) <= 1500
