"""Figures of the theory, written with a Markdown page of captions and numbers."""

import io
import math
import re
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from calibrant._core.figure_numbers import Arrows, Curve, FigureNumbers, Heat, Isolines, Panel, Plot
from calibrant._files import atomic_write
from calibrant.plot.style import COLOURS, LIGHT, MARKERS, finish, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES = {"line": "-", "dashed": (0, (4, 2)), "dotted": (0, (1, 1.2)), "points": "none"}
PANEL = (3.4, 2.9)  # inches
HALF_HEIGHT = math.sqrt(3) / 2


def draw_panel(panel: Panel, ax: "Axes") -> "Figure":
    """Draw one panel.

    Args:
        panel: From ``figure_numbers(name).panels``.
        ax: Where to draw.

    Returns:
        The figure of ``ax``.
    """
    if isinstance(panel, Plot):
        _draw_curves(panel, ax)
    else:
        _draw_simplex(ax)
        if isinstance(panel, Isolines):
            _draw_isolines(panel, ax)
        elif isinstance(panel, Arrows):
            _draw_arrows(panel, ax)
        else:
            _draw_heat(panel, ax)
    ax.set_title(panel.title, fontsize=9.5, color=LIGHT.ink)
    return cast("Figure", ax.figure)


def theory_figure(numbers: FigureNumbers) -> "Figure":
    """Return a new figure with all panels of ``numbers``, at most two beside each other."""
    count = len(numbers.panels)
    columns = 1 if count == 1 else 2
    rows = -(-count // columns)
    figure = new_figure(width=PANEL[0] * columns, height=PANEL[1] * rows)
    # two grid columns a panel, so that a last single panel can stand in the middle
    grid = figure.add_gridspec(rows, 2 * columns)
    for index, panel in enumerate(numbers.panels):
        row, column = divmod(index, columns)
        alone = index == count - 1 and column == 0 and columns == 2  # a last panel without a neighbour is centred
        start = 1 if alone else 2 * column
        draw_panel(panel, figure.add_subplot(grid[row, start : start + 2]))
    return figure


def write_theory(figures: Sequence[FigureNumbers], folder: Path) -> list[Path]:
    """Write each figure as SVG and PNG, with reproducible bytes, and ``index.md`` with captions and numbers.

    Args:
        figures: From ``figure_numbers``.
        folder: Made if it does not exist.

    Returns:
        The files, the page last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = [path for x in figures for path in write_figure(theory_figure(x), folder / x.name, dpi=160)]
    return [*written, write_bytes(folder / "index.md", page(figures).encode())]


def page(figures: Sequence[FigureNumbers]) -> str:
    """Return Markdown that shows each figure with its caption and main numbers.

    Args:
        figures: From ``figure_numbers``.

    Returns:
        The page; it links to images in its own folder.
    """
    parts = ["# The theory in pictures\n"]
    for numbers in figures:
        facts = "".join(f"| {name.replace('_', ' ')} | {value:.6g} |\n" for name, value in numbers.facts.items())
        table = f"\n| | |\n| --- | --- |\n{facts}" if facts else ""
        parts.append(f"## {numbers.source}\n\n![{numbers.caption}]({numbers.name}.svg)\n\n{numbers.caption}\n{table}")
    return "\n".join(parts)


def write_figure(figure: "Figure", stem: Path, *, dpi: int, vector: bool = False) -> list[Path]:
    """Write a figure as SVG and PNG, or ``vector`` as SVG and PDF, with reproducible bytes, and return both files."""
    # in this order, for equal bytes: the first drawing shifts square axes slightly
    svg, other = svg_of(figure).encode(), io.BytesIO()
    suffix, dated = ("pdf", "CreationDate") if vector else ("png", "Software")
    figure.savefig(other, format=suffix, dpi=dpi, metadata={dated: None})
    contents = {"svg": svg, suffix: other.getvalue()}
    return [write_bytes(stem.parent / f"{stem.name}.{ending}", content) for ending, content in contents.items()]


def svg_of(figure: "Figure") -> str:
    """Return a figure as SVG with reproducible bytes."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return steady(text.getvalue())


def write_bytes(path: Path, content: bytes) -> Path:
    """Write ``content`` whole or not at all, and return the path."""
    with atomic_write(path) as file:
        file.write(content)
    return path


def _draw_curves(plot: Plot, ax: "Axes") -> None:
    if plot.diagonal:
        ax.plot([0, 1], [0, 1], color=LIGHT.faint, linewidth=0.8, linestyle=(0, (2, 3)))
    for curve in plot.curves:
        _draw_curve(curve, ax)
    if plot.log_y:
        ax.set_yscale("log")
        ax.set_yticks([0.1, 0.2, 0.5, 1.0], labels=["0.1", "0.2", "0.5", "1"])
        ax.minorticks_off()
    if plot.y_range is not None:
        ax.set_ylim(*plot.y_range)
    finish(ax, LIGHT, x=plot.x_label, y=plot.y_label)
    ax.legend(frameon=False, fontsize=7.5, labelcolor=LIGHT.ink, handlelength=2.2, labelspacing=0.35)


def _draw_curve(curve: Curve, ax: "Axes") -> None:
    points = curve.style == "points"
    every = None if points else max(1, len(curve.x) // 6)  # a few markers per line: lines differ in more than hue
    ax.plot(
        curve.x,
        curve.y,
        color=COLOURS[curve.group],
        linestyle=STYLES[curve.style],
        linewidth=1.5,
        marker=MARKERS[curve.group],
        markersize=3.5,
        markevery=every,
        label=curve.label or "_",
    )


def _draw_simplex(ax: "Axes") -> None:
    ax.plot([0, 1, 0.5, 0], [0, 0, HALF_HEIGHT, 0], color=LIGHT.faint, linewidth=0.8)
    for text, x, y, side in (("class 1", 0, -0.04, "left"), ("class 2", 1, -0.04, "right")):
        ax.text(x, y, text, ha=side, va="top", fontsize=8, color=LIGHT.ink)
    ax.text(0.5, HALF_HEIGHT + 0.02, "class 3", ha="center", va="bottom", fontsize=8, color=LIGHT.ink)
    ax.set(xlim=(-0.05, 1.05), ylim=(-0.12, HALF_HEIGHT + 0.1), aspect="equal")
    ax.set_axis_off()


def _draw_isolines(panel: Isolines, ax: "Axes") -> None:
    x, y = _simplex_coordinates(panel.rows)
    ax.tricontour(x, y, panel.values, levels=panel.levels, colors=COLOURS[:3], linewidths=1.4)
    for index, percentile in enumerate(
        panel.percentiles
    ):  # labels outside the triangle: on the lines they would overlap
        ax.plot([0.8, 0.88], [0.75 - 0.09 * index] * 2, color=COLOURS[index], linewidth=1.4)
        ax.text(0.91, 0.75 - 0.09 * index, f"{percentile:g} %", va="center", fontsize=8, color=LIGHT.ink)
    ax.plot(*_simplex_coordinates([panel.minimum]), "o", color=LIGHT.ink, markersize=4)


def _draw_arrows(panel: Arrows, ax: "Axes") -> None:
    x, y = _simplex_coordinates(panel.starts)
    # an arrow from each starting point to where it is mapped
    to_x, to_y = _simplex_coordinates(panel.ends)
    u, v = ([b - a for a, b in zip(*pair, strict=True)] for pair in ((x, to_x), (y, to_y)))
    ax.plot(x, y, ".", color=LIGHT.faint, markersize=2.5)
    ax.quiver(x, y, u, v, angles="xy", scale_units="xy", scale=1, width=0.005, headwidth=4, color=COLOURS[0])


def _draw_heat(panel: Heat, ax: "Axes") -> None:
    x, y = _simplex_coordinates(panel.rows)
    # a symmetric range: white is 0
    reach = max(abs(value) for value in panel.values)
    levels = [reach * step / 8 for step in range(-8, 9)]
    filled = ax.tricontourf(x, y, panel.values, levels=levels, cmap="RdBu_r")
    with warnings.catch_warnings():  # Matplotlib 3.10 cannot, and says so
        warnings.simplefilter("ignore", UserWarning)
        filled.set_rasterized(True)  # as vector paths the file would be ten times as large
    labels = [f"{level:.2g}".replace("-", "−") for level in levels[::4]]
    bar = cast("Figure", ax.figure).colorbar(filled, ax=ax, shrink=0.75)
    bar.set_ticks(levels[::4], labels=labels)
    bar.set_label(panel.value_label, fontsize=8, color=LIGHT.ink)
    bar.ax.tick_params(labelsize=7)


def _simplex_coordinates(rows: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Return the coordinates of rows (q₁, q₂, q₃) in the triangle with class 1 left, 2 right, 3 on top."""
    return [row[1] + row[2] / 2 for row in rows], [row[2] * HALF_HEIGHT for row in rows]


def steady(svg: str) -> str:
    """Return ``svg`` without metadata, with numbered instead of random ids, and coordinates to a hundredth of a point."""
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for number, name in enumerate(dict.fromkeys(re.findall(r'\bid="([a-z]+[0-9a-f]{10})"', svg))):
        svg = svg.replace(name, f"i{number}")
    shorter = partial(re.compile(r"(\.\d\d)\d+").sub, r"\1")
    svg = re.sub(r'(?<= )(?:d|x|y)="[^"]*"', lambda match: shorter(match[0]), svg)
    return re.sub(r"\s*\n\s*", "\n", svg)
