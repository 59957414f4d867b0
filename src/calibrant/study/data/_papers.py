"""The papers' splits of a training set into training and validation samples, index for index."""

import numpy as np
import numpy.typing as npt

from calibrant._check import check_choice
from calibrant.errors import InputError

Indices = npt.NDArray[np.int64]
RULES = ("mukhoti", "wang", "plain")


def split_rows(rows: int, *, validation: int, rule: str, seed: int) -> tuple[Indices, Indices]:
    """Return the rows to train on and those to validate on.

    Args:
        rows: N.
        validation: How many to validate on.
        rule: ``"mukhoti"``: shuffled by numpy's legacy generator, the first are validated on; ``"wang"``: permuted by it,
            the last are; ``"plain"``: as "wang" by numpy's present generator.
        seed: 1 in the code of Mukhoti et al., 101 … in that of Wang et al.
    """
    check_choice(rule, name="split", choices=RULES)
    if not 0 < validation < rows:
        raise InputError(f"expected validation in 1 … {rows - 1} samples, got {validation}; ask for fewer")
    if rule == "mukhoti":
        listed = list(range(rows))
        np.random.RandomState(seed).shuffle(listed)  # shuffling a list draws the same swaps as np.random.seed + shuffle
        order = np.asarray(listed)
        return order[validation:], order[:validation]
    order = (
        np.random.RandomState(seed).permutation(rows)
        if rule == "wang"
        else np.random.default_rng(seed).permutation(rows)
    )
    return order[: rows - validation], order[rows - validation :]
