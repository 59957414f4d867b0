"""``calibrant apply``: the file that was read, with calibrated scores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from calibrant._files import shown
from calibrant.cli._application import with_groups
from calibrant.cli._io import STREAM, check_output, console, path_or_stdin, working, writable
from calibrant.cli._options import Inputs, OneFile, SeveralLabels, check_calibrator, feature_names, refuse_for_several
from calibrant.cli._streams import OnRay, source_of, streams
from calibrant.errors import InputError


@with_groups
def apply(
    inputs: Inputs,
    calibrator: Annotated[str, typer.Argument(help="A calibrator that `calibrant fit` saved.")],
    output: Annotated[str, typer.Option("--output", "-o", help="Where to write it; - writes stdout.")],
    given: OneFile,
    replace: Annotated[
        bool, typer.Option("--replace", help="Put calibrated scores in the place of a table's scores.")
    ] = False,
    multilabel: SeveralLabels = False,
    on_ray: OnRay = False,
) -> None:
    """Write the file with calibrated probabilities or logits, as the file holds them; all else in it is unchanged.

    A table gets a column calibrated_p_cat for its column p_cat, in its own format; arrays of scores are replaced. Rows need no
    labels. A folder of Parquet files becomes a folder of files of the same names, of any number of rows, in bounded memory.

    Examples:

        calibrant apply c.safetensors scores.csv -o calibrated.csv

        calibrant apply c.safetensors scores.csv --columns cat,dog,fox --kind probs -o calibrated.csv

        calibrant apply c.safetensors predictions.npz -o calibrated.npz

        calibrant apply c.safetensors folder/ -o calibrated/

        cat predictions.npz | calibrant apply c.safetensors - -o - > calibrated.npz
    """
    if multilabel:
        refuse_for_several()
    source = given.source(inputs)
    check_calibrator(calibrator)
    if not Path(source.path).is_dir():
        check_output(output, inputs=[calibrator, source.path])

    from calibrant.cli._calibrators import load_fitted
    from calibrant.report.model import in_one_line

    fitted: Any = load_fitted(calibrator, several=multilabel)
    if not multilabel and streams(source.path, "replace"):
        from calibrant import scale

        if output == STREAM:
            raise InputError(f"{source.shown} is streamed into files; name a folder by --output")
        with working(f"calibrating {source.shown}"):
            scale.apply(fitted, source_of(Path(source.path), inputs, on_ray=on_ray), output)
    else:
        with path_or_stdin(source.path) as path:
            suffix = Path(path).suffix.lower()
            if output != STREAM and Path(output).suffix.lower() != suffix:
                raise InputError(f"{source.shown} comes back in its own format; name an output that ends in {suffix}")
            with writable(output, suffix=suffix) as target, working(f"calibrating {source.shown}"):
                _write_calibrated(fitted, path, Path(target), inputs, instead=replace, several=multilabel)
    console(err=True).print(f"{source.shown} through {in_one_line(fitted)} to {shown(output)}", style="dim")


def _write_calibrated(fitted: Any, path: str, target: Path, inputs: Inputs, *, instead: bool, several: bool) -> None:
    from calibrant.data.io import CALIBRATED, calibrated_columns, read_contents
    from calibrant.data.tables import Arrays, open_table

    table = open_table(path)
    features = [] if several else feature_names(fitted)
    found = read_contents(table, inputs.mapped(features=features, multilabel=several), labelled=False)
    prefix = "" if instead or isinstance(table, Arrays) else CALIBRATED
    columns: dict[str, Any] = {}
    for part, data in zip(found.parts, found.splits.values(), strict=True):
        # every row is passed through, the fitted ones too: nothing is measured here
        after = data.calibrated_by(fitted, allow_fit_rows=True)
        for name, values in calibrated_columns(part, after).items():
            new = part.stem + (prefix if name != "decision" else "") + name
            if prefix and new != name and new in table.places:
                raise InputError(f"{table.name} has a column {new!r} already; name a file without it")
            columns[new] = values
    table.write(target, columns)
