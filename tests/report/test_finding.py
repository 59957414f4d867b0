"""The numbers behind figures and words, against hand values; and that words say what the figures say."""

import re
from functools import cache
from typing import Any

import pytest
import torch
from tests.draws import drawn

from calibrant import MultiLabel, Predictions
from calibrant.calibrators import MultiLabelCalibrator, TemperatureScaling
from calibrant.evaluate.multilabel import label_terms
from calibrant.evaluate.panel import Row
from calibrant.metrics import ECE
from calibrant.plot.diagrams import Diagram
from calibrant.report.advice import MARGIN, side_of_confidence, verdict_of
from calibrant.report.finding import Finding, diagnose
from calibrant.report.model import Model, Picture
from calibrant.report.sections import classes_section


def test_panels_show_the_worst_after_calibration() -> None:
    data = Predictions.from_logits(*drawn(500))
    found = diagnose(Model("m", data, Predictions.from_logits(data.logits * 2, data.labels)), draws=0)
    shown = [block.caption for block in classes_section(found, panels=6).blocks if isinstance(block, Picture)]
    assert shown == [f"{part.name}: ECE {100 * part.error_after:.2f} %" for part in found.classes]
    assert not any(isinstance(block, Picture) for block in classes_section(found, panels=0).blocks)
    assert classes_section(diagnose(Model("m", data.top_label()), draws=0), panels=6) is None


@cache
def scaled(factor: float, *, seed: int, rows: int = 3000) -> Predictions:
    """Return predictions ``factor`` times as sharp as the truth."""
    return Predictions.from_logits(*drawn(rows, 3, seed=seed, spread=1.5 * factor, sharp=factor))


@cache
def section(factor: float) -> Finding:
    fit, test = scaled(factor, seed=1), scaled(factor, seed=2)
    calibrator = TemperatureScaling().fit(fit.logits, fit.labels)
    return diagnose(Model("m", test, test.calibrated_by(calibrator), calibrator), draws=100)


@pytest.mark.parametrize(("factor", "side"), [(3.0, "Over-confident by"), (0.3, "Under-confident by")])
def test_the_verdict_names_side_size_and_certainty(factor: float, side: str) -> None:
    found = section(factor)
    before, after = found.verdicts[0], found.verdicts[1]
    assert before.state == "large"
    assert before.headline.startswith(side)
    assert before.headline.endswith(": significant and large")
    assert found.states[0].ece.shown(found.states[0].ece.value) in before.detail
    assert "exceeds the margin of 2 points" in before.detail
    assert after.state in ("calibrated", "unclear", "small")
    assert found.advice.headline == "Calibrate with TemperatureScaling."
    assert [purpose for purpose, _ in found.advice.commands] == ["fit", "ship", "check"]


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        (0, "Collect labelled rows on which the model is wrong"),
        (1, "Collect more labelled rows before deciding on Auto."),
    ],
)
def test_a_model_with_hardly_an_error_needs_other_rows(wrong: int, advice: str) -> None:
    labels = torch.arange(400) % 3
    logits = 9.0 * torch.nn.functional.one_hot(labels, 3).double()
    labels[:wrong] = 2
    data = Predictions.from_logits(logits, labels)
    found = diagnose(Model("m", data, Predictions.from_logits(2 * logits, labels), "Auto(keep=None)"), draws=20)
    assert found.advice.headline.startswith(advice)


def test_a_calibrated_model_with_many_rows_is_left_as_it_is() -> None:
    found = diagnose(Model("m", scaled(1.0, seed=3, rows=40_000)), draws=100)
    assert found.verdicts[0].state == "calibrated"
    assert found.advice.headline == "Its calibration needs no action."
    assert found.advice.commands == ()


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
    figures: Any = {"value": value, "low": low, "high": high, "null_high": null, "null_mean": null, "n": 100}
    row = Row(file="f", split="s", calibrator=None, metric=repr(ECE()), label="ECE", percent=True, **figures)
    found = verdict_of(row, side_of_confidence(Diagram([], 0.9, 0.9 - value, value, 100), value))
    assert found.state == state


