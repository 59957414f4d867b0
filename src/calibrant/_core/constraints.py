"""What an argument must be, declared in its annotation: ``bins: Count``, ``gamma: NonNegative``, ``ties: Literal["together"]``.

A call of what is ``checked`` (a public function) or of a class of ``PublicCalls`` checks each argument that is passed, turns NumPy's
scalars into Python's, and raises one sentence for a value that does not fit; the body trusts. A default is not checked at each call:
the contract tests check it once. A type without a constraint, such as ``Tensor`` or ``str``, declares nothing.
"""

import functools
import inspect
import types
from abc import ABC, ABCMeta, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any, ForwardRef, Literal, ParamSpec, TypeVar, Union, Unpack, get_args, get_origin

import numpy as np

from calibrant._core.check import (
    check_choice,
    check_count,
    check_number,
    check_sequence,
    refuse,
    shown,
)

MOST_DRAWS = 1_000_000  # of label sets or resamples: more would need more memory than the last digit is worth
MOST_BINS = 1 << 20
LARGEST = (1 << 63) - 1  # of a tensor of integers
T = TypeVar("T")


def check_flag(value: Any, *, name: str) -> bool:
    """Return ``value`` if it is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise refuse(f"{name} to be True or False", shown(value), "choose one of them")
    return bool(value)


def check_kind(value: Any, kinds: type[T] | tuple[type[T], ...], *, name: str, remedy: str, words: str = "") -> T:
    """Return ``value`` if it is of one of ``kinds``, which ``words`` may name."""
    if not isinstance(value, kinds):
        names = " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
        raise refuse(f"{name} as {words or f'a {names}'}", shown(value), remedy)
    return value


def check_text(value: Any, *, name: str) -> str:
    """Return ``value`` if it is text."""
    return check_kind(value, str, name=name, remedy="pass a string", words="text")


class Constraint(ABC):
    """What an argument must be; its ``repr`` is what a signature shows behind the type."""

    def __repr__(self) -> str:
        return ""  # the type says it

    @abstractmethod
    def check(self, value: Any, name: str, caller: object) -> Any:
        """Return ``value`` as the body takes it, or raise.

        Args:
            value: What was passed.
            name: Of the argument.
            caller: The function, the class, or the object whose method it is.

        Raises:
            InputError: If it does not fit, with the argument's name.
        """


@dataclass(frozen=True, repr=False)
class Number(Constraint):
    """A finite number between two ends, which belong to the range unless open; as float, or as it is with ``keep``."""

    low: float = -inf
    high: float = inf
    open_low: bool = False
    open_high: bool = False
    keep: bool = False

    def __repr__(self) -> str:
        left = "(" if self.open_low or self.low == -inf else "["
        right = ")" if self.open_high or self.high == inf else "]"
        return f"in {left}{self.low:g}, {self.high:g}{right}".replace("inf", "∞")

    def check(self, value: Any, name: str, caller: object) -> Any:
        number = check_number(
            value, name=name, low=self.low, high=self.high, open_low=self.open_low, open_high=self.open_high
        )
        return value if self.keep else number


@dataclass(frozen=True, repr=False)
class Integer(Constraint):
    """An integer from ``low`` to ``high``."""

    low: int = 1
    high: int = LARGEST

    def __repr__(self) -> str:
        if self.high < LARGEST:
            return f"{self.low} … {self.high}"
        return f"≥ {self.low}" if self.low > -LARGEST else ""

    def check(self, value: Any, name: str, caller: object) -> int:
        return check_count(value, name=name, low=self.low, high=self.high)


@dataclass(frozen=True, repr=False)
class OneOf(Constraint):
    """One of a few values; what a ``Literal`` declares."""

    choices: tuple[Any, ...]

    def __repr__(self) -> str:
        return " or ".join(map(repr, self.choices))

    def check(self, value: Any, name: str, caller: object) -> Any:
        return check_choice(value, name=name, choices=self.choices)


@dataclass(frozen=True, repr=False)
class Kind(Constraint):
    """An object of a class, or of one of several; ``remedy`` says how to make one."""

    kinds: type | tuple[type, ...]
    remedy: str
    words: str = ""

    def check(self, value: Any, name: str, caller: object) -> Any:
        return check_kind(value, self.kinds, name=name, remedy=self.remedy, words=self.words)


@dataclass(frozen=True, repr=False)
class Fits(Constraint):
    """What a function of data checks and returns: ``function(value, name=name)``, in ``words``."""

    function: Callable[..., Any]
    words: str

    def __repr__(self) -> str:
        return self.words

    def check(self, value: Any, name: str, caller: object) -> Any:
        return self.function(value, name=name)


FLAG = Fits(check_flag, "True or False")  # what the type ``bool`` declares
IS_TEXT = Fits(check_text, "")


@dataclass(frozen=True, repr=False)
class Each(Constraint):
    """A list, tuple, range, array or tensor of one axis whose members fit a constraint; as a tuple."""

    member: Constraint
    least: int = 0

    def __repr__(self) -> str:
        return f"each {self.member!r}"

    def check(self, value: Any, name: str, caller: object) -> tuple[Any, ...]:
        members = check_sequence(value, name=name)
        if len(members) < self.least:
            raise refuse(f"at least one of {name}", "none", "pass one or more")
        return tuple(self.member.check(one, f"each of {name}", caller) for one in members)


@dataclass(frozen=True, repr=False)
class Either(Constraint):
    """One of several kinds: an object of a class of ``types``, a name of ``names``, or what fits ``other``."""

    types: tuple[type, ...]
    names: OneOf | None
    other: Constraint | None

    def __repr__(self) -> str:
        parts = [kind.__name__ for kind in self.types if kind is not type(None)]
        return " or ".join([*parts, *(repr(part) for part in (self.names, self.other) if part is not None)])

    def check(self, value: Any, name: str, caller: object) -> Any:
        if isinstance(value, self.types):
            return value
        part = self.names if self.names is not None and (self.other is None or isinstance(value, str)) else self.other
        return value if part is None else part.check(value, name, caller)


Real = Annotated[float, Number()]
Positive = Annotated[float, Number(0, open_low=True)]
NonNegative = Annotated[float, Number(0)]
Share = Annotated[float, Number(0, 1)]
Level = Annotated[float, Number(0, 1, open_low=True, open_high=True)]  # a coverage
Count = Annotated[int, Integer(1)]
Natural = Annotated[int, Integer(0)]
Seed = Annotated[int, Integer(0)]  # of both NumPy and PyTorch
Draws = Annotated[int, Integer(1, MOST_DRAWS)]
Bins = Annotated[int, Integer(1, MOST_BINS)]  # their sums fit in memory
Epoch = Annotated[int, Integer(0, (1 << 62) - 1)]
Text = Annotated[str, IS_TEXT]


def constraint_of(annotation: Any) -> Constraint | None:
    """Return what ``annotation`` declares, or None: of ``X | None`` that of X, of ``Sequence[X]`` each of X's.

    A union with a type that declares nothing and is no class (``Mapping[str, float]``) declares nothing.
    """
    origin = get_origin(annotation)
    if origin is Annotated:
        return next((part for part in annotation.__metadata__ if isinstance(part, Constraint)), None)
    if annotation is bool:
        return FLAG
    if origin is Literal:
        return OneOf(get_args(annotation))
    if origin is Sequence or (origin is tuple and get_args(annotation)[1:] == (...,)):
        member = constraint_of(get_args(annotation)[0])
        return None if member is None else Each(member)
    if origin in (Union, types.UnionType):
        return _either(get_args(annotation))
    return None


def _either(members: tuple[Any, ...]) -> Constraint | None:
    constraints = [(member, constraint_of(member)) for member in members]
    classes = tuple(member for member, constraint in constraints if constraint is None)
    names = next((one for _, one in constraints if isinstance(one, OneOf)), None)
    others = [one for _, one in constraints if one is not None and one is not names]
    if len(others) > 1 or not (names or others) or not all(isinstance(one, type) for one in classes):
        return None
    return Either(classes, names, others[0] if others else None)


@dataclass(frozen=True)
class CallPlan:
    """The constraints of a callable's arguments: by position, and by name."""

    positions: tuple[tuple[str, Constraint | None], ...]
    names: Mapping[str, Constraint]

    @classmethod
    def of(cls, parameters: Sequence[inspect.Parameter]) -> "CallPlan":
        """Return the plan of a call that takes ``parameters``, ``self`` left out."""
        constraints = {one.name: constraint_of(one.annotation) for one in parameters}
        positions = [(one.name, constraints[one.name]) for one in parameters if one.kind in _BY_POSITION]
        declared = {name: one for name, one in constraints.items() if one is not None}
        return cls(tuple(positions) if any(one for _, one in positions) else (), declared)

    def fitted(
        self, arguments: tuple[Any, ...], named: dict[str, Any], caller: object
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what is passed by position and by name with each argument checked; what is beyond the signature as it is."""
        if arguments and self.positions:
            checked_ones = [
                value if constraint is None else constraint.check(value, name, caller)
                for value, (name, constraint) in zip(arguments, self.positions, strict=False)
            ]
            arguments = (*checked_ones, *arguments[len(checked_ones) :])
        if named:
            named = {
                name: self.names[name].check(value, name, caller) if name in self.names else value
                for name, value in named.items()
            }
        return arguments, named


class _Words:
    def __init__(self, annotation: Any) -> None:
        self.words = _annotation_in_words(annotation)

    def __repr__(self) -> str:
        return self.words


def _annotation_in_words(annotation: Any) -> str:
    parts = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return f"{_annotation_in_words(parts[0])} {constraint_of(annotation)!r}".rstrip()
    if get_origin(annotation) in (Union, types.UnionType):
        return " | ".join(_annotation_in_words(part) for part in parts)
    if get_origin(annotation) is Sequence:
        return f"Sequence[{_annotation_in_words(parts[0])}]"
    if isinstance(annotation, ForwardRef):
        return annotation.__forward_arg__
    return "None" if annotation is type(None) else inspect.formatannotation(annotation)


def readable(signature: inspect.Signature) -> inspect.Signature:
    """Return ``signature`` with the constraints of its annotations in words: ``bins: int ≥ 1``."""
    shown = [
        one.replace(annotation=_Words(one.annotation))
        for one in signature.parameters.values()
        if one.annotation is not one.empty
    ]
    return signature.replace(
        parameters=[{one.name: one for one in shown}.get(name, one) for name, one in signature.parameters.items()]
    )


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

P = ParamSpec("P")


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Return a public function or method whose arguments are checked, at each call, against what its annotations declare.

    Of ``**options: Unpack[Options]`` the signature names each entry of the typed dict, with the default False for a flag, else None.

    Examples:
        >>> from calibrant._core.constraints import NonNegative, checked
        >>> @checked
        ... def half(number: NonNegative) -> float:
        ...     return number / 2
        >>> half(3)
        1.5
        >>> half(-1)
        Traceback (most recent call last):
        calibrant.errors.InputError: expected number in [0, inf), got -1; choose a value in that range
    """
    return planned(function)


def takes(**defaults: Any) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return ``checked`` with other defaults of options that the signature names."""
    return lambda function: planned(function, **defaults)


def planned(function: Callable[P, T], **defaults: Any) -> Callable[P, T]:
    """Return ``function`` as ``checked`` and ``takes`` do."""

    def option(name: str, kind: Any) -> inspect.Parameter:
        default = defaults.get(name, False if kind is bool else None)
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)

    signature = inspect.signature(function)
    parameters = list(_expanded(signature.parameters.values(), option))
    method = bool(parameters) and parameters[0].name in ("self", "cls")
    plan, names = CallPlan.of(parameters), {one.name for one in parameters}
    open_ended = any(one.kind is one.VAR_KEYWORD for one in parameters)

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        if not open_ended and (unknown := named.keys() - names):
            raise TypeError(f"{function.__qualname__}() got an unexpected keyword argument {min(unknown)!r}")
        caller = arguments[0] if method and arguments else function.__name__
        positional, by_name = plan.fitted(arguments, named, caller)
        return function(*positional, **by_name)

    call.__signature__ = readable(signature.replace(parameters=parameters))  # type: ignore[attr-defined]
    return call


def declares(function: Callable[..., Any]) -> bool:
    """Return whether an annotation of ``function`` declares a constraint."""
    return any(constraint_of(one) is not None for name, one in function.__annotations__.items() if name != "return")


class PublicCalls(ABCMeta):
    """Metaclass of public families, which checks arguments of constructors and public methods where annotations declare a constraint.

    A class may take options of its base by ``**options: Unpack[Options]``; ``inspect.signature`` names each of them, with the
    default of the base that names it.
    """

    _plan: CallPlan

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **keywords: Any) -> None:
        super().__init__(name, bases, namespace, **keywords)
        for name, function in namespace.items():
            public = name[0] != "_" or name == "__call__"
            if public and inspect.isfunction(function) and declares(function):
                setattr(cls, name, checked(function))

    @property
    def __signature__(cls) -> inspect.Signature:
        return readable(cls._declared)

    @property
    def _declared(cls) -> inspect.Signature:
        made = inspect.signature(cls.__init__)  # type: ignore[misc]
        own = list(made.parameters.values())[1:]
        return made.replace(parameters=list(_expanded(own, lambda name, _: _named_by_a_base(cls, name))))

    @property
    def plan(cls) -> CallPlan:
        """The constraints of the constructor's arguments; of ``**options`` without a type those of the next class."""
        if "_plan" not in vars(cls):
            parameters = list(cls._declared.parameters.values())
            made, base = CallPlan.of(parameters), cls.__mro__[1]
            if isinstance(base, PublicCalls) and any(one.kind is one.VAR_KEYWORD for one in parameters):
                made = CallPlan(made.positions, {**base.plan.names, **made.names})
            cls._plan = made
        return cls._plan

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        fitted, by_name = cls.plan.fitted(arguments, named, cls)
        return super().__call__(*fitted, **by_name)


def _expanded(
    parameters: Iterable[inspect.Parameter], option: Callable[[str, Any], inspect.Parameter]
) -> Iterator[inspect.Parameter]:
    """Yield ``parameters`` with each entry of ``**options: Unpack[Options]`` as ``option`` of its name and type, passed by name."""
    for parameter in parameters:
        if get_origin(parameter.annotation) is not Unpack:
            yield parameter
            continue
        for name, kind in get_args(parameter.annotation)[0].__annotations__.items():
            yield option(name, kind).replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _named_by_a_base(cls: type, option: str) -> inspect.Parameter:
    for base in cls.__mro__[1:]:
        own = inspect.signature(base.__init__).parameters if "__init__" in vars(base) else {}  # type: ignore[misc]
        if option in own:
            return own[option]
    raise TypeError(f"no base of {cls.__name__} names its option {option}")
