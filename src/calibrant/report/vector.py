"""Figures as inline SVG with the page's colours, unique ids, and reproducible bytes."""

import base64
import io
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Protocol

from calibrant.plot.diagrams import Diagram
from calibrant.plot.drawing import lower_limit
from calibrant.plot.risk import Curve
from calibrant.plot.style import Palette
from calibrant.report.figures import panel_figure, reliability_figure, risk_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
