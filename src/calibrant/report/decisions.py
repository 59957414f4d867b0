"""The part of a report on decisions: the cost of acting on the probabilities, and the rows to answer."""

from collections.abc import Sequence

from calibrant.data.predictions import Predictions
from calibrant.evaluate.cost_calibration import CostCalibration
from calibrant.operate import abstain
from calibrant.operate.abstain import Abstention
from calibrant.operate.decide import CostRule, weigh
from calibrant.report.model import Table

__all__ = ["answer_table", "cost_table"]

COVERAGE = 0.8  # "answer 80 %"


def cost_table(name: str, data: Predictions, *, rule: CostRule, actions: Sequence[str]) -> Table:
    """Return the table of a rule of costs: its cost with its interval, that of the best single action, and how often each is taken.

    Args:
        name: Of the model.
        data: Labelled and calibrated, of independent rows that no calibrator was fitted on.
        rule: Made by ``operate.thresholds``.
        actions: A names.
    """
    found = weigh(rule, actions, data)
    # what decisions cost, and how much more than the probabilities foresaw
    cost, gap = found.expected_cost, found.calibration.difference
    rows = [
        ["cost of a row, deciding by the probabilities", f"{cost.estimate:.4g}", f"{cost.low:.4g} to {cost.high:.4g}"],
        ["as the probabilities expected", f"{found.foreseen_cost:.4g}", ""],
        [
            "difference",
            f"{gap.estimate:+.4g} (p = {_least(found.calibration):.2g} if calibrated)",
            f"{gap.low:.4g} to {gap.high:.4g}",
        ],
        [f"best single action ({found.fixed_action})", f"{found.fixed_cost:.4g}", ""],
        *([f"rows with action {action}", f"{100 * share:.1f} %", ""] for action, share in found.shares.items()),
    ]
    if found.threshold is not None:
        rows.append([f"probability of class 1 from which on to {actions[1]}", f"{found.threshold:.4f}", ""])
    note = f"{found.rows:,} rows. Bounds at 95 % that hold at every number of rows; each row gets the action of least expected cost."
    return Table(f"Decisions at the least cost: {name}", ["", "value", "between"], rows, note)


def _least(calibration: CostCalibration) -> float:
    """Return the p of the difference and of the one over ranges together (Bonferroni)."""
    found = [one for one in (calibration.p, calibration.kuiper_p) if one is not None]
    # the larger of the two effects may be chosen, so the smaller p counts for both
    return min(1.0, len(found) * min(found))


def answer_table(name: str, data: Predictions, *, error: float) -> Table:
    """Return the table of the rows to answer: for an error of at most ``error`` with 95 % confidence, and for 80 % of the rows.

    Args:
        name: Of the model.
        data: As in ``cost_table``.
        error: Largest error among the answers, in (0, 1).
    """
    promises = [
        (f"at most {100 * error:g} % of answers wrong", abstain(data, error=error)),
        (f"answer {100 * COVERAGE:g} %", abstain(data, coverage=COVERAGE)),
    ]
    rows = [_answers(label, rule) for label, rule in promises]
    note = (
        "Thresholds found on these rows, for new rows of the same kind; with 95 % confidence the error among the answers is "
        "below the last column."
    )
    return Table(
        f"Answer or abstain: {name}",
        ["asked", "confidence from", "answered", "wrong of them", "error below"],
        rows,
        note,
    )


def _answers(label: str, rule: Abstention) -> list[str]:
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
