"""The command line: every command is a function in one of the neighbouring files, listed below in the order of the help.

These files import PyTorch and everything that computes inside their functions, so that help appears at once. A mistake of the
user results in one sentence on stderr and exit code 2.
"""

import gc
import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import calibrant
from calibrant.cli.evaluate import compare, evaluate
from calibrant.cli.fit import apply, export, fit
from calibrant.cli.methods import methods
from calibrant.cli.operate import check, watch
from calibrant.cli.report import report
from calibrant.cli.show import say
from calibrant.cli.study import demo, study
from calibrant.errors import CalibrantError, CalibrantWarning

__all__ = ["main"]

USER_ERROR = 2
CRASH = 70  # EX_SOFTWARE of sysexits.h; a crash must not look like 1, which is a result of `check` and `watch`
INTERRUPTED = 130  # 128 + SIGINT, as in shells


class Commands(TyperGroup):
    """The group of all commands, which turns every error into one sentence and an exit code."""

    def main(self, *words: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run the command line; in standalone mode exit with its exit code."""
        gc.set_threshold(100_000)  # importing PyTorch creates millions of objects, none of which is garbage
        extra["standalone_mode"] = False  # errors are then raised here instead of being printed
        if not standalone_mode:
            return super().main(*words, **extra)
        for stream in (sys.stdout, sys.stderr):  # an ASCII terminal or pipe shows "?" for characters that it lacks
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        with warnings.catch_warnings():  # also restores showwarning
            warnings.simplefilter("always", CalibrantWarning)
            warnings.showwarning = _once_each()
            code, sentence = 0, ""
            try:
                code = super().main(*words, **extra)
                if code == INTERRUPTED:
                    raise typer.Abort
                if sys.stdout is not None:
                    sys.stdout.flush()
            except CalibrantError as error:
                code, sentence = USER_ERROR, str(error)
            except OSError as error:
                code, reason = USER_ERROR, error.strerror or repr(error)
                sentence = f"cannot read or write {error.filename or 'a file'}: {reason}"
            except MemoryError:
                code = USER_ERROR
                sentence = "the data do not fit in memory; evaluate fewer rows or splits at a time"
            except typer.Abort:  # raised for a KeyboardInterrupt; some versions of the library return the code instead
                code, sentence = INTERRUPTED, "stopped before the end; only what was finished is kept"
            except Exception as error:
                code, sentence = _explained(error)
        if sentence:
            say("error", sentence)
        sys.exit(code if isinstance(code, int) else 0)


def _once_each() -> Callable[..., None]:
    """Return a function that prints each warning once, even if several steps of a command issue it."""
    shown = set[str]()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in shown:
            shown.add(str(message))
            say("warning", str(message))

    return show


def _explained(error: Any) -> tuple[int, str]:
    """Return exit code and sentence for an error of the command-line library (a wrong call), or for a crash of Calibrant."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return USER_ERROR, ""
    if hasattr(error, "format_message"):
        where = f"see {error.ctx.command_path if getattr(error, 'ctx', None) else 'calibrant'} --help"
        return USER_ERROR, f"{error.format_message().rstrip('.').replace('Value error, ', '')}; {where}"
    if os.environ.get("CALIBRANT_TRACEBACK"):
        traceback.print_exception(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    what = f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"
    more = "report it with the output of the same command under CALIBRANT_TRACEBACK=1"
    return CRASH, f"Calibrant itself failed with {what}; {more}"


main = typer.Typer(
    name="calibrant",
    cls=Commands,
    help=calibrant.__doc__,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rendering with Rich takes longer than the rest of the help
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (demo, report, evaluate, compare, fit, apply, export, check, watch, methods):
    main.command(short_help=(command.__doc__ or "").split("\n\n")[0])(command)
main.add_typer(study, name="study")


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"calibrant {calibrant.__version__}")
        raise typer.Exit


@main.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...
