"""Completes signatures for the reference: options by ``**options: Unpack[SomeTypedDict]``, and fields of pydantic's dataclasses.

Griffe's own extension for the former parses a docstring before it completes the signature, and then warns of every option that
the docstring describes; the latter it does not know.
"""

from collections.abc import Iterator
from typing import Any

from griffe import Attribute, Class, ExprSubscript, Extension, Function, Parameter, ParameterKind, Parameters

RECORD = "calibrant.study.record.record"  # the decorator that makes a dataclass validated by pydantic


class Unpacked(Extension):
    """Replaces ``**options`` by the keys of its typed dictionary, and gives classes that pydantic validates their constructor."""

    def on_class(self, *, cls: Class, **kwargs: Any) -> None:
        """Add the constructor of one class that pydantic makes from its fields."""
        del kwargs
        if any(one.callable_path == RECORD for one in cls.decorators) and "__init__" not in cls.members:
            fields = [one for one in cls.members.values() if isinstance(one, Attribute) and one.annotation is not None]
            keyword = ParameterKind.keyword_only
            parameters = [
                Parameter(one.name, annotation=one.annotation, kind=keyword, default=one.value) for one in fields
            ]
            cls.set_member("__init__", Function("__init__", parameters=Parameters(*parameters)))

    def on_function(self, *, func: Function, **kwargs: Any) -> None:
        """Complete the signature of one function."""
        del kwargs
        found: list[Parameter] = []
        for parameter in func.parameters:
            annotation = parameter.annotation
            unpacked = isinstance(annotation, ExprSubscript) and annotation.canonical_path.endswith("Unpack")
            found += options(func.modules_collection[annotation.slice.canonical_path]) if unpacked else [parameter]
        func.parameters = Parameters(*found)


def options(record: Class) -> Iterator[Parameter]:
    """Yield a keyword for every key of a typed dictionary, those of its bases first."""
    for base in record.resolved_bases:
        yield from options(base)
    for name, member in record.members.items():
        if isinstance(member, Attribute):
            yield Parameter(name, annotation=member.annotation, kind=ParameterKind.keyword_only, default="...")
