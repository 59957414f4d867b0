"""The application: commands imported on use, options in groups, and errors, warnings and usage messages of one sentence."""

# Typer, not Cyclopts 5 (decide and compare were ported to try): dataclasses, lazy commands and an option given twice come with that,
# some 60 lines less here, and `decide --help` takes .18 s instead of .30. But of a dataclass it does not say which fields were typed,
# on which `refuse_typed` rests, nor complete the names of studies and examples, and its list of lazy commands has no summaries.

import ast
import functools
import importlib
import inspect
import io
import os
import sys
import traceback
import typing
import warnings
from collections import UserDict
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import Field, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, NoReturn, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from calibrant.errors import CalibrantError, CalibrantWarning

USER_ERROR = 2
CRASH = 70  # EX_SOFTWARE of sysexits.h: 1 is the answer of `check` and `watch`, which a crash must not look like
INTERRUPTED = 130  # 128 + SIGINT, as shells have it

R = TypeVar("R")
TYPED: ContextVar[Mapping[str, str]] = ContextVar("TYPED", default={})  # noqa: B039  parameter → its option, of those on this command line


def guarded(command: Callable[..., R]) -> Callable[..., R]:
    """Return ``command`` saying a user's error, and any warning, as one sentence on stderr; our own bugs pass."""

    @functools.wraps(command)
    def run(**given: Any) -> R:
        from calibrant.cli._io import imports_shown  # not for --help

        with warnings.catch_warnings():  # it also puts showwarning back
            warnings.simplefilter("always", CalibrantWarning)
            warnings.showwarning = _once_each()
            try:
                with imports_shown():
                    return command(**given)
            except CalibrantError as error:
                fail(str(error))
            except BrokenPipeError:  # the reader of our output has left, as `head` does
                # Python flushes stdout once more at exit, which would be an error on the closed pipe
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise typer.Exit from None
            except OSError as error:
                fail(
                    f"expected to read or write {error.filename or 'a file'!r}, got {error.strerror or error!r}; check it"
                )
            except MemoryError:
                fail("expected the data to fit in memory, got more; evaluate fewer rows or splits at a time")
            except KeyboardInterrupt:
                fail("stopped before the end; only what was finished is kept", code=INTERRUPTED)

    return run


def option(default: Any, help: str, *names: str, needs: str = "", without: str = "", **settings: Any) -> Any:
    """Declare an option: a field of a group, or an argument of a command.

    Args:
        default: What the command gets where it is not typed.
        help: What ``--help`` says.
        names: Its names, if not the field's.
        needs: The option beside which alone it has an effect: ``"costs"``, or ``"executor ray"`` for one value of it.
        without: The option beside which it has none.
        **settings: Others of ``typer.Option``.
    """
    declared = typer.Option(*names, help=help, **settings)
    return field(default=default, metadata={"declared": declared, "needs": needs, "without": without})


