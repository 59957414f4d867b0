"""``calibrant sample``, ``audit`` and ``plan``: which rows to label, what the labels say of all rows, and how many are needed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli._application import declare_argument, option, with_groups
from calibrant.cli._io import CODES, console, print_json, print_table, say, working
from calibrant.cli._options import (
    LAYOUT,
    AsJson,
    Inputs,
    Source,
    SplitRows,
    cost_table,
    is_streamed,
    of_costs,
    parts_of,
    read_names,
    refuse_typed,
    typed,
)
from calibrant.errors import FileFormatError, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from calibrant import BinaryPairs, Predictions
    from calibrant.operate import Sample
    from calibrant.operate.plan import Plan
    from calibrant.scale.rows import ParquetRows
    from calibrant.statistics.labelled import Integers


of_other = partial(option, None, "A second model's scores of the same rows: figures are differences.", metavar="FILE")
LARGE = 32 << 20  # bytes of logits in one Parquet file, above which a pool is streamed


@dataclass(frozen=True)
class DrawOptions:
    """What the rows are drawn for."""

    aim: str = option("accuracy", "A figure that audit knows, or 'worst group' with --by.", without="extend")
    by: str | None = option(None, "The groups, for the worst.", metavar="COLUMN", without="extend")
    other: str | None = of_other()
    costs: str | None = of_costs(without="extend")
    seed: int = option(0, "Same seed, same rows.", without="extend")
    answers: bool = option(False, "Show the model's answer beside each row, which may sway people.", "--answers")


@with_groups
def sample(
    inputs: Inputs,
    drawing: DrawOptions,
    output: Annotated[
        str, typer.Option("--output", "-o", help="The table to fill in, CSV; its state is saved beside it.")
    ],
    file: str | None = declare_argument(
        None, "Scores of all rows; labels in it must be of its classes and are not used.", metavar="POOL"
    ),
    budget: int = option(300, "Rows to draw.", min=1),
    split: str = option("test", "The split of POOL."),
    extend: str | None = option(
        None, "A table filled in: draw the next batch, and learn from its labels.", metavar="LABELLED"
    ),
) -> None:
    """Choose the rows whose labels say most about the whole pool; calibrate its scores first.

    Examples:

        calibrant sample pool.parquet --budget 300 -o to-label.csv

        calibrant sample pool.parquet --budget 100 --extend to-label.csv -o next.csv
    """
    from calibrant._core.check import check_count
    from calibrant.operate import sample as draw
    from calibrant.operate.audit.table import has_words, refuse_filled, write_table

    source = inputs.sources(file)[0]
    state = state_of(output)
    refuse_filled(output)
    costs = cost_table(drawing.costs)
    with source.opened() as here, working("drawing"):
        words = drawing.answers or (extend is not None and has_words(extend))
        others = [] if drawing.other is None else [drawing.other]
        opened = Opened.of(inputs, here, split, names_used=words, by=drawing.by, others=others)
        pool = opened.pool
        if extend is None:
            settings: dict[str, Any] = {"aim": drawing.aim, "seed": drawing.seed, "by": drawing.by}
            drawn = draw(pool, budget, other=opened.other, costs=costs, **settings)
        else:
            if not Path(state_of(extend)).exists():
                expected = f"the state of the sample, {state_of(extend)}"
                raise FileFormatError(expected, "no such file", "put it beside the table again")
            known = labelled_in([extend], opened)
            check_count(budget, name="budget", high=known.pool_rows - len(known.rows))
            opened = opened if known.by is None else opened.with_feature(known.by)
            drawn = known.extend(budget, pool=opened.pool)
        keys = opened.keys(rows := drawn.rows[drawn.labels < 0])
        if drawing.answers:
            keys["answer"] = opened.answers(rows)
    drawn.save(state)  # first, as a table without its state would stand for a first batch
    write_table(output, drawn, keys)
    console().print(f"{output}: {int((drawn.labels < 0).sum()):,} rows to label; {state} keeps how they were drawn")


@dataclass(frozen=True)
class Opened:
    """A pool that is read, or streamed, with the names of its classes and what else its files hold.

    Args:
        pool: The rows.
        names: Of the classes, in order, as the file calls them; empty where none are known.
        rows: Of a file that was read, with all its columns.
        other: A second model's predictions of the same rows, or those of several by their files.
    """

    pool: Predictions | BinaryPairs | ParquetRows
    names: tuple[str, ...]
    rows: SplitRows | None = None
    other: Predictions | BinaryPairs | dict[str, Predictions | BinaryPairs] | None = None

    @classmethod
    def of(
        cls, inputs: Inputs, source: Source, split: str, *, names_used: bool,
        by: str | None = None, others: Sequence[str] = (),
    ) -> Opened:  # fmt: skip
        """Return the pool in a file or folder; a folder of Parquet files, or a large one, is streamed.

        Raises:
            InputError: For options that have no effect on a pool, or on streamed rows.
        """
        from calibrant.scale.rows import ParquetRows, logits_bytes

        if inputs.ignore_index is None:  # otherwise labels mark rows to leave out
            refuse_typed(["labels", "on"], where="a pool, whose labels are not read")
        options = [name for name in LAYOUT if name != "class_names"]
        each = {other: inputs.read(inputs.sources(other)[0], split).data for other in others}
        second = each if len(each) > 1 else next(iter(each.values()), None)
        # A pool is read once or twice and never kept: a file is streamed that other commands still read whole.
        large = logits_bytes(source.path, spread=True) > LARGE and not typed([*options, "ignore_index"])
        if inputs.logits is None and (large or is_streamed(source.path)):
            unused = [*options, "class_dim", "ignore_index", *([] if names_used else ["class_names"])]
            refuse_typed(unused, where=f"{source.shown}, which is streamed")
            parts = parts_of(source.path, None)
            if len(parts) > 1 or typed(["split"]):
                parts = parts_of(source.path, split)
            names = tuple(read_names(inputs.class_names)) if inputs.class_names else ()
            return cls(ParquetRows(next(iter(parts.values()))), names, None, second)
        rows = inputs.read(source, split, names_used=names_used)
        names = rows.named.class_names or (rows.named.frame.names if rows.named.frame is not None else ())
        found = cls(rows.data, names, rows, second)
        return found if by is None else found.with_feature(by)

    def with_feature(self, name: str) -> Opened:
        """Return the pool with a column of its file among its features; a streamed one has them all."""
        if self.rows is None:
            return self
        rows = self.rows.with_features([name])
        return replace(self, pool=rows.data, rows=rows)

    def keys(self, rows: Integers) -> dict[str, list[object]]:
        """Return of some rows the columns by which a person finds them: those called id, and text."""
        import numpy as np

        from calibrant.operate.audit.figures import pieces_of
        from calibrant.scale.rows import ParquetRows

        found: dict[str, list[object]] = {}
        if isinstance(self.pool, ParquetRows):
            for places, inside, batch, _ in pieces_of(self.pool, rows):
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    if _may_be_key(name, text=str(column.type) in ("string", "large_string")):
                        known = found.setdefault(name.rpartition(":")[2], [None] * len(rows))
                        for place, value in zip(places, column.take(inside).to_pylist(), strict=True):
                            known[place] = value
            return found
        for name, values in ({} if self.rows is None else self.rows.named.arrays).items():
            column = np.asarray(values)
            if column.shape == (len(self.pool),) and _may_be_key(name, text=column.dtype.kind in "UO"):
                found[name.rpartition(":")[2]] = column[rows].tolist()
        return found

    def answers(self, rows: Integers) -> list[object]:
        """Return the class that the model decides for, by its name where there is one."""
        from calibrant.operate.audit.sample import need_pool

        decided = need_pool(self.pool).select(rows).held.predicted
        assert decided is not None  # a file of confidences has the decisions beside them
        return [self.names[one] if self.names else one for one in decided.tolist()]

    def need_ids(self, lines: list[dict[str, str]]) -> None:
        """Refuse lines whose row is not that of their id, as where some columns were sorted without the others.

        Raises:
            FileFormatError: If there is one.
        """
        import numpy as np

        if not (names := [name for name in lines[0] if f"_{name}".endswith("_id")]):
            return
        known = self.keys(np.array([int(line["row"]) for line in lines]))
        for name in known.keys() & names:
            for line, one in zip(lines, known[name], strict=True):
                given = line.get(name) or str(one)
                if given.strip().lstrip("0") != str(one).strip().lstrip("0"):  # spreadsheets drop zeros
                    expected = f"{name} {one} in row {line['row']} of the table, as in the pool"
                    raise FileFormatError(expected, given, "sort all columns together, or fill in the table again")


def _may_be_key(name: str, *, text: bool) -> bool:
    stem = name.rpartition(":")[2]
    return (stem == "id" or stem.endswith("_id") or text) and "label" not in stem


def state_of(table: str) -> str:
    """Return where the state of a table is kept: ``to-label.csv`` has ``to-label.sample.json``."""
    return str(Path(table).with_suffix(".sample.json"))


def expand_tables(given: list[str]) -> list[str]:
    """Return the tables that are named, those of a folder in the order of their names.

    Raises:
        FileFormatError: If a folder has none.
    """
    found: list[str] = []
    for path in given:
        inside = sorted(map(str, Path(path).glob("*.csv"))) if Path(path).is_dir() else [path]
        if not inside:
            raise FileFormatError(f"tables that are filled in, .csv, in {path}", "none", "name the table")
        found += inside
    return found


def labelled_in(tables: list[str], opened: Opened, *, state: str | None = None) -> Sample:
    """Return the sample of filled tables, of several batches or people, with all labels known.

    Raises:
        InputError: If a label is of a row that was not drawn, or the tables are of several draws.
        FileFormatError: If neither a state nor the columns of the draw are there.
    """
    import numpy as np

    from calibrant.operate import Sample
    from calibrant.operate.audit.sample import need_pool
    from calibrant.operate.audit.table import read_tables, sample_of

    labels, lines = read_tables(tables, names=opened.names)
    states = [state] if state is not None else [one for one in map(state_of, tables) if Path(one).exists()]
    if not states:
        typer.echo(
            f"note: {state_of(tables[-1])} is not there: that the scores are those that the sample was drawn from is not checked",
            err=True,
        )
        opened.need_ids(lines)
        return sample_of(lines, len(need_pool(opened.pool)), tables[-1]).labelled(labels)
    both = {} if opened.other is None else {"pool": opened.pool, "other": opened.other}
    samples = [Sample.load(one, **both) for one in states]
    whole = max(samples, key=lambda one: len(one.rows))  # each batch goes on with the rows before it
    for one, path in zip(samples, states, strict=True):
        if not np.array_equal(one.rows, whole.rows[: len(one.rows)]) or one.digest != whole.digest:
            raise InputError("tables of one draw", f"{path}, which is of another", "audit each draw by itself")
    found = whole.labelled(labels)  # after which every line's row is one of the pool
    opened.need_ids(lines)
    return found


COSTLY = {"cost", "cost-gap"}


@dataclass(frozen=True)
class Wanted:
    """Which figures, and their limits."""

    metric: list[str] | None = option(
        None, "accuracy, error, nll, brier, cost, aurc, cost-gap, ece, event-ece or classwise-ece; repeat for several."
    )
    maximum: list[str] | None = option(None, "A limit, such as ece=.05.", "--max", metavar="NAME=VALUE")
    minimum: list[str] | None = option(None, "A limit, such as accuracy=.9.", "--min", metavar="NAME=VALUE")
    by: str | None = option(None, "Every figure by these groups.", metavar="COLUMN")
    other: list[str] | None = option(
        None, "Another model's scores of the same rows: figures are differences; repeat.", metavar="FILE"
    )
    costs: str | None = of_costs()
    output: str | None = option(
        None, "Write the labelled rows with their weights, for fit, compare, report.", "--output", "-o", metavar="FILE"
    )


@with_groups
def audit(
    inputs: Inputs,
    wanted: Wanted,
    file: Annotated[str, typer.Argument(metavar="POOL", help="The scores that the sample was drawn from.")],
    labelled: Annotated[
        list[str],
        typer.Argument(metavar="LABELLED…", help="The tables that calibrant sample wrote, filled in; or their folder."),
    ],
    state: str | None = option(None, "The sample's state, if not beside the table.", metavar="FILE"),
    split: str = option("test", "The split of POOL."),
    as_json: AsJson = False,
) -> None:
    """Estimate figures of all rows of a pool from the labelled ones, with 95 % intervals, and decide limits after each batch.

    Exit code 0 pass, 1 fail, 3 not enough evidence.

    Examples:

        calibrant audit pool.parquet to-label.csv --min accuracy=.9

        calibrant audit pool.parquet to-label.csv next.csv --metric accuracy --metric ece --json
    """
    from calibrant.data.splits import save_predictions
    from calibrant.operate import audit as estimate
    from calibrant.operate.audit.table import has_words
    from calibrant.operate.check import read_limits

    source = inputs.sources(file)[0]
    tables, others = expand_tables(labelled), wanted.other or []
    figures = wanted.metric or ["accuracy"]
    limits = {"maximum": read_limits(wanted.maximum or [], option="--max"),
              "minimum": read_limits(wanted.minimum or [], option="--min")}  # fmt: skip
    if not COSTLY & {name.lower() for name in (*figures, *limits["maximum"], *limits["minimum"])}:
        refuse_typed(["costs"], where="figures without the cost", remedy="add --metric cost")
    costs = cost_table(wanted.costs)
    with source.opened() as here, working("estimating"):
        words = any(map(has_words, tables))
        opened = Opened.of(inputs, here, split, names_used=words, by=wanted.by, others=others)
        drawn = labelled_in(tables, opened, state=state)
        found = estimate(opened.pool, drawn, figures=figures, by=wanted.by, costs=costs, **limits)
        if wanted.output is not None:
            save_predictions(wanted.output, {"all": drawn.predictions(opened.pool)})
    if len(others) == 1 and not as_json:
        typer.echo(f"{file} minus {others[0]}:")
    say(found, as_json=as_json)
    raise typer.Exit(CODES[found.verdict])


ACCURACY = 0.9  # assumed where neither a file nor the option says it


@dataclass(frozen=True)
class Aim:
    """What the gate is to decide, and how it is simulated."""

    ece: float = option(0.03, "The limit on the ECE that is to be checked.", without="pool")
    power: float = option(0.9, "Probability of the right verdict.", without="pool")
    accuracy: float | None = option(None, "Assumed accuracy, where there is no file.", without="pool")
    true_ece: float = option(0.0, "Assumed ECE: below the limit the gate is to pass, above it to fail.", without="pool")
    draws: int = option(500, "Simulated checks a number of rows.", min=10)
    seed: int = option(0, "Same seed, same plan.")


@dataclass(frozen=True)
class LabelOptions:
    """What an audit of a pool is to say, and what its labels cost."""

    pool: str | None = option(
        None, "Scores of all rows: plan the labels of calibrant sample instead.", metavar="POOL", without="file"
    )
    figure: str = option("accuracy", "accuracy, error, nll, brier, cost or aurc.", "--aim", needs="pool")
    other: str | None = of_other(needs="pool")
    half_width: float | None = option(None, "The half-width that is wanted, as a fraction: .02.", needs="pool")
    price: float | None = option(None, "Of one label.", needs="pool")
    costs: str | None = of_costs(needs="pool")


@with_groups
def plan(
    inputs: Inputs,
    aim: Aim,
    wanted: LabelOptions,
    file: str | None = declare_argument(
        None, "Predictions whose confidences stand for the model's; labels are not used."
    ),
    split: str = option("test", "The split whose confidences are taken."),
    as_json: AsJson = False,
) -> None:
    """Estimate by simulation how many labelled rows `calibrant check --max ece=…` needs, or an audit of a pool.

    Examples:

        calibrant plan --ece .03 --power .9 --accuracy .9

        calibrant plan predictions.npz --ece .05 --true-ece .08

        calibrant plan --pool pool.parquet --half-width .02 --price .5
    """
    from calibrant.operate import plan as plan_rows
    from calibrant.operate import plan_audit

    if wanted.pool is not None:
        source = inputs.sources(wanted.pool)[0]
        if wanted.figure.lower() != "cost":
            refuse_typed(["costs"], where="figures without the cost", remedy="add --aim cost")
        costs = cost_table(wanted.costs)
        draws, others = aim.draws if typed(["draws"]) else 20, [] if wanted.other is None else [wanted.other]
        with source.opened() as here, working("simulating"):
            opened = Opened.of(inputs, here, split, names_used=False, others=others)
            asked: dict[str, Any] = {"half_width": wanted.half_width, "price": wanted.price, "costs": costs}
            told = plan_audit(opened.pool, other=opened.other, aim=wanted.figure, draws=draws, seed=aim.seed, **asked)
        say(told, as_json=as_json)
        return
    data = None
    if file is not None or inputs != Inputs():  # options on what a file holds ask for one
        data = inputs.read(inputs.sources(file)[0], split).data
    else:
        refuse_typed(["split"], where="a call without FILE")
        aim = replace(aim, accuracy=ACCURACY if aim.accuracy is None else aim.accuracy)
    with working("simulating"):
        found = plan_rows(data, **asdict(aim))
    if as_json:
        print_json(found.plain())
        return
    _print_plan(found, aim, assumed=data is None)


def _print_plan(found: Plan, aim: Aim, *, assumed: bool) -> None:
    rows = []
    for point in found.curve:
        rows.append([f"{point.rows:,}", *(f"{100 * p:.1f} %" for p in (point.passes, point.fails, point.undecided))])
    screen = console()
    print_table(screen, ("rows", "pass", "fail", "not enough evidence"), rows)
    if assumed:
        screen.print(f"Assumed: accuracy {aim.accuracy:g}.", style="dim")
    screen.print(str(found), style="bold")
