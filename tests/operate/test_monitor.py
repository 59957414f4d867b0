"""The monitor: quiet where nothing changed, an alarm where something did, and a state that merges and survives."""

import math
import os
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tests.draws import drawn

from calibrant import BinaryPairs, Predictions
from calibrant._core.config import renewed
from calibrant.calibrators import (
    Calibrator,
    Chain,
    IsotonicCalibration,
    MatrixScaling,
    PriorShift,
    TemperatureScaling,
    VectorScaling,
)
from calibrant.errors import CalibrantError, InputError, NotFittedError
from calibrant.evaluate import cost_calibration
from calibrant.operate import Monitor
from calibrant.operate.evidence import ClassCurves, gather
from calibrant.operate.formats import to_html, to_prometheus
from calibrant.operate.rows import matched_out_of_fold


def three(rows: int, *, seed: int, sharp: float = 1.0, bias: float = 0.0) -> Predictions:
    """Return predictions of three classes: ``sharp`` 1 and ``bias`` 0 are calibrated; a bias is for class 2."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(rows, 3)) * 2
    labels = (true + np.array([0, 0, bias]) + rng.gumbel(size=true.shape)).argmax(1)
    return Predictions.from_logits(true * sharp, labels)


@pytest.fixture(scope="module")
def reference() -> Predictions:
    return three(2000, seed=0)


def test_the_sums_are_the_likelihood_written_out() -> None:
    data = three(40, seed=3)
    found = gather(data, classes=3)
    nodes = 2 * np.cos((2 * np.arange(16) + 1) * np.pi / 32)
    p, right = data.confidence.numpy(), data.correct.numpy()
    odds = np.log(p) - np.log1p(-p)
    for at, u in enumerate(nodes):
        for line, moved in ((0, odds + u), (1, odds * math.exp(u / 2))):
            q = 1 / (1 + np.exp(-moved))
            expected = np.log(np.where(right, q / p, (1 - q) / (1 - p))).sum()
            assert found[line, at] == pytest.approx(expected, abs=1e-9)
    p2 = data.log_probs.exp()[:, 2].numpy()
    is2 = data.need_labels().numpy() == 2
    q2 = 1 / (1 + np.exp(-(np.log(p2) - np.log1p(-p2) + nodes[0])))
    assert found[4, 0] == pytest.approx(np.log(np.where(is2, q2 / p2, (1 - q2) / (1 - p2))).sum(), abs=1e-9)


def test_rows_of_a_class_in_one_bin_share_the_rate_that_the_reference_has_there() -> None:
    data = three(2000, seed=3, sharp=2.0)
    curves = ClassCurves.of(data, 3)
    log_p, is2 = data.log_probs[:, 2], (data.need_labels() == 2).numpy()
    log_odds = (log_p - torch.log1p(-log_p.exp())).clamp(-12, 12).numpy()
    place = np.searchsorted(curves.edges[2], log_odds)
    assert np.bincount(place, minlength=15).min() >= 20  # every bin tells something
    rate = 1 / (1 + np.exp(-curves.log_odds[2]))
    count, hits = np.bincount(place), np.bincount(place, is2)
    assert np.all(
        np.abs(count * rate - hits) <= 1
    )  # at most half an event more than seen, all of them then moved together
    assert count @ rate == pytest.approx(is2.sum(), abs=1e-9)
    u = 2 * np.cos(np.pi / 32)
    moved = 1 / (1 + np.exp(-(curves.log_odds[2] + u)))
    new = three(40, seed=4, sharp=2.0)
    log_p, is2 = new.log_probs[:, 2], (new.need_labels() == 2).numpy()
    at = np.searchsorted(curves.edges[2], (log_p - torch.log1p(-log_p.exp())).clamp(-12, 12).numpy())
    expected = np.log(np.where(is2, moved[at] / rate[at], (1 - moved[at]) / (1 - rate[at]))).sum()
    assert gather(new, classes=3, curves=curves)[4, 0] == pytest.approx(expected, abs=1e-9)


def test_a_class_that_the_model_is_constantly_wrong_about_is_no_change() -> None:
    """Labels of a flatter softmax than the model's: sums of single classes vary more than its own probabilities say."""
    rng = np.random.default_rng(5)
    true = 1.2 * rng.normal(size=(21_000, 10)) + 4.5 * np.eye(10)[rng.integers(10, size=21_000)]
    labels = (true + rng.gumbel(size=true.shape)).argmax(1)
    rows = Predictions.from_logits(true / 0.4, labels)
    monitor = Monitor(rows[:1000])
    assert all(monitor.update(rows[at : at + 2000]).verdict == "quiet" for at in range(1000, 21_000, 4000))
    assert monitor.status.evidence < 10
    moved = replace(rows[1000:], labels=torch.where(rows.labels[1000:] == 4, 5, rows.labels[1000:]))
    status = monitor.update(moved[:2000], ids=None)
    assert status.verdict == "alarm"
    assert {4, 5} <= set(status.classes)


