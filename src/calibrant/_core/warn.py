"""Messages from computations: warnings that point to a line in the user's program, and reports of progress."""

import sys
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from types import FrameType

_INSIDE = ("calibrant", "torch")
# Receives the progress of a long computation as lines of text, which the command line shows; None shows nothing.
PROGRESS: ContextVar[Callable[[str], None] | None] = ContextVar("PROGRESS", default=None)


def report_progress(line: str) -> None:
    """Pass ``line`` to the listener, if there is one."""
    if (listener := PROGRESS.get()) is not None:
        listener(line)


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn at the nearest caller outside this package, and outside PyTorch if PyTorch calls us (as in a module's forward).

    Args:
        message: One sentence with what was expected, what was got, and what to do.
        category: The class of the warning.
    """
    warnings.warn(message, category, stacklevel=_level_outside(sys._getframe(1)))


def _level_outside(frame: FrameType | None) -> int:
    """Return the stack level, counted from ``warn_user``, of the first frame that is neither in this package nor in PyTorch."""
    level = last = 2
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).split(".")[
            0
        ]  # generated code has no file, but its module's name
        if package not in _INSIDE:
            return level
        last = level if package == "calibrant" else last
        frame, level = frame.f_back, level + 1
    return last  # there is no caller outside, as in a worker process
