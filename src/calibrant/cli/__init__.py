"""The command line. One command a file; a mistake of the user is one sentence on stderr and exit code 2."""

from collections.abc import Callable
from typing import Annotated

import typer

import calibrant
from calibrant.cli._guard import guarded
from calibrant.cli._usage import OneSentenceGroup
from calibrant.cli.apply import apply
from calibrant.cli.compare import compare
from calibrant.cli.demo import demo
from calibrant.cli.evaluate import evaluate
from calibrant.cli.fit import fit
from calibrant.cli.methods import methods
from calibrant.cli.report import report
from calibrant.cli.study import study
from calibrant.cli.theory import theory

__all__ = ["main"]

COMMANDS: list[Callable[..., None]] = [demo, evaluate, fit, apply, compare, report, theory, methods]

main = typer.Typer(
    name="calibrant",
    cls=OneSentenceGroup,
    help=calibrant.__doc__,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in COMMANDS:
    main.command()(guarded(command))
main.add_typer(study, name="study")


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"calibrant {calibrant.__version__}")
        raise typer.Exit


@main.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say the version and stop.")
    ] = False,
) -> None: ...
