"""Figures of studies, as files and as images of a report."""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from calibrant._files import check_folder
from calibrant.plot.diagrams import diagram_of
from calibrant.plot.drawing import draw_diagram
from calibrant.plot.style import COLOURS, DASHES, LIGHT, MARKERS, finish, new_figure
from calibrant.report.figures import data_address
from calibrant.report.theory_figures import svg_of, write_figure
from calibrant.study.figures import Bars, Drawing, Line, Panel, Plot, Reliability

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (3.5, 2.9)  # inches of a panel
Width: TypeAlias = Literal["column", "page"] | None
# inches across, and the most panels beside each other, of a column and a page of two columns (IEEE; others are within 4 %)
PUBLISHED = {"column": (3.5, 1), "page": (7.16, 3)}
SHADES = ("#0b3c66", "#3f8fd0", "#b9d7f0", "#c2410c")  # early, later, last; orange for never
BAND = 0.15  # opacity
LETTERS = 11  # characters of a heading per inch


def draw_study_panel(panel: Panel, ax: "Axes") -> "Figure":
    """Draw one panel of a study's figure.

    Args:
        panel: From ``study.figures.drawings``.
        ax: Where to draw.

    Returns:
        The figure of ``ax``.

    Examples:
        >>> from calibrant.study.figures import Line, Plot
        >>> from matplotlib.figure import Figure
        >>> lines = (Line("Cross-entropy", (1.0, 2.0), (0.4, 0.3)),)
        >>> figure = draw_study_panel(Plot("test data", "epoch", "log-loss", lines), Figure().add_subplot())
        >>> figure.axes[0].get_ylabel()
        'log-loss'
    """
    if isinstance(panel, Reliability):
        draw_diagram(diagram_of(panel.predictions), ax, start=0.0)
    elif isinstance(panel, Bars):
        _draw_bars(panel, ax)
        finish(ax, LIGHT)
    else:
        _draw_plot(panel, ax)
        finish(ax, LIGHT)
    ax.set_title(panel.title, fontsize=9.5, color=LIGHT.ink)
    return cast("Figure", ax.figure)


def study_figure(drawing: Drawing, *, width: Width = None) -> "Figure":
    """Return a new figure with all panels of ``drawing``, with one legend below if all panels share it.

    Args:
        drawing: From ``study.figures.drawings``.
        width: As wide as a journal's column or page, without the heading, which the caption replaces; None is for a screen.
    """
    columns = drawing.columns if width is None else min(len(drawing.panels), PUBLISHED[width][1])
    across = SIZE[0] * columns if width is None else PUBLISHED[width][0]
    rows = math.ceil(len(drawing.panels) / columns)
    # half an inch for the heading or the legend and .15 for each row's titles; a single panel of a page is no taller than two
    height = min(across / columns, SIZE[0]) * SIZE[1] / SIZE[0] + 0.15
    figure = new_figure(width=across, height=height * rows + 0.5)
    if width is None:
        figure.suptitle(textwrap.fill(drawing.title, round(LETTERS * across)), fontsize=11, color=LIGHT.ink)
    axes = [figure.add_subplot(rows, columns, place + 1) for place in range(len(drawing.panels))]
    for panel, ax in zip(drawing.panels, axes, strict=True):
        draw_study_panel(panel, ax)
    _legends(axes, figure)
    return figure


def write_study_figures(drawn: Sequence[Drawing], folder: Path, *, width: Width = None) -> list[Path]:
    """Write each figure as SVG and PNG, or for publication as SVG and PDF, with reproducible bytes.

    Args:
        drawn: From ``study.figures.drawings``.
        folder: Made if it does not exist.
        width: As of ``study_figure``.

    Returns:
        The files.
    """
    place = check_folder(folder)
    place.mkdir(parents=True, exist_ok=True)
    figures = [(study_figure(x, width=width), place / x.name) for x in drawn]
    return [path for figure, stem in figures for path in write_figure(figure, stem, dpi=140, vector=width is not None)]