def test_quiet_where_nothing_changed_and_overconfident_where_logits_grew(reference: Predictions) -> None:
    monitor = Monitor(reference)
    for seed in range(1, 9):
        assert monitor.update(three(250, seed=seed)).verdict == "quiet"
    assert monitor.status.advice == "nothing to do"
    for seed in range(20, 26):
        status = monitor.update(three(250, seed=seed, sharp=2.0))
    assert status.verdict == "alarm"
    assert monitor.alarm
    assert status.direction == "overconfident"
    assert 1250 <= status.changed_rows <= 1750  # the change was 1,500 labels ago
    assert status.advice.startswith("re-fit all")


def test_a_class_that_becomes_frequent_is_named_and_of_two_classes_the_event_alone(reference: Predictions) -> None:
    status = Monitor(reference).update(three(3000, seed=1, bias=1.5))
    assert (status.verdict, status.classes[0]) == ("alarm", 2)
    two = drawn(6000, 2, seed=1)
    monitor = Monitor(Predictions.from_logits(*(part[:3000] for part in two)))
    moved = Predictions.from_logits(two[0][3000:] + torch.tensor([0.0, 2.0]), two[1][3000:])
    status = monitor.update(moved)
    assert (status.verdict, status.classes) == ("alarm", (1,))
    assert ", most in class churned:" in status.sentence(("stayed", "churned"))
    assert status.sentence() == str(status)


def test_costs_are_monitored_in_place_of_the_log_loss_and_stay_with_the_state(tmp_path: Path) -> None:
    costs = [[0.0, 9.0, 1.0], [0.0, 0.0, 1.0], [9.0, 0.0, 0.0]]
    monitor, plain = Monitor(three(2000, seed=0), costs=costs), Monitor(three(2000, seed=0))
    data = three(4000, seed=1)
    assert monitor.update(data[:1000]).verdict == "quiet"
    # the decision is as often right as before; the true class moves from the second choice to the third, and back
    order, labels = data.log_probs.argsort(dim=1, descending=True), data.need_labels()
    other = torch.where(labels == order[:, 1], order[:, 2], torch.where(labels == order[:, 2], order[:, 1], labels))
    new = replace(data, labels=other)[1000:]
    status = monitor.update(new)
    gap = cost_calibration(new, costs).difference.estimate
    assert status.verdict == "alarm"
    assert status.cost_gap == pytest.approx(gap, rel=1e-9)
    assert status.advice == f"re-fit all: decisions cost {gap:.3g} a row more than the probabilities foresee"
    assert plain.update(data[:1000]).cost_gap is None
    monitor.save(tmp_path / "m.safetensors")
    again = Monitor.load(tmp_path / "m.safetensors")
    assert again.status == status
    assert again.watches(three(2000, seed=0))
    assert not plain.watches(again)
    assert again.update(three(500, seed=4)).rows == 4500
    with pytest.raises(InputError, match="costs of 3 classes"):
        Monitor(three(100, seed=0), costs=[[0, 1], [1, 0]])
    with pytest.raises(InputError, match="finite costs"):
        Monitor(three(100, seed=0), costs=[[0, math.nan]] * 3)
    with pytest.raises(InputError, match="over all classes for monitored costs"):
        Monitor(three(100, seed=0).top_label(), costs=costs)
    with pytest.raises(InputError, match="costs that differ between actions"):
        Monitor(three(100, seed=0), costs=[[1, 1]] * 3)


