"""The figures of studies drawn: labelled, with one legend where it serves all panels, the same bytes each time."""

import base64
from pathlib import Path

import pytest
import torch

from calibrant.binning import EqualWidth
from calibrant.study.draw import figure_of, pictures_of, write_figures
from calibrant.study.panels import Bars, Drawing, Line, Plot, Reliability

LINES = (
    Line("Cross-entropy", (1.0, 2.0, 3.0), (0.3, 0.2, 0.1), (0.2, 0.1, 0.05), (0.4, 0.3, 0.2)),
    Line("Focal 3", (1.0, 2.0, 3.0), (0.2, float("nan"), 0.3)),
)
CURVES = Plot("test data", "epoch", "ECE %", LINES, percent=True)
BARS = Bars("Cross-entropy", "largest logit", "samples", (0.0, 1.0, 2.0), {"early": (3.0, 1.0), "late": (0.0, 2.0)})
TABLE = EqualWidth(15).table(torch.tensor([0.85] * 30 + [0.95] * 10), torch.tensor([1.0] * 24 + [0.0] * 6 + [1.0] * 10))


def drawing(*panels: object, columns: int = 2) -> Drawing:
    return Drawing("name", "A title", "What it is.", panels, columns)


def test_panels_are_labelled_and_share_a_legend() -> None:
    figure = figure_of(drawing(CURVES, CURVES))
    assert [ax.get_title() for ax in figure.axes] == ["test data"] * 2
    assert [(ax.get_xlabel(), ax.get_ylabel()) for ax in figure.axes] == [("epoch", "ECE %")] * 2
    assert [ax.get_legend() for ax in figure.axes] == [None, None]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["Cross-entropy", "Focal 3"]
    assert list(figure.axes[0].lines[0].get_ydata()) == pytest.approx([30.0, 20.0, 10.0])
    assert figure.axes[0].collections, "the range over seeds is drawn"
    figure.canvas.draw()
    (caption,) = figure.texts[1:]  # after the heading
    assert caption.get_window_extent().y1 < legend.get_window_extent().y0


def test_bars_are_stacked_from_the_bottom() -> None:
    ax = figure_of(drawing(BARS, columns=1)).axes[0]
    assert [(patch.get_y(), patch.get_height()) for patch in ax.patches] == [(0, 3), (0, 1), (3, 0), (1, 2)]


def test_reliability_bars_are_as_high_as_accuracies_and_darker_where_more_samples_are() -> None:
    bars = figure_of(drawing(Reliability("", TABLE), columns=1)).axes[0].patches
    assert [(round(bar.get_x() * 15), bar.get_height()) for bar in bars] == [(12, pytest.approx(0.8)), (14, 1.0)]
    many, few = (sum(bar.get_facecolor()[:3]) for bar in bars)
    assert many < few


def test_files_are_the_same_each_time_and_go_into_a_report(tmp_path: Path) -> None:
    drawn = [drawing(CURVES, BARS, Reliability("before", TABLE), columns=3)]
    first, second = write_figures(drawn, tmp_path / "a"), write_figures(drawn, tmp_path / "b")
    assert [path.name for path in first] == ["name.svg", "name.png"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    ((caption, address),) = pictures_of(drawn)
    assert caption == "What it is."
    assert base64.b64decode(address.removeprefix("data:image/svg+xml;base64,")) == first[0].read_bytes()
