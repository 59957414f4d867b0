"""``calibrant evaluate`` and ``compare``: the figures of files, by metric and by group; two models on the same rows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

import calibrant
from calibrant._files import shown
from calibrant.cli._application import option, with_groups
from calibrant.cli._io import (
    Findings,
    console,
    print_json,
    print_table,
    say_json,
    say_rows,
    working,
)
from calibrant.cli._options import (
    UNCALIBRATED,
    AsJson,
    Example,
    Files,
    Inputs,
    OneFile,
    SeveralLabels,
    Source,
    SplitRows,
    among,
    check_calibrator,
    choose,
    feature_names,
    listed,
    refuse_for_several,
    typed_columns,
)
from calibrant.cli._streams import OnRay, parts_of, source_of, streams
from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.data.predictions import Predictions
    from calibrant.evaluate.compare import Comparison
    from calibrant.metrics import Metric, SumMetric
    from calibrant.report.tables import Row


# a column of distinct values, such as an id, is no grouping; and every group costs a panel with its draws
MOST_GROUPS = 200
SMALL_VALUES = 0.01  # below, a row is printed with five decimals


def metric_names() -> list[str]:
    """Return the names of the metrics, which are classes and no bases of some, without loading PyTorch."""
    curves = ("RiskCoverage", "RocCurve")
    return [one for one in listed("metrics") if one[0].isupper() and not one.endswith("Metric") and one not in curves]


complete_metric = among(metric_names)


@dataclass(frozen=True)
class MeasureOptions:
    """What is measured: which split, after which calibrator, by which metrics, on which groups."""

    split: str | None = option(None, "Only this split.")
    calibrator: str | None = option(None, "Also after this calibrator.", "--calibrator", "-c")
    metric: list[str] | None = option(
        None,
        "This metric instead of the panel, such as ECE:bins=20 or NLL; may be repeated.",
        metavar="NAME[:OPTION=VALUE,…]",
        autocompletion=complete_metric,
    )
    bins: int | None = option(None, "Bins of every metric that has some.", min=1)
    by: list[str] | None = option(
        None, "Also each group of these columns; may be repeated. Not for a streamed folder.", metavar="COLUMN,…"
    )
    draws: int = option(1000, "Draws for intervals and limits if calibrated; 0 leaves them out.", min=0)


@with_groups
def evaluate(
    inputs: Inputs,
    given: Files,
    what: MeasureOptions,
    as_json: AsJson = False,
    multilabel: SeveralLabels = False,
    on_ray: OnRay = False,
) -> None:
    """Measure accuracy, log-loss and calibration of every split.

    A folder of Parquet files, or one large one, is streamed: any number of rows, in bounded memory. Folders in it, such as val/
    and test/, are splits.

    Examples:

        calibrant evaluate predictions.npz

        calibrant evaluate scores.csv --columns 'p_*' --label y --kind probs

        calibrant evaluate predictions.npz --calibrator c.safetensors --split test --json

        calibrant evaluate predictions.npz --metric ECE:bins=20 --metric NLL --by region

        calibrant evaluate labels.csv --multilabel --columns 'p_*' --label 'y_*' --kind probs
    """
    if multilabel:
        refuse_for_several("metric", "bins", "by")
    for text in what.metric or []:
        choose(text.partition(":")[0], metric_names(), option="--metric", listing="calibrant methods metrics")
    check_calibrator(what.calibrator)
    sources = given.sources(inputs)

    from calibrant.cli._calibrators import calibrator_facts, load_fitted
    from calibrant.report.model import in_one_line

    fitted = load_fitted(what.calibrator, several=multilabel)
    panel = Panel.of(what.metric or [], what.bins)
    found = Findings(notes=[] if fitted is None else [f"after: {in_one_line(fitted)}"])
    for source in sources:
        if not multilabel and streams(source.path, "by"):
            found.rows += _streamed_rows(source, inputs, what, panel, fitted, on_ray=on_ray)
            continue
        with working(f"measuring {source.shown}"):
            _measure_file(found, source, inputs, what, panel, fitted, several=multilabel)
    if as_json:
        said = None if fitted is None else calibrator_facts(fitted)
        say_json(found.rows, fitted=said, extra=found.plain if multilabel else None)
    else:
        say_rows(found.rows, notes=found.notes, labels=found.labels)


def _streamed_rows(
    source: Source, inputs: Inputs, what: MeasureOptions, panel: Panel, calibrator: Any, *, on_ray: bool
) -> Iterator[Row]:
    """Yield figures over the splits of streamed data, before and after ``calibrator``."""
    from calibrant import scale
    from calibrant.report.model import as_text
    from calibrant.report.tables import panel_rows

    # before and after; without a calibrator the two are one
    states, metrics = dict.fromkeys((None, calibrator)), panel.sums(source.shown)
    for part, path in parts_of(source.path, what.split).items():
        for fitted in states:
            with working(f"measuring {shown(path)}"):
                rows = source_of(path, inputs, on_ray=on_ray)
                figures = scale.evaluate(rows, metrics=metrics, calibrator=fitted, draws=what.draws)
            place = {"file": shown(source.path), "split": part, "calibrator": as_text(fitted)}
            yield from panel_rows(figures, metrics, **place)


def _measure_file(
    found: Findings,
    source: Source,
    inputs: Inputs,
    what: MeasureOptions,
    panel: Panel,
    calibrator: Any,
    *,
    several: bool,
) -> None:
    """Add the figures of a file's splits (or of one) and their groups, and notes on splits that the calibrator was fitted on."""
    from calibrant.cli._calibrators import fitted_on
    from calibrant.report.model import in_one_line

    columns = typed_columns(what.by) or []
    how: dict[str, Any] = {"several": several, "features": [] if several else [*columns, *feature_names(calibrator)]}
    if what.split is None:
        chosen = inputs.parts(source, **how)
    else:
        chosen = {what.split: inputs.read(source, what.split, **how)}
    for name, rows in chosen.items():
        data = rows.data
        parts: list[tuple[Any, str | None]] = [(data, None), *by_column(rows, columns)]
        for part, group in parts:
            measured: dict[str, Any] = {"file": source.shown, "split": name, "draws": what.draws, "group": group}
            measured |= {} if several else {"metrics": panel.metrics_for(part)}
            found.measure(part, **measured)
            if calibrator is not None:
                after = part.calibrated_by(calibrator, allow_fit_rows=True)
                found.measure(after, calibrator=in_one_line(calibrator), **measured)
        if calibrator is not None and fitted_on(data, calibrator):
            note = "the calibrator was fitted on these rows; evaluate it on others."
            found.notes.append(f"{source.shown}, {name}: {note}")


