"""How much memory this process may use: the machine's, or less where its control group says so."""

import os
from pathlib import Path

_UNLIMITED = 1 << 60  # version 1 writes a number near 2⁶³ for no limit


def memory_limit(*, root: Path = Path("/")) -> int:
    """Return the bytes this process may use: the least of physical memory and the limits of its control groups.

    Args:
        root: Where ``proc`` and ``sys`` are mounted.
    """
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *_group_limits(root)])


def _group_limits(root: Path) -> list[int]:
    """Return the limits of every control group that this process is in and of their parents, versions 1 and 2."""
    base = root / "sys/fs/cgroup"
    files = {base / "memory.max", base / "memory/memory.limit_in_bytes"}  # inside a container the group is the root
    for line in (_text_if_there(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, group = (*line.split(":", 2), "", "")[:3]
        relative = Path(group.lstrip("/"))
        if ".." in relative.parts:
            continue
        if "memory" in controllers.split(","):
            files |= {base / "memory" / part / "memory.limit_in_bytes" for part in (relative, *relative.parents)}
        elif not controllers:
            files |= {base / part / "memory.max" for part in (relative, *relative.parents)}
    found = [(_text_if_there(file) or "").strip() for file in files]
    return [int(text) for text in found if text.isdigit() and 0 < int(text) < _UNLIMITED]


def _text_if_there(file: Path) -> str | None:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        return None
