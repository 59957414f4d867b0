"""Frozen dataclasses whose fields are validated by pydantic, and the types of a study's values.

A validation error of pydantic is raised as an ``InputError`` of one sentence.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, fields
from difflib import get_close_matches
from functools import wraps
from typing import Annotated, Any, TypeVar, dataclass_transform

from calibrant._core.check import refuse, shown
from calibrant.errors import CalibrantError, InputError, optional

with optional("pydantic", extra="study"):
    from pydantic import ConfigDict, Field, ValidationError
    from pydantic.dataclasses import dataclass as validated

T = TypeVar("T")
# Strict, so that "60" is not accepted as a number of epochs; lists from a file become tuples.
Flag = Annotated[bool, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=1)]
Natural = Annotated[int, Field(strict=True, ge=0)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Real = Annotated[float, Field(strict=True, allow_inf_nan=False)]
NonNegative = Annotated[Real, Field(ge=0)]
Positive = Annotated[Real, Field(gt=0)]
Text = Annotated[str, Field(strict=True)]
Table = dict[str, Any]
Size = Annotated[Count, Field(le=1 << 24)]  # the size of a layer or a set; larger ones do not fit in memory


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """Turn a class into a frozen dataclass with validated fields, in which a wrong field raises an ``InputError``."""
    made: type[T] = validated(frozen=True, config=ConfigDict(extra="forbid"))(cls)  # type: ignore[assignment]
    build: Callable[..., None] = made.__init__
    known = [one.name for one in fields(made)]  # type: ignore[arg-type]

    @wraps(build)
    def construct(self: T, *arguments: Any, **named: Any) -> None:
        try:
            build(self, *arguments, **named)
        except ValidationError as error:
            raise refusal_of(error, name=cls.__name__, known=known) from None

    made.__init__ = construct  # type: ignore[assignment]
    return made


def refusal_of(error: ValidationError, *, name: str, known: Sequence[str]) -> CalibrantError:
    """Return an error of one sentence for the first fault that pydantic found; an unknown key has priority."""
    found = error.errors()
    first = next((one for one in found if one["type"] == "unexpected_keyword_argument"), found[0])
    place = [known[key] if at == 0 and isinstance(key, int) else key for at, key in enumerate(first["loc"])]
    path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place).removeprefix(".")
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, CalibrantError):
        return cause.at(path) if path else cause  # type: ignore[no-any-return]
    if first["type"] == "missing":
        return InputError(path, "none", "write it")
    if first["type"] == "unexpected_keyword_argument":
        near = get_close_matches(str(place[0]), known, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
        if len(place) > 1:  # the key belongs to a nested record
            remedy = "the page A study file names all keys"
        return refuse(f"a key of {path.rpartition('.')[0] or name}", shown(place[-1]), remedy)
    return refuse(f"{path} to be {first['msg'].removeprefix('Input should be ')}", shown(first["input"]), "correct it")


def require_once(values: Sequence[Any], *, name: str) -> None:
    """Raise an error if one of ``values`` occurs twice.

    Raises:
        InputError: If a value occurs twice; the message names the first.

    Examples:
        >>> require_once([0, 1], name="seeds")
    """
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise InputError(f"{name} without repetition", f"{twice!r} twice", "leave one out or rename it")


@contextmanager
def naming(place: str) -> Iterator[None]:
    """Begin the message of an ``InputError`` with the faulty part of a study, unless the message already names it."""
    try:
        yield
    except InputError as error:
        if place in str(error):
            raise
        raise error.at(place) from error
