"""``--multilabel``: the commands on predictions of several labels a row, whose figures and calibrators are their own."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from calibrant._core.paths import check_suffix, shown
from calibrant.cli._io import STREAM, console, print_json, readable, working, writable
from calibrant.cli._options import Fitting, Inputs, Page, refuse_typed
from calibrant.errors import InputError, LeakError

if TYPE_CHECKING:
    from calibrant.calibrators import Calibrator, MultiLabelCalibrator
    from calibrant.data.multilabel import MultiLabelPredictions
    from calibrant.evaluate.labels import LabelTable
    from calibrant.evaluate.multilabel import MultiLabelRow


MultiLabel = Annotated[
    bool,
    typer.Option("--multilabel", help="Each row has several labels, 1 or 0 (-1: missing), each with its probability."),
]
DEFAULT = "PlattScaling"  # a slope and a bias a label
_NO_EFFECT = (
    "logits", "labels", "normalize", "class_names", "class_dim", "ignore_index", "example", "executor", "workers", "address",
)  # fmt: skip
_WRITABLE = (".npz", ".safetensors", ".parquet", ".arrow", ".feather", ".csv", ".tsv", ".jsonl")
_MOST_SHOWN = 20  # labels in the table of a terminal


@dataclass(frozen=True)
class Request:
    """What a command with ``--multilabel`` was asked for."""

    context: typer.Context
    inputs: Inputs

    def refuse(self, *names: str) -> None:
        """Refuse options that have no effect on several labels a row."""
        refuse_typed(self.context, [*_NO_EFFECT, *names], where="--multilabel")

    def splits(self, path: str) -> dict[str, MultiLabelPredictions]:
        """Return the splits of a file."""
        from calibrant.data.splits import load_multilabel

        inputs = self.inputs
        return load_multilabel(path, columns=inputs.columns, label=inputs.label, kind=inputs.kind)


def words_of(name: str, inputs: Inputs) -> str:
    """Return the file and the options that read it, as they would be typed."""
    return " ".join(filter(None, [shlex.quote(Path(name).name), inputs.words]))


def one_file(files: Sequence[str] | str | None) -> str:
    """Return the one file that was named.

    Raises:
        InputError: If there is none, or several.
    """
    named = [files] if isinstance(files, str) else list(files or [])
    if len(named) != 1:
        raise InputError("one FILE of predictions with --multilabel", f"{len(named)}", "name one")
    return named[0]


def evaluate_labels(
    request: Request,
    files: Sequence[str] | None,
    *,
    split: str | None,
    calibrator: str | None,
    draws: int,
    as_json: bool,
) -> None:
    """Measure every split, or a folder of tables by sums."""
    from calibrant.calibrators import MultiLabelCalibrator

    request.refuse("metric", "bins", "by")
    fitted = MultiLabelCalibrator.load(calibrator) if calibrator else None
    found: list[dict[str, Any]] = []
    for file in list(files or []) or [one_file(files)]:
        with readable(file) as path, working(f"measuring {shown(file)}"):
            found += _measured(request, path, shown(file), fitted, split=split, draws=draws)
    if as_json:
        print_json(_plain(found, fitted))
        return
    for one in found:
        _say(one)


def fit_labels(
    request: Request, file: str | None, *, output: str, method: str | None, split: str, as_json: bool
) -> None:
    """Fit a calibrator to each label, rare labels shrunk towards the pool, and print its effect."""
    from calibrant.calibrators import MultiLabelCalibrator
    from calibrant.cli._calibrators import make_calibrator
    from calibrant.data.splits import pick_name

    request.refuse("features", "top_label", "keep")
    if as_json and output == STREAM:
        raise InputError("a file for the calibrator beside --json", "- for both", "name one by --output")
    name = one_file(file)
    with readable(name) as path:
        splits = request.splits(path)
        data = splits[pick_name(splits, split, name)]
    base: Calibrator = make_calibrator(DEFAULT if method is None else method)
    with writable(output, suffix=".safetensors", inputs=[name]) as path:
        with working(f"fitting {type(base).__name__} a label on {len(data):,} rows"):
            fitted = MultiLabelCalibrator(base).fit(data)
            after = data.calibrated_by(fitted, allow_fit_rows=True)
            found = [_figures(part, name, split, which) for part, which in ((data, None), (after, repr(fitted)))]
        fitted.save(path)
    if as_json:
        print_json(_plain(found, fitted))
        return
    err = output == STREAM
    for one in found:
        _say(one, err=err, labels=False)
    kept = sum(fact.pooled == 1 for fact in fitted.labels_fitted)
    note = f"{len(fitted.names)} labels through {type(base).__name__}, {kept} as the pool, fitted on {split}, saved to {output}"
    console(err=err).print(note, style="dim")
    console(err=err).print("These are the rows it was fitted on: evaluate it on others.", style="dim")


def apply_labels(request: Request, calibrator: str, file: str | None, *, output: str) -> None:
    """Write the calibrated logits of every split, with labels, groups, weights and features."""
    from calibrant.calibrators import MultiLabelCalibrator
    from calibrant.data.formats import TABLES
    from calibrant.data.splits import save_multilabel

    request.refuse()
    name = one_file(file)
    if output != STREAM:
        check_suffix(output, _WRITABLE, what="calibrated predictions of several labels")
    fitted = MultiLabelCalibrator.load(calibrator)
    with readable(name) as path:
        own = Path(path).suffix.lower()
        suffix = own if own in _WRITABLE and own not in TABLES else ".npz"
        with writable(output, suffix=suffix, inputs=[name, calibrator]) as target:
            splits = {
                key: data.calibrated_by(fitted, allow_fit_rows=True) for key, data in request.splits(path).items()
            }
            save_multilabel(target, splits)
    console(err=True).print(f"{shown(name)} through {len(fitted.names)} calibrators to {shown(output)}", style="dim")


def report_labels(request: Request, files: Sequence[str] | None, fitting: Fitting, page: Page) -> None:
    """Write a report on one file: pooled and averaged figures, every label, before and after calibration."""
    from calibrant.calibrators import MultiLabelCalibrator
    from calibrant.data.splits import pick_name
    from calibrant.report.labels import LabelReport, write_label_report

    request.refuse("margin", "by", "costs", "error_limit")
    name = one_file(files)
    saved = MultiLabelCalibrator.load(fitting.calibrator) if fitting.calibrator else None
    with readable(name) as path, writable(page.output, suffix=f".{page.format or 'html'}", inputs=[name]) as target:
        with working(f"calibrating {shown(name)}"):
            splits = request.splits(path)
            own = pick_name(splits, fitting.split, name)
            fitted = saved if saved is not None else _fit_for_report(splits, own, fitting.fit_split, fitting.method)
            before = splits[own]
            after = None if fitted is None else before.calibrated_by(fitted)
            place = {"source": Path(name).name, "split": own, "argument": words_of(name, request.inputs)}
            subject = LabelReport(Path(name).stem, before, after, fitted, **place, whole=len(splits) == 1)
        write_label_report(subject, target, title=page.title, format=page.format)
    console(err=True).print(f"report on {shown(name)} written to {shown(page.output)}", style="dim")


def _fit_for_report(
    splits: dict[str, MultiLabelPredictions], own: str, fit_split: str, method: str | None
) -> MultiLabelCalibrator | None:
    from calibrant.calibrators import MultiLabelCalibrator
    from calibrant.cli._calibrators import make_calibrator
    from calibrant.data.splits import find_split

    found = None if set(splits) == {own} else find_split(splits, fit_split)
    if method == "none" or found is None or found == own:
        return None
    return MultiLabelCalibrator(make_calibrator(DEFAULT if method is None else method)).fit(splits[found])


def _measured(
    request: Request, path: str, name: str, fitted: MultiLabelCalibrator | None, *, split: str | None, draws: int
) -> list[dict[str, Any]]:
    """Return the figures of each split before and after, or of a folder of tables by sums."""
    from calibrant.data.splits import pick_name
    from calibrant.evaluate import panel_of_sums
    from calibrant.scale import evaluate_multilabel_streamed

    inputs, place = request.inputs, Path(path)
    if place.is_dir() and not any(place.glob("*.npy")):
        refuse_typed(request.context, ["draws", "split"], where=f"the folder {name}, which is streamed")
        found = []
        for which in (None, fitted) if fitted is not None else (None,):
            sums, _ = evaluate_multilabel_streamed(
                path, calibrator=which, columns=inputs.columns, label=inputs.label, kind=inputs.kind
            )
            rows = panel_of_sums(sums)
            found.append(
                _found(
                    name, "all", None if which is None else repr(which), rows, None, "figures alone: rows are streamed"
                )
            )
        return found
    splits = request.splits(path)
    chosen = splits if split is None else {split: splits[pick_name(splits, split, name)]}
    found = []
    for key, data in chosen.items():
        found.append(_figures(data, name, key, None, draws=draws))
        if fitted is not None:
            note = (
                ""
                if not _fitted_on(data, fitted)
                else "the calibrator was fitted on these rows; evaluate it on others."
            )
            after = data.calibrated_by(fitted, allow_fit_rows=True)
            found.append(_figures(after, name, key, repr(fitted), draws=draws, note=note))
    return found


def _fitted_on(data: MultiLabelPredictions, fitted: MultiLabelCalibrator) -> bool:
    from calibrant.data.leakage import check_not_fitted_on

    try:
        check_not_fitted_on(data.logits, fitted.fit_rows)
    except LeakError:
        return True
    return False


def _figures(
    data: MultiLabelPredictions, name: str, split: str, calibrator: str | None, *, draws: int = 1000, note: str = ""
) -> dict[str, Any]:
    from calibrant.evaluate import label_table, multilabel_panel

    table: LabelTable | None = None
    with suppress(InputError):  # too few groups of rows: the panel says so
        table = label_table(data)
    return _found(name, split, calibrator, multilabel_panel(data, draws=draws), table, note)


def _found(
    file: str, split: str, calibrator: str | None, rows: list[MultiLabelRow], labels: LabelTable | None, note: str
) -> dict[str, Any]:
    return {"file": file, "split": split, "calibrator": calibrator, "rows": rows, "labels": labels, "note": note}


def _plain(found: Sequence[dict[str, Any]], fitted: MultiLabelCalibrator | None) -> dict[str, Any]:
    """Return figures as JSON data, in the manner of one class a row; an infinite log-loss is null."""
    from calibrant.report.tables import json_record

    rows, labels, tests = [], [], []
    for one in found:
        place = {key: one[key] for key in ("file", "split", "calibrator")}
        for row in one["rows"]:
            rows.append(place | json_record(row) | {"null_high": None})
        if one["labels"] is not None:
            labels += [place | json_record(row) for row in one["labels"].rows]
            tests.append(place | {"p_value": one["labels"].p_value, "verdict": one["labels"].verdict})
    facts = None
    if fitted is not None:
        facts = {
            "type": type(fitted).__name__,
            "repr": repr(fitted),
            "labels": [asdict(fact) for fact in fitted.labels_fitted],
        }
    return {"rows": rows, "labels": labels, "worst_label": tests, "fitted": facts}


def _say(one: dict[str, Any], *, err: bool = False, labels: bool = True) -> None:
    """Print the pooled and averaged figures, and the labels with the strongest evidence."""
    screen, rows = console(err=err), one["rows"]
    head = [
        one["file"],
        one["split"],
        f"n = {rows[0].n:,}",
        f"{rows[0].labels} labels",
        "after" if one["calibrator"] else "",
    ]
    screen.print(" · ".join(filter(None, head)), style="bold")
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("metric", "pooled", "95 %", "mean over labels", "95 %"):
        table.add_column(heading, justify="left" if heading == "metric" else "right", no_wrap=heading != "metric")
    for pooled, macro in zip(rows[::2], rows[1::2], strict=True):
        table.add_row(
            pooled.metric, *(cell for row in (pooled, macro) for cell in (f"{row.value:.4f}", _ends(row.low, row.high)))
        )
    screen.print(table)
    found = one["labels"]
    if labels and found is not None:
        screen.print(found.verdict)
        screen.print(_label_rows(found))
    if one["note"]:
        screen.print(one["note"], style="dim")


def _label_rows(found: LabelTable) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("label", overflow="fold", min_width=8)
    for heading in ("n", "positive", "mean p", "gap", "95 %", "ECE", "p (all)"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in found.rows[:_MOST_SHOWN]:
        p = "–" if row.p_adjusted is None else f"{row.p_adjusted:.2g}"
        cells = [f"{row.n:,}", f"{row.positives:,}", f"{row.confidence:.4f}", f"{row.gap:+.4f}"]
        table.add_row(row.label, *cells, _ends(row.low, row.high), f"{row.ece:.4f}", p)
    if (more := len(found.rows) - _MOST_SHOWN) > 0:
        table.add_row(f"… {more} more (--json shows all)", *[""] * 7)
    return table


def _ends(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{low:.4f} … {high:.4f}"
