"""The papers with which a study's choices are compared."""

import tomllib
from functools import cache
from importlib import resources
from typing import Any


@cache
def known_papers() -> dict[str, Any]:
    """Return the content of ``study/authors.toml``: the choices of each paper and its code, by the paper's key."""
    return tomllib.loads(resources.files("calibrant.study").joinpath("authors.toml").read_text(encoding="utf-8"))
