"""The event's section: its figures from sums are those of the rows, in memory and on disk, and say which side and what to do."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import calibrant
from calibrant import BinaryPairs, Predictions
from calibrant.calibrators import TemperatureScaling
from calibrant.evaluate import calibration_line
from calibrant.metrics import ECE
from calibrant.operate import net_benefit
from calibrant.plot.diagrams import isotonic_diagram
from calibrant.report import Model, diagnose_streamed, write_report
from calibrant.report.events import THRESHOLDS, Cells, EventFigures
from calibrant.report.section import Section, diagnose


def churn(rows: int = 3000, *, slope: float = 1.0, shift: float = 0.0, seed: int = 0) -> Predictions:
    """Return predictions whose log-odds are ``slope`` times the true ones, plus ``shift``; a fifth has the event."""
    generator = torch.Generator().manual_seed(seed)
    z = 1.4 * torch.randn(rows, generator=generator, dtype=torch.float64) - 1.2
    y = (torch.rand(rows, generator=generator) < torch.sigmoid(z)).long()
    return Predictions.from_binary_logits(slope * z + shift, y)


def figures(data: Predictions | BinaryPairs) -> EventFigures:
    found = diagnose(Model("m", data), draws=50).event
    return found.last


def test_figures_of_cells_are_those_of_the_rows() -> None:
    data = churn(slope=1.8, shift=0.3)
    pairs, found = data.one_vs_rest(1), figures(data)
    p, y = pairs.p.numpy(), pairs.y.numpy()
    line = calibration_line(pairs)
    for ours, theirs in zip(found.line, (line.slope, line.intercept), strict=True):
        for name in ("estimate", "low", "high"):
            assert getattr(ours, name) == pytest.approx(getattr(theirs, name), abs=2e-3)  # cells are 1/32 wide
    assert found.gap.estimate == pytest.approx((p - y).mean())
    half = 1.96 * (p - y).std() / np.sqrt(len(p))
    assert found.gap.high - found.gap.estimate == pytest.approx(half, rel=1e-3)
    assert found.brier == pytest.approx(((p - y) ** 2).mean(), abs=1e-4)  # likewise
    order = p[y == 1][:, None] - p[y == 0][None]
    assert found.auroc == pytest.approx((order > 0).mean() + (order == 0).mean() / 2, abs=1e-3)
    assert found.ece.value == ECE()(pairs)
    exact = isotonic_diagram(data)
    assert found.isotonic.miscalibration == pytest.approx(exact.miscalibration, abs=5e-4)


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_rates_at_a_threshold_are_counted(threshold: float) -> None:
    data = Predictions.from_binary_probs(torch.arange(1001, dtype=torch.float64) / 1000, [0, 1, 1, 0, 0, 0, 1] * 143)
    at = figures(data).rate_at(threshold)
    p, y = data.probs[:, 1].numpy(), data.need_labels().numpy()
    acted = p >= threshold
    assert at.flagged == pytest.approx(acted.mean())
    assert at.caught == pytest.approx(acted[y == 1].mean())
    assert at.false_alarms == pytest.approx(acted[y == 0].mean())
    assert at.right == pytest.approx(y[acted].mean())
    [theirs] = net_benefit(data, at=[threshold])
    assert (at.benefit, at.always) == (pytest.approx(theirs.model), pytest.approx(theirs.all))


@pytest.mark.parametrize(
    ("slope", "shift", "said", "todo"),
    [
        (1.8, 0.0, "too extreme (slope 0.5", "Shrink the log-odds"),
        (0.5, -0.6, "on average, and too close together (slope 2.", "Stretch the log-odds"),
        (1.0, 1.0, "too high by 1", "rarer than the model expects"),
        (1.0, -1.0, "too low by 13.", "more frequent than the model expects"),
        (1.0, 0.0, "too few rows", "Nothing"),
        # the gap's own interval excludes 0 where the ECE does not tell the bins from chance
        (
            1.0,
            0.13,
            "by the ECE, but a hint: probabilities of leaves are too high by 1.8",
            "may be rarer than the model expects, or that is chance",
        ),
    ],
)
def test_the_first_screen_says_what_is_wrong_and_what_to_do(slope: float, shift: float, said: str, todo: str) -> None:
    data = churn(2000, slope=slope, shift=shift, seed=3)
    found = diagnose(Model("m", data, class_names=["stays", "leaves"]), draws=50)
    assert said in found.verdicts[0].headline
    assert any(todo in row[-1] for row in found.event.statistics.rows)
    assert re.fullmatch(
        r"The event, leaves, happened in [\d,]+ \([\d.]+ %\) of 2,000 rows. Its mean .*", found.words[0]
    )


def test_few_events_have_no_interval_and_say_so() -> None:
    data = churn(60, seed=1)
    found = diagnose(Model("m", data), draws=20).event
    assert [row[2] for row in found.statistics.rows[:3]] == ["", "", ""]
    assert "Gap and slope have no interval here" in found.statistics.note


@pytest.mark.parametrize("events", [0, 15])
@pytest.mark.parametrize("low", [False, True])
def test_few_events_have_a_direction(events: int, low: bool) -> None:
    p = torch.linspace(0.05, 0.25, 800, dtype=torch.float64)
    y = torch.zeros(800, dtype=torch.int64)
    y[torch.linspace(0, 799, events).long()] = 1
    found = diagnose(Model("m", Predictions.from_binary_probs(1 - p if low else p, 1 - y if low else y)), draws=200)
    side = "low" if low else "high"
    assert f"too {side} by {100 * (0.15 - events / 800):.1f} points on average" in found.verdicts[0].headline
    assert found.advice.headline.startswith("Calibrate" if events else "Check the labels")
    advised = {row[0].split()[0]: row[-1] for row in found.event.statistics.rows}
    assert advised["calibration"].startswith(f"Probabilities are too {side}: do what the ECE says")
    assert advised["ECE"] == "Calibrate."


def test_errors_to_both_sides_have_no_direction() -> None:
    half = (torch.arange(800) % 2).double()
    mixed = figures(Predictions.from_binary_probs(0.1 + 0.8 * half, half.long()))
    assert "too high in some ranges and too low in others" in replace(mixed, independent=False).side


def test_rows_on_disk_give_the_section_of_memory(tmp_path: Path) -> None:
    data = churn(1500, slope=1.5)
    (tmp_path / "data").mkdir()
    for part in range(3):
        calibrant.save_predictions(
            tmp_path / "data" / f"{part}.parquet", {"all": data[torch.arange(500 * part, 500 * (part + 1))]}
        )
    calibrator = TemperatureScaling().fit(churn(500, slope=1.5, seed=9))
    streamed = diagnose_streamed(tmp_path / "data", calibrator=calibrator, draws=100)
    memory = diagnose(Model("data", data, data.calibrated_by(calibrator), calibrator), draws=100)
    for one, other in zip(plain(streamed), plain(memory), strict=True):
        assert one["slope"] == pytest.approx(other["slope"], rel=1e-6)
        assert one["gap"] == pytest.approx(other["gap"], rel=1e-6)
        assert one["ece"]["value"] == pytest.approx(other["ece"]["value"])
        assert one["rates"] == [pytest.approx(rate) for rate in other["rates"]]
    assert streamed.verdicts[0].state == memory.verdicts[0].state
    assert streamed.verdicts[0].headline == memory.verdicts[0].headline


def plain(section: Section) -> list[dict[str, dict[str, float]]]:
    return section.event.plain  # type: ignore[return-value]


def test_probabilities_at_the_edges_of_cells_are_counted() -> None:
    edges = Predictions.from_binary_probs([0.0, 0.2, 0.5, 1.0], [0, 0, 1, 1])
    assert int(Cells().state(edges).count.sum()) == 4
    assert figures(Predictions.from_binary_probs([0.9, 0.1], [0, 1])).rate_at(0.5).right == 0


@pytest.mark.parametrize("outcome", [0, 1])
def test_one_outcome_alone_is_reported(outcome: int, tmp_path: Path) -> None:
    data = Predictions.from_binary_probs(torch.linspace(0.01, 0.99, 50, dtype=torch.float64), [outcome] * 50)
    text = write_report([Model("odd", data)], tmp_path / "r.md", draws=10).read_text()  # drawn: that of kinds.py
    lacking = "rows without it" if outcome else "rows with the event"
    assert f"Check the labels: there are no {lacking}." in text
    assert f"Label {lacking}: there are none." in text
