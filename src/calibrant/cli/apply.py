"""``calibrant apply``: calibrated predictions in the layout of the file they came from."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from calibrant._core.paths import WRITABLE
from calibrant._core.warn import report_progress
from calibrant._files import check_folder, check_suffix, check_target, same_file, shown
from calibrant.cli._application import with_groups
from calibrant.cli._io import STREAM, console, working, writable
from calibrant.cli._options import (
    Inputs,
    MultiLabel,
    OneFile,
    OnRay,
    Source,
    feature_names,
    refuse_for_several,
    refuse_typed,
    source_of,
    streams,
    typed,
)
from calibrant.errors import InputError

if TYPE_CHECKING:
    import torch

    from calibrant._files import Array
    from calibrant.calibrators import Calibrator
    from calibrant.data.frames import Frame
    from calibrant.data.predictions import Predictions


# of what is read, where the rows of a table come back whole
UNREAD = ("labels", "label", "class_names", "missing", "class_dim")


@dataclass(frozen=True)
class Written:
    """What is written, and where it stands in a table."""

    what: Annotated[
        Literal["probs", "logits", "label", "top"] | None,
        typer.Option("--as", help="What to write; as the file holds them if left out."),
    ] = None
    replace_scores: Annotated[
        bool, typer.Option("--replace", help="Put them in the place of a table's scores, not beside.")
    ] = False
    suffix: Annotated[str, typer.Option(help="The ending of the new columns' names in a table.")] = "_calibrated"


@with_groups
def apply(
    inputs: Inputs,
    calibrator: Annotated[str, typer.Argument(help="A calibrator that `calibrant fit` saved.")],
    output: Annotated[str, typer.Option("--output", "-o", help="Where to write them; - writes stdout.")],
    given: OneFile,
    written: Written,
    multilabel: MultiLabel = False,
    on_ray: OnRay = False,
) -> None:
    """Write the file with calibrated probabilities or logits; all else in it is unchanged.

    A table comes back as it was, its columns, order, names and cells, with calibrated columns beside its scores: ``p_cat``
    gets ``p_cat_calibrated``. Arrays, and columns called logits, hold calibrated logits instead of their own.

    A folder of tables becomes a folder of files of the same names; of Parquet files any number of rows, in bounded memory.

    Examples:

        calibrant apply c.safetensors predictions.npz -o calibrated.npz

        calibrant apply c.safetensors scores.csv --columns 'p_*' --kind probs -o calibrated.csv

        calibrant apply c.safetensors scores.csv --columns 'p_*' --kind probs --as top -o calibrated.csv

        calibrant apply c.safetensors folder/ -o calibrated/

        cat predictions.npz | calibrant apply c.safetensors - -o - > calibrated.npz

        calibrant apply c.safetensors labels.npz --multilabel -o calibrated.npz
    """
    if multilabel:
        refuse_for_several()
        if written.what in ("label", "top"):
            raise InputError("probs or logits of several labels a row", f"--as {written.what}", "write one of these")
    source = given.source(inputs, purpose="calibrate")

    from calibrant.cli._calibrators import load_fitted
    from calibrant.report.model import in_one_line

    fitted: Any = load_fitted(calibrator, several=multilabel)
    name, options = source.shown, ("what", "replace_scores", "suffix")
    own = inputs.columns is None and not typed(options)  # names that Calibrant gives say what stands there
    read = [calibrator, source.path, *inputs.beside]
    if not multilabel and streams(source.path, *options):
        said = ": " + _apply_to_streamed(fitted, source.path, output, inputs, on_ray=on_ray)
    elif parts := _parts_of(Path(source.path), output):
        _apply_to_parts(fitted, source, Path(output), parts, inputs, written, own=own)
        said = f": {len(parts)} files"
    else:
        if Path(source.path).is_dir() and output != STREAM:
            check_target(output, inputs=read)
        said = ""
        _apply_to_file(fitted, source, output, inputs, written, own=own)
    console(err=True).print(f"{name} through {in_one_line(fitted)} to {shown(output)}{said}", style="dim")


def _apply_to_file(
    calibrator: Any, source: Source, output: str, inputs: Inputs, written: Written, *, own: bool
) -> None:
    """Write one file, or what stands on stdin, with calibrated scores, in the format that the output's name says."""
    from calibrant.data.formats.layout import TABLES, suffix_of
    from calibrant.data.formats.writing import write_named
    from calibrant.data.splits import save_multilabel

    name = source.shown
    with (
        source.opened() as here,
        writable(output, suffix=_suffix_for(here.path, output)) as target,
        working(f"calibrating {name}"),
    ):
        path = Path(here.path)
        table = _read_scores(path, inputs, calibrator) if suffix_of(Path(target)) in TABLES else None
        # by --positive the event is compared with that of the fit, where that has a name
        skipped = () if table is None else UNREAD if calibrator.class_names else (*UNREAD, "positive")
        if unread := typed(["ignore_index", *skipped]):
            typer.echo(f"note: {name}: every row is calibrated; not read: {', '.join(unread)}", err=True)
        if table is None:
            refuse_typed(("replace_scores", "suffix"), where=f"{name}, which is no table of one split")
            # each format names the labels in its way
            if calibrator.multi_label and suffix_of(path) != suffix_of(Path(target)):
                refuse_typed(("what",), where=f"{shown(output)}, which gets logits of several labels")
                before = inputs.several(here).items()
                save_multilabel(target, {key: x.calibrated_by(calibrator, allow_fit_rows=True) for key, x in before})
            else:
                bare = Path(target).suffix == ".npy"  # whose name alone says what it holds
                write_named(target, _calibrated_arrays(here, calibrator, inputs, what=written.what, bare=bare))
        else:
            _write_table(calibrator, path, Path(target), table, written, name, own=own, names=inputs.sides)


