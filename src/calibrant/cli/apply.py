"""``calibrant apply``: calibrated predictions in the layout of the file they came from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import calibrant
from calibrant._core.paths import check_suffix, shown
from calibrant.cli._application import with_groups
from calibrant.cli._io import STREAM, console, readable, working, writable
from calibrant.cli._multilabel import MultiLabel, Request, apply_labels
from calibrant.cli._options import Inputs, OneFile, Source, at_path
from calibrant.cli._streamed import Execution, Streaming, apply_to_streamed

if TYPE_CHECKING:
    import torch

    from calibrant._core.files import Array
    from calibrant.calibrators import Calibrator
    from calibrant.data.formats import Named
    from calibrant.data.predictions import Predictions


@with_groups
def apply(
    context: typer.Context,
    inputs: Inputs,
    calibrator: Annotated[str, typer.Argument(help="A calibrator that `calibrant fit` saved.")],
    output: Annotated[str, typer.Option("--output", "-o", help="Where to write them; - writes stdout.")],
    given: OneFile,
    streaming: Streaming,
    multilabel: MultiLabel = False,
) -> None:
    """Write the calibrated logits of every split; all else in the file is unchanged.

    A folder of Parquet files becomes a folder of files of the same names: any number of rows, in bounded memory, resumed
    when stopped.

    Examples:

        calibrant apply c.safetensors predictions.npz -o calibrated.npz

        calibrant apply c.safetensors scores.csv --columns 'p_*' --kind probs -o calibrated.csv

        calibrant apply c.safetensors folder/ -o calibrated/ --workers 8

        cat predictions.npz | calibrant apply c.safetensors - -o - > calibrated.npz

        calibrant apply c.safetensors labels.npz --multilabel -o calibrated.npz
    """
    from calibrant.data.formats import write_named
    from calibrant.report.model import in_one_line

    if multilabel:
        apply_labels(Request(context, inputs), calibrator, given.file, output=output)
        return
    fitted = calibrant.load(calibrator)
    execution = Execution(context, streaming)
    source = given.source(inputs, purpose="calibrate")
    name = source.shown
    read = [calibrator, source.path, *filter(None, (inputs.labels, inputs.class_names))]
    if execution.streams(source.path):
        said = apply_to_streamed(fitted, source.path, output, execution, inputs=read)
        console(err=True).print(f"{name} through {in_one_line(fitted)} to {shown(output)}: {said}", style="dim")
        return
    with (
        readable(source.path) as path,
        writable(output, suffix=_suffix_for(path, output), inputs=read) as target,
        working(f"calibrating {name}"),
    ):
        write_named(target, _calibrated(at_path(source, path), fitted, inputs))
    console(err=True).print(f"{name} through {in_one_line(fitted)} to {shown(output)}", style="dim")


def _suffix_for(path: str, output: str) -> str:
    """Return the suffix of what is written to stdout; a file's own name says its format, and must be one that is written."""
    from calibrant.data.formats import WRITABLE

    if output != STREAM and not Path(output).is_dir():
        check_suffix(output, WRITABLE, what="calibrated predictions")
    suffix = Path(path).suffix
    return suffix if suffix in WRITABLE else ".npz"


def _calibrated(source: Source, calibrator: Calibrator, inputs: Inputs) -> dict[str, Array]:
    """Return a file's arrays with every split's logits (or probabilities) as calibrated logits.

    Labels, if there are any, are checked; rows without one (``--ignore-index``) are calibrated all the same.
    """
    from calibrant._core.check import as_tensor, check_labels
    from calibrant.cli._calibrators import with_logits
    from calibrant.data.record import beside_stored
    from calibrant.data.splits import split_prefixes, stale_names

    named: Named = inputs.named(source)
    arrays = dict(named.arrays)
    prefixes = split_prefixes(arrays, source.shown)
    for name, data in inputs.splits_of(named, source).items():
        with_logits(data, file=source.shown, split=name)
    for prefix in prefixes.values():
        kind = next(kind for kind in ("logits", "probs") if prefix + kind in arrays)
        values = as_tensor(arrays[prefix + kind], name=kind)
        features = beside_stored(arrays, prefix)["features"]
        before = _predictions(values, kind, inputs.class_dim, features)
        shape = values.movedim(inputs.class_dim, -1).shape[:-1] if values.dim() > 1 else values.shape
        if prefix + "decision" in arrays:
            decided = as_tensor(arrays[prefix + "decision"], name="decision").reshape(-1)
            before = replace(before, decision=check_labels(decided, rows=len(before), classes=before.classes))
        for name in stale_names(arrays, prefix):  # what calibration changes is computed anew or left out
            del arrays[name]
        # every row is passed through, the fitted ones too: nothing is evaluated here
        after = before.calibrated_by(calibrator, allow_fit_rows=True)
        arrays[prefix + "logits"] = _like(values, after.logits, inputs.class_dim)
        if after.decision is not None:
            arrays[prefix + "decision"] = after.decision.reshape(shape).numpy()
    return arrays


def _predictions(values: torch.Tensor, kind: str, class_dim: int, features: Any) -> Predictions:
    from calibrant.data.predictions import Predictions

    if values.dim() == 1:
        single = Predictions.from_binary_logits if kind == "logits" else Predictions.from_binary_probs
        return single(values, features=features)
    make = Predictions.from_logits if kind == "logits" else Predictions.from_probs
    return make(values, class_dim=class_dim, features=features)


def _like(values: torch.Tensor, logits: torch.Tensor, class_dim: int) -> Array:
    """Return ``logits`` (rows, K) with the axes of ``values``; (N, 2) for one number a row."""
    if values.dim() == 1:
        return logits.contiguous().numpy()
    return logits.reshape(values.movedim(class_dim, -1).shape).movedim(-1, class_dim).contiguous().numpy()
