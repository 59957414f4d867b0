"""Draws the figures of studies and of the theory, as files or as images in a report."""

import io
import math
import re
import textwrap
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from torch import Tensor

from calibrant._files import check_folder, write_whole
from calibrant.plot.style import COLOURS, DASHES, LIGHT, MARKERS, finish, new_figure
from calibrant.report.figures import data_address
from calibrant.study.panels import Arrows, Bars, Drawing, Heat, Isolines, Line, Panel, Plot, Reliability

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (3.5, 2.9)  # width and height of a panel in inches
SHADES = ("#0b3c66", "#3f8fd0", "#b9d7f0", "#c2410c")  # learned early, later, last; orange for never
# style of the reference lines that curves are compared with
THIN: dict[str, Any] = {"color": LIGHT.faint, "linewidth": 0.8, "linestyle": (0, (2, 3))}
LEGEND: dict[str, Any] = {
    "frameon": False, "fontsize": 8, "labelcolor": LIGHT.ink, "handlelength": 2.2, "labelspacing": 0.35, "columnspacing": 1.2,
}  # fmt: skip
LEGEND_LINE = 0.16  # inches
BAND = 0.15  # opacity
TIGHT: dict[str, Any] = {"bbox_inches": "tight", "pad_inches": 0.1}
SHORT_LABEL = 16  # labels of at most this many characters are placed in two columns below a panel
LETTERS, CAPTION = 11, 18  # characters per inch of a heading and of a caption
HALF_HEIGHT = math.sqrt(3) / 2  # height of the simplex's triangle


def draw_panel(panel: Panel, ax: "Axes") -> "Figure":
    """Draw one panel.

    Args:
        panel: A panel of a ``Drawing``.
        ax: The axes to draw in.

    Returns:
        The figure of ``ax``.

    Examples:
        >>> from calibrant.study.panels import Line, Plot
        >>> from matplotlib.figure import Figure
        >>> lines = [Line("Cross-entropy", [1.0, 2.0], [0.4, 0.3])]
        >>> figure = draw_panel(Plot("test data", "epoch", "log-loss", lines), Figure().add_subplot())
        >>> figure.axes[0].get_ylabel()
        'log-loss'
    """
    match panel:
        case Plot():
            _draw_plot(panel, ax)
        case Reliability():
            _draw_reliability(panel, ax)
        case Bars():
            _draw_bars(panel, ax)
        case _:
            _draw_simplex(panel, ax)
    if isinstance(panel, Plot | Reliability | Bars):
        finish(ax, LIGHT)
    ax.set_title(panel.title, fontsize=9.5, color=LIGHT.ink)
    return cast("Figure", ax.figure)


def figure_of(drawing: Drawing) -> "Figure":
    """Return a new figure with all panels of ``drawing``, and one legend below them if they share the same entries.

    Args:
        drawing: A result of ``study.figures.drawings`` or of a function in ``study.theory.FIGURES``.

    Returns:
        The figure.
    """
    count = len(drawing.panels)
    columns = drawing.columns or {1: 1, 2: 2, 4: 2}.get(count, 3)
    rows, width = math.ceil(count / columns), SIZE[0] * columns
    # half an inch for the heading or the legend, and .15 for each row's titles
    figure = new_figure(width=width, height=(SIZE[1] + 0.15) * rows + 0.5)
    axes = [figure.add_subplot(rows, columns, place + 1) for place in range(count)]
    for panel, ax in zip(drawing.panels, axes, strict=True):
        draw_panel(panel, ax)
    legend = _legends(axes, figure)
    figure.suptitle(textwrap.fill(drawing.title, round(LETTERS * width)), fontsize=11, color=LIGHT.ink)
    # placed below the canvas, where a tight bounding box includes it and the panels keep their size
    caption = textwrap.fill(drawing.caption, round(CAPTION * width))
    figure.text(0.02, -0.02 - legend / figure.get_figheight(), caption, fontsize=7, color=LIGHT.faint, va="top")
    return figure


def write_figures(drawn: Sequence[Drawing], folder: Path) -> list[Path]:
    """Write each figure as SVG and PNG files with reproducible bytes.

    Args:
        drawn: Results of ``study.figures.drawings`` or of functions in ``study.theory.FIGURES``.
        folder: The folder to write to; it is created if it does not exist.

    Returns:
        The paths of the files.
    """
    place = check_folder(folder)
    place.mkdir(parents=True, exist_ok=True)
    written = []
    for drawing in drawn:
        figure, png = figure_of(drawing), io.BytesIO()
        # in this order, for equal bytes: the first drawing shifts square axes slightly
        svg = svg_of(figure).encode()
        figure.savefig(png, format="png", dpi=140, metadata={"Software": None}, **TIGHT)
        for ending, content in (("svg", svg), ("png", png.getvalue())):
            written.append(place / f"{drawing.name}.{ending}")
            write_whole(written[-1], content)
    return written


