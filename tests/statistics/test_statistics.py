"""Intervals, null levels and tests: by hand, by slow oracles, and what is refused."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import late
from tests.draws import drawn

from calibrant import Pairs, Predictions
from calibrant.binning import BinTable, EqualMass, EqualWidth
from calibrant.data.checks import Data
from calibrant.errors import NoIntervalError
from calibrant.metrics import (
    ACE,
    AURC,
    ECE,
    MCE,
    NLL,
    Accuracy,
    Brier,
    CanonicalError,
    ClasswiseECE,
    DebiasedECE,
    MeanMetric,
    SmoothECE,
    TopLabelECE,
)
from calibrant.statistics import bootstrap, consistency_bars, interval, null_band
from calibrant.statistics.binned import calibrated_table, error_interval, unfold
from calibrant.statistics.design import Clusters
from calibrant.statistics.interval import redraw
from calibrant.statistics.losses import MeanSums
from calibrant.statistics.means import interval_from, mean_interval, share_interval, skewed_ends, student_quantile
from calibrant.statistics.paired import halls_transform, holm, paired_test

stats = late("scipy.stats")


def model(temperature: float = 1.0, *, rows: int = 1000, seed: int = 0, groups: object = None) -> Predictions:
    """Return predictions that are calibrated at temperature 1."""
    true, labels = drawn(rows, 4, seed=seed, spread=2, sharp=1)
    return Predictions.from_logits(true / temperature, labels, groups=groups)


def test_the_bootstrap_is_that_of_numpy() -> None:
    data = model()
    found = bootstrap(NLL(), data, draws=4000)
    rows = NLL().rows(data).numpy()
    drawn = np.random.default_rng(1).choice(rows, size=(4000, 1000)).mean(axis=1)
    assert (found.low, found.high) == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=0.006)
    assert found.estimate == pytest.approx(rows.mean())


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


def test_what_has_no_interval_is_refused_with_the_reason() -> None:
    with pytest.raises(NoIntervalError, match="or one that many bins contribute to"):
        interval(DebiasedECE(), Pairs.from_probs([0.7] * 200, [1] * 140 + [0] * 60))
    with pytest.raises(NoIntervalError, match="no interval with the nominal coverage is known"):
        bootstrap(ECE(), model(rows=50))
    for method in (bootstrap, interval):
        with pytest.warns(UserWarning, match="infinite"), pytest.raises(NoIntervalError, match="a probability above 0"):
            method(NLL(), Predictions.from_probs([[1.0, 0.0], [0.5, 0.5]], [1, 0]))


@pytest.mark.parametrize("metric", [ECE(), ECE(EqualMass(15)), TopLabelECE(), ClasswiseECE(), DebiasedECE()], ids=repr)
def test_intervals_reach_0_only_where_calibrated(metric: ECE) -> None:
    for temperature, starts_at_zero in ((1.0, True), (0.3, False)):
        data = model(temperature, rows=1000 if starts_at_zero else 4000)
        found = interval(metric, data)
        assert (found.low == 0) == starts_at_zero
        assert found.low <= found.estimate <= found.high <= 1
        assert found.estimate == pytest.approx(metric(data), abs=1e-12)
        if isinstance(metric, DebiasedECE) and found.low > 0:  # a larger square varies more
            below, above = found.estimate**2 - found.low**2, found.high**2 - found.estimate**2
            assert below < above < 1.1 * below


def _events(rows: int, probability: Any, truth: Any, seed: int) -> Pairs:
    rng = np.random.default_rng(seed)
    u = rng.random(rows)
    return Pairs.from_probs(probability(u), (rng.random(rows) < truth(u)).astype(int))


@pytest.mark.parametrize(
    ("metric", "rows", "probability", "truth", "error"),
    [
        # gaps of one sign, few wrong: with the correction for noise the upper end was missed in 25 of 100
        (ECE(EqualMass(15)), 300, lambda u: 0.935 + 0.064 * u, lambda u: 0.999 + 0 * u, 0.032),
        # three bins of fifteen are off, the others are noise: the lower end was missed in 22 of 100
        (ECE(EqualMass(15)), 5000, lambda u: 0.6 + 0.39 * u, lambda u: 0.6 + 0.39 * u - 0.15 * (u < 0.2), 0.03),
        # a small estimate has a small standard error: the upper end was missed in 9 of 100
        (DebiasedECE(), 300, lambda u: 0.2 + 0.6 * u, lambda u: 0.2 + 0.6 * u + 0.1 * np.sign(u - 0.5), 0.1),
    ],
)
def test_ends_hold_where_gaps_have_one_sign_or_are_noise(
    metric: ECE, rows: int, probability: Any, truth: Any, error: float
) -> None:
    found = [interval(metric, _events(rows, probability, truth, seed)) for seed in range(60)]
    assert sum(not one.low <= error <= one.high for one in found) <= 3  # 5 % of 60


@pytest.mark.parametrize(("said", "right", "sizes"), [(0.99, 0.95, (90, 105, 120)), (0.9, 0.8, (50, 60, 70))])
def test_a_model_that_always_says_the_same_is_covered(said: float, right: float, sizes: tuple[int, ...]) -> None:
    for n in sizes:  # exactly, over all numbers of right decisions
        missed = 0.0
        for hits in range(n + 1):
            chance = float(stats.binom.pmf(hits, n, right))
            if chance > 1e-5:
                pairs = Pairs.from_probs(np.full(n, said), np.arange(n) < hits)
                found = interval(ECE(), pairs)
                missed += chance * (not found.low <= abs(said - right) <= found.high)
        assert missed < 0.072  # at one n; 5 % over many


@pytest.mark.parametrize("metric", [ECE(), TopLabelECE(), ClasswiseECE(), NLL()], ids=repr)
def test_groups_of_which_one_has_all_weight_are_refused(metric: Any) -> None:
    weight = np.full(300, 1e-9)
    weight[0] = 1
    z, y = drawn(300, 3)
    data = Predictions.from_logits(z, y, groups=np.arange(300) // 10, weights=weight)
    message = r"at least 10 groups .* 30 groups, which are worth 1\.0 groups of equal size"
    with pytest.raises(NoIntervalError, match=message):
        interval(metric, data)


def test_the_folded_normal_is_inverted() -> None:
    for mean, spread in ((0.0, 0.02), (0.01, 0.02), (0.05, 0.02), (0.4, 0.01)):
        folded = stats.foldnorm.mean(mean / spread, scale=spread)
        assert unfold(folded, spread) == pytest.approx(mean, abs=1e-6)


def test_a_bin_without_its_rare_event_is_no_error() -> None:
    # of 1,000 rows at .0005; a lower end at the corrected error less its width
    for events, error in ((0, 0.0), (10, 0.0095)):
        y = (torch.arange(1000) < events).double()
        table = BinTable.from_pairs(torch.zeros(1000, dtype=torch.int64), torch.full((1000,), 0.0005), y, bins=1)
        found = error_interval(table, 0.0)
        assert found.low <= error <= found.high
        assert (found.low > 0) == (error > 0)


@pytest.mark.parametrize(("bins", "method"), [(24, "folded-normal inversion"), (30, "plug-in less the noise")])
def test_noise_is_corrected_in_up_to_25_effective_bins(bins: int, method: str) -> None:
    # equal bins of p uniform on [0, 1] have (Σ s)² / Σ s² = B (π/8)² / (1/6) = 0.925 B, which is 22.2 and 27.8
    p = ((torch.arange(bins, dtype=torch.float64) + 0.5) / bins).repeat_interleave(400)
    y = torch.rand(len(p), dtype=torch.float64, generator=torch.Generator().manual_seed(0)) < p
    assert ECE(EqualWidth(bins)).interval(Pairs.from_probs(p, y.long())).method.startswith(method)


def test_rounding_hides_no_bin_of_two_events() -> None:
    ends = []
    for rows in (48, 49, 50):  # 49 · (2 / 49) is less than 2 by rounding
        y = (torch.arange(rows) < 2).double()
        table = BinTable.from_pairs(torch.zeros(rows, dtype=torch.int64), torch.full((rows,), 0.2), y, bins=1)
        ends.append(error_interval(table, 0.0).high)
    assert ends == sorted(ends, reverse=True)


def test_the_limit_of_one_bin_is_that_of_a_binomial() -> None:
    for n, p in ((1000, 0.8), (200, 0.02), (50, 0.5)):
        table = BinTable.from_pairs(torch.zeros(n, dtype=torch.int64), torch.full((n,), p), torch.zeros(n), bins=1)
        counts = np.arange(n + 1)
        exact = float((stats.binom.pmf(counts, n, p) * np.abs(counts - n * p)).sum()) / n
        assert ECE(1).null_of(table).estimate == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize(
    ("n", "p"), [(500, 0.999), (50, 0.999), (20, 0.97), (10, 0.97), (1, 0.88), (1, 0.9999), (2000, 0.9999)]
)
def test_the_band_of_few_events_is_that_of_a_binomial(n: int, p: float) -> None:
    band = null_band(ECE(), Pairs.from_probs([p] * n, [1] * n))
    gaps, mass = np.abs(np.arange(n + 1) - n * p) / n, stats.binom.pmf(np.arange(n + 1), n, p)
    order = np.argsort(gaps)
    low, high = gaps[order][np.searchsorted(mass[order].cumsum(), [0.025, 0.975])]
    assert band.estimate == pytest.approx(gaps @ mass, rel=1e-6)
    assert band.low == pytest.approx(low, rel=1e-6)
    assert band.high == pytest.approx(max(high, band.estimate), rel=1e-6)  # the mean of rare events can be larger


@pytest.mark.parametrize("label", [0, 1])
def test_certain_rows_all_right_or_all_wrong_have_a_width(label: int) -> None:
    data = Predictions.from_probs([[1.0, 0.0, 0.0]] * 300, [label] * 300)
    whole = interval(ECE(), data)
    width = whole.high - whole.low
    classwise, brier = interval(ClasswiseECE(), data), interval(Brier(), data)
    end = classwise.low if label else classwise.high
    # a wrong row counts in two classes of three
    assert abs(end - classwise.estimate) == pytest.approx(2 / 3 * width, rel=0.01)
    if label:  # Clopper and Pearson's limit of 300 events in 300 rows
        assert brier.low == pytest.approx(2 * 0.025 ** (1 / 300))
    assert brier.low < brier.high


def test_a_classwise_table_alone_has_no_interval() -> None:
    metric = ClasswiseECE()
    with pytest.raises(NoIntervalError, match=r"ClasswiseECE\.signed"):
        metric.interval_of(metric.state(model(rows=100)))


def test_the_null_does_not_look_at_the_labels() -> None:
    data = model(rows=100)
    other = Predictions(data.logits, labels=data.labels.roll(1))
    assert null_band(ECE(), data, draws=50) == null_band(ECE(), other, draws=50)
    assert null_band(AURC(), data, draws=5).method.endswith("5 draws")  # a metric without a method of its own


def test_consistency_bars_are_binomial_quantiles() -> None:
    table = EqualWidth(4).table(torch.full((40,), 0.9, dtype=torch.float64), torch.ones(40))
    low, high = consistency_bars(table)
    assert torch.isnan(low[:3]).all()
    assert (float(low[3]), float(high[3])) == tuple(stats.binom.ppf([0.025, 0.975], 40, 0.9) / 40)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_without_skewness_the_paired_test_is_a_t_test() -> None:
    generator = torch.Generator().manual_seed(0)
    half = torch.randn(250, 2, generator=generator, dtype=torch.float64)
    rows = torch.cat([half, -half]) + torch.tensor([0.1, 0.0])
    centred = rows - rows.mean(dim=0)
    degrees = 2 * centred.square().sum(dim=0).square() / centred.pow(4).sum(dim=0)  # those of Σ c²
    for column in range(2):
        test = paired_test(rows[:, column])
        ratio = stats.ttest_1samp(rows[:, column].numpy(), 0.0).statistic
        expected = stats.t(float(degrees[column]))
        assert test.p_value == pytest.approx(2 * expected.sf(abs(ratio)), rel=1e-9)
        half = expected.ppf(0.975) * float(rows[:, column].std()) / 500**0.5
        mean = float(rows[:, column].mean())
        assert (test.low, test.high) == pytest.approx((mean - half, mean + half), abs=1e-9)


def test_rare_events_have_nearly_the_exact_poisson_interval() -> None:
    for events in (10, 20, 40):
        rows = torch.zeros(100_000, dtype=torch.float64)
        rows[:events] = 1
        found = mean_interval(rows)
        exact = stats.chi2.ppf([0.025, 0.975], [2 * events, 2 * events + 2]) / 2 / 100_000
        assert (found.low, found.high) == pytest.approx(tuple(exact), rel=0.02)


@pytest.mark.parametrize("degrees", [3.5, 99.9, 100.0, 1e3, 1e9])
def test_student_quantiles_are_those_of_scipy(degrees: float) -> None:
    for probability in (0.1, 0.975, 0.9995):
        assert student_quantile(probability, degrees) == pytest.approx(stats.t.ppf(probability, degrees), rel=1e-8)


def test_a_share_of_one_row_has_an_interval() -> None:
    assert (share_interval(1, 1).low, share_interval(0, 1).high) == pytest.approx((0.05, 0.95), abs=0.01)


def test_shares_next_to_0_and_1_are_covered() -> None:
    rates = np.concatenate([np.geomspace(1e-4, 0.05, 400), np.linspace(0.05, 0.5, 400)])
    successes = np.arange(201)
    ends = [share_interval(int(x), 200) for x in successes]
    low, high = np.array([e.low for e in ends]), np.array([e.high for e in ends])
    mass = stats.binom.pmf(successes, 200, rates[:, None])
    covered = (mass * ((low <= rates[:, None]) & (rates[:, None] <= high))).sum(axis=1)
    assert covered.min() > 0.92


def test_equal_rows_never_differ_and_a_constant_shift_always() -> None:
    assert paired_test(torch.zeros(10)).p_value == 1.0
    # the sign test: equal differences have no variance
    assert paired_test(torch.ones(10)).p_value == pytest.approx(2 * 0.5**10)
    assert paired_test(torch.ones(2)).low <= 0


def test_few_units_tell_nothing() -> None:
    data = model(rows=400)
    few = Predictions(data.logits, labels=data.labels, groups=torch.arange(400) % 9)
    for metric in (Accuracy(), NLL(), ECE(), TopLabelECE(), ClasswiseECE()):
        with pytest.raises(NoIntervalError, match="at least 10 groups"):
            interval(metric, few)
    with pytest.raises(NoIntervalError, match="at least 10 groups"):
        null_band(ECE(), few)
    with pytest.raises(NoIntervalError, match="at least two rows, or groups"):
        mean_interval(torch.ones(1))
    with pytest.raises(NoIntervalError, match="at least two rows, or groups"):
        paired_test(torch.ones(5), groups=torch.zeros(5, dtype=torch.int64))


def test_few_errors_are_bounded_by_what_is_possible() -> None:
    # three errors of one size among 300 equal rows: Clopper and Pearson's bounds of their share, times that size
    data = Predictions.from_probs([[0.99, 0.01]] * 300, [0] * 297 + [1] * 3)
    share = stats.binomtest(3, 300).proportion_ci(method="exact")
    for metric, right, wrong in ((NLL(), -np.log(0.99), -np.log(0.01)), (Brier(), 2 * 0.01**2, 2 * 0.99**2)):
        found = interval(metric, data)
        exact = (right + share.low * (wrong - right), right + share.high * (wrong - right))
        # beside rows that were not seen, of no loss at all
        assert (found.low, found.high) == pytest.approx(exact, rel=2e-5)
    none = interval(Brier(), Predictions.from_probs([[0.99, 0.01]] * 300, [0] * 300))
    assert none.high == pytest.approx(2e-4 + (1 - 0.025 ** (1 / 300)) * (wrong - right), rel=1e-9)
    # rows of less loss than any seen: 7 % of them, which 50 rows do not exclude
    half = interval(NLL(), Predictions.from_probs([[0.5, 0.5]] * 50, [0, 1] * 25))
    assert (half.low, half.high) == pytest.approx((np.log(2) * 0.025 ** (1 / 50), np.log(2)), rel=1e-6)
    assert interval(NLL(), Predictions.from_probs([[0.999, 0.001], [0.6, 0.4]], [0, 0])).low >= 0  # of two rows
    alike = [interval(Brier(), Predictions.from_logits([[0.0] * 3] * rows, [0] * rows)) for rows in range(2, 40)]
    assert all(found.low < 0.65 for found in alike[:30])  # rounding is no event
    # one large error is not informative beside many small ones
    mixed = Predictions.from_probs([[0.51, 0.49]] * 60 + [[0.999, 0.001]] * 940, [1] * 30 + [0] * 970)
    assert interval(NLL(), mixed).high - NLL()(mixed) > 3 * np.log(999) / 1000
    for metric, few in ((DebiasedECE(), data), (Asymmetric(), data)):
        with pytest.raises(NoIntervalError, match=r"got 3 of 300; measure on about 1,600 rows"):
            interval(metric, few)


@dataclass(frozen=True)
class Asymmetric(MeanMetric):
    """A mean that does not say what it could have been."""

    better, bounds, notion, cite = "lower", (0.0, 1.0), "proper score", "–"

    def rows(self, data: Data) -> torch.Tensor:
        return data.confidence.square() * ~data.correct


def test_the_variance_of_a_gap_holds_that_of_its_confidences() -> None:
    # the rows p − y vary less than their outcomes: .28 against .5
    p = torch.linspace(0.4, 1, 2000, dtype=torch.float64)
    y = (p > 0.7).double()
    for weight in (None, torch.linspace(0.1, 2, 2000, dtype=torch.float64)):
        table = BinTable.from_pairs(torch.zeros(2000, dtype=torch.int64), p, y, bins=1, weight=weight)
        part = (torch.ones(2000) if weight is None else weight).double()
        part = part / part.sum()
        gap = float((part * (p - y)).sum())
        error = float((part * (p - y - gap)).square().sum().sqrt())
        found, degrees = error_interval(table, 0.0), 1 / float(part.square().sum()) - 1
        assert abs(gap) - found.low == pytest.approx(stats.t.ppf(0.975, degrees) * error, rel=0.01)
    # ten rows, half of them right, of which a bin's pseudo-rows are as well: nine degrees of freedom
    ten = BinTable.from_pairs(torch.zeros(10, dtype=torch.int64), torch.full((10,), 0.95), torch.arange(10) % 2, bins=1)
    found = error_interval(ten, 0.0)
    assert found.estimate - found.low == pytest.approx(stats.t.ppf(0.975, 9) * 0.5 / 10**0.5, rel=1e-3)


def test_the_limit_of_grouped_rows_is_wider() -> None:
    generator = torch.Generator().manual_seed(0)
    shift = torch.randn(100, generator=generator).repeat_interleave(10)
    p = torch.sigmoid(torch.randn(1000, generator=generator, dtype=torch.float64) + 1)
    y = (torch.rand(1000, generator=generator) < torch.sigmoid(torch.logit(p) + 2 * shift)).long()
    grouped = Pairs.from_probs(p, y, groups=torch.arange(100).repeat_interleave(10))
    assert null_band(ECE(), grouped).high > 1.15 * null_band(ECE(), Pairs.from_probs(p, y)).high
    for metric, pairs in ((SmoothECE(), grouped), (AURC(), grouped)):
        with pytest.raises(NoIntervalError, match="got groups"):
            null_band(metric, pairs)


def test_classwise_intervals_of_two_classes_count_rows_once() -> None:
    z, y = drawn(800, 2, seed=3, spread=2, sharp=1.5)
    data = Predictions.from_logits(z, y)
    both, one = interval(ClasswiseECE(), data), interval(ECE(), data.one_vs_rest(1))
    assert both.estimate == pytest.approx(one.estimate, abs=1e-12)
    assert (both.low, both.high) == pytest.approx((one.low, one.high), abs=1e-12)


def test_intervals_of_means_cover_where_few_heavy_rows_decide() -> None:
    rng, held = np.random.default_rng(1), 0
    for _ in range(600):  # weights of variation 2 that say nothing about the rows, worth 100 rows of equal weight
        rows, weight = rng.exponential(size=500), rng.lognormal(sigma=math.log(5) ** 0.5, size=500)
        found = mean_interval(torch.from_numpy(rows), weight=torch.from_numpy(weight))
        held += found.low <= 1 <= found.high
    assert held / 600 > 0.925  # 0.89 by the sandwich alone
    equal = mean_interval(torch.ones(3), weight=torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64))
    assert (equal.low, equal.high) == (1, 1)


@pytest.mark.parametrize("skew", [-0.3, -1e-3, 0.0, 1e-9, 0.25])
def test_skewed_ends_invert_halls_transformation(skew: float) -> None:
    for quantile in (1.0, 3.1):
        ends = skewed_ends(0.4, 0.05, skew, quantile)
        for end, expected in zip(ends, (quantile, -quantile), strict=True):
            t = (0.4 - end) / 0.05
            by_formula = t + skew * t**2 / 3 + skew**2 * t**3 / 27 + skew / 6
            assert by_formula == pytest.approx(expected, rel=1e-6)  # the limit skew → 0
            assert halls_transform(t, skew) == pytest.approx(expected, rel=1e-6)
        assert (0.4 - ends[0] < ends[1] - 0.4) == (skew > 1e-6)


@pytest.mark.parametrize("sizes", [[1] * 10, [1, 2, 3, 4, 50], [5, 1, 1, 1, 1, 1, 1, 1]])
def test_unequal_groups_have_their_quadratic_forms_moments(sizes: list[int]) -> None:
    found = Clusters.of(torch.tensor(sizes))
    v = torch.tensor(sizes).double() / sum(sizes)
    centred = torch.eye(len(sizes)).double() - v.expand(len(sizes), -1)  # effects minus their mean over rows
    form = centred.T @ torch.diag((v * found.scale) ** 2) @ centred
    torch.testing.assert_close(form.trace(), v.square().sum())  # unbiased for effects of one size
    assert found.degrees == pytest.approx(float(form.trace() ** 2 / (form @ form).trace()))
    assert found.effective == pytest.approx(float(1 / v.square().sum()))


@pytest.mark.parametrize("metric", [NLL(), Brier()])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_upper_end_of_a_loss_takes_the_foreseen_variance(metric: Any, weighted: bool) -> None:
    rng = np.random.default_rng(3)
    p = rng.dirichlet([0.5, 0.5, 0.5], 400).clip(1e-3)
    p /= p.sum(axis=1, keepdims=True)
    labels = np.array([rng.choice(3, p=one) for one in p])
    rarely = p[np.arange(400), labels] < 0.05  # the sample happens to hold none of the unlikely labels
    labels = np.where(rarely, p.argmax(axis=1), labels)
    w = rng.integers(1, 4, 400).astype(float) if weighted else np.ones(400)
    data = Predictions.from_probs(torch.from_numpy(p), torch.from_numpy(labels), weights=w if weighted else None)
    sums = MeanSums.of(metric.rows(data), data, metric.excess(data))

    # oracle: the loss of every label of every row
    each = np.stack([metric.rows(Predictions.from_probs(torch.from_numpy(p), [k] * 400)) for k in range(3)], axis=1)
    v = w**2
    foreseen = [v.sum(), (v[:, None] * p * each).sum(), (v[:, None] * p * each**2).sum()]
    assert sums.foreseen.numpy() == pytest.approx(foreseen, rel=1e-9)

    found, plain = interval(metric, data), interval_from(sums.rows.mean, sums.rows.spread(), level=0.95)
    assert found.low == pytest.approx(plain.low, rel=1e-12)
    assert found.high > plain.high or weighted


def test_a_large_loss_may_not_have_happened_yet() -> None:
    p, labels = [1 - 1e-15] * 100 + [0.7] * 200, [1] * 100 + [1] * 140 + [0] * 60
    found = interval(NLL(), Predictions.from_binary_probs(p, labels))
    # .99¹⁰⁰ = .37: that none of the hundred certain rows is wrong does not exclude a rate of 1 %, at 34.5 nats each
    assert found.high > found.estimate + 0.01 * 100 / 300 * 34.5


def test_drawn_gaps_have_the_covariance_of_the_groups_sums() -> None:
    rng = torch.Generator().manual_seed(1)
    sums, mixing = (torch.randn(rows, 6, generator=rng, dtype=torch.float64) for rows in (400, 6))
    sums = sums @ mixing
    sums[:, 5] = sums[:, 0] + sums[:, 1]  # of deficient rank
    table = BinTable.from_pairs(torch.arange(6), torch.full((6,), 0.5), torch.zeros(6), bins=6)

    def gaps_of(sums: torch.Tensor, draws: int) -> torch.Tensor:
        drawn = calibrated_table(replace(table, groups=sums, degrees=1e9), draws=draws, seed=2)
        return (drawn.sum_p - drawn.sum_y) / table.total

    drawn = gaps_of(sums, 40_000)
    wanted = sums.T @ sums
    assert float((torch.cov(drawn.T) - wanted).abs().max() / wanted.diag().max()) < 0.03
    assert torch.allclose(drawn[:, 5], drawn[:, 0] + drawn[:, 1], atol=1e-6)
    # in another order of the groups, and so with other rounding
    one, other = (gaps_of(each, 50) for each in (sums, sums.flip(0)))
    assert torch.allclose(one, other, rtol=1e-9, atol=1e-9)


LIMITS = [ECE(), MCE(), ACE(), DebiasedECE(), SmoothECE(), ClasswiseECE(), TopLabelECE()]


@pytest.mark.parametrize("metric", LIMITS, ids=repr)
def test_the_fast_null_is_that_of_redrawn_labels(metric: Any) -> None:
    data = model(0.7, rows=400)
    generator = torch.Generator().manual_seed(0)
    slow = np.array([metric(redraw(data, generator=generator)) for _ in range(400)])
    fast = null_band(metric, data, draws=2000, seed=1)
    assert fast.estimate == pytest.approx(slow.mean(), abs=0.01 * slow.mean() + 4 * slow.std() / 20)
    # of 400 draws between 2 and 22 lie beyond a limit that is right (2.5 %)
    assert (slow > fast.high).sum() <= 22
    assert (slow >= fast.high).sum() >= 2
    assert (slow < fast.low).sum() <= 22


def test_p_value_and_interval_of_a_skewed_mean_agree() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = -torch.log(torch.rand(40, generator=generator, dtype=torch.float64)) - 0.7
    found = paired_test(rows)
    for end in (found.low, found.high):
        assert paired_test(rows - end).p_value == pytest.approx(0.05, abs=1e-9)


def test_a_limit_is_no_more_than_is_possible() -> None:
    two = Pairs.from_probs([0.5, 0.5], [0, 1])
    assert null_band(ECE(), two).high <= 0.5
    assert null_band(ECE(), Pairs.from_probs([0.9], [1])).high <= 0.9


def test_a_lower_bound_has_no_upper_end() -> None:
    found = [interval(CanonicalError(norm=norm), model(0.5, rows=400)) for norm in (1, 2)]
    assert [one.high for one in found] == [2, 2**0.5]
    assert 0 < found[0].low < found[0].estimate
