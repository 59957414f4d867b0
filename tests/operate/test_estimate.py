"""Figures without labels: a hand count, coverage under shift, what is refused."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from calibrant import BinaryPairs, Predictions
from calibrant.calibrators import Chain, PriorShift, TemperatureScaling, VectorScaling
from calibrant.errors import InputError
from calibrant.operate import estimate
from calibrant.operate.estimate import Changed, Estimate


def rows(count: int, *, seed: int, scale: float = 3.0, tilt: float = 0.0, sharp: float = 2.0) -> Predictions:
    """Return logits of four classes, ``sharp`` times those the labels are drawn from; scale and tilt move the inputs."""
    generator = torch.Generator().manual_seed(seed)
    z = scale * torch.randn(count, 4, generator=generator, dtype=torch.float64) + tilt * torch.arange(4)
    return Predictions.from_logits(sharp * z, torch.multinomial(z.softmax(dim=1), 1, generator=generator)[:, 0])


def unlabelled(data: Predictions) -> Predictions:
    return Predictions.from_logits(data.logits)


def test_without_a_reference_it_is_the_mean_of_the_probabilities() -> None:
    p = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], dtype=torch.float64)
    found = estimate(Predictions.from_probs(p))
    assert found.accuracy.estimate == pytest.approx((0.9 + 0.6 + 0.8) / 3)
    assert found.gap.estimate == pytest.approx(0)
    assert found.confusion is not None
    torch.testing.assert_close(
        torch.from_numpy(found.confusion), torch.tensor([[1.5, 0.5], [0.2, 0.8]], dtype=torch.float64) / 3
    )
    assert found.nll.estimate == pytest.approx(float(-(p * p.log()).sum() / 3))
    assert (found.atc, found.moved, found.reference_rows) == (None, None, 0)
    assert "taken to be right" in str(found)


def test_the_reference_corrects_probabilities_that_are_too_sure() -> None:
    reference, window = rows(20_000, seed=1), rows(20_000, seed=2)
    found = estimate(unlabelled(window), reference=reference)
    accuracy = float(window.correct.double().mean())
    assert abs(found.accuracy.estimate - accuracy) < 0.01
    assert found.gap.low > 0.05
    assert found.atc == pytest.approx(accuracy, abs=0.01)


def test_a_reference_without_errors_still_counts_one_in_the_log_loss() -> None:
    sure = Predictions.from_binary_probs([0.999] * 1000, [1] * 1000)
    window = Predictions.from_binary_probs([0.999] * 100_000)
    found = estimate(window, reference=sure)
    jump = math.log(999)  # of the loss, where the label is the other
    event = jump**2 / 999  # one such row among those of the only stratum, divided as a sample variance is
    chance = max(0.999 * 0.001 * jump**2, event)
    assert found.nll is not None
    assert found.nll.estimate == pytest.approx(-math.log(0.999))
    assert found.nll.high - found.nll.estimate == pytest.approx(1.96 * math.sqrt(chance / 1e5 + event / 1000), rel=1e-3)


def test_no_log_loss_is_estimated_where_the_window_could_have_an_infinite_one() -> None:
    data = rows(400, seed=1)
    certain = Predictions.from_probs(torch.eye(4).double().repeat(10, 1))
    found = estimate(certain, reference=data)
    assert found.nll is None
    assert "log-loss      not estimated: some labels have probability 0" in str(found)
    assert estimate(certain).nll is not None  # without a reference what has probability 0 never happens


def test_atc_is_its_formula() -> None:
    reference = Predictions.from_binary_probs([0.55, 0.6, 0.7, 0.8, 0.9] * 20, [0, 0, 1, 1, 1] * 20)  # two fifths wrong
    window = Predictions.from_binary_probs([0.56, 0.65, 0.75, 0.95])
    assert estimate(window, reference=reference).atc == 0.5  # the threshold is 0.7


@pytest.mark.parametrize("calibrator", [TemperatureScaling, pytest.param(VectorScaling, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("scale", "tilt"), [(3.0, 0.0), (2.0, 0.3)], ids=["as before", "moved"])
def test_intervals_hold_what_the_labels_say(calibrator: type, scale: float, tilt: float) -> None:
    runs, hits, cells = 25, np.zeros(2), 0.0
    for seed in range(runs):
        reference, window = rows(600, seed=2 * seed), rows(500, seed=2 * seed + 1, scale=scale, tilt=tilt)
        fitted = calibrator().fit(reference.logits, reference.need_labels())
        found = estimate(unlabelled(window), fitted, reference=reference)
        seen = window.calibrated_by(fitted)
        hits += [
            found.accuracy.low <= float(seen.correct.double().mean()) <= found.accuracy.high,
            found.nll is not None and found.nll.low <= float(seen.nll.mean()) <= found.nll.high,
        ]
        table = np.zeros((4, 4))
        np.add.at(table, (seen.predicted.numpy(), seen.need_labels().numpy()), 1 / 500)
        cells += float(((found.confusion_low <= table) & (table <= found.confusion_high)).mean()) / runs
        assert found.moved.verdict == "moved" or tilt == 0
    assert float(hits.min()) >= runs - 4  # 95 %: 4 misses or more in one of thirty
    assert cells >= 0.92


def test_scores_that_have_not_moved_are_seldom_said_to_have() -> None:
    said = [estimate(rows(300, seed=s), reference=rows(300, seed=1000 + s)).moved for s in range(60)]
    assert sum(one is not None and one.verdict == "moved" for one in said) <= 7


def test_the_order_of_the_classes_changes_nothing() -> None:
    """Elsewhere accuracy depended on how the classes' names sort (NannyML, issue 346)."""
    reference, window = rows(600, seed=7), rows(400, seed=8, scale=2.0, tilt=0.3)
    found = estimate(unlabelled(window), reference=reference)
    order = torch.tensor([2, 0, 3, 1])  # new class j is the old class order[j]
    renamed = [
        Predictions.from_logits(data.logits[:, order], order.argsort()[data.need_labels()])
        for data in (reference, window)
    ]
    other = estimate(unlabelled(renamed[1]), reference=renamed[0])
    for one, two in ((found.accuracy, other.accuracy), (found.gap, other.gap), (found.nll, other.nll)):
        assert (two.estimate, two.low, two.high) == pytest.approx((one.estimate, one.low, one.high), abs=1e-12)
    np.testing.assert_allclose(other.confusion, found.confusion[order][:, order], atol=1e-12)


