"""Checks of evaluation data and of decision costs."""

from typing import Any

from calibrant._core.check import as_tensor, refuse, shown
from calibrant.data.multilabel import MultiLabel
from calibrant.data.pairs import Pairs
from calibrant.data.predictions import Predictions

Data = Predictions | Pairs

LARGEST_COST = 1e100  # squares, and sums of squares, stay finite


def require_rows(data: Data, *, what: object) -> Data:
    """Check that data are predictions or pairs with rows of positive weight, and return these rows.

    Args:
        data: The data to check.
        what: The consumer of the data, for the error message.

    Returns:
        The rows with positive weight.

    Raises:
        InputError: If the data are of another type, or have no such row.

    Examples:
        >>> from calibrant import Predictions
        >>> len(require_rows(Predictions.from_logits([[2.0, 0.0]]), what="the panel"))
        1
    """
    if not isinstance(data, Predictions | Pairs):
        remedy = "create them with Predictions.from_logits(logits, labels) or from_probs(probs, labels)"
        if isinstance(data, MultiLabel):
            remedy = "use .pooled() or .label(name), or call multilabel_panel or label_table"
        raise refuse(f"Predictions or Pairs for {what}", f"a {type(data).__name__}", remedy)
    if not len(rows := data.counted):
        kind, got = ("row of positive weight", "none") if len(data) else ("row", "no rows")
        raise refuse(f"at least one {kind} for {what}", got, "check how the rows were selected")
    return rows


def require_predictions(data: Data, *, what: object) -> Predictions:
    """Check that data are predictions over all classes, and return their rows with positive weight, at least one.

    Args:
        data: The data to check.
        what: The consumer of the data, for the error message.

    Returns:
        The rows with positive weight.

    Raises:
        InputError: If the data are of another type (pairs, for example), or have no such row.

    Examples:
        >>> from calibrant import Predictions
        >>> require_predictions(Predictions.from_logits([[2.0, 0.0]]), what="my metric").classes
        2
    """
    rows = require_rows(data, what=what)
    if not isinstance(rows, Predictions):
        remedy = "pass the scores of all classes, or use a metric for pairs such as ECE"
        raise refuse(f"predictions over all classes for {what}", "pairs of a probability and an outcome", remedy)
    return rows


def require_unweighted(data: Data, *, what: object) -> Data:
    """Return ``data`` if its rows have no weights.

    Raises:
        InputError: If the rows have weights.
    """
    if data.weights is not None:
        raise refuse(f"rows without weights for {what}", "weights", "leave them out")
    return data


def require_independent(data: Data, *, name: str = "predictions") -> Data:
    """Return ``data`` if each of its groups has a single row; ``name`` is the argument's name in the error message.

    Raises:
        InputError: If a group has several rows.
    """
    if data.groups is not None and (groups := len(data.groups.unique())) < len(data):
        got = f"{len(data):,} rows in {groups:,} groups"
        raise refuse(f"independent rows in {name}", got, "keep one row of each group")
    return data


def check_costs(costs: Any, *, name: str = "costs") -> tuple[tuple[float, ...], ...]:
    """Return costs[true, action] (K, A) as tuples of numbers.

    Raises:
        InputError: If the costs are not finite numbers for at least two classes and two actions that differ in cost.
    """
    table = as_tensor(costs, name=name).double()
    # larger ones would overflow in sums of squares
    if table.dim() != 2 or min(table.shape) < 2 or not bool((table.abs() <= LARGEST_COST).all()):
        expected = f"finite {name} of shape (K, A) with K and A at least 2, each at most {LARGEST_COST:g}"
        raise refuse(
            expected, shown(costs, most=200), "pass costs[true, action], with a large cost for what must not happen"
        )
    if bool((table == table[:, :1]).all()):
        raise refuse(
            f"{name} that differ between actions", "the same for all of them", "give the wrong actions a higher cost"
        )
    given = costs.tolist() if hasattr(costs, "tolist") else costs  # as_tensor may have rounded lists to float32
    return tuple(tuple(float(cost) for cost in row) for row in given)
