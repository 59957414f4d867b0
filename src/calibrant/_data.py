"""The one check of data that is to be measured."""

from calibrant._check import refuse, shown
from calibrant.errors import InputError
from calibrant.predictions import BinaryPairs, Predictions

Data = Predictions | BinaryPairs


def need_rows(data: Data, *, what: object) -> Data:
    """Return ``data`` if it is predictions or pairs of at least one row: the one check of whatever is measured.

    Rows of weight 0 are left out, so that they count no more than rows that are not there.

    Args:
        data: What was passed.
        what: What it is for, named in the message.

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
        raise refuse(f"Predictions or BinaryPairs for {named}", kind, remedy)
    if len(data) == 0:
        raise refuse(f"at least one row for {named}", "a selection of none", "check how the rows were selected")
    return data if data.weights is None else _counted(data, what=what)


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
    """
    checked = need_rows(data, what=metric)
    if isinstance(checked, Predictions):
        return checked
    raise InputError(
        f"expected predictions over all classes for {metric}, got top-label pairs; use a top-label metric such as ECE()"
    )


def _counted(data: Data, *, what: object) -> Data:
    """Return the rows whose weight is not 0; the selection is kept beside ``data``."""
    known: Data | None = data.__dict__.get("counted_rows")
    if known is None:
        positive = data.weights > 0  # type: ignore[operator]
        if not bool(positive.any()):
            raise refuse(f"at least one row of positive weight for {what}", "none", "check how the rows were selected")
        known = data if bool(positive.all()) else data[positive]
        data.__dict__["counted_rows"] = known
    return known
