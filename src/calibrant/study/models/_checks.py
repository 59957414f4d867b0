"""The check of the sizes that a network is made with: they come from study files, where a mistake must be named."""

from collections.abc import Sequence

from calibrant._core.check import check_count

MOST = 1 << 24  # largest size of a layer: larger ones do not fit in memory


def check_sizes(**sizes: int | Sequence[int]) -> None:
    """Raise unless each size, or each of a list of sizes, is an integer in [1, 2²⁴].

    Raises:
        InputError: With the name of the size.
    """
    for name, value in sizes.items():
        several = isinstance(value, list | tuple)
        for one in value if several else [value]:  # type: ignore[union-attr]
            check_count(one, name=f"each of {name}" if several else name, high=MOST)
