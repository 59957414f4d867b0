"""The numbers behind the figures agree with what they are said to show."""

import functools
import json
import math
import re

import numpy as np
import pytest
import torch

from calibrant._core.figure_numbers import Arrows, Heat, Isolines, Plot
from calibrant.errors import InputError
from calibrant.theory import FIGURES, figure_numbers, fit_temperatures, focal_logit, small_logit_slope
from calibrant.theory.figures import _line_panel

FITS = {"binary-fit", "three-classes", "four-classes"}  # some seconds each


numbers_of = functools.cache(figure_numbers)  # each is looked at twice


def named(name: str):
    return pytest.param(name, marks=[pytest.mark.slow] if name in FITS else [])


@pytest.mark.parametrize("name", [named(name) for name in FIGURES])
def test_every_figure_is_whole_and_finite(name: str) -> None:
    numbers = numbers_of(name)
    assert numbers.name == name
    assert numbers.caption.endswith((".", ")"))
    assert len(numbers.panels) in {1, 2, 3, 4}
    text = json.dumps(numbers.plain(), allow_nan=False)
    assert {panel["kind"] for panel in json.loads(text)["panels"]} <= {"plot", "isolines", "arrows", "heat"}
    for panel in numbers.panels:
        if isinstance(panel, Plot):
            assert all(len(curve.x) == len(curve.y) > 1 for curve in panel.curves)
            for curve in panel.curves:
                if " γ + " in curve.label:  # a line from γ = 0 to 10, with its slope and intercept rounded
                    slope, intercept = map(float, curve.label.partition(": ")[2].split(" γ + "))
                    assert curve.y == pytest.approx((intercept, 10 * slope + intercept), abs=0.06)
        elif isinstance(panel, Arrows):
            assert all(math.isclose(sum(row), 1, abs_tol=1e-12) for row in (*panel.starts, *panel.ends))
        else:
            assert len(panel.rows) == len(panel.values)


def test_the_bounds_are_in_order() -> None:
    numbers = numbers_of("bounds")
    sides = numbers.panels[0]
    upper, tight, high, lower, low = sides.curves
    assert tight.x[-1] == pytest.approx(5.6)
    for i, gamma in enumerate(high.x):
        assert lower.y[4 + 5 * i] < low.y[i] < high.y[i] < upper.y[4 + 5 * i]
        if gamma <= tight.x[-1]:
            # the map's slope at the smallest logit measured, 0.01, is that at 0 to 1e-5
            assert high.y[i] == pytest.approx(1 / small_logit_slope(gamma), rel=1e-5)
    assert numbers.facts["measured_low_gamma_4"] == pytest.approx(0.2033, abs=1e-4)


@pytest.mark.slow
def test_the_logit_panel_is_the_map() -> None:
    panel = numbers_of("binary-fit").panels[1]
    curve = panel.curves[3]
    assert curve.label == "focal map, γ = 3"
    expected = focal_logit(torch.tensor(curve.x, dtype=torch.float64), 3.0).tolist()
    assert list(curve.y) == pytest.approx(expected)


def test_the_lines_of_nearest_temperatures_are_those_of_their_labels() -> None:
    fit = fit_temperatures(2, [0.0, 1.0, 2.0])
    slope, intercept = np.polyfit(fit.gammas, fit.inverse_temperatures, 1)
    points, fitted, printed = _line_panel(fit).curves
    assert (points.x, points.y) == (fit.gammas, fit.inverse_temperatures)
    assert fitted.label == f"fitted here: {slope:.2f} γ + {intercept:.2f}"
    assert list(fitted.y) == pytest.approx([intercept, 10 * slope + intercept])
    slope, intercept = map(float, re.findall(r"[\d.]+", printed.label))
    assert list(printed.y) == pytest.approx([intercept, 10 * slope + intercept], abs=0.06)


def test_minima_on_the_grid_lie_at_the_true_distribution_as_far_as_is_said() -> None:
    numbers, found = numbers_of("isolines"), []
    for panel in numbers.panels:
        assert isinstance(panel, Isolines)
        least = panel.rows[min(range(len(panel.rows)), key=panel.values.__getitem__)]
        found.append(max(abs(one - other) for one, other in zip(least, panel.minimum, strict=True)))
    assert numbers.facts["largest_distance_of_a_minimum_on_the_grid"] == pytest.approx(max(found))
    assert max(found) < 2 / 72


def test_isolines_enclose_their_share() -> None:
    for panel in numbers_of("isolines").panels:
        assert isinstance(panel, Isolines)
        for percentile, level in zip(panel.percentiles, panel.levels, strict=True):
            share = sum(value <= level for value in panel.values) / len(panel.values)
            assert share == pytest.approx(percentile / 100, abs=1e-3)


def test_the_difference_vanishes_where_both_maps_stand_still() -> None:
    for panel in numbers_of("difference").panels:
        assert isinstance(panel, Heat)
        centre = min(range(len(panel.rows)), key=lambda i: max(panel.rows[i]))
        corners = [i for i, row in enumerate(panel.rows) if max(row) == 1]
        assert len(corners) == 3
        assert [panel.values[i] for i in (centre, *corners)] == pytest.approx([0] * 4, abs=1e-12)


def test_no_figure_of_another_name() -> None:
    with pytest.raises(InputError, match="'bounds'"):
        figure_numbers("nothing")
