"""What comes in and goes out: files (``-`` is stdin or stdout), tables that fit the terminal, JSON, and progress messages."""

from __future__ import annotations

import json
import math
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from calibrant._core.warn import PROGRESS
from calibrant._files import check_suffix, check_target
from calibrant.errors import FileFormatError, InputError

if TYPE_CHECKING:
    from calibrant.calibrators.auto import Evidence
    from calibrant.evaluate.multilabel import LabelTable
    from calibrant.report.tables import Row


STREAM = "-"
# exit codes of verdicts: 2 is a user's error in every command, so that too little evidence is 3
CODES = {None: 0, "pass": 0, "fail": 1, "not enough evidence": 3}
MOST_LABELS = 20  # in the table of a terminal
NARROW = 72  # columns of a terminal below which intervals and limits are left out
LEGEND = "limit: 97.5 % of perfectly calibrated models of this size have a smaller error; an error below it is not significant"


def console(*, err: bool = False) -> Console:
    """Return a console for this moment's stdout or stderr."""
    return Console(stderr=err, highlight=False, markup=False)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show that ``what`` is going on, on stderr and only to a person; within another message, in its place."""
    screen = console(err=True)
    if (outer := PROGRESS.get()) is not None:
        outer(what)
        yield
    elif screen.is_terminal:
        with screen.status(what) as status:
            token = PROGRESS.set(lambda line: status.update(f"{what}: {line}"))
            try:
                yield
            finally:
                PROGRESS.reset(token)
    else:
        yield


@contextmanager
def imports_shown() -> Iterator[None]:
    """Show to a person that modules are being imported: PyTorch takes seconds, before a command has anything to say."""
    screen = console(err=True)
    if not screen.is_terminal:
        yield
        return
    done = threading.Event()

    def importing() -> bool:
        specs = [getattr(one, "__spec__", None) for one in [*sys.modules.values()]]
        return any(getattr(spec, "_initializing", False) for spec in specs)

    def watch() -> None:
        while not done.wait(0.3):
            if importing():
                with screen.status("loading"):
                    while importing() and not done.wait(0.1):
                        pass

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def print_json(value: Any) -> None:
    """Print JSON on stdout: in UTF-8 as it is, in any other encoding as ASCII with escapes, which loses nothing."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    typer.echo(json.dumps(value, indent=1, ensure_ascii=encoding != "utf8", allow_nan=False))


def say(found: Any, *, as_json: bool) -> None:
    """Print a result: its JSON data, or its own words."""
    if as_json:
        print_json(found.plain())
    else:
        console().print(str(found))


def say_json(rows: Sequence[Row], *, fitted: dict[str, Any] | None = None, extra: dict[str, Any] | None = None) -> None:
    """Print one JSON object."""
    print_json({"rows": [row.plain() for row in rows], "fitted": fitted, **(extra or {})})


@dataclass
class Findings:
    """What a command measured: figures; of several labels a row also every label, by file, split and calibrator; and notes."""

    rows: list[Row] = field(default_factory=list)
    labels: dict[tuple[str, str, str | None], LabelTable] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def measure(self, data: Any, *, file: str, split: str, calibrator: str | None = None, **options: Any) -> None:
        """Add the figures of ``data``; see ``report.measure``."""
        from calibrant.data.multilabel import MultiLabel
        from calibrant.evaluate import label_table
        from calibrant.report.tables import measure

        if isinstance(data, MultiLabel):
            with suppress(InputError):  # too few groups of rows: the panel says so
                self.labels[file, split, calibrator] = label_table(data)
        self.rows += measure(data, file=file, split=split, calibrator=calibrator, **options)

    @property
    def plain(self) -> dict[str, Any]:
        """The labels as JSON data."""
        from calibrant._core.config import json_data

        rows, tests = [], []
        for place, table in self.labels.items():
            named = dict(zip(("file", "split", "calibrator"), place, strict=True))
            rows += [named | json_data(row) for row in table.rows]
            tests.append(named | {"p_value": table.p_value, "verdict": table.verdict})
        return {"labels": rows, "worst_label": tests}