def study_pictures(drawn: Sequence[Drawing]) -> list[tuple[str, str]]:
    """Return (caption, SVG as a data address) of each figure, for a report in one file.

    Args:
        drawn: From ``study.figures.drawings``.
    """
    return [(drawing.caption, data_address(svg_of(study_figure(drawing)))) for drawing in drawn]


def _draw_plot(plot: Plot, ax: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    scale = 100 if plot.percent else 1
    if plot.diagonal:
        ax.plot([0, 100], [0, 100], color=LIGHT.faint, linewidth=0.8, linestyle=(0, (2, 3)))
    if not plot.percent and any(word in plot.y_label for word in ("T", "γ")) and plot.lines:
        _level(plot, ax)
    for place, line in enumerate(plot.lines):
        _draw_line(line, place, ax, scale=scale, marked=plot.marked)
    ax.set(xlabel=plot.x_label, ylabel=plot.y_label)
    if all(float(x).is_integer() for line in plot.lines for x in line.x):  # epochs, seeds
        ax.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True))
    if plot.ticks:
        ax.set_xticks([place for place, _ in plot.ticks], labels=[text for _, text in plot.ticks])
    # from 0, so that differences are not magnified by the axis; NaN is a training that failed
    values = [scale * y for line in plot.lines for y in (*line.y, *line.high) if not math.isnan(y)]
    if values and min(values) >= 0 and max(values) > 0:
        ax.set_ylim(0, 1.05 * max(values))


def _level(plot: Plot, ax: "Axes") -> None:
    """Draw a horizontal line at T = 1 (no change), or at γ = 0 (cross-entropy)."""
    level = 1.0 if "T" in plot.y_label else 0.0
    ax.axhline(level, color=LIGHT.faint, linewidth=0.8, linestyle=(0, (2, 3)))


def _draw_line(line: Line, place: int, ax: "Axes", *, scale: float, marked: bool) -> None:
    colour = COLOURS[place % len(COLOURS)]
    dash = DASHES[(place + place // len(COLOURS)) % len(DASHES)]  # consecutive lines differ in more than hue
    marker = MARKERS[place % len(MARKERS)] if marked or len(line.x) == 1 else None
    if line.low:
        low, high = ([scale * value for value in ends] for ends in (line.low, line.high))
        ax.fill_between(line.x, low, high, color=colour, alpha=BAND, linewidth=0)
    y = [scale * value for value in line.y]
    ax.plot(
        line.x, y, color=colour, linestyle=dash, linewidth=1.5, marker=marker, markersize=3, label=line.label or "_"
    )


def _draw_bars(bars: Bars, ax: "Axes") -> None:
    below = [0.0] * (len(bars.edges) - 1)
    widths = [high - low for low, high in zip(bars.edges, bars.edges[1:], strict=False)]
    for (label, heights), colour in zip(bars.groups, SHADES, strict=False):
        ax.bar(bars.edges[:-1], heights, widths, bottom=below, align="edge", color=colour, label=label, linewidth=0)
        # stacked: each group stands on those before
        below = [a + b for a, b in zip(below, heights, strict=True)]
    ax.set(xlabel=bars.x_label, ylabel=bars.y_label)


def _legends(axes: Sequence["Axes"], figure: "Figure") -> None:
    """Add one legend below the panels if all have the same entries, else one to each panel."""
    entries = [tuple(ax.get_legend_handles_labels()[1]) for ax in axes]
    # panels that show fewer lines show the first of them
    common = max(entries, key=len, default=())
    if not common:
        return
    if len(axes) > 1 and all(set(found) <= set(common) and found == common[: len(found)] for found in entries if found):
        handles, labels = axes[entries.index(common)].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), **LEGEND)  # type: ignore[arg-type]
        return
    for ax, found in zip(axes, entries, strict=True):
        if found:
            # below, where no line is
            ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, **LEGEND)  # type: ignore[arg-type]


LEGEND = {"frameon": False, "fontsize": 8, "labelcolor": LIGHT.ink, "handlelength": 2.2, "labelspacing": 0.35}
