"""What a rule of costs does on labelled rows: its cost, that of the best single action, and how often each action is taken."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from calibrant.operate.decide import ABSTAIN, CostRule
from calibrant.predictions import Predictions
from calibrant.statistics import Interval

__all__ = ["CostReport", "weigh"]


@dataclass(frozen=True)
class CostReport:
    """A rule of costs on labelled rows.

    Args:
        rows: How many.
        expected_cost: Mean cost of the decisions, with 95 % bounds.
        foreseen_cost: What the probabilities expected.
        fixed_action: The action that costs least if always taken.
        fixed_cost: Its mean cost.
        shares: Action → share of rows; "abstain" where that is an action.
        threshold: Probability of class 1 from which on the second action is taken; None for a rule that has none.
    """

    rows: int
    expected_cost: Interval
    foreseen_cost: float
    fixed_action: str
    fixed_cost: float
    shares: dict[str, float]
    threshold: float | None

    def plain(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return asdict(self)

    def __str__(self) -> str:
        shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in self.shares.items())
        lines = [
            f"cost of a row        {self.expected_cost} on {self.rows:,} rows; the probabilities expected {self.foreseen_cost:.4g}",
            f"best single action   {self.fixed_action}: {self.fixed_cost:.4g}",
            f"actions              {shares}",
        ]
        if self.threshold is not None:
            lines.append(f"threshold            from probability {self.threshold:.4f} of class 1 on")
        return "\n".join(lines)


def weigh(rule: CostRule, actions: Sequence[str], predictions: Predictions) -> CostReport:
    """Return what ``rule`` does and costs on labelled, calibrated rows that no calibrator was fitted on.

    Args:
        rule: Made by ``thresholds``.
        actions: A names.
        predictions: Labelled, of independent rows.

    Raises:
        InputError: If they are not, or have another number of classes.
    """
    expected = rule.expected_cost(predictions)
    taken = rule.decide(predictions)
    names = {**dict(enumerate(actions)), **({} if rule.reject is None else {ABSTAIN: "abstain"})}
    best, cost = rule.fixed_cost(predictions)
    ordered = len(rule.costs) == len(actions) == 2 and rule.reject is None
    if ordered:
        (c00, c01), (c10, c11) = rule.costs
        ordered = c01 > c00 and c10 > c11
    return CostReport(
        rows=len(predictions),
        expected_cost=expected,
        foreseen_cost=rule.foreseen_cost(predictions),
        fixed_action=names[best],
        fixed_cost=cost,
        shares={name: float((taken == action).double().mean()) for action, name in names.items()},
        threshold=rule.threshold if ordered else None,
    )