def say_rows(
    rows: Sequence[Row],
    *,
    err: bool = False,
    notes: Sequence[str] = (),
    labels: Mapping[tuple[str, str, str | None], LabelTable] | None = None,
) -> None:
    """Print one table for each file, split and group: a line a metric, calibrated beside uncalibrated.

    Args:
        rows: The figures; those of several labels a row have a table before and one after calibration.
        err: Whether on stderr.
        notes: Printed at the end.
        labels: Tables of labels by file, split and calibrator.
    """
    screen = console(err=err)
    for key, part in groupby(rows, key=lambda row: (row.file, row.split, row.group, row.of_labels and row.calibrator)):
        figures = list(part)
        first = figures[0]
        size = f"n = {first.n:,}" + ("" if first.effective is None else f" (effective {first.effective:,.0f})")
        several = (
            [] if first.of_labels is None else [f"{first.of_labels.labels} labels", "after" * bool(first.calibrator)]
        )
        screen.print(" · ".join(filter(None, [*key[:3], size, *several])), style="bold")
        screen.print(_figures_as_table(figures, wide=screen.width >= NARROW))
        if (table := (labels or {}).get((first.file, first.split, first.calibrator))) is not None:
            screen.print(table.verdict)
            print_table(
                screen, ("label", "n", "positive", "mean p", "gap", "95 %", "ECE", "p (all)"), _label_rows(table)
            )
    limited = any(row.of_labels is None and (row.low is not None or row.null_high is not None) for row in rows)
    if limited and screen.width >= NARROW:
        screen.print(LEGEND, style="dim")
    for note in notes:
        screen.print(note, style="dim")


def say_evidence(evidence: Evidence, *, err: bool = False) -> None:
    """Print what an automatic choice weighed."""
    screen = console(err=err)
    screen.print(f"auto: {evidence.verdict}", style="bold")
    rows = []
    for trial in evidence.trials:
        if math.isfinite(trial.loss):
            figures = (f"{trial.loss:.4f}", f"{trial.gain:+.4f}", f"{trial.error:.4f}", f"{trial.weight:.2f}")
            # without settings, which may hold names in parentheses; the stages of a chain have none of their own
            plain = re.sub(r"\([^()]*=[^()]*\)", "", re.sub(r"\([^()]*\)", "", trial.name))
            rows.append((plain, *figures))
    print_table(screen, ("tried", "log-loss", "gain", "± s.e.", "weight"), rows)


@contextmanager
def path_or_stdin(name: str) -> Iterator[str]:
    """Yield a path to read for ``name``: itself, or a copy of stdin if it is ``-``."""
    if name != STREAM:
        yield name
        return
    content = sys.stdin.buffer.read()
    if not content:
        raise FileFormatError("predictions on stdin", "nothing", "pipe a file of predictions")
    # readers seek, and go by the suffix; a pipe has neither
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "stdin" + _suffix(content))
        path.write_bytes(content)
        yield str(path)


@contextmanager
def writable(name: str, *, suffix: str) -> Iterator[str]:
    """Give a path to write for ``name``: itself, or a file that goes to stdout when the block has ended without error."""
    if name != STREAM:
        yield name
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "stdout" + suffix)
        yield str(path)
        sys.stdout.buffer.write(path.read_bytes())
        sys.stdout.buffer.flush()


def check_output(path: str | Path, *, inputs: Sequence[str] = (), suffixes: Sequence[str] = (), what: str = "") -> None:
    """Refuse a place that cannot be written, before any work is done.

    Args:
        path: Where to write; - is stdout.
        inputs: Files that the command reads.
        suffixes: What its name may end in; empty allows any.
        what: What it then holds.

    Raises:
        InputError: For an input, or another suffix.
        FileFormatError: For a place without its folder, or without the permission to write there.
    """
    if str(path) != STREAM:
        check_target(path, inputs=[name for name in inputs if name != STREAM])
        if suffixes:
            check_suffix(path, suffixes, what=what)


