"""AutoCalibrator: what it chooses, when it abstains, that it does no harm, and that its weights are those of its formula."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.draws import drawn
from torch import Tensor

from calibrant import Predictions, load
from calibrant.calibrators import (
    AutoCalibrator,
    Calibrator,
    HistogramBinning,
    Identity,
    IsotonicCalibration,
    StructuredVectorScaling,
    TemperatureScaling,
)
from calibrant.calibrators.auto import mixing_weights
from calibrant.calibrators.folds import fold_by_scores, hash_rows
from calibrant.errors import FitError, InputError
from calibrant.rows import Batch


def sample(rows: int = 600, classes: int = 4, *, seed: int = 0, sharpness: float = 2.5) -> tuple[Tensor, Tensor]:
    """Return logits that are ``sharpness`` times too large."""
    true, y = drawn(rows, classes, seed=seed, spread=1.5, sharp=1)
    return sharpness * true, y


def quick() -> list[Calibrator]:
    """Return two quick candidates, where the test is about what lies before or behind all of them."""
    return [TemperatureScaling(prior=0.5), StructuredVectorScaling()]


def loss(logits: Tensor, labels: Tensor) -> float:
    return float(torch.nn.functional.cross_entropy(logits, labels))


def test_two_wrong_rows_abstain_and_three_may_not() -> None:
    z = 20 * torch.eye(3, dtype=torch.float64).repeat(100, 1)
    for wrong, abstains in ((0, True), (2, True), (3, False)):
        labels = z.argmax(1)
        labels[:wrong] = (labels[:wrong] + 1) % 3
        fitted = AutoCalibrator().fit(z, labels)
        assert fitted.evidence.verdict.startswith("abstained" if abstains else "calibrated")
        assert torch.equal(fitted(z), z) == abstains
        assert (fitted.weights[0] == 1) == abstains


def test_logits_whose_log_loss_is_no_number_are_refused() -> None:
    z, y = (part[:60].clone() for part in sample())
    z[:9] = torch.finfo(torch.float64).max * torch.eye(4, dtype=torch.float64)[(y[:9] + 1) % 4]
    with pytest.raises(FitError, match="a finite log-loss of the uncalibrated logits, got inf"):
        AutoCalibrator(candidates=[TemperatureScaling()]).fit(z, y)


def test_weights_are_those_of_the_formula() -> None:
    z, y = sample(200, sharpness=1.15)
    fitted = AutoCalibrator(folds=4, candidates=quick()).fit(z, y)
    fold = fold_by_scores(Batch(z, y), 4)
    total = np.zeros(3)
    for k in range(4):
        held = fold == k
        for m, method in enumerate((Identity(), *quick())):
            total[m] += loss(method.fit(z[~held], y[~held])(z[held]), y[held]) * int(held.sum())
    odds = 5 * (1 + 60 / int((z.argmax(1) != y).sum()))
    raw = np.array([odds, 1.0, 1.0]) * np.exp(0.5 * (total[0] - total))
    expected = raw / raw.sum()
    assert expected.min() > 0.01  # else some would have been left out
    np.testing.assert_allclose(fitted.weights.numpy(), expected, atol=1e-4)  # a fold's gradient ends at 1e-5 nats
    np.testing.assert_allclose([t.loss for t in fitted.evidence.trials], total / 200, atol=1e-6)
    # and the answer is the weighted mean of the members' probabilities
    p = sum(w * torch.softmax(m.fit(z, y)(z), 1) for w, m in zip(fitted.weights, (Identity(), *quick()), strict=True))
    torch.testing.assert_close(torch.softmax(fitted(z), 1), p, rtol=0, atol=1e-7)


def test_the_evidence_survives_saving(tmp_path: Path) -> None:
    fitted = AutoCalibrator(candidates=[TemperatureScaling(), IsotonicCalibration(floor=0.01)]).fit(*sample())
    fitted.save(tmp_path / "auto.safetensors")
    loaded = load(tmp_path / "auto.safetensors")
    assert loaded.evidence == fitted.evidence
    shown = str(loaded.evidence).splitlines()
    assert shown[0].startswith("calibrated: ")
    assert "600 rows" in shown[1]
    names = [line.split("(")[0].strip() for line in shown[3:]]
    assert names == ["Identity", "TemperatureScaling", "IsotonicCalibration"]


def test_a_candidate_that_fails_is_left_out_and_said_so() -> None:
    z, y = sample()
    z[:, 3] = torch.where(y == 3, z[:, 3], -torch.inf)
    sharp = torch.tensor([[50.0, 0, 0, 0]], dtype=torch.float64).repeat(20, 1)
    others = torch.randint(1, 4, (20,), generator=torch.Generator().manual_seed(0))
    candidates = [TemperatureScaling(), IsotonicCalibration(floor=0.0)]
    fitted = AutoCalibrator(candidates=candidates).fit(torch.cat([z, sharp]), torch.cat([y, others]))
    isotonic = fitted.evidence.trials[2]
    assert (isotonic.loss, isotonic.weight) == (float("inf"), 0.0)  # a zero under a true class
    assert "not tried" in str(fitted.evidence)


def test_folds_follow_scores_and_groups() -> None:
    z, y = sample(200)
    fold = fold_by_scores(Batch(z, y), 5)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(3))
    assert torch.equal(fold_by_scores(Batch(z[order], y[order]), 5), fold[order])
    flat, signed = torch.zeros(3, 2), torch.tensor([[0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0]])
    assert torch.equal(hash_rows(flat), hash_rows(signed))
    assert torch.equal(fold_by_scores(Batch(torch.cat([z, z]), torch.cat([y, y])), 5), torch.cat([fold, fold]))
    assert torch.equal(fold, fold_by_scores(Batch(z, (y + 1) % 4), 5))
    count = torch.bincount(fold, minlength=5)
    assert 20 < int(count.min()) <= int(count.max()) < 65  # 40 each, binomial
    groups = torch.arange(200) // 20
    grouped = fold_by_scores(Batch(z, y, groups=groups), 5)
    assert all(len(grouped[groups == g].unique()) == 1 for g in range(10))
    # rows of a score that many share are dealt out, label by label
    dealt = fold_by_scores(Batch(z[:1].expand(50, 4), torch.arange(50) % 2), 5)
    assert (
        torch.bincount(dealt[::2], minlength=5).tolist() == torch.bincount(dealt[1::2], minlength=5).tolist() == [5] * 5
    )


@pytest.mark.parametrize("wrong", [["TemperatureScaling"], [TemperatureScaling], [HistogramBinning()], []])
def test_what_are_no_candidates_is_refused(wrong: list[object]) -> None:
    with pytest.raises(InputError, match=r"TemperatureScaling\(\)"):
        AutoCalibrator(candidates=wrong)


@pytest.mark.parametrize("rows", [2, 60])
def test_where_no_row_can_be_left_out_it_abstains(rows: int) -> None:
    z, y = torch.randn(rows, 3, generator=torch.Generator().manual_seed(0)), torch.arange(rows) % 3
    auto = AutoCalibrator().fit(Predictions.from_logits(z, y, groups=[7] * rows))
    assert auto.weights[0] == 1
    torch.testing.assert_close(torch.softmax(auto(z), 1), torch.softmax(z, 1))
    assert auto.evidence.verdict.startswith("abstained")


def test_stacked_weights_are_those_of_the_best_mixture() -> None:
    g = torch.Generator().manual_seed(0)
    gain = torch.randn(2000, 2, generator=g, dtype=torch.float64) + torch.tensor([0.4, 0.3])
    # doing nothing, both, and one that could not be fitted
    gain = torch.cat([torch.zeros(2000, 1), gain, torch.full((2000, 1), -torch.inf)], dim=1)
    weights = mixing_weights(gain, torch.ones(2000).double(), wrong=500, classes=5)
    few = mixing_weights(gain[:999] / 100, torch.ones(999).double(), wrong=500, classes=5)  # not stacked
    raw = torch.tensor([5 * (1 + 60 / 500), 1.0, 1.0, 0.0]) * torch.exp(
        gain[:999].nan_to_num(neginf=0).sum(dim=0) / 200
    )
    torch.testing.assert_close(few, raw / raw.sum())
    assert (weights[0], weights[3]) == (0, 0)
    assert float(weights.sum()) == pytest.approx(1)
    grid = torch.arange(101) / 100
    losses = -((1 - grid)[:, None] * gain[:, 1].exp() + grid[:, None] * gain[:, 2].exp()).log().mean(dim=1)
    assert float(weights[2]) == pytest.approx(float(grid[losses.argmin()]), abs=0.02)


def test_wrong_rows_outside_the_sample_count_too() -> None:
    y = torch.arange(20_000) % 3
    z = 5 * torch.eye(3)[y] + torch.rand(20_000, 3, generator=torch.Generator().manual_seed(0))
    y[:4] = (y[:4] + 1) % 3  # two of them in the sample
    evidence = AutoCalibrator(candidates=[TemperatureScaling()]).fit(z, y).evidence
    assert (evidence.rows, evidence.wrong) == (20_000, 4)
    assert "too few" not in evidence.verdict


def test_exact_zeros_are_mixed_away_and_masks_stay(tmp_path: Path) -> None:
    def rounded(z: Tensor, low: float) -> Tensor:
        log_p = torch.log_softmax(z, 1)
        return torch.where(log_p < np.log(low), -torch.inf, log_p)

    (z, y), (new, labels) = (sample(2000, seed=seed, sharpness=1.0) for seed in (0, 1))
    for low, worse in ((0.03, 0.1), (1e-3, 0.02)):
        fitted = AutoCalibrator(candidates=quick()).fit(rounded(z, low), y)
        assert (float(fitted.epsilon) == 0.01) == (low == 0.03)
        assert loss(fitted(rounded(new, low)), labels) < loss(new, labels) + worse
    fitted.save(tmp_path / "auto.safetensors")
    assert torch.equal(load(tmp_path / "auto.safetensors")(rounded(new, 1e-3)), fitted(rounded(new, 1e-3)))
    # where an excluded class was never true, in rows that leave several, it stays excluded
    masked = torch.where((torch.arange(4) == (y[:, None] + 1) % 4) & (y[:, None] > 1), -torch.inf, z)
    kept = AutoCalibrator(candidates=quick()).fit(masked, y)
    assert float(kept.epsilon) == 0
    assert torch.equal(torch.isneginf(kept(masked)), torch.isneginf(masked))


@pytest.mark.parametrize(("classes", "last"), [(6, 4), (30, 20)])
def test_classes_without_a_row_become_as_rare_as_the_rows_say(classes: int, last: int) -> None:
    (z, y), (new, labels) = sample(1500, classes), sample(3000, classes, seed=1)
    fitted = AutoCalibrator().fit(z[y < last], y[y < last])
    assert float(torch.softmax(fitted(new), 1)[:, last:].mean()) < 0.01
    seen = labels < last
    temperature = TemperatureScaling(prior=0.5).fit(z[y < last], y[y < last])
    assert loss(fitted(new[seen]), labels[seen]) < loss(temperature(new[seen]), labels[seen]) - 0.2


def test_at_most_eight_are_tried_and_fewer_with_many_classes() -> None:
    for classes, tried in ((2, 8), (5, 6), (50, 4)):
        evidence = AutoCalibrator().fit(*sample(200, classes)).evidence
        assert sum(trial.loss < float("inf") for trial in evidence.trials[1:]) == tried