def _write_table(
    calibrator: Calibrator,
    path: Path,
    target: Path,
    table: tuple[Frame, Mapping[str, Array]],
    written: Written,
    name: str,
    *,
    own: bool,
    names: Sequence[str],
) -> None:
    """Write the table that ``path`` holds with calibrated columns; ``name`` is what messages call it, ``names`` call its classes.

    They take the place of columns called logits, and of all that Calibrant names if they are ``own``, with what was decided by them.
    """
    from calibrant.data.formats.same_table import write_same_table
    from calibrant.data.splits import stale_names

    frame, arrays = table
    own = own and (calibrator.multi_label or (frame.kind == "logits" and frame.columns[0].startswith("logits")))
    instead = written.replace_scores or own
    after = _calibrate_split(calibrator, arrays, "", frame.kind, name, what=written.what, names=names or frame.names)
    columns = frame.new_columns(
        after.probs.detach().cpu().numpy(),
        after.logits.detach().cpu().numpy(),
        what=written.what or frame.kind,
        suffix=written.suffix,
        instead=instead,
    )
    gone = set(frame.columns) if instead else set()
    if own:
        gone |= {*stale_names(frame.table.column_names, "")}
        if (decision := getattr(after, "decision", None)) is not None:
            columns["decision"] = decision.tolist()
    write_same_table(path, frame, target, columns, gone=gone)


def _parts_of(folder: Path, output: str) -> list[Path]:
    """Return the tables in a folder, and in the folders of its splits, that come back one by one; nothing of other inputs and outputs."""
    from calibrant.data.formats.layout import TABLES, suffix_of

    if not folder.is_dir() or output == STREAM or Path(output).suffix or any(folder.glob("*.npy")):
        return []
    return sorted(one for one in [*folder.glob("*"), *folder.glob("*/*")] if one.is_file() and suffix_of(one) in TABLES)


