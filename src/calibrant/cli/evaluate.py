"""``calibrant evaluate`` computes metrics of files, also by group; ``compare`` compares two models on the same rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli import options
from calibrant.cli.methods import members
from calibrant.cli.show import print_json, print_line, print_rows, print_table, working
from calibrant.errors import InputError, LeakError

if TYPE_CHECKING:
    from calibrant.data.predictions import Predictions
    from calibrant.evaluate.tables import Row
    from calibrant.metrics import Metric

MOST_GROUPS = 200  # a column with more values, such as an id, does not name groups, and every group takes time
SMALL_VALUES = 0.01  # a row whose values are all smaller is printed with five decimals


def evaluate(
    files: options.Files = None,
    example: options.Example = None,
    columns: options.Columns = None,
    label: options.Label = None,
    kind: options.Kind = None,
    split: Annotated[str | None, typer.Option(help="Evaluate this split only.")] = None,
    weights: options.Weights = None,
    groups: options.Groups = None,
    labels: options.LabelsFile = None,
    on: options.On = None,
    multilabel: options.SeveralLabels = False,
    calibrator: options.Saved = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:OPTION=VALUE,…]",
            help="Compute this metric instead of the default ones, such as ECE:bins=20 or NLL; may be repeated.",
        ),
    ] = None,
    by: options.By = None,
    draws: Annotated[
        int, typer.Option(min=0, help="Number of simulations for intervals and limits; 0 leaves both out.")
    ] = 1000,
    as_json: options.AsJson = False,
) -> None:
    """Measure accuracy, log-loss and calibration of every split.

    A folder of Parquet files, or one large Parquet file, is streamed: memory does not grow with the number of rows.

    Examples:

        calibrant evaluate predictions.npz

        calibrant evaluate scores.csv --columns 'p_*' --label y --kind probs

        calibrant evaluate predictions.npz --calibrator c.safetensors --split test --json

        calibrant evaluate predictions.npz --metric ECE:bins=20 --metric NLL --by region

        calibrant evaluate labels.csv --multilabel --columns 'p_*' --label 'y_*' --kind probs
    """
    reading = options.Reading(columns, label, kind, weights, groups, labels, on)
    sources = reading.sources(files, example)
    if multilabel and (metric or by):
        raise InputError("--metric and --by have no effect with --multilabel; leave them out")

    from calibrant.evaluate import label_table
    from calibrant.evaluate.tables import measure

    chosen = [parse_metric(text) for text in metric or []] or None
    fitted = options.read_calibrator(calibrator, several=multilabel)
    name, notes = None, list[str]()
    if fitted is not None:
        from calibrant.report.model import in_one_line

        name = in_one_line(fitted)
        notes = [f"after: {name}"]
    rows, tables = list["Row"](), dict[tuple[str, str, str | None], Any]()
    features = [] if multilabel else [*options.names_in(by), *options.features_of(fitted)]
    for source in sources:
        if not multilabel and options.is_streamed(source):
            options.refuse_streamed(source, by=by)
            rows += _streamed_rows(source, reading, split, chosen, fitted, draws=draws)
            continue
        contents = reading.contents(source, features=features, several=multilabel)
        parts = contents.splits if split is None else {split: contents.splits[contents.find(split)]}
        for part, whole in parts.items():
            states: dict[str | None, Any] = {None: whole}
            if fitted is not None:
                try:
                    states[name] = whole.calibrated_by(fitted)
                except LeakError:
                    states[name] = whole.calibrated_by(fitted, allow_fit_rows=True)
                    notes.append(
                        f"{source.shown}, {part}: the calibrator was fitted on these rows; evaluate it on others."
                    )
            for group, chosen_rows in [(None, None), *_groups_of(whole, options.names_in(by))]:
                for state, data in states.items():
                    held = data if chosen_rows is None else data[chosen_rows]
                    more: dict[str, Any] = {} if multilabel else {"metrics": chosen, "group": group}
                    with working(f"measuring {source.shown}"):
                        rows += measure(held, file=source.shown, split=part, calibrator=state, draws=draws, **more)
                    if multilabel:
                        with suppress(InputError):  # too few groups of rows: the panel says so
                            tables[source.shown, part, state] = label_table(held)
    if not as_json:
        print_rows(rows, notes=notes, labels=tables)
        return
    from calibrant._core.config import json_data
    from calibrant.cli.fit import calibrator_facts

    found: dict[str, Any] = {"rows": [row.plain() for row in rows]}
    found["fitted"] = None if fitted is None else calibrator_facts(fitted)
    if multilabel:
        found |= {"labels": [], "worst_label": []}
        for (file, part, state), table in tables.items():
            place = {"file": file, "split": part, "calibrator": state}
            found["labels"] += [place | json_data(row) for row in table.rows]
            found["worst_label"].append(place | {"p_value": table.p_value, "verdict": table.verdict})
    print_json(found)


def _streamed_rows(
    source: options.Source, reading: options.Reading, split: str | None, chosen: Any, fitted: Any, *, draws: int
) -> Iterator[Row]:
    """Yield the figures of streamed rows, before and after calibration."""
    from calibrant import scale
    from calibrant.evaluate.tables import panel_rows
    from calibrant.metrics import SumMetric
    from calibrant.report.model import as_text

    metrics = chosen or scale.sum_metrics()
    if strange := [one for one in metrics if not isinstance(one, SumMetric)]:
        raise InputError(f"{strange[0]!r} needs all rows at once, and {source.shown} is streamed; name another metric")
    with working(f"measuring {source.shown}"):
        batches = reading.batches(source)
        for calibrator in dict.fromkeys((None, fitted)):
            figures = scale.evaluate(batches, metrics=metrics, calibrator=calibrator, draws=draws)
            yield from panel_rows(
                figures, metrics, file=source.shown, split=split or "all", calibrator=as_text(calibrator)
            )


def _groups_of(data: Any, columns: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield a name such as ``region=EU`` and the group's rows, for every value of the columns."""
    import numpy as np
    import torch

    for column in columns:
        if column not in (data.features or {}):
            raise InputError(f"this split has no column {column!r}; leave it out, or name another split")
        values, codes = np.unique(np.asarray(data.features[column]).astype(str), return_inverse=True)
        if len(values) > MOST_GROUPS:
            raise InputError(f"{column!r} has {len(values)} values; at most {MOST_GROUPS} groups can be evaluated")
        for code, value in enumerate(values.tolist()):
            yield f"{column}={value}", torch.from_numpy(np.flatnonzero(codes == code))


