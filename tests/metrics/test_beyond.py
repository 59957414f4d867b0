"""The metrics beyond the papers: values by hand, slow oracles, and edges."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrant import Pairs, Predictions
from calibrant.binning import EqualMass, EqualWidth
from calibrant.errors import InputError
from calibrant.metrics import (
    AURC,
    ECE,
    NLL,
    CalibrationLoss,
    CanonicalError,
    ClasswiseECE,
    DebiasedECE,
    Entropy,
    KSError,
    RefinementLoss,
    SmoothECE,
    SplitNLL,
    TopLabelECE,
    ood_auroc,
    risk_coverage,
)
from calibrant.metrics.debiased import squared_error
from calibrant.statistics import interval, null_band


def pairs(rows: int = 400, *, seed: int = 0, power: float = 1.0) -> Pairs:
    """Return calibrated pairs, or with power > 1 pairs that are right less often than they say."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.rand(rows, generator=generator, dtype=torch.float64)
    return Pairs.from_probs(p, (torch.rand(rows, generator=generator) < p**power).long())


def vectors_of(rows: int = 30, classes: int = 3) -> Predictions:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    return Predictions.from_logits(logits, torch.randint(classes, (rows,), generator=generator))


def test_top_label_error_sees_what_cancels_between_classes() -> None:
    data = Pairs.from_top_label([0.75] * 8, [0] * 4 + [1] * 4, [0] * 4 + [1, 1, 0, 0])
    assert ECE()(data) == 0.0
    assert TopLabelECE()(data) == pytest.approx(0.25)


def test_top_label_error_by_a_loop_over_classes_and_equal_mass() -> None:
    data = vectors_of(200).top_label()
    for binning in (EqualWidth(7), EqualMass(4)):
        parts = [data[data.predicted == k] for k in range(3)]
        expected = sum(len(part) / 200 * ECE(binning)(part) for part in parts)
        assert TopLabelECE(binning)(data) == pytest.approx(expected, abs=1e-12)
    with pytest.raises(InputError, match="equal-width bins to merge"):
        TopLabelECE(EqualMass(4)).state(data)


def test_classwise_error_by_a_loop_over_classes() -> None:
    data = vectors_of(200)
    for binning in (EqualWidth(7), EqualMass(4)):
        expected = sum(ECE(binning)(data.one_vs_rest(k)) for k in range(3)) / 3
        assert ClasswiseECE(binning)(data) == pytest.approx(expected, abs=1e-12)


def test_debiased_by_hand_and_bins_of_one_row_left_out() -> None:
    data = Pairs.from_probs([0.9] * 4 + [0.1], [1, 1, 0, 0, 1])
    assert DebiasedECE()(data) == pytest.approx(math.sqrt(0.8 * (0.4**2 - 0.25 / 3)))


def test_the_debiased_square_is_unbiased() -> None:
    generator = torch.Generator().manual_seed(1)
    p = torch.tensor([0.3] * 20 + [0.7] * 20, dtype=torch.float64)
    rate = torch.tensor([0.4] * 20 + [0.7] * 20, dtype=torch.float64)
    found = [
        float(squared_error(EqualWidth(15).table(p, torch.rand(40, generator=generator) < rate))) for _ in range(1000)
    ]
    assert np.mean(found) == pytest.approx(0.005, abs=4 * np.std(found) / math.sqrt(1000))


def reflected_smooth_error(data: Pairs, width: float, cells: int = 1000) -> float:
    """∫ |r_σ| by the midpoint rule, the reflected kernel summed over its images."""
    at = (np.arange(cells) + 0.5) / cells
    p, y = data.p.numpy(), data.y.numpy()
    total = np.zeros(cells)
    for image in range(-1, 2):
        for centre in (2 * image + p, 2 * image - p):
            total += np.exp(-0.5 * ((at[:, None] - centre) / width) ** 2) @ (p - y)
    return float(np.abs(total).mean() / (width * math.sqrt(2 * math.pi)) / len(p))


