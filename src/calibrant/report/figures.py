"""Report figures: plots from ``calibrant.plot`` as inline SVG with the page's colours and reproducible bytes."""

import base64
import io
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from calibrant.plot.diagrams import Diagram, diagram_of
from calibrant.plot.drawing import DOTS, draw_diagram, draw_dots, draw_histogram, draw_isotonic
from calibrant.plot.style import Palette, finish
from calibrant.report.groups import Audit
from calibrant.report.model import Picture
from calibrant.report.state import BINNING, State
from calibrant.report.wording import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Placeholder colours that no figure uses otherwise. Each is replaced with the CSS variable of its role, so one drawing
# works on the light and the dark page.
_ROLES = [field.name for field in fields(Palette)]
PLACEHOLDERS = Palette(**{role: f"#0102{index:02x}" for index, role in enumerate(_ROLES, start=3)})
WIDTH = 4.3  # width in inches of a picture on the first screen
FIRST = 8  # largest number of groups in a picture
_LONGEST = 21  # largest number of characters of a group's name in a picture


def _bare(width: float, height: float) -> "Figure":
    """Return an empty figure without a layout engine, so that fixed positions line up, on a transparent background."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    figure.patch.set_alpha(0)
    return figure


def state_picture(state: State, name: str, *, subject: str, start: float) -> Picture:
    """Return the picture of a state: its reliability diagram above the histogram of its probabilities.

    Args:
        state: The figures. For decisions the diagram uses bins; for an event it is the isotonic curve with its band.
        name: The beginning of the caption, such as "Before".
        subject: Name of the event.
        start: Lower end of the axes of a diagram in bins.
    """
    diagram, event = state.diagram, state.event
    what, rate = ("confidence", "accuracy") if event is None else ("probability", "frequency")
    figure = _bare(WIDTH, 5.6)
    # left, bottom, width, height as fractions: a square of 3.42 inches above the histogram
    ax, below = figure.add_axes((0.165, 0.35, 0.795, 0.795 * WIDTH / 5.6)), figure.add_axes((0.165, 0.09, 0.795, 0.145))
    if event is None:
        draw_diagram(diagram, ax, palette=PLACEHOLDERS, start=start)
    else:
        draw_isotonic(event.isotonic, ax, palette=PLACEHOLDERS, event=subject, words=False)
        draw_dots(diagram, ax, palette=PLACEHOLDERS)
    draw_histogram(diagram_of(state.pairs, binning=BINNING), below, palette=PLACEHOLDERS, x=what, y=rate)
    off = sum(one.off for one in diagram.bins)
    means = f"mean {what} {percent(diagram.confidence)}, {rate} {percent(diagram.accuracy)}"
    outside = f"{off} of {len(diagram.bins)} bins lie outside what is expected if calibrated"
    return Picture(f"{name}: {means}; {outside}", figure, dot_titles(diagram, what, rate))


def panel_picture(caption: str, diagram: Diagram, *, event: bool = False) -> Picture:
    """Return a small reliability diagram from 0 to 1, for the probability of an event or for the confidence."""
    x, y = ("probability", "frequency") if event else ("confidence", "accuracy")
    ax = _bare(2.6, 2.6).add_axes((0.24, 0.21, 0.66, 0.66))
    draw_diagram(diagram, ax, palette=PLACEHOLDERS, start=0.0, words=False)
    ax.set(xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    return Picture(caption, finish(ax, PLACEHOLDERS, x=x, y=y, in_percent="xy"), dot_titles(diagram, x, y))


def groups_picture(audit: Audit) -> Picture:
    """Return a picture of the gaps of the clearest groups before and after calibration, with intervals."""
    before, after = ({row.name: row for row in found.rows} if found else {} for found in (audit.before, audit.after))
    shown = [*before.values()][:FIRST]
    height = 1.1 + 0.42 * len(shown)
    ax = _bare(WIDTH, height).add_axes((0.36, 0.72 / height, 0.6, 1 - 1.1 / height))
    ax.axvline(0, color=PLACEHOLDERS.faint, linewidth=1, linestyle="--")
    looks = [(before, "before", "D", PLACEHOLDERS.bad, -0.14), (after, "after", "o", PLACEHOLDERS.good, 0.14)]
    for found, when, marker, colour, shift in looks[: 1 + bool(after)]:
        rows = [(place + shift, found[row.name]) for place, row in enumerate(shown) if row.name in found]
        ends = [[row.gap - row.all_low for _, row in rows], [row.all_high - row.gap for _, row in rows]]
        gaps, places = [row.gap for _, row in rows], [place for place, _ in rows]
        ax.errorbar(gaps, places, xerr=ends, fmt=marker, color=colour, markersize=6, linewidth=1.4, label=when)
    names = [" ".join(row.name.split()) for row in shown]  # long names keep both ends, which tell them apart
    ax.set_yticks(range(len(shown)), [x if len(x) <= _LONGEST else f"{x[:8]}…{x[8 - _LONGEST + 1 :]}" for x in names])
    ax.set_ylim(len(shown) - 0.4, -0.6)
    if after:
        where: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 2}
        ax.legend(frameon=False, fontsize=7.5, labelcolor=PLACEHOLDERS.ink, **where)
    caption = (
        "Gap by group: to the right of 0, probabilities are too high. Lines: 95 % intervals that hold for all groups at once. A group "
        "whose line crosses 0 may still be off in ranges that cancel: see the section Groups"
    )
    return Picture(caption, finish(ax, PLACEHOLDERS, x="mean probability − frequency", y="", in_percent="x"))


def dot_titles(diagram: Diagram, p: str, y: str) -> list[str]:
    """Return a text with the numbers of each dot in a diagram; ``p`` and ``y`` are the names of the axes."""
    return [
        f"{b.count:,} rows: mean {p} {100 * b.confidence:.2f} %, {y} {100 * b.accuracy:.2f} % "
        f"({100 * b.expect_low:.1f} – {100 * b.expect_high:.1f} % expected if calibrated)"
        for b in diagram.bins
    ]


def data_address(svg: str) -> str:
    """Return an SVG text as a data URL for an image in a page."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def inline_svg(picture: Picture, *, prefix: str) -> str:
    """Return a picture as an SVG element for an HTML page.

    Matplotlib gives clip paths random ids and reuses other ids in several figures, so every id that is referenced is
    replaced with ``prefix`` and a number. Texts are not changed.
    """
    import matplotlib as mpl

    for written in picture.figure.findobj(mpl.text.Text):
        written.set_parse_math(False)  # a class may be called $5–$10
        written.set_text(_NOT_XML.sub("\ufffd", written.get_text()))
    file = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none"}):  # letters as text take a tenth of the bytes and can be searched
        picture.figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    root = ElementTree.fromstring(file.getvalue())
    linked: dict[str, str] = {}
    for target in (name for part in root.iter() for value in part.attrib.values() for name in _LINK.findall(value)):
        linked.setdefault(target, f"{prefix}-{len(linked)}")
    for part in list(root.iter()):
        name = part.attrib.pop("id", "")
        part.tag = part.tag.rpartition("}")[2]  # inline SVG has no namespace prefix
        part.attrib = {key.rpartition("}")[2]: _on_page(value, linked) for key, value in part.attrib.items()}
        if name in linked:
            part.set("id", linked[name])
        if part.tag != "text" and (part.text or "").isspace():
            part.text = None
        part.tail = None
        if picture.titles and name == DOTS:
            places = [place for place, dot in enumerate(part) if not dot.tag.endswith("}defs")]
            for place, text in zip(places, picture.titles, strict=True):
                group = ElementTree.Element("g")
                ElementTree.SubElement(group, "title").text = text
                group.append(part[place])
                part[place] = group
    root.attrib |= {"aria-hidden": "true", "focusable": "false"}
    return ElementTree.tostring(root, encoding="unicode")


_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # characters that XML does not allow
_LINK = re.compile(r"(?:^#|url\(#)([^)]+)")  # the id that an attribute refers to


def _on_page(value: str, linked: Mapping[str, str]) -> str:
    """Return an attribute's value with the ids, colours and font of the page, and with fewer digits."""
    value = _LINK.sub(lambda match: match[0].replace(match[1], linked[match[1]]), value)
    value = re.sub(r"(\d\.\d\d)\d+", r"\1", value)  # a hundredth of a point is finer than any screen
    value = " ".join(re.sub(r" ?font-family: [^;]*;?", "", value).split())
    for role in _ROLES:
        value = value.replace(getattr(PLACEHOLDERS, role), f"var(--{role})")
    return value
