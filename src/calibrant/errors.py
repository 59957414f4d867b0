"""Every exception and warning Calibrant raises.

    CalibrantError
    ├── InputError (ValueError)            data or an argument is not what the function needs
    │   ├── RangeError                     a mathematical object does not exist for this argument
    │   └── LeakError                      the data to evaluate on are the data that were fitted
    ├── FileFormatError (ValueError)       a file is missing, truncated, hostile or of another kind
    ├── FitError (RuntimeError)            a fit did not reach its optimum
    ├── NotFittedError (RuntimeError)      a calibrator is used before ``fit``
    ├── NoIntervalError (RuntimeError)     an interval is refused because it would not cover
    ├── WorkerError (RuntimeError)         a process or machine that did a part of the work was lost
    └── MissingExtraError (ImportError)    an optional package is not installed

    CalibrantWarning (UserWarning)
    ├── BoundWarning                       a fit has no finite optimum; the bound was returned
    ├── ZeroProbabilityWarning             a true class has probability 0, so its log-loss is infinite
    ├── DuplicateRowsWarning               rows to evaluate on also occur among the fitted rows
    └── UsageWarning                       legal, but hardly ever what is meant

Each message is one sentence that says what was expected, what was got, and what to do.
"""

from functools import partial
from typing import Any

__all__ = [
    "BoundWarning",
    "CalibrantError",
    "CalibrantWarning",
    "DuplicateRowsWarning",
    "FileFormatError",
    "FitError",
    "InputError",
    "LeakError",
    "MissingExtraError",
    "NoIntervalError",
    "NotFittedError",
    "RangeError",
    "UsageWarning",
    "WorkerError",
    "ZeroProbabilityWarning",
]


class CalibrantError(Exception):
    """The base of all errors: one ``except`` catches whatever Calibrant refuses.

    A message is one line, whatever representation of a value it shows.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(" ".join(one.split()) if isinstance(one, str) and "\n" in one else one for one in args))


class InputError(CalibrantError, ValueError):
    """Data or an argument is not what the function needs."""


class RangeError(InputError):
    """A mathematical object (an inverse, a proper part) does not exist for this argument."""


class LeakError(InputError):
    """The data to evaluate on are the data that were fitted."""


class FileFormatError(CalibrantError, ValueError):
    """A file is missing, truncated, hostile or of another kind."""


class WorkerError(CalibrantError, RuntimeError):
    """A process or machine that did a part of the work was lost."""


class FitError(CalibrantError, RuntimeError):
    """A fit did not reach its optimum."""


class NotFittedError(CalibrantError, RuntimeError):
    """A calibrator is used before ``fit``."""


class NoIntervalError(CalibrantError, RuntimeError):
    """An interval is refused because simulation shows that it would not cover."""


class MissingExtraError(CalibrantError, ImportError):
    """An optional package is not installed."""

    def __init__(self, package: str, *, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(
            f"expected the package {package!r}, got none installed; pip install {package} installs it (the project's extra "
            f"{extra!r} names all packages of this part)"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to make it again, for it may have to travel home from a worker process."""
        return partial(MissingExtraError, extra=self.extra), (self.package,)


class CalibrantWarning(UserWarning):
    """The base of all warnings."""


class BoundWarning(CalibrantWarning):
    """A fit has no finite optimum; the bound of its interval was returned."""


class ZeroProbabilityWarning(CalibrantWarning):
    """A true class has probability 0, so its log-loss is infinite."""


class DuplicateRowsWarning(CalibrantWarning):
    """Rows to evaluate on also occur among the fitted rows."""


class UsageWarning(CalibrantWarning):
    """Legal, but hardly ever what is meant."""
