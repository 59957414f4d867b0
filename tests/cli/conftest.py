"""Small prediction files, and the command line run in this process."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tests.makers import few_candidates, pages_without_pictures

import calibrant
from calibrant.cli import main

Run = Callable[..., Any]


def some_logits(*, rows: int = 400, classes: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return over-confident logits (N, K) float32 and labels (N,): three times what the labels were drawn from."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(rows, classes)) * 1.5
    p = np.exp(true) / np.exp(true).sum(1, keepdims=True)
    labels = (p.cumsum(1) < rng.random((rows, 1))).sum(1).clip(0, classes - 1)
    return (3 * true).astype(np.float32), labels.astype(np.int64)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fit few candidates and leave pictures out of pages, which take most of a command's time."""
    few_candidates(monkeypatch)
    pages_without_pictures(monkeypatch)


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    """The arrays of a good file with the splits val and test."""
    (val, val_labels), (test, test_labels) = some_logits(seed=1), some_logits(seed=2)
    return {"val_logits": val, "val_labels": val_labels, "test_logits": test, "test_labels": test_labels}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def good(home: Path, arrays: dict[str, np.ndarray]) -> Path:
    """A good file."""
    np.savez("good.npz", **arrays)
    return Path("good.npz")


@pytest.fixture
def fitted(good: Path) -> Path:
    """A temperature fitted on the good file."""
    calibrant.calibrators.TemperatureScaling().fit(calibrant.read(good, split="val")).save("c.safetensors")
    return Path("c.safetensors")


@pytest.fixture
def run(home: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command line in an empty working directory, the first words in one string; ``input`` is bytes for stdin.

    ``code`` is the exit code that is asked for, and ``says`` what a person must be told on stderr. A refusal is one sentence,
    behind notes on what was read. With ``--json`` the printed object is returned.
    """
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*arguments: object, input: bytes | None = None, code: int = 0, says: str = "") -> Any:
        words = [*shlex.split(str(arguments[0])), *map(str, arguments[1:])]
        done = CliRunner().invoke(main, words, input=input)
        assert code == done.exit_code, done.output
        assert " ".join(says.split()) in " ".join(done.stderr.split())
        if code == 2:
            *notes, error = done.stderr.splitlines()
            assert not done.stdout
            assert error.startswith("error: ")
            # trainings have a bar
            assert words[0] == "study" or all(note.startswith(("note: ", "warning: ")) for note in notes)
        return json.loads(done.stdout) if "--json" in words and code != 2 else done

    return call
