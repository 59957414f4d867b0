"""Figures as inline SVG: the page's own colours, names that do not clash, and the same bytes each time."""

import io
import re
from dataclasses import fields
from typing import TYPE_CHECKING, Protocol

from calibrant.report.diagnosis import Curve, Diagram
from calibrant.report.figures import Palette, panel_figure, reliability_figure, risk_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Stand-ins that no figure uses otherwise; each becomes the CSS variable of its role, so one drawing serves light and dark.
_ROLES = [field.name for field in fields(Palette)]
_STAND_INS = Palette(**{role: f"#0102{index:02x}" for index, role in enumerate(_ROLES, start=3)})


class Drawable(Protocol):
    """What of a section is drawn."""

    @property
    def diagrams(self) -> tuple[Diagram, Diagram | None]:
        """Before and after."""

    @property
    def curves(self) -> list[tuple[str, Curve]]:
        """Risk by coverage."""

    @property
    def panels(self) -> dict[str, list[tuple[str, Diagram]]]:
        """Small diagrams by class and by group."""


def figures_of(section: Drawable, *, prefix: str) -> dict[str, str]:
    """Return the SVG of each figure of a section: "before", "after" (if there is one), "risk", and "class-0" … of its panels."""
    before, after = section.diagrams
    drawn = {"before": inline_svg(reliability_figure(before, palette=_STAND_INS), prefix=f"{prefix}b")}
    if after is not None:
        drawn["after"] = inline_svg(reliability_figure(after, palette=_STAND_INS), prefix=f"{prefix}a")
    drawn["risk"] = inline_svg(risk_figure(section.curves, palette=_STAND_INS), prefix=f"{prefix}r")
    for kind, diagrams in section.panels.items():
        for number, (_, diagram) in enumerate(diagrams):
            figure = panel_figure(diagram, palette=_STAND_INS)
            drawn[f"{kind}-{number}"] = inline_svg(figure, prefix=f"{prefix}{kind[0]}{number}")
    return drawn


def inline_svg(figure: "Figure", *, prefix: str) -> str:
    """Return ``figure`` as an SVG element for an HTML page.

    matplotlib names clip paths at random and repeats names from one figure to the next; here they become ``prefix``
    and a running number.
    """
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    names = {
        name: f"{prefix}-{number}" for number, name in enumerate(dict.fromkeys(re.findall(r'\bid="([^"]+)"', svg)))
    }
    svg = re.sub(r'\bid="([^"]+)"', lambda match: f'id="{names[match[1]]}"', svg)
    svg = re.sub(r'(href="#|url\(#)([^")]+)', lambda match: match[1] + names.get(match[2], match[2]), svg)
    for role in _ROLES:
        svg = svg.replace(getattr(_STAND_INS, role), f"var(--{role})")
    return re.sub(r"^<svg ", '<svg aria-hidden="true" focusable="false" ', svg)
