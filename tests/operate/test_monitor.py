"""The monitor: quiet where nothing changed, whatever the scores do, an alarm where something did, and a state that survives."""

import math
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from tests.draws import drawn

from calibrant import Pairs, Predictions
from calibrant._core.config import renewed
from calibrant.calibrators import Calibrator, Chain, IsotonicCalibration, MatrixScaling, PriorShift, TemperatureScaling
from calibrant.errors import CalibrantError, InputError
from calibrant.operate import Monitor
from calibrant.operate.monitor import Curves, since_change


def three(
    rows: int, *, seed: int, sharp: float = 1.0, bias: float = 0.0, scale: float = 2.0, classes: int = 3
) -> Predictions:
    """Return predictions of three classes: ``sharp`` 1 and ``bias`` 0 are calibrated; a bias is for the last class."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(rows, classes)) * scale
    shift = np.append(np.zeros(classes - 1), bias)
    return Predictions.from_logits(true * sharp, (true + shift + rng.gumbel(size=true.shape)).argmax(1))


@pytest.fixture(scope="module")
def reference() -> Predictions:
    return three(2000, seed=0)


def test_the_sums_are_the_likelihood_written_out() -> None:
    p = np.array([[0.9], [0.2], [0.6], [0.3]])
    happened = np.array([[True], [False], [True], [True]])
    curves = Curves(
        np.array([[0.0]]), np.array([[0.0, 1.0]]), np.array([[0.3, -0.2]]), np.zeros(2), np.empty(0)
    )  # two bins, cut at p = ½
    found = curves.gather(p, happened)
    v = 2 * math.cos(5 * math.pi / 32)  # the third node

    def moved(chance: float, by: float) -> float:
        return 1 / (1 + math.exp(-(math.log(chance / (1 - chance)) + by)))

    low = math.log((1 - moved(0.2, 0.3 + v)) / (1 - moved(0.2, 0.3))) + math.log(moved(0.3, 0.3 + v) / moved(0.3, 0.3))
    high = math.log(moved(0.9, v - 0.2) / moved(0.9, -0.2)) + math.log(moved(0.6, v - 0.2) / moved(0.6, -0.2))
    assert found[0, :, 2] == pytest.approx([low, high], abs=1e-12)
    assert curves.expected(p) == pytest.approx(moved(0.2, 0.3) + moved(0.3, 0.3) + moved(0.9, -0.2) + moved(0.6, -0.2))


def test_the_evidence_of_one_bin_is_the_ratio_of_its_integrals() -> None:
    p = np.full((400, 1), 0.9)
    curves = Curves.of(p, np.arange(400)[:, None] % 10 > 0)
    block = curves.gather(p[:100], np.arange(100)[:, None] % 4 > 0)
    found = since_change(curves, block[None], np.array([0.9]))
    v, u = np.arange(-80, 81) * 0.025, np.arange(-24, 25) * 0.05

    def log_likelihood(v: np.ndarray, hits: int, misses: int) -> np.ndarray:
        q = 1 / (1 + np.exp(-(math.log(9) + v)))
        return hits * np.log(q / 0.9) + misses * np.log((1 - q) / 0.1)

    posterior = np.exp(log_likelihood(v, 360, 40))
    prior = 0.7 * np.exp(-8 * (u + 0.4) ** 2) + 0.3 * np.exp(-8 * (u - 0.4) ** 2)
    after = 0.0
    for move, weight in zip(u, prior / prior.sum(), strict=True):
        inside = np.interp(v - move, v, posterior, left=0, right=0)
        after += weight * (inside / inside.sum()) @ np.exp(log_likelihood(v, 75, 25))
    ratio = after / ((posterior / posterior.sum()) @ np.exp(log_likelihood(v, 75, 25)))
    assert math.exp(found.logs["shift"]) == pytest.approx(0.9 * ratio + 0.1, rel=1e-6)


def test_a_bin_has_the_rate_of_the_reference() -> None:
    rng = np.random.default_rng(0)
    p = rng.choice([0.2, 0.7], (1000, 1))
    happened = (p > 0.5) & (rng.random((1000, 1)) < 0.6)
    curves = Curves.of(p, happened)
    low, high = (1 / (1 + np.exp(-curves.at(0, np.log(np.array([one / (1 - one)])))[1][0])) for one in (0.2, 0.7))
    assert high == pytest.approx(happened.sum() / (p > 0.5).sum(), abs=1e-3)
    assert 0 < low < 0.5 / ((p < 0.5).sum() + 1) + 1e-12


@pytest.mark.parametrize(("before", "now"), [(2.0, 0.7), (1.0, 3.0)])
def test_scores_that_move_are_no_change(before: float, now: float) -> None:
    alarms = 0
    for seed in range(10):
        monitor = Monitor(three(1000, seed=seed, sharp=2.0, scale=before))
        for at in range(4):
            monitor.update(three(500, seed=100 + 10 * seed + at, sharp=2.0, scale=now))
        alarms += monitor.alarm
    assert alarms <= 2  # of 5 % three are expected in one of a hundred


def test_quiet_without_a_change_and_an_alarm_with_one(reference: Predictions) -> None:
    monitor = Monitor(reference)
    assert (monitor.status.accuracy_low, monitor.status.accuracy_high) == (0, 1)  # of no rows
    for seed in range(1, 9):
        assert monitor.update(three(250, seed=seed)).verdict == "quiet"
    assert monitor.status.advice == "nothing to do"
    for seed in range(20, 26):
        status = monitor.update(three(250, seed=seed, sharp=2.0))
    assert (status.verdict, status.direction) == ("alarm", "overconfident")
    assert 1250 <= status.changed_rows <= 1750  # the change was 1,500 labels ago
    assert status.since == 3500 - status.changed_rows + 1
    assert f"overconfident since label {status.since:,}" in str(status)
    assert status.advice.startswith("refit everything")


def test_a_class_that_becomes_frequent_is_named(reference: Predictions) -> None:
    status = Monitor(reference).update(three(3000, seed=1, bias=1.5))
    assert (status.verdict, status.classes[0]) == ("alarm", 2)
    logits, labels = drawn(6000, 2, seed=1)
    monitor = Monitor(Predictions.from_logits(logits[:3000], labels[:3000]))
    logits[3000:, 1] += 2
    status = monitor.update(Predictions.from_logits(logits[3000:], labels[3000:]))
    assert (status.verdict, status.classes) == ("alarm", (1,))


def test_an_alarm_that_faded_advises_no_fit(reference: Predictions) -> None:
    monitor = Monitor(reference)
    assert monitor.update(three(100, seed=1, sharp=3.0)).advice.startswith("refit everything")
    for seed in range(2, 8):
        status = monitor.update(three(1000, seed=seed))
    assert (status.verdict, status.direction) == ("alarm", "as confident as before")
    assert status.evidence < 20
    assert status.advice.startswith("nothing to do for now: the evidence has faded")


def test_pairs_are_watched(reference: Predictions) -> None:
    monitor = Monitor(Pairs.from_probs(np.full(1000, 0.9), [1] * 900 + [0] * 100))
    assert monitor.update(Pairs.from_probs(np.full(1000, 0.9), [1] * 750 + [0] * 250)).verdict == "alarm"
    with pytest.raises(InputError, match="the reference has top-label pairs, but these rows have K = 3 classes"):
        monitor.update(reference)


def test_a_state_is_what_it_was_after_saving(
    reference: Predictions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor, path = Monitor(reference), tmp_path / "state.safetensors"
    monitor.update(three(30, seed=1, sharp=2.0))
    monitor.save(path)
    again = Monitor.load(path)
    assert again.status == monitor.status
    assert again.watches(Monitor(reference))
    assert not again.watches(Monitor(reference[:500]))
    assert again.update(three(30, seed=2)) == monitor.update(three(30, seed=2))  # in the block that is still open
    assert path.stat().st_size < 30_000
    with monkeypatch.context() as failing, pytest.raises(CalibrantError, match="no space"):
        failing.setattr(os, "replace", Mock(side_effect=OSError(28, "no space")))
        Monitor(reference).save(path)
    assert Monitor.load(path).watches(monitor)  # what could not be written whole leaves what was there
    before = again.status
    with pytest.raises(InputError, match="this batch has already been added to the state"):
        again.update(three(30, seed=2))
    assert again.status == before
    with pytest.raises(InputError, match="or is its reference"):
        Monitor.load(path).update(reference)
    with pytest.raises(InputError, match="safetensors"):
        monitor.save(tmp_path / "state.json")


def test_the_order_of_the_classes_is_that_of_the_reference(reference: Predictions, tmp_path: Path) -> None:
    path, batch = tmp_path / "state.safetensors", three(100, seed=1)
    Monitor(replace(reference, class_names=("a", "b", "c"))).save(path)
    monitor = Monitor.load(path)
    with pytest.raises(InputError, match=r"the classes of the reference, in order: a, b, c.*c, a, b"):
        monitor.update(replace(batch, class_names=("c", "a", "b")))
    assert monitor.status.rows == 0
    monitor.update(replace(batch, class_names=("a", "b", "c")))
    assert monitor.update(three(100, seed=2)).rows == 200  # without names there is nothing to compare


raw = partial(three, classes=8)  # before calibration


@pytest.mark.parametrize("calibrator", [MatrixScaling(ridge=1e-3), IsotonicCalibration()], ids=["matrix", "isotonic"])
def test_rows_of_a_fit_start_a_monitor(calibrator: Calibrator) -> None:
    fit = raw(200, seed=100)
    calibrator = renewed(calibrator).fit(fit)
    inside = fit.calibrated_by(calibrator, allow_fit_rows=True)
    with pytest.raises(InputError, match=r"was fitted on the rows of the reference.*start with Monitor\.from_fit"):
        Monitor(inside)
    # as if they were new rows: on them the calibrator seems better than it is, which looks like a change
    misled = Monitor(Predictions.from_logits(inside.logits, inside.labels))
    monitor = Monitor.from_fit(calibrator, fit)
    for seed in range(4):
        batch = raw(250, seed=seed).calibrated_by(calibrator)
        assert monitor.update(batch).verdict == "quiet"
        misled.update(batch)
    assert misled.status.peak > 3 * monitor.status.peak
    status = monitor.update(raw(500, seed=9, sharp=3.0).calibrated_by(calibrator))
    assert (status.verdict, status.direction) == ("alarm", "overconfident")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda fit: Monitor.from_fit(TemperatureScaling().fit(fit), fit[:40]), "at least 50 reference rows, not 40"),
        (lambda fit: Monitor(fit[:20]), "at least 50 reference rows, not 20"),
        (lambda fit: Monitor.from_fit(Chain(PriorShift([0.3] + [0.1] * 7)).fit(fit), fit), "other class frequencies"),
    ],
)
def test_too_few_or_adapted_rows_start_no_monitor(make: Callable[[Predictions], Monitor], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(raw(200, seed=2))


def test_only_a_recorded_calibrator_is_required(reference: Predictions) -> None:
    monitor, calibrator = Monitor(reference), TemperatureScaling().fit(raw(100, seed=1))
    for one in (calibrator, None):  # nothing is recorded, so any is accepted, and a check records nothing
        monitor.require_calibrator(one)
    monitor.record_calibrator(calibrator)
    monitor.require_calibrator(calibrator)
    with pytest.raises(InputError, match=r"started with a calibrator; apply it to the rows \(--calibrator\)"):
        monitor.require_calibrator(None)


def test_many_batches_are_kept_in_a_bounded_number_of_blocks(reference: Predictions) -> None:
    monitor, rng = Monitor(reference), np.random.default_rng(0)
    rows = [(150.0, *rng.random(3)) for _ in range(100)]
    for at, row in enumerate(rows):
        monitor._append(row, np.full(monitor._curves.sums.shape, float(at)))
        assert len(monitor._table) <= 64
    assert monitor._table[:, :4].sum(axis=0) == pytest.approx(np.sum(rows, axis=0))
    assert monitor._sums[:, 0, 0, 0].sum() == sum(range(100))
    assert 0 < monitor._table[:, -1].sum() <= 1