def declare_argument(help: str, **settings: Any) -> Any:
    """Declare an argument that is named by its place, and may be left out, as ``option`` declares options."""
    return field(default=None, metadata={"declared": typer.Argument(help=help, **settings)})


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return ``command`` with each field of its option groups, the dataclasses among its parameters, as an option of its own."""
    own, groups = inspect.signature(command), dict[str, tuple[Any, list[str]]]()
    parameters: list[inspect.Parameter] = []
    declared: dict[str, Mapping[str, Any]] = {}

    def add(name: str, hint: Any, default: Any) -> None:
        # in the extras of ``Annotated`` the library looks for what is declared
        if isinstance(default, Field):
            hint = Annotated[hint, default.metadata["declared"]] if default.metadata else hint
            declared[name], default = default.metadata, default.default
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint))

    # the commands' files put annotations off
    hints = typing.get_type_hints(command, include_extras=True)
    for name, parameter in own.parameters.items():
        if not is_dataclass(hints[name]):
            add(name, hints[name], parameter.default)
            continue
        inner = typing.get_type_hints(hints[name], include_extras=True)
        # an option of the command's own under a group's name (``compare --on FILE``) stands for itself
        options = [one for one in fields(hints[name]) if one.name not in own.parameters]
        for one in options:
            add(one.name, inner[one.name], one)
        groups[name] = hints[name], [one.name for one in options]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        _refuse_without_effect(declared, given)
        made = {name: group(**{one: given.pop(one) for one in names}) for name, (group, names) in groups.items()}
        command(**given, **made)

    # the library reads the options of a command from its signature
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": None}
    return run


def _refuse_without_effect(declared: Mapping[str, Mapping[str, Any]], given: Mapping[str, Any]) -> None:
    """Refuse options that need another one, or have no effect beside it, as they are declared."""
    from calibrant.cli._options import refuse_typed  # not for --help

    unmet: dict[tuple[str, str], list[str]] = {}
    for name, facts in declared.items():
        needed, _, value = facts.get("needs", "").partition(" ")
        if needed and (given[needed] != value if value else not given[needed]):
            flag = " ".join(filter(None, ["--" + needed.replace("_", "-"), value]))
            unmet.setdefault((f"a call without {flag}", f"add {flag}, or leave it out"), []).append(name)
        if (other := facts.get("without")) and given[other]:
            flag = TYPED.get().get(other, other)
            unmet.setdefault((flag if flag.startswith("-") else flag.upper(), ""), []).append(name)
    for (where, remedy), names in unmet.items():
        refuse_typed(names, where=where, remedy=remedy)


def fail(sentence: str, *, code: int = USER_ERROR) -> NoReturn:
    """Say ``sentence`` on stderr and leave with ``code``."""
    say_error(sentence)
    raise typer.Exit(code)


def say_error(sentence: str) -> None:
    """Say ``sentence`` on stderr, on one line."""
    typer.echo(typer.style("error: ", fg="red", bold=True) + " ".join(sentence.split()), err=True)


def _once_each() -> Callable[..., None]:
    """Return what shows the warnings of a command: each text once, however many steps give it."""
    shown: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        text = " ".join(str(message).split())
        if text not in shown:
            shown.add(text)
            typer.echo(typer.style("warning: ", fg="yellow", bold=True) + text, err=True)

    return show


@functools.cache
def load_command(name: str, home: str) -> Any:
    """Import the file of a command and return the command: its function with the error messages of ours, or its group.

    Kept, for a process that calls the command line again: Typer makes the types of all options anew for each command made.
    """
    found: Callable[..., None] | typer.Typer = getattr(importlib.import_module(f"calibrant.cli.{home}"), name)
    app = found if isinstance(found, typer.Typer) else typer.Typer(add_completion=False)
    app.rich_markup_mode = "markdown"
    if app is not found:
        app.command(name=name)(found)
    for information in app.registered_commands:  # of a group each refuses the same
        information.cls, information.callback = OnceCommand, information.callback and guarded(information.callback)
    command: Any = typer.main.get_group(app) if app is found else typer.main.get_command(app)
    command.name = name
    return command


class OnceCommand(TyperCommand):
    """A command that refuses an option of one value given twice, of which the last would have taken effect alone."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Return what the arguments say, after a count of the options in them."""
        # behind "--" every word is a name of a file, even one that begins with a dash
        words = [word.partition("=")[0] for word in args[: args.index("--") if "--" in args else None]]
        for option in self.get_params(ctx):
            names = [name for name in option.opts if name.startswith("-")]
            single = names and not getattr(option, "multiple", False) and not getattr(option, "is_flag", False)
            if single and (count := sum(words.count(name) for name in names)) > 1:
                fail(f"expected {names[0]} once, got it {count} times; keep one of them")
        rest = super().parse_args(ctx, args)
        sources = {one.name: ctx.get_parameter_source(one.name) for one in self.get_params(ctx)}
        flags = {one.name: max(one.opts, key=len) for one in self.get_params(ctx)}
        # typed at its default it counts, too: whoever typed it expects an effect
        TYPED.set({name: flags[name] for name, one in sources.items() if one is not None and one.name == "COMMANDLINE"})
        return rest