def pictures_of(drawn: Sequence[Drawing]) -> list[tuple[str, str]]:
    """Return each figure's caption and its SVG as a data URL, for a report in a single file.

    Args:
        drawn: The result of ``study.figures.drawings``.
    """
    return [(drawing.caption, data_address(svg_of(figure_of(drawing)))) for drawing in drawn]


def svg_of(figure: "Figure") -> str:
    """Return a figure as SVG with reproducible bytes, and with coordinates rounded to a hundredth of a point."""
    import matplotlib as mpl

    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "calibrant"}):  # without a salt, ids are random
        figure.savefig(text, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")), **TIGHT)
    shorter = partial(re.compile(r"(\.\d\d)\d+").sub, r"\1")
    svg = re.sub(r'(?<= )(?:d|x|y)="[^"]*"', lambda match: shorter(match[0]), text.getvalue())
    return re.sub(r"\s*\n\s*", "\n", svg)


def _draw_plot(plot: Plot, ax: "Axes") -> None:
    """Draw the curves of ``plot``, its reference lines and its axes."""
    from matplotlib.ticker import MaxNLocator

    scale = 100 if plot.percent else 1
    if plot.diagonal:
        ax.plot([0, plot.diagonal], [0, plot.diagonal], **THIN)
    if plot.level is not None:
        ax.axhline(plot.level, **THIN)
    for place, line in enumerate(plot.lines):
        _draw_line(line, place, ax, scale=scale, marked=plot.marked)
    ax.set(xlabel=plot.x_label, ylabel=plot.y_label)
    if all(float(x).is_integer() for line in plot.lines for x in line.x):  # epochs, seeds
        ax.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True))
    if plot.ticks:
        ax.set_xticks(list(plot.ticks), labels=list(plot.ticks.values()))
    if plot.log:
        ax.set_yscale("log")
        ax.set_yticks([0.1, 0.2, 0.5, 1.0], labels=["0.1", "0.2", "0.5", "1"])
        ax.minorticks_off()
        return
    # the axis starts at 0, so that it does not magnify differences; NaN is a training run that failed
    values = [scale * float(y) for line in plot.lines for y in (*line.y, *line.high) if not math.isnan(y)]
    if values and min(values) >= 0 and max(values) > 0:
        ax.set_ylim(0, plot.top or 1.05 * max(values))


def _draw_line(line: Line, place: int, ax: "Axes", *, scale: float, marked: bool) -> None:
    """Draw one curve, the one at position ``place`` of its plot, with its band."""
    place = place if line.group is None else line.group
    dash: Any = line.style or DASHES[place // len(COLOURS) % len(DASHES)]
    # a few marks per line, so that consecutive lines differ in more than hue
    every = 1 if marked or line.style == "none" else max(1, len(line.x) // 6)
    colour = COLOURS[place % len(COLOURS)]
    x, y, low, high = (np.asarray(values, dtype=float) for values in (line.x, line.y, line.low, line.high))
    if len(low):
        ax.fill_between(x, scale * low, scale * high, color=colour, alpha=BAND, linewidth=0)
    look: dict[str, Any] = {"color": colour, "linestyle": dash, "linewidth": 1.5, "label": line.label or "_"}
    ax.plot(x, scale * y, marker=MARKERS[place % len(MARKERS)], markersize=3, markevery=every, **look)


def _draw_reliability(panel: Reliability, ax: "Axes") -> None:
    """Draw the accuracy of each bin as a bar that is darker for more samples, as in Wang et al. (2021, Figure 2)."""
    from matplotlib import colormaps

    count, right = panel.table.count.numpy(), panel.table.sum_y.numpy()
    filled = count > 0
    left = np.arange(len(count))[filled] / len(count)
    shades = colormaps["Blues"](0.25 + 0.75 * count[filled] / count.max())
    ax.plot([0, 1], [0, 1], **THIN)
    ax.bar(left, right[filled] / count[filled], 1 / len(count), align="edge", color=shades, linewidth=0)
    ax.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1), aspect="equal")