def print_table(
    screen: Console, header: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "", left: int = 1
) -> None:
    """Print a table whose words stay whole; where the screen is too narrow for them, one line per cell instead.

    Args:
        screen: Where to print.
        header: C headings.
        rows: Rows of C cells.
        title: Printed above.
        left: Number of first columns that are aligned to the left.
    """
    columns = list(zip(header, *rows, strict=True))
    widths = [max(len(word) for cell in cells for word in cell.split() or [""]) for cells in columns]
    if title:
        screen.print(title, style="bold")
    more = [max(map(len, cells)) - width for cells, width in zip(columns, widths, strict=True)]
    spare = screen.width - sum(widths) - len(widths) + 1
    if spare < 0:
        for row in rows:
            screen.print()
            for heading, cell in zip(header, row, strict=True):
                if cell:
                    screen.print(f"{heading}: {cell}")
        return
    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
    # said here: to make room the library narrows the widest columns alike, below their longest word, and then cuts the last
    for index in sorted(range(len(columns)), key=more.__getitem__):  # what lacks little becomes whole first
        more[index] = min(spare, more[index])
        spare -= more[index]
    for index, (heading, width) in enumerate(zip(header, widths, strict=True)):
        table.add_column(heading, justify="left" if index < left else "right", width=width + more[index])
    for row in rows:
        table.add_row(*row)
    screen.print(table)


def _figures_as_table(rows: list[Row], *, wide: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("metric", overflow="fold")
    several = rows[0].of_labels is not None
    columns = list(dict.fromkeys(_heading(row) for row in rows))
    for name in columns:
        table.add_column("value" if columns == ["before"] else name, justify="right", overflow="fold")
        if wide:
            table.add_column("95 %", style="dim", no_wrap=True)
    if wide and not several:
        table.add_column("limit", justify="right", style="dim", no_wrap=True)
    for metric in dict.fromkeys(row.metric for row in rows):
        line = [row for row in rows if row.metric == metric]
        cells = [text for row in line for text in (_without_percent_sign(row, row.value), row.interval)[: 1 + wide]]
        limit = [_without_percent_sign(line[-1], line[-1].null_high)] if wide and not several else []
        table.add_row(line[0].label + (" %" if line[0].percent else ""), *cells, *limit)
    return table


def _heading(row: Row) -> str:
    if row.of_labels is not None:
        return "pooled" if row.of_labels.average == "pooled" else "mean over labels"
    return "before" if row.calibrator is None else "after"


def _label_rows(found: LabelTable) -> list[list[str]]:
    """Return the cells of the labels with the strongest evidence, each with its gap."""
    made = []
    for row in found.rows[:MOST_LABELS]:
        ends = "" if row.low is None or row.high is None else f"{row.low:.4f} … {row.high:.4f}"
        cells = [f"{row.n:,}", f"{row.positives:,}", f"{row.confidence:.4f}", f"{row.gap:+.4f}"]
        made.append([row.label, *cells, ends, f"{row.ece:.4f}", row.p_shown])
    if (more := len(found.rows) - MOST_LABELS) > 0:
        made.append([f"… {more} more (--json shows all)", *[""] * 7])
    return made


def _without_percent_sign(row: Row, value: float | None) -> str:
    return row.shown(value).removesuffix(" %")


def _suffix(content: bytes) -> str:
    """Return the suffix of what the first bytes say: the formats' own marks, else JSON lines, or a table of text."""
    # .npz and .pt are zip archives, of which the first member's name tells which
    if content.startswith(b"PK"):
        return ".npz" if b".npy" in content[:200] else ".pt"
    for mark, suffix in ((b"PAR1", ".parquet"), (b"ARROW1", ".feather"), (b"\x93NUMPY", ".npy"), (b"{", ".jsonl")):
        if content.startswith(mark):
            return suffix
    # eight bytes of length, then a JSON header: the format has no mark of its own
    return ".safetensors" if content[8:9] == b"{" and b"\0" in content[:8] else ".csv"
