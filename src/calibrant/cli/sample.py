"""``calibrant sample``: which rows people should label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant._core.paths import check_suffix
from calibrant.cli._application import with_groups
from calibrant.cli._io import check_outputs, console, readable, working
from calibrant.cli._options import LAYOUT, Inputs, Source, at_path, costs_in, read_names, refuse_typed, typed
from calibrant.errors import FileFormatError

if TYPE_CHECKING:
    from calibrant import BinaryPairs, Predictions
    from calibrant.operate import Sample
    from calibrant.operate.audit.design import Integers
    from calibrant.scale.rows import ParquetRows


LARGE = 32 << 20  # bytes of logits in one Parquet file, above which a pool is streamed


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
        opened = Opened.of(context, inputs, source, path, split, names_used=extend is not None and has_words(extend))
        pool = opened.pool
        if extend is None:
            drawn = draw(pool, budget, aim=drawing.aim, seed=drawing.seed, by=drawing.by, costs=table)
        else:
            if not Path(state_of(extend)).exists():
                raise FileFormatError(
                    f"the state of the sample, {state_of(extend)}", "no such file", "put it beside the table again"
                )
            known = labelled_in(extend, opened)
            check_count(budget, name="budget", high=known.pool_rows - len(known.rows))
            drawn = known.extend(budget, pool=pool)
        keys = opened.keys(drawn.rows[drawn.labels < 0])
    write_table(output, drawn, keys)
    drawn.save(state)
    console().print(f"{output}: {int((drawn.labels < 0).sum()):,} rows to label; {state} keeps how they were drawn")


@dataclass(frozen=True)
class Opened:
    """A pool that is read, or streamed, with the names of its classes and what else its files hold.

    Args:
        pool: The rows.
        names: Of the classes, in order; empty where none are known.
        arrays: Name → column of a file that was read.
    """

    pool: Predictions | BinaryPairs | ParquetRows
    names: tuple[str, ...]
    arrays: Mapping[str, object]

    @classmethod
    def of(
        cls, context: typer.Context, inputs: Inputs, source: Source, path: str, split: str, *, names_used: bool
    ) -> Opened:
        """Return the pool in a file or folder; a folder of Parquet files, or a large one, is streamed.

        Raises:
            InputError: For options that have no effect on streamed rows.
        """
        from calibrant.cli._streamed import is_streamed, parts_of
        from calibrant.data.splits import pick_split
        from calibrant.scale.rows import ParquetRows, logits_bytes

        options = [name for name in LAYOUT if name != "class_names"]
        # A pool is read once or twice and never kept: a file is streamed that other commands still read whole.
        large = logits_bytes(path) > LARGE and not typed(context, [*options, "ignore_index"])
        if inputs.logits is None and (large or is_streamed(path)):
            unused = [*options, "class_dim", "ignore_index", *([] if names_used else ["class_names"])]
            refuse_typed(context, unused, where=f"{source.shown}, which is streamed")
            parts = parts_of(path, None, context)
            parts = parts if len(parts) == 1 and not typed(context, ["split"]) else parts_of(path, split, context)
            names = tuple(read_names(inputs.class_names)) if inputs.class_names else ()
            return cls(ParquetRows(next(iter(parts.values()))), names, {})
        at = at_path(source, path)
        named = inputs.named(at, names_used=names_used)
        return cls(pick_split(inputs.splits_of(named, at), split, source.shown), named.class_names, named.arrays)

    def __len__(self) -> int:
        return len(self.pool) if hasattr(self.pool, "__len__") else self.pool.rows

    def keys(self, rows: Integers) -> dict[str, list[object]]:
        """Return of some rows the columns by which a person finds them: those called id, and text."""
        import numpy as np

        from calibrant.scale.rows import ParquetRows

        if isinstance(self.pool, ParquetRows):
            return self._streamed_keys(self.pool, rows)
        found = {}
        for name, values in self.arrays.items():
            column = np.asarray(values)
            if column.shape == (len(self),) and _is_key(name, text=column.dtype.kind in "UO"):
                found[name.rpartition(":")[2]] = column[rows].tolist()
        return found

    def _streamed_keys(self, pool: ParquetRows, rows: Integers) -> dict[str, list[object]]:
        import numpy as np

        place = {int(row): at for at, row in enumerate(rows)}
        found: dict[str, list[object]] = {}
        first, ascending = 0, np.sort(rows)
        for shard in pool.shards:
            for batch, _ in pool.pieces(shard):
                inside = ascending[(ascending >= first) & (ascending < first + batch.num_rows)]
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    if len(inside) and _is_key(name, text=str(column.type) in ("string", "large_string")):
                        values = found.setdefault(name.rpartition(":")[2], [None] * len(rows))
                        for row, value in zip(inside, column.take(inside - first).to_pylist(), strict=True):
                            values[place[int(row)]] = value
                first += batch.num_rows
        return found


def _is_key(name: str, *, text: bool) -> bool:
    stem = name.rpartition(":")[2]
    return (stem == "id" or stem.endswith("_id") or text) and "label" not in stem


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


def labelled_in(table: str, opened: Opened, *, state: str | None = None) -> Sample:
    """Return the sample of a filled table with all labels known.

    Raises:
        InputError: If a label is of a row that was not drawn.
        FileFormatError: If neither the state nor the column of probabilities is there.
    """
    from calibrant.operate import Sample
    from calibrant.operate.audit.table import read_table, sample_of

    labels, lines = read_table(table, names=opened.names)
    saved = state or state_of(table)
    if state is not None or Path(saved).exists():
        return Sample.load(saved).labelled(labels)
    typer.echo(
        f"note: {saved} is not there: that the scores are those that the sample was drawn from is not checked", err=True
    )
    return sample_of(lines, len(opened), table).labelled(labels)
