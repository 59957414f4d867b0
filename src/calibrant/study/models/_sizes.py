"""Checks of the sizes of networks."""

from typing import Any

from calibrant._check import check_count, check_sequence, refuse

MOST = 1 << 24  # a layer with more numbers than this has no place in memory


def check_sizes(**sizes: Any) -> None:
    """Raise unless every size is an integer in [1, 2²⁴].

    Args:
        sizes: Sizes by the name that the message shows.

    Raises:
        InputError: Naming the first that is not.

    Examples:
        >>> check_sizes(classes=10, hidden=128)
    """
    for name, value in sizes.items():
        check_count(value, name=name, high=MOST)


def check_widths(value: Any, *, name: str, count: int | None = None) -> tuple[int, ...]:
    """Return ``value`` as a tuple if it is a list of sizes.

    Args:
        value: What was passed.
        name: The argument's name, for the message.
        count: How many there must be; None for any number.

    Raises:
        InputError: If it is no such list.

    Examples:
        >>> check_widths([128, 64], name="hidden")
        (128, 64)
    """
    widths = check_sequence(value, name=name)
    if count is not None and len(widths) != count:
        raise refuse(f"{name} as a list of {count} sizes", f"{len(widths)}", "give one each")
    return tuple(check_count(width, name=f"each of {name}", high=MOST) for width in widths)


def check_odd(value: Any, *, name: str) -> int:
    """Return ``value`` as int if it is an odd size: an even one would shift what it is applied to.

    Args:
        value: What was passed.
        name: The argument's name, for the message.

    Raises:
        InputError: If it is none.

    Examples:
        >>> check_odd(5, name="kernel")
        5
    """
    size = check_count(value, name=name, high=MOST)
    if size % 2 == 0:
        raise refuse(f"{name} as an odd number", f"{size}", f"choose {size - 1} or {size + 1}")
    return size
