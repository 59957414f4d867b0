"""The registry's truths are exact, its samples follow them, and its runner continues a record."""

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.populations import METRICS, POPULATIONS, Population, binary
from tests.quick import few_candidates

from benchmarks import populations

NAMES = [population.name for population in POPULATIONS]


def test_there_are_forty_populations_with_names_of_their_own() -> None:
    assert len(set(NAMES)) == len(NAMES) >= 40


@pytest.mark.parametrize("source", POPULATIONS, ids=NAMES)
def test_a_large_sample_has_the_exact_figures(source: Population) -> None:
    assert np.isclose(source.mass.sum(), 1)
    np.testing.assert_allclose(source.p.sum(axis=1), 1)
    np.testing.assert_allclose(source.truth.sum(axis=1), 1)
    data = source.draw(20_000, 0)
    # eight standard errors of a mean over rows, four times as many where groups or weights count for fewer rows
    loose = 4 if source.group_size is not None or source.weight is not None else 1
    assert abs(METRICS["accuracy"](data) - source.accuracy) < loose * 8 * 0.5 / np.sqrt(len(data))
    assert abs(METRICS["brier"](data) - source.brier) < loose * 8 * 0.7 / np.sqrt(len(data))
    assert abs(METRICS["ece"](data) - source.ece) < loose * 0.03


def test_the_figures_of_two_points_by_hand() -> None:
    source = binary("two", [0.6, 0.9], [0.5, 1.0], [1, 3])
    assert source.accuracy == pytest.approx(0.25 * 0.5 + 0.75)
    assert source.ece == pytest.approx(0.25 * 0.1 + 0.75 * 0.1)
    assert source.brier == pytest.approx(0.25 * (0.5 * 2 * 0.16 + 0.5 * 2 * 0.36) + 0.75 * 0.02)
    assert source.nll == pytest.approx(-0.25 * 0.5 * np.log(0.6 * 0.4) - 0.75 * np.log(0.9))


def test_rivals_are_equally_good_and_one_is_more_confident() -> None:
    source = binary("one", [0.7, 0.9], [0.7, 0.9])
    rivals = source.rivals("nll")
    assert rivals is not None
    sharp, blunt = (Population("", p, source.truth, source.mass) for p in rivals)
    assert sharp.nll == pytest.approx(blunt.nll)
    assert sharp.p.max() > source.p.max() > blunt.p.max()


def test_a_run_continues_its_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "record.jsonl"
    for _ in range(2):
        populations.run(["interval-accuracy"], [50], replicates=4, only="one point .9", record=record)
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [line["population"] for line in lines] == ["one point .9", "one point .999"]
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert all(line["shown"] == 1 and 0 <= line["broken"] <= 1 for line in lines)


@pytest.mark.parametrize("promise", populations.PROMISES)
def test_every_promise_is_simulated(promise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few_candidates(monkeypatch)
    source = binary("two", [0.7, 0.9], [0.7, 0.9])
    (found,) = populations.cells([promise], source, 400, replicates=1, seed=1)
    assert 0 <= float(str(found["broken"])) <= float(str(found["shown"])) <= 1


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("K = 10, accuracy 0.9, tied", "accuracy"),
        ("K = 10, accuracy 0.9, tied", "nll"),
        ("exact zeros and ones, .993 right", "nll"),
    ],
)
def test_an_estimate_by_kind_is_that_of_rows(name: str, figure: str) -> None:
    source = next(one for one in POPULATIONS if one.name == name)
    by_kind, by_row = (
        trial(source, figure, 400, 3) for trial in (populations._estimate_by_kind, populations._estimate)
    )
    assert by_kind == pytest.approx(by_row, rel=1e-9)


def test_a_promise_that_cannot_hold_is_seen_to_break() -> None:
    liar = populations.Population("wrong", np.array([[0.1, 0.9]]), np.array([[0.1, 0.9]]), np.array([1.0]))
    vars(liar)["right"] = np.array([0.5])  # a truth that its samples do not have
    (found,) = populations.cells(["interval-accuracy"], liar, 400, replicates=3, seed=1)
    assert found["broken"] == 1.0


def test_samples_of_one_cell_count_together() -> None:
    where = {"promise": "interval-nll", "population": "one", "n": 300, "shown": 1.0}
    lines = [{**where, "replicates": 300, "broken": 0.08}, {**where, "replicates": 900, "broken": 0.04}]
    (cell,) = populations.pooled(map(json.dumps, lines))
    assert (cell["replicates"], cell["broken"]) == (1200, pytest.approx(0.05))


def test_a_record_is_shown_as_a_table() -> None:
    cells = [
        {
            "promise": "gate-ece",
            "population": "far",
            "n": n,
            "replicates": 400,
            "broken": 0.0,
            "passed": share,
            "shown": 0.5,
        }
        for n, share in ((50, 0.03), (300, 0.1))
    ]
    row = populations.table(map(json.dumps, cells)).splitlines()[-1]
    assert row == "| gate-ece | 2 | 50 % | 6.5 % | 10.0 %: far, n = 300 | 1 | 1 |"
