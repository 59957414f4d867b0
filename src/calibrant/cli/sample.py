"""``calibrant sample``: which rows people should label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

import calibrant
from calibrant._core.paths import check_suffix
from calibrant.cli._application import with_groups
from calibrant.cli._io import check_outputs, console, readable, working
from calibrant.cli._options import Inputs, at_path, costs_in, refuse_typed
from calibrant.errors import FileFormatError


@dataclass(frozen=True)
class Drawing:
    """What the rows are drawn for."""

    aim: Annotated[str, typer.Option(help="accuracy, error, nll, brier, cost, ece, or 'worst group' with --by.")] = (
        "accuracy"
    )
    by: Annotated[str | None, typer.Option(metavar="COLUMN", help="The groups, for the worst.")] = None
    costs: Annotated[str | None, typer.Option(metavar="FILE", help="CSV of costs, for the aim cost.")] = None
    seed: Annotated[int, typer.Option(help="Same seed, same rows.")] = 0


@with_groups
def sample(
    context: typer.Context,
    inputs: Inputs,
    drawing: Drawing,
    output: Annotated[
        str, typer.Option("--output", "-o", help="The table to fill in, CSV; its state is saved beside it.")
    ],
    file: Annotated[
        str | None, typer.Argument(metavar="POOL", help="Scores of all rows; labels in it are not read.")
    ] = None,
    budget: Annotated[int, typer.Option(min=1, help="Rows to draw.")] = 300,
    split: Annotated[str, typer.Option(help="The split of POOL.")] = "test",
    extend: Annotated[
        str | None,
        typer.Option(metavar="LABELLED", help="A table filled in: draw the next batch, and learn from its labels."),
    ] = None,
) -> None:
    """Choose the rows whose labels say most about the whole pool; calibrate its scores first.

    Examples:

        calibrant sample pool.parquet --budget 300 -o to-label.csv

        calibrant sample pool.parquet --budget 100 --extend to-label.csv -o next.csv
    """
    from calibrant._core.check import check_count
    from calibrant.data.splits import pick_split
    from calibrant.operate import sample as draw
    from calibrant.operate.audit.table import has_words, write_table

    source = inputs.sources(file)[0]
    refuse_labels(context, inputs)
    if extend is not None:
        refuse_typed(
            context, ["aim", "by", "costs", "seed"], where="--extend, which goes on with those of the first draw"
        )
    check_suffix(output, (".csv",), what="a table")
    state = state_of(output)
    before = [] if extend is None else [extend, state_of(extend)]
    read = [name for name in (file, drawing.costs, *before, *inputs.beside) if name is not None]
    check_outputs(Path(output), Path(state), inputs=read)
    table = None if drawing.costs is None else costs_in(drawing.costs).table
    with readable(source.path) as path, working("drawing"):
        at = at_path(source, path)
        named = inputs.named(at, names_used=extend is not None and has_words(extend))
        pool = pick_split(inputs.splits_of(named, at), split, source.shown)
        keys = keys_of(named.arrays, len(pool))
        if extend is None:
            drawn = draw(pool, budget, aim=drawing.aim, seed=drawing.seed, by=drawing.by, costs=table)
        else:
            if not Path(state_of(extend)).exists():
                raise FileFormatError(
                    f"the state of the sample, {state_of(extend)}", "no such file", "put it beside the table again"
                )
            known = labelled_in(extend, len(pool), named.class_names)
            check_count(budget, name="budget", high=known.pool_rows - len(known.rows))
            drawn = known.extend(budget, pool=pool)
    write_table(output, drawn, keys)
    drawn.save(state)
    console().print(f"{output}: {int((drawn.labels < 0).sum()):,} rows to label; {state} keeps how they were drawn")


def refuse_labels(context: typer.Context, inputs: Inputs) -> None:
    """Refuse labels beside a pool, which say nothing unless they mark rows to leave out.

    Raises:
        InputError: If labels were typed.
    """
    if inputs.ignore_index is None:
        refuse_typed(context, ["labels", "on"], where="a pool, whose labels are not read")


def state_of(table: str) -> str:
    """Return where the state of a table is kept: ``to-label.csv`` has ``to-label.sample.json``."""
    return str(Path(table).with_suffix(".sample.json"))


def labelled_in(table: str, rows: int, names: tuple[str, ...], *, state: str | None = None) -> calibrant.operate.Sample:
    """Return the sample of a filled table with all labels known.

    Raises:
        InputError: If a label is of a row that was not drawn.
        FileFormatError: If neither the state nor the column of probabilities is there.
    """
    from calibrant.operate import Sample
    from calibrant.operate.audit.table import read_table, sample_of

    labels, lines = read_table(table, names=names)
    saved = state or state_of(table)
    if state is not None or Path(saved).exists():
        return Sample.load(saved).labelled(labels)
    typer.echo(
        f"note: {saved} is not there: that the scores are those that the sample was drawn from is not checked", err=True
    )
    return sample_of(lines, rows, table).labelled(labels)


def keys_of(arrays: Mapping[str, object], rows: int) -> dict[str, list[object]]:
    """Return the columns by which a person finds a row: those called id, and text."""
    import numpy as np

    found = {}
    for name, values in arrays.items():
        column = np.asarray(values)
        stem = name.rpartition(":")[2]
        if (
            column.shape == (rows,)
            and (stem == "id" or stem.endswith("_id") or column.dtype.kind in "UO")
            and "label" not in stem
        ):
            found[stem] = column.tolist()
    return found
