"""Composed figures show the numbers they are given, and leave nothing behind."""

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch

from calibrant import BinaryPairs, Decisions
from calibrant.binning import EqualWidth
from calibrant.plot import diagram_of
from calibrant.plot.diagrams import Diagram
from calibrant.plot.risk import risk_curve
from calibrant.plot.style import LIGHT
from calibrant.report import Model
from calibrant.report.figures import before_after_figure, figures_of, inline_svg, reliability_figure, risk_figure
from calibrant.report.section import diagnose

PAIRS = BinaryPairs.from_probs([0.9] * 10 + [0.5] * 4, [1] * 6 + [0] * 4 + [1, 1, 0, 0])


@pytest.fixture
def diagram() -> Diagram:
    return diagram_of(PAIRS)


def test_the_histogram_sums_to_all_rows(diagram: Diagram) -> None:
    _, below = reliability_figure(diagram, diagram_of(PAIRS, binning=EqualWidth(15))).axes
    assert sum(patch.get_height() for patch in below.patches) == pytest.approx(1)


def test_before_and_after_have_one_scale(diagram: Diagram) -> None:
    one, other = before_after_figure(diagram, diagram_of(BinaryPairs.from_probs([0.2], [0]))).axes
    assert one.get_xlim() == other.get_xlim() == one.get_ylim()


def test_drawing_leaves_no_global_trace(diagram: Diagram) -> None:
    before = dict(matplotlib.rcParams)
    for figure in (reliability_figure(diagram, diagram), before_after_figure(diagram, diagram)):
        inline_svg(figure, prefix="x")
    assert dict(matplotlib.rcParams) == before
    assert plt.get_fignums() == []


def test_an_svg_takes_the_colours_of_the_page_and_names_of_its_own() -> None:
    pairs = Decisions(PAIRS.p, PAIRS.y, decision=torch.zeros(14, dtype=torch.int64), labels=1 - PAIRS.y)
    drawn = figures_of(diagnose(Model("m", pairs, pairs, "the same"), draws=2), prefix="p")
    assert set(drawn) == {"first", "risk"}
    before, after = (picture.svg for picture in drawn["first"])
    for svg in (before, after, drawn["risk"]):
        assert "var(--ink)" in svg
        assert "#0102" not in svg
        assert LIGHT.good not in svg
    assert 'id="pb-0"' in before
    assert 'id="pa-0"' in after
    assert "<title>10 rows: mean confidence 90.00 %, accuracy 60.00 %" in before


def test_risk_curves_are_told_apart_by_line_and_colour() -> None:
    curve = risk_curve(BinaryPairs.from_probs([0.9, 0.8], [1, 0]))
    (ax,) = risk_figure([("before", curve), ("after", curve)]).axes
    assert len({(line.get_color(), line.get_linestyle()) for line in ax.lines}) == 2
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["before", "after"]