def _apply_to_parts(
    calibrator: Calibrator,
    source: Source,
    output: Path,
    parts: Sequence[Path],
    inputs: Inputs,
    written: Written,
    *,
    own: bool,
) -> None:
    """Write each table of a folder, with calibrated columns, under its name into the folder ``output``: all of them, or none.

    Raises:
        InputError: If the output is the folder itself, or a table has other scores than the first.
    """
    check_folder(output)
    if output.exists() and same_file(output, Path(source.path)):
        raise InputError("another folder to write to", f"{shown(output)}, which is read", "name one by --output")
    first: Frame | None = None
    made: list[tuple[Path, Path]] = []
    output.parent.mkdir(parents=True, exist_ok=True)
    with working(f"calibrating {source.shown}"), tempfile.TemporaryDirectory(dir=output.parent) as folder:
        for at, part in enumerate(parts):
            report_progress(f"{at} of {len(parts)} files")
            place = part.relative_to(source.path)
            table = _read_scores(part, inputs, calibrator)
            alike = table is not None and (first is None or _same_scores(first, table[0]))
            if table is None or not alike:
                got = "other ones" if table is not None else "none in one group of columns"
                expected = f"scores as in {parts[0].name} in every table of {source.shown}"
                raise InputError(expected, f"{got} in {place}", "name the files one by one")
            first = table[0] if first is None else first
            target = Path(folder, place)
            target.parent.mkdir(exist_ok=True)
            _write_table(calibrator, part, target, table, written, str(place), own=own, names=inputs.sides)
            made.append((target, output / place))
        for target, place in made:
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(target, place)


def _same_scores(one: Frame, other: Frame) -> bool:
    return (one.kind, one.columns, one.names) == (other.kind, other.columns, other.names)


def _suffix_for(path: str, output: str) -> str:
    """Return the suffix of what is written to stdout; a file's own name says its format, and must be one that is written."""
    from calibrant.data.formats.layout import FOREIGN, suffix_of

    if output != STREAM and not Path(output).is_dir():
        # .json and .npy too: a file comes back in its own format, but for those of other programs
        same = suffix_of(Path(output)) == suffix_of(Path(path)) not in FOREIGN
        if not same and suffix_of(Path(output)) not in WRITABLE:
            check_suffix(output, WRITABLE, what="calibrated predictions")
    suffix = Path(path).suffix
    return suffix if suffix in WRITABLE else ".npz"


def _read_scores(path: Path, inputs: Inputs, fitted: Any) -> tuple[Frame, Mapping[str, Array]] | None:
    """Return a table with where the scores stand that ``fitted`` is for, and these; None for other files."""
    from calibrant.data.formats.layout import TABLES, suffix_of
    from calibrant.data.formats.same_table import read_confidence_table, read_score_table
    from calibrant.data.splits import read_label_table

    if suffix_of(path) not in TABLES or path.is_dir():
        return None
    if fitted.multi_label:
        return read_label_table(path, **inputs.of_labels)
    return (read_confidence_table if fitted.of_decisions else read_score_table)(path, inputs.layout)


def _calibrate_split(
    calibrator: Calibrator,
    arrays: Mapping[str, Array],
    prefix: str,
    kind: str,
    file: str,
    class_dim: int = 1,
    *,
    what: str | None,
    names: Sequence[str] = (),
) -> Predictions:
    """Return the rows of one split through the calibrator, those without a label too."""
    import numpy as np

    from calibrant.data.predictions import BinaryPairs, Predictions
    from calibrant.data.record import FEATURE, beside_stored, is_beside
    from calibrant.data.splits import LABEL_CODES, LABEL_NAMES, rows_in, with_names

    used = (prefix + kind, prefix + "decision", LABEL_NAMES, LABEL_CODES, prefix + LABEL_NAMES, prefix + LABEL_CODES)
    held = {name: values for name, values in arrays.items() if name in used or is_beside(name)}
    features = () if calibrator.multi_label else feature_names(calibrator)
    for name in features:  # those of a table stand under their own names
        if (column := next((arrays[one] for one in (prefix + name, name) if one in arrays), None)) is not None:
            held.setdefault(f"{prefix}{FEATURE}{name}", column)
    # every row is passed through, the fitted ones too: nothing is evaluated here
    if kind == "conf" and what not in (None, "probs"):
        raise InputError("probs of decisions alone", f"--as {what}", "leave it out")
    if kind == "conf":  # what came of the decisions changes nothing, and may not be known
        conf = held[prefix + kind]
        pairs = BinaryPairs.from_decisions(conf, np.zeros(len(conf), dtype=int), **beside_stored(held, prefix))
        return Predictions.from_pairs(pairs.calibrated_by(calibrator, allow_fit_rows=True))
    found = with_names(rows_in(held, prefix, file, several=calibrator.multi_label, class_dim=class_dim), names)
    calibrated: Predictions = found.calibrated_by(calibrator, allow_fit_rows=True)
    return calibrated


