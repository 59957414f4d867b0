"""The part of a report on decisions: which model to take, the cost of acting on its probabilities, and the rows to answer."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations

from calibrant.data.pairs import Events
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.evaluate.compare import Comparison, compared
from calibrant.evaluate.cost_calibration import CostCalibration
from calibrant.operate import abstain
from calibrant.operate.abstain import Abstention
from calibrant.operate.decide import CostRule, weigh
from calibrant.report.model import Claims, Model, Table
from calibrant.report.section import Section

LEVEL, COVERAGE = 0.95, 0.8  # "answer 80 %"
MOST_PAIRS = 6  # of models that are compared: more than four models would fill the first screen with sentences


@dataclass(frozen=True)
class Pair:
    """Two models of a report that were evaluated on the same rows.

    Args:
        a: Name of one.
        b: Name of the other.
        calibrated: Whether a model with a calibrator is compared as calibrated by it.
        found: Their comparison, at a level that accounts for the number of pairs.
    """

    a: str
    b: str
    calibrated: bool
    found: Comparison


def pairs_of(models: Sequence[Model | Section]) -> list[Pair]:
    """Return the comparison of each pair of a few models on the rows that both were evaluated on; empty where none share them.

    Args:
        models: As for a report; each as it would be used: calibrated, if it has a calibrator.
    """
    known = [one for one in models if isinstance(one, Model)]
    used = [one.before if one.after is None else one.after for one in known]
    names = [one.name for one in known]
    names = [name if names.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(names, start=1)]
    # without true classes nothing tells whether rows are the same
    comparable = [at for at, data in enumerate(used) if isinstance(data, Events) or data.labels is not None]
    calibrated = any(one.after is not None for one in known)
    pairs, found = list(combinations(comparable, 2)), []
    for a, b in pairs if len(pairs) <= MOST_PAIRS else ():
        with suppress(InputError):  # other rows: nothing to pair
            level = 1 - (1 - LEVEL) / len(pairs)
            comparison = compared(used[a], used[b], (names[a], names[b]), level=level)
            found.append(Pair(names[a], names[b], calibrated, comparison))
    return found


def better_of(pairs: Sequence[Pair], sections: Sequence[Section]) -> list[Claims]:
    """Return what to do and the verdicts on ``pairs`` as sentences under a heading; nothing without pairs.

    Args:
        pairs: From ``pairs_of``.
        sections: Those of the same models.
    """
    if not pairs:
        return []
    lost, score = set(), ""
    for pair in pairs:
        # one proper score decides: it counts calibration and ranking together
        row = next(one for name in ("NLL", "Brier", "") for one in pair.found.rows if one.metric.startswith(name))
        score = "log-loss" if row.metric.startswith("NLL") else row.metric.split("(")[0]
        lost |= {pair.b} if row.winner == "a" else {pair.a} if row.winner == "b" else set()
    best = sorted({name for pair in pairs for name in (pair.a, pair.b)} - lost)
    todo = f"{' and '.join(best)} cannot be told apart by their {score} on these rows: take the simpler, or label more rows."
    if len(best) == 1:
        then = [section.advice.headline for section in sections if section.model.name == best[0]]
        todo = " ".join([f"take {best[0]}, which has the better {score}.", *then])
    calibrated = ", each as calibrated" if any(pair.calibrated for pair in pairs) else ""
    return [Claims("Which model" + calibrated, [f"What to do: {todo}", *(pair.found.verdict for pair in pairs)])]


def costs_of(
    model: Model, data: Predictions, *, rule: CostRule, actions: Sequence[str], event: str
) -> tuple[Claims, Table]:
    """Return what deciding by the probabilities costs, whether they foresaw it, and what to do, in sentences and as a table.

    Args:
        model: Evaluated on independent rows that no calibrator was fitted on.
        data: Its labelled rows, calibrated if it has a calibrator.
        rule: Made by ``operate.thresholds``.
        actions: A names.
        event: Name of class 1.
    """
    found, basis = weigh(rule, actions, data, event=event), _basis(model)
    # what decisions cost, and how much more than the probabilities foresaw
    cost, gap, p = found.expected_cost, found.calibration.difference, _least(found.calibration)
    chance = f"p {'< 0.0001' if p < 1e-4 else f'= {p:.2g}'} if calibrated"
    off = p < 1 - LEVEL
    side = "less" if gap.estimate > 0 else "more"
    against = f"the best single action, {found.fixed_action}, costs {found.fixed_cost:.4g}"
    sure = f"{'more than chance explains' if off else 'which chance explains'} ({chance})"
    todo = f"take {found.fixed_action} always: it costs no more"
    if off:
        todo = "calibrate for these costs first: the command “fit” below, with --costs COSTS.csv in place of its --method and --features"
    elif cost.estimate < found.fixed_cost:
        todo = "decide by them"
    lines = [
        f"Deciding by the {basis} costs {cost.estimate:.4g} a row; {against}.",
        f"The {basis} expected {found.foreseen_cost:.4g}, {abs(gap.estimate):.3g} {side}, {sure}.",
        f"What to do: {todo}.",
    ]
    rows = [
        [f"cost of a row, deciding by the {basis}", f"{cost.estimate:.4g}", f"{cost.low:.4g} to {cost.high:.4g}"],
        [f"as the {basis} expected", f"{found.foreseen_cost:.4g}", ""],
        ["difference", f"{gap.estimate:+.4g} ({chance})", f"{gap.low:.4g} to {gap.high:.4g}"],
        [f"best single action ({found.fixed_action})", f"{found.fixed_cost:.4g}", ""],
        *([f"rows with action {action}", f"{100 * share:.1f} %", ""] for action, share in found.shares.items()),
    ]
    if found.threshold is not None:
        rows.append([f"probability of {event} from which on to {actions[1]}", f"{found.threshold:.4f}", ""])
    note = f"{found.rows:,} rows. Bounds at 95 % that hold at every number of rows; each row gets the action of least expected cost."
    return Claims(f"Costs: {model.name}", lines), Table(
        f"Decisions at the least cost: {model.name}", ["figure", "value", "between"], rows, note
    )


def _basis(model: Model) -> str:
    """Return which probabilities are decided by, in words."""
    return "probabilities" if model.after is None else "calibrated probabilities"


def _least(calibration: CostCalibration) -> float:
    """Return the p of the difference and of the one over ranges together (Bonferroni)."""
    found = [one for one in (calibration.p, calibration.kuiper_p) if one is not None]
    # the larger of the two effects may be chosen, so the smaller p counts for both
    return min(1.0, len(found) * min(found))


def answers_of(model: Model, data: Predictions, *, error: float) -> tuple[Claims, Table]:
    """Return which rows to answer: for an error of at most ``error`` with 95 % confidence, and for 80 % of the rows.

    Args:
        model: As in ``costs_of``.
        data: As there.
        error: Largest error among the answers, in (0, 1).
    """
    promises = [
        (f"at most {100 * error:g} % of answers wrong", abstain(data, error=error)),
        (f"answer {100 * COVERAGE:g} %", abstain(data, coverage=COVERAGE)),
    ]
    rows = [_abstention_answers(label, rule) for label, rule in promises]
    note = (
        f"Thresholds on the confidence of the {_basis(model)}, found on these rows, for new rows of the same kind; with 95 % "
        "confidence the error among the answers is below the last column."
    )
    (part,) = promises[0][1].parts
    line = (
        f"Answer the {100 * part.answered / part.rows:.1f} % of rows with a confidence of {part.threshold:.4f} or more: with 95 % "
        f"confidence at most {100 * error:g} % of such answers are wrong on new rows."
        if part.answered
        else f"No confidence keeps the errors among answers to {100 * error:g} %: pass every row to a person, or allow more."
    )
    return Claims(f"Answers: {model.name}", [line]), Table(
        f"Answer or abstain: {model.name}",
        ["asked", "confidence from", "answered", "wrong of them", "error below"],
        rows,
        note,
    )


def _abstention_answers(label: str, rule: Abstention) -> list[str]:
    (part,) = rule.parts
    if not part.answered:
        return [label, "none qualifies", "0 %", "", ""]
    answered = f"{100 * part.answered / part.rows:.1f} % of {part.rows:,}"
    return [
        label,
        f"{part.threshold:.4f}",
        answered,
        f"{part.errors:,} of {part.answered:,}",
        f"{100 * part.error_high:.2f} %",
    ]
