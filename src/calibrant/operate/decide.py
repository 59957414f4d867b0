"""Decision rules that choose the action with the lowest expected cost."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibrant._core.check import check_number, refuse
from calibrant.data.checks import LARGEST_COST, check_costs
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.operate.abstain import ABSTAIN
from calibrant.operate.bounds import Line, mean_ends
from calibrant.operate.rows import require_classes

_ALPHA = 0.025  # error probability of each bound


class CostRule(nn.Module):
    """A rule, created by ``thresholds``, that chooses the action a with the lowest expected cost Σ_k p_k costs[k, a].

    Among actions with equal cost, the rule chooses the first, and it abstains only if that is strictly cheaper. ``forward`` takes
    calibrated logits (N, K) and returns actions (N,), int64, with −1 for abstaining, so that
    ``torch.nn.Sequential(model, calibrator, rule)`` can be deployed and exported.

    Args:
        costs: Table (K, A) with the cost of action a if class k is true; negative costs are gains.
        reject: Cost of abstaining, or None if the rule must not abstain.
    """

    table: Tensor

    def __init__(self, costs: Any, *, reject: float | None = None) -> None:
        super().__init__()
        self.costs, self.reject = check_costs(costs), reject
        table = torch.tensor(self.costs, dtype=torch.float64)
        if reject is not None:
            cost = check_number(reject, name="reject", low=-LARGEST_COST, high=LARGEST_COST)
            table = torch.cat([table, torch.full((len(table), 1), cost, dtype=torch.float64)], dim=1)
        self.register_buffer("table", table)

    @property
    def threshold(self) -> float:
        """The probability of class 1 from which on action 1 is chosen, for two classes and two actions without abstaining.

        Raises:
            InputError: If there are more classes or actions, or if one action is never worse than the other.
        """
        if self.table.shape == (2, 2):
            (c00, c01), (c10, c11) = self.costs
            miss, alarm = c10 - c11, c01 - c00  # the extra cost of the wrong action if class 1, or class 0, is true
            if min(miss, alarm) > 0:
                # Elkan's eq. 2: both actions cost the same if p (c10 − c11) = (1 − p) (c01 − c00)
                return alarm / (miss + alarm)
        raise InputError(
            "a threshold exists only for two classes and two actions, each better for its own class; use decide"
        )

    def forward(self, logits: Tensor) -> Tensor:
        """Return the actions (N,), int64, for calibrated ``logits`` (N, K); −1 for abstaining."""
        best = self._expected(logits).argmin(dim=-1)
        return best if self.reject is None else torch.where(best == self.table.shape[1] - 1, ABSTAIN, best)

    def decide(self, predictions: Predictions) -> Tensor:
        """Return the action for each row (N,), with −1 for abstaining. Labels are not needed."""
        self._require_same_classes(predictions)
        with torch.no_grad():
            return self(predictions.logits)  # type: ignore[no-any-return]

    def expected_cost(self, predictions: Predictions) -> Line:
        """Return the mean cost of the decisions on labelled rows, with finite-sample 95 % bounds.

        Args:
            predictions: Labelled, calibrated predictions for independent rows on which no calibrator was fitted.

        Returns:
            The mean cost per row with its bounds.

        Raises:
            InputError: If the rows are not labelled and independent, or the costs are those of another number of classes.
        """
        rows = require_classes(predictions, what="expected_cost")
        self._require_same_classes(rows)
        taken = self._expected(rows.logits).argmin(dim=1).cpu()
        # costs are bounded by the table, so the bounds on the mean are valid for every number of rows
        paid = np.asarray(self.table.cpu()[rows.require_labels().cpu(), taken].numpy())
        mean = float(paid.mean())
        low, high = float(self.table.min()), float(self.table.max())
        ends = mean_ends(paid, low=low, high=high, alpha=_ALPHA)
        return Line("cost per row", mean, min(ends[0], mean), max(ends[1], mean), len(paid))

    def foreseen_cost(self, predictions: Predictions) -> float:
        """Return the mean cost of the decisions that the calibrated probabilities predict. Labels are not needed."""
        rows = require_classes(predictions, what="foreseen_cost", labelled=False)
        self._require_same_classes(rows)
        return float(self._expected(rows.logits).amin(dim=1).mean())

    def extra_repr(self) -> str:
        """Return the numbers of classes and actions and the cost of abstaining as text."""
        reject = "" if self.reject is None else f", reject={self.reject:g}"
        return f"{len(self.costs)} classes, {len(self.costs[0])} actions{reject}"

    def _require_same_classes(self, predictions: Predictions) -> None:
        if predictions.classes != len(self.costs):
            expected = f"predictions of {len(self.costs)} classes, one for each row of the costs"
            raise refuse(
                expected, f"{predictions.classes} classes", "create the rule with a row of costs for each class"
            )

    def _expected(self, logits: Tensor) -> Tensor:
        """Return the expected cost (N, A) of each action."""
        return torch.softmax(logits.detach().double(), dim=1) @ self.table


def thresholds(costs: Any, *, reject: float | None = None) -> CostRule:
    """Return the rule that chooses the action with the lowest expected cost.

    Args:
        costs: Table (K, A) with the cost of action a if class k is true, ``costs[true, action]``; negative costs are gains.
        reject: Cost of abstaining, or None if the rule must not abstain.

    Returns:
        The rule, a module.

    Raises:
        InputError: If ``costs`` is not a table of finite numbers with at least two rows and two columns.

    Examples:
        >>> from calibrant import Predictions
        >>> rule = thresholds([[0, 1], [5, 0]])  # missing class 1 costs five times as much as a false alarm
        >>> round(rule.threshold, 4)
        0.1667
        >>> rule.decide(Predictions.from_binary_probs([0.1, 0.2, 0.9])).tolist()
        [0, 1, 1]
        >>> thresholds([[0, 1], [1, 0]], reject=0.2).decide(Predictions.from_binary_probs([0.1, 0.5, 0.9])).tolist()
        [0, -1, 1]

    References:
        Elkan 2001, The Foundations of Cost-Sensitive Learning, eq. 1, 2; Chow 1970 for abstaining.
    """
    return CostRule(costs, reject=reject)
