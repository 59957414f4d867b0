"""What an object was made with: read from its constructor's signature, written as plain JSON or TOML data, and back.

A class takes part by keeping each argument as an attribute of the same name; nothing else has to be written. Its
configuration, representation, comparison, table in a study file and saved file all follow.
"""

import dataclasses
import difflib
import importlib
import inspect
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
from torch import Tensor, nn

from calibrant._files import error_boundary
from calibrant.errors import InputError

T = TypeVar("T")

_VARIADIC = inspect.Parameter.VAR_POSITIONAL


def arguments_of(thing: object) -> dict[str, Any]:
    """Return the constructor's arguments of ``thing`` by name, as it keeps them; ``*stages`` is one entry, ``stages``.

    Raises:
        InputError: If it does not keep an argument as an attribute of that name, or takes ``**keywords``.

    Examples:
        >>> from calibrant.binning import EqualWidth
        >>> arguments_of(EqualWidth(10))
        {'bins': 10}
    """
    found = {}
    for name, parameter in _parameters(type(thing)).items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            raise InputError(
                f"{type(thing).__name__} to name every argument of its constructor", f"**{name}", "name them"
            )
        try:
            found[name] = getattr(thing, name)
        except AttributeError:
            raise InputError(
                f"{type(thing).__name__} to keep its argument {name} as an attribute",
                "none",
                f"set self.{name} in __init__",
            ) from None
    return found


def config_of(thing: object) -> dict[str, Any]:
    """Return the constructor's arguments of ``thing`` as JSON data.

    Raises:
        InputError: If one is neither plain nor an object whose own arguments are.

    Examples:
        >>> from calibrant.binning import EqualMass
        >>> config_of(EqualMass(10))
        {'bins': 10, 'ties': 'together'}
    """
    return {name: to_plain(value) for name, value in arguments_of(thing).items()}


def to_plain(value: Any) -> Any:
    """Return ``value`` as JSON data; a dataclass or module becomes ``{"type": name, argument: value …}``.

    Raises:
        InputError: If it holds anything else than numbers, names, lists and mappings of them.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | nn.ModuleList):
        return [to_plain(item) for item in value]
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if _is_record(value):
        fields = {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, nn.Module):
        return {"type": type(value).__name__, **config_of(value)}
    raise InputError("a configuration of plain values", f"{type(value).__name__}", "use numbers and names")


def shown(thing: object, *, defaults: bool = True) -> str:
    """Return ``thing``'s arguments as its representation shows them: those that are not None, without modules.

    A representation never fails: arguments that ``thing`` does not keep are left out.

    Args:
        thing: Any object.
        defaults: Whether to show arguments that have their default, too.

    Examples:
        >>> from calibrant.binning import EqualMass
        >>> shown(EqualMass(10))
        "bins=10, ties='together'"
    """
    parts = []
    for name, parameter in _parameters(type(thing)).items():
        value = getattr(thing, name, None)
        if value is None or isinstance(value, nn.Module) or (not defaults and _is_default(value, parameter)):
            continue
        parts.append(f"{name}={value!r}" if not isinstance(value, Tensor) else f"{name}=tensor of {tuple(value.shape)}")
    return ", ".join(parts)


def renewed(thing: T) -> T:
    """Return a new object of ``thing``'s class with the same arguments; modules among them are made anew as well.

    Examples:
        >>> from calibrant.binning import EqualWidth
        >>> renewed(EqualWidth(7))
        EqualWidth(bins=7)
    """

    def copied(value: Any) -> Any:
        if isinstance(value, nn.ModuleList | list | tuple):
            return [copied(item) for item in value]
        return renewed(value) if isinstance(value, nn.Module) else value

    made: T = _call(type(thing), {name: copied(value) for name, value in arguments_of(thing).items()})
    return made


def build(
    table: Mapping[str, Any], *, families: Sequence[ModuleType], classes: Sequence[type] = (), importable: bool = False
) -> Any:
    """Return the object that a ``{"type": name, argument: value …}`` table describes; tables among its arguments too.

    Args:
        table: As ``to_plain`` makes it, or as it stands in a TOML file.
        families: The modules in whose ``__all__`` names are looked up, in order.
        classes: Further classes, known by their names.
        importable: Whether ``"module:Class"`` is imported: only for files that are the user's own code.

    Raises:
        InputError: If a name is unknown or the arguments do not fit.

    Examples:
        >>> from calibrant import binning
        >>> build({"type": "EqualWidth", "bins": 7}, families=[binning])
        EqualWidth(bins=7)
    """

    def made(value: Any) -> Any:
        if isinstance(value, Mapping) and "type" in value:
            return build(value, families=families, classes=classes, importable=importable)
        return [made(item) for item in value] if isinstance(value, list | tuple) else value

    arguments = dict(table)
    name = arguments.pop("type", None)
    cls = find_class(name, families=families, classes=classes, importable=importable)
    with error_boundary(f"arguments of {name}", f"{arguments}", "see its documentation", kind=InputError):
        check_names(cls, arguments)
        return _call(cls, {key: made(value) for key, value in arguments.items()})


def check_names(call: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raise unless a file's ``arguments`` are those that ``call`` takes, and none is missing that it needs.

    Raises:
        InputError: Naming the argument that is unknown, with the nearest one, or missing.
    """
    own = inspect.signature(call).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in own.values()):
        return
    shown = (name if one.default is one.empty else f"{name}={one.default!r}" for name, one in own.items())
    expected = f"{call.__name__}({', '.join(shown)})"
    if unknown := next((name for name in arguments if name not in own), None):
        near = difflib.get_close_matches(unknown, own, n=1)
        remedy = f"the argument is called {near[0]}" if near else "name one of these"
        raise InputError(expected, f"the argument {unknown}", remedy)
    needed = (name for name, one in own.items() if one.default is one.empty and one.kind is not _VARIADIC)
    if missing := next((name for name in needed if name not in arguments), None):
        raise InputError(expected, f"no {missing}", f"name {missing}")


