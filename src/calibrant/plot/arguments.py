"""Argument checks of the plotting functions; each error message is one sentence."""

from collections.abc import Sequence
from typing import Any

from calibrant._core.check import check_sequence, refuse, shown
from calibrant.binning import Binning
from calibrant.data.checks import need_rows, need_unweighted
from calibrant.data.predictions import BinaryPairs, Predictions

__all__ = ["check_axes", "check_bins", "check_data", "check_label", "check_names", "check_rows"]


def check_data(data: Any, *, weighted: bool = False) -> None:
    """Raise unless ``data`` are labelled predictions with at least one row.

    Args:
        data: Predictions with labels, or pairs, with at least one row.
        weighted: Whether rows may have weights.

    Raises:
        InputError: If it is something else, unlabelled or empty.
    """
    if not isinstance(data, Predictions | BinaryPairs):
        raise refuse("Predictions or BinaryPairs", shown(data), "make them by Predictions.from_logits or from_probs")
    if weighted:
        need_rows(data, what="a picture")
    else:
        check_rows(data)
    if isinstance(data, Predictions):
        data.need_labels()


def check_rows(data: Predictions | BinaryPairs) -> None:
    """Raise for data without rows, and for weighted rows, which plots and reports do not support.

    Args:
        data: Predictions or pairs.
    """
    need_unweighted(need_rows(data, what="a picture or a report"), what="a picture or a report")


def check_axes(ax: Any) -> None:
    """Raise unless ``ax`` is a matplotlib ``Axes`` or None.

    Args:
        ax: The axes of a matplotlib figure, or None.
    """
    if ax is not None and not (hasattr(ax, "plot") and hasattr(ax, "figure") and hasattr(ax, "set_xlabel")):
        raise refuse("ax as the axes of a matplotlib figure", shown(ax), "pass plt.subplots()[1], or None")


def check_bins(binning: Any) -> None:
    """Raise unless ``binning`` is a binning or None.

    Args:
        binning: A binning, or None.
    """
    if binning is not None and not isinstance(binning, Binning):
        raise refuse("a binning such as EqualWidth(15)", shown(binning), "see calibrant.binning")


def check_label(text: Any, *, name: str) -> None:
    """Raise unless ``text`` is a string or None.

    Args:
        text: A string, or None.
        name: Name of the argument, for the message.
    """
    if text is not None and not isinstance(text, str):
        raise refuse(f"{name} as text", shown(text), "pass a string")
    if text is not None and any("\ud800" <= letter <= "\udfff" for letter in text):  # surrogates of undecodable bytes
        raise refuse(f"{name} as text that UTF-8 can encode", shown(text), "leave out the surrogate characters")


def check_names(class_names: Any, *, classes: int, of: str = "") -> Sequence[str] | None:
    """Return the names of the classes, or None for their indices.

    Args:
        class_names: K names, or None.
        classes: K.
        of: Name of the model, for the message.

    Raises:
        InputError: If there are not K names.
    """
    if class_names is None:
        return None
    names = check_sequence(class_names, name="class_names")
    if len(names) != classes:
        raise refuse(f"{classes} class names{of and f' for {of}'}", str(len(names)), "name every class")
    return [str(name) for name in names]