@dataclass(frozen=True)
class Panel:
    """Which metrics are measured: those named, or the panel; ``bins`` replaces the number of bins of each that has some."""

    named: tuple[Metric, ...]
    bins: int | None

    @classmethod
    def of(cls, texts: Sequence[str], bins: int | None) -> Panel:
        """Return what ``--metric`` and ``--bins`` say.

        Raises:
            InputError: For a metric or an option of it that does not exist, or bins where no metric has any.
        """
        named = tuple(parse_metric(text) for text in texts)
        if bins is not None and named and not any(_binned(metric) for metric in named):
            raise InputError("a metric with bins beside --bins", f"{', '.join(texts)}", "leave it out")
        return cls(named, bins)

    def metrics_for(self, data: Predictions) -> list[Metric]:
        """Return the metrics to measure on ``data``."""
        from calibrant.evaluate import default_metrics

        return [_rebinned(metric, self.bins) for metric in self.named or default_metrics(data)]

    def sums(self, file: str) -> list[SumMetric[Any]]:
        """Return the metrics to measure on streamed rows: sums alone.

        Args:
            file: What messages call the data.

        Raises:
            InputError: For a metric that needs all rows at once.
        """
        from calibrant.metrics import SumMetric
        from calibrant.scale import sum_metrics

        chosen = [_rebinned(metric, self.bins) for metric in self.named or sum_metrics()]
        found = []
        for metric in chosen:
            if not isinstance(metric, SumMetric):
                raise InputError(
                    f"metrics that are sums for {file}, which is streamed",
                    f"{metric!r}",
                    f"name one of {', '.join(type(one).__name__ for one in sum_metrics())}",
                )
            found.append(metric)
        return found


def parse_metric(text: str) -> Metric:
    """Return the metric that ``ECE:bins=20,norm=2`` names: a class of ``calibrant.metrics`` and its fields.

    Raises:
        InputError: If there is no such metric, or no such option.
    """
    from calibrant import metrics
    from calibrant._core.config import build
    from calibrant.binning import EqualMass, EqualWidth

    name, _, rest = text.partition(":")
    options = dict(_option_of(part, name) for part in rest.split(",") if part.strip())
    known = {field.name for field in dataclasses.fields(getattr(metrics, name))}
    if "binning" in known and options.keys() & {"bins", "binning"}:
        count = {"bins": options.pop("bins")} if "bins" in options else {}
        table = {"type": options.pop("binning", "EqualWidth"), **count}
        options["binning"] = build(table, families=[], classes=(EqualWidth, EqualMass))
    if strange := sorted(set(options) - known):
        may = ", ".join(sorted(known | ({"bins"} if "binning" in known else set()))) or "none"
        raise InputError(f"options of {name} among {may}", f"{strange[0]!r}", "leave it out")
    return build({"type": name, **options}, families=[metrics])  # type: ignore[no-any-return]


def by_column(rows: SplitRows, columns: Sequence[str]) -> Iterator[tuple[Predictions, str]]:
    """Yield (its rows, ``region=EU``) for every value of the ``columns`` beside a split.

    Raises:
        InputError: If a column is missing, has too many values, or does not lie beside the rows.
    """
    import numpy as np
    import torch

    for column in columns:
        found, codes = np.unique(rows.column(column).astype(str), return_inverse=True)
        if len(found) > MOST_GROUPS:
            got = f"{len(found)} values of {column!r}"
            raise InputError(f"at most {MOST_GROUPS} groups", got, "name a column of few values")
        for place, value in enumerate(found.tolist()):
            yield rows.data[torch.from_numpy(np.flatnonzero(codes == place))], f"{column}={value}"


