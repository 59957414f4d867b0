"""Figures without labels: a hand count, coverage under shift, what is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.calibrators import Chain, PriorShift, TemperatureScaling, VectorScaling
from calibrant.errors import InputError
from calibrant.operate import estimate


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
    assert found.accuracy.value == pytest.approx((0.9 + 0.6 + 0.8) / 3)
    assert found.gap.value == pytest.approx(0)
    assert found.nll.value == pytest.approx(float(-(p * p.log()).sum() / 3))
    assert (found.moved_p, found.reference_rows) == (None, 0)


def test_the_reference_corrects_probabilities_that_are_too_sure() -> None:
    reference, window = rows(20_000, seed=1), rows(20_000, seed=2)
    found = estimate(unlabelled(window), reference=reference)
    accuracy = float(window.correct.double().mean())
    assert abs(found.accuracy.value - accuracy) < 0.01
    assert found.gap.low > 0.05


def test_a_reference_without_errors_still_counts_one() -> None:
    sure = Predictions.from_binary_probs([0.999] * 1000, [1] * 1000)
    window = Predictions.from_binary_probs([0.999] * 100_000)
    found = estimate(window, reference=sure)
    jump = math.log(999)  # of the loss, where the label is the other
    event = jump**2 / 999  # one such row among those of the only stratum, divided as a sample variance is
    chance = max(0.999 * 0.001 * jump**2, event)
    assert found.nll is not None
    assert found.nll.value == pytest.approx(-math.log(0.999))
    assert found.nll.high - found.nll.value == pytest.approx(1.96 * math.sqrt(chance / 1e5 + event / 1000), rel=1e-3)


def test_no_log_loss_is_estimated_where_it_may_be_infinite() -> None:
    data = rows(400, seed=1)
    certain = Predictions.from_probs(torch.eye(4).double().repeat(10, 1))
    found = estimate(certain, reference=data)
    assert found.nll is None
    assert estimate(certain).nll is not None  # without a reference what has probability 0 never happens


@pytest.mark.parametrize("calibrator", [TemperatureScaling, pytest.param(VectorScaling, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("scale", "tilt"), [(3.0, 0.0), (2.0, 0.3)], ids=["as before", "moved"])
def test_intervals_hold_what_the_labels_say(calibrator: type, scale: float, tilt: float) -> None:
    runs, hits = 25, np.zeros(2)
    for seed in range(runs):
        reference, window = rows(600, seed=2 * seed), rows(500, seed=2 * seed + 1, scale=scale, tilt=tilt)
        fitted = calibrator().fit(reference.logits, reference.require_labels())
        found = estimate(unlabelled(window), fitted, reference=reference)
        seen = window.calibrated_by(fitted)
        hits += [
            found.accuracy.low <= float(seen.correct.double().mean()) <= found.accuracy.high,
            found.nll is not None and found.nll.low <= float(seen.nll.mean()) <= found.nll.high,
        ]
        assert found.moved or tilt == 0
    assert float(hits.min()) >= runs - 4  # 95 %: 4 misses or more in one of thirty


def test_a_class_that_is_over_confident_alone_may_become_frequent() -> None:
    def drawn_rows(count: int, part: float, seed: int) -> Predictions:
        """Two classes at .8: the first, ``part`` of the decisions, is right in .7, the second in .9."""
        rng = np.random.default_rng(seed)
        first = rng.random(count) < part
        right = rng.random(count) < np.where(first, 0.7, 0.9)
        return Predictions.from_binary_probs(np.where(first, 0.2, 0.8), np.where(first, ~right, right).astype(int))

    found = estimate(unlabelled(drawn_rows(2000, 0.8, 1)), reference=drawn_rows(2000, 0.2, 0))
    assert found.accuracy.low < 0.74 < found.accuracy.high < 0.8  # .86 in the reference


def test_label_shift_is_named_where_scores_have_moved() -> None:
    reference = rows(600, seed=9)
    moved = estimate(rows(500, seed=10, scale=2.0, tilt=0.3), reference=reference)
    assert "(label shift), adapt the calibrator with PriorShift" in str(moved)
    assert moved.plain()["moved"] is True
    same = estimate(rows(500, seed=11), reference=reference)
    assert same.plain()["moved"] is False
    assert "PriorShift" not in str(same)


def test_labels_are_not_read() -> None:
    reference, window = rows(500, seed=3), rows(300, seed=4)
    assert str(estimate(window, reference=reference)) == str(estimate(unlabelled(window), reference=reference))
    calibrator = TemperatureScaling().fit(window.logits, window.require_labels())
    assert estimate(window, calibrator).rows == 300  # rows of the fit do no harm where labels are not read


def test_a_reference_of_the_fit_is_calibrated_out_of_fold() -> None:
    fit, other = rows(60, seed=5), rows(4000, seed=6)
    overfit = VectorScaling(ridge=0.01).fit(fit.logits, fit.require_labels())
    inside = estimate(unlabelled(other), overfit, reference=fit)
    naive = float(fit.calibrated_by(overfit, allow_fit_rows=True).nll.mean())
    assert inside.nll.value > naive + 0.02


def test_what_cannot_be_estimated_is_refused() -> None:
    data = rows(100, seed=7)
    with pytest.raises(InputError, match="at least 50"):
        estimate(data, reference=data[:49])
    shifted = Chain(PriorShift([0.1, 0.2, 0.3, 0.4])).fit(data.logits, data.require_labels())
    with pytest.raises(InputError, match="adapted to other class frequencies"):
        estimate(data, shifted, reference=data)
    named, other = (replace(data, class_names=tuple(names)) for names in ("abcd", "dabc"))
    with pytest.raises(InputError, match=r"the classes of the reference, in order: a, b, c, d.*d, a, b, c"):
        estimate(other, reference=named)