def test_an_alarm_that_faded_advises_no_fit(reference: Predictions) -> None:
    monitor = Monitor(reference)
    assert monitor.update(three(100, seed=1, sharp=3.0)).advice.startswith("re-fit all")
    for seed in range(2, 8):
        status = monitor.update(three(1000, seed=seed))
    assert status.verdict == "alarm"
    assert status.evidence < 20.4
    assert status.direction == "as confident as before"
    assert status.advice.startswith("nothing for now: the evidence has faded")


def test_parts_merge_to_the_whole_in_any_order(reference: Predictions) -> None:
    batches = [three(150, seed=seed, sharp=1.1) for seed in range(1, 7)]
    whole, odd, even = Monitor(reference), Monitor(reference), Monitor(reference)
    for at, batch in enumerate(batches):
        whole.update(batch, time=at)
        (odd if at % 2 else even).update(batch, time=at)
    odd.merge(even)
    assert [block.first for block in odd.timeline] == [block.first for block in whole.timeline]
    assert odd.status.rows == whole.status.rows
    np.testing.assert_allclose(
        sum(block.sums for block in odd.timeline), sum(block.sums for block in whole.timeline), atol=1e-9
    )
    assert [block.weight for block in odd.timeline] == [block.weight for block in whole.timeline]
    assert odd.status.evidence == pytest.approx(whole.status.evidence)


def test_a_change_after_a_merge_is_seen(reference: Predictions) -> None:
    monitor, late = Monitor(reference), Monitor(reference)
    monitor.update(three(300, seed=1), time=2)
    late.update(three(300, seed=2), time=1)
    assert monitor.merge(late).verdict == "quiet"
    status = monitor.update(three(800, seed=3, sharp=3.0), time=3)
    assert (status.verdict, status.changed_rows) == ("alarm", 800)
    assert 0 < sum(block.weight for block in monitor.timeline) <= 1


def test_top_label_pairs_are_watched(reference: Predictions) -> None:
    pairs = BinaryPairs.from_probs(np.full(1000, 0.9), [1] * 900 + [0] * 100)
    monitor = Monitor(pairs)
    wrong = np.random.default_rng(0).permutation([1] * 750 + [0] * 250)
    assert monitor.update(BinaryPairs.from_probs(np.full(1000, 0.9), wrong)).verdict == "alarm"
    with pytest.raises(InputError, match="expected predictions with top-label pairs as in the reference, got K = 3"):
        monitor.update(reference)


def test_many_small_batches_are_few_blocks(reference: Predictions) -> None:
    monitor = Monitor(reference[:200])
    for seed in range(1, 60):
        monitor.update(three(9, seed=seed))
    assert len(monitor.timeline) == 6
    assert sum(block.weight for block in monitor.timeline) <= 1


def test_rows_given_twice_are_refused_and_the_state_is_as_before(reference: Predictions) -> None:
    monitor = Monitor(reference)
    first, second = three(100, seed=1), three(100, seed=2)
    monitor.update(first, ids=range(100), time=5)
    before = repr(monitor)
    refusals = [
        (lambda: monitor.update(first, ids=range(100), time=6), "100 rows that this state has already"),
        (lambda: monitor.update(second, ids=range(50, 150), time=6), "50 rows that this state has already"),
        (lambda: monitor.update(second, ids=[1] * 100, time=6), "100 different ids"),
        (lambda: monitor.update(second, time=4), "put delayed labels into a monitor of their own"),
        (lambda: monitor.update(second), "a time with every batch or with none"),
        (lambda: monitor.update(second, time=datetime(2026, 1, 1)), "a time with a time zone"),
        (lambda: monitor.update(second, time=math.nan), "a time as seconds"),
        (lambda: monitor.update(Predictions.from_logits(torch.randn(5, 4) * 3, [0] * 5), time=6), "K = 3 classes"),
        (lambda: monitor.merge(monitor), "merge each monitor once"),
        (lambda: monitor.merge(Monitor(first)), "monitors of one reference"),
    ]
    for call, message in refusals:
        with pytest.raises(InputError, match=re.escape(message)):
            call()
        assert repr(monitor) == before
    unnamed = Monitor(reference)
    unnamed.update(first)
    with pytest.raises(InputError, match="got a batch that this state has already"):
        unnamed.update(first)


