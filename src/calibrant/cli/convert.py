"""``calibrant convert``: predictions from any format into any other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from calibrant._core.paths import WRITABLE, check_folder, shown
from calibrant.cli._application import with_groups
from calibrant.cli._io import STREAM, bar, console, working, writable
from calibrant.cli._options import FILES, Example, Inputs, OneFile, Source, refuse_typed
from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant._core.files import Array
    from calibrant.data.formats.reading import Receipt


@with_groups
def convert(
    inputs: Inputs,
    places: Annotated[
        list[str], typer.Argument(metavar="[IN] OUT", help=f"{FILES} OUT: {', '.join(WRITABLE)}, or a folder.")
    ],
    example: Example = None,
    split: Annotated[str | None, typer.Option(help="Only this split.")] = None,
    to: Annotated[
        Literal["logits", "probs"] | None, typer.Option(help="What OUT holds: probs or logits; as IN if left out.")
    ] = None,
) -> None:
    """Write predictions in another format; names of classes stay with them.

    The name of OUT says the format; one without a suffix is a folder: of .npy files, or, for a folder of tables, of Parquet
    files that every command streams. Tables are converted in pieces, so they may be larger than memory.

    Examples:

        calibrant convert logits.npz probs.csv --to probs

        calibrant convert scores.csv predictions.npz --columns 'p_*' --label y --kind probs

        calibrant convert --logits logits.npy --labels labels.npy predictions.npz

        calibrant convert shards/ converted/ --columns 'p_*' --kind probs

        calibrant convert --example cifar10 cifar10.csv --split test
    """
    *files, output = places
    if len(files) > 1:
        raise InputError("one IN and one OUT", f"{len(places)} places", "convert them one by one")
    source = OneFile(next(iter(files), None), example=example).source(inputs, purpose="convert")
    if output != STREAM and not Path(output).suffix:
        check_folder(output)
        if Path(output).is_dir() and any(Path(output).iterdir()):
            raise InputError("a new or empty folder", f"{shown(output)}, which holds files", "name another")

    from calibrant.data.formats.writing import of_kind, write_named

    if _in_pieces(source, output, inputs, split):
        said = _convert_in_pieces(source, output, inputs, to)
    else:
        with source.opened() as here, working(f"converting {source.shown}"):
            arrays, said, receipt = _arrays_to_write(here, inputs, split, Path(output).suffix)
            arrays = of_kind(arrays, to, axis=inputs.class_dim)
        if output == STREAM or Path(output).suffix:
            with writable(output, suffix=".npz") as target:
                write_named(target, arrays, receipt=receipt)
        else:
            write_named(output, arrays)
    console(err=True).print(f"{source.shown} written to {shown(output)}: {said}", style="dim")


def _arrays_to_write(
    source: Source, inputs: Inputs, split: str | None, suffix: str
) -> tuple[dict[str, Array], str, Receipt]:
    """Return the arrays to write, all of them or one split's without its name, what they are in words, and their receipt."""
    import numpy as np

    from calibrant.data.formats.layout import TABLES, of_part
    from calibrant.data.splits import pick_name, split_prefixes

    named = inputs.named(source, names_used=suffix not in TABLES)  # whose columns hold no names of classes
    splits = inputs.splits_of(named, source)  # checks all that is in it
    arrays = dict(named.arrays)
    if named.class_names:
        arrays["class_names"] = np.array(named.class_names)
    if suffix in (".safetensors", ".pt"):
        arrays = _without_text(arrays, source, suffix)
    if split is None:
        return arrays, ", ".join(f"{name} {len(data):,} rows" for name, data in splits.items()), named.receipt
    found = pick_name(splits, split, source.shown)
    prefixes = split_prefixes(arrays, source.shown)
    kept = of_part(arrays, prefixes[found], prefixes.values())
    kept |= {name: arrays[name] for name in ("class_names",) if name in arrays}
    return kept, f"{found} {len(splits[found]):,} rows", named.receipt


def _without_text(arrays: dict[str, Array], source: Source, suffix: str) -> dict[str, Array]:
    """Return ``arrays`` without text, which tensors cannot hold; what is left out is said on stderr."""
    text = [name for name, values in arrays.items() if values.dtype.kind not in "fiub"]
    gone = [name for name in text if suffix == ".safetensors" or name != "class_names"]
    if gone:
        typer.echo(f"note: {source.shown}: left out {', '.join(gone)}: {suffix} holds numbers alone", err=True)
    return {name: values for name, values in arrays.items() if name not in gone}


def _in_pieces(source: Source, output: str, inputs: Inputs, split: str | None) -> bool:
    """Say whether rows go from table to table, which needs no more memory than a piece of them."""
    place, target = Path(source.path), Path(output)
    # labels in another file are joined by a key, which needs all rows at once
    if split is not None or inputs.labels is not None or source.path == STREAM or output == STREAM:
        return False
    if place.is_dir():
        return not any(place.glob("*.npy")) and not target.suffix
    from calibrant.data.formats.layout import TABLES

    pieces = [suffix for suffix in TABLES if suffix != ".json"]  # formats that are read in pieces
    return place.suffix.lower() in pieces and target.suffix.lower() in pieces and not _has_splits(place)


def _has_splits(place: Path) -> bool:
    """Say whether a table has the column ``split``."""
    from calibrant.data.formats.tables import batches_of

    first = next(iter(batches_of(place)), None)
    return first is not None and "split" in first.schema.names


def _convert_in_pieces(source: Source, output: str, inputs: Inputs, to: str | None) -> str:
    """Convert a table, or every table of a folder (and of its folders of splits) to a Parquet file; return that in words."""
    from calibrant.data.formats.reading import normalized_note
    from calibrant.data.formats.writing import convert_tables

    place = Path(source.path)
    refuse_typed(("class_dim", "ignore_index"), where="a table, whose rows are one prediction each")
    folder = place.is_dir()
    jobs = [(place, Path(output))]
    if folder:
        jobs = [(file, Path(output, file.relative_to(place)).with_suffix(".parquet")) for file in _tables_in(place)]
    total, offs = 0, []
    with bar(f"converting {source.shown}") as progress:
        for done, (file, target) in enumerate(jobs, start=1):
            target.parent.mkdir(parents=True, exist_ok=True)
            rows, off = convert_tables(file, target, inputs.layout, to)
            total += rows
            offs += [] if off is None else [off]
            progress(done, len(jobs))
    if inputs.missing is not None:
        typer.echo(f"note: {source.shown}: rows without a label are left out", err=True)
    if offs:
        typer.echo(f"note: {source.shown}: {normalized_note(max(offs))}", err=True)
    return f"{len(jobs)} Parquet files, {total:,} rows" if folder else f"{total:,} rows"


def _tables_in(place: Path) -> list[Path]:
    """Return the tables of a folder, or of the folders in it, which are splits."""
    from calibrant.data.formats.layout import TABLES
    from calibrant.data.formats.tables import table_files

    inner = sorted(folder for folder in place.iterdir() if folder.is_dir())
    if not any(file.suffix.lower() in TABLES for file in place.iterdir()) and inner:
        return [file for folder in inner for file in table_files(folder)]
    return table_files(place)