def _draw_bars(bars: Bars, ax: "Axes") -> None:
    """Draw the histogram, with each group's bars on top of those of the groups before."""
    edges = np.asarray(bars.edges)
    below = np.zeros(len(edges) - 1)
    for (label, heights), colour in zip(bars.groups.items(), SHADES, strict=False):
        ax.bar(edges[:-1], heights, np.diff(edges), below, align="edge", color=colour, label=label, linewidth=0)
        below = below + np.asarray(heights)
    if bars.top is not None:
        ax.set_ylim(0, bars.top)
    ax.set(xlabel=bars.x_label, ylabel=bars.y_label)


def _draw_simplex(panel: Isolines | Arrows | Heat, ax: "Axes") -> None:
    """Draw the panel on a triangle with class 1 at the left, class 2 at the right and class 3 at the top."""
    ax.plot([0, 1, 0.5, 0], [0, 0, HALF_HEIGHT, 0], color=LIGHT.faint, linewidth=0.8)
    for text, place, side in (("class 1", 0, "left"), ("class 2", 1, "right")):
        ax.text(place, -0.04, text, ha=side, va="top", fontsize=8, color=LIGHT.ink)
    ax.text(0.5, HALF_HEIGHT + 0.02, "class 3", ha="center", va="bottom", fontsize=8, color=LIGHT.ink)
    ax.set(xlim=(-0.05, 1.05), ylim=(-0.12, HALF_HEIGHT + 0.1), aspect="equal")
    ax.set_axis_off()
    if isinstance(panel, Isolines):
        levels = list(panel.levels.values())
        ax.tricontour(*_coordinates(panel.rows), panel.values, levels=levels, colors=COLOURS[:3], linewidths=1.4)
        for index, percentile in enumerate(panel.levels):
            # labels are outside the triangle, because they would overlap on the lines
            ax.plot([0.8, 0.88], [0.75 - 0.09 * index] * 2, color=COLOURS[index], linewidth=1.4)
            ax.text(0.91, 0.75 - 0.09 * index, f"{percentile:g} %", va="center", fontsize=8, color=LIGHT.ink)
        ax.plot(*_coordinates(panel.minimum), "o", color=LIGHT.ink, markersize=4)
    elif isinstance(panel, Arrows):
        x, y = _coordinates(panel.starts)
        u, v = _coordinates(panel.ends - panel.starts)
        ax.plot(x, y, ".", color=LIGHT.faint, markersize=2.5)
        ax.quiver(x, y, u, v, angles="xy", scale_units="xy", scale=1, width=0.005, headwidth=4, color=COLOURS[0])
    else:
        _draw_heat(panel, ax)


def _draw_heat(panel: Heat, ax: "Axes") -> None:
    """Draw the function's values as colours, with a colour bar."""
    # a symmetric range, so that white is 0
    reach = float(panel.values.abs().max())
    levels = [reach * step / 8 for step in range(-8, 9)]
    filled = ax.tricontourf(*_coordinates(panel.rows), panel.values, levels=levels, cmap="RdBu_r")
    with warnings.catch_warnings():  # Matplotlib 3.10 cannot rasterise this artist, and warns
        warnings.simplefilter("ignore", UserWarning)
        filled.set_rasterized(True)  # with vector paths, the file would be ten times as large
    bar = cast("Figure", ax.figure).colorbar(filled, ax=ax, shrink=0.75)
    bar.set_ticks(levels[::4], labels=[f"{level:.2g}".replace("-", "−") for level in levels[::4]])
    bar.set_label(panel.value_label, fontsize=8, color=LIGHT.ink)
    bar.ax.tick_params(labelsize=7)


def _coordinates(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the plane coordinates of points (…, 3) on the simplex."""
    return rows[..., 1] + rows[..., 2] / 2, rows[..., 2] * HALF_HEIGHT


def _legends(axes: Sequence["Axes"], figure: "Figure") -> float:
    """Add one legend below all panels if they have the same entries, otherwise one to each panel.

    Args:
        axes: The axes of the panels.
        figure: Their figure.

    Returns:
        The height of the common legend below the canvas in inches, or 0.
    """
    entries = [ax.get_legend_handles_labels()[1] for ax in axes]
    # a panel with fewer lines may show only the first of the common entries
    common = max(entries, key=len)
    if len(axes) > 1 and common and all(found == common[: len(found)] for found in entries):
        handles, labels = axes[entries.index(common)].get_legend_handles_labels()
        columns = min(4, len(labels))
        figure.legend(handles, labels, ncols=columns, loc="upper center", bbox_to_anchor=(0.5, 0), **LEGEND)
        return LEGEND_LINE * (1 + math.ceil(len(labels) / columns))
    for ax, found in zip(axes, entries, strict=True):
        if found:
            # below the panel, where it covers no line
            columns = 2 if max(map(len, found)) <= SHORT_LABEL else 1
            ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=columns, **LEGEND)
    return 0.0
