"""The user's mapping of a file's columns, in a separate module so that ``calibrant --help`` does not import PyTorch."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from calibrant.errors import InputError


@dataclass(frozen=True)
class Mapped:
    """The arguments of ``calibrant.read``, except for the split.

    ``on`` is the column by which rows are matched with those of another file: of labels, or of another model.
    """

    columns: str | Sequence[str] | None = None
    label: str | None = None
    kind: Literal["logits", "probs"] | None = None
    weights: str | None = None
    groups: str | None = None
    labels: str | os.PathLike[str] | None = None
    on: str | None = None
    class_names: Sequence[str] | None = None
    features: Sequence[str] = ()
    multilabel: bool = False

    def __post_init__(self) -> None:
        if self.kind not in (None, "logits", "probs"):
            raise InputError(f"kind must be probs or logits, got {self.kind!r}")

    def require_file_to_match(self) -> None:
        """Check that there is a label file if its rows are to be matched by a column.

        Raises:
            InputError: If ``on`` is given without ``labels``.
        """
        if self.on is not None and self.labels is None:
            raise InputError("on names the column by which a label file is matched; name that file with labels")
