"""Checks of a study's values, beyond the type of each."""

import difflib
from collections.abc import Collection, Sequence
from typing import Any

from calibrant._core.arguments import check_text
from calibrant._core.check import refuse, shown
from calibrant.errors import InputError

_NOT_IN_NAMES = set('/\\:*?"<>|\0\n\r\t')


def check_file_name(value: Any, *, name: str) -> str:
    """Return ``value`` if it is a valid file name on any system.

    Args:
        value: The argument.
        name: Its name, for the message.

    Raises:
        InputError: If it is not a string, is empty, begins with a dot, or contains a separator or a control character.

    Examples:
        >>> check_file_name("reliability", name="the figure's name")
        'reliability'
    """
    check_text(value, name=name)
    if (
        not value.strip()
        or value.startswith(".")
        or _NOT_IN_NAMES & set(value)
        or len(value.encode("utf-8", "replace")) > 200
    ):
        raise refuse(f"{name} as the name of a file", shown(value), "use letters, digits, spaces and hyphens")
    return str(value)


def check_key(value: Any, *, name: str, known: Collection[str]) -> None:
    """Raise unless ``value`` is among ``known``, of which there are too many to list.

    Raises:
        InputError: If it is not; the message suggests the closest one, or lists some.

    Examples:
        >>> check_key("ece", name="measure", known=["ece", "nll"])
    """
    if not isinstance(value, str) or value not in known:
        close = difflib.get_close_matches(value, known, n=1) if isinstance(value, str) else []
        remedy = f"did you mean {close[0]!r}?" if close else "choose one of these"
        raise refuse(f"{name} to be one of {', '.join(list(known)[:12])} …", shown(value), remedy)


def check_once(values: Sequence[Any], *, name: str) -> None:
    """Raise if one of ``values`` occurs twice.

    Raises:
        InputError: With the first such value.

    Examples:
        >>> check_once([0, 1], name="seeds")
    """
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise InputError(f"each of {name} once", f"{twice!r} twice", "leave one out or rename it")
