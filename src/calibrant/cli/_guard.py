"""The error boundary: a user's mistake is one sentence, with a remedy that works on the command line."""

import functools
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NoReturn, TypeVar

import typer

from calibrant.errors import CalibrantError, CalibrantWarning

USER_ERROR = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells have it

R = TypeVar("R")
ARGUMENTS: ContextVar[tuple[str, ...]] = ContextVar("ARGUMENTS", default=())  # of this command line, as they were typed


def guarded(command: Callable[..., R]) -> Callable[..., R]:
    """Return ``command`` saying a user's error, and any warning, as one sentence on stderr; our own bugs keep their traceback."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> R:
        with warnings.catch_warnings():  # it also puts showwarning back
            warnings.simplefilter("always", CalibrantWarning)
            warnings.showwarning = _show_warning
            try:
                return command(*args, **kwargs)
            except CalibrantError as error:
                fail(for_command_line(str(error)))
            except BrokenPipeError:  # the reader of our output has left, as `head` does
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise typer.Exit from None
            except OSError as error:
                fail(
                    f"expected to read or write {error.filename or 'a file'!r}, got {error.strerror or error!r}; check it"
                )
            except MemoryError:
                fail("expected the data to fit in memory, got more; evaluate fewer rows or splits at a time")
            except KeyboardInterrupt:
                fail("stopped before the end; only what was finished is kept", code=INTERRUPTED)

    return run


# What Python's remedies are called here; the rest of a sentence stays.
_REMEDIES = (
    (r"; [^;]*allow_fit_rows=True", "; evaluate on rows that it was not fitted on"),
    (r", or unchecked_kind=True if they really are logits", ", or subtract 1 from each if they really are logits"),
    (r"use from_probs \(in a file: name the array probs\)", "name the array probs"),
    (r"use from_logits \(in a file: name the array logits\) if", "name the array logits if"),
    (r"use from_logits if these are logits, BinaryPairs.from_probs class by class", "name the array logits, split the file by class"),
    (r"use from_binary_logits or from_binary_probs", "save two columns, 0 and the logit"),
    (r"pass classes=\[…\] to load", "load it in Python"),
    (r"pass kind='probs', or kind='logits', to calibrant\.read", "add --kind probs, or --kind logits"),
    (r"name one by split(?![\w=])", "name one by --split"),
    (r"pass labels \(in a file: add the array labels\)", "add the array labels, name their column by --label, or their file by --labels"),
    (r"or divide each row by its sum if it was rounded", "or add --normalize if they were rounded"),
    (r"call them by their kind, probs", "use --kind probs --normalize"),
    (r"leave (kind|normalize|columns|label|labels) out", r"leave --\1 out"),
    (r"(?<![-\w])class_names", "--class-names"),
    (r"(?<![-\w])ignore_index", "--ignore-index"),
    (r"(?<![-\w])class_dim", "--class-dim"),
)  # fmt: skip


def for_command_line(sentence: str) -> str:
    """Return ``sentence`` with a remedy that a person at the command line can follow."""
    for pattern, words in _REMEDIES:
        sentence = re.sub(pattern, words, sentence)
    return _READ.sub(_as_command, sentence)


_READ = re.compile(r"pass ((?:\w+='[^']*'|normalize=True)(?:, (?:\w+='[^']*'|normalize=True))*) to calibrant\.read")


def _as_command(found: re.Match[str]) -> str:
    """Return "run: calibrant evaluate scores.csv --columns 'p*' --kind probs" for the arguments that would read a file."""
    options = ["--normalize"] if "normalize=True" in found[1] else []
    for name, value in re.findall(r"(\w+)='([^']*)'", found[1]):
        options = [*options, "--" + name.replace("_", "-"), value]
    typed = ARGUMENTS.get()
    return f"run: calibrant {shlex.join([*typed, *options])}" if typed else f"add {shlex.join(options)}"


def fail(sentence: str, *, code: int = USER_ERROR) -> NoReturn:
    """Say ``sentence`` on stderr and leave with ``code``."""
    say_error(sentence)
    raise typer.Exit(code)


def say_error(sentence: str) -> None:
    """Say ``sentence`` on stderr, on one line."""
    typer.echo(typer.style("error: ", fg="red", bold=True) + " ".join(sentence.split()), err=True)


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    typer.echo(typer.style("warning: ", fg="yellow", bold=True) + " ".join(str(message).split()), err=True)
