"""A study by its name or file, with the modules beside the file importable: a recipe may name classes of one's own."""

import sys
from pathlib import Path

from calibrant.study import Study
from calibrant.study import load_study as load_from

__all__ = ["load_study"]


def load_study(name: str, *, scale: str | None = "cpu") -> Study:
    """Return a study; for a file, ``"mylib:MyLoss"`` in it is then also looked for in its folder, as ``python`` does.

    Args:
        name: As in ``calibrant.study.load_study``.
        scale: As there.
    """
    folder = str(Path(name).resolve().parent)
    if name.endswith(".toml") and folder not in sys.path:
        sys.path.insert(0, folder)
    return load_from(name, scale=scale)
