"""What a computation says: warnings at the line of the user's program, however deep they arise, and how far it has come."""

import sys
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from types import FrameType

_INSIDE = ("calibrant", "torch")
# Takes a line of progress of a long computation, which the command line shows; None shows nothing.
PROGRESS: ContextVar[Callable[[str], None] | None] = ContextVar("PROGRESS", default=None)


def report_progress(line: str) -> None:
    """Pass ``line`` to whoever listens."""
    if (listener := PROGRESS.get()) is not None:
        listener(line)


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn at the nearest caller outside this package, and outside PyTorch where PyTorch calls us (a module's forward).

    Args:
        message: Expected, got, remedy.
        category: Which warning.
    """
    warnings.warn(message, category, stacklevel=_level_outside(sys._getframe(1)))


def _level_outside(frame: FrameType | None) -> int:
    """Return the stack level, counted from ``warn_user``, of the first frame that is neither ours nor PyTorch's."""
    level = last = 2
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).split(".")[
            0
        ]  # generated code has no file, but its module's name
        if package not in _INSIDE:
            return level
        last = level if package == "calibrant" else last
        frame, level = frame.f_back, level + 1
    return last  # nobody outside: a worker process runs us
