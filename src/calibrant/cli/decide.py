"""``calibrant decide``: from which confidence on to answer."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

import calibrant
from calibrant.calibrators import Identity
from calibrant.cli._calibrators import with_logits
from calibrant.cli._files import check_outputs, readable
from calibrant.cli._options import FILES, Inputs, at_path, with_inputs
from calibrant.cli._output import console, working
from calibrant.errors import InputError
from calibrant.operate import Deployed, abstain

NONE_QUALIFIES = 3


@with_inputs
def decide(
    inputs: Inputs,
    file: Annotated[str | None, typer.Argument(help=FILES)] = None,
    error: Annotated[float | None, typer.Option(help="Largest error among the answers, such as .05.")] = None,
    coverage: Annotated[float | None, typer.Option(help="Instead: least share of rows to answer, such as .8.")] = None,
    confidence: Annotated[float, typer.Option(help="Probability that the promise is kept.")] = 0.95,
    by: Annotated[Literal["class"] | None, typer.Option(help="A threshold for each predicted class.")] = None,
    calibrator: Annotated[str | None, typer.Option("--calibrator", "-c", help="Decide after this calibrator.")] = None,
    split: Annotated[str, typer.Option(help="The split to find it on, never one that was fitted on.")] = "test",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Save calibrator and threshold as one module (.safetensors).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Find the confidence from which on answers are wrong at most as often as allowed, for new rows of the same kind.

    Exit code 0: there is one. 3: no threshold qualifies, and nothing is written. 2: an error.

    Examples:

        calibrant decide predictions.npz --error .05 -c calibrator.safetensors -o deployed.safetensors

        calibrant decide predictions.npz --coverage .8
    """
    source = inputs.sources(file)[0]
    check_outputs(output)
    if output is not None and output.suffix != ".safetensors":
        raise InputError(f"expected an output that ends in .safetensors, got {output.name}; rename it")
    with readable(source.path) as path:
        data = with_logits(inputs.pick(at_path(source, path), split), file=source.shown, split=split)
    fitted = calibrant.load(calibrator) if calibrator else Identity().fit(data.logits, data.need_labels())
    with working("testing thresholds"):
        calibrated = data if calibrator is None else data.calibrated_by(fitted)
        rule = abstain(calibrated, error=error, coverage=coverage, confidence=confidence, by=by)
    if output is not None and rule.qualifies:
        Deployed(fitted, rule).save(output)
    if as_json:
        typer.echo(json.dumps(rule.plain(), indent=1, ensure_ascii=False, allow_nan=False))
    else:
        console().print(str(rule))
    raise typer.Exit(0 if rule.qualifies else NONE_QUALIFIES)
