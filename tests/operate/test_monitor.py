"""The monitor: quiet where nothing changed, an alarm where something did, and a state that survives."""

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tests.draws import drawn

from calibrant import Pairs, Predictions
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
from calibrant.operate import Monitor
from calibrant.operate.evidence import ClassCurves, ReferenceCurve, gather
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
    # one bin of each, whose offset is 0 and whose classes have the rates of the rows
    curves = ClassCurves(np.empty((3, 0)), np.array([[0.3], [-0.2], [-1.0]]))
    found = gather(data, classes=3, curve=ReferenceCurve(np.empty(0), np.zeros(1)), curves=curves)
    nodes = 2 * np.cos((2 * np.arange(16) + 1) * np.pi / 32)
    p, right = data.confidence.numpy(), data.correct.numpy()
    odds = np.log(p) - np.log1p(-p)
    for at, u in enumerate(nodes):
        for line, moved in ((0, odds + u), (1, odds * math.exp(u / 2))):
            q = 1 / (1 + np.exp(-moved))
            expected = np.log(np.where(right, q / p, (1 - q) / (1 - p))).sum()
            assert found[line, at] == pytest.approx(expected, abs=1e-9)
    is2, p2, q2 = data.need_labels().numpy() == 2, 1 / (1 + math.exp(1.0)), 1 / (1 + np.exp(1.0 - nodes[0]))
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
    assert gather(new, classes=3, curve=ReferenceCurve.of(data), curves=curves)[4, 0] == pytest.approx(
        expected, abs=1e-9
    )


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
    status = monitor.update(moved[:2000])
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
    assert status.since == 3500 - status.changed_rows + 1
    assert f"overconfident since label {status.since:,}" in str(status)
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


def test_an_alarm_that_faded_advises_no_fit(reference: Predictions) -> None:
    monitor = Monitor(reference)
    assert monitor.update(three(100, seed=1, sharp=3.0)).advice.startswith("re-fit all")
    for seed in range(2, 8):
        status = monitor.update(three(1000, seed=seed))
    assert status.verdict == "alarm"
    assert status.evidence < 20.4
    assert status.direction == "as confident as before"
    assert status.advice.startswith("nothing for now: the evidence has faded")


def test_top_label_pairs_are_watched(reference: Predictions) -> None:
    pairs = Pairs.from_probs(np.full(1000, 0.9), [1] * 900 + [0] * 100)
    monitor = Monitor(pairs)
    wrong = np.random.default_rng(0).permutation([1] * 750 + [0] * 250)
    assert monitor.update(Pairs.from_probs(np.full(1000, 0.9), wrong)).verdict == "alarm"
    with pytest.raises(
        InputError, match="the reference holds predictions with top-label pairs, these rows K = 3 classes"
    ):
        monitor.update(reference)


def drawn_four(rows: int) -> Predictions:
    return Predictions.from_logits(*drawn(rows, 4, seed=0))


