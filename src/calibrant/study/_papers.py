"""The papers whose choices a study is compared with."""

import tomllib
from functools import cache
from importlib import resources
from typing import Any


@cache
def known_papers() -> dict[str, Any]:
    """Return the content of ``study/authors.toml``: what each paper and its code choose, by the paper's key."""
    return tomllib.loads(resources.files("calibrant.study").joinpath("authors.toml").read_text(encoding="utf-8"))
