"""The theory's figures drawn: complete, labelled, inside their frames, and the same bytes each time."""

from pathlib import Path
from typing import Any

import pytest

from calibrant._core.figure_numbers import Curve, Plot
from calibrant.report.theory_figures import page, theory_figure, write_theory
from calibrant.theory import FIGURES, FigureNumbers, figure_numbers

QUICK = ["minimisers", "proper-part", "bounds", "isolines", "arrows", "difference"]


@pytest.fixture(scope="module")
def numbers() -> dict[str, FigureNumbers]:
    return {name: figure_numbers(name) for name in QUICK}


@pytest.fixture(scope="module")
def figures(numbers: dict[str, FigureNumbers]) -> dict[str, Any]:
    return {name: theory_figure(one) for name, one in numbers.items()}


@pytest.mark.parametrize("name", QUICK)
def test_every_panel_is_drawn_and_labelled(
    numbers: dict[str, FigureNumbers], figures: dict[str, Any], name: str
) -> None:
    axes = [ax for ax in figures[name].axes if ax.get_title()]
    assert [ax.get_title() for ax in axes] == [panel.title for panel in numbers[name].panels]
    for ax, panel in zip(axes, numbers[name].panels, strict=True):
        if isinstance(panel, Plot):
            assert (ax.get_xlabel(), ax.get_ylabel()) == (panel.x_label, panel.y_label)
            legend = ax.get_legend()
            assert [text.get_text() for text in legend.get_texts()] == [c.label for c in panel.curves if c.label]


@pytest.mark.parametrize("name", QUICK)
def test_no_text_overlaps_another_or_leaves_the_figure(figures: dict[str, Any], name: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    figure = figures[name]
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    hidden = {
        text for ax in figure.axes if not ax.axison for text in (*ax.xaxis.findobj(Text), *ax.yaxis.findobj(Text))
    }
    texts = [
        text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible() and text not in hidden
    ]
    boxes = [text.get_window_extent(renderer) for text in texts]
    width, height = canvas.get_width_height()
    shown = [(text, box) for text, box in zip(texts, boxes, strict=True) if box.width > 1]  # unused labels are 1 × 1
    drawn = [(text, box) for text, box in shown if box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height]
    ticks = {label for ax in figure.axes for label in (*ax.get_xticklabels(), *ax.get_yticklabels())}
    assert {text for text, _ in shown} - {text for text, _ in drawn} <= ticks  # ticks beyond the axes are not drawn
    for i, (one, a) in enumerate(drawn):
        for other, b in drawn[i + 1 :]:
            assert not a.overlaps(b), f"{one.get_text()!r} and {other.get_text()!r}"


def test_files_are_the_same_each_time(tmp_path: Path, numbers: dict[str, FigureNumbers]) -> None:
    some = [numbers["difference"]]  # holds an image and clip paths, which matplotlib names at random
    first, second = (write_theory(some, tmp_path / name) for name in "ab")
    names = ["difference.svg", "difference.png", "index.md"]
    assert [path.name for path in first] == names
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    svg = first[0].read_text()
    assert svg.startswith("<?xml")
    assert len(svg) < 100_000
    assert "<dc:date>" not in svg
    assert first[1].read_bytes().startswith(b"\x89PNG")


def test_the_page_shows_captions_and_numbers() -> None:
    plot = Plot("t", "x", "y", (Curve("c", (0.0, 1.0), (0.0, 1.0)),))
    text = page([FigureNumbers("name", "Someone, Figure 1", "What it shows.", (plot,), {"slope_at_0": 0.25})])
    assert "## Someone, Figure 1" in text
    assert "(name.svg)" in text
    assert "| slope at 0 | 0.25 |" in text


def test_the_documentation_shows_every_figure() -> None:
    docs = Path(__file__).parents[2] / "docs"
    text = (docs / "theory.md").read_text()
    for name in FIGURES:
        assert f"(figures/theory/{name}.svg)" in text
        assert (docs / "figures" / "theory" / f"{name}.svg").stat().st_size < 120_000
