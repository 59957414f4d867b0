"""The command line. Commands of one subject share a file; a mistake of the user is one sentence on stderr and exit code 2."""

from typing import Annotated, ClassVar

import typer

import calibrant
from calibrant.cli._application import OneSentenceGroup

__all__ = ["main"]


class Commands(OneSentenceGroup):
    """All commands, in the order of the help: the name of each, and the file that holds its function or its group."""

    names: ClassVar = {
        "demo": "study", "evaluate": "evaluate", "fit": "fit", "apply": "apply", "compare": "evaluate", "check": "operate",
        "watch": "operate", "report": "report", "export": "export",
        "methods": "methods", "study": "study",
    }  # fmt: skip


main = typer.Typer(
    name="calibrant",
    cls=Commands,
    help=calibrant.__doc__,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