def summary_of(name: str, home: str) -> str:
    """Return the first paragraph of the docstring, or of the ``help=`` of the group, that the command's file holds."""
    source = Path(__file__).with_name(f"{home}.py")
    # parsed, not imported: the help of all commands would load PyTorch for one sentence of each
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return (ast.get_docstring(node) or "").split("\n\n")[0]
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name and isinstance(node.value, ast.Call):
            return str(next(ast.literal_eval(one.value) for one in node.value.keywords if one.arg == "help"))
    raise LookupError(f"no command {name!r} in {source}")


class _Loaded(UserDict[str, Any]):
    """Commands by name; each is loaded when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        return load_command(name, super().__getitem__(name))


class OneSentenceGroup(TyperGroup):
    """The group of all commands, each imported when it is called; a usage error is one sentence, not the box of the library.

    A subclass lists the commands in the order of the help: name → the file beside this one that holds its function, or its group.
    """

    names: ClassVar[Mapping[str, str]] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = _Loaded(self.names)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, in the order of the help."""
        return list(self.names)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, which needs a sentence of each command and none of the commands."""
        whole = self.commands
        self.commands = {
            name: TyperCommand(name=name, help=summary_of(name, home), rich_markup_mode="markdown")
            for name, home in self.names.items()
        }
        try:
            super().format_help(ctx, formatter)
        finally:
            self.commands = whole

    def main(self, args: Any = None, *rest: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run the command line; in standalone mode leave with its exit code."""
        for stream in (sys.stdout, sys.stderr):  # a terminal or pipe of ASCII shows "?" for what it cannot
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        extra["standalone_mode"] = False  # errors then come here instead of being shown
        if not standalone_mode:
            return super().main(args, *rest, **extra)
        try:
            code = super().main(args, *rest, **extra)
        except typer.Abort:
            sys.exit(1)
        except Exception as error:
            if not hasattr(error, "format_message"):  # the library's errors have it, in each of its versions
                sys.exit(_print_crash(error))
            sys.exit(_print_usage_error(error))
        sys.exit(code if isinstance(code, int) else 0)


def _print_crash(error: Exception) -> int:
    """Print an error that no user caused in one sentence, with the line that raised it, and return its exit code."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    if os.environ.get("CALIBRANT_TRACEBACK"):
        traceback.print_exception(error)
    kind, text = type(error).__name__, " ".join(str(error).split())
    say_error(
        f"expected no failure of Calibrant itself, got {kind}{f': {text}' if text else ''} ({Path(last.filename).name}, line "
        f"{last.lineno}); report it with the output of the same command under CALIBRANT_TRACEBACK=1"
    )
    return CRASH


def _print_usage_error(error: Any) -> int:
    """Print an error of the command-line library on stderr and return its exit code."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "calibrant"
    if type(error).__name__ == "NoArgsIsHelpError":  # nothing was asked for: the help is the answer
        error.show()
    else:
        message = error.format_message().rstrip(".?").replace(". Did", "; did").replace("Value error, ", "")
        message = message.removeprefix("Got ")
        say_error(
            f"expected arguments as in {path} --help, got {message[:1].lower()}{message[1:]}; {_what_to_add(error)}"
        )
    return int(error.exit_code)


def _what_to_add(error: Any) -> str:
    """Return the remedy of a wrong call: the option or argument that is missing, with what its help calls it."""
    missing: Any = getattr(error, "param", None)
    if type(error).__name__ != "MissingParameter" or not getattr(missing, "help", None):
        return "correct them"
    name = missing.opts[0] if missing.opts[0].startswith("-") else missing.metavar or missing.name
    asked = " ".join(missing.help.split()).partition(". ")[0].rstrip(".")
    return f"add {name}: {asked[:1].lower()}{asked[1:]}"