def test_a_class_that_never_occurs_is_named_by_the_verdict() -> None:
    # the predicted class has probability and frequency .5, and the other two (.4, .1) occur in (.5, 0) of the rows
    labels = torch.arange(400) % 2
    found = diagnose(
        Model("m", Predictions.from_probs(torch.tensor([[0.5, 0.4, 0.1]]).repeat(400, 1), labels)), draws=200
    )
    assert not found.states[0].ece.significant
    assert found.verdicts[0].state == "large"
    said = "Class probabilities are off by 6.7 points on average (ClasswiseECE): significant and large"
    assert found.verdicts[0].headline == said  # (0 + 10 + 10) / 3
    assert found.advice.headline == "Calibrate it on labelled rows other than these."


def test_a_calibrator_that_does_harm_is_not_recommended() -> None:
    good = scaled(1.0, seed=4)
    found = diagnose(Model("m", good, Predictions.from_logits(good.logits * 3, good.labels), "Sharpen"), draws=50)
    assert found.advice.headline == "Leave the model uncalibrated: Sharpen makes its log-loss worse."
    off = scaled(3.0, seed=1)
    found = diagnose(Model("m", off, Predictions.from_logits(off.logits * 1.1, off.labels), "Sharpen"), draws=50)
    assert found.advice.headline.startswith("Calibrate with another method: Sharpen makes its log-loss worse")
    assert "AutoCalibrator().fit" in found.advice.commands[0][1]


def test_a_gain_is_the_paired_difference_of_the_log_losses() -> None:
    found = section(3.0)
    gain = found.gain
    expected = found.model.before.nll.mean() - found.model.after.nll.mean()
    assert gain.difference == pytest.approx(float(expected))
    assert gain.low < gain.difference < gain.high


def test_too_few_rows_say_how_many_would_do() -> None:
    made = diagnose(Model("m", scaled(1.0, seed=4)[:300]), draws=200)
    found, row = made.verdicts[0], made.states[0].ece
    assert found.state == "unclear"
    rows = int(re.search(r"about ([\d,]+) rows", found.detail)[1].replace(",", ""))
    assert rows == pytest.approx(300 * (row.high / MARGIN) ** 2, rel=0.05)  # two digits


def test_several_labels_are_tested_together_and_the_worst_is_shown() -> None:
    generator = torch.Generator().manual_seed(0)
    true = 1.5 * torch.randn(2, 1500, 4, generator=generator, dtype=torch.float64) - 0.5
    labels = (torch.rand(true.shape, generator=generator) < true.sigmoid()).long()
    fit, test = (MultiLabel.from_logits(true[k] + torch.tensor([0, 0, 1.0, 0]), labels[k]) for k in (0, 1))
    calibrator = MultiLabelCalibrator().fit(fit)
    after = test.calibrated_by(calibrator)
    found = diagnose(Model("m", test, after, calibrator, source="a b.npz", split="test"), draws=20)
    gap = float((test.label(2).p - test.label(2).y).mean())
    said = f"Probabilities are too high by {100 * gap:.1f} points for 'label 2': significant"
    assert found.verdicts[0].headline == said
    assert found.events[0].gap.estimate == pytest.approx(gap)
    nll = [label_terms(data)["NLL"].mean() for data in (test, after)]
    assert found.gain.difference == pytest.approx(float(nll[0] - nll[1]))
    assert found.advice.headline == "Calibrate with MultiLabelCalibrator."
    calm = diagnose(Model("m", MultiLabel.from_logits(true[1], labels[1])), draws=20)
    assert calm.verdicts[0].headline == "None of 4 labels is significantly miscalibrated"
    few = diagnose(Model("m", test[:60]), draws=20)
    assert few.verdicts[0].headline == "Too few rows or events to test any label"
