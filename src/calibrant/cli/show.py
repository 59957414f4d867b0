"""Output of commands: tables that fit the terminal, JSON, and messages on stderr.

If the reader of stdout stops early, as `head` does, the command still finishes with the same exit code.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from calibrant.evaluate.subgroups import Subgroups
    from calibrant.evaluate.tables import Row

MOST_LABELS = 20  # number of labels in a table on a terminal
LEGEND = "limit: 97.5 % of perfectly calibrated models of this size have a smaller error; an error below it is not significant"
# characters that a terminal would execute instead of showing: control characters, and marks that reverse the text direction
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return text without control characters, which a terminal would execute."""
    return _CONTROLS.sub("�", text)


def say(kind: str, sentence: str) -> None:
    """Print a note, a warning or an error on stderr, on one line."""
    color = {"error": "red", "warning": "yellow"}.get(kind)
    typer.echo(typer.style(f"{kind}: ", fg=color, bold=True) + printable(" ".join(sentence.split())), err=True)


def console(*, err: bool = False) -> Console:
    """Return a console for the current stdout or stderr."""
    from rich.console import Console

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            """Discard the remaining output, because the reader of stdout has closed the pipe."""
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    # Rich prints nothing to a terminal without a size.
    width = 80 if os.environ.get("COLUMNS") == "0" else None
    return Screen(stderr=err, highlight=False, markup=False, emoji=False, width=width)


def print_line(text: str, *, style: str = "", err: bool = False) -> None:
    """Print text, wrapped at the width of the terminal."""
    console(err=err).print(printable(text), style=style)


def print_json(value: Any) -> None:
    """Print JSON on stdout in ASCII, whose escapes are safe in every encoding of a terminal."""
    console().out(json.dumps(value, indent=1, allow_nan=False), highlight=False)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show on stderr that ``what`` is in progress, if stderr is a terminal."""
    from calibrant._core.warn import PROGRESS

    if not sys.stderr.isatty() or PROGRESS.get() is not None:
        yield
        return
    with console(err=True).status(printable(what)) as status:
        token = PROGRESS.set(lambda line: status.update(f"{what}: {line}"))
        try:
            yield
        finally:
            PROGRESS.reset(token)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "", left: int = 1) -> None:
    """Print a table.

    Args:
        header: The C headings.
        rows: Rows of C cells each.
        title: Printed above the table.
        left: Number of leading columns that are aligned to the left.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    if title:
        print_line(title, style="bold")
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for place, name in enumerate(header):
        table.add_column(name, justify="left" if place < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))
    console().print(table)


def print_rows(
    rows: Sequence[Row], *, notes: Sequence[str] = (), labels: Mapping[Any, Subgroups] | None = None
) -> None:
    """Print one table for each file, split and group, with a line per metric and columns before and after calibration.

    Args:
        rows: The figures; for several labels per row there are two tables, before and after calibration.
        notes: Sentences printed at the end.
        labels: Tables of labels by file, split and calibrator.
    """
    limits = False
    for key, part in groupby(rows, key=lambda row: (row.file, row.split, row.group, row.average and row.calibrator)):
        figures = list(part)
        first, several = figures[0], figures[0].labels
        size = f"n = {first.n:,}" + (f" (effective {first.effective:,.0f})" if first.effective is not None else "")
        about = [f"{several} labels", "after" * bool(first.calibrator)] if several else []
        limits |= several is None and any(row.low is not None or row.null_high is not None for row in figures)
        header, body = _table_of(figures, limit=several is None)
        print_table(header, body, title=" · ".join(filter(None, [*key[:3], size, *about])))
        if table := (labels or {}).get((first.file, first.split, first.calibrator)):
            print_line(table.verdict)
            print_table(("label", "n", "positive", "mean p", "gap", "95 %", "ECE", "p (all)"), _label_rows(table))
    for note in [LEGEND] * limits + list(notes):
        print_line(note, style="dim")


def _table_of(rows: Sequence[Row], *, limit: bool) -> tuple[list[str], list[list[str]]]:
    """Return the header and lines of the table of one split: each metric with its interval, before and after calibration."""
    states = list(dict.fromkeys(_state_of_row(row) for row in rows))
    header = ["metric"]
    for state in states:
        header += ["value" if states == ["before"] else state, "95 %"]
    body = []
    for metric in dict.fromkeys(row.metric for row in rows):
        line = {_state_of_row(row): row for row in rows if row.metric == metric}
        last = list(line.values())[-1]
        body.append([last.label + " %" * last.percent])
        for state in states:
            row = line.get(state)
            body[-1] += [_bare_number(row, row.value), row.interval] if row else ["", ""]
        body[-1] += [_bare_number(last, last.null_high)] * limit
    return header + ["limit"] * limit, body


def _state_of_row(row: Row) -> str:
    if row.average is not None:
        return "pooled" if row.average == "pooled" else "mean over labels"
    return "before" if row.calibrator is None else "after"


def _bare_number(row: Row, value: float | None) -> str:
    return row.shown(value).removesuffix(" %")


def _label_rows(found: Subgroups) -> list[list[str]]:
    """Return the cells of the labels with the strongest evidence of miscalibration."""
    made = []
    for row in found.rows[:MOST_LABELS]:
        ends = "" if row.low is None or row.high is None else f"{row.low:.4f} … {row.high:.4f}"
        cells = [f"{row.n:,}", f"{row.positives:,}", f"{row.confidence:.4f}", f"{row.gap:+.4f}"]
        made.append([row.name, *cells, ends, f"{row.ece:.4f}", row.p_shown])
    if (more := len(found.rows) - MOST_LABELS) > 0:
        made.append([f"… {more} more (--json shows all)", *[""] * 7])
    return made
