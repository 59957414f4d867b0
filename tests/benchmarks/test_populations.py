"""The truths of the populations are exact, their samples follow them, and a record is continued and summed up."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.populations.population import Population
from tests.conftest import late
from tests.makers import few_candidates

command, promises, registry = (late(f"benchmarks.populations.{name}") for name in ("__main__", "promises", "registry"))


@pytest.mark.slow
def test_a_large_sample_has_the_exact_figures() -> None:
    for source in registry.POPULATIONS:
        assert np.isclose(source.mass.sum(), 1)
        np.testing.assert_allclose(source.p.sum(axis=1), 1)
        np.testing.assert_allclose(source.truth.sum(axis=1), 1)
        data = source.draw(20_000, 0)
        # eight standard errors of a mean over rows, four times as many where groups or weights count for fewer rows
        loose = 1 if source.independent else 4
        for name, tolerance in (("accuracy", 8 * 0.5 / 20_000**0.5), ("brier", 8 * 0.7 / 20_000**0.5), ("ece", 0.03)):
            off = promises.METRICS[name](data) - getattr(source, name)
            assert abs(off) < loose * tolerance, (source.name, name)


def test_the_figures_of_two_points_by_hand() -> None:
    source = registry.binary("two", [0.6, 0.9], [0.5, 1.0], [1, 3])
    assert source.accuracy == pytest.approx(0.25 * 0.5 + 0.75)
    assert source.ece == source.ece_between(np.arange(16) / 15) == pytest.approx(0.25 * 0.1 + 0.75 * 0.1)
    assert source.brier == pytest.approx(0.25 * (0.5 * 2 * 0.16 + 0.5 * 2 * 0.36) + 0.75 * 0.02)
    assert source.nll == pytest.approx(-0.25 * 0.5 * np.log(0.6 * 0.4) - 0.75 * np.log(0.9))


def test_rivals_are_equally_good_and_one_is_more_confident() -> None:
    source = registry.binary("one", [0.7, 0.9], [0.7, 0.9])
    rivals = source.rivals("nll")
    assert rivals is not None
    sharp, blunt = (Population("", p, source.truth, source.mass) for p in rivals)
    assert sharp.nll == pytest.approx(blunt.nll)
    assert sharp.p.max() > source.p.max() > blunt.p.max()


def test_every_promise_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    few_candidates(monkeypatch)
    source = replace(registry.binary("two", [0.7, 0.9], [0.6, 0.75]), later=np.array([[0.2, 0.8]]))
    for promise in promises.PROMISES:
        found = command.cell(promise, source, 400, replicates=1, seed=8)  # of which the gate advises more rows
        assert found is not None, promise
        assert 0 <= found["broken"] <= found["shown"] <= 1, promise


def test_a_promise_that_cannot_hold_is_seen_to_break() -> None:
    liar = Population("wrong", np.array([[0.1, 0.9]]), np.array([[0.1, 0.9]]), np.array([1.0]))
    vars(liar)["right"] = np.array([0.5])  # a truth that its samples do not have
    found = command.cell("interval-accuracy", liar, 400, replicates=3, seed=1)
    assert found is not None
    assert found["broken"] == 1.0


def test_a_run_continues_its_record_and_the_table_sums_it_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "record.csv"
    for seed in (1, 1, 5):
        command.run(["interval-accuracy"], [50], replicates=4, only="one point .9", record=record, seed=seed)
    assert len(capsys.readouterr().out.splitlines()) == 4  # two populations, two seeds
    cells = list(command.read(record))
    assert {one["population"] for one in cells} == {"one point .9", "one point .999"}
    assert [one["replicates"] for one in command.pooled(cells)] == [8, 8]
    assert command.table(cells).splitlines()[2].startswith("| interval-accuracy | 5.0% | 2 | 100% |")
