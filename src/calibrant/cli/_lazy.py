"""Commands that are imported when they are used: ``calibrant --help`` reads the first sentence of each from its source."""

import ast
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from calibrant.cli._guard import guarded


class LazyGroup(TyperGroup):
    """A group whose commands are files beside this one, named as they are; a subclass lists them in ``names``."""

    names: tuple[str, ...] = ()

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = _Commands(self.names)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, in the order of the help."""
        return list(self.names)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, which needs a sentence of each command and none of the commands."""
        summaries = TyperGroup(name=self.name, commands={name: _shown(name) for name in self.names})
        for fact in ("params", "help", "epilog", "rich_markup_mode", "rich_help_panel", "suggest_commands"):
            if hasattr(self, fact):
                setattr(summaries, fact, getattr(self, fact))
        summaries.format_help(ctx, formatter)


class _Commands(Mapping[str, Any]):
    """Commands by name; each is loaded when it is looked up."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return load_command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def load_command(name: str) -> Any:
    """Import the file of a command and return the command: its function with the error messages of ours, or its group."""
    found: Callable[..., None] | typer.Typer = getattr(importlib.import_module(f"calibrant.cli.{name}"), name)
    if isinstance(found, typer.Typer):
        found.rich_markup_mode = "markdown"
        command: Any = typer.main.get_group(found)
    else:
        app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        app.command(name=name)(guarded(found))
        command = typer.main.get_command(app)
    command.name = name
    return command


def summary_of(name: str) -> str:
    """Return the first paragraph of the docstring, or of the ``help=`` of the group, that the command's file holds."""
    spec = importlib.util.find_spec(f"calibrant.cli.{name}")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no file of the command {name!r}")
    with open(spec.origin, encoding="utf-8") as source:
        body = ast.parse(source.read()).body
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return (ast.get_docstring(node) or "").split("\n\n")[0]
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name and isinstance(node.value, ast.Call):
            return str(next(ast.literal_eval(one.value) for one in node.value.keywords if one.arg == "help"))
    raise LookupError(f"no command {name!r} in {spec.origin}")


def _shown(name: str) -> TyperCommand:
    return TyperCommand(name=name, help=summary_of(name), rich_markup_mode="markdown")