def test_label_shift_is_named_with_its_remedy_where_scores_have_moved() -> None:
    reference = rows(600, seed=9)
    moved = estimate(rows(500, seed=10, scale=2.0, tilt=0.3), reference=reference)
    assert "label shift): then adapt the calibrator by PriorShift" in str(moved)
    assert "label shift" in moved.plain()["shift"]
    same = estimate(rows(500, seed=11), reference=reference)
    assert same.plain()["shift"] is None
    assert "PriorShift" not in str(same)


def test_labels_are_not_read() -> None:
    reference, window = rows(500, seed=3), rows(300, seed=4)
    assert str(estimate(window, reference=reference)) == str(estimate(unlabelled(window), reference=reference))
    calibrator = TemperatureScaling().fit(window.logits, window.need_labels())
    assert estimate(window, calibrator).rows == 300  # rows of the fit do no harm where labels are not read


def test_a_reference_that_was_fitted_on_is_calibrated_by_the_other_folds() -> None:
    fit, other = rows(60, seed=5), rows(4000, seed=6)
    overfit = VectorScaling(ridge=0.01).fit(fit.logits, fit.need_labels())
    inside = estimate(unlabelled(other), overfit, reference=fit)
    naive = float(fit.calibrated_by(overfit, allow_fit_rows=True).nll.mean())
    assert inside.nll.estimate > naive + 0.02


def changed(
    count: int,
    generator: torch.Generator,
    *,
    classes: int = 3,
    sharp: float = 1.0,
    change: float = 0.0,
    spread: float = 3.0,
) -> Predictions:
    """Return rows whose decisions are right by ``change`` more often than softmax(z) says; the logits are ``sharp`` z."""
    z = spread * torch.randn(count, classes, generator=generator, dtype=torch.float64)
    p = z.softmax(dim=1)
    at = torch.arange(count), z.argmax(dim=1)
    new = (p[at] + change).clamp(0, 1)
    p = (p * ((1 - new) / (1 - p[at]))[:, None]).index_put(at, new)
    return Predictions.from_logits(sharp * z, torch.multinomial(p, 1, generator=generator)[:, 0])


