"""``calibrant evaluate`` computes metrics for files and groups; ``compare`` compares two models on the same rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from inspect import isabstract
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from calibrant.cli import options
from calibrant.cli.terminal import print_json, print_table, print_text, working
from calibrant.errors import InputError, LeakError

if TYPE_CHECKING:
    from calibrant.data.predictions import Predictions
    from calibrant.evaluate.panel import Row
    from calibrant.evaluate.subgroups import Subgroups
    from calibrant.metrics import Metric

MOST_GROUPS = 200  # a column with more values, such as an id, is not accepted; every group takes time
MOST_LABELS = 20  # largest number of labels in a table on a terminal
LEGEND = "limit: 97.5 % of perfectly calibrated models of this size have a smaller error; an error below it is not significant"


@options.command()
@options.reading("files", *options.ROWS, "labels", "on", "multilabel")
@click.option("--split", metavar="NAME", help="Evaluate this split only.")
@options.saved
@options.repeated(
    "--metric", "Compute this metric instead of the default ones: NLL, ECE:binning=20 …", "NAME[:OPTION=VALUE,…]"
)
@options.by
@options.count("--draws", 0, 1000, "Number of simulations for intervals and limits; 0 omits both.")
@options.as_json
def evaluate(
    reading: options.Reading,
    split: str | None,
    calibrator: str | None,
    metric: Sequence[str],
    by: list[str],
    draws: int,
    as_json: bool,
) -> None:
    """Measure the accuracy, log-loss and calibration of every split.

    A folder of Parquet files, or one large Parquet file, is streamed, so memory does not grow with the number of rows.

    Examples:

        calibrant evaluate predictions.npz

        calibrant evaluate scores.csv --columns 'p_*' --label y --kind probs

        calibrant evaluate predictions.npz --calibrator c.safetensors --split test --json

        calibrant evaluate predictions.npz --metric ECE:binning=20 --metric NLL --by region

        calibrant evaluate labels.csv --multilabel --columns 'p_*' --label 'y_*' --kind probs
    """
    sources, multilabel = reading.sources(), reading.multilabel
    if multilabel and (metric or by):
        raise InputError("--metric and --by have no effect with --multilabel; leave them out")

    from calibrant.evaluate import label_table
    from calibrant.evaluate.multilabel import measure

    metrics = [parse_metric(text) for text in metric] or None
    fitted = options.read_calibrator(calibrator, several=multilabel)
    name, notes = None, list[str]()
    if fitted is not None:
        from calibrant.report.model import in_one_line

        name = in_one_line(fitted)
        notes = [f"after: {name}"]
    rows, tables = list["Row"](), dict[tuple[str, str, str | None], Any]()
    for source in sources:
        if reading.is_streamed(source):
            with working(f"measuring {source.shown}"):
                batches = reading.batches(source, split=split, by=by)
                rows += _streamed_rows(batches, metrics, fitted, name, source.shown, split or "all", draws=draws)
            continue
        contents = reading.contents(source, *by, fitted=[fitted])
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
            for group, members in _groups_of(whole, by) if by else [(None, ...)]:
                for state, data in states.items():
                    held = data if members is ... else data[members]
                    place: dict[str, Any] = {"file": source.shown, "split": part, "calibrator": state, "group": group}
                    with working(f"measuring {source.shown}"):
                        rows += measure(held, metrics=metrics, draws=draws, **place)
                    if multilabel:
                        with suppress(InputError):  # too few groups of rows, which the panel reports
                            tables[source.shown, part, state] = label_table(held)
    if not as_json:
        print_rows(rows, notes=notes, labels=tables)
        return
    found: dict[str, Any] = {"rows": [row.plain() for row in rows], "fitted": None}
    if fitted is not None:
        from calibrant.cli.fit import calibrator_facts

        found["fitted"] = calibrator_facts(fitted)
    if multilabel:
        from calibrant._core.config import json_data

        found |= {"labels": [], "worst_label": []}
        for (file, part, state), table in tables.items():
            place = {"file": file, "split": part, "calibrator": state}
            found["labels"] += [place | json_data(row) for row in table.rows]
            found["worst_label"].append(place | {"p_value": table.p_value, "verdict": table.verdict})
    print_json(found)


def _streamed_rows(
    batches: Any, metrics: Any, fitted: Any, name: str | None, file: str, split: str, *, draws: int
) -> Iterator[Row]:
    """Yield the metrics of streamed rows, before and after calibration."""
    from calibrant import scale
    from calibrant.metrics import SumMetric

    chosen = metrics or scale.sum_metrics()
    if strange := [one for one in chosen if not isinstance(one, SumMetric)]:
        raise InputError(f"{strange[0]!r} needs all rows at once, but {file} is streamed; name another metric")
    for calibrator, state in dict.fromkeys([(None, None), (fitted, name)]):
        figures = scale.evaluate(batches, metrics=chosen, calibrator=calibrator, draws=draws)
        yield from (replace(row, file=file, split=split, calibrator=state) for row in figures)


def _groups_of(data: Any, columns: Sequence[str]) -> Iterator[tuple[str | None, Any]]:
    """Yield None with all rows, then a name such as ``region=EU`` with its rows for every value of the columns."""
    import numpy as np
    import torch

    yield None, ...
    for column in columns:
        values, codes = np.unique(np.asarray(data.features[column]).astype(str), return_inverse=True)
        if len(values) > MOST_GROUPS:
            raise InputError(f"{column!r} has {len(values)} values; at most {MOST_GROUPS} groups can be evaluated")
        for code, value in enumerate(values.tolist()):
            yield f"{column}={value}", torch.from_numpy(np.flatnonzero(codes == code))


def parse_metric(text: str) -> Metric:
    """Return the metric that a text such as ``ECE:binning=EqualMass(20),norm=2`` describes by its class and fields.

    Raises:
        InputError: If there is no such metric, or no such option.
    """
    from calibrant import binning, metrics
    from calibrant._core.config import build

    name, _, rest = text.partition(":")
    classes = {known: one for known, one in vars(metrics).items() if known in metrics.__all__ and isinstance(one, type)}
    usable = [known for known, one in classes.items() if issubclass(one, metrics.Metric) and not isabstract(one)]
    options.choose(name, sorted(usable), option="--metric")
    table: dict[str, Any] = {"type": name}
    for key, _, value in (part.partition("=") for part in rest.split(",") if part):
        table[key.strip()] = value.strip()
        with suppress(ValueError):  # a value that is not JSON is text
            table[key.strip()] = json.loads(value)
    if isinstance(bins := table.get("binning"), str):  # a class of bins, and their number if it is given in brackets
        counted = re.fullmatch(r"(\w+)\((\d+)\)", bins)
        table["binning"] = {"type": counted[1], "bins": int(counted[2])} if counted else {"type": bins}
    try:
        return build(table, families=[metrics, binning])  # type: ignore[no-any-return]
    except InputError as error:
        raise InputError(f"--metric {text!r} has an unknown option or a wrong value: {error}") from error


def print_rows(
    rows: Sequence[Row], *, notes: Sequence[str] = (), labels: Mapping[Any, Subgroups] | None = None
) -> None:
    """Print one table per file, split and group, with a row per metric and columns for before and after calibration.

    Args:
        rows: The metrics; for several labels per row, there is one table before and one after calibration.
        notes: Sentences printed at the end.
        labels: Label tables by file, split and calibrator.
    """
    bounded = False
    for key, part in groupby(rows, key=lambda row: (row.file, row.split, row.group, row.average and row.calibrator)):
        figures = list(part)
        first = figures[0]
        several = first.labels is not None
        limited = not several and any(row.null_high is not None for row in figures)
        bounded |= limited
        size = f"n = {first.n:,}" + (f" (effective {first.effective:,.0f})" if first.effective is not None else "")
        about = [f"{first.labels} labels", "after" if first.calibrator else ""] if several else []
        states: dict[str, dict[str, Row]] = {}
        for row in figures:
            names = {None: "after" if row.calibrator else "before", "macro": "mean over labels", "pooled": "pooled"}
            states.setdefault(names[row.average], {})[row.metric] = row
        header = ["metric"]
        for state in states:
            header += ["value" if list(states) == ["before"] else state, "95 %"]
        body = []
        for metric in dict.fromkeys(row.metric for row in figures):
            line = [state.get(metric) for state in states.values()]
            last = next(row for row in reversed(line) if row is not None)
            cells = [last.label + " %" * last.percent]
            for one in line:
                cells += ["", ""] if one is None else [one.shown(one.value).removesuffix(" %"), one.interval]
            body.append(cells + [last.shown(last.null_high).removesuffix(" %")] * limited)
        title = " · ".join(filter(None, [*key[:3], size, *about]))
        print_table(header + ["limit"] * limited, body, title=title)
        if table := (labels or {}).get((first.file, first.split, first.calibrator)):
            _print_labels(table)
    for note in [LEGEND] * bounded + list(notes):
        print_text(note, dim=True)


def _print_labels(table: Subgroups) -> None:
    """Print the verdict on several labels, and the labels with the strongest evidence of miscalibration."""
    body = []
    for row in table.rows[:MOST_LABELS]:
        ends = "" if row.low is None or row.high is None else f"{row.low:.4f} … {row.high:.4f}"
        cells = [f"{row.n:,}", f"{row.positives:,}", f"{row.confidence:.4f}", f"{row.gap:+.4f}"]
        body.append([row.name, *cells, ends, f"{row.ece:.4f}", row.p_shown])
    print_text(table.verdict)
    print_table(("label", "n", "positive", "mean p", "gap", "95 %", "ECE", "p (all)"), body)
    if (more := len(table.rows) - MOST_LABELS) > 0:
        print_text(f"… {more} more (--json shows all)")


@options.command()
@click.argument("a")
@click.argument("b")
@options.reading("file", *options.ROWS, "on")
@options.split
@options.as_json
def compare(reading: options.Reading, a: str, b: str, split: str, as_json: bool) -> None:
    """Compare B with A on the same rows: differences, intervals, and paired tests.

    A and B are files of predictions. If a FILE or an example is named, they are saved calibrators that are applied to
    it; 'none' stands for no calibrator. The rows of two tables are matched by the column --on or, without it, by their
    order. In the latter case, all columns that both tables have, except scores, must agree.

    Examples:

        calibrant compare resnet.npz densenet.npz

        calibrant compare old.csv new.csv --on id

        calibrant compare none c.safetensors predictions.npz

        calibrant compare none c.safetensors --example cifar10
    """
    base = None if reading.file is None and reading.example is None else reading.source()
    if base is None and options.NONE in (a, b):
        raise InputError(
            f"{options.NONE!r} means no calibrator; name the FILE to which the other calibrator is applied"
        )
    sources = [] if base is not None else reading.sources(a, b)

    from calibrant import metrics
    from calibrant.evaluate import compare as compare_predictions
    from calibrant.evaluate.panel import in_percent

    with working("comparing"):
        if base is None:
            pair = _rows_in_common(sources, reading, split=split)
        else:
            fitted = [options.read_calibrator(None if name == options.NONE else name) for name in (a, b)]
            rows = reading.rows(base, split, fitted=fitted)
            pair = [rows if one is None else rows.calibrated_by(one) for one in fitted]
        found = compare_predictions(*pair)
    if as_json:
        print_json({"a": a, "b": b, "on": None if base is None else base.shown, "split": split, **asdict(found)})
        return
    print_text(found.verdict, bold=True)
    cells = []
    for row in found.rows:
        name = row.metric.split("(")[0]
        scale, digits, unit = (100, ".2f", " %") if in_percent(getattr(metrics, name)()) else (1, ".4f", "")
        a_value, b_value, change = scale * row.a, scale * row.b, scale * row.difference
        between = (
            ""
            if row.low is None or row.high is None
            else f"[{scale * row.low:+{digits}}, {scale * row.high:+{digits}}]"
        )
        chance = "" if row.p_value is None else "<0.001" if row.p_value < 0.001 else f"{row.p_value:.3f}"
        cells.append(
            [name + unit, f"{a_value:{digits}}", f"{b_value:{digits}}", f"{change:+{digits}}", between, chance]
        )
    print_table(("metric", "A", "B", "B − A", "95 %", "p"), cells, title=f"n = {found.n:,}")
    print_text("95 %: interval of this difference alone; p: adjusted for the number of metrics (Holm)", dim=True)
    print_text(f"A: {a}\nB: {b}")


def _rows_in_common(sources: Sequence[options.Source], reading: options.Reading, *, split: str) -> list[Predictions]:
    """Return the rows of two files in the same order.

    Raises:
        InputError: If a common column shows that the rows differ.
    """
    import numpy as np

    from calibrant.data.io import CALIBRATED, find_rows, refuse_other_rows

    on = reading.on
    contents = [reading.contents(one, *([] if on is None else [on])) for one in sources]
    first, second = (one.splits[options.find_split(one, split)] for one in contents)
    if on is not None:
        keys = [np.asarray((data.features or {})[on]) for data in (first, second)]
        second = second[find_rows(*keys, on=on, name=sources[1].shown)]
        differ = np.flatnonzero((first.require_labels() != second.require_labels()).numpy())
        if len(differ) and first.class_names == second.class_names:
            names = f"{sources[0].shown} and {sources[1].shown}"
            raise InputError(f"{names} have different labels for the same {on} {str(keys[0][differ[0]])!r}")
        return [replace(data, features=None) for data in (first, second)]
    one, two = (found.parts[0] for found in contents)
    added = [name for part in (one, two) for name in part.table.names if name.startswith(CALIBRATED)]
    refuse_other_rows(one.table, two.table, scores={*one.columns, *two.columns, *added})
    return [first, second]
