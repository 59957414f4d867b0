"""Figures of a report: plots of ``calibrant.plot`` at fixed positions, as inline SVG with the page's colours and reproducible bytes."""

import base64
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from calibrant.plot.diagrams import Curve, Diagram
from calibrant.plot.drawing import draw_diagram, draw_dots, draw_histogram, draw_isotonic, draw_risk, lower_limit
from calibrant.plot.style import LIGHT, Palette, finish
from calibrant.report.events import EventFigures
from calibrant.report.groups_report import FIRST, Audit, off_in
from calibrant.report.model import Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from calibrant.report.finding import Finding


def reliability_figure(
    diagram: Diagram, histogram: Diagram, *, palette: Palette = LIGHT, start: float | None = None
) -> "Figure":
    """Return a new figure: the reliability diagram above the histogram of confidence.

    Args:
        diagram: In bins of equal mass.
        histogram: In bins of equal width.
        palette: Colours.
        start: Where the axes of the diagram begin.
    """
    figure = _bare(4.3, 5.5)
    # left, bottom, width, height as fractions: a square of 3.42 inches above the histogram
    draw_diagram(diagram, figure.add_axes((0.165, 0.335, 0.795, 0.795 * 4.3 / 5.5)), palette=palette, start=start)
    draw_histogram(histogram, figure.add_axes((0.165, 0.09, 0.795, 0.155)), palette=palette)
    return figure


