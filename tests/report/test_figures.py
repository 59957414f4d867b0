"""Composed figures show the numbers they are given, and leave nothing behind."""

import html
import re

import pytest
from tests.conftest import late

from calibrant import Pairs
from calibrant.binning import EqualWidth
from calibrant.plot.diagrams import diagram_of
from calibrant.plot.drawing import draw_histogram
from calibrant.plot.style import LIGHT
from calibrant.report import Model
from calibrant.report.figures import inline_svg, panel_picture, state_picture
from calibrant.report.state import State, state_of

matplotlib, plt, figures = late("matplotlib"), late("matplotlib.pyplot"), late("matplotlib.figure")

PAIRS = Pairs.from_top_label([0.9] * 10 + [0.5] * 4, [1] * 14, [1] * 6 + [0] * 4 + [1, 1, 0, 0])


@pytest.fixture
def state() -> State:
    return state_of(Model("m", PAIRS), PAIRS, draws=2)


def test_the_histogram_holds_all_rows_and_its_words_stand_above_it() -> None:
    ax = draw_histogram(diagram_of(PAIRS, binning=EqualWidth(15)), figures.Figure().add_subplot()).axes[0]
    assert sum(patch.get_height() for patch in ax.patches) == pytest.approx(1)
    assert [words.get_text() for words in ax.texts] == ["mean 78.6 %", "accuracy 57.1 %"]
    assert all(words.get_position()[1] > 1 for words in ax.texts)


def test_an_svg_takes_the_colours_of_the_page_and_names_of_its_own(state: State) -> None:
    before = dict(matplotlib.rcParams)
    pictures = [state_picture(state, "Before", subject="", start=0.0), panel_picture("", state.diagram)]
    for number, picture in enumerate(pictures):
        svg = inline_svg(picture, prefix=f"p{number}")
        assert "var(--ink)" in svg
        assert "#0102" not in svg
        assert LIGHT.good not in svg
        assert f'id="p{number}-0"' in svg
        assert "<title>10 rows: mean confidence 90.00 %, accuracy 60.00 %" in svg
    assert dict(matplotlib.rcParams) == before
    assert plt.get_fignums() == []


def test_names_of_classes_are_written_as_they_are(state: State) -> None:
    name = 'v1.23456 id="a" font-family: x; url(#b) rotate(-0 1) <b> #010203'
    picture = panel_picture("", state.diagram)
    picture.figure.axes[0].set(xlabel=name, ylabel="a\x07b")
    svg = inline_svg(picture, prefix="x")
    assert f">{html.escape(name, quote=False)}</text>" in svg
    assert ">a\ufffdb</text>" in svg
    assert set(re.findall(r'<[^>]* id="([^"]*)"', svg)) == set(re.findall(r'(?:href="#|url\(#)(x[^")]*)', svg))
