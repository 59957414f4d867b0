"""Options that several commands share."""

from typing import Annotated, TypedDict

import typer


class Axes(TypedDict):
    """How logits with more than two axes become rows."""

    class_dim: int
    ignore_index: int | None


ClassDim = Annotated[int, typer.Option(help="The class axis of logits with more than two, as in (N, T, K): 2.")]
IgnoreIndex = Annotated[int | None, typer.Option(help="A label that marks rows to leave out, such as -100 or 255.")]
