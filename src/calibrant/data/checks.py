"""The one check of data that is to be measured."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Protocol

import torch

from calibrant._core.check import refuse, shown
from calibrant._core.constraints import Constraint
from calibrant.data.predictions import BinaryPairs, Predictions
from calibrant.data.record import keep
from calibrant.errors import InputError, NoIntervalError

Data = Predictions | BinaryPairs


class Summed(Protocol):
    """What is a function of a sum over rows."""

    def state(self, data: Data) -> Any:
        """Return the state, which adds."""


MOST_REPEATED = 1 << 26  # numbers: half a gigabyte


def need_rows(data: Data, *, what: object, argument: str = "") -> Data:
    """Return ``data`` if it is predictions or pairs of at least one row: the one check of whatever is measured.

    Rows of weight 0 are left out, so that they count no more than rows that are not there.

    Args:
        data: What was passed.
        what: What it is for, named in the message.
        argument: The argument it was passed as.

    Raises:
        InputError: If it is anything else, or a selection without rows.

    Examples:
        >>> from calibrant import Predictions
        >>> len(need_rows(Predictions.from_logits([[2.0, 0.0]]), what="the panel"))
        1
    """
    named = what if isinstance(what, str) else shown(what, most=200)
    if not isinstance(data, Predictions | BinaryPairs):
        kind = f"a {type(data).__name__}"
        remedy = "make them with Predictions.from_logits(logits, labels) or from_probs(probs, labels)"
        if type(data).__name__ == "MultiLabelPredictions":  # which is built on these rows
            remedy = "take .pooled() or .label(name), or use multilabel_panel and label_table"
        raise refuse(f"Predictions or BinaryPairs for {named}", kind, remedy, argument=argument)
    if len(data) == 0:
        got, remedy = "a selection of none", "check how the rows were selected"
        raise refuse(f"at least one row for {named}", got, remedy, argument=argument)
    return data if data.weights is None else _counted(data, what=what)


@dataclass(frozen=True, repr=False)
class MeasuredRows(Constraint):
    """Predictions or pairs of at least one row, without those of weight 0: what ``need_rows`` returns.

    Args:
        what: What they are for, named in the message; else the object whose method is called.
        weighted: Whether rows may have weights.
        labelled: Whether predictions need labels.
    """

    what: str = ""
    weighted: bool = True
    labelled: bool = False

    refused = (None, 3, "abc", torch.ones(2, 2))

    def __repr__(self) -> str:
        return "of at least one row" if self.weighted else "of at least one row, without weights"

    def check(self, value: Any, name: str, caller: object) -> Data:
        what = self.what or caller
        rows = need_rows(value, what=what, argument=name)
        if self.labelled and isinstance(rows, Predictions):
            rows.need_labels()
        return rows if self.weighted else need_unweighted(rows, what=what)


Rows = Annotated[Data, MeasuredRows()]


def need_unweighted(data: Data, *, what: object) -> Data:
    """Return ``data`` if its rows have no weights: what does not honour them refuses them here.

    Args:
        data: What was passed.
        what: What it is for, named in the message.

    Raises:
        InputError: If rows have weights.

    Examples:
        >>> from calibrant import Predictions
        >>> len(need_unweighted(Predictions.from_logits([[2.0, 0.0]]), what="the monitor"))
        1
    """
    if isinstance(data, Predictions | BinaryPairs) and data.weights is not None:
        remedy = "repeat the rows, or leave weights out" if data.weight_kind == "frequency" else "leave weights out"
        raise refuse(f"rows without weights for {what}", f"{data.weight_kind} weights", remedy)
    return data


def need_predictions(data: Data, *, metric: object) -> Predictions:
    """Return ``data`` if it holds all K probabilities of at least one row.

    Args:
        data: What was passed.
        metric: The metric, for the message.

    Raises:
        InputError: If it holds top-label pairs only, or no rows.

    Examples:
        >>> from calibrant import Predictions
        >>> need_predictions(Predictions.from_logits([[2.0, 0.0]]), metric="my metric").classes
        2
    """
    checked = need_rows(data, what=metric)
    if isinstance(checked, Predictions):
        return checked
    raise InputError(
        f"predictions over all classes for {metric}", "top-label pairs", "use a top-label metric such as ECE()"
    )


def count_of(data: Data) -> int:
    """Return how many rows ``data`` stands for: counted rows as often as they are counted, others of positive weight once.

    Args:
        data: Predictions or pairs.

    Examples:
        >>> from calibrant import Predictions
        >>> count_of(Predictions.from_logits([[2.0, 0.0]], weights=[3], weight_kind="frequency"))
        3
    """
    if data.weights is None:
        return len(data)
    return int(data.weights.sum() if data.weight_kind == "frequency" else (data.weights > 0).sum())


def effective_count(data: Data) -> float:
    """Return the rows of equal weight that would vary as much: (Σw)² / Σw² for sampling weights, else the rows.

    Args:
        data: Predictions or pairs.

    Examples:
        >>> from calibrant import Predictions
        >>> effective_count(Predictions.from_logits([[2.0, 0.0]] * 2, weights=[3.0, 1.0], weight_kind="sampling"))
        1.6
    """
    if data.weights is None or data.weight_kind == "frequency":
        return float(count_of(data))
    return float(data.weights.sum().square() / data.weights.square().sum())


def repeated(data: Data, *, what: object) -> Data:
    """Return rows with counts as so many rows without weights, and any others as they are.

    Args:
        data: Predictions or pairs.
        what: What needs them, for the message.

    Raises:
        NoIntervalError: If there would be too many.
    """
    if data.weights is None or data.weight_kind != "frequency":
        return data
    values = count_of(data) * (data.classes if isinstance(data, Predictions) else 1)
    if values > MOST_REPEATED:
        raise NoIntervalError(
            (
                f"counts that add up to at most {MOST_REPEATED * count_of(data) // values:,} rows for the "
                f"uncertainty of {what!r}, which needs each of them"
            ),
            f"{count_of(data):,}",
            "use ECE()",
        )
    places = torch.repeat_interleave(torch.arange(len(data), device=data.weights.device), data.weights)
    return replace(data, weights=None, weight_kind=None)[places]


def _counted(data: Data, *, what: object) -> Data:
    """Return the rows whose weight is not 0; the selection is kept beside ``data``."""
    if "counted_rows" not in vars(data):
        assert data.weights is not None
        positive = data.weights > 0
        if not bool(positive.any()):
            raise refuse(f"at least one row of positive weight for {what}", "none", "check how the rows were selected")
        # None stands for all rows: data that held itself would only be freed by the garbage collector
        keep(data, counted_rows=None if bool(positive.all()) else data[positive])
    known: Data | None = vars(data)["counted_rows"]
    return data if known is None else known


def states_of(data: Data, metrics: tuple[Summed, ...]) -> tuple[Any, ...]:
    """Return the state of each metric: what a row source sums for all of them in one pass.

    Args:
        data: Rows in memory, of which the source has more.
        metrics: Metrics that are sums.
    """
    return tuple(metric.state(data) for metric in metrics)
