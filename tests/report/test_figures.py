"""Composed figures show the numbers they are given, and leave nothing behind."""

import dataclasses
import html
import re
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from tests.colours import SIMULATED, apart

import calibrant
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


def style_sheet() -> list[dict[str, str]]:
    """Return the colours of the page by role: light, dark and in print."""
    text = (Path(calibrant.__file__).parent / "report/templates/report.css").read_text()
    sheets = [dict(re.findall(r"--(\w+): (#\w+);", part)) for part in re.findall(r":root \{(.*?)\}", text, re.DOTALL)]
    return [{role: re.sub(r"^#(.)(.)(.)$", r"#\1\1\2\2\3\3", colour) for role, colour in one.items()} for one in sheets]


def contrast(one: str, other: str) -> float:
    """Return the ratio of luminances (WCAG 2.2), in [1, 21]."""

    def luminance(colour: str) -> float:
        c = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
        return float(np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722])

    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("place", [0, 1, 2], ids=["light", "dark", "print"])
def test_text_and_marks_stand_out_from_what_is_below_them(place: int) -> None:
    colours = style_sheet()[place]
    assert set(colours) == {*(field.name for field in dataclasses.fields(LIGHT)), "paper", "raised", "line"}
    for ground in ("paper", "raised"):
        for text in ("ink", "faint", "good", "bad"):  # 4.5: level AA for small text; links are "good"
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for mark in ("good", "bad", "ink"):  # 3: for what a picture says; dots lie on the grey of what is expected
        assert contrast(colours[mark], colours["band"]) >= 3, mark


@pytest.mark.parametrize("kind", SIMULATED)
def test_before_and_after_differ_on_every_page_for_the_colour_blind(kind: str) -> None:
    for colours in style_sheet():
        assert apart(colours["bad"], colours["good"], SIMULATED[kind]) > 25
