"""The numbers behind the pictures, against hand values and independent computation."""

import numpy as np
import pytest
import torch
from tests.conftest import late
from tests.draws import drawn

from calibrant import Pairs, Predictions
from calibrant.binning import EqualMass, EqualWidth
from calibrant.metrics import ECE, Accuracy
from calibrant.plot import reliability
from calibrant.plot.diagrams import diagram_of, isotonic_diagram
from calibrant.plot.pictures import class_errors
from calibrant.statistics import null_band

isotonic = late("sklearn.isotonic")


def random_predictions() -> Predictions:
    return Predictions.from_logits(*drawn(500, 4, spread=2, sharp=1))


def test_tied_confidences_empty_bins_and_lose_no_edge() -> None:
    diagram = diagram_of(Pairs.from_probs([0.6] * 50 + [0.9] * 50, [1, 0] * 50))
    assert [(b.low, b.high, b.count) for b in diagram.bins] == [(0.0, 0.6, 50), (0.6, 1.0, 50)]


@pytest.mark.parametrize("rows", [7, 400])
def test_the_isotonic_curve_is_that_of_scikit_learn(rows: int) -> None:
    rng = np.random.default_rng(rows)
    p = rng.uniform(0, 1, rows).round(2)
    y = (rng.random(rows) < p**2).astype(int)
    diagram = isotonic_diagram(Pairs.from_probs(p, y), draws=20)
    theirs = isotonic.IsotonicRegression(y_min=0, y_max=1).fit(p, y).predict(diagram.p)
    assert diagram.recalibrated == pytest.approx(theirs.tolist())
    brier = float(np.mean((p - y) ** 2))
    assert diagram.miscalibration - diagram.discrimination + diagram.uncertainty == pytest.approx(brier)


def test_the_isotonic_band_holds_the_curves_of_calibrated_models() -> None:
    rng, inside = np.random.default_rng(0), []
    for seed in range(40):
        p = rng.uniform(0, 1, 300)
        diagram = isotonic_diagram(Pairs.from_probs(p, (rng.random(300) < p).astype(int)), draws=100, seed=seed)
        at = np.interp(diagram.band_p, diagram.p, diagram.recalibrated)
        inside.append(np.mean((at >= np.array(diagram.band_low) - 1e-9) & (at <= np.array(diagram.band_high) + 1e-9)))
    assert 0.92 < np.mean(inside) < 0.98  # curves are correlated along p: about 0.01 of standard error


def test_two_classes_show_the_event() -> None:
    data = Predictions.from_binary_probs([0.1, 0.4, 0.8, 0.9], [0, 1, 0, 1])
    assert isotonic_diagram(data).recalibrated == pytest.approx([0.0, 0.5, 0.5, 1.0])


def test_class_errors_are_those_of_each_class_against_the_rest() -> None:
    data = random_predictions()
    found = class_errors(data, class_names=list("abcd"))
    assert [one.ece for one in found] == sorted((one.ece for one in found), reverse=True)
    for one in found:
        k = "abcd".index(one.name)
        assert one.n == int((data.labels == k).sum())
        assert one.frequency == pytest.approx(one.n / 500)
        assert one.probability == pytest.approx(float(data.probs[:, k].double().mean()))
        assert one.ece == pytest.approx(ECE()(data.one_vs_rest(k)))
        assert one.limit == null_band(ECE(), data.one_vs_rest(k)).high


def test_a_reliability_diagram_shows_rows_by_their_weights() -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(500, 3, generator=generator) * 2
    y = torch.multinomial((z * 0.7).softmax(dim=1), 1, generator=generator)[:, 0]
    times = torch.randint(0, 4, (500,), generator=generator)
    repeated = diagram_of(Predictions.from_logits(z, y)[torch.repeat_interleave(torch.arange(500), times)])
    weighted = diagram_of(Predictions.from_logits(z, y, weights=times * 0.3))
    assert weighted.n == round(float(times.sum() ** 2 / times.square().sum()))
    assert weighted.accuracy == pytest.approx(repeated.accuracy, rel=1e-12)
    widths = [sum(b.expect_high - b.expect_low for b in d.bins) for d in (weighted, repeated)]
    assert widths[0] > widths[1]  # fewer rows of equal weight


def test_weights_are_those_of_repeated_rows_and_their_scale_is_nothing() -> None:
    p, y, times = [0.2, 0.7, 0.9] * 40, [0, 1, 1, 1, 0, 1] * 20, [1, 3, 2] * 40
    again = [k for k, n in enumerate(times) for _ in range(n)]
    counts = isotonic_diagram(Pairs.from_probs([p[k] for k in again], [y[k] for k in again]))
    kinds = [Pairs.from_probs(p, y, weights=[scale * one for one in times]) for scale in (1.0, 0.5)]
    one, other = (reliability(pairs).numbers for pairs in kinds)
    assert one == other
    assert one.recalibrated == pytest.approx(counts.recalibrated)
    assert one.n == round(240**2 / (14 * 40))


def test_a_diagram_by_hand() -> None:
    pairs = Pairs.from_probs([0.9] * 10 + [0.5] * 4, [1] * 6 + [0] * 4 + [1, 1, 0, 0])
    diagram = diagram_of(pairs, binning=EqualWidth(10))
    (low, high) = diagram.bins
    assert (low.low, low.high, low.count, low.confidence, low.accuracy) == (0.4, 0.5, 4, 0.5, 0.5)
    assert (high.count, high.accuracy) == (10, 0.6)
    assert high.confidence == pytest.approx(0.9)
    # Binomial(10, 0.9): P(X ≤ 6) = 0.0128 and P(X ≤ 7) = 0.0702, so the 2.5 % quantile is 7
    assert (high.expect_low, high.expect_high) == (0.7, 1.0)
    assert (low.off, high.off) == (False, True)
    assert diagram.ece == pytest.approx(10 / 14 * 0.3)
    assert diagram.accuracy == pytest.approx(8 / 14)


def test_a_diagram_agrees_with_the_metrics() -> None:
    data = random_predictions()
    diagram = diagram_of(data)
    assert diagram.ece == pytest.approx(ECE(EqualMass())(data))
    assert diagram_of(data, binning=EqualWidth()).ece == ECE()(data)
    assert diagram.accuracy == pytest.approx(Accuracy()(data))
    assert sum(b.count for b in diagram.bins) == diagram.n == len(data)


def test_consistency_bars_hold_what_they_promise() -> None:
    """Of bins of a calibrated model about 95 % are inside; the discrete binomial makes it a little more, never less."""
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(150):
        p = rng.uniform(0.3, 1, 400)
        inside += [not b.off for b in diagram_of(Pairs.from_probs(p, (rng.random(400) < p).astype(int))).bins]
    assert 0.945 < np.mean(inside) < 0.99  # 2,250 bins: standard error 0.005


def test_probabilities_of_zero_and_one_have_bars_of_no_length() -> None:
    diagram = diagram_of(Pairs.from_probs([0.0, 1.0, 1.0], [0, 1, 1]))
    assert [(b.expect_low, b.expect_high) for b in diagram.bins] == [(0, 0), (1, 1)]
    assert not any(b.off for b in diagram.bins)
