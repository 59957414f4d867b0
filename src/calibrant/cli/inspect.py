"""``calibrant inspect``: how a file is read, with its first rows and the command that measures it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from calibrant.cli._application import with_groups
from calibrant.cli._io import print_json, working
from calibrant.cli._options import AsJson, Files, Inputs, Source

if TYPE_CHECKING:
    from calibrant.data.predictions import BinaryPairs, Predictions
    from calibrant.errors import Remedy

_FIRST = 3  # rows that are shown: enough to see a column that is off by one


@with_groups
def inspect(
    inputs: Inputs,
    given: Files,
    as_json: AsJson = False,
) -> None:
    """Say how files are read: splits, kind, classes, labels, the first rows, and the command that measures them.

    A file whose names do not say what it holds is refused with the command that reads it.

    Examples:

        calibrant inspect predictions.npz

        calibrant inspect scores.csv --columns 'p_*' --label y --kind probs

        calibrant inspect scores.csv --labels truth.csv --on id --json
    """
    found = []
    inputs, sources = given.sources(inputs)
    for source in sources:
        with source.opened() as here, working(f"reading {source.shown}"):
            found.append(_reading(here, inputs))
    if as_json:
        print_json({"files": found})
        return
    for one in found:
        _print(one)


def _reading(source: Source, inputs: Inputs) -> dict[str, Any]:
    """Return how a file is read, as plain values."""
    named = inputs.named(source, names_used=True)
    found = inputs.splits_of(named, source)
    splits = [{"split": name, **_of_split(data, named.class_names)} for name, data in found.items()]
    labelled = [split["split"] for split in splits if split["labelled"]]
    return {
        "file": source.shown,
        "command": _command(inputs, source, named.add_label, labelled, every=len(labelled) == len(splits)),
        "classes": list(named.class_names),
        "matched": dict(named.receipt.matched),
        "joined": named.receipt.joined,
        "other": sorted(name for name in named.arrays if named.arrays[name].ndim == 1),
        "splits": splits,
    }


def _command(
    inputs: Inputs, source: Source, add_label: Remedy | None, labelled: list[str], *, every: bool
) -> str | None:
    """Return the command that measures a file: on its splits with labels, or with the column that seems to hold them; or None."""
    if labelled:
        split = "" if every else f" --split {shlex.quote(labelled[0])}"
        return f"calibrant evaluate {source.argument}{split}"
    if add_label is None:
        return None
    said: dict[str, Any] = dict(add_label.reading)
    typer.echo(f"note: {source.shown}: {add_label.before}the command below measures it", err=True)
    name = source.argument.removesuffix(inputs.words).strip()
    return f"calibrant evaluate {name} {replace(inputs, **said).words}"


def _of_split(data: Predictions | BinaryPairs, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the kind, the sizes and the first rows of a split."""
    from calibrant.data.predictions import Predictions

    if not isinstance(data, Predictions):
        pairs = [
            {"confidence": round(float(p), 6), "correct": bool(y)}
            for p, y in zip(data.p[:_FIRST], data.y[:_FIRST], strict=True)
        ]
        return {"kind": "top-label pairs", "rows": len(data), "classes": None, "labelled": True, "first": pairs}
    kind = "logits" if data.given_probs is None else "probs"
    scores = data.logits if data.given_probs is None else data.given_probs
    rows = []
    for place in range(min(_FIRST, len(data))):
        label = None if data.labels is None else int(data.labels[place])
        shown = label if label is None or not names else names[label]
        rows.append({kind: [round(float(value), 6) for value in scores[place, :8]], "label": shown})
    return {
        "kind": kind,
        "rows": len(data),
        "classes": data.classes,
        "labelled": data.labels is not None,
        "first": rows,
    }


def _print(one: dict[str, Any]) -> None:
    typer.echo(one["file"])
    for split in one["splits"]:
        size = "" if split["classes"] is None else f" of {split['classes']} classes"
        labelled = "labelled" if split["labelled"] else "without labels"
        typer.echo(f"  {split['split']}: {split['kind']}, {split['rows']:,} rows{size}, {labelled}")
        for row in split["first"]:
            cells = ", ".join(f"{value:.4g}" for value in row.get("logits", row.get("probs", ())))
            typer.echo(f"    {cells} → {row['label']}" if cells else f"    {row['confidence']:.4g} → {row['correct']}")
    if one["classes"]:
        typer.echo(f"  classes: {', '.join(one['classes'][:12])}{' …' if len(one['classes']) > 12 else ''}")
    if one["matched"]:
        typer.echo(
            f"  labels: {', '.join(f'{name} in {count:,} rows' for name, count in [*one['matched'].items()][:12])}"
        )
    if one["joined"]:
        typer.echo(f"  {one['joined']}")
    needed = "to measure it, add its labels: --label COLUMN, or --labels FILE"
    typer.echo(f"  run: {one['command']}" if one["command"] else f"  {needed}")
