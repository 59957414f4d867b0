"""The event's section: its figures are those of the rows, and say which side and what to do."""

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.evaluate import calibration_line
from calibrant.metrics import ECE
from calibrant.plot.diagrams import isotonic_diagram
from calibrant.report import Model
from calibrant.report.finding import Finding, diagnose
from calibrant.report.sections import event_section


def churn(rows: int = 3000, *, slope: float = 1.0, shift: float = 0.0, seed: int = 0) -> Predictions:
    """Return predictions whose log-odds are ``slope`` times the true ones, plus ``shift``; a fifth has the event."""
    generator = torch.Generator().manual_seed(seed)
    z = 1.4 * torch.randn(rows, generator=generator, dtype=torch.float64) - 1.2
    y = (torch.rand(rows, generator=generator) < torch.sigmoid(z)).long()
    return Predictions.from_binary_logits(slope * z + shift, y)


def advised(found: Finding) -> dict[str, str]:
    """Return the last word on each statistic, by its first word."""
    return {row[0].split()[0]: row[-1] for row in event_section(found).blocks[0].rows}


def test_figures_are_those_of_the_rows() -> None:
    data = churn(slope=1.8, shift=0.3)
    pairs, found = data.one_vs_rest(1), diagnose(Model("m", data), draws=50).events[-1]
    p, y = pairs.p.numpy(), pairs.y.numpy()
    line = calibration_line(pairs)
    assert (found.slope, found.intercept) == (line.slope, line.intercept)
    assert found.gap.estimate == pytest.approx((p - y).mean())
    half = 1.96 * (p - y).std() / np.sqrt(len(p))
    assert found.gap.high - found.gap.estimate == pytest.approx(half, rel=1e-3)
    assert found.brier == pytest.approx(((p - y) ** 2).mean())
    order = p[y == 1][:, None] - p[y == 0][None]
    assert found.auroc == pytest.approx((order > 0).mean() + (order == 0).mean() / 2)
    assert found.ece.value == ECE()(pairs)
    assert found.isotonic == isotonic_diagram(data)


@pytest.mark.parametrize(
    ("slope", "shift", "said", "todo"),
    [
        (1.8, 0.0, "too extreme (slope 0.5", "Shrink the log-odds"),
        (1.0, 1.0, "too high by 1", "rarer than the model expects"),
        (1.0, 0.0, "too few rows", "Nothing"),
        # the gap's own interval excludes 0 where the ECE does not tell the bins from chance
        (
            1.0,
            0.13,
            "a hint: probabilities of leaves are too high by 1.8",
            "One in twenty calibrated models shows this",
        ),
    ],
)
def test_the_first_screen_says_what_is_wrong_and_what_to_do(slope: float, shift: float, said: str, todo: str) -> None:
    data = churn(2000, slope=slope, shift=shift, seed=3)
    found = diagnose(Model("m", data, class_names=["stays", "leaves"]), draws=50)
    assert said in found.verdicts[0].headline
    assert any(todo in words for words in advised(found).values())
    assert found.facts[0].startswith("The event, leaves, happened in ")


@pytest.mark.parametrize("events", [0, 15])
@pytest.mark.parametrize("low", [False, True])
def test_few_events_have_a_direction_and_no_interval(events: int, low: bool) -> None:
    p = torch.linspace(0.05, 0.25, 800, dtype=torch.float64)
    y = torch.zeros(800, dtype=torch.int64)
    y[torch.linspace(0, 799, events).long()] = 1
    found = diagnose(Model("m", Predictions.from_binary_probs(1 - p if low else p, 1 - y if low else y)), draws=200)
    side = "low" if low else "high"
    assert f"too {side} by {100 * (0.15 - events / 800):.1f} points on average" in found.verdicts[0].headline
    assert found.advice.headline.startswith("Calibrate" if events else "Check the labels: there are no rows with")
    assert (advised(found)["mean"], advised(found)["ECE"]) == ("Label more rows to find out.", "Calibrate.")
    table = event_section(found).blocks[0]
    assert [row[2] for row in table.rows[:3]] == ["", "", ""]
    assert "Gap and slope have no intervals here" in table.note


def test_errors_to_both_sides_have_no_direction() -> None:
    half = (torch.arange(800) % 2).double()
    found = diagnose(Model("m", Predictions.from_binary_probs(0.25 + 0.5 * half, half.long())), draws=50)
    assert "too high in some ranges" in found.events[0].side
