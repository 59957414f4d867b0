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
    └── UsageWarning                       legal, but hardly ever what is meant

An error is data: what was ``expected``, what was ``got``, the ``remedy``, and the ``argument`` it is about. Its message is these
in one sentence; other interfaces make their own sentence of the same parts, and never of the message.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
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
    "Remedy",
    "UsageWarning",
    "WorkerError",
    "ZeroProbabilityWarning",
]


@dataclass(frozen=True)
class Remedy:
    """What to do about an error, where Python and the command line do not do the same.

    Args:
        python: What a caller in Python does: an argument to pass, a constructor to use.
        command: What a person at the command line does: an option to add, a column to name.
        option: The option that ``command`` rests on, with its dashes; a command without it names those that have it.
        before: Words before the arguments of ``reading``, such as another case's remedy.
        instead: The file that was typed, and the one to type after ``command`` made it.
        otherwise: The remedy of another case, which the command line says before it.
        reading: Arguments of ``calibrant.read``, (name, value), that make it right; on the command line they are options of the same names.

    Example:
        >>> print(Remedy("pass normalize=True to calibrant.read", command="add --normalize"))
        pass normalize=True to calibrant.read
    """

    python: str
    command: str = ""
    option: str = ""
    reading: tuple[tuple[str, str | bool], ...] = ()
    before: str = ""
    instead: tuple[str, str] | None = None
    otherwise: "Remedy | None" = None

    @classmethod
    def read(cls, **arguments: str | bool) -> "Remedy":
        """Return the remedy to read a file with these arguments.

        Args:
            **arguments: Arguments of ``calibrant.read`` by name.
        """
        return cls(
            f"pass {', '.join(f'{name}={value!r}' for name, value in arguments.items())} to calibrant.read",
            reading=tuple(arguments.items()),
        )

    @classmethod
    def making(cls, command: str, old: str, new: str) -> "Remedy":
        """Return the remedy to run a command of the shell that makes the file ``new`` of ``old``, and to name that instead.

        Args:
            command: As it is typed.
            old: The file, as it is shown.
            new: The one that it makes.
        """
        return cls(f"run: {command}, and name {new}", command=f"run: {command}", instead=(old, new))

    @property
    def options(self) -> list[str]:
        """The arguments of ``reading`` as options of the command line; one that is True has no value."""
        typed = [("--" + name.replace("_", "-"), value) for name, value in self.reading]
        return [name for name, value in typed if value is True] + [
            part for name, value in typed if value is not True for part in (name, str(value))
        ]

    def after(self, words: str) -> "Remedy":
        """Return the remedy with ``words`` before it, for another case.

        Args:
            words: Words that end in a blank; none leave it as it is.
        """
        return replace(self, before=words)

    def then(self, more: "Remedy") -> "Remedy":
        """Return this remedy and another that is needed after it, in one: the arguments of both, and the files that they make.

        Args:
            more: What a person who followed this one alone would be told.
        """
        reading = tuple({**dict(self.reading), **dict(more.reading)}.items())
        commands = [one.command for one in (self, more) if one.command]
        made = [commands[0], *(one.removeprefix("run: ") for one in commands[1:])] if commands else []
        python = type(self).read(**dict(reading)).python if reading else ""
        python = ", and ".join(filter(None, [*(one.python for one in (self, more) if one.instead), python]))
        otherwise = more.otherwise and replace(more.otherwise, reading=reading)
        before = self.before + more.before
        if self.before.startswith("if ") and more.before.startswith("if "):
            before = f"{self.before.rstrip(', ')} and {more.before.removeprefix('if ')}"
        return replace(
            more,
            python=python,
            command=" && ".join(made),
            before=before,
            reading=reading,
            instead=more.instead or self.instead,
            otherwise=otherwise,
        )

    def __str__(self) -> str:
        """Return what a caller in Python does."""
        return self.before + self.python


def sentence(expected: str, got: str, remedy: str, *, place: str = "") -> str:
    """Return the one form that all messages have.

    Args:
        expected: What was expected.
        got: What was got.
        remedy: What to do, in the words of the interface at hand.
        place: The file, or the file and line, that the sentence begins with.
    """
    return f"{place}{': ' if place else ''}expected {expected}, got {got}; {remedy}"


class CalibrantError(Exception):
    """The base of all errors: one ``except`` catches whatever Calibrant refuses.

    A message is one line, whatever representation of a value it shows.

    Args:
        expected: What was expected; the whole message where nothing else is given.
        got: What was got.
        remedy: What to do: words that serve every interface, or a ``Remedy``.
        argument: The argument that it is about, by its name in Python; ``expected`` then begins with it or leaves it out.
        place: The file, or the file and line, that it is about.
    """

    def __init__(
        self,
        expected: str,
        got: str | None = None,
        remedy: str | Remedy = "",
        *,
        argument: str = "",
        place: str = "",
    ) -> None:
        message = expected if got is None else sentence(expected, got, str(remedy), place=place)
        super().__init__(" ".join(message.split()) if "\n" in message else message)
        self.expected, self.got, self.remedy, self.argument, self.place = expected, got, remedy, argument, place

    def at(self, place: str) -> Self:
        """Return the same error about ``place``, a file or a part of one; the sentence begins with it.

        Args:
            place: As it is shown.
        """
        where = f"{place}, {self.place}" if self.place else place
        if self.got is None:
            return type(self)(f"{place}: {self}")
        return type(self)(self.expected, self.got, self.remedy, argument=self.argument, place=where)


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
            f"the package {package!r}",
            "none installed",
            f"pip install {package} installs it (the project's extra {extra!r} names all packages of this part)",
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


class UsageWarning(CalibrantWarning):
    """Legal, but hardly ever what is meant."""


@contextmanager
def optional(package: str, *, extra: str) -> Iterator[None]:
    """Raise ``MissingExtraError`` where the block cannot import ``package``."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(package, extra=extra) from error


def optional_package(package: str, *, extra: str) -> Any:
    """Return an optional package that is imported under its own name.

    Raises:
        MissingExtraError: If it is not installed.
    """
    with optional(package, extra=extra):
        return import_module(package)