def own_version() -> str:
    """Return Calibrant's version; the package itself stands above this module, so that it is not imported here.

    Examples:
        >>> own_version().count(".")
        2
    """
    return str(vars(sys.modules["calibrant"])["__version__"])


def imported(name: str) -> Any:
    """Return what ``"module:attribute"`` names; modules of the current folder are found as well.

    Raises:
        InputError: If it cannot be imported.

    Examples:
        >>> imported("math:pi")
        3.141592653589793
    """
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:  # the installed command starts without it
        sys.path.append(os.getcwd())
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # TypeError: a module relative to none
        raise InputError(f"{name!r} to be importable", f"{error}", "check the name") from error


def find_class(
    name: Any, *, families: Sequence[ModuleType], classes: Sequence[type] = (), importable: bool = False
) -> Any:
    """Return the class called ``name``; arguments as for ``build``.

    Examples:
        >>> from calibrant import binning
        >>> find_class("EqualMass", families=[binning]).__name__
        'EqualMass'
    """
    if isinstance(name, str) and ":" in name and importable:
        return imported(name)
    known = {cls.__name__: cls for cls in classes}
    if isinstance(name, str) and name in known:
        return known[name]
    for family in families:
        if isinstance(name, str) and name in family.__all__:
            return getattr(family, name)
    names = [*(name for family in families for name in family.__all__), *known]
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
    shown = ", ".join(near or names[:8]) + (" …" if len(names) > len(near or names[:8]) else "")
    where = " or ".join(family.__name__ for family in families)
    remedy = f"choose one of {where}" if families else "choose one of these"
    raise InputError(f"type to be one of {shown}", f"{name!r}", remedy)


def _call(cls: type[T], arguments: Mapping[str, Any]) -> T:
    parameters = _parameters(cls)
    spread = next((name for name, parameter in parameters.items() if parameter.kind is _VARIADIC), None)
    positional = arguments.get(spread, ()) if spread is not None else ()
    return cls(*positional, **{name: value for name, value in arguments.items() if name != spread})


_SIGNATURES: dict[type, Mapping[str, inspect.Parameter]] = {}


def _parameters(cls: type) -> Mapping[str, inspect.Parameter]:
    if cls not in _SIGNATURES:  # reading one takes a tenth of a millisecond
        _SIGNATURES[cls] = inspect.signature(cls).parameters
    return _SIGNATURES[cls]


def _is_default(value: Any, parameter: inspect.Parameter) -> bool:
    return type(value) is type(parameter.default) and bool(value == parameter.default)


def json_data(value: Any) -> Any:
    """Return a record, or what it holds, as JSON data: fields by name, arrays as lists, and None for a number that JSON cannot hold.

    Unlike ``to_plain`` it is for results: nothing is made of it again, so that no type is written.

    Examples:
        >>> json_data({"low": float("-inf"), "counts": torch.tensor([1, 2])})
        {'low': None, 'counts': [1, 2]}
    """
    if _is_record(value):
        return {field.name: json_data(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: json_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_data(item) for item in value]
    if isinstance(value, np.ndarray | Tensor):
        return json_data(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_record(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
