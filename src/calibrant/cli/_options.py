"""Options that several commands share."""

from collections.abc import Sequence
from typing import Annotated, TypedDict

import typer

from calibrant import calibrators
from calibrant.errors import InputError


class Axes(TypedDict):
    """How logits with more than two axes become rows."""

    class_dim: int
    ignore_index: int | None


def complete_method(incomplete: str) -> list[str]:
    """Return the methods that begin as ``incomplete`` does, for the shell's completion."""
    return [name for name in ("auto", *calibrators.__all__) if name.startswith(incomplete)]


ClassDim = Annotated[int, typer.Option(help="The class axis of logits with more than two, as in (N, T, K): 2.")]
IgnoreIndex = Annotated[int | None, typer.Option(help="A label that marks rows to leave out, such as -100 or 255.")]


def typed(context: typer.Context, names: Sequence[str]) -> list[str]:
    """Return which of the parameters ``names`` stand on the command line, as they are spelled there: ``--class-dim``."""
    flags = {parameter.name: max(parameter.opts, key=len) for parameter in context.command.params}
    found = []
    for name in names:
        source = context.get_parameter_source(name) if name in flags else None
        if source is not None and source.name == "COMMANDLINE":
            found.append(flags[name])
    return found


def refuse_typed(context: typer.Context, names: Sequence[str], *, where: str) -> None:
    """Refuse options that would have no effect.

    Args:
        context: Of the command.
        names: The parameters that have none.
        where: Why, after "for": "the folder x, which is streamed".

    Raises:
        InputError: If one of them stands on the command line.
    """
    if found := typed(context, names):
        raise InputError(
            f"expected only options that have an effect, got {' and '.join(found)} for {where}; leave it out"
        )
