"""Results for other programs: a check as JUnit XML, Markdown and GitHub annotations, a monitor as Prometheus text and an HTML page."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from xml.etree import ElementTree as ET

from calibrant.operate.check import Check
from calibrant.operate.monitor import LEVEL, Monitor
from calibrant.operate.watched import Block, show_time

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 760, 200, 80, 24  # _LEFT holds labels such as -9.99e-05
_MARKS = {"pass": "✅", "fail": "❌", "not enough evidence": "❔"}


def to_markdown(found: Check) -> str:
    """Return the result as Markdown, for a comment on a pull request or a step summary.

    Args:
        found: The result of ``check``.

    Examples:
        >>> from calibrant import Predictions
        >>> from calibrant.operate import check
        >>> data = Predictions.from_binary_probs([0.9] * 2000, [1] * 1800 + [0] * 200)
        >>> to_markdown(check(data, maximum={"ece": 0.05})).splitlines()[0]
        '### Calibration gate: ✅ pass'
    """
    lines = [
        f"### Calibration gate: {_MARKS[found.verdict]} {found.verdict}",
        "",
        "| limit | verdict | value | between | rows | note |",
        "| --- | --- | ---: | --- | ---: | --- |",
    ]
    for line in found.lines:
        cells = [
            line.name, f"{_MARKS[line.verdict]} {line.verdict}", f"{line.value:.4f}", f"{line.low:.4f} and {line.high:.4f}",
            f"{line.n:,}", "; ".join(filter(None, (line.more, line.note))),
        ]  # fmt: skip
        lines.append("| " + " | ".join(map(_markdown_cell, cells)) + " |")
    lines += ["", f"Each bound is wrong with probability at most {100 * found.alpha:.3g} %."]
    return "\n".join(lines) + "\n"


def to_junit(found: Check, *, strict: bool = False) -> str:
    """Return the result as JUnit XML, one test case per limit; "not enough evidence" is skipped, or with ``strict`` a failure.

    Args:
        found: The result of ``check``.
        strict: Whether "not enough evidence" counts as a failure.
    """
    undecided = sum(line.verdict == "not enough evidence" for line in found.lines)
    failed = sum(line.verdict == "fail" for line in found.lines)
    counts = {
        "tests": str(len(found.lines)),
        "failures": str(failed + (undecided if strict else 0)),
        "skipped": str(0 if strict else undecided),
        "errors": "0",
    }
    root = ET.Element("testsuites")
    suite = ET.SubElement(root, "testsuite", {"name": "calibrant check", **counts})
    for line in found.lines:
        case = ET.SubElement(suite, "testcase", {"classname": "calibrant.check", "name": _xml(line.name)})
        if line.verdict == "fail" or (strict and line.verdict != "pass"):
            ET.SubElement(case, "failure", {"message": _xml(str(line))}).text = _xml(str(line))
        elif line.verdict != "pass":
            ET.SubElement(case, "skipped", {"message": _xml(str(line))})
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def annotations(found: Check) -> Iterator[str]:
    """Return a GitHub workflow command for every limit that does not pass.

    Args:
        found: The result of ``check``.
    """
    for line in found.lines:
        if line.verdict != "pass":
            kind, title = "error" if line.verdict == "fail" else "warning", _escape(line.name)
            # in a property ":" and "," end it
            yield f"::{kind} title={title.replace(':', '%3A').replace(',', '%2C')}::{_escape(str(line))}"


def _markdown_cell(text: str) -> str:
    safe = text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")  # names are text, not HTML
    return " ".join(safe.split())


def _xml(text: str) -> str:
    """Return ``text`` without the control characters that XML 1.0 forbids."""
    return "".join(c for c in text if c in "\t\n" or c >= " ")


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def to_prometheus(monitor: Monitor, *, model: str = "model") -> str:
    """Return the status in Prometheus's text format.

    Args:
        monitor: The monitor.
        model: The label "model" of every line. Every monitored group has a line with the labels "column" and "value".

    Examples:
        >>> from calibrant.operate import Monitor
        >>> from calibrant import Predictions
        >>> text = to_prometheus(Monitor(Predictions.from_binary_probs([0.9] * 100, [1] * 90 + [0] * 10)))
        >>> text.splitlines()[2]
        'calibrant_alarm{model="model"} 0'
    """
    status, name = monitor.status, _prometheus_label(model)
    lines = []
    for metric, kind, meaning, value in (
        ("alarm", "gauge", "1 from the first alarm on", int(monitor.alarm)),
        ("evidence", "gauge", "How many times likelier the labels are under a change", status.evidence),
        ("labels_total", "counter", "Labels seen", status.rows),
        ("recent_confidence", "gauge", "Mean confidence since the likeliest change", status.confidence),
        ("recent_accuracy", "gauge", "Accuracy since the likeliest change", status.accuracy),
    ):
        full = f"calibrant_{metric}"
        lines += [f"# HELP {full} {meaning}", f"# TYPE {full} {kind}", f'{full}{{model="{name}"}} {value:.10g}']
    if monitor.groups:
        full = "calibrant_group_changed"
        lines += [f"# HELP {full} 1 where a group has evidence of its own of a change", f"# TYPE {full} gauge"]
    for column, group in monitor.groups:
        changed = any(f"{column} = {group} ({sense})" in status.groups for sense in ("overconfident", "underconfident"))
        lines.append(
            f'{full}{{model="{name}",column="{_prometheus_label(column)}",value="{_prometheus_label(group)}"}} {int(changed)}'
        )
    return "\n".join(lines) + "\n"


def _prometheus_label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def to_html(monitor: Monitor, *, title: str = "Calibration over time", names: Sequence[str] = ()) -> str:
    """Return a self-contained HTML page: the verdict, what changed, what to do, and the timeline.

    Args:
        monitor: The monitor.
        title: The heading.
        names: Those of the classes; without them, classes are called by their numbers.
    """
    status, blocks = monitor.status, monitor.timeline
    since = f"{status.changed_rows:,} labels: mean confidence {status.confidence:.3f}, accuracy {status.accuracy:.3f}"
    since += f" (between {status.accuracy_low:.3f} and {status.accuracy_high:.3f})"
    # the sentence of an alarm says the rest
    quiet = [("since the likeliest change", since)] if status.verdict == "quiet" else [("labels", f"{status.rows:,}")]
    likelier = ["over a million" if one > 1e6 else f"{one:,.3g}" for one in (status.evidence, status.peak)]
    rows = [
        *quiet,
        ("likelier if something changed", f"{' times, at most '.join(dict.fromkeys(likelier))} times"),
        ("classes that clearly changed", status.classes_shown(names) or "none"),
        *([("groups that clearly changed", ", ".join(status.groups) or "none")] if monitor.by else []),
    ]
    table = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    gaps = [(block.confidence - block.right) / block.rows for block in blocks]
    logs = [block.evidence / math.log(10) for block in blocks]
    return _PAGE.format(
        title=escape(title),
        verdict=escape(status.sentence(names).removesuffix(f"; {status.advice}")),
        advice=escape(status.advice),
        kind=status.verdict,
        table=table,
        gap=_chart("Mean confidence − accuracy, block by block", gaps, blocks, line=0.0, steps=True),
        evidence=_chart(
            "How many times likelier if something changed, log₁₀; above the line an alarm",
            logs,
            blocks,
            line=LEVEL / math.log(10),
        ),
    )


def _chart(title: str, values: list[float], blocks: tuple[Block, ...], *, line: float, steps: bool = False) -> str:
    if not values:
        return f"<h2>{escape(title)}</h2><p>No labels yet.</p>"
    # both begin with the first label: a gap is that of its block, evidence grows from none
    values = values if steps else [0.0, *values]
    low, high = min([*values, line]), max([*values, line])
    # room for the line at either end; any where all values are equal
    margin = (high - low) * 0.08 or 0.01
    low, high = low - margin, high + margin
    ends, total = [0], 0
    for block in blocks:
        total += block.rows
        ends.append(total)

    def x(at: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 8) * at / total

    def y(value: float) -> float:
        return 8 + (_HEIGHT - _BOTTOM - 8) * (high - value) / (high - low)

    held = (
        [(at, value) for k, value in enumerate(values) for at in ends[k : k + 2]]
        if steps
        else zip(ends, values, strict=True)
    )
    places = [(x(at), y(value)) for at, value in held]
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
    ticks = "".join(
        f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.3g}</text>'
        for value in (low + margin, line, high - margin)
        if value == line or abs(y(value) - y(line)) > 14
    )
    start, end = ("0 labels", f"{total:,} labels")
    if blocks[0].first is not None and blocks[-1].last is not None:
        start, end = show_time(blocks[0].first), show_time(blocks[-1].last)
    return (
        f"<h2>{escape(title)}</h2>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
        f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH - 8}" y1="{y(line):.1f}" y2="{y(line):.1f}"/>'
        f'<polyline points="{path}"/>{ticks}'
        f'<text x="{_LEFT}" y="{_HEIGHT - 6}">{escape(start)}</text>'
        f'<text x="{_WIDTH - 8}" y="{_HEIGHT - 6}" text-anchor="end">{escape(end)}</text></svg>'
    )


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'none'"><title>{title}</title>
<style>
:root {{ color-scheme: light dark; --ink: #1c2024; --soft: #60646c; --paper: #fff; --line: #3451b2; --bad: #c62a2f }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #edeef0; --soft: #a0a5ad; --paper: #14161a; --line: #8da4ef; --bad: #ff9592 }} }}
body {{ font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 48rem; overflow-wrap: anywhere;
  margin: 2rem auto; padding: 0 1rem }}
h1 {{ font-size: 1.5rem }} h2 {{ font-size: 1rem; margin-top: 2rem }}
.alarm {{ border-left: 4px solid var(--bad); padding-left: 1rem }} .quiet {{ border-left: 4px solid var(--line); padding-left: 1rem }}
svg {{ width: 100%; height: auto }} svg text {{ font-size: 12px; fill: var(--soft) }}
@media (max-width: 40rem) {{ svg {{ overflow: visible }} svg text {{ font-size: 22px }} }}
polyline {{ fill: none; stroke: var(--line); stroke-width: 2 }}
.limit {{ stroke: var(--bad); stroke-dasharray: 5 4 }}
th {{ text-align: left; font-weight: normal; color: var(--soft); padding-right: 2rem }}
</style>
<h1>{title}</h1>
<p class="{kind}">{verdict}</p>
<p><strong>What to do:</strong> {advice}.</p>
<table>{table}</table>
{gap}
{evidence}
</html>
"""
