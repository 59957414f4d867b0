"""The command line. Every command is a function in one of the modules imported below, and the help lists them in order.

These modules import PyTorch and everything else that computes inside their functions, so that help appears at once.
"""

import click

import calibrant
from calibrant.cli.evaluate import compare, evaluate
from calibrant.cli.fit import apply, export, fit
from calibrant.cli.methods import methods
from calibrant.cli.operate import check, watch
from calibrant.cli.report import report
from calibrant.cli.study import demo, study
from calibrant.cli.terminal import Commands

__all__ = ["main"]

main = Commands(
    "calibrant",
    help=calibrant.__doc__,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
click.version_option(calibrant.__version__, prog_name="calibrant", message="%(prog)s %(version)s")(main)
for command in (demo, report, evaluate, compare, fit, apply, export, check, watch, methods, study):
    main.add_command(command)
for command in (*main.commands.values(), *study.commands.values()):
    command.short_help = (command.help or "").split("\n\n")[0]