def test_a_state_is_what_it_was_after_saving(
    reference: Predictions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor, path = Monitor(reference), tmp_path / "state.safetensors"
    monitor.update(three(300, seed=1, sharp=2.0), ids=range(300), time=datetime(2026, 1, 1, tzinfo=UTC))
    monitor.save(path)
    again = Monitor.load(path)
    assert again.status == monitor.status
    assert again.watches(reference)
    assert not again.watches(reference[:500])
    assert path.stat().st_size < 20_000
    with monkeypatch.context() as failing, pytest.raises(CalibrantError, match="no space"):
        failing.setattr(os, "replace", Mock(side_effect=OSError(28, "no space")))
        Monitor(reference).save(path)
    assert Monitor.load(path).status == monitor.status  # what could not be written whole leaves what was there
    with pytest.raises(InputError, match="rows that this state has"):
        again.update(three(10, seed=5), ids=range(10), time=2e9)
    with pytest.raises(InputError, match="state that ends in"):
        monitor.save(tmp_path / "state.json")
    with pytest.raises(InputError, match="at least 50 reference rows, got 20"):
        Monitor(reference[:20])


def test_prometheus_is_read_by_its_own_parser_with_a_line_for_each_group() -> None:
    parser = pytest.importorskip(
        "prometheus_client.parser", reason="optional package 'prometheus_client' is not installed"
    )
    monitor = Monitor(grouped(2000, seed=0), by=["region"])
    monitor.update(grouped(1500, seed=2, worse="south"))
    families = parser.text_string_to_metric_families(to_prometheus(monitor, model='a "b"\\'))
    samples = [sample for family in families for sample in family.samples]
    found = {sample.name: (sample.labels, sample.value) for sample in samples}
    assert found["calibrant_alarm"] == ({"model": 'a "b"\\'}, 1.0)
    assert found["calibrant_labels_total"][1] == 1500
    changed = {
        (sample.labels["column"], sample.labels["value"]): sample.value
        for sample in samples
        if sample.name == "calibrant_group_changed"
    }
    assert changed == {("region", "north"): 0, ("region", "south"): 1, ("region", "west"): 0}


def test_the_page_holds_verdict_advice_and_both_charts_and_loads_nothing(reference: Predictions) -> None:
    monitor = Monitor(reference)
    assert "No labels yet." in to_html(monitor)
    for seed in range(1, 6):
        monitor.update(three(200, seed=seed, sharp=3.0), time=seed * 86_400)
    page = to_html(monitor, title="<model>")
    assert page.count("<svg") == 2
    assert "&lt;model&gt;" in page
    assert page.count("re-fit all") == 1
    assert page.count("1970-01-06") == 2, "where both pictures end"
    assert "http:" not in page
    assert "https:" not in page
    assert "default-src 'none'" in page
    assert "src=" not in page


def test_numbers_at_the_axis_keep_their_sign(reference: Predictions) -> None:
    monitor = Monitor(reference)
    for seed in range(1, 5):
        monitor.update(three(200, seed=seed, sharp=0.7))
    numbers = re.findall(r'<text x="(\d+)" y="[^"]*" text-anchor="end">([-+.e\d]+)</text>', to_html(monitor))
    assert any(number.startswith("-0.0") for _, number in numbers)
    assert all(
        8 * len(number) <= int(x) for x, number in numbers
    )  # 8 px a character, and the edge of the picture is at 0


def grouped(rows: int, *, seed: int, worse: str = "", sharp: float = 2.5) -> Predictions:
    """Return ``three`` with a column "region" of which one value may be overconfident, and a number "site"."""
    region = np.array(["north", "south", "west"])[np.random.default_rng(seed).integers(0, 3, rows)]
    good, bad = three(rows, seed=seed), three(rows, seed=seed, sharp=sharp)
    logits = torch.where(torch.from_numpy(region == worse)[:, None], bad.logits, good.logits)
    return Predictions.from_logits(logits, good.labels, features={"region": region, "site": np.arange(rows) % 2})


def test_the_group_that_changed_is_named_with_its_sense(tmp_path: Path) -> None:
    monitor = Monitor(grouped(2000, seed=0), by=["region", "site"])
    assert monitor.update(grouped(600, seed=1)).groups == ()
    status = monitor.update(grouped(1500, seed=2, worse="south"))
    assert status.verdict == "alarm"
    assert status.groups[0] == "region = south (overconfident)"
    assert not any("north" in name or "west" in name for name in status.groups)
    assert "by group region = south (overconfident)" in str(status)
    assert "region = south" in to_html(monitor)
    path = tmp_path / "state.safetensors"
    monitor.save(path)
    again = Monitor.load(path)
    assert (again.status, again.by) == (status, ("region", "site"))
    assert again.watches(grouped(2000, seed=0))
    calm = Monitor(grouped(2000, seed=0), by=["region"]).update(grouped(3000, seed=2, worse="south", sharp=0.4))
    assert calm.groups == ("region = south (underconfident)",)


def test_sums_of_groups_are_those_of_their_rows_and_merge() -> None:
    data, by = grouped(300, seed=4), ["region", "site"]
    monitor = Monitor(grouped(500, seed=0), by=by)
    monitor.update(data)
    south = data[torch.from_numpy(np.asarray(data.features["region"]) == "south")]  # type: ignore[index]
    line = 2 + 3 + 1  # after shift, slope and three classes: the second of north, south, west
    np.testing.assert_allclose(
        monitor.timeline[0].sums[line], gather(south, classes=3, curve=monitor._state.curve)[0], atol=1e-9
    )
    halves = [Monitor(grouped(500, seed=0), by=by) for _ in range(2)]
    for half, rows in zip(halves, (data[:150], data[150:]), strict=True):
        half.update(rows)
    assert halves[0].merge(halves[1]).evidence > 0
    assert sum(block.rows for block in halves[0].timeline) == 300
    with pytest.raises(InputError, match="monitors of one reference"):
        monitor.merge(Monitor(grouped(500, seed=0), by=["region"]))


def test_groups_that_cannot_be_watched_are_one_sentence() -> None:
    data = grouped(500, seed=0)
    monitor = Monitor(data, by=["region"])
    refusals = [
        (
            lambda: Monitor(data, by=["colour"]),
            "the feature 'colour' that groups are watched by, got the features region, site",
        ),
        (lambda: monitor.update(three(60, seed=9)), "the feature 'region' that groups are watched by, got none"),
        (lambda: Monitor(three(200, seed=0), by=["region"]), "got none; pass features"),
        (
            lambda: Monitor(
                Predictions.from_logits(data.logits, data.labels, features={"n": np.arange(500)}), by=["n"]
            ),
            "500 different values in n; bin the column first",
        ),
    ]
    for call, message in refusals:
        with pytest.raises(InputError, match=re.escape(message)):
            call()
    assert monitor.status.rows == 0
    unknown = Predictions.from_logits(data.logits, data.labels, features={"region": ["elsewhere"] * 500})
    assert monitor.update(unknown).rows == 500


def test_ids_come_with_every_batch_or_with_none(reference: Predictions) -> None:
    monitor = Monitor(reference)
    monitor.update(three(60, seed=1))
    with pytest.raises(InputError, match="ids with every batch or with none"):
        monitor.update(three(60, seed=1), ids=range(60))
    other = Monitor(reference)
    other.update(three(60, seed=2), ids=range(60))
    with pytest.raises(InputError, match="ids in both monitors or in neither"):
        monitor.merge(other)


def raw(rows: int, *, seed: int, sharp: float = 1.0) -> Predictions:
    """Return predictions of eight classes before calibration; ``sharp`` 1 is calibrated."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(rows, 8)) * 2
    labels = (true + rng.gumbel(size=true.shape)).argmax(1)
    region = np.where(np.arange(rows) % 2 == 0, "north", "south")
    return Predictions.from_logits(true * sharp, labels, features={"region": region})


@pytest.mark.parametrize("calibrator", [MatrixScaling(ridge=1e-3), IsotonicCalibration()], ids=["matrix", "isotonic"])
def test_rows_of_a_fit_start_a_monitor_that_is_quiet_until_new_rows_change(
    calibrator: Calibrator, tmp_path: Path
) -> None:
    fit = raw(200, seed=100)
    calibrator = renewed(calibrator).fit(fit)
    inside = fit.calibrated_by(calibrator, allow_fit_rows=True)
    with pytest.raises(InputError, match=r"was not fitted on.*start with Monitor\.from_fit\(calibrator, predictions\)"):
        Monitor(inside)
    # as if they were new rows: on them the calibrator seems better than it is, which looks like a change
    misled = Monitor(Predictions.from_logits(inside.logits, inside.labels))
    monitor, half, other = (Monitor.from_fit(calibrator, fit, by=["region"]) for _ in range(3))
    assert monitor.by == ("region",)
    for seed in range(4):
        batch = raw(250, seed=seed).calibrated_by(calibrator)
        assert monitor.update(batch, time=seed).verdict == "quiet"
        (half if seed % 2 else other).update(batch, time=seed)
        misled.update(batch)
    assert misled.status.peak > 30 * monitor.status.peak
    assert monitor.status.peak < 4
    assert half.merge(other).evidence == pytest.approx(monitor.status.evidence)
    path = tmp_path / "state.safetensors"
    monitor.save(path)
    again = Monitor.load(path)
    assert again.status == monitor.status
    assert again.watches(Monitor.from_fit(calibrator, fit, by=["region"]))
    worse = raw(500, seed=9, sharp=3.0).calibrated_by(calibrator)
    for one in (monitor, again, half):
        status = one.update(worse, time=9)
        assert (status.verdict, status.direction, status.changed_rows) == ("alarm", "overconfident", 500)


def test_rates_of_rows_of_a_fit_are_those_of_all_its_fifths() -> None:
    """Rows of equal scores differ by fifth in fits of the others, always against the fifth's own labels."""
    rng = np.random.default_rng(8)
    kind = rng.permutation(np.arange(200) % 2)
    labels = np.where(rng.random(200) < np.where(kind == 0, 0.3, 0.65), 1, 0)
    fit = Predictions.from_probs(np.array([[0.8, 0.2], [0.3, 0.7]])[kind], labels)
    calibrator = VectorScaling().fit(fit)
    rows, values = matched_out_of_fold(calibrator, fit)
    own = fit.calibrated_by(calibrator, allow_fit_rows=True)
    assert values[:, :2] == pytest.approx(own.log_probs.exp().numpy(), abs=1e-8)
    assert values[:, 2] == pytest.approx(own.confidence.numpy(), abs=1e-8)
    assert len(np.unique(rows.log_probs[:, 1].numpy().round(6))) > 5  # of two kinds, before
    curves = Monitor.from_fit(calibrator, fit)._state.curves
    for one in (0, 1):
        p = float(own.log_probs[kind == one][0, 1].exp())
        rate = curves.log_odds[1][np.searchsorted(curves.edges[1], math.log(p / (1 - p)))]
        assert 1 / (1 + math.exp(-rate)) == pytest.approx(labels[kind == one].mean(), abs=0.005)


def test_rows_of_a_fit_with_weights_are_kept_in_proportion() -> None:
    fit = raw(400, seed=1)
    fit = replace(fit, weights=torch.linspace(1, 2, 400).double())
    monitor = Monitor.from_fit(TemperatureScaling().fit(fit), fit)
    assert 250 < monitor._state.rows < 350  # mean weight / largest weight = 3 / 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda fit: Monitor.from_fit("scaling", fit), "expected calibrator as a Calibrator"),  # type: ignore[arg-type]
        (lambda fit: Monitor.from_fit(TemperatureScaling(), fit), "fitted"),
        (lambda fit: Monitor.from_fit(VectorScaling().fit(three(90, seed=1)), fit), "8"),
        (lambda fit: Monitor.from_fit(TemperatureScaling().fit(fit), fit[:40]), "at least 50 reference rows, got 40"),
        (lambda fit: Monitor.from_fit(TemperatureScaling().fit(fit), fit.top_label()), "over all classes"),
        (lambda fit: Monitor.from_fit(TemperatureScaling().fit(fit), replace(fit, labels=None)), "labelled"),
        (
            lambda fit: Monitor.from_fit(Chain(PriorShift([0.3] + [0.1] * 7)).fit(fit), fit),
            "class frequencies, got one adapted to others",
        ),
    ],
)
def test_rows_of_a_fit_that_cannot_start_a_monitor_are_one_sentence(
    make: Callable[[Predictions], Monitor], message: str
) -> None:
    with pytest.raises((InputError, NotFittedError), match=message):
        make(raw(200, seed=2))