@pytest.mark.parametrize("change", [-0.1, 0.1], ids=["worse", "better"])
@pytest.mark.parametrize(
    ("classes", "sharp"),
    [(2, 1.0), (3, 3.0), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((3, 1.0), (2, 2.0)))],
)
def test_intervals_hold_a_change_of_the_size_that_was_stated(classes: int, sharp: float, change: float) -> None:
    runs, hits, plain = 25, np.zeros(4), 0
    for seed in range(runs):
        generator = torch.Generator().manual_seed(seed)
        reference = changed(1000, generator, classes=classes, sharp=sharp)
        window = changed(500, generator, classes=classes, sharp=sharp, change=change)
        told = estimate(unlabelled(window), reference=reference, sensitivity=0.1)
        found, right = told.changed, float(window.correct.double().mean())
        assert found.nll is not None
        assert found.confusion_low is not None
        table = np.zeros((classes, classes))
        np.add.at(table, (window.predicted.numpy(), window.need_labels().numpy()), 1 / 500)
        plain += told.accuracy.low <= right <= told.accuracy.high
        hits += [
            found.accuracy.low <= right <= found.accuracy.high,
            found.gap.low <= float(window.confidence.mean()) - right <= found.gap.high,
            found.nll.low <= float(window.nll.mean()) <= found.nll.high,
            ((found.confusion_low <= table) & (table <= found.confusion_high)).mean(),
        ]
    assert plain <= runs / 2  # the change is one that the plain interval does not hold
    assert float(hits.min()) >= runs - 4


def ends(found: Changed | Estimate) -> tuple[np.ndarray, np.ndarray]:
    """Return all lower and all upper ends."""
    assert found.nll is not None
    assert found.confusion_low is not None
    assert found.confusion_high is not None
    few = (found.accuracy, found.gap, found.nll)
    return (
        np.append([one.low for one in few], found.confusion_low),
        np.append([one.high for one in few], found.confusion_high),
    )


@pytest.mark.parametrize("known", [False, True], ids=["alone", "reference"])
def test_intervals_widen_with_the_sensitivity_from_the_plain_one_on(known: bool) -> None:
    window, reference = rows(400, seed=1), rows(600, seed=2) if known else None
    plain = estimate(window, reference=reference)
    assert estimate(window, reference=reference, sensitivity=0.0).plain() == {**plain.plain(), "changed": None}
    low, high = ends(plain)
    for most in (1e-12, 0.01, 0.05, 0.2, 1.0):
        told = estimate(window, reference=reference, sensitivity=most)
        assert told.changed.most == most
        assert told.accuracy == plain.accuracy  # the first interval stays
        wider = ends(told.changed)
        assert (wider[0] <= low + 1e-9).all()
        assert (wider[1] >= high - 1e-9).all()
        if most == 1e-12:
            np.testing.assert_allclose(wider, (low, high), atol=1e-5)
        if most in (0.01, 0.05):
            assert wider[0][0] < low[0]
            assert wider[1][0] > high[0]
        low, high = wider
    assert (low[0], high[0]) == (0, 1)
    assert f"right up to {100:g} points more or less often than before" in str(told)


def test_without_a_reference_no_row_is_right_more_often_than_always() -> None:
    window = Predictions.from_probs(torch.tensor([[0.98, 0.02], [0.4, 0.6]]).double().repeat(500, 1))
    plain, found = estimate(window), estimate(window, sensitivity=0.1).changed
    # up by (.02 + .1) / 2, down by .1, and the labels have as much more variance at both ends
    more = 1.959963984540054**2 * 0.1 / 1000
    half = math.sqrt((plain.accuracy.high - plain.accuracy.estimate) ** 2 + more)
    assert found.accuracy.high == pytest.approx(0.79 + half + 0.06)
    assert found.accuracy.low == pytest.approx(0.79 - half - 0.1)
    assert found.gap.low == pytest.approx(-half - 0.06)
    assert found.gap.high == pytest.approx(half + 0.1)
    certain = Predictions.from_probs(torch.eye(2).double().repeat(50, 1))
    sure = estimate(certain, sensitivity=0.1).changed
    assert (
        sure.nll is None
    )  # an error would cost infinitely much, and so would a decision of probability 0 that is right
    never = estimate(replace(certain, decision=1 - certain.predicted), sensitivity=0.1).changed
    assert never.nll is None
    assert sure.accuracy.high == 1
    assert sure.accuracy.low < 0.9


def test_a_decision_for_the_less_probable_class_costs_more_the_more_often_it_is_right() -> None:
    window = replace(Predictions.from_probs(torch.tensor([[0.6, 0.4]] * 400).double()), decision=torch.ones(400).long())
    plain, found = estimate(window).nll, estimate(window, sensitivity=0.1).changed
    assert plain is not None
    assert found.nll is not None
    loss = -np.log([0.6, 0.4])
    mean = 0.6 * loss[0] + 0.4 * loss[1]
    more = 0.1 * ((loss[1] - mean) ** 2 - (loss[0] - mean) ** 2)  # variance, where the second class gains .1
    half = math.sqrt((plain.high - mean) ** 2 + 1.959963984540054**2 * more / 400)
    assert found.nll.high == pytest.approx(mean + half + 0.1 * (loss[1] - loss[0]))
    assert found.nll.low == pytest.approx(mean - half - 0.1 * (loss[1] - loss[0]))