def test_a_state_is_what_it_was_after_saving(
    reference: Predictions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor, path = Monitor(reference), tmp_path / "state.safetensors"
    monitor.update(three(300, seed=1, sharp=2.0))
    monitor.save(path)
    again = Monitor.load(path)
    assert again.status == monitor.status
    assert again.watches(Monitor(reference))
    assert not again.watches(Monitor(reference[:500]))
    assert path.stat().st_size < 20_000
    with monkeypatch.context() as failing, pytest.raises(CalibrantError, match="no space"):
        failing.setattr(os, "replace", Mock(side_effect=OSError(28, "no space")))
        Monitor(reference).save(path)
    assert Monitor.load(path).status == monitor.status  # what could not be written whole leaves what was there
    for refused, message in (
        (three(300, seed=1, sharp=2.0), "this batch was added to the state before"),
        (drawn_four(5), "K = 3 classes, these rows K = 4 classes"),
    ):
        before = again.status
        with pytest.raises(InputError, match=message):
            again.update(refused)
        assert again.status == before
    with pytest.raises(InputError, match=r"must end in \.safetensors"):
        monitor.save(tmp_path / "state.json")
    with pytest.raises(InputError, match="at least 50 reference rows, not 20"):
        Monitor(reference[:20])


def raw(rows: int, *, seed: int, sharp: float = 1.0) -> Predictions:
    """Return predictions of eight classes before calibration; ``sharp`` 1 is calibrated."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(rows, 8)) * 2
    labels = (true + rng.gumbel(size=true.shape)).argmax(1)
    return Predictions.from_logits(true * sharp, labels)


@pytest.mark.parametrize("calibrator", [MatrixScaling(ridge=1e-3), IsotonicCalibration()], ids=["matrix", "isotonic"])
def test_rows_of_a_fit_start_a_monitor_that_is_quiet_until_new_rows_change(
    calibrator: Calibrator, tmp_path: Path
) -> None:
    fit = raw(200, seed=100)
    calibrator = renewed(calibrator).fit(fit)
    inside = fit.calibrated_by(calibrator, allow_fit_rows=True)
    with pytest.raises(
        InputError, match=r"was fitted on the reference's rows.*start with Monitor\.from_fit\(calibrator, predictions\)"
    ):
        Monitor(inside)
    # as if they were new rows: on them the calibrator seems better than it is, which looks like a change
    misled = Monitor(Predictions.from_logits(inside.logits, inside.labels))
    monitor = Monitor.from_fit(calibrator, fit)
    for seed in range(4):
        batch = raw(250, seed=seed).calibrated_by(calibrator)
        assert monitor.update(batch).verdict == "quiet"
        misled.update(batch)
    assert misled.status.peak > 30 * monitor.status.peak
    assert monitor.status.peak < 4
    path = tmp_path / "state.safetensors"
    monitor.save(path)
    again = Monitor.load(path)
    assert again.status == monitor.status
    assert again.watches(Monitor.from_fit(calibrator, fit))
    worse = raw(500, seed=9, sharp=3.0).calibrated_by(calibrator)
    for one in (monitor, again):
        status = one.update(worse)
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
    curves = Monitor.from_fit(calibrator, fit)._reference.curves
    for one in (0, 1):
        p = float(own.log_probs[kind == one][0, 1].exp())
        rate = curves.log_odds[1][np.searchsorted(curves.edges[1], math.log(p / (1 - p)))]
        assert 1 / (1 + math.exp(-rate)) == pytest.approx(labels[kind == one].mean(), abs=0.005)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda fit: Monitor.from_fit(TemperatureScaling(), fit), "fitted"),
        (lambda fit: Monitor.from_fit(TemperatureScaling().fit(fit), fit[:40]), "at least 50 reference rows, not 40"),
        (lambda fit: Monitor.from_fit(TemperatureScaling().fit(fit), fit.top_label()), r"shape \(N, 8\)"),
        (
            lambda fit: Monitor.from_fit(Chain(PriorShift([0.3] + [0.1] * 7)).fit(fit), fit),
            "adapted to other class frequencies",
        ),
    ],
)
def test_rows_of_a_fit_that_cannot_start_a_monitor_are_one_sentence(
    make: Callable[[Predictions], Monitor], message: str
) -> None:
    with pytest.raises((InputError, NotFittedError), match=message):
        make(raw(200, seed=2))


def test_a_state_of_many_blocks_keeps_its_sums_in_a_bounded_number_of_them(reference: Predictions) -> None:
    monitor = Monitor(reference)
    blocks, rng = monitor._blocks, np.random.default_rng(0)
    rows = [(150.0, *rng.random(4)) for _ in range(230)]
    for at, row in enumerate(rows):
        blocks = blocks.appended(row, np.full(monitor._reference.sums.shape, float(at)))
        assert len(blocks.table) <= 200
    assert blocks.table[:, :5].sum(axis=0) == pytest.approx(np.sum(rows, axis=0))
    assert blocks.sums[:, 0, 0].sum() == sum(range(230))
    assert 0 < blocks.table[:, -1].sum() <= 1
