"""Checks of the sizes of networks."""

from typing import Any

from calibrant._core.check import check_count, check_sequence, refuse

MOST = 1 << 24  # largest size of a layer: larger ones do not fit in memory


def check_sizes(**sizes: Any) -> None:
    """Raise unless every size is an integer in [1, 2²⁴].

    Args:
        sizes: Sizes by their name in messages.

    Raises:
        InputError: With the first that is not.

    Examples:
        >>> check_sizes(classes=10, hidden=128)
    """
    for name, value in sizes.items():
        check_count(value, name=name, high=MOST)


def check_widths(value: Any, *, name: str, count: int | None = None) -> tuple[int, ...]:
    """Return ``value`` as a tuple if it is a list of sizes.

    Args:
        value: The argument.
        name: Its name, for the message.
        count: Required number of sizes; None for any number.

    Raises:
        InputError: If it is not such a list.

    Examples:
        >>> check_widths([128, 64], name="hidden")
        (128, 64)
    """
    widths = check_sequence(value, name=name)
    if count is not None and len(widths) != count:
        raise refuse(f"{name} as a list of {count} sizes", f"{len(widths)}", "give one each")
    return tuple(check_count(width, name=f"each of {name}", high=MOST) for width in widths)


def check_odd(value: Any, *, name: str) -> int:
    """Return ``value`` as int if it is an odd size: an even kernel cannot be centred.

    Args:
        value: The argument.
        name: Its name, for the message.

    Raises:
        InputError: If it is not.

    Examples:
        >>> check_odd(5, name="kernel")
        5
    """
    size = check_count(value, name=name, high=MOST)
    if size % 2 == 0:
        raise refuse(f"{name} as an odd number", f"{size}", f"choose {size - 1} or {size + 1}")
    return size
