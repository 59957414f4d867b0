"""A commented example of a study file."""

import os
from importlib import resources

from calibrant._core.paths import as_path, atomic_write, shown
from calibrant.errors import InputError

__all__ = ["write_template"]


def write_template(path: str | os.PathLike[str]) -> None:
    """Write a commented study as TOML, which runs without changes.

    Args:
        path: A file that does not exist yet.

    Raises:
        InputError: If the file exists.
    """
    if (path := as_path(path)).exists():
        raise InputError("a new file", f"one that exists: {shown(path)}", "choose another name")
    text = resources.files("calibrant.study").joinpath("template.toml").read_text(encoding="utf-8")
    with atomic_write(path) as file:
        file.write(text.encode())
