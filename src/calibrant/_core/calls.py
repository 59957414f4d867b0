"""Calls of public classes: the signature a class shows, the check of its arguments, and the sentence for a call that does not fit.

A class takes part by ``metaclass=PublicCalls``, which its subclasses inherit.
"""

import difflib
import functools
import inspect
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Unpack, get_args, get_origin

from calibrant._core.check import refuse
from calibrant._core.constraints import Plan, checked, declares, readable
from calibrant.errors import InputError

__all__ = ["PublicCalls"]

# What other libraries call an argument, where its letters do not lead to ours.
_OTHER_NAMES = {
    "alpha": ("pos_weight", "weight"),
    "class_weight": ("weight",),
    "eps": ("smoothing",),
    "epsilon": ("smoothing",),
    "p": ("norm",),
    "bins": ("binning",),
    "n": ("bins", "binning"),
    "n_bins": ("bins", "binning"),
    "num_bins": ("bins", "binning"),
}
_METHODS = ("__call__", "fit")  # what a user calls on an object with data, and may call with other arguments


class PublicCalls(ABCMeta):
    """Metaclass of public families: a call that does not fit the signature is an ``InputError`` that states the right one.

    Arguments of the constructor and of public methods are checked where their annotations declare a constraint. A class may
    take options of its base by ``**options: Unpack[Options]``; ``inspect.signature`` names each of them, with the default of
    the base that names it.
    """

    _plan: Plan

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **keywords: Any) -> None:
        super().__init__(name, bases, namespace, **keywords)
        root = not any(isinstance(base, PublicCalls) for base in bases)
        for method in _METHODS:
            function = namespace.get(method, getattr(cls, method, None) if root else None)
            if inspect.isfunction(function):
                setattr(cls, method, _misfits_stated(function))
        for name, function in namespace.items():
            if name not in _METHODS and name[0] != "_" and inspect.isfunction(function) and declares(function):
                setattr(cls, name, checked(function))

    @property
    def __signature__(cls) -> inspect.Signature:
        return readable(cls._declared)

    @property
    def _declared(cls) -> inspect.Signature:
        made = inspect.signature(cls.__init__)  # type: ignore[misc]
        return made.replace(parameters=list(_expanded(cls, list(made.parameters.values())[1:])))

    @property
    def plan(cls) -> Plan:
        """The constraints of the constructor's arguments; of ``**options`` without a type those of the next class."""
        if "_plan" not in vars(cls):
            parameters = list(cls._declared.parameters.values())
            made, base = Plan.of(parameters), cls.__mro__[1]
            if isinstance(base, PublicCalls) and any(one.kind is one.VAR_KEYWORD for one in parameters):
                made = Plan(made.positions, {**base.plan.names, **made.names})
            cls._plan = made
        return cls._plan

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        arguments, named = cls.plan.fitted(arguments, named, cls)
        try:
            return super().__call__(*arguments, **named)
        except TypeError as error:
            # Only now, since to bind each call's arguments takes longer than most constructors do.
            misfit = _misfit(cls.__name__, cls.__signature__, arguments, named)
            if misfit is None:
                raise
            raise misfit from error


def _expanded(cls: type, parameters: list[inspect.Parameter]) -> Iterator[inspect.Parameter]:
    """Yield ``parameters`` with each option of ``**options: Unpack[Options]`` as one that is passed by name."""
    for parameter in parameters:
        if get_origin(parameter.annotation) is not Unpack:
            yield parameter
            continue
        for option in get_args(parameter.annotation)[0].__annotations__:
            yield _named_by_a_base(cls, option).replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _named_by_a_base(cls: type, option: str) -> inspect.Parameter:
    for base in cls.__mro__[1:]:
        own = inspect.signature(base.__init__).parameters if "__init__" in vars(base) else {}  # type: ignore[misc]
        if option in own:
            return own[option]
    raise TypeError(f"no base of {cls.__name__} names its option {option}")


def _misfits_stated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that states its signature to a call that does not fit it, and checks what its annotations declare."""
    function = checked(function) if declares(function) else function

    @functools.wraps(function)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return function(self, *arguments, **named)
        except TypeError as error:
            cls = type(self)
            # a module's own __call__ takes anything, and passes it to ``forward``
            target = getattr(cls, "forward", function) if function.__name__ != "fit" else function
            shown = cls.__name__ + ("().fit" if function.__name__ == "fit" else "()")
            misfit = _misfit(shown, inspect.signature(target), (self, *arguments), named, usage=cls)
            if misfit is None:
                raise
            raise misfit from error

    return call


def _misfit(
    name: str, signature: inspect.Signature, arguments: tuple[Any, ...], named: Mapping[str, Any], *, usage: Any = None
) -> InputError | None:
    """Return the error of a call that does not fit ``signature``, or None if it fits.

    Args:
        name: Of what was called.
        signature: Of what was called, with ``self`` for a method.
        arguments: Passed by position, with ``self`` for a method.
        named: Passed by name.
        usage: The class of the object whose method it is, or None for a constructor.
    """
    try:
        signature.bind(*arguments, **named)
    except TypeError:
        pass
    else:
        return None
    own = list(signature.parameters.values())[1 if usage is not None else 0 :]
    passed = arguments[1 if usage is not None else 0 :]
    expected = f"{name}({', '.join(_parts(own))})"
    unknown = [key for key in named if key not in {parameter.name for parameter in own}]
    if unknown:
        ours = _ours(unknown[0], [parameter.name for parameter in own])
        remedy = f"the argument is called {ours}" if ours else getattr(usage, "call_hint", "") or "name one of these"
        return refuse(expected, f"the argument {unknown[0]}", remedy)
    by_position = [one for one in own if one.kind is not inspect.Parameter.KEYWORD_ONLY]
    hint = getattr(usage, "call_hint", "")
    if len(passed) > len(by_position):
        return refuse(expected, f"{len(passed)} arguments without a name", hint or "pass the others by name")
    missing = [
        one.name for one in own[len(passed) :] if one.default is inspect.Parameter.empty and one.name not in named
    ]
    if not missing:
        return refuse(expected, "an argument twice", "pass it once")
    return refuse(expected, f"no {missing[0]}", hint or f"pass {missing[0]}")


def _parts(parameters: list[inspect.Parameter]) -> Iterator[str]:
    """Yield the arguments as they stand in a call: what is needed by its name, what has a default with it."""
    for one in parameters:
        prefix = "*" * ((one.kind is one.VAR_POSITIONAL) + 2 * (one.kind is one.VAR_KEYWORD))
        yield f"{prefix}{one.name}" + ("" if one.default is inspect.Parameter.empty else f"={one.default!r}")


def _ours(word: str, names: list[str]) -> str | None:
    """Return which of ``names`` is meant by ``word``, or None if none is near."""
    known = [name for name in _OTHER_NAMES.get(word, ()) if name in names]
    return next(iter(known or difflib.get_close_matches(word, names, n=1, cutoff=0.6)), None)
