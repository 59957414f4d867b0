"""The theory's figures: their numbers agree with what they are said to show, and they are drawn complete."""

import functools
import math
from pathlib import Path

import pytest
import torch

from calibrant.study.draw import figure_of
from calibrant.study.panels import Arrows, Plot
from calibrant.study.theory import FIGURES
from calibrant.theory import temperature_bounds

FITS = {"binary-fit", "three-classes", "four-classes"}  # some seconds each


numbers_of = functools.cache(lambda name: FIGURES[name]())  # each is looked at several times


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in FITS else []) for name in FIGURES]
)
def test_every_figure_is_whole_finite_and_drawn_with_its_labels(name: str) -> None:
    numbers = numbers_of(name)
    assert numbers.name == name
    assert all(map(math.isfinite, numbers.facts.values()))
    axes = [ax for ax in figure_of(numbers).axes if ax.get_title()]
    assert [ax.get_title() for ax in axes] == [panel.title for panel in numbers.panels]
    for ax, panel in zip(axes, numbers.panels, strict=True):
        if isinstance(panel, Plot):
            assert (ax.get_xlabel(), ax.get_ylabel()) == (panel.x_label, panel.y_label)
            assert ax.get_legend_handles_labels()[1] == [line.label for line in panel.lines if line.label]
            for curve in panel.lines:
                assert len(curve.x) == len(curve.y) > 1
                assert all(map(math.isfinite, (*curve.x, *curve.y)))
                if " γ + " in curve.label:  # a line from γ = 0 to 10, with its slope and intercept rounded
                    slope, intercept = map(float, curve.label.partition(": ")[2].split(" γ + "))
                    assert curve.y == pytest.approx((intercept, 10 * slope + intercept), abs=0.06)
        elif isinstance(panel, Arrows):
            for rows in (panel.starts, panel.ends):
                assert torch.allclose(rows.sum(dim=1), torch.ones(len(rows), dtype=rows.dtype))
        else:
            assert len(panel.rows) == len(panel.values)
    docs = Path(__file__).parents[2] / "docs"
    assert f"(figures/theory/{name}.svg)" in (docs / "theory.md").read_text()
    assert (docs / "figures" / "theory" / f"{name}.svg").stat().st_size < 120_000


def test_the_bounds_are_in_order() -> None:
    numbers = numbers_of("bounds")
    upper, tight, high, lower, low = numbers.panels[0].lines
    assert tight.x[-1] == pytest.approx(5.6)
    for i, gamma in enumerate(high.x):
        assert lower.y[4 + 5 * i] < low.y[i] < high.y[i] < upper.y[4 + 5 * i]
        if gamma <= tight.x[-1]:
            # the map's slope at the smallest logit measured, 0.01, is that at 0 to 1e-5
            assert high.y[i] == pytest.approx(temperature_bounds(gamma, tight=True).high, rel=1e-5)
    assert numbers.facts["measured_low_gamma_4"] == pytest.approx(0.2033, abs=1e-4)


def test_isolines_enclose_their_share_around_the_true_distribution() -> None:
    numbers, found = numbers_of("isolines"), []
    for panel in numbers.panels:
        found.append(float((panel.rows[panel.values.argmin()] - panel.minimum).abs().max()))
        for percentile, level in panel.levels.items():
            assert float((panel.values <= level).double().mean()) == pytest.approx(percentile / 100, abs=1e-3)
    assert numbers.facts["largest_distance_of_a_minimum_on_the_grid"] == pytest.approx(max(found))
    assert max(found) < 2 / 72
