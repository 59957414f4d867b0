"""Converts objects to plain JSON or TOML data and back, based on the signatures of their constructors.

The only requirement is that a class keeps each constructor argument as an attribute of the same name.
"""

import dataclasses
import difflib
import importlib
import inspect
import math
import os
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, TypeVar, Unpack, get_args, get_origin

import numpy as np
from torch import Tensor, nn

from calibrant._files import error_boundary
from calibrant.errors import InputError

T = TypeVar("T")


def parameters_of(cls: Any) -> dict[str, inspect.Parameter]:
    """Return the constructor parameters by name, with ``**options`` replaced by the individual options.

    For ``**options: Unpack[Options]``, the options are the entries of ``Options``; without an annotation, they are the keyword
    arguments of the base classes.
    """
    parameters = {}
    for name, parameter in inspect.signature(cls).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD:
            parameters[name] = parameter
            continue
        bases = [inspect.signature(base).parameters for base in cls.__mro__[1:-1]]
        by_name = [key for base in bases for key, one in base.items() if one.kind is one.KEYWORD_ONLY]
        typed = get_origin(parameter.annotation) is Unpack
        for option in get_args(parameter.annotation)[0].__annotations__ if typed else dict.fromkeys(by_name):
            parameters[option] = next(base[option] for base in bases if option in base)
    return parameters


def arguments_of(thing: object) -> dict[str, Any]:
    """Return the constructor arguments of ``thing`` by name, read from its attributes; ``*stages`` becomes one entry, ``stages``.

    Examples:
        >>> from calibrant.binning import EqualWidth
        >>> arguments_of(EqualWidth(10))
        {'bins': 10}
    """
    return {name: getattr(thing, name) for name in parameters_of(type(thing))}


def config_of(thing: object) -> dict[str, Any]:
    """Return the constructor arguments of ``thing`` as JSON data.

    Raises:
        InputError: If an argument cannot be written as JSON.

    Examples:
        >>> from calibrant.binning import EqualMass
        >>> config_of(EqualMass(10))
        {'bins': 10, 'ties': 'together'}
    """
    return {name: to_plain(value) for name, value in arguments_of(thing).items()}


def to_plain(value: Any) -> Any:
    """Return ``value`` as JSON data; a dataclass or module becomes ``{"type": name, argument: value …}``.

    Raises:
        InputError: If ``value`` contains anything that cannot be written as numbers, strings, lists and mappings.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | nn.ModuleList):
        return [to_plain(item) for item in value]
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, nn.Module) or _is_record(value):
        return {"type": type(value).__name__, **config_of(value)}
    raise InputError("a configuration with plain values", f"{type(value).__name__}", "use numbers and strings")


def shown(thing: object, *, defaults: bool = True) -> str:
    """Return the arguments of ``thing`` as text for its repr, without those that are None or modules.

    Args:
        thing: Any object; arguments that are not kept as attributes are left out.
        defaults: Whether to include arguments that have their default value.

    Examples:
        >>> from calibrant.binning import EqualMass
        >>> shown(EqualMass(10))
        "bins=10, ties='together'"
    """
    parts = []
    for name, parameter in parameters_of(type(thing)).items():
        value = getattr(thing, name, None)
        is_default = type(value) is type(parameter.default) and bool(value == parameter.default)
        if value is not None and not isinstance(value, nn.Module) and (defaults or not is_default):
            parts.append(f"{name}={f'tensor of {tuple(value.shape)}' if isinstance(value, Tensor) else repr(value)}")
    return ", ".join(parts)


def renewed(thing: T) -> T:
    """Return a new object of the same class as ``thing``, with the same arguments; modules among these are made anew as well.

    Examples:
        >>> from calibrant.binning import EqualWidth
        >>> renewed(EqualWidth(7))
        EqualWidth(bins=7)
    """

    def copied(value: Any) -> Any:
        if isinstance(value, nn.ModuleList | list | tuple):
            return [copied(item) for item in value]
        return renewed(value) if isinstance(value, nn.Module) else value

    return _construct(type(thing), {name: copied(value) for name, value in arguments_of(thing).items()})


def build(
    table: Mapping[str, Any], *, families: Sequence[ModuleType], classes: Sequence[type] = (), importable: bool = False
) -> Any:
    """Return the object that a ``{"type": name, argument: value …}`` table describes, including tables among its arguments.

    Args:
        table: The table, as ``to_plain`` returns it or as read from a TOML file.
        families: The modules in whose ``__all__`` names are looked up, in order.
        classes: Further classes, which are found by their names.
        importable: Whether to import ``"module:Class"``, which is safe only for the user's own files.

    Raises:
        InputError: If a name is unknown or the arguments are not those of the class.

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
    cls = find_class(name := arguments.pop("type", None), families=families, classes=classes, importable=importable)
    known = parameters_of(cls)
    if unknown := [argument for argument in arguments if argument not in known]:
        near = difflib.get_close_matches(unknown[0], known, n=1)
        remedy = f"the argument is called {near[0]}" if near else "name one of these"
        raise InputError(f"{name}({', '.join(known)})", f"the argument {unknown[0]}", remedy)
    with error_boundary(f"arguments of {name}", f"{arguments}", "see its documentation", kind=InputError):
        return _construct(cls, {key: made(value) for key, value in arguments.items()})


def find_class(
    name: Any, *, families: Sequence[ModuleType], classes: Sequence[type] = (), importable: bool = False
) -> Any:
    """Return the class called ``name``. The other arguments are those of ``build``.

    Examples:
        >>> from calibrant import binning
        >>> find_class("EqualMass", families=[binning]).__name__
        'EqualMass'
    """
    if isinstance(name, str) and ":" in name and importable:
        return imported(name)
    homes = {one: family for family in reversed(families) for one in family.__all__}
    known = {cls.__name__: cls for cls in classes}
    if isinstance(name, str) and name in {*homes, *known}:
        return known.get(name) or getattr(homes[name], name)
    names = [*homes, *known]
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5) or names[:8]
    remedy = f"choose one of {' or '.join(family.__name__ for family in families) or 'these'}"
    raise InputError(f"type to be one of {', '.join(near)}{' …' * (len(names) > len(near))}", f"{name!r}", remedy)


def imported(name: str) -> Any:
    """Return the object that ``"module:attribute"`` names; modules in the current folder are found as well.

    Raises:
        InputError: If the object cannot be imported.

    Examples:
        >>> imported("math:pi")
        3.141592653589793
    """
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:  # the installed command starts without the current folder
        sys.path.append(os.getcwd())
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # TypeError: a relative import
        raise InputError(f"{name!r} to be importable", f"{error}", "check the name") from error


def own_version() -> str:
    """Return Calibrant's version. The package is not imported here, because it imports this module.

    Examples:
        >>> own_version().count(".")
        2
    """
    return str(vars(sys.modules["calibrant"])["__version__"])


def json_data(value: Any) -> Any:
    """Return a record or its contents as JSON data: fields by name, arrays as lists, and None for infinite numbers and NaN.

    Unlike ``to_plain``, this function is for results, which are not converted back, so no type is written.

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


def _construct(cls: type[T], arguments: Mapping[str, Any]) -> T:
    spread = [name for name, one in parameters_of(cls).items() if one.kind is inspect.Parameter.VAR_POSITIONAL]
    positional = arguments.get(spread[0], ()) if spread else ()
    return cls(*positional, **{name: value for name, value in arguments.items() if name not in spread})