def panel_figure(diagram: Diagram, *, palette: Palette = LIGHT, x: str, y: str, small: bool = True) -> "Figure":
    """Return a new figure: a reliability diagram on the whole scale, for a grid of panels.

    Args:
        diagram: The diagram to draw.
        palette: Colours.
        x: Label of the horizontal axis.
        y: Label of the vertical axis.
        small: Whether one of many; else as large as a picture of the first screen.
    """
    ax = (
        _bare(2.6, 2.6).add_axes((0.24, 0.21, 0.66, 0.66))
        if small
        else _bare(4.3, 4.3).add_axes((0.165, 0.13, 0.795, 0.795))
    )
    draw_diagram(diagram, ax, palette=palette, start=0.0, words=False)
    if small:
        ax.set(xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    return finish(ax, palette, x=x, y=y, in_percent="xy")


def before_after_figure(before: Diagram, after: Diagram) -> "Figure":
    """Return a new figure: two reliability diagrams side by side on one scale, each with its ECE, for a paper or a slide.

    Args:
        before: From ``plot.diagrams.diagram_of``.
        after: Likewise.

    Examples:
        >>> from calibrant import Predictions
        >>> from calibrant.plot.diagrams import diagram_of
        >>> data = Predictions.from_logits([[1.4, 0.0]] * 100, [0] * 80 + [1] * 20)
        >>> figure = before_after_figure(diagram_of(data), diagram_of(data))
        >>> figure.savefig("before-after.png", dpi=150)
    """
    figure = _bare(8.0, 4.2)
    figure.patch.set(alpha=1, facecolor="white")
    start = lower_limit(before, after)
    for left, title, diagram in ((0.08, "before", before), (0.575, "after", after)):
        ax = figure.add_axes((left, 0.13, 0.385, 0.385 * 8.0 / 4.2))
        draw_diagram(diagram, ax, start=start)
        ax.set_title(f"{title}: ECE {100 * diagram.ece:.2f} %", fontsize=10, color=LIGHT.ink)
    return figure


def event_figure(state: EventFigures, *, name: str, palette: Palette = LIGHT) -> "Figure":
    """Return a new figure: the isotonic curve of an event with its band, above the rows with and without it.

    Args:
        state: The figures.
        name: Name of the event.
        palette: Colours.
    """
    figure = _bare(4.3, 5.7)
    ax = figure.add_axes((0.165, 0.36, 0.795, 0.795 * 4.3 / 5.7))
    draw_isotonic(state.isotonic, ax, palette=palette, event=name, words=False)
    draw_dots(state.diagram, ax, palette=palette)
    below = figure.add_axes((0.165, 0.09, 0.795, 0.165))
    # twenty bars: percents in fives, and p = 1 with the last
    events, misses = (
        [sum(part[at : at + 5]) + (part[100] if at == 95 else 0) for at in range(0, 100, 5)] for part in state.percents
    )
    left = [at / 20 for at in range(20)]
    look: dict[str, Any] = {"align": "edge", "edgecolor": palette.faint, "linewidth": 0.6}
    for sign, rows, colour in ((1, misses, palette.band), (-1, events, palette.good)):  # without the event upwards
        below.bar(left, [sign * x / state.rows for x in rows], 0.05, color=colour, **look)
    below.axhline(0, color=palette.faint, linewidth=0.8)
    # one scale for both directions
    most = max(max(events), max(misses)) / state.rows
    below.set(xlim=(0, 1), ylim=(-1.25 * most, 1.25 * most))
    # each in the corner that the bars of a good model leave free
    for x, y, text, ha, va in (
        (0.98, 0.95, "without the event", "right", "top"),
        (0.02, 0.05, "with it", "left", "bottom"),
    ):
        below.text(x, y, text, transform=below.transAxes, ha=ha, va=va, fontsize=7.5, color=palette.ink)
    finish(below, palette, x="predicted probability", y="rows", in_percent="x")
    below.yaxis.set_major_formatter(lambda value, _: f"{100 * abs(value):.3g} %")
    return figure


def event_pictures(name: str, states: Sequence[EventFigures], *, prefix: str) -> list[Picture]:
    """Return the isotonic curves before and after calibration, for the first screen.

    Args:
        name: Name of the event.
        states: Its figures, one or two.
        prefix: Of the ids in the pictures.
    """
    found = []
    for when, state in zip(("Before", "After") if len(states) > 1 else ("Uncalibrated",), states, strict=True):
        figure = event_figure(state, name=name, palette=PLACEHOLDERS)
        titles = dot_titles(state.diagram, "mean probability", "rate")
        caption = f"{when}: mean probability {100 * state.mean:.1f} %, rate {100 * state.rate:.1f} %"
        found.append(Picture(caption, inline_svg(figure, prefix=f"{prefix}e{when[0]}", titles=titles)))
    return found


def panel_pictures(
    named: Iterable[tuple[str, Diagram]], *, prefix: str, event: bool = False, small: bool = True
) -> list[Picture]:
    """Return reliability diagrams on one scale, each with its caption and the numbers of its dots.

    Args:
        named: (caption, diagram) pairs.
        prefix: Of the ids in the pictures.
        event: Whether of the probability of an event; else of the confidence in the decision.
        small: As in ``panel_figure``.
    """
    x, y = ("probability", "frequency") if event else ("confidence", "accuracy")
    found = []
    for number, (caption, diagram) in enumerate(named):
        figure = panel_figure(diagram, palette=PLACEHOLDERS, x=x, y=y, small=small)
        titles = dot_titles(diagram, f"mean {x}", y)
        found.append(Picture(caption, inline_svg(figure, prefix=f"{prefix}{number}", titles=titles)))
    return found


def risk_picture(curves: Sequence[Curve], *, prefix: str) -> Picture:
    """Return risk against coverage, before and after calibration.

    Args:
        curves: One or two.
        prefix: Of the ids in the picture.
    """
    ax = _bare(4.3, 2.9).add_axes((0.165, 0.17, 0.795, 0.79))
    colours = (PLACEHOLDERS.bad, PLACEHOLDERS.good) if len(curves) > 1 else (PLACEHOLDERS.good,)
    figure = draw_risk(list(zip(("before", "after"), curves, strict=False)), ax, palette=PLACEHOLDERS, colours=colours)
    caption = "Error rate if predictions are made for the most confident rows only, by the fraction of rows."
    return Picture(caption, inline_svg(figure, prefix=f"{prefix}r"))


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


def groups_picture(audit: Audit, *, prefix: str) -> Picture:
    """Return the gaps of the groups with the strongest evidence, before and after calibration, with intervals for all at once."""
    assert audit.before is not None
    # of one column its groups are told apart by their values
    one = len({name for row in audit.before.rows for name, _ in row.columns}) == 1
    names = {row.group: row.columns[0][1] if one else row.group for row in audit.before.rows[:FIRST]}
    states = [audit.before] if audit.after is None else [audit.before, audit.after]
    # groups are ranked by each state's own evidence
    gaps = [
        {names[row.group]: (row.gap, row.all_low, row.all_high) for row in state.rows if row.group in names}
        for state in states
    ]
    column = f" of {audit.before.rows[0].columns[0][0]}" if one else ""
    caption = (
        f"Gap by group{column}: right of 0 probabilities are too high. Lines: 95 % intervals of all groups at once"
    )
    if any(row.all_low < 0 < row.all_high for row in off_in(audit.before)):
        caption += "; where one crosses 0 a group may still be off in ranges that cancel: see For whom"
    return Picture(caption, _gaps_svg(list(names.values()), gaps, prefix=f"{prefix}g"))


def distinct(names: Sequence[str], *, width: int) -> list[str]:
    """Return names on one line of at most ``width`` characters each, cut where they are alike so that they stay distinct.

    Args:
        names: Distinct names.
        width: Characters; names that no cut tells apart at this width get a number.
    """
    lines = [" ".join(name.split()) for name in names]
    # of a long name its head, its two ends, or its tail: the first cut that leaves no two alike
    for head in (width - 1, width // 2, 0):
        tail = width - 1 - head
        cut = [x if len(x) <= width else f"{x[:head]}…{x[len(x) - tail :]}" for x in lines]
        if len(set(cut)) == len(cut):
            return cut
    room = width - 2 - len(str(len(lines)))
    return [f"{place} {x if len(x) <= room else x[:room] + '…'}" for place, x in enumerate(lines, 1)]


def _gaps_svg(shown: list[str], states: Sequence[Mapping[str, tuple[float, float, float]]], *, prefix: str) -> str:
    """Return gaps with their intervals, one line a name: of one state, or before and after calibration."""
    height = 1.1 + 0.42 * len(shown)
    ax = _bare(4.3, height).add_axes((0.36, 0.72 / height, 0.6, 0.42 * len(shown) / height))
    ax.axvline(0, color=PLACEHOLDERS.faint, linewidth=1, linestyle="--")
    looks = [("before", PLACEHOLDERS.bad, "D", -0.14), ("after", PLACEHOLDERS.good, "o", 0.14)]
    if len(states) == 1:  # as in every diagram: a diamond is off, a circle is not
        off = {name: not low <= 0 <= high for name, (_, low, high) in states[0].items()}
        states = [{name: gap for name, gap in states[0].items() if off[name] is kind} for kind in (True, False)]
        looks = [("", colour, marker, 0.0) for _, colour, marker, _ in looks]
    for found, (when, colour, marker, shift) in zip(states, looks, strict=True):
        rows = [(place + shift, *found[name]) for place, name in enumerate(shown) if name in found]
        ends = [[gap - low for _, gap, low, _ in rows], [high - gap for _, gap, _, high in rows]]
        y, gaps = [row[0] for row in rows], [row[1] for row in rows]
        ax.errorbar(gaps, y, xerr=ends, fmt=marker, color=colour, markersize=6, linewidth=1.4, label=when)
    ax.set_yticks(range(len(shown)), distinct(shown, width=21))
    ax.set_ylim(len(shown) - 0.4, -0.6)
    if looks[0][0]:
        ax.legend(
            frameon=False, fontsize=7.5, labelcolor=PLACEHOLDERS.ink, loc="lower left", bbox_to_anchor=(0, 1), ncols=2
        )
    return inline_svg(finish(ax, PLACEHOLDERS, x="mean probability − frequency", y="", in_percent="x"), prefix=prefix)


def confidence_pictures(found: "Finding", *, prefix: str) -> list[Picture]:
    """Return the reliability diagrams above the histograms of confidence, before and after calibration, on one scale."""
    start = lower_limit(*(state.diagram for state in found.states))
    pictures = []
    names = ("Before", f"After {found.model.calibrated_in_short}") if found.calibrated else ("Uncalibrated",)
    for name, state in zip(names, found.states, strict=True):
        diagram = state.diagram
        figure = reliability_figure(diagram, state.histogram, palette=PLACEHOLDERS, start=start)
        # outside what 95 % of calibrated models of this size show
        off = sum(one.off for one in diagram.bins)
        caption = (
            f"{name}: mean confidence {100 * diagram.confidence:.2f} %, accuracy {100 * diagram.accuracy:.2f} %; {off} of "
            f"{len(diagram.bins)} bins lie outside what is expected if calibrated"
        )
        pictures.append(
            Picture(caption, inline_svg(figure, prefix=f"{prefix}{name[0].lower()}", titles=dot_titles(diagram)))
        )
    return pictures


def dot_titles(diagram: Diagram, p: str = "mean confidence", y: str = "accuracy") -> dict[str, str]:
    """Return the tooltip of each dot, by the dot's id."""
    return {
        f"bin-{place}": (
            f"{b.count:,} rows: {p} {100 * b.confidence:.2f} %, {y} {100 * b.accuracy:.2f} % "
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

    matplotlib gives clip paths random ids and repeats ids from one figure to the next; here every id that is referred to
    becomes ``prefix`` and a number. Only attributes change: texts are as the figure has them.
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
        part.attrib = {
            key.rpartition("}")[2]: _on_page(value, linked)
            for key, value in part.attrib.items()
            if key != "id" and not value.startswith("rotate(-0 ")  # a turn by nothing, which each text has
        } | ({"id": linked[name]} if name in linked else {})
        if part.tag != "text":
            part.text = None if part.text is None or part.text.isspace() else part.text
        part.tail = None
        if titles and name in titles:
            title = ElementTree.Element("title")
            title.text = titles[name]
            part.insert(0, title)
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
