"""Composed figures show the numbers they are given, and leave nothing behind."""

import dataclasses
import html
import re

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch

from calibrant import Pairs
from calibrant.binning import EqualWidth
from calibrant.plot.diagrams import Diagram, diagram_of
from calibrant.plot.style import LIGHT
from calibrant.report import Model
from calibrant.report.figures import confidence_pictures, inline_svg, panel_pictures, reliability_figure
from calibrant.report.finding import diagnose

PAIRS = Pairs.from_probs([0.9] * 10 + [0.5] * 4, [1] * 6 + [0] * 4 + [1, 1, 0, 0])


@pytest.fixture
def diagram() -> Diagram:
    return diagram_of(PAIRS)


@pytest.mark.parametrize(
    ("mean", "rate"),
    [
        (0.67, 0.5),
        (0.9, 0.99),
    ],
)
def test_no_line_of_the_histogram_crosses_its_words(diagram: Diagram, mean: float, rate: float) -> None:
    named = dataclasses.replace(diagram, confidence=mean, accuracy=rate)
    figure = reliability_figure(diagram, named)
    below = figure.axes[1]
    figure.canvas.draw()
    boxes = [words.get_window_extent() for words in below.texts]
    for at in (mean, rate):
        x = below.transData.transform((at, 0))[0]
        assert all(not box.x0 < x < box.x1 for box in boxes)


def test_the_histogram_sums_to_all_rows(diagram: Diagram) -> None:
    _, below = reliability_figure(diagram, diagram_of(PAIRS, binning=EqualWidth(15))).axes
    assert sum(patch.get_height() for patch in below.patches) == pytest.approx(1)


def test_drawing_leaves_no_global_trace(diagram: Diagram) -> None:
    before = dict(matplotlib.rcParams)
    inline_svg(reliability_figure(diagram, diagram), prefix="x")
    assert dict(matplotlib.rcParams) == before
    assert plt.get_fignums() == []


def test_an_svg_takes_the_colours_of_the_page_and_names_of_its_own() -> None:
    pairs = Pairs(PAIRS.p, PAIRS.y, decision=torch.zeros(14, dtype=torch.int64), labels=1 - PAIRS.y)
    found = diagnose(Model("m", pairs, pairs, "the same"), draws=2)
    before, after = (picture.svg for picture in confidence_pictures(found, prefix="p"))
    for svg in (before, after, panel_pictures([("", found.states[0].diagram)], prefix="p")[0].svg):
        assert "var(--ink)" in svg
        assert "#0102" not in svg
        assert LIGHT.good not in svg
    assert 'id="pb-0"' in before
    assert 'id="pa-0"' in after
    assert "<title>10 rows: mean confidence 90.00 %, accuracy 60.00 %" in before


def test_names_of_classes_are_written_as_they_are(diagram: Diagram) -> None:
    name = 'v1.23456 id="a" font-family: x; url(#b) rotate(-0 1) <b> #010203'
    figure = reliability_figure(diagram, diagram)
    figure.axes[0].set(xlabel=name, ylabel="a\x07b")
    svg = inline_svg(figure, prefix="x")
    assert f">{html.escape(name, quote=False)}</text>" in svg
    assert ">a\ufffdb</text>" in svg
    assert set(re.findall(r'<[^>]* id="([^"]*)"', svg)) == set(re.findall(r'(?:href="#|url\(#)(x[^")]*)', svg))
