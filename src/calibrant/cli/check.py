"""``calibrant check``: a gate for pipelines."""

import json
import os
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

import calibrant
from calibrant._formats import read_columns
from calibrant._places import atomic_write, shown
from calibrant.cli._calibrators import with_logits
from calibrant.cli._files import check_outputs, readable
from calibrant.cli._options import FILES, Inputs, Source, at_path, refuse_typed, with_inputs
from calibrant.cli._output import console, working
from calibrant.operate import Check, Policy, annotations, to_junit, to_markdown
from calibrant.operate import check as check_limits
from calibrant.operate.policy import read_limits
from calibrant.predictions import BinaryPairs, Predictions
from calibrant.splits import pick_split

Maximum = Annotated[
    list[str] | None,
    typer.Option("--max", metavar="METRIC=NUMBER", help="Largest value: ece, brier, error, worst-group-ece …"),
]
Minimum = Annotated[
    list[str] | None,
    typer.Option("--min", metavar="METRIC=NUMBER", help="Smallest value: accuracy, worst-group-accuracy."),
]
NoWorse = Annotated[
    list[str] | None,
    typer.Option(metavar="METRIC=NUMBER", help="By how much it may be worse than --baseline: nll, brier …"),
]

CODES = {"pass": 0, "fail": 1, "not enough evidence": 3}


@with_inputs
def check(
    context: typer.Context,
    inputs: Inputs,
    file: Annotated[str | None, typer.Argument(help=FILES)] = None,
    maximum: Maximum = None,
    minimum: Minimum = None,
    no_worse: NoWorse = None,
    baseline: Annotated[str | None, typer.Option(metavar="FILE", help="Predictions of the model before.")] = None,
    policy: Annotated[
        str | None, typer.Option(metavar="FILE", help="Limits in TOML: [maximum], [minimum], [no_worse], by.")
    ] = None,
    by: Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="Groups for the worst-group metrics.")] = None,
    calibrator: Annotated[str | None, typer.Option("--calibrator", "-c", help="Check after this calibrator.")] = None,
    split: Annotated[str, typer.Option(help="The split to check, never one that was fitted on.")] = "test",
    inconclusive: Annotated[
        Literal["pass", "fail"] | None,
        typer.Option(help="Exit code for too little evidence: as a pass (0) or a failure (1); 3 if left out."),
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Also write JUnit XML here.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Also write Markdown here, for a pull request.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object; values are fractions.")] = False,
) -> None:
    """Say of every limit whether the rows prove it kept, prove it broken, or are too few.

    Exit code 0: all limits pass. 1: one fails. 3: not enough evidence. 2: an error. In GitHub Actions it also annotates
    the run and adds to the step summary.

    Examples:

        calibrant check predictions.npz --max ece=.03 --min accuracy=.9

        calibrant check new.npz --baseline old.npz --no-worse nll=.005 --policy policy.toml --junit gate.xml
    """
    limits = _limits(context, maximum, minimum, no_worse, policy, by)
    check_outputs(
        junit,
        markdown,
        inputs=[name for name in (file, baseline, policy, calibrator, *inputs.beside) if name is not None],
    )
    before = None if baseline is None else inputs.pick(Source(baseline, shown(baseline)), split)
    source = inputs.sources(file)[0]
    with readable(source.path) as path, working(f"checking {source.shown}"):
        named = inputs.named(at_path(source, path))
        data = _through(pick_split(inputs.splits_of(named, source), split, source.shown), calibrator, source, split)
        columns = read_columns(named, limits.by, split=split, file=source.shown)
        found = check_limits(
            data,
            maximum=limits.maximum,
            minimum=limits.minimum,
            no_worse=limits.no_worse,
            baseline=before,
            features=columns or None,
        )
    _say(found, as_json=as_json)
    _write(found, junit=junit, markdown=markdown, strict=inconclusive == "fail")
    raise typer.Exit(_code(found, inconclusive))


def _limits(
    context: typer.Context,
    maximum: list[str] | None,
    minimum: list[str] | None,
    no_worse: list[str] | None,
    policy: str | None,
    by: list[str] | None,
) -> Policy:
    """Return the limits of the options over those of the policy file; a baseline that none of them needs is refused."""
    limits = Policy(
        read_limits(maximum or [], option="--max"),
        read_limits(minimum or [], option="--min"),
        read_limits(no_worse or [], option="--no-worse"),
        tuple(by or []),
    )
    limits = limits if policy is None else Policy.from_file(policy).updated(limits)
    if not limits.no_worse:
        refuse_typed(context, ["baseline"], where="limits without one of --no-worse")
    return limits


def _code(found: Check, inconclusive: str | None) -> int:
    undecided = found.verdict == "not enough evidence" and inconclusive is not None
    return CODES[str(inconclusive) if undecided else found.verdict]


def _through(
    data: Predictions | BinaryPairs, calibrator: str | None, source: Source, split: str
) -> Predictions | BinaryPairs:
    if calibrator is None:
        return data
    return with_logits(data, file=source.shown, split=split).calibrated_by(calibrant.load(calibrator))


def _say(found: Check, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found.plain(), indent=1, ensure_ascii=False, allow_nan=False))
        return
    screen = console()
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("limit", overflow="fold")
    table.add_column("verdict", overflow="fold")
    for heading in ("value", "between", "n"):
        table.add_column(heading, justify="right", overflow="fold")
    for line in found.lines:
        between = f"{line.low:.4f} … {line.high:.4f}"
        table.add_row(line.name, line.verdict, f"{line.value:.4f}", between, f"{line.n:,}")
    screen.print(table)
    for line in found.lines:
        if line.verdict == "not enough evidence" or line.note:
            screen.print(str(line), style="dim")
    screen.print(found.verdict, style="bold")


def _write(found: Check, *, junit: Path | None, markdown: Path | None, strict: bool) -> None:
    for path, text in ((junit, to_junit(found, strict=strict)), (markdown, to_markdown(found))):
        if path is not None:
            with atomic_write(path) as out:
                out.write(text.encode())
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with open(summary, "a", encoding="utf-8") as out:
            out.write(to_markdown(found))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in annotations(found):
            typer.echo(line, err=True)
