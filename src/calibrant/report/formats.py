"""The formats of a report, and the file name suffixes that select them."""

import os

from calibrant._core.check import check_choice
from calibrant._core.paths import as_path, check_suffix

SUFFIXES = {"html": (".html", ".htm"), "md": (".md", ".markdown", ".txt"), "json": (".json",)}
FORMATS = tuple(SUFFIXES)


def check_format(path: str | os.PathLike[str], format: str | None) -> str:
    """Return the format of a report at ``path``: "html", "md" or "json".

    Args:
        path: Where it is written.
        format: The format, or None to take it from the suffix, else HTML.

    Raises:
        InputError: For another format, or a suffix that contradicts it.
    """
    suffix = as_path(path).suffix.lower()
    known = {name: kind for kind, names in SUFFIXES.items() for name in names}
    chosen = check_choice(known.get(suffix, "html") if format is None else format, name="format", choices=FORMATS)
    check_suffix(path, SUFFIXES[chosen], what=f"a report in {chosen}")
    return chosen
