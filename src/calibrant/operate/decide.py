"""Decisions by cost: costs read from a file, and the action with the lowest expected cost."""

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from calibrant._core.check import reads_as_number, refuse
from calibrant._core.constraints import Number, checked
from calibrant._files import read_text
from calibrant.data.checks import LARGEST_COST, CostTable
from calibrant.data.predictions import Predictions
from calibrant.errors import FileFormatError
from calibrant.operate.bounds import Moments, mean_ends
from calibrant.operate.rows import ClassScores, ClassWindow, LabelledClasses, need_logits
from calibrant.statistics.means import Interval

_ALPHA = 0.025  # error probability of each bound
ABSTAIN = -1
Cost = Annotated[float, Number(-LARGEST_COST, LARGEST_COST)]
_CLASS_COLUMN = ("", "class", "true", "label", "y")  # headers of a column that names the classes, even by numbers


class CostRule(nn.Module):
    """Chooses the action a with the lowest expected cost Σ_k p_k costs[k, a]. Made by ``thresholds``.

    Of actions with equal cost it takes the first, and abstains only if that is strictly cheaper. ``forward`` takes calibrated
    logits (N, K) and returns actions (N,) int64, −1 for abstaining, so that ``torch.nn.Sequential(model, calibrator, rule)`` can
    be deployed and exported.

    Args:
        costs: (K, A) cost of action a if class k is true; negative costs are gains.
        reject: Cost of abstaining, or None if the rule must not abstain.
    """

    table: Tensor
    costs: tuple[tuple[float, ...], ...]

    @checked
    def __init__(self, costs: CostTable, *, reject: Cost | None = None) -> None:
        super().__init__()
        self.costs, self.reject = costs, reject
        table = torch.tensor(self.costs, dtype=torch.float64)
        if self.reject is not None:
            table = torch.cat([table, torch.full((len(table), 1), self.reject, dtype=torch.float64)], dim=1)
        self.register_buffer("table", table)

    @property
    def threshold(self) -> float:
        """The probability of class 1 at and above which action 1 is taken; for two classes, two actions and no abstaining.

        Raises:
            InputError: For more classes or actions, or if one action is never worse than the other.
        """
        beyond = (0.0, 0.0)  # what the wrong action costs more than the right one, for either class
        if self.table.shape == (2, 2):
            (c00, c01), (c10, c11) = self.costs
            beyond = (c01 - c00, c10 - c11)
        if min(beyond) <= 0:
            expected = "costs of two classes and two actions, where each class has its own better action"
            raise refuse(expected, f"{self.table.tolist()}", "use decide")
        # Elkan's eq. 2: both actions cost the same where p (c10 − c11) = (1 − p) (c01 − c00)
        return beyond[0] / sum(beyond)

    def forward(self, logits: Tensor) -> Tensor:
        """Return the actions (N,) int64 for calibrated ``logits`` (N, K); −1 for abstaining."""
        return self._cheapest(self._expected(logits))

    @checked
    def decide(self, predictions: ClassScores) -> Tensor:
        """Return the action (N,) of each row; −1 for abstaining.

        Args:
            predictions: Calibrated, of K classes; labels are not needed.
        """
        return self._cheapest(self._of_rows(predictions))

    @checked
    def expected_cost(self, predictions: LabelledClasses) -> Interval:
        """Return the mean cost of the decisions on labelled rows, with finite-sample 95 % bounds.

        Args:
            predictions: Labelled and calibrated, of independent rows on which no calibrator was fitted.

        Raises:
            InputError: If the rows are not labelled and independent.
        """
        taken = self._of_rows(predictions).argmin(dim=1).cpu()
        # costs are bounded by the table, so that the bounds of a mean hold at every number of rows
        paid = np.asarray(self.table.cpu()[predictions.need_labels().cpu(), taken].numpy())
        low, high = float(self.table.min()), float(self.table.max())
        mean = float(paid.mean())
        ends = mean_ends(Moments.of(paid), low=low, high=high, alpha=_ALPHA)
        return Interval(mean, min(ends[0], mean), max(ends[1], mean), 1 - 2 * _ALPHA, "bets")

    @checked
    def foreseen_cost(self, predictions: ClassWindow) -> float:
        """Return the mean cost of the decisions expected by calibrated probabilities, without labels.

        Args:
            predictions: Calibrated, of independent rows.

        Raises:
            InputError: If the rows are not independent, or have weights.
        """
        return float(self._of_rows(predictions).amin(dim=1).mean())

    def extra_repr(self) -> str:
        """Show classes, actions and the cost of abstaining."""
        reject = "" if self.reject is None else f", reject={self.reject:g}"
        return f"{len(self.costs)} classes, {len(self.costs[0])} actions{reject}"

    def _expected(self, logits: Tensor) -> Tensor:
        """Return the expected cost (N, A) of each action."""
        logits = need_logits(logits, classes=len(self.costs), home=self.table)
        return torch.softmax(logits.double(), dim=1) @ self.table

    def _of_rows(self, predictions: Predictions) -> Tensor:
        self._check(predictions)
        with torch.no_grad():
            return self._expected(predictions.logits)

    def _cheapest(self, costs: Tensor) -> Tensor:
        """Return the action of least cost along the last axis; −1 for abstaining, which is its last entry."""
        best = costs.argmin(dim=-1)
        return best if self.reject is None else torch.where(best == self.table.shape[1] - 1, ABSTAIN, best)

    def _check(self, predictions: Predictions) -> None:
        if predictions.classes != len(self.costs):
            got = f"{predictions.classes} of predictions"
            raise refuse(f"predictions of {len(self.costs)} classes, as costs has rows", got, "give each class a row")