def _option_of(part: str, name: str) -> tuple[str, Any]:
    key, sign, value = part.partition("=")
    if not sign or not key.strip():
        raise InputError(f"options of {name} as option=value", f"{part!r}", f"write {name}:bins=20")
    try:
        return key.strip(), json.loads(value)
    except (ValueError, RecursionError):  # no JSON, or a number of thousands of digits: text
        return key.strip(), value.strip()


def _binned(metric: Metric) -> bool:
    from calibrant.binning import EqualMass, EqualWidth

    return isinstance(getattr(metric, "binning", None), EqualWidth | EqualMass)


def _rebinned(metric: Any, bins: int | None) -> Any:
    if bins is None or not _binned(metric):
        return metric
    return dataclasses.replace(metric, binning=dataclasses.replace(metric.binning, bins=bins))


@with_groups
def compare(
    inputs: Inputs,
    a: Annotated[str, typer.Argument(metavar="A", help="Predictions; or, before a FILE, a calibrator or 'none'.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The same of B.")],
    file: Annotated[str | None, typer.Argument(help="Predictions to apply the calibrators A and B to.")] = None,
    example: Example = None,
    split: str = option("test", "The split to compare on."),
    as_json: AsJson = False,
) -> None:
    """Compare B with A on the same rows: differences, intervals, and paired tests.

    Rows of two tables are matched by --on, or by their order: then every column that both have, and that is no score, must agree.

    Examples:

        calibrant compare resnet.npz densenet.npz

        calibrant compare old.csv new.csv --on id

        calibrant compare none c.safetensors predictions.npz

        calibrant compare none c.safetensors --example cifar10
    """
    base = None
    if file is not None or example is not None:
        for name in (a, b):
            check_calibrator(name)
        base = OneFile(file, example).source(inputs)
    elif UNCALIBRATED in (a, b):
        raise InputError(f"{UNCALIBRATED!r} stands for no calibrator; name the FILE that the other is applied to")
    sources = [] if base is not None else inputs.sources([a, b])

    from calibrant.evaluate import compare as compare_predictions

    with working("comparing"):
        if base is None:
            pair = _matched(*sources, split=split, inputs=inputs)
        else:
            paths = [None if name == UNCALIBRATED else calibrant.load(name) for name in (a, b)]
            names = [name for one in paths for name in feature_names(one)]
            rows = inputs.read(base, split, features=names)
            pair = [rows.through(one) for one in paths]
        found = compare_predictions(*pair)
    if as_json:
        print_json({"a": a, "b": b, "on": None if base is None else base.shown, "split": split, **asdict(found)})
    else:
        screen = console()
        header = ("metric", "A", "B", "B − A", "interval", "p")
        print_table(screen, header, _comparison_rows(found), title=f"n = {found.n:,}")
        screen.print(f"A: {a}\nB: {b}\n\n{found.verdict}")


def _matched(a: Source, b: Source, *, split: str, inputs: Inputs) -> list[Predictions]:
    """Return the rows of two files in one order.

    Raises:
        InputError: If a column that both have shows that they are not.
    """
    import numpy as np

    from calibrant.data.io import CALIBRATED, find_rows, refuse_other_rows
    from calibrant.data.tables import Arrays

    on, inputs = inputs.on, dataclasses.replace(inputs, on=inputs.on if inputs.labels else None)
    contents = [inputs.contents(one, features=[on] if on else ()) for one in (a, b)]
    first, second = (one.splits[one.find(split)] for one in contents)
    if on is not None:
        keys = [np.asarray((data.features or {})[on]) for data in (first, second)]
        return [first, second[find_rows(*keys, on=on, name=b.shown)]]
    one, two = (found.parts[0] for found in contents)
    if not isinstance(one.table, Arrays) and not isinstance(two.table, Arrays):
        added = [name for name in one.table.names if name.startswith(CALIBRATED)]
        refuse_other_rows(one.table, two.table, scores={*one.columns, *two.columns, *added})
    return [first, second]


def _comparison_rows(found: Comparison) -> list[list[str]]:
    made = []
    for row in found.rows:
        places = 5 if max(abs(row.a), abs(row.b)) < SMALL_VALUES else 4
        cells = [f"{row.a:.{places}f}", f"{row.b:.{places}f}", f"{row.difference:+.{places}f}", "", ""]
        if row.low is not None and row.high is not None:
            cells[3] = f"[{row.low:+.{places}f}, {row.high:+.{places}f}]"
        if row.p_value is not None:
            cells[4] = "<0.001" if row.p_value < 0.001 else f"{row.p_value:.3f}"
        made.append([row.metric.split("(")[0], *cells])
    return made
