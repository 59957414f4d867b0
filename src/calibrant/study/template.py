"""A commented study to begin with."""

import os
from importlib import resources
from pathlib import Path

from calibrant._places import atomic_write
from calibrant.errors import InputError

__all__ = ["write_template"]


def write_template(path: str | os.PathLike[str]) -> None:
    """Write a commented study as TOML, which runs as it is.

    Args:
        path: A file that does not exist.

    Raises:
        InputError: If there is such a file.
    """
    if Path(path).exists():
        raise InputError(f"expected a new file, got one that exists: {path}; choose another name")
    text = resources.files("calibrant.study").joinpath("template.toml").read_text(encoding="utf-8")
    with atomic_write(Path(path)) as file:
        file.write(text.encode())
