"""Intervals, null levels and tests: by hand, by slow oracles, and what is refused."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from calibrant import BinaryPairs, Predictions
from calibrant.binning import BinTable, EqualMass, EqualWidth
from calibrant.errors import InputError, NoIntervalError
from calibrant.metrics import (
    ACE,
    AURC,
    ECE,
    MCE,
    NLL,
    Accuracy,
    Brier,
    ClasswiseECE,
    DebiasedECE,
    SmoothECE,
    TopLabelECE,
)
from calibrant.statistics import (
    bootstrap,
    consistency_bars,
    corrected_error,
    error_interval,
    holm,
    interval,
    mean_error,
    null_band,
    null_draws,
    null_outcomes,
    paired_bootstrap,
    redraw,
    two_sample_test,
    wilson,
)


def model(temperature: float = 1.0, *, rows: int = 1000, seed: int = 0, groups: object = None) -> Predictions:
    """Return predictions that are calibrated at temperature 1."""
    generator = torch.Generator().manual_seed(seed)
    true = torch.randn(rows, 4, generator=generator, dtype=torch.float64) * 2
    labels = torch.multinomial(true.softmax(dim=1), 1, generator=generator)[:, 0]
    return Predictions.from_logits(true / temperature, labels, groups=groups)


def test_wilson_agrees_with_scipy() -> None:
    for successes, count in ((0, 10), (7, 10), (99, 100), (100, 100)):
        found, expected = wilson(successes, count), stats.binomtest(successes, count).proportion_ci(method="wilson")
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_the_bootstrap_of_a_mean_is_that_of_numpy() -> None:
    data = model()
    found = bootstrap(NLL(), data, draws=4000)
    rows = NLL().rows(data).numpy()
    drawn = np.random.default_rng(1).choice(rows, size=(4000, 1000)).mean(axis=1)
    assert (found.low, found.high) == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=0.006)
    assert found.estimate == pytest.approx(rows.mean())


def test_many_rows_are_drawn_in_blocks_with_the_same_error() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(100_000, generator=generator, dtype=torch.float64) + 1
    test = paired_bootstrap(rows, draws=400)[0]
    assert test.high - test.low == pytest.approx(2 * 1.96 / math.sqrt(100_000), rel=0.12)
    assert test.difference == pytest.approx(float(rows.mean()), abs=1e-12)


def test_clusters_widen_every_interval() -> None:
    base = torch.arange(200).repeat_interleave(10)
    data = model(0.5, rows=200)
    free = Predictions.from_logits(data.logits[base], data.labels[base])
    tied = Predictions.from_logits(data.logits[base], data.labels[base], groups=base.numpy())
    for metric in (Accuracy(), NLL(), ECE(), ClasswiseECE()):
        narrow, wide = interval(metric, free), interval(metric, tied)
        assert wide.high - wide.low > 1.8 * (narrow.high - narrow.low), metric
    with pytest.raises(NoIntervalError, match="got groups"):
        interval(DebiasedECE(), tied)


def test_the_standard_error_of_clusters_is_that_of_their_sums() -> None:
    rows = torch.tensor([1.0, 2.0, 4.0, 0.0])
    assert mean_error(rows) == pytest.approx(float(np.std(rows.numpy())) / 2)
    sums = np.array([3.0 - 3.5, 4.0 - 3.5])
    assert mean_error(rows, groups=torch.tensor([0, 0, 1, 1])) == pytest.approx(math.sqrt(2 * (sums**2).sum()) / 4)


def test_what_has_no_interval_is_refused_with_the_reason() -> None:
    for metric in (MCE(), ACE(), SmoothECE(), AURC(), ECE(norm=2)):
        with pytest.raises(NoIntervalError, match=r"does not cover|known to cover"):
            interval(metric, model(rows=50))
    with pytest.raises(NoIntervalError, match="does not cover"):
        bootstrap(ECE(), model(rows=50))
    with pytest.warns(UserWarning, match="infinite"), pytest.raises(NoIntervalError, match="floor"):
        bootstrap(NLL(), Predictions.from_probs([[1.0, 0.0]], [1]))


@pytest.mark.parametrize("metric", [ECE(), ECE(EqualMass(15)), TopLabelECE(), ClasswiseECE(), DebiasedECE()], ids=repr)
def test_intervals_of_errors_hold_the_figure_and_reach_0_only_when_calibrated(metric: ECE) -> None:
    for temperature, starts_at_zero in ((1.0, True), (0.3, False)):
        found = interval(metric, model(temperature))
        assert (found.low == 0) == starts_at_zero
        assert found.low <= found.estimate <= found.high <= 1
        assert found.estimate == pytest.approx(metric(model(temperature)), abs=1e-12)


def test_the_folded_normal_is_inverted() -> None:
    for mean, spread in ((0.0, 0.02), (0.01, 0.02), (0.05, 0.02), (0.4, 0.01)):
        folded = stats.foldnorm.mean(mean / spread, scale=spread)
        # one bin of share 1 with |gap| = folded and standard error = spread
        estimate = corrected_error(
            BinTable(torch.tensor([100]), torch.tensor([100 * (0.5 + folded)]), torch.tensor([50.0]), 100),
            spread=torch.tensor([spread], dtype=torch.float64),
        )
        assert float(estimate.corrected) == pytest.approx(mean, abs=1e-6)


def test_an_interval_from_a_table_needs_no_rows() -> None:
    data = model(0.5)
    cells = ECE().cells(data)
    null = null_draws(ECE(), data, seed=0)
    assert error_interval(cells.table(), null) == interval(ECE(), data, seed=0)


@pytest.mark.parametrize(
    "metric", [ECE(), ECE(EqualMass(10)), MCE(), ACE(), DebiasedECE(), ClasswiseECE(), SmoothECE()], ids=repr
)
def test_the_fast_null_is_that_of_redrawn_labels(metric: ECE) -> None:
    data = model(0.7, rows=400)
    generator = torch.Generator().manual_seed(0)
    slow = np.array([metric(redraw(data, generator=generator)) for _ in range(300)])
    fast = null_draws(metric, data, draws=1000, seed=1).numpy()
    assert fast.mean() == pytest.approx(slow.mean(), abs=4 * slow.std() / math.sqrt(250))
    assert stats.ks_2samp(fast, slow).pvalue > 1e-3


def test_the_null_does_not_look_at_the_labels() -> None:
    data = model(rows=100)
    other = Predictions(data.logits, data.labels.roll(1))
    assert null_band(ECE(), data, draws=50) == null_band(ECE(), other, draws=50)


def test_null_outcomes_have_the_mean_and_variance_of_bernoulli_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(500, generator=generator, dtype=torch.float64)
    index = EqualWidth(5).assign(p)
    sums = null_outcomes(index, p, bins=5, draws=20_000, seed=0)
    mean = torch.bincount(index, weights=p)
    variance = torch.bincount(index, weights=p * (1 - p))
    assert torch.allclose(sums.mean(dim=0), mean, atol=0.2)
    assert torch.allclose(sums.var(dim=0), variance, rtol=0.05)
    assert null_outcomes(index, p.round(), bins=5, draws=3, seed=0).std(dim=0).tolist() == [0.0] * 5


def test_rows_of_no_bin_are_not_drawn() -> None:
    sums = null_outcomes(torch.tensor([-1, 0]), torch.tensor([1.0, 1.0]), bins=2, draws=2, seed=0)
    assert sums.tolist() == [[1.0, 0.0]] * 2


def test_labels_are_redrawn_from_pairs_and_classes() -> None:
    generator = torch.Generator().manual_seed(0)
    assert redraw(BinaryPairs.from_probs([0.0, 1.0], [1, 0]), generator=generator).y.tolist() == [0.0, 1.0]
    sure = Predictions.from_logits([[-math.inf, 0.0], [9e9, 0.0]], [0, 1])
    assert redraw(sure, generator=generator).labels.tolist() == [1, 0]


def test_consistency_bars_are_binomial_quantiles_and_missing_for_empty_bins() -> None:
    table = EqualWidth(4).table(torch.full((40,), 0.9, dtype=torch.float64), torch.ones(40))
    low, high = consistency_bars(table)
    assert torch.isnan(low[:3]).all()
    assert (float(low[3]), float(high[3])) == tuple(stats.binom.ppf([0.025, 0.975], 40, 0.9) / 40)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_paired_differences_are_tested_as_a_t_test_does() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(500, 2, generator=generator, dtype=torch.float64) + torch.tensor([0.1, 0.0])
    for column, test in enumerate(paired_bootstrap(rows, draws=4000)):
        expected = stats.ttest_1samp(rows[:, column].numpy(), 0.0)
        assert test.p_value == pytest.approx(expected.pvalue, rel=0.3)
        ends = expected.confidence_interval(0.95)
        assert (test.low, test.high) == pytest.approx((ends.low, ends.high), abs=0.01)


def test_equal_rows_are_never_different_and_a_constant_shift_always() -> None:
    assert paired_bootstrap(torch.zeros(10))[0].p_value == 1.0
    assert paired_bootstrap(torch.ones(10))[0].p_value == 0.0


def test_the_same_seed_gives_the_same_numbers() -> None:
    data = model(rows=100)
    for metric in (Brier(), ECE(), ClasswiseECE()):
        assert interval(metric, data, seed=4) == interval(metric, data, seed=4)
        assert null_band(metric, data, seed=4, draws=20) == null_band(metric, data, seed=4, draws=20)


def test_bad_arguments_are_refused() -> None:
    data = model(rows=20)
    with pytest.raises(InputError, match="expected draws"):
        bootstrap(NLL(), data, draws=0)
    with pytest.raises(InputError, match="expected level"):
        interval(NLL(), data, level=1.0)
    with pytest.raises(InputError, match="expected draws"):
        null_band(ECE(), data, draws=0)
    with pytest.raises(InputError, match="expected runs"):
        two_sample_test((0.1, 0.2), (0.1, 0.1), runs=(1, 5))


@pytest.mark.slow
def test_the_interval_of_ece_covers() -> None:
    for temperature, lowest, highest in ((1.0, 0.95, 0.995), (0.6, 0.92, 0.985)):
        everyone = model(temperature, rows=200_000, seed=9)
        truth = ECE()(everyone)
        hits = 0
        generator = torch.Generator().manual_seed(1)
        for _ in range(300):
            rows = torch.randint(200_000, (1000,), generator=generator)
            pairs = BinaryPairs(everyone.confidence[rows], everyone.correct[rows].double())
            found = interval(ECE(), pairs)
            hits += found.low <= max(truth, 0.0) <= found.high if temperature != 1.0 else found.low == 0
        assert lowest <= hits / 300 <= highest


def test_one_unit_tells_nothing() -> None:
    data = model(rows=40)
    for alone in (data[:1], Predictions(data.logits, data.labels, torch.zeros(40, dtype=torch.int64))):
        with pytest.raises(NoIntervalError, match="at least two rows, or groups"):
            interval(NLL(), alone)
    for metric in (ECE(), ClasswiseECE()):
        with pytest.raises(NoIntervalError, match="at least two groups"):
            interval(metric, alone)
    with pytest.raises(InputError, match="at least two rows, or groups"):
        paired_bootstrap(torch.ones(5), groups=torch.zeros(5, dtype=torch.int64))


def test_few_rows_are_tested_by_students_t() -> None:
    for rows in (torch.tensor([0.1, 0.3]), torch.tensor([0.1, 0.3, 0.2, 0.5])):
        found = paired_bootstrap(rows, draws=20_000)[0]
        assert found.p_value == pytest.approx(stats.ttest_1samp(rows.numpy(), 0.0).pvalue, rel=0.05)