@pytest.mark.parametrize("power", [1.0, 2.0, 4.0])
def test_smooth_error_is_the_fixed_point_of_the_integral(power: float) -> None:
    data = pairs(200, power=power)
    low, high = 1e-3, 0.5
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (middle, high) if reflected_smooth_error(data, middle) > middle else (low, middle)
    assert SmoothECE()(data) == pytest.approx(low, abs=5e-5)  # bisection, midpoint rule and lattice


def test_smooth_error_of_one_sided_residuals_is_their_mean() -> None:
    assert SmoothECE()(Pairs.from_probs([1.0, 0.9, 0.8], [0, 0, 0])) == pytest.approx(0.9, abs=1e-5)
    assert SmoothECE()(Pairs.from_probs([1.0, 0.0], [1, 0])) == pytest.approx(0.0, abs=1e-5)


def test_cumulated_errors_by_a_loop() -> None:
    data = pairs(100, power=2)
    order = torch.argsort(data.p)
    path = [0.0, *torch.cumsum((data.p - data.y)[order] / 100, 0).tolist()]
    assert KSError()(data) == pytest.approx(max(map(abs, path)), abs=1e-12)


@pytest.mark.parametrize("score", ["brier", "log"])
def test_calibration_and_refinement_add_up_to_the_score(score: str) -> None:
    data = pairs(power=2)
    table = ECE().table(data)
    mean = (table.sum_p / table.count)[EqualWidth(15).assign(data.p)]
    if score == "brier":
        total = (mean - data.y).square().mean()
    else:
        total = torch.nn.functional.binary_cross_entropy(mean, data.y)
    parts = CalibrationLoss(score=score)(data) + RefinementLoss(score=score)(data)
    assert parts == pytest.approx(float(total), abs=1e-12)


def test_a_certain_and_wrong_bin_costs_infinitely_much_log_loss() -> None:
    assert CalibrationLoss(score="log")(Pairs.from_probs([1.0, 1.0], [1, 0])) == math.inf


def test_aurc_by_hand_and_with_ties_by_the_mean_over_orders() -> None:
    data = Pairs.from_probs([0.9, 0.9, 0.5], [1, 0, 1])
    # orders: risks 0, ½, ⅓ or 1, ½, ⅓
    assert AURC()(data) == pytest.approx((0.5 + 0.5 + 1 / 3) / 3)
    curve = risk_coverage(data)
    assert curve.coverage.tolist() == pytest.approx([1 / 3, 2 / 3, 1])
    assert curve.risk.tolist() == pytest.approx([0.5, 0.5, 1 / 3])


def test_split_losses_average_to_the_whole() -> None:
    data = vectors_of(100)
    right = float(data.correct.double().mean())
    whole = right * SplitNLL("correct")(data) + (1 - right) * SplitNLL("wrong")(data)
    assert whole == pytest.approx(NLL()(data), abs=1e-12)
    entropy = right * Entropy("correct")(data) + (1 - right) * Entropy("wrong")(data)
    assert entropy == pytest.approx(Entropy()(data), abs=1e-12)


def test_no_wrong_rows_is_said_and_not_nan() -> None:
    with pytest.raises(InputError, match="at least one wrong row"):
        SplitNLL("wrong")(Predictions.from_logits([[3.0, 0.0]], [0]))


def test_out_of_distribution_rows_are_told_by_both_scores() -> None:
    generator = torch.Generator().manual_seed(0)
    inside = Predictions.from_logits(torch.randn(200, 5, generator=generator) * 5)
    outside = Predictions.from_logits(torch.randn(300, 5, generator=generator))
    for score in ("entropy", "confidence"):
        assert 0.8 < ood_auroc(inside, outside, score=score) < 1
        assert ood_auroc(inside, inside, score=score) == pytest.approx(0.5)
    with pytest.raises(InputError, match="expected score to be one of"):
        ood_auroc(inside, outside, score="energy")


