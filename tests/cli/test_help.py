"""``calibrant --help`` and the help of every command wait for nothing: what they load, and that they say what is so."""

import ast
import inspect
import io
import json
import os
import re
import subprocess
import sys

import pytest
from rich.console import Console

import calibrant
from calibrant.cli import Commands, _application
from calibrant.cli._io import print_table
from calibrant.study.page import TABLES

HELP = """
import sys
from calibrant.cli import main
try:
    main(ARGUMENTS, prog_name="calibrant")
except SystemExit as end:
    assert end.code == 0, end.code
print(sorted(sys.modules), file=sys.stderr)
"""

ITS_OWN = {"calibrant", "calibrant.errors", *(f"calibrant.cli{part}" for part in ("", "._application"))}

HEAVY = {"torch", "numpy", "scipy", "numba", "matplotlib", "pyarrow", "jinja2", "sklearn", "pandas", "safetensors"}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]], ids=" ".join)
def test_help_and_version_load_the_command_line_library_alone(arguments: list[str]) -> None:
    script = HELP.replace("ARGUMENTS", repr(arguments))
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=here)
    loaded = set(ast.literal_eval(done.stderr))
    assert {name for name in loaded if name.partition(".")[0] == "calibrant"} == ITS_OWN
    assert {name.partition(".")[0] for name in loaded} & HEAVY == set()
    if arguments == ["--help"]:
        assert [name for name in Commands.names if f" {name} " not in done.stdout] == []


@pytest.mark.parametrize("name", Commands.names)
def test_the_help_says_of_a_command_what_the_command_says(name: str) -> None:
    command = _application.load_command(name, Commands.names[name])
    assert command.name == name
    assert " ".join(_application.summary_of(name, Commands.names[name]).split()) == " ".join(
        command.help.split("\n\n")[0].split()
    )


EVERY_HELP = """
import importlib.abc, json, sys, time
from typer.testing import CliRunner
from calibrant.cli import main

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HEAVY:
            raise ImportError(f"the help imports {name}")

sys.meta_path.insert(0, Blocked())
said = {}
for words in WORDS:
    result = CliRunner().invoke(main, [*words, "--help"], catch_exceptions=False)
    assert result.exit_code == 0, (words, result.output)
    said[" ".join(words)] = result.output
print(json.dumps(said))
"""

STUDY = ("list", "run", "show", "claims")


def test_the_help_of_every_command_loads_no_library_of_numbers() -> None:
    words = [[name] for name in Commands.names] + [["study", name] for name in STUDY]
    script = EVERY_HELP.replace("HEAVY", repr(HEAVY)).replace("WORDS", repr(words))
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=here)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [name for name in STUDY if f" {name} " not in said["study"]] == []
    assert all("--help" in text for text in said.values())


def test_what_the_help_says_without_loading_it_is_so() -> None:
    from calibrant.cli.methods import FAMILIES
    from calibrant.cli.report import Page

    assert Page.margin == calibrant.report.advice.MARGIN
    assert all(inspect.ismodule(getattr(calibrant, name)) for name in FAMILIES)


@pytest.mark.parametrize(
    "width",
    [
        30,
        77,
        200,
    ],
)
def test_a_table_has_every_word_whole_at_every_width(width: int) -> None:
    header = ["objective", *TABLES["main"][3]]
    rows = [["Cross-entropy", "2.6", "0.09", "5.01", "0.07", "3.51", "0.80", "4.0", "5.92"]]
    screen = Console(width=width, file=io.StringIO())
    print_table(screen, header, rows, title="Some figures")
    shown = screen.file.getvalue()
    assert max(map(len, shown.splitlines())) <= width
    words = {word for cell in ("Some figures", *header, *rows[0]) for word in cell.split()}
    assert words <= set(re.split(r"[\s:]+", shown))
