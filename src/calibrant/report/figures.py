"""Figures of a report: plots of ``calibrant.plot`` at fixed positions, as inline SVG with the page's colours and reproducible bytes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from calibrant.plot.diagrams import Diagram
from calibrant.plot.drawing import draw_diagram, draw_histogram, draw_risk, lower_limit
from calibrant.plot.risk import Curve
from calibrant.plot.style import LIGHT, Palette, finish

if TYPE_CHECKING:
    from matplotlib.figure import Figure


import base64
import io
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def reliability_figure(
    diagram: Diagram, histogram: Diagram | None = None, *, palette: Palette = LIGHT, start: float | None = None
) -> "Figure":
    """Return a new figure: the reliability diagram above the histogram of confidence.

    Args:
        diagram: In bins of equal mass.
        histogram: In bins of equal width; None leaves it out.
        palette: Colours.
        start: Where the axes of the diagram begin.
    """
    figure = _bare(4.3, 5.5 if histogram else 4.2)
    place = (0.165, 0.335, 0.795, 0.795 * 4.3 / 5.5) if histogram else (0.165, 0.13, 0.795, 0.795 * 4.3 / 4.2)
    draw_diagram(diagram, figure.add_axes(place), palette=palette, start=start)
    if histogram is not None:
        below = figure.add_axes((0.165, 0.09, 0.795, 0.155))
        draw_histogram(histogram, below, palette=palette)
    return figure


def panel_figure(diagram: Diagram, *, palette: Palette = LIGHT, x: str, y: str) -> "Figure":
    """Return a new small figure: a reliability diagram for a grid of panels.

    Args:
        diagram: The diagram to draw.
        palette: Colours.
        x: Label of the horizontal axis.
        y: Label of the vertical axis.
    """
    ax = _bare(2.6, 2.6).add_axes((0.24, 0.21, 0.7, 0.7))
    draw_diagram(diagram, ax, palette=palette, start=0.0, words=False)
    ax.set(xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    return finish(ax, palette, x=x, y=y, in_percent="xy")


def before_after_figure(before: Diagram, after: Diagram, *, palette: Palette = LIGHT) -> "Figure":
    """Return a new figure: two reliability diagrams side by side on one scale, each with its ECE, for a paper or a slide.

    Args:
        before: From ``plot.diagram_of``.
        after: Likewise.
        palette: Colours.

    Examples:
        >>> from calibrant import Predictions
        >>> from calibrant.plot import diagram_of
        >>> data = Predictions.from_logits([[1.4, 0.0]] * 100, [0] * 80 + [1] * 20)
        >>> figure = before_after_figure(diagram_of(data), diagram_of(data))
        >>> figure.savefig("before-after.png", dpi=150)
    """
    figure = _bare(8.0, 4.2)
    figure.patch.set(alpha=1, facecolor="white")
    start = lower_limit(before, after)
    for left, title, diagram in ((0.08, "before", before), (0.575, "after", after)):
        ax = figure.add_axes((left, 0.13, 0.385, 0.385 * 8.0 / 4.2))
        draw_diagram(diagram, ax, palette=palette, start=start)
        ax.set_title(f"{title}: ECE {100 * diagram.ece:.2f} %", fontsize=10, color=palette.ink)
    return figure


def risk_figure(curves: Sequence[tuple[str, Curve]], *, palette: Palette = LIGHT) -> "Figure":
    """Return a new figure of risk against coverage.

    Args:
        curves: (name, curve) pairs, at most three.
        palette: Colours.
    """
    ax = _bare(4.3, 2.9).add_axes((0.165, 0.17, 0.795, 0.79))
    colours = (palette.bad, palette.good, palette.other) if len(curves) > 1 else (palette.good,)
    return draw_risk(curves, ax, palette=palette, colours=colours)


def _bare(width: float, height: float) -> "Figure":
    """Return an empty figure without a layout engine, so that fixed positions line up, on a transparent background."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    figure.patch.set_alpha(0)
    return figure