def test_rows_that_differ_in_the_order_of_classes_only_are_ties() -> None:
    """Their entropies differ by an ulp: as if they were ranked, chance would not be one half."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randint(-4, 5, (200, 7), generator=generator).double()
    shuffled = z[:, torch.randperm(7, generator=generator)]
    assert ood_auroc(Predictions.from_logits(z), Predictions.from_logits(shuffled)) == pytest.approx(0.5, abs=1e-12)


def sample(
    rows: int, *, sharpness: float, seed: int = 0, classes: int = 6, bias: float = 0.0
) -> tuple[Predictions, Tensor]:
    """Return logits ``sharpness`` times too large and without the bias of class 0, and the true probabilities."""
    g = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(rows, classes, generator=g).double()
    true = torch.softmax(z + bias * torch.eye(classes)[0], 1)
    return Predictions.from_logits(sharpness * z, true.multinomial(1, generator=g)[:, 0]), true


@pytest.mark.parametrize(
    ("norm", "sharpness", "bias"), [(1, 1.0, 0.0), (1, 2.5, 0.0), (2, 2.5, 0.0), (1, 0.5, 0.0), (2, 1.0, 1.5)]
)
def test_it_is_near_the_truth_and_its_lower_end_below(norm: int, sharpness: float, bias: float) -> None:
    metric = CanonicalError(norm=norm)
    large, true = sample(20_000, sharpness=sharpness, seed=99, bias=bias)
    truth = float((large.probs - true).norm(p=norm, dim=1).mean())
    found = [interval(metric, sample(1500, sharpness=sharpness, seed=seed, bias=bias)[0]) for seed in range(4)]
    assert sum(one.low <= truth for one in found) >= 3
    assert sum(one.estimate for one in found) / 4 == pytest.approx(truth, abs=0.03)
    if truth > 0.3:
        assert min(one.low for one in found) > 0.6 * truth


def test_by_hand_with_two_kinds_of_rows() -> None:
    # 80 % said and 50 % true: ‖(.5, .5) − (.8, .2)‖₁ = .6, over-confident; 60 % said and 90 % true: under-confident by as much
    probs = [[0.8, 0.2]] * 1000 + [[0.4, 0.6]] * 1000
    data = Predictions.from_probs(probs, [0, 1] * 500 + ([1] * 9 + [0]) * 100)
    parts = {part: CanonicalError(part=part)(data) for part in ("all", "over", "under")}
    assert parts == {
        key: pytest.approx(value, abs=0.04) for key, value in (("all", 0.6), ("over", 0.3), ("under", 0.3))
    }
    assert parts["over"] + parts["under"] == pytest.approx(parts["all"], abs=1e-12)
    assert CanonicalError(norm=2)(data) == pytest.approx(parts["all"] / 2**0.5, abs=1e-9)


def test_entropy_of_certain_and_even_rows() -> None:
    assert Entropy()(Predictions.from_logits([[0.0, 0.0], [-math.inf, 7.0]], [0, 1])) == pytest.approx(math.log(2) / 2)


def test_a_calibrated_model_stays_within_its_limit() -> None:
    metric, beyond = CanonicalError(), 0
    for seed in range(12):
        data = sample(400, sharpness=1.0, seed=seed)[0]
        beyond += metric(data) > null_band(metric, data).high
    assert beyond <= 2  # 2.5 % of 12, plus three standard errors
    off = sample(400, sharpness=2.5)[0]
    assert metric(off) > null_band(metric, off).high
    shares = Predictions.from_logits(off.logits, off.labels, weights=[4.0] * 400)
    assert null_band(metric, shares).high == pytest.approx(null_band(metric, off).high)


def test_groups_are_the_units_and_share_a_fold() -> None:
    data = sample(1200, sharpness=2.0)[0]
    twice = Predictions.cat([data, data])
    grouped = Predictions.from_logits(twice.logits, twice.labels, groups=torch.arange(1200).repeat(2))
    alone, both = (interval(CanonicalError(), one) for one in (data, grouped))
    assert both.high - both.low == pytest.approx(alone.high - alone.low, rel=0.1)