def parse_metric(text: str) -> Metric:
    """Return the metric that ``ECE:bins=20,norm=2`` names: a class of ``calibrant.metrics`` and its fields.

    Raises:
        InputError: If there is no such metric, or no such option.
    """
    from calibrant import binning, metrics

    name, _, rest = text.partition(":")
    options.choose(name, [known for known, _ in members("metrics")], option="--metric")
    fields: dict[str, Any] = {}
    for key, _, value in (part.partition("=") for part in rest.split(",") if part):
        fields[key.strip()] = value.strip()
        with suppress(ValueError):  # a value that is not JSON is text
            fields[key.strip()] = json.loads(value)
    try:
        if fields.keys() & {"bins", "binning"}:
            make = {"EqualWidth": binning.EqualWidth, "EqualMass": binning.EqualMass}[
                fields.get("binning", "EqualWidth")
            ]
            fields["binning"] = make(fields.pop("bins")) if "bins" in fields else make()
        return getattr(metrics, name)(**fields)  # type: ignore[no-any-return]
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(f"--metric {text!r} has an unknown option or a wrong value: {error}") from error


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="Predictions of A or, with FILE, calibrator A or 'none'.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Predictions of B or, with FILE, calibrator B or 'none'.")],
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="Predictions to apply the calibrators A and B to.")
    ] = None,
    example: options.Example = None,
    columns: options.Columns = None,
    label: options.Label = None,
    kind: options.Kind = None,
    split: options.Split = "test",
    weights: options.Weights = None,
    groups: options.Groups = None,
    on: options.On = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare B with A on the same rows: differences, intervals, and paired tests.

    Rows of two tables are matched by --on or, without it, by their order. In the latter case all columns that both tables have must
    agree, except scores.

    Examples:

        calibrant compare resnet.npz densenet.npz

        calibrant compare old.csv new.csv --on id

        calibrant compare none c.safetensors predictions.npz

        calibrant compare none c.safetensors --example cifar10
    """
    reading = options.Reading(columns, label, kind, weights, groups)
    base = reading.source(file, example) if file is not None or example is not None else None
    if base is None and options.NONE in (a, b):
        raise InputError(
            f"{options.NONE!r} means no calibrator; name the FILE to which the other calibrator is applied"
        )
    sources = [] if base is not None else reading.sources([a, b])

    from calibrant.evaluate import compare as compare_predictions

    with working("comparing"):
        if base is None:
            pair = _rows_in_common(sources, reading, split=split, on=on)
        else:
            fitted = [options.read_calibrator(None if name == options.NONE else name) for name in (a, b)]
            rows = reading.rows(base, split, features=[name for one in fitted for name in options.features_of(one)])
            pair = [rows if one is None else rows.calibrated_by(one) for one in fitted]
        found = compare_predictions(*pair)
    if as_json:
        print_json({"a": a, "b": b, "on": None if base is None else base.shown, "split": split, **asdict(found)})
        return
    print_line(found.verdict, style="bold")
    cells = []
    for row in found.rows:
        places = 5 if max(abs(row.a), abs(row.b)) < SMALL_VALUES else 4
        between = "" if row.low is None else f"[{row.low:+.{places}f}, {row.high:+.{places}f}]"
        chance = "" if row.p_value is None else "<0.001" if row.p_value < 0.001 else f"{row.p_value:.3f}"
        values = [f"{row.a:.{places}f}", f"{row.b:.{places}f}", f"{row.difference:+.{places}f}"]
        cells.append([row.metric.split("(")[0], *values, between, chance])
    print_table(("metric", "A", "B", "B − A", "interval", "p"), cells, title=f"n = {found.n:,}")
    print_line(f"A: {a}\nB: {b}")


def _rows_in_common(
    sources: Sequence[options.Source], reading: options.Reading, *, split: str, on: str | None
) -> list[Predictions]:
    """Return the rows of two files in the same order.

    Raises:
        InputError: If a column that both have shows that the rows differ.
    """
    import numpy as np

    from calibrant.data.io import CALIBRATED, find_rows, refuse_other_rows

    contents = [reading.contents(one, features=[on] if on else ()) for one in sources]
    first, second = (one.splits[one.find(split)] for one in contents)
    if on is not None:
        keys = [np.asarray((data.features or {})[on]) for data in (first, second)]
        places = find_rows(*keys, on=on, name=sources[1].shown)
        return [replace(data, features=None) for data in (first, second[places])]
    one, two = (found.parts[0] for found in contents)
    added = [name for part in (one, two) for name in part.table.names if name.startswith(CALIBRATED)]
    refuse_other_rows(one.table, two.table, scores={*one.columns, *two.columns, *added})
    return [first, second]
