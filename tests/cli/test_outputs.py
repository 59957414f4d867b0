"""No output destroys what its command reads: every output of every command against every file that stands beside it."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from tests.cli.conftest import Run, some_logits, write_good_files
from tests.cli.test_options import commands

from calibrant.cli import main
from calibrant.cli._options import _WRITTEN
from calibrant.study.load import write_template

GROUP = typer.main.get_command(main)

# Options that name a file to write, with a suffix that each accepts.
WRITTEN = {
    "output": None,
    "junit": ".xml",
    "markdown": ".md",
    "prometheus": ".prom",
    "html": ".html",
    "refit": ".safetensors",
    "record": ".json",
    "report": ".html",
}

SUFFIX = {
    "apply": ".npz",
    "fit": ".safetensors",
    "report": ".html",
    "decide": ".safetensors",
    "sample": ".csv",
}

# A command line that reads as many files as the command can; OUT is an argument that is written.
LINES: dict[str, list[str]] = {
    "apply": ["c.safetensors", "a.npz"],
    "fit": ["a.npz", "-m", "TemperatureScaling"],
    "report": ["a.npz", "b.npz", "-c", "c.safetensors", "--class-names", "names.txt"],
    "check": ["a.npz", "--baseline", "b.npz", "--policy", "policy.toml", "-c", "c.safetensors"],
    "watch": ["state.safetensors", "a.npz", "--merge", "other.safetensors"],
    "decide": ["a.npz", "--coverage", ".8", "-c", "c.safetensors"],
    "sample": ["a.npz", "--extend", "labelled.csv"],
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
    shutil.copy(place / "state.safetensors", place / "other.safetensors")
    (place / "names.txt").write_text("a\nb\nc\nd\n")
    (place / "policy.toml").write_text("[maximum]\nece = 0.9\n[no_worse]\nnll = 0.5\n")
    write_template(place / "mine.toml")
    return place


@pytest.fixture
def home(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory with those files."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize(("command", "name", "file"), list(trials()))
@pytest.mark.parametrize("link", ["hard", "soft", "itself"])
def test_an_output_that_is_what_is_read_or_a_link_to_it_is_refused(
    command: str, name: str, file: str, link: str, home: Path, run: Run
) -> None:
    suffix = WRITTEN.get(name) or SUFFIX[command]
    # another name, with a suffix that the output may have, or another spelling
    other = f"./{file}" if link == "itself" else f"link{suffix}"
    if link != "itself":
        (os.link if link == "hard" else os.symlink)(file, other)
    before = {entry.name: entry.read_bytes() for entry in home.iterdir()}
    line = [other if part == "OUT" else part for part in LINES[command]]
    line += [] if name == "OUT" else [f"--{name}", other]
    run(*command.split(), *line, code=2, says="output")
    assert {entry.name: entry.read_bytes() for entry in home.iterdir()} == before


def test_every_output_is_looked_at_before_any_work() -> None:
    named = {(name.rpartition(" ")[2], one.name) for name, command in commands() for one in command.params}
    known = {(command, name) for command, names in _WRITTEN.items() for name in names} | {
        ("theory", "output")
    }  # a folder
    assert {(command, name) for command, name in named if name in WRITTEN} <= known


def test_labels_in_a_file_of_their_own_are_not_written_over(home: Path, run: Run) -> None:
    logits, labels = some_logits(rows=60)
    np.save("z.npy", logits)
    np.save("y.npy", labels)
    os.link("y.npy", "link.html")
    read = ("--logits", "z.npy", "--labels", "y.npy")
    run("report", *read, "-m", "none", "-o", "link.html", code=2, says="expected an output other than the input")
    assert np.array_equal(np.load("y.npy"), labels)


HOME = Path(__file__).parent.parent / "fixtures" / "before-1.0"

BEFORE = json.loads((HOME / "commands.json").read_text())

SAID_OTHERWISE = {
    "keep_argmax=False": "keep=None",  # as the changelog says
    "8 of 13 candidates": "8 of 10 candidates",  # those that were tried
}


def keys_of(value: Any, path: str = "") -> set[str]:
    """Return the paths of all keys; the members of a list share one."""
    if isinstance(value, dict):
        found = {f"{path}/{name}" for name in value}
        return found | {one for name, inner in value.items() for one in keys_of(inner, f"{path}/{name}")}
    if isinstance(value, list):
        return {one for inner in value for one in keys_of(inner, f"{path}/*")}
    return set()


def empty_lists(value: Any, path: str = "") -> set[str]:
    """Return the paths of lists without members, such as the gains of a report whose errors are too few to test one."""
    inner = (
        value.items() if isinstance(value, dict) else (("*", one) for one in value) if isinstance(value, list) else ()
    )
    found = {one for name, member in inner for one in empty_lists(member, f"{path}/{name}")}
    return found | ({path} if value == [] else set())


def assert_same(found: Any, expected: Any, path: str = "") -> None:
    """Numbers are equal to 1e-6 and all else exactly; keys and rows may come in addition."""
    if isinstance(expected, dict):
        for name, value in expected.items():
            assert_same(found[name], value, f"{path}/{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), path
        for number, value in enumerate(expected):
            assert_same(found[number], value, f"{path}/{number}")
    elif isinstance(expected, float) and isinstance(found, float | int):
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-6), path
    elif isinstance(expected, str):
        for before, now in SAID_OTHERWISE.items():
            expected = expected.replace(before, now)
        assert found == expected, path
    else:
        assert found == expected, path


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "theory" else name for name in BEFORE]
)
def test_a_command_says_in_json_what_it_said(
    name: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, whole: None
) -> None:
    monkeypatch.chdir(tmp_path)
    before = BEFORE[name]
    for place in ("files", "calibrators", "study"):
        shutil.copytree(HOME / place, tmp_path / place)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    shutil.copy(HOME / "operate" / "watch.safetensors", scratch)
    done = run(*before["arguments"].format(tmp=scratch).split(), code=before["exit"])
    written = scratch / "report.json"
    shown = json.loads(written.read_text() if written.exists() else done.stdout)
    there, empty = keys_of(shown), tuple(f"{path}/" for path in empty_lists(shown))
    assert {key for key in set(before["keys"]) - there if not key.startswith(empty)} == set()
    if before["values"] is not None:
        assert_same(shown, before["values"])