@checked
def thresholds(costs: Any, *, reject: float | None = None) -> CostRule:
    """Return the rule that chooses the action with the lowest expected cost.

    Args:
        costs: (K, A) cost of action a if class k is true: ``costs[true, action]``; negative costs are gains.
        reject: Cost of abstaining, or None if the rule must not abstain.

    Raises:
        InputError: If costs are not a finite (K ≥ 2, A ≥ 2) table.

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


@dataclass(frozen=True)
class Costs:
    """A table of costs: of each action for each true class.

    Args:
        table: (K, A) costs[true, action].
        actions: A names; their indices if the file has no names.
        classes: K names of the lines, or none.
        file: Name of the file, for messages.
    """

    table: list[list[float]]
    actions: list[str]
    classes: tuple[str, ...]
    file: str

    def check_classes(self, known: Sequence[str]) -> None:
        """Raise if the lines' names are not those of the classes in their order.

        Args:
            known: The names of the classes, or none if they only have numbers.

        Raises:
            FileFormatError: If they differ.
        """
        expected = tuple(known) or tuple(str(number) for number in range(len(self.table)))
        if len(expected) == 2 and expected[0] == f"not {expected[1]}" and self.classes[1:] == expected[1:]:
            expected = (self.classes[0], expected[1])  # what is not the event may have any name
        numbers = all(name.isdigit() for name in self.classes)
        if self.classes and (known or numbers) and self.classes != expected:
            raise FileFormatError(
                f"a line of costs for each class in their order ({', '.join(expected[:8])})",
                f"{', '.join(self.classes[:8])} in {self.file}",
                "put the lines in that order",
            )


def read_costs(path: str | os.PathLike[str], *, file: str | None = None) -> Costs:
    """Read costs: one line per class in their order, one column per action; a header and a column of class names are optional.

    Args:
        path: A CSV file.
        file: Name of the file in messages; None is its path.

    Raises:
        FileFormatError: If it is not a text file, a cell is not a number, or lines differ in length.
    """
    text = read_text(path)
    file = os.fspath(path) if file is None else file
    try:
        read = [[cell.strip() for cell in line] for line in csv.reader(text.splitlines())]
    except csv.Error as error:
        raise FileFormatError(
            "costs as CSV text", f"another kind of file ({error})", "save them as CSV", place=file
        ) from None
    lines = [line for line in read if any(line)]
    header = bool(lines) and not all(map(reads_as_number, lines[0][1:]))
    body = lines[1:] if header else lines
    headed = header and lines[0][0].lower() in _CLASS_COLUMN
    named = bool(body) and (headed or not any(reads_as_number(line[0]) for line in body))
    cells = [line[1:] if named else line for line in body]
    if not cells or {len(line) for line in cells} != {len(cells[0])} or len(cells[0]) < 2:
        counts = ", ".join(str(len(line)) for line in cells) or "no line"
        expected = "a line for each class and equally many costs, of two actions or more, in each"
        raise FileFormatError(expected, f"{counts} in {file}", "fill the table, with a column for each action")
    for line in cells:
        for cell in line:
            if not reads_as_number(cell):
                raise FileFormatError(f"numbers as costs in {file}", f"{cell!r}", "correct it")
    table = [[float(cell) for cell in line] for line in cells]
    actions = lines[0][-len(table[0]) :] if header else [str(one) for one in range(len(table[0]))]
    if len(actions) != len(table[0]):
        raise FileFormatError(f"a name for each action in the first line of {file}", f"{len(actions)}", "fill it")
    if len({*actions, "abstain"}) != len(actions) + 1:
        expected = f"different names of actions other than abstain in {file}"
        raise FileFormatError(expected, ", ".join(actions), "rename them")
    return Costs(table, actions, tuple(line[0] for line in body) if named else (), file)
