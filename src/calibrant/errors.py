"""All exceptions and warnings that Calibrant raises.

    CalibrantError
    ├── InputError (ValueError)            data or an argument is not what the function needs
    │   ├── RangeError                     a mathematical object does not exist for this argument
    │   └── LeakError                      the evaluation data were used for fitting
    ├── FileFormatError (ValueError)       a file is missing, truncated, hostile or of another kind
    ├── FitError (RuntimeError)            a fit did not reach its optimum
    ├── NotFittedError (RuntimeError)      a calibrator was used before ``fit``
    ├── NoIntervalError (RuntimeError)     no interval with the nominal coverage is known
    └── MissingExtraError (ImportError)    an optional package is not installed

    CalibrantWarning (UserWarning)
    ├── BoundWarning                       a fit has no finite optimum; the bound was returned
    ├── ZeroProbabilityWarning             a true class has probability 0, so its log-loss is infinite
    └── UsageWarning                       a call is allowed, but hardly ever intended

Each message is one sentence that says what was expected, what was got, and what to do. The same messages are used in
Python and on the command line, whose options have the names of the arguments.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

__all__ = [
    "BoundWarning",
    "CalibrantError",
    "CalibrantWarning",
    "FileFormatError",
    "FitError",
    "InputError",
    "LeakError",
    "MissingExtraError",
    "NoIntervalError",
    "NotFittedError",
    "RangeError",
    "UsageWarning",
    "ZeroProbabilityWarning",
]


class CalibrantError(Exception):
    """The base class of all Calibrant errors, so that a single ``except`` catches them all.

    The message is a single line, even if it contains the repr of a value.

    Args:
        expected: What was expected. If this is the only argument, it is the whole message.
        got: What was passed instead.
        remedy: What the user can do.
        place: The file, or the file and line, to which the error refers.
        row: The row in which ``got`` was found, counted from 0.
    """

    def __init__(
        self, expected: str, got: str | None = None, remedy: str = "", *, place: str = "", row: int | None = None
    ) -> None:
        where = f"{place}: " if place else ""
        found = got if row is None else f"{got} in row {row}"
        message = expected if got is None else f"{where}expected {expected}, got {found}; {remedy}"
        super().__init__(" ".join(message.split()) if "\n" in message else message)
        self.expected, self.got, self.remedy, self.place, self.row = expected, got, remedy, place, row

    def at(self, place: str) -> Self:
        """Return a copy of the error whose message begins with ``place``.

        Args:
            place: A file or a part of a file, as the message should show it.

        Returns:
            An error of the same class.
        """
        if self.got is None:
            return type(self)(f"{place}: {self}")
        whole = ", ".join(filter(None, (place, self.place)))
        return type(self)(self.expected, self.got, self.remedy, place=whole, row=self.row)


class InputError(CalibrantError, ValueError):
    """Data or an argument do not meet a function's requirements."""


class RangeError(InputError):
    """A mathematical object (an inverse, a proper part) does not exist for this argument."""


class LeakError(InputError):
    """The data passed for evaluation were used to fit the calibrator."""


class FileFormatError(CalibrantError, ValueError):
    """A file is missing, truncated, hostile or of another kind."""


class FitError(CalibrantError, RuntimeError):
    """A fit did not reach its optimum."""


class NotFittedError(CalibrantError, RuntimeError):
    """A calibrator was used before ``fit``."""


class NoIntervalError(CalibrantError, RuntimeError):
    """No interval is returned, because none with the nominal coverage is known for this case."""


class MissingExtraError(CalibrantError, ImportError):
    """An optional package is not installed."""

    def __init__(self, package: str, *, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(
            f"the package {package!r}",
            "none installed",
            f'install Calibrant\'s extra {extra!r}: pip install "calibrant[{extra}]", or ".[{extra}]" in a clone',
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to reconstruct the error, which may come from a worker process."""
        return partial(MissingExtraError, extra=self.extra), (self.package,)


class CalibrantWarning(UserWarning):
    """The base class of all Calibrant warnings."""


class BoundWarning(CalibrantWarning):
    """A fit has no finite optimum, so the bound of its search interval was returned."""


class ZeroProbabilityWarning(CalibrantWarning):
    """A true class has probability 0, so its log-loss is infinite."""


class UsageWarning(CalibrantWarning):
    """A call is allowed, but hardly ever intended."""


@contextmanager
def optional(package: str, *, extra: str) -> Iterator[None]:
    """Raise ``MissingExtraError`` if the block cannot import ``package``."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(package, extra=extra) from error
