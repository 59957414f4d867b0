"""No output destroys what its command reads: every output of every command against every file that stands beside it."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from tests.cli.conftest import Run, some_logits, write_good_files
from tests.cli.test_study_files import TEXT

from calibrant.cli import main

GROUP = typer.main.get_command(main)

# Options that name a file to write, with a suffix that each accepts.
WRITTEN = {
    "output": None,
    "record": ".json",
    "report": ".html",
}

SUFFIX = {
    "apply": ".npz",
    "fit": ".safetensors",
    "report": ".html",
}

# A command line that reads as many files as the command can; OUT is an argument that is written.
LINES: dict[str, list[str]] = {
    "apply": ["c.safetensors", "a.npz"],
    "fit": ["a.npz", "-m", "TemperatureScaling"],
    "report": ["a.npz", "b.npz", "-c", "c.safetensors"],
    "study show": ["mine.toml"],
}


def trials() -> Iterator[tuple[str, str, str]]:
    """Yield (command, parameter that is written, file that is read)."""
    for command, line in LINES.items():
        found: Any = GROUP
        for word in command.split():
            found = found.commands[word]
        names = ["OUT"] if "OUT" in line else [p.name for p in found.params if p.name in WRITTEN]
        assert names, command
        for name in names:
            for file in line:
                if Path(file).suffix and not file.startswith("."):
                    yield command, name, file


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of every kind that a command reads."""
    place = tmp_path_factory.mktemp("outputs")
    write_good_files(place)
    (place / "mine.toml").write_text(TEXT)
    return place


@pytest.fixture
def home(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory with those files."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize(("command", "name", "file"), list(trials()))
def test_an_output_that_is_a_link_to_what_is_read_is_refused(
    command: str, name: str, file: str, home: Path, run: Run
) -> None:
    suffix = WRITTEN.get(name) or SUFFIX[command]
    other = f"link{suffix}"  # another name, with a suffix that the output may have
    os.link(file, other)
    before = {entry.name: entry.read_bytes() for entry in home.iterdir()}
    line = [other if part == "OUT" else part for part in LINES[command]]
    line += [] if name == "OUT" else [f"--{name}", other]
    run(*command.split(), *line, code=2, says="output")
    assert {entry.name: entry.read_bytes() for entry in home.iterdir()} == before


def test_labels_in_a_file_of_their_own_are_not_written_over(home: Path, run: Run) -> None:
    logits, labels = some_logits(rows=60)
    np.save("z.npy", logits)
    np.save("y.npy", labels)
    os.link("y.npy", "link.html")
    read = ("z.npy", "--kind", "logits", "--labels", "y.npy")
    run("report", *read, "-m", "none", "-o", "link.html", code=2, says="expected an output other than the input")
    assert np.array_equal(np.load("y.npy"), labels)
