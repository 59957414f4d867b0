"""The command line. One command a file; a mistake of the user is one sentence on stderr and exit code 2."""

from typing import Annotated

import typer

import calibrant
from calibrant.cli._application import OneSentenceGroup

__all__ = ["main"]


class Commands(OneSentenceGroup):
    """All commands, in the order of the help: each the name of its file and of its function, or of its group, there."""

    names = (
        "demo",
        "evaluate",
        "fit",
        "apply",
        "compare",
        "check",
        "plan",
        "watch",
        "estimate",
        "decide",
        "sample",
        "audit",
        "judge",
        "report",
        "inspect",
        "convert",
        "export",
        "ingest",
        "theory",
        "methods",
        "study",
    )


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
