"""``calibrant decide``: the confidence above which to answer, or the action of least cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import calibrant
from calibrant._core.paths import check_suffix
from calibrant.cli._application import with_groups
from calibrant.cli._io import check_outputs, console, print_json, readable, working
from calibrant.cli._options import FILES, Inputs, at_path, costs_in, refuse_typed
from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.data.predictions import Predictions
    from calibrant.operate.decide import CostRule, Costs


NONE_QUALIFIES = 3
PICTURES = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Promise:
    """The guarantee for the rows that are answered."""

    error: Annotated[float | None, typer.Option(help="Largest error among the answers, such as .05.")] = None
    coverage: Annotated[float | None, typer.Option(help="Instead: least share of rows to answer, such as .8.")] = None
    confidence: Annotated[float, typer.Option(help="Probability that the promise is kept.")] = 0.95
    by: Annotated[Literal["class"] | None, typer.Option(help="A threshold for each predicted class.")] = None


@dataclass(frozen=True)
class Actions:
    """What actions cost."""

    costs: Annotated[
        str | None, typer.Option(metavar="CSV", help="Instead: costs, a line for each class, a column for each action.")
    ] = None
    reject: Annotated[float | None, typer.Option(help="With --costs: the cost of abstaining.")] = None

    def read(self, context: typer.Context) -> Costs | None:
        """Return the costs, or None; options that have no effect with or without them are refused."""
        if self.costs is None:
            refuse_typed(context, ["reject", "curve"], where="a call without --costs")
            return None
        refuse_typed(context, ["error", "coverage", "confidence", "by"], where="--costs, which need no threshold")
        return costs_in(self.costs)


@dataclass(frozen=True)
class Outputs:
    """What is written of the rule."""

    curve: Annotated[
        Path | None, typer.Option(help="With --costs and two classes: draw the net benefit (.png, .svg, .pdf).")
    ] = None
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Save calibrator and rule as one module (.safetensors).")
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False

    def check(self, *, inputs: list[str]) -> None:
        """Refuse places that cannot be written, before any work is done."""
        check_outputs(self.output, self.curve, inputs=inputs)
        if self.output is not None and self.output.suffix != ".safetensors":
            raise InputError("an output that ends in .safetensors", f"{self.output.name}", "rename it")
        if self.curve is not None:
            check_suffix(self.curve, PICTURES, what="a figure")


@with_groups
def decide(
    context: typer.Context,
    inputs: Inputs,
    promise: Promise,
    action: Actions,
    outputs: Outputs,
    file: Annotated[str | None, typer.Argument(help=FILES)] = None,
    calibrator: Annotated[str | None, typer.Option("--calibrator", "-c", help="Decide after this calibrator.")] = None,
    split: Annotated[str, typer.Option(help="The split to find it on, never one that was fitted on.")] = "test",
) -> None:
    """Find the confidence above which answers on new rows of the same kind have at most the given error.

    With --costs: choose the action of least expected cost, and print its cost on the labelled rows.

    Exit code 0: a threshold qualifies. 3: none does, and nothing is written. 2: an error.

    Examples:

        calibrant decide predictions.npz --error .05 -c calibrator.safetensors -o deployed.safetensors

        calibrant decide predictions.npz --coverage .8

        calibrant decide predictions.npz --costs costs.csv --curve benefit.png
    """
    from calibrant.calibrators import Identity
    from calibrant.cli._calibrators import with_logits
    from calibrant.data.splits import pick_split
    from calibrant.operate import Deployed, abstain, thresholds

    table = action.read(context)
    source = inputs.sources(file)[0]
    outputs.check(inputs=[name for name in (file, calibrator, action.costs, *inputs.beside) if name is not None])
    with readable(source.path) as path:
        here = at_path(source, path)
        read = inputs.named(here, names_used=table is not None)
        data = with_logits(pick_split(inputs.splits_of(read, here), split, here.shown), file=source.shown, split=split)
    if table is not None:
        table.check_classes(read.class_names)
    fitted = calibrant.load(calibrator) if calibrator else Identity().fit(data.logits, data.need_labels())
    calibrated = data if calibrator is None else data.calibrated_by(fitted)
    if table is not None:
        rule: Any = thresholds(table.table, reject=action.reject)
        found, qualifies = _weighed(rule, table, calibrated, outputs.curve), True
    else:
        with working("testing thresholds"):
            rule = found = abstain(calibrated, **asdict(promise))
        qualifies = rule.qualifies
    if outputs.output is not None and qualifies:
        Deployed(fitted, rule).save(outputs.output)
    _say(found, as_json=outputs.as_json)
    raise typer.Exit(0 if qualifies else NONE_QUALIFIES)


def _say(found: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(found.plain())
    else:
        console().print(str(found))


def _weighed(rule: CostRule, costs: Costs, data: Predictions, curve: Path | None) -> Any:
    """Return the report on a rule of costs, and draw the net benefit where ``curve`` says."""
    from calibrant.operate.decide import weigh

    if curve is not None and data.classes != 2:
        raise InputError("two classes for --curve", f"{data.classes}", "leave it out")
    found = weigh(rule, costs.actions, data)
    if curve is not None:
        from calibrant._core.paths import atomic_write
        from calibrant.plot import decision_curve

        figure = decision_curve(data).figure
        with atomic_write(curve) as out:
            figure.savefig(out, format=curve.suffix[1:].lower() or "png", dpi=140, bbox_inches="tight")
    return found
