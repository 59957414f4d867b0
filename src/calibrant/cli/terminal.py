"""Prints the output of commands: tables, JSON, progress, and each error as one sentence with an exit code.

If the reader of stdout stops early, as `head` does, the command still finishes with the same exit code.
"""

from __future__ import annotations

import gc
import io
import json
import os
import re
import shutil
import sys
import textwrap
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from calibrant.errors import CalibrantError, CalibrantWarning

USER_ERROR = 2
CRASH = 70  # EX_SOFTWARE of sysexits.h; a crash must not look like 1, which is a result of `check` and `watch`
INTERRUPTED = 130  # 128 + SIGINT, as in shells
# characters that a terminal would execute instead of showing: control characters, and marks that reverse the text direction
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_CLEAR = "\r\x1b[2K"  # erases the line of a terminal that shows progress


class Commands(click.Group):
    """The group of all commands; a command returns its exit code, or None for 0."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which they were added."""
        return list(self.commands)

    def main(self, *words: Any, **extra: Any) -> Any:
        """Run the command line and exit with its exit code."""
        gc.set_threshold(100_000)  # importing PyTorch creates millions of objects, none of which is garbage
        for stream in (sys.stdout, sys.stderr):  # an ASCII terminal or pipe shows "?" for characters that it lacks
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        issued = set[str]()

        def warn_once(message: Warning | str, *_: Any, **__: Any) -> None:
            if str(message) not in issued:
                issued.add(str(message))
                say("warning", str(message))

        with warnings.catch_warnings():  # also restores showwarning
            warnings.simplefilter("always", CalibrantWarning)
            warnings.showwarning = warn_once
            try:
                code = super().main(*words, **(extra | {"standalone_mode": False}))
                if sys.stdout is not None:
                    sys.stdout.flush()
            except click.exceptions.NoArgsIsHelpError as error:
                error.show()
                code = USER_ERROR
            except Exception as error:
                code, sentence = _explained(error)
                say("error", sentence)
        sys.exit(code or 0)


def _explained(error: Any) -> tuple[int, str]:
    """Return the exit code and the sentence for an error."""
    if isinstance(error, CalibrantError):
        return USER_ERROR, str(error)
    if isinstance(error, click.ClickException):  # a wrong call
        where, message = getattr(error, "ctx", None), error.format_message()
        end = "" if message[-1:] in ".?!" else "."
        return USER_ERROR, f"{message}{end} See {where.command_path if where else 'calibrant'} --help"
    if isinstance(error, OSError):
        return USER_ERROR, f"cannot read or write {error.filename or 'a file'}: {error.strerror or repr(error)}"
    if isinstance(error, MemoryError):
        return USER_ERROR, "the data do not fit in memory; evaluate fewer rows or splits at a time"
    if isinstance(error, click.Abort):  # raised for a KeyboardInterrupt
        return INTERRUPTED, "stopped before the end; only what was finished is kept"
    if os.environ.get("CALIBRANT_TRACEBACK"):
        traceback.print_exception(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    what = f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"
    more = "report it with the output of the same command under CALIBRANT_TRACEBACK=1"
    return CRASH, f"Calibrant itself failed with {what}; {more}"


def put(text: str, *, err: bool = False, **style: bool) -> None:
    """Print text unchanged except for control characters, which are replaced."""
    clear = _CLEAR if err and sys.stderr.isatty() else ""
    try:
        click.echo(clear + click.style(_CONTROLS.sub("�", text), **style), err=err)
    except BrokenPipeError:  # the reader of stdout has closed the pipe, so the rest is discarded
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(kind: str, sentence: str) -> None:
    """Print a note, a warning or an error on stderr, on one line."""
    put(f"{kind}: {' '.join(sentence.split())}", err=True)


def print_text(text: str, *, err: bool = False, **style: bool) -> None:
    """Print text, wrapped at the width of the terminal."""
    width = shutil.get_terminal_size().columns
    for line in text.split("\n"):
        put(textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False), err=err, **style)


def print_json(value: Any) -> None:
    """Print JSON on stdout in ASCII, which is safe in every terminal encoding."""
    put(json.dumps(value, indent=1, allow_nan=False))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "", left: int = 1) -> None:
    """Print a table.

    Args:
        header: The C headings.
        rows: Rows of C cells each.
        title: Printed above the table.
        left: Number of leading columns that are aligned to the left.
    """
    if title:
        print_text(title, bold=True)
    cells = [[_CONTROLS.sub("�", cell).replace("\n", " ") for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    put("\n".join([lines[0], "─" * len(lines[0]), *(line.rstrip() for line in lines[1:])]))


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show on stderr that ``what`` is in progress, with the lines of ``report_progress``, if stderr is a terminal."""
    from calibrant._core.warn import PROGRESS

    def show(line: str) -> None:
        text = _CONTROLS.sub("�", f"{what}: {line}" if line else what)
        click.echo(_CLEAR + text[: shutil.get_terminal_size().columns - 1], nl=False, err=True)

    if not sys.stderr.isatty() or PROGRESS.get() is not None:
        yield
        return
    show("")
    token = PROGRESS.set(show)
    try:
        yield
    finally:
        PROGRESS.reset(token)
        click.echo(_CLEAR, nl=False, err=True)
