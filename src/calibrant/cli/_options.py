"""Options that several commands share."""

from typing import Annotated, TypedDict

import typer

from calibrant import calibrators


class Axes(TypedDict):
    """How logits with more than two axes become rows."""

    class_dim: int
    ignore_index: int | None


def complete_method(incomplete: str) -> list[str]:
    """Return the methods that begin as ``incomplete`` does, for the shell's completion."""
    return [name for name in ("auto", *calibrators.__all__) if name.startswith(incomplete)]


ClassDim = Annotated[int, typer.Option(help="The class axis of logits with more than two, as in (N, T, K): 2.")]
IgnoreIndex = Annotated[int | None, typer.Option(help="A label that marks rows to leave out, such as -100 or 255.")]
