"""Files that options name beside the data: whatever lies there, a command refuses it in one sentence and never waits."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from tests.cli.conftest import Run, some_logits, write_good_files

from calibrant.cli import main

GROUP = typer.main.get_command(main)

# Parameters that name a file to read, and the suffix that a right one has.
READ = {
    "baseline": ".npz",
    "calibrator": ".safetensors",
    "labels": ".npy",
    "reference": ".npz",
}
# What each command needs beside the option, FILE being a good file.
BASES = {
    "evaluate": ["FILE"],
    "fit": ["FILE", "-o", "new.safetensors"],
    "apply": ["c.safetensors", "FILE", "-o", "new.npz"],
    "report": ["FILE", "-o", "new.html"],
    "check": ["FILE", "--max", "ece=.2"],
    "compare": ["FILE", "b.npz"],
    "watch": ["state.safetensors", "FILE"],
}


def _fifo(place: Path) -> None:
    os.mkfifo(place)


def _loop(place: Path) -> None:
    place.symlink_to(place.name)


KINDS: dict[str, Callable[[Path], Any]] = {
    "missing": lambda place: None,
    "pipe": _fifo,
    "folder": lambda place: place.mkdir(),
    "device": lambda place: place.symlink_to("/dev/zero"),
    "dangling link": lambda place: place.symlink_to("nowhere"),
    "link to itself": _loop,
    "garbage": lambda place: place.write_bytes(b"\xff\xfe\x00garbage\x93" * 9),
    "empty": lambda place: place.write_bytes(b""),
    "huge number": lambda place: place.write_text("[maximum]\nece = " + "9" * 5000),
    "nested": lambda place: place.write_text("x = " + "[" * 100_000),
}


def options() -> Iterator[tuple[str, str]]:
    """Yield (command, parameter) of every option that names a file to read."""
    for command, base in BASES.items():
        assert base
        for parameter in GROUP.commands[command].params:
            if parameter.param_type_name == "option" and parameter.name in READ:
                yield command, parameter.name


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good file, a second one, a calibrator and a state."""
    place = tmp_path_factory.mktemp("beside")
    write_good_files(place)
    np.save(place / "z.npy", some_logits(rows=60)[0])
    return place


class Waited(BaseException):
    """The command waited for a file; no OSError, since commands turn that into a sentence."""


def _stop(*_: object) -> None:
    raise Waited


def refused(run: Run, command: str, arguments: list[str]) -> None:
    """Assert that the command refuses in one sentence, within seconds."""
    before = signal.signal(signal.SIGALRM, _stop)
    signal.alarm(20)
    try:
        done = run(command, *arguments)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert done.exit_code == 2, (command, arguments, done.output, done.exception)
    assert done.stderr.startswith("error: ") or "Usage" in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(("command", "name"), list(options()))
def test_what_lies_at_a_file_beside_the_data_is_refused_in_one_sentence(
    command: str,
    name: str,
    home: Path,
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(home)
    there = {entry.name: entry.stat().st_size for entry in home.iterdir()}
    [parameter] = [p for p in GROUP.commands[command].params if p.name == name]
    flag = max(parameter.opts, key=len)
    for number, kind in enumerate(("pipe", "huge number")):
        place = tmp_path / f"{number}{READ[name]}"
        KINDS[kind](place)
        file = "z.npy" if name == "labels" else "a.npz"
        base = [file if argument == "FILE" else argument for argument in BASES[command]]
        extra = ["--kind", "logits"] if name == "labels" else []
        refused(run, command, [argument for argument in base if argument] + extra + [flag, str(place)])
    assert {entry.name: entry.stat().st_size for entry in home.iterdir()} == there


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", ["study run", "study show"])
def test_a_study_that_is_no_file_is_refused_in_one_sentence(
    command: str, kind: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    KINDS[kind](tmp_path / "mine.toml")
    words = command.split()
    refused(run, words[0], [*words[1:], "mine.toml"])
    assert [entry.name for entry in tmp_path.iterdir()] == [] if kind == "missing" else ["mine.toml"]
