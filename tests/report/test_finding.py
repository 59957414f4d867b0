"""The numbers behind figures and words, against hand values; and that words say what the figures say."""

import re
from functools import cache

import numpy as np
import pytest
import torch

from calibrant import Pairs, Predictions
from calibrant.binning import EqualMass, EqualWidth
from calibrant.calibrators import TemperatureScaling
from calibrant.evaluate.tables import Row
from calibrant.metrics import ECE, Accuracy
from calibrant.plot.diagrams import Diagram, diagram_of
from calibrant.report.advice import MARGIN, row_of, side_of_confidence, verdict_of
from calibrant.report.finding import Finding, diagnose
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
    many = page_of(found, models=9).sections
    assert not any(isinstance(block, Picture) for section in many for block in section.blocks)
    titles = [section.title for section in page_of(diagnose(Model("m", data.top_label()), draws=0)).sections]
    assert titles == ["", "Bins with the largest errors", "Record"]


@cache
def scaled(factor: float, *, seed: int, rows: int = 3000) -> Predictions:
    """Return predictions ``factor`` times as sharp as the truth."""
    generator = torch.Generator().manual_seed(seed)
    true = torch.randn(rows, 3, generator=generator) * 1.5
    return Predictions.from_logits(true * factor, torch.multinomial(true.softmax(1), 1, generator=generator)[:, 0])


@cache
def section(factor: float, *, seed: int = 1, margin: float = 0.02, rows: int = 3000) -> Finding:
    fit, test = scaled(factor, seed=seed), scaled(factor, seed=seed + 1, rows=rows)
    calibrator = TemperatureScaling().fit(fit.logits, fit.labels)
    return diagnose(Model("m", test, test.calibrated_by(calibrator), calibrator), draws=100, margin=margin)


@pytest.mark.parametrize(("factor", "side"), [(3.0, "Over-confident by"), (0.3, "Under-confident by")])
def test_the_verdict_names_side_size_and_certainty(factor: float, side: str) -> None:
    found = section(factor)
    before, after = found.verdicts
    assert before.state == "large"
    assert before.headline.startswith(side)
    assert before.headline.endswith(": significant and large")
    assert found.ece[0].shown(found.ece[0].value) in before.detail
    assert "above the margin of 2 points" in before.detail
    assert after.state in ("calibrated", "unclear", "small")
    assert found.advice.headline.startswith("Calibrate with TemperatureScaling(")
    assert [purpose for purpose, _ in found.advice.commands] == ["fit", "ship", "check"]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("wrong", [0, 1])
def test_a_model_with_hardly_an_error_is_advised_on_a_class_and_not_a_repr(whole: bool, wrong: int) -> None:
    labels = torch.arange(400) % 3
    logits = 9.0 * torch.nn.functional.one_hot(labels, 3).double()
    labels[:wrong] = 2
    data = Predictions.from_logits(logits, labels)
    fitted = TemperatureScaling().fit(scaled(2.0, seed=0).logits, scaled(2.0, seed=0).labels)
    named = "AutoCalibrator(keep=None, folds=5, uses 1.00 Identity)" if whole else fitted
    found = diagnose(Model("m", data, data.calibrated_by(fitted), named), draws=20)
    advised = "AutoCalibrator" if whole else "TemperatureScaling"
    opens = (
        f"Collect more labelled rows before deciding on {advised}."
        if wrong
        else "Collect labelled rows on which the model errs"
    )
    assert found.advice.headline.startswith(opens)
    said = " ".join(
        [found.advice.headline, *found.advice.reasons, *found.words, page_of(found).sections[0].blocks[0].title]
    )
    assert "keep=" not in said


def test_a_calibrated_model_with_many_rows_is_left_as_it_is() -> None:
    found = diagnose(Model("m", scaled(1.0, seed=3, rows=40_000)), draws=100)
    assert found.verdicts[0].state == "calibrated"
    assert found.advice.headline == "Its calibration needs no action."
    assert found.advice.commands == []


@pytest.mark.parametrize(
    ("value", "low", "high", "null", "state"),
    [
        (0.05, 0.04, 0.06, 0.01, "large"),
        (0.015, 0.011, 0.019, 0.01, "small"),
        (0.025, 0.015, 0.035, 0.01, "perhaps large"),
        (0.005, 0.0, 0.01, 0.01, "calibrated"),
        (0.02, 0.0, 0.06, 0.03, "unclear"),
        (0.05, None, None, None, "not tested"),
    ],
)
def test_every_state_of_the_verdict(
    value: float, low: float | None, high: float | None, null: float | None, state: str
) -> None:
    row = Row(
        file="f", split="s", calibrator=None, metric=repr(ECE()), value=value, low=low, high=high, null_high=null, n=100,
        label="ECE", percent=True, null_mean=null,
    )  # fmt: skip
    found = verdict_of(row, side_of_confidence(Diagram([], 0.9, 0.9 - value, value, 100), value))
    assert found.state == state
    assert ("too few rows to exclude a large one" in found.headline) is (state == "unclear")
    assert ("were not computed" in found.detail) is (state == "not tested")
    assert found.detail.endswith(".")


def test_a_calibrator_that_does_harm_is_not_recommended() -> None:
    good = scaled(1.0, seed=4)
    found = diagnose(Model("m", good, Predictions.from_logits(good.logits * 3, good.labels), "Sharpen"), draws=50)
    assert found.advice.headline == "Leave the model as it is: Sharpen makes its log-loss worse."
    off = scaled(3.0, seed=1)
    found = diagnose(Model("m", off, Predictions.from_logits(off.logits * 1.1, off.labels), "Sharpen"), draws=50)
    assert found.advice.headline.startswith(
        "Calibrate by another method: Sharpen makes its log-loss worse, and the error"
    )
    assert "AutoCalibrator().fit" in found.advice.commands[0][1]


def test_plain_temperature_is_named_where_it_does_as_well() -> None:
    fit, test = scaled(3.0, seed=1), scaled(3.0, seed=2)
    plain = TemperatureScaling().fit(fit.logits, fit.labels)
    after = test.calibrated_by(plain)
    other = Predictions.from_logits(after.logits * 1.01, after.labels)
    better = diagnose(Model("m", test, other, "Other", reference=after), draws=100)
    assert [gain.against for gain in better.gains] == ["doing nothing", "plain temperature scaling"]
    assert any("use plain temperature scaling (TemperatureScaling())" in reason for reason in better.advice.reasons)
    worse = Predictions.from_logits(after.logits * 2, after.labels)
    assert diagnose(Model("m", test, worse, "Worse", reference=after), draws=100).advice.headline.startswith(
        "Use plain temperature scaling"
    )


def test_a_gain_is_the_paired_difference_of_the_log_losses() -> None:
    found = section(3.0)
    (gain,) = found.gains
    expected = found.model.before.nll.mean() - found.model.after.nll.mean()
    assert gain.difference == pytest.approx(float(expected))
    assert gain.low < gain.difference < gain.high


def test_too_few_rows_say_how_many_would_do() -> None:
    made = diagnose(Model("m", scaled(1.0, seed=4)[:300]), draws=200)
    found, row = made.verdicts[0], row_of(made.states[0].rows, ECE())
    assert found.state == "unclear"
    rows = int(re.search(r"about ([\d,]+) rows", found.detail)[1].replace(",", ""))
    exact = 300 * (row.high / MARGIN) ** 2
    assert exact <= rows <= 1.1 * exact