# Placeholder colours that no figure uses otherwise; each is replaced by the CSS variable of its role, so that one drawing
# serves the light and the dark page.
_ROLES = [field.name for field in fields(Palette)]
PLACEHOLDERS = Palette(**{role: f"#0102{index:02x}" for index, role in enumerate(_ROLES, start=3)})


def data_address(svg: str) -> str:
    """Return the text of an SVG file as an address that an image in a page can show."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


class Drawable(Protocol):
    """The parts of a section that are drawn."""

    @property
    def diagrams(self) -> tuple[Diagram, Diagram | None]:
        """Reliability diagrams before and after calibration."""

    @property
    def histograms(self) -> tuple[Diagram, Diagram | None]:
        """The same in bins of equal width."""

    @property
    def curves(self) -> list[tuple[str, Curve]]:
        """Risk-coverage curves."""

    @property
    def panels(self) -> dict[str, list[tuple[str, Diagram]]]:
        """Small diagrams by class and by group."""


def figures_of(section: Drawable, *, prefix: str) -> dict[str, str]:
    """Return the SVG of each figure of a section: "before", "after" (if there is one), "risk", and "class-0" … of its panels."""
    start = lower_limit(*(diagram for diagram in section.diagrams if diagram is not None))
    drawn = {}
    for name, diagram, histogram in zip(("before", "after"), section.diagrams, section.histograms, strict=True):
        if diagram is not None:
            figure = reliability_figure(diagram, histogram, palette=PLACEHOLDERS, start=start)
            drawn[name] = inline_svg(figure, prefix=f"{prefix}{name[0]}", titles=_titles(diagram))
    drawn["risk"] = inline_svg(risk_figure(section.curves, palette=PLACEHOLDERS), prefix=f"{prefix}r")
    for kind, diagrams in section.panels.items():
        x, y = ("probability", "frequency") if kind == "class" else ("confidence", "accuracy")
        for number, (_, diagram) in enumerate(diagrams):
            figure = panel_figure(diagram, palette=PLACEHOLDERS, x=x, y=y)
            drawn[f"{kind}-{number}"] = inline_svg(figure, prefix=f"{prefix}{kind[0]}{number}", titles=_titles(diagram))
    return drawn


def _titles(diagram: Diagram) -> dict[str, str]:
    """Return the tooltip of each dot, by the dot's id."""
    return {
        f"bin-{place}": (
            f"{b.count:,} rows: mean confidence {100 * b.confidence:.2f} %, accuracy {100 * b.accuracy:.2f} % "
            f"({100 * b.expect_low:.1f} – {100 * b.expect_high:.1f} % expected if calibrated)"
        )
        for place, b in enumerate(diagram.bins)
    }


def inline_svg(figure: "Figure", *, prefix: str, titles: Mapping[str, str] | None = None) -> str:
    """Return ``figure`` as an SVG element for an HTML page.

    Args:
        figure: The figure.
        prefix: Prefix of all ids.
        titles: Tooltips by the artists' ids.

    matplotlib gives clip paths random ids and repeats ids from one figure to the next; here every id becomes ``prefix``
    and a number.
    """
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    for name, text in (titles or {}).items():
        svg = svg.replace(f'<g id="{name}">', f'<g id="{name}"><title>{text}</title>', 1)
    names = {
        name: f"{prefix}-{number}" for number, name in enumerate(dict.fromkeys(re.findall(r'\bid="([^"]+)"', svg)))
    }
    svg = re.sub(r'\bid="([^"]+)"', lambda match: f'id="{names[match[1]]}"', svg)
    svg = re.sub(r'(href="#|url\(#)([^")]+)', lambda match: match[1] + names.get(match[2], match[2]), svg)
    for role in _ROLES:
        svg = svg.replace(getattr(PLACEHOLDERS, role), f"var(--{role})")
    return re.sub(r"^<svg ", '<svg aria-hidden="true" focusable="false" ', svg)