def ambiguous(count: int, generator: torch.Generator, *, flat: bool) -> Predictions:
    """Return ten classes with confidences from .3 to .9 of one law; the rest of each row is on all other classes or on two."""
    c = 0.3 + 0.6 * torch.rand(count, 1, generator=generator, dtype=torch.float64)
    rest = torch.rand(count, 9, generator=generator, dtype=torch.float64) + 0.5
    rest = rest if flat else torch.where(torch.arange(9) < 4, rest, 1e-3)
    p = torch.cat([c, (1 - c) * rest / rest.sum(dim=1, keepdim=True)], dim=1)
    return Predictions.from_probs(p, torch.multinomial(p, 1, generator=generator)[:, 0])


def test_rows_of_equal_confidence_and_another_entropy_are_found() -> None:
    generator = torch.Generator().manual_seed(0)
    reference, same, other = (
        ambiguous(count, generator, flat=flat) for count, flat in ((600, True), (400, True), (400, False))
    )
    found, quiet = estimate(other, reference=reference), estimate(same, reference=reference)
    assert found.moved.verdict == "as before"  # neither confidences nor decisions show it
    assert found.moved.hardness_p < 1e-6
    assert quiet.moved.hardness_p > 0.05
    assert "another entropy than before" in str(found)
    assert "another entropy" not in str(quiet)


@pytest.mark.parametrize(("spread", "digits"), [(3.0, 8), (1.0, 0)], ids=["continuous", "few scores"])
def test_rows_of_one_law_seldom_have_another_entropy(spread: float, digits: int) -> None:
    said = 0
    for seed in range(80):
        data = changed(1100, torch.Generator().manual_seed(seed), spread=spread)
        data = Predictions.from_logits(data.logits.round(decimals=digits), data.labels)
        moved = estimate(data[:500], reference=data[500:]).moved
        said += moved.hardness_p <= 0.05
    assert said <= 10  # 11 of 80 or more: one in 300


@pytest.mark.parametrize(
    ("new", "old", "beyond"),
    [
        ([1.0, 2, 3, 9], [0.0, 5], 0.25),
        ([-1.0, 2, 3, 9], [0.0, 5], 0.5),
        (["a", "b", "c", "c"], ["a", "b"], 0.5),
        (["1", "2", "x", "y"], [1, 2], 0.5),
        ([math.nan, 1, 1, 1], [1.0, math.nan], 0.0),
        ([1.0, 2, 3, 4], [math.nan, math.nan], 0.0),
        ([True, True, False, False], [True, True], 0.5),
    ],
    ids=["above", "both sides", "names", "names and numbers", "missing", "all missing", "flags"],
)
def test_rows_beyond_the_reference_are_counted(new: list[Any], old: list[Any], beyond: float) -> None:
    def one(values: list[Any], *, p: list[float]) -> Predictions:
        count = 100 // len(values)
        return Predictions.from_binary_probs(p * 50, [0, 1] * 50, features={"x": values * count})

    found = estimate(one(new, p=[0.3, 0.7]), reference=one(old, p=[0.2, 0.6]))
    assert found.moved.beyond == beyond
    assert found.moved.hardness_p is None  # two classes: the confidence determines the entropy
    assert (f"{100 * beyond:.0f} % of the rows lie beyond the reference" in str(found)) == (beyond > 0)
    outside = estimate(one(new, p=[0.3, 0.9]), reference=one(old, p=[0.4, 0.8]))
    assert outside.moved.beyond >= 0.5  # of confidences .7 and .9 where the reference has .6 to .8, the second


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda data: estimate(data.top_label()), "over all classes"),
        (lambda data: estimate(data, reference=data[:49]), "at least 50"),
        (lambda data: estimate(data, reference=Predictions.from_binary_probs([0.4] * 60, [1] * 60)), "of 4 classes"),
        (lambda data: estimate(data, reference=BinaryPairs.from_probs([0.5] * 60, [1] * 60)), "over all"),  # type: ignore[arg-type]
        (
            lambda data: estimate(
                data, Chain(PriorShift([0.1, 0.2, 0.3, 0.4])).fit(data.logits, data.need_labels()), reference=data
            ),
            "one adapted to others",
        ),
    ],
)
def test_what_cannot_be_estimated_is_refused(call: Callable[[Predictions], Estimate], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(rows(100, seed=7))
