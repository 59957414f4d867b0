"""Figures of a report: plots of ``calibrant.plot`` at fixed positions, as inline SVG with the page's colours and reproducible bytes."""

import base64
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from calibrant.plot.diagrams import Diagram
from calibrant.plot.drawing import DOTS, draw_diagram, draw_dots, draw_histogram, draw_isotonic, lower_limit
from calibrant.plot.style import Palette, finish
from calibrant.report.events import BARS, EventFigures
from calibrant.report.groups_report import FIRST, Audit, off_in
from calibrant.report.model import Picture
from calibrant.report.wording import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from calibrant.report.finding import Finding

# Placeholder colours that no figure uses otherwise; each is replaced by the CSS variable of its role, so that one drawing
# serves the light and the dark page.
_ROLES = [field.name for field in fields(Palette)]
PLACEHOLDERS = Palette(**{role: f"#0102{index:02x}" for index, role in enumerate(_ROLES, start=3)})
WIDTH = 4.3  # inches of a picture of the first screen


def _bare(width: float, height: float) -> "Figure":
    """Return an empty figure without a layout engine, so that fixed positions line up, on a transparent background."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    figure.patch.set_alpha(0)
    return figure


def confidence_pictures(found: "Finding", *, prefix: str) -> list[Picture]:
    """Return the reliability diagrams above the histograms of confidence, before and after calibration, on one scale."""
    start = lower_limit(*(state.diagram for state in found.states))
    names = ("Before", f"After {found.model.calibrated_in_short}") if found.calibrated else ("Uncalibrated",)
    pictures = []
    for name, state in zip(names, found.states, strict=True):
        diagram = state.diagram
        figure = reliability_figure(diagram, state.histogram, start=start)
        off = sum(one.off for one in diagram.bins)
        means = f"mean confidence {100 * diagram.confidence:.2f} %, accuracy {100 * diagram.accuracy:.2f} %"
        outside = f"{off} of {len(diagram.bins)} bins lie outside what is expected if calibrated"
        svg = inline_svg(figure, prefix=f"{prefix}{name[0].lower()}", titles=dot_titles(diagram))
        pictures.append(Picture(f"{name}: {means}; {outside}", svg))
    return pictures


def reliability_figure(diagram: Diagram, histogram: Diagram, *, start: float | None = None) -> "Figure":
    """Return a new figure: the reliability diagram above the histogram of confidence.

    Args:
        diagram: In bins of equal mass.
        histogram: In bins of equal width.
        start: Where the axes of the diagram begin.
    """
    figure = _bare(WIDTH, 5.5)
    # left, bottom, width, height as fractions: a square of 3.42 inches above the histogram
    draw_diagram(
        diagram, figure.add_axes((0.165, 0.335, 0.795, 0.795 * WIDTH / 5.5)), palette=PLACEHOLDERS, start=start
    )
    draw_histogram(histogram, figure.add_axes((0.165, 0.09, 0.795, 0.155)), palette=PLACEHOLDERS)
    return figure


def event_pictures(found: "Finding", *, prefix: str) -> list[Picture]:
    """Return the isotonic curves of the event before and after calibration."""
    name, pictures = found.model.class_name(1), []
    for when, state in zip(("Before", "After") if found.calibrated else ("Uncalibrated",), found.events, strict=True):
        titles = dot_titles(state.diagram, "mean probability", "rate")
        caption = f"{when}: mean probability {percent(state.diagram.confidence, 1)}, rate {percent(state.diagram.accuracy, 1)}"
        svg = inline_svg(event_figure(state, name=name), prefix=f"{prefix}e{when[0]}", titles=titles)
        pictures.append(Picture(caption, svg))
    return pictures


def event_figure(state: EventFigures, *, name: str) -> "Figure":
    """Return a new figure: the isotonic curve of the event ``name`` with its band, above the rows with and without it."""
    figure, palette = _bare(WIDTH, 5.7), PLACEHOLDERS
    ax = figure.add_axes((0.165, 0.36, 0.795, 0.795 * WIDTH / 5.7))
    draw_isotonic(state.isotonic, ax, palette=palette, event=name, words=False)
    draw_dots(state.diagram, ax, palette=palette)
    below = figure.add_axes((0.165, 0.09, 0.795, 0.165))
    left, (events, misses) = [at / BARS for at in range(BARS)], state.histogram
    look: dict[str, Any] = {"width": 1 / BARS, "align": "edge", "edgecolor": palette.faint, "linewidth": 0.6}
    below.bar(left, misses, color=palette.band, **look)
    below.bar(left, -events, color=palette.good, **look)
    below.axhline(0, color=palette.faint, linewidth=0.8)
    # one scale for both directions
    most = 1.25 * float(state.histogram.max())
    below.set(xlim=(0, 1), ylim=(-most, most))
    # each in the corner that the bars of a good model leave free
    words: dict[str, Any] = {"transform": below.transAxes, "fontsize": 7.5, "color": palette.ink}
    below.text(0.98, 0.95, "without the event", ha="right", va="top", **words)
    below.text(0.02, 0.05, "with it", ha="left", va="bottom", **words)
    finish(below, palette, x="predicted probability", y="rows", in_percent="x")
    below.yaxis.set_major_formatter(lambda value, _: f"{100 * abs(value):.3g} %")
    return figure


def panel_pictures(
    named: Sequence[tuple[str, Diagram]], *, prefix: str, event: bool = False, small: bool = True
) -> list[Picture]:
    """Return reliability diagrams on the whole scale, each with its caption and the numbers of its dots.

    Args:
        named: (caption, diagram) pairs.
        prefix: Of the ids in the pictures.
        event: Whether of the probability of an event; else of the confidence in the decision.
        small: Whether for a grid of panels; else as large as a picture of the first screen.
    """
    x, y = ("probability", "frequency") if event else ("confidence", "accuracy")
    found = []
    for number, (caption, diagram) in enumerate(named):
        figure = panel_figure(diagram, x=x, y=y, small=small)
        svg = inline_svg(figure, prefix=f"{prefix}{number}", titles=dot_titles(diagram, f"mean {x}", y))
        found.append(Picture(caption, svg))
    return found


def panel_figure(diagram: Diagram, *, x: str, y: str, small: bool) -> "Figure":
    """Return a new figure: a reliability diagram on the whole scale."""
    figure = _bare(2.6, 2.6) if small else _bare(WIDTH, WIDTH)
    ax = figure.add_axes((0.24, 0.21, 0.66, 0.66) if small else (0.165, 0.13, 0.795, 0.795))
    draw_diagram(diagram, ax, palette=PLACEHOLDERS, start=0.0, words=False)
    if small:
        ax.set(xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    return finish(ax, PLACEHOLDERS, x=x, y=y, in_percent="xy")


def groups_picture(audit: Audit, *, prefix: str) -> Picture:
    """Return the gaps of the groups with the strongest evidence, before and after calibration, with intervals for all at once."""
    assert audit.before is not None
    shown, level = audit.before.rows[:FIRST], 1.1 + 0.42 * len(audit.before.rows[:FIRST])
    ax = _bare(WIDTH, level).add_axes((0.36, 0.72 / level, 0.6, 1 - 1.1 / level))
    ax.axvline(0, color=PLACEHOLDERS.faint, linewidth=1, linestyle="--")
    before = {row.group: row for row in audit.before.rows}
    after = {row.group: row for row in audit.after.rows} if audit.after else {}
    # of one state, as in every diagram: a diamond is off, a circle is not
    on = {name: row for name, row in before.items() if row.all_low <= 0 <= row.all_high}
    off = {name: row for name, row in before.items() if name not in on}
    looks = [(before, "before", "D", PLACEHOLDERS.bad, -0.14), (after, "after", "o", PLACEHOLDERS.good, 0.14)]
    if not audit.after:
        looks = [(off, "", "D", PLACEHOLDERS.bad, 0.0), (on, "", "o", PLACEHOLDERS.good, 0.0)]
    for found, when, marker, colour, shift in looks:
        rows = [(place + shift, found[row.group]) for place, row in enumerate(shown) if row.group in found]
        ends = [[row.gap - row.all_low for _, row in rows], [row.all_high - row.gap for _, row in rows]]
        gaps, places = [row.gap for _, row in rows], [place for place, _ in rows]
        ax.errorbar(gaps, places, xerr=ends, fmt=marker, color=colour, markersize=6, linewidth=1.4, label=when)
    # groups of one column are distinguished by their values
    one = len({name for row in shown for name, _ in row.columns}) == 1
    ax.set_yticks(range(len(shown)), distinct([row.columns[0][1] if one else row.group for row in shown], width=21))
    ax.set_ylim(len(shown) - 0.4, -0.6)
    if audit.after:
        where: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 2}
        ax.legend(frameon=False, fontsize=7.5, labelcolor=PLACEHOLDERS.ink, **where)
    column = f" of {shown[0].columns[0][0]}" if one else ""
    side = "right of 0 probabilities are too high. Lines: 95 % intervals of all groups at once"
    caption = f"Gap by group{column}: {side}"
    if any(row.all_low < 0 < row.all_high for row in off_in(audit.before)):
        caption += "; where one crosses 0 a group may still be off in ranges that cancel: see For whom"
    figure = finish(ax, PLACEHOLDERS, x="mean probability − frequency", y="", in_percent="x")
    return Picture(caption, inline_svg(figure, prefix=f"{prefix}g"))


def distinct(names: Sequence[str], *, width: int) -> list[str]:
    """Return names on one line of at most ``width`` characters each, cut where they are alike so that they stay distinct.

    Args:
        names: Names of which no two are the same.
        width: Characters; names that no cut tells apart at this width get a number.
    """
    lines = [" ".join(name.split()) for name in names]
    # of a long name its head, its two ends, or its tail: the first cut that leaves no two alike
    for head in (width - 1, width // 2, 0):
        tail = width - 1 - head
        cut = [x if len(x) <= width else f"{x[:head]}…{x[len(x) - tail :]}" for x in lines]
        if len({*cut}) == len(cut):
            return cut
    return [f"{place} {x}"[: width - 1] + "…" for place, x in enumerate(lines, 1)]


def dot_titles(diagram: Diagram, p: str = "mean confidence", y: str = "accuracy") -> list[str]:
    """Return the tooltip of each dot."""
    return [
        f"{b.count:,} rows: {p} {100 * b.confidence:.2f} %, {y} {100 * b.accuracy:.2f} % "
        f"({100 * b.expect_low:.1f} – {100 * b.expect_high:.1f} % expected if calibrated)"
        for b in diagram.bins
    ]


def data_address(svg: str) -> str:
    """Return the text of an SVG file as an address that an image in a page can show."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def inline_svg(figure: "Figure", *, prefix: str, titles: Sequence[str] = ()) -> str:
    """Return ``figure`` as an SVG element for an HTML page.

    matplotlib gives clip paths random ids and repeats ids from one figure to the next; here every id that is referred to
    becomes ``prefix`` and a number. Only attributes change: texts are as the figure has them.

    Args:
        figure: The figure.
        prefix: Prefix of all ids.
        titles: Tooltips of the dots of its diagram, in their order.
    """
    import matplotlib as mpl

    for written in figure.findobj(mpl.text.Text):
        written.set_parse_math(False)  # a class may be called $5–$10
        written.set_text(_NOT_XML.sub("\ufffd", written.get_text()))
    file = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none"}):  # letters as text: a tenth of the bytes, and readers find them
        figure.savefig(file, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(file.getvalue())
    for part in root.findall("{*}metadata"):
        root.remove(part)
    # the same drawing gets the same ids, so that equal input gives equal bytes; what nothing refers to needs none
    linked: dict[str, str] = {}
    for target in (name for part in root.iter() for value in part.attrib.values() for name in _LINK.findall(value)):
        linked.setdefault(target, f"{prefix}-{len(linked)}")
    for part in list(root.iter()):
        name = part.get("id", "")
        part.tag = part.tag.rpartition("}")[2]  # within a page no namespace is named
        # without ids and turns by nothing, which each text has
        kept = {key: value for key, value in part.attrib.items() if key != "id" and not value.startswith("rotate(-0 ")}
        part.attrib = {key.rpartition("}")[2]: _on_page(value, linked) for key, value in kept.items()}
        if name in linked:
            part.set("id", linked[name])
        if part.tag != "text" and (part.text or "").isspace():
            part.text = None
        part.tail = None
        if titles and name == DOTS:
            places = [place for place, dot in enumerate(part) if not dot.tag.endswith("}defs")]
            for place, text in zip(places, titles, strict=True):
                group = ElementTree.Element("g")
                ElementTree.SubElement(group, "title").text = text
                group.append(part[place])
                part[place] = group
    root.attrib |= {"aria-hidden": "true", "focusable": "false"}
    return ElementTree.tostring(root, encoding="unicode")


_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # what no XML may hold
_LINK = re.compile(r"(?:^#|url\(#)([^)]+)")  # what an attribute refers to


def _on_page(value: str, linked: Mapping[str, str]) -> str:
    """Return the value of an attribute for a page: its own ids and colours, its font, and no more digits than show."""
    value = _LINK.sub(lambda match: match[0].replace(match[1], linked[match[1]]), value)
    value = re.sub(r"(\d\.\d\d)\d+", r"\1", value)  # a hundredth of a point is finer than any screen
    value = " ".join(re.sub(r" ?font-family: [^;]*;?", "", value).split())
    for role in _ROLES:
        value = value.replace(getattr(PLACEHOLDERS, role), f"var(--{role})")
    return value
