"""Figures show the numbers they are given, and leave nothing behind."""

import matplotlib
import matplotlib.pyplot as plt
import pytest

from calibrant import BinaryPairs
from calibrant.report.diagnosis import Diagram, diagram_of, risk_coverage
from calibrant.report.figures import (
    LIGHT,
    before_after_figure,
    confidences,
    new_figure,
    reliability,
    reliability_figure,
    risk_figure,
)
from calibrant.report.vector import inline_svg


@pytest.fixture
def diagram() -> Diagram:
    return diagram_of(BinaryPairs.from_probs([0.9] * 10 + [0.5] * 4, [1] * 6 + [0] * 4 + [1, 1, 0, 0]))


def test_dots_stand_where_the_bins_are_and_tell_off_from_on(diagram: Diagram) -> None:
    ax = new_figure().subplots()
    assert reliability(diagram, ax) is ax.figure
    dots = {line.get_marker(): line.get_xydata().tolist() for line in ax.lines if line.get_marker() in ("o", "D")}
    assert dots["o"] == [[0.5, 0.5]]
    assert dots["D"] == [[pytest.approx(0.9), 0.6]]


def test_the_histogram_sums_to_all_rows(diagram: Diagram) -> None:
    ax = new_figure().subplots()
    confidences(diagram, ax)
    assert sum(patch.get_height() for patch in ax.patches) == pytest.approx(1)


def test_drawing_leaves_no_global_trace(diagram: Diagram) -> None:
    before = dict(matplotlib.rcParams)
    for figure in (reliability_figure(diagram), before_after_figure(diagram, diagram)):
        inline_svg(figure, prefix="x")
    assert dict(matplotlib.rcParams) == before
    assert plt.get_fignums() == []


def test_an_svg_takes_the_colours_of_the_page_and_names_of_its_own(diagram: Diagram) -> None:
    from calibrant.report.vector import figures_of

    class One:
        diagrams = (diagram, diagram)
        panels = {"class": [("a", diagram)], "group": []}  # noqa: RUF012
        curves = (("before", risk_coverage(BinaryPairs.from_probs([0.9, 0.8], [1, 0]))),)

    drawn = figures_of(One(), prefix="p")  # type: ignore[arg-type]
    assert set(drawn) == {"before", "after", "risk", "class-0"}
    for svg in drawn.values():
        assert "var(--ink)" in svg
        assert "#0102" not in svg
        assert LIGHT.good not in svg
    assert 'id="pb-0"' in drawn["before"]
    assert 'id="pa-0"' in drawn["after"]


def test_risk_curves_are_told_apart_by_line_and_colour() -> None:
    curve = risk_coverage(BinaryPairs.from_probs([0.9, 0.8], [1, 0]))
    (ax,) = risk_figure([("before", curve), ("after", curve)]).axes
    assert len({(line.get_color(), line.get_linestyle()) for line in ax.lines}) == 2
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["before", "after"]
