"""A command line that cannot be read is one sentence, as every other mistake is."""

import sys
from typing import Any

import typer

from calibrant.cli._guard import ARGUMENTS, say_error
from calibrant.cli._lazy import LazyGroup


class OneSentenceGroup(LazyGroup):
    """The group of all commands; says a usage error in one sentence instead of the box of the command-line library."""

    def main(self, args: Any = None, *rest: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run the command line; in standalone mode leave with its exit code."""
        ARGUMENTS.set(tuple(sys.argv[1:] if args is None else args))
        extra["standalone_mode"] = False  # errors then come here instead of being shown
        if not standalone_mode:
            return super().main(args, *rest, **extra)
        try:
            code = super().main(args, *rest, **extra)
        except typer.Abort:
            sys.exit(1)
        except Exception as error:
            if not hasattr(error, "format_message"):  # the library's errors have it, in each of its versions
                raise
            sys.exit(_said(error))
        sys.exit(code if isinstance(code, int) else 0)


def _said(error: Any) -> int:
    """Say an error of the command-line library and return its exit code."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "calibrant"
    if type(error).__name__ == "NoArgsIsHelpError":  # nothing was asked for: the help is the answer
        error.show()
    else:
        message = error.format_message().rstrip(".?").replace(". Did", "; did")
        say_error(
            f"expected arguments as {path} --help lists them, got: {message[:1].lower()}{message[1:]}; correct it"
        )
    return int(error.exit_code)
