"""A report on rows that stay on disk: the figures of the report in memory, from sums."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import calibrant
from calibrant import Predictions, metrics
from calibrant.binning import EqualWidth
from calibrant.calibrators import TemperatureScaling
from calibrant.errors import InputError
from calibrant.plot import diagram_of
from calibrant.plot.diagrams import risk_curve
from calibrant.report import Model, diagnose_streamed, write_report
from calibrant.report import section as built
from calibrant.report.events import Cells
from calibrant.report.groups_report import audit
from calibrant.report.section import ByGroup, Section, diagnose
from calibrant.scale import rows
from calibrant.scale.execute import in_turn
from calibrant.scale.rows import ParquetRows


def make(home: Path, *, groups: bool = False, parts: int = 3) -> Predictions:
    """Write ``parts`` files of 900 rows over 6 classes and return all rows."""
    home.mkdir()
    found = []
    for seed in range(parts):
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, 6, 900)
        logits = (3 * rng.normal(size=(900, 6)) + 5 * np.eye(6)[labels]).astype(np.float32)
        data = Predictions.from_logits(logits, labels, groups=rng.integers(0, 40, 900) if groups else None)
        calibrant.save_predictions(home / f"part-{seed}.parquet", {"all": data})
        found.append(data)
    return Predictions.cat(found)


def scaling() -> TemperatureScaling:
    generator = torch.Generator().manual_seed(9)
    z = 3 * torch.randn(400, 6, generator=generator)
    return TemperatureScaling().fit(z, torch.multinomial(torch.softmax(z / 2, 1), 1, generator=generator)[:, 0])


def ends(row: Any) -> list[float | None]:
    return [row.low, row.high, row.null_high, row.null_mean]


def close(found: Any, expected: Any) -> None:
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("groups", [False, True])
def test_a_streamed_section_is_the_one_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: bool) -> None:
    monkeypatch.setattr(rows, "PIECE_BYTES", 100 * 6 * 4)  # nine pieces a file
    data, calibrator = make(tmp_path / "data", groups=groups), scaling()
    after = data.calibrated_by(calibrator)
    section = diagnose_streamed(tmp_path / "data", calibrator=calibrator, draws=200)
    memory = diagnose(Model("data", data, after, calibrator), draws=200)
    for mine, theirs in zip(section.states, memory.states, strict=True):
        known = {row.metric: row for row in theirs.rows}
        assert [row.label for row in mine.rows] == [
            "Accuracy",
            "NLL",
            "Brier",
            "ECE",
            "MCE",
            "DebiasedECE",
            "ClasswiseECE",
        ]
        for row in mine.rows:
            close(row.value, known[row.metric].value)
            assert row.n == 2700
            other = known[row.metric]
            assert (row.low is None) == (row.label == "MCE" or (groups and row.label == "DebiasedECE"))
            for found, expected in zip(ends(row), ends(other), strict=True):
                assert (found is None) == (expected is None)
                assert found is None or found == pytest.approx(expected, rel=1e-9)
    for mine, theirs in ((section.classes, memory.classes), (section.groups, memory.groups)):
        assert [(part.name, part.n) for part in mine] == [(part.name, part.n) for part in theirs]
        for part, other in zip(mine, theirs, strict=True):
            close(
                (part.expected, part.observed, part.error_before, part.error_after),
                (other.expected, other.observed, other.error_before, other.error_after),
            )
    exact = (diagram_of(one, binning=EqualWidth()) for one in (data, after))
    for mine, theirs in zip((state.histogram for state in section.states), exact, strict=True):
        assert [b.count for b in mine.bins] == [b.count for b in theirs.bins]
        for name in ("confidence", "accuracy", "expect_low", "expect_high"):
            close([getattr(b, name) for b in mine.bins], [getattr(b, name) for b in theirs.bins])
    assert [name for name, _ in section.panels] == [part.name for part in section.classes[:6]]
    both = ([state.diagram for state in found.states] for found in (section, memory))
    for mine, theirs in zip(*both, strict=True):  # whole cells of 1/1024 make up the bins
        assert sum(b.count for b in mine.bins) == 2700
        assert mine.ece == pytest.approx(theirs.ece, abs=0.01)
        assert len(mine.bins) > 5
    if groups:
        assert section.gains == []
        return
    assert section.words[:1] == memory.words[:1]
    assert section.verdicts == memory.verdicts
    (mine,), (theirs,) = section.gains, memory.gains
    close(mine.difference, theirs.difference)
    assert (mine.low, mine.high) == pytest.approx((theirs.low, theirs.high), abs=0.1 * abs(theirs.difference))


def test_the_curve_has_exact_points_of_the_curve_in_memory(tmp_path: Path) -> None:
    data = make(tmp_path / "data")
    curve = diagnose_streamed(tmp_path / "data", draws=0).states[0].curve
    confidence, order = torch.sort(data.confidence, descending=True, stable=True)
    errors = (~data.correct[order]).double().cumsum(0)
    for coverage, risk in zip(curve.coverage, curve.risk, strict=True):
        taken = round(coverage * len(data))
        assert taken == len(data) or confidence[taken - 1] > confidence[taken]
        close(risk, float(errors[taken - 1]) / taken)
    assert 50 < len(curve.coverage) <= 200
    close((curve.coverage[-1], curve.risk[-1]), (1.0, risk_curve(data).risk[-1]))


def test_cells_are_disjoint_ascending_and_fine_near_1() -> None:
    p = torch.cat([torch.linspace(0, 1, 5000, dtype=torch.float64), 1 - 2.0 ** -torch.linspace(10, 53, 400).double()])
    z = torch.stack([torch.log(p), torch.log1p(-p)], dim=1)
    data = Predictions.from_logits(z, torch.zeros(len(p), dtype=torch.int64))
    by_hand = torch.sort(data.confidence).values
    state = Cells(decision=True).state(data)
    assert int(state.count.sum()) == len(p)
    mean = (state.sum_p / state.count)[state.count > 0]
    assert bool((mean.diff() > 0).all())  # cells follow one another
    close(float(state.sum_p.sum()), float(by_hand.sum()))


def test_too_many_groups_are_counted_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(built, "MOST_GROUPS", 5)
    make(tmp_path / "data", groups=True, parts=2)
    section = diagnose_streamed(tmp_path / "data", draws=0)
    assert section.groups == []
    assert any("more than 10,000 groups" in text for text in section.remarks)
    assert ByGroup().state(make(tmp_path / "other", parts=1)).dropped == 0


def test_it_goes_on_after_a_stop_in_the_second_pass_to_the_same_page(tmp_path: Path, undrawn: None) -> None:
    make(tmp_path / "data")
    calibrator, checkpoint = scaling(), tmp_path / "c.json"

    def stop(done: int, total: int) -> None:
        assert total == 10800  # two passes before and two after
        if done > 6300:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        diagnose_streamed(tmp_path / "data", calibrator=calibrator, draws=50, checkpoint=checkpoint, progress=stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.after.json", "c.json", "data"]
    seen: list[int] = []
    resumed = diagnose_streamed(
        tmp_path / "data",
        calibrator=calibrator,
        draws=50,
        checkpoint=checkpoint,
        progress=lambda done, _: seen.append(done),
    )
    assert seen[0] == 5400  # the first two passes were whole
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    pages = []
    for section in (resumed, diagnose_streamed(tmp_path / "data", calibrator=calibrator, draws=50)):
        pages.append(write_report([section], tmp_path / "r.html").read_bytes())
    assert pages[0] == pages[1]


def test_the_page_says_what_it_leaves_out_and_stands_beside_others(tmp_path: Path, undrawn: None) -> None:
    data = make(tmp_path / "data")
    section = diagnose_streamed(tmp_path / "data", name="big", calibrator=scaling(), draws=100)
    assert isinstance(section, Section)
    text = write_report([section, Model("small", data)], tmp_path / "r.html", draws=10).read_text()
    assert "Figures that need all rows at once are left out" in text
    assert "rows that its file does not record" not in text  # this one was fitted in memory, and knows its 400 rows
    plain = json.loads(write_report([section], tmp_path / "r.json").read_text())
    assert plain["models"][0]["name"] == "big"
    assert plain["models"][0]["diagram_after"]["n"] == 2700
    assert metrics.NLL()(data) == pytest.approx(plain["rows"][1]["value"], rel=1e-12)
    assert "sums over rows read from disk" in write_report([section], tmp_path / "r.md").read_text()


def test_what_is_wrong_is_said_before_any_pass(tmp_path: Path) -> None:
    make(tmp_path / "data", parts=1)
    with pytest.raises(InputError, match="expected 6 class names, got 2"):
        diagnose_streamed(tmp_path / "data", class_names=["a", "b"])
    path = tmp_path / "bare.parquet"
    calibrant.save_predictions(path, {"all": Predictions.from_logits(np.eye(3) * 2)})
    with pytest.raises(InputError, match="expected labelled predictions"):
        diagnose_streamed(path)


def backwards(function: Callable[[Any], Any], shards: Sequence[Any]) -> Iterator[Any]:
    """Run the shards in the reverse order, as a cluster may."""
    return iter([function(shard) for shard in reversed(shards)][::-1])


def survey(home: Path, classes: int = 3, parts: int = 3) -> Predictions:
    """Write ``parts`` files of 600 rows with features and return all rows; one group is over-confident."""
    home.mkdir()
    found = []
    for seed in range(parts):
        rng = np.random.default_rng(seed)
        z, site = 2 * rng.normal(size=(600, classes)), rng.choice(["a", "b", "c"], 600)
        p = torch.softmax(torch.from_numpy(z * np.where(site == "b", 0.3, 1.0)[:, None]), dim=1)
        labels = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(seed))[:, 0]
        beside = {"site": site, "age": rng.uniform(20, 80, 600), "name": np.array([f"p{i}" for i in range(600)])}
        found.append(Predictions.from_logits(z, labels, features=beside))
        calibrant.save_predictions(home / f"part-{seed}.parquet", {"all": found[-1]})
    return Predictions.cat(found)


@pytest.mark.parametrize("classes", [2, 3])
def test_for_whom_is_the_one_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, classes: int) -> None:
    monkeypatch.setattr(rows, "PIECE_BYTES", 250 * classes * 4)
    data = survey(tmp_path / "data", classes)
    rng = torch.Generator().manual_seed(5)
    z = 2 * torch.randn(400, classes, generator=rng)
    calibrator = TemperatureScaling().fit(z, torch.multinomial(torch.softmax(z / 2, 1), 1, generator=rng)[:, 0])
    seen: list[tuple[int, int]] = []
    section = diagnose_streamed(
        tmp_path / "data", draws=20, progress=lambda *at: seen.append(at), calibrator=calibrator
    )
    memory = diagnose(Model("data", data, data.calibrated_by(calibrator), calibrator), draws=20)
    assert memory.audit is not None
    assert section.audit.basis == "Computed on all 1,800 rows."
    assert replace(section.audit, basis="") == memory.audit
    assert section.audit.unread == ("name",)
    assert section.words[-1] == memory.words[-1]
    assert section.words[-1].startswith(
        "For whom: "
    )  # with two classes too, though over-confidence leaves the rate of class 1
    total = 5400 if classes == 2 else 9000  # two looks at each, for ClasswiseECE
    assert (seen[-1], sorted(seen)) == ((total, total), seen)
    text = write_report([section], tmp_path / "r.md").read_text()
    assert "### For whom\n" in text
    assert "Computed on all 1,800 rows." in text


def test_for_whom_is_of_a_random_sample_of_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = survey(tmp_path / "data")
    monkeypatch.setattr(built, "MOST_AUDITED", 900)
    pages = [diagnose_streamed(tmp_path / "data", draws=0, executor=executor) for executor in (in_turn, backwards)]
    found = pages[0].audit
    assert found == pages[1].audit
    rows_of_site = {row.group: row.n for row in found.last.rows if row.group.startswith("site")}
    assert found.basis == f"Computed on {sum(rows_of_site.values()):,} of 1,800 rows, drawn at random."
    assert 800 < sum(rows_of_site.values()) < 1000
    assert found.last.rows[0].group == "site = b"
    assert diagnose_streamed(tmp_path / "data", draws=0).states[0].rows[0].value == metrics.Accuracy()(
        data
    )  # of all rows


@pytest.mark.parametrize("classes", [2, 3])
def test_a_stopped_pass_for_groups_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, classes: int
) -> None:
    survey(tmp_path / "data", classes)
    expected = diagnose_streamed(tmp_path / "data", draws=0)
    read: list[str] = []

    def stop(done: int, total: int) -> None:
        if done > 3 * 600 + 1200 - 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        diagnose_streamed(tmp_path / "data", draws=0, checkpoint=tmp_path / "c.json", progress=stop)
    assert sorted(file.name for file in tmp_path.glob("c*.json")) == ["c.groups.json", "c.json"]
    reading = rows.ParquetRows.read
    monkeypatch.setattr(
        rows.ParquetRows, "read", lambda self, shard: (read.append(shard.name), reading(self, shard))[1]
    )
    found = diagnose_streamed(tmp_path / "data", draws=0, checkpoint=tmp_path / "c.json")
    assert found.audit == expected.audit
    assert set(read) == {"part-0.parquet#0", "part-2.parquet#0"}  # the first for its types, the last was left
    assert list(tmp_path.glob("c*.json")) == []


def weighted(home: Path, weights: torch.Tensor) -> tuple[Predictions, ParquetRows]:
    rng = np.random.default_rng(0)
    z, site = torch.from_numpy(rng.normal(size=(len(weights), 3))), rng.choice(["a", "b"], len(weights))
    labels = torch.from_numpy(rng.integers(0, 3, len(weights)))
    data = Predictions.from_logits(z, labels, weights=weights, weight_kind="frequency", features={"site": site})
    calibrant.save_predictions(home / "weighted.parquet", {"all": data})
    return data, ParquetRows(home / "weighted.parquet")


def test_groups_of_rows_with_weights_are_those_of_memory(tmp_path: Path) -> None:
    data, source = weighted(tmp_path, torch.arange(900) % 4)
    found = built.audit_streamed(built.audit_passes(source, None, executor=in_turn), None)
    memory = audit(data.top_label(), None, data.features)
    assert [(row.group, row.n, row.gap) for row in found.before.rows] == [
        (row.group, row.n, pytest.approx(row.gap, abs=1e-12)) for row in memory.before.rows
    ]
    assert found.basis == "Computed on all 675 rows."


def test_a_sample_without_rows_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, source = weighted(tmp_path, torch.ones(50, dtype=torch.int64))
    monkeypatch.setattr(built, "MOST_AUDITED", 1e-9)
    found = built.audit_streamed(built.audit_passes(source, None, executor=in_turn), None)
    assert found.verdicts == ["Groups are not tested: no row of positive weight was taken."]


def test_without_features_there_is_no_such_section_and_no_pass(tmp_path: Path, undrawn: None) -> None:
    make(tmp_path / "data", parts=1)
    totals: set[int] = set()
    section = diagnose_streamed(tmp_path / "data", draws=0, progress=lambda _, total: totals.add(total))
    assert section.audit is None
    assert totals == {900}
    assert "For whom" not in write_report([section], tmp_path / "r.html").read_text()
