"""Findings in words say what the figures say."""

import re
from functools import cache

import pytest
import torch

from calibrant import Predictions
from calibrant.calibrators import TemperatureScaling
from calibrant.metrics import ECE
from calibrant.plot.diagrams import Diagram
from calibrant.report.advice import MARGIN, row_of, side_of_confidence, verdict_of
from calibrant.report.finding import Finding, diagnose
from calibrant.report.model import Model
from calibrant.report.sections import page_of
from calibrant.report.tables import Row


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
    assert any("does not fall" in sentence for sentence in found.words)
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
