"""Shows the options that a signature takes by ``**options: Unpack[SomeTypedDict]`` as parameters of their own.

Griffe's own extension parses a docstring before it completes the signature, and then warns of every option that the docstring
describes.
"""

from collections.abc import Iterator
from typing import Any

from griffe import Attribute, Class, ExprSubscript, Extension, Function, Parameter, ParameterKind, Parameters


class Unpacked(Extension):
    """Replaces ``**options`` by the keys of its typed dictionary."""

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
