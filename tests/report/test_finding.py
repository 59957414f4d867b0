"""The numbers behind figures and words, against hand values and independent computation."""

import numpy as np
import pytest
import torch

from calibrant import Pairs, Predictions
from calibrant.binning import EqualMass, EqualWidth
from calibrant.metrics import ECE, Accuracy
from calibrant.plot.diagrams import diagram_of
from calibrant.report.finding import diagnose
from calibrant.report.model import Model, Picture
from calibrant.report.sections import page_of, worst_bins


def random_predictions(*, rows: int = 500, classes: int = 4, seed: int = 0) -> Predictions:
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(rows, classes, generator=generator, dtype=torch.float64) * 2
    return Predictions.from_logits(z, torch.multinomial(z.softmax(1), 1, generator=generator)[:, 0])


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


@pytest.mark.parametrize("seed", range(3))
def test_a_diagram_agrees_with_the_metrics(seed: int) -> None:
    data = random_predictions(seed=seed)
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


def test_classes_are_sorted_by_the_error_after() -> None:
    before = random_predictions()
    after = Predictions.from_logits(before.logits * 3, before.labels)
    parts = diagnose(Model("m", before, after, class_names=["a", "b", "c", "d"]), draws=0).classes
    assert [p.error_after for p in parts] == sorted((p.error_after for p in parts), reverse=True)
    first = next(part for part in parts if part.name == "a")
    assert first.n == int((before.labels == 0).sum())
    assert first.expected == pytest.approx(float(before.log_probs.exp()[:, 0].mean()))
    assert first.observed == pytest.approx(first.n / len(before))


def test_a_class_without_rows_among_sampled_ones_has_none() -> None:
    data, weights = random_predictions(), np.linspace(0.5, 1.5, 500)
    drawn = Predictions.from_logits(data.logits, data.labels.clamp_max(2), weights=weights)
    parts = {part.name: part for part in diagnose(Model("m", drawn), draws=0).classes}
    assert [parts[f"{k}"].n for k in range(4)] == torch.bincount(drawn.labels, minlength=4).tolist()


def test_the_worst_bins_misstate_most_rows() -> None:
    p = [0.95] * 200 + [0.55] * 100 + [0.75] * 100
    y = [1] * 160 + [0] * 40 + [1] * 20 + [0] * 80 + [1] * 75 + [0] * 25
    found = worst_bins(diagram_of(Pairs.from_probs(p, y), binning=EqualWidth()))
    assert [round(b.confidence, 2) for b in found] == [0.55, 0.95]


def test_panels_show_the_worst_after_calibration() -> None:
    data = random_predictions()
    before = Predictions.from_logits(data.logits, data.labels, groups=np.arange(500) // 50)
    after = Predictions.from_logits(data.logits * 2, data.labels, groups=before.groups)
    found = diagnose(Model("m", before, after), draws=0)
    shown = next(section for section in page_of(found).sections if section.title == "Class by class")
    captions = [block.caption for block in shown.blocks if isinstance(block, Picture)]
    assert captions == [f"{part.name}: ECE {100 * part.error_after:.2f} %" for part in found.classes]
    assert any("in 10 groups" in sentence for sentence in found.words)
    titles = [section.title for section in page_of(diagnose(Model("m", data.top_label()), draws=0)).sections]
    assert titles == ["", "Bins with the largest errors", "Record"]
