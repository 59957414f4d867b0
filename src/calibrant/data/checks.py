"""The one check of data that is to be measured."""

from dataclasses import dataclass
from typing import Annotated, Any

import torch

from calibrant._core.check import as_tensor, refuse, shown
from calibrant._core.constraints import Constraint, Fits
from calibrant.data.multilabel import MultiLabel
from calibrant.data.pairs import Pairs
from calibrant.data.predictions import Predictions

Data = Predictions | Pairs


LARGEST_COST = 1e100  # its square, and sums of squares, stay finite


def require_rows(data: Data, *, what: object) -> Data:
    """Return the rows of positive weight of predictions or pairs: the one check of whatever is measured.

    Args:
        data: What was passed.
        what: What it is for, named in the message.

    Raises:
        InputError: If it is anything else, or holds no such row.

    Examples:
        >>> from calibrant import Predictions
        >>> len(require_rows(Predictions.from_logits([[2.0, 0.0]]), what="the panel"))
        1
    """
    named = what if isinstance(what, str) else shown(what, most=200)
    if not isinstance(data, Predictions | Pairs):
        remedy = "make them with Predictions.from_logits(logits, labels) or from_probs(probs, labels)"
        if isinstance(data, MultiLabel):
            remedy = "take .pooled() or .label(name), or use multilabel_panel and label_table"
        raise refuse(f"Predictions or Pairs for {named}", f"a {type(data).__name__}", remedy)
    if not len(rows := data.counted):
        kind, got = ("row of positive weight", "none") if len(data) else ("row", "a selection of none")
        raise refuse(f"at least one {kind} for {named}", got, "check how the rows were selected")
    return rows


def require_predictions(data: Data, *, what: object) -> Predictions:
    """Return the rows of positive weight of predictions over all classes, at least one.

    Args:
        data: What was passed.
        what: What it is for, named in the message.

    Raises:
        InputError: If it is anything else, such as pairs, or holds no such row.

    Examples:
        >>> from calibrant import Predictions
        >>> require_predictions(Predictions.from_logits([[2.0, 0.0]]), what="my metric").classes
        2
    """
    rows = require_rows(data, what=what)
    if not isinstance(rows, Predictions):
        remedy = "make them with Predictions.from_logits, or use a metric of pairs such as ECE()"
        raise refuse(f"predictions over all classes for {what}", "pairs of a probability and what happened", remedy)
    return rows


def require_unweighted(data: Data, *, what: object) -> Data:
    """Return ``data`` if its rows have no weights.

    Raises:
        InputError: If they have.
    """
    if data.weights is not None:
        raise refuse(f"rows without weights for {what}", "weights", "leave them out")
    return data


def require_independent(data: Data, *, name: str = "predictions") -> Data:
    """Return ``data`` if each of its groups has one row only; ``name`` is that of the argument.

    Raises:
        InputError: If a group has more.
    """
    if data.groups is not None and (groups := len(data.groups.unique())) < len(data):
        got = f"{len(data):,} rows of {groups:,} groups"
        raise refuse(f"independent rows in {name}", got, "keep one row of each group")
    return data


@dataclass(frozen=True, repr=False)
class MeasuredRows(Constraint):
    """Predictions or pairs of at least one row, without those of weight 0: what ``require_rows`` returns.

    Args:
        what: What they are for, named in the message; else the object whose method is called.
        weighted: Whether rows may have weights.
        labelled: Whether predictions need labels.
        classes: Whether the probabilities of all classes are needed, which pairs do not have.
        independent: Whether each group may have one row only.
        compared: Whether rows are compared with each other, so that there must be two.
    """

    what: str = ""
    weighted: bool = True
    labelled: bool = False
    classes: bool = False
    independent: bool = False
    compared: bool = False

    def __repr__(self) -> str:
        return "of at least one row" if self.weighted else "of at least one row, without weights"

    def check(self, value: Any, name: str, caller: object) -> Any:
        what = self.what or caller
        rows = (require_predictions if self.classes else require_rows)(value, what=what)
        if self.labelled and isinstance(rows, Predictions):
            rows.need_labels()
        if self.compared and rows.count < 2:
            raise refuse(f"at least two rows for {what}", "one", "measure on more rows")
        if not self.weighted:
            require_unweighted(rows, what=what)
        return require_independent(rows, name=name) if self.independent else rows


Rows = Annotated[Data, MeasuredRows()]
ClassRows = Annotated[Any, MeasuredRows(classes=True)]  # of metrics whose base takes pairs, too
ComparedRows = Annotated[Any, MeasuredRows(classes=True, compared=True)]


def check_costs(costs: Any, *, name: str = "costs") -> tuple[tuple[float, ...], ...]:
    """Return costs[true, action] (K, A) as numbers.

    Raises:
        InputError: If they are not a finite table of two classes and two actions or more, which cost different amounts.
    """
    table = as_tensor(costs, name=name).double()
    if table.dim() != 2 or min(table.shape) < 2:
        raise refuse(
            "costs of shape (K, A), two or more each", f"shape {tuple(table.shape)}", "pass costs[true, action]"
        )
    if not bool(torch.isfinite(table).all()):
        raise refuse("finite costs", "NaN or inf", "use a large cost for what must not happen")
    if bool((table.abs() > LARGEST_COST).any()):
        raise refuse(f"costs of at most {LARGEST_COST:g}", "larger ones", "use a smaller unit")
    if bool((table == table[:, :1]).all()):
        raise refuse(
            "costs that differ between actions", "the same for all of them", "say what the wrong action costs more"
        )
    if float(table.abs().amax()) ** 2 == 0:
        raise refuse("costs whose squares are no 0", "smaller ones", "use a larger unit")
    given = costs.tolist() if hasattr(costs, "tolist") else costs  # as_tensor may have rounded lists to float32
    return tuple(tuple(float(cost) for cost in row) for row in given)


CostTable = Annotated[Any, Fits(check_costs, "(K, A), finite")]
