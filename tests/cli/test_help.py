"""``calibrant --help`` waits for nothing: what it loads, and that it says what the commands say."""

import ast
import os
import subprocess
import sys

import pytest

from calibrant.cli import Commands, _application

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
    command = _application.load_command(name)
    assert command.name == name
    assert " ".join(_application.summary_of(name).split()) == " ".join(command.help.split("\n\n")[0].split())
