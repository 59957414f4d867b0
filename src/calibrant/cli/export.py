"""``calibrant export``: a calibrator as an ONNX model, which is served without PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

import calibrant
from calibrant._files import read_text, shown
from calibrant.cli._io import check_output, console, working
from calibrant.cli._options import check_calibrator


def export(
    calibrator: Annotated[str, typer.Argument(help="A calibrator that `calibrant fit` saved.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write it: a name that ends in .onnx.")],
    kind: Annotated[Literal["logits", "probs"], typer.Option(help="What the served model takes.")] = "logits",
    class_names: Annotated[
        str | None, typer.Option(metavar="FILE", help="A text file with one class name a line, in order.")
    ] = None,
) -> None:
    """Write a calibrator as an ONNX model from logits or probabilities to calibrated probabilities.

    The model has one input, ``logits`` or ``given_probs``, and the output ``probs``.
    onnxruntime and NumPy run it, in a service of a few megabytes.

    Examples:

        calibrant export c.safetensors -o c.onnx

        calibrant export c.safetensors -o c.onnx --kind probs --class-names names.txt
    """
    check_calibrator(calibrator)
    check_output(output, inputs=[calibrator], suffixes=[".onnx"], what="an ONNX model")
    names = (
        None if class_names is None else [line.strip() for line in read_text(class_names).splitlines() if line.strip()]
    )
    with working(f"exporting {shown(calibrator)}"):
        from calibrant.adapters.onnx import export_served

        export_served(calibrant.load(calibrator), output, kind=kind, class_names=names)
    console(err=True).print(f"{shown(calibrator)} written to {shown(output)}: {kind} in, probs out", style="dim")