def _calibrated_arrays(
    source: Source, calibrator: Calibrator, inputs: Inputs, *, what: str | None, bare: bool
) -> dict[str, Array]:
    """Return a file's arrays with every split's logits (or probabilities) as calibrated logits; of a ``bare`` array as its own kind.

    Labels, if there are any, are checked; rows without one (``--ignore-index``) are calibrated all the same.
    """
    from calibrant._core.check import as_tensor
    from calibrant.data.splits import arrays_of_labels, split_prefixes, splits_of, stale_names

    if what in ("label", "top"):
        raise InputError(f"a table for --as {what}", f"{source.shown}", "write probs or logits")
    named = None if calibrator.multi_label else inputs.named(source)
    arrays = arrays_of_labels(source.path) if named is None else dict(named.arrays)
    prefixes = split_prefixes(arrays, source.shown)
    # read for its refusals alone: a wrong label in the last split is found before the first is calibrated
    splits_of(arrays, source.shown, several=True) if named is None else inputs.splits_of(named, source)
    for prefix in prefixes.values():
        kind = next(kind for kind in ("logits", "probs", "conf") if prefix + kind in arrays)
        values = as_tensor(arrays[prefix + kind], name=kind)
        after = _calibrate_split(calibrator, arrays, prefix, kind, source.shown, inputs.class_dim, what=what)
        if kind == "conf":
            arrays[prefix + kind] = after.probs[:, 1].numpy()
            continue
        for name in stale_names(arrays, prefix):  # what calibration changes is computed anew or left out
            del arrays[name]
        written = what or (kind if bare else "logits")
        scores = after.probs if written == "probs" else after.logits
        arrays[prefix + written] = _like(values, scores, inputs.class_dim)
        if after.decision is not None:
            shape = values.movedim(inputs.class_dim, -1).shape[:-1] if values.dim() > 1 else values.shape
            arrays[prefix + "decision"] = after.decision.reshape(shape).numpy()
    return arrays


def _like(values: torch.Tensor, logits: torch.Tensor, class_dim: int) -> Array:
    """Return ``logits`` (rows, K) with the axes of ``values``; (N, 2) for one number a row."""
    if values.dim() == 1:
        return logits.contiguous().numpy()
    return logits.reshape(values.movedim(class_dim, -1).shape).movedim(-1, class_dim).contiguous().numpy()


def _apply_to_streamed(calibrator: Calibrator, file: str, output: str, inputs: Inputs, *, on_ray: bool) -> str:
    """Write calibrated Parquet files for streamed rows, and return how many, in words.

    Raises:
        InputError: For stdout.
    """
    from calibrant import scale

    if output == STREAM:
        raise InputError(f"a folder to write calibrated files of {shown(file)} to", "-", "name one by --output")
    if Path(file).is_file():
        check_suffix(output, (".parquet",), what="a large Parquet file, which is streamed")
    with working(f"calibrating {shown(file)}"):
        written = scale.apply(calibrator, source_of(Path(file), inputs, on_ray=on_ray), output)
    return f"{len(written)} file{'' if len(written) == 1 else 's'} written"
