"""Small prediction files, and the command line run in this process."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.quick import few_candidates, pages_without_pictures
from typer.testing import CliRunner

import calibrant
from calibrant import Predictions
from calibrant.cli import main
from calibrant.operate import Monitor

Run = Callable[..., Any]


def some_logits(*, rows: int = 400, classes: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return over-confident logits (N, K) float32 and labels (N,): three times what the labels were drawn from."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(rows, classes)) * 1.5
    p = np.exp(true) / np.exp(true).sum(1, keepdims=True)
    labels = (p.cumsum(1) < rng.random((rows, 1))).sum(1).clip(0, classes - 1)
    return (3 * true).astype(np.float32), labels.astype(np.int64)


def save_rows(path: Path, *, rows: int, seed: int, sharp: float = 1.0, classes: int = 3, **more: Any) -> Path:
    """Write rows with labels, calibrated where ``sharp`` is 1, and other arrays beside them."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(rows, classes)) * 2
    labels = (true + rng.gumbel(size=true.shape)).argmax(1)
    np.savez(path, **{"logits": (true * sharp).astype(np.float32), "labels": labels, **more})
    return path


def write_good_files(place: Path) -> dict[str, Predictions]:
    """Write two files of two splits of 60 rows, a calibrator and a state; return the splits."""
    splits = {name: Predictions.from_logits(*some_logits(rows=60, seed=i)) for i, name in enumerate(("val", "test"))}
    for name in ("a.npz", "b.npz"):
        calibrant.save_predictions(place / name, splits)
    calibrant.calibrators.TemperatureScaling().fit(*some_logits(rows=120, seed=9)).save(place / "c.safetensors")
    Monitor(splits["val"]).save(place / "state.safetensors")
    return splits


@pytest.fixture(autouse=True)
def quickly(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fit few candidates and leave pictures out of pages, which take most of a command's time; ``whole`` keeps both."""
    if "whole" in request.fixturenames:
        return
    few_candidates(monkeypatch)
    pages_without_pictures(monkeypatch)


@pytest.fixture
def whole() -> None:
    """Keep all candidates and pictures in this test."""


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    """The arrays of a good file with the splits val and test."""
    (val, val_labels), (test, test_labels) = some_logits(seed=1), some_logits(seed=2)
    return {"val_logits": val, "val_labels": val_labels, "test_logits": test, "test_labels": test_labels}


@pytest.fixture
def good(tmp_path: Path, arrays: dict[str, np.ndarray]) -> Path:
    """A good file."""
    path = tmp_path / "good.npz"
    np.savez(path, **arrays)
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def in_one_sentence(done: Any) -> bool:
    """Say whether a call was refused by one sentence, behind notes on what was read."""
    *notes, error = [line for line in done.stderr.splitlines() if line]
    kinds = [line.partition(":")[0] for line in notes]
    return not done.stdout and {"note", "warning"} >= {*kinds} and error.startswith("error: ")


@pytest.fixture
def run(home: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command line in an empty working directory, the first words in one string; ``input`` is bytes for stdin.

    ``code`` is the exit code that is asked for, and ``says`` what a person must be told on stderr. A refusal is one
    sentence, behind notes on what was read.
    """
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*arguments: object, input: bytes | None = None, code: int | None = None, says: str = "") -> Any:
        words = [*shlex.split(str(arguments[0])), *map(str, arguments[1:])]
        done = CliRunner().invoke(main, words, input=input)
        if done.exit_code == 2:
            # trainings have a bar, and one study does not stop the others
            assert words[:2] == ["study", "run"] or in_one_sentence(done), done.output
        assert code in (None, done.exit_code), done.output
        assert " ".join(says.split()) in " ".join(done.stderr.split())
        return done

    return call


@pytest.fixture
def fitted(tmp_path: Path, good: Path) -> Path:
    """A temperature fitted on the good file."""
    path = tmp_path / "c.safetensors"
    calibrant.calibrators.TemperatureScaling().fit(calibrant.read(good, split="val")).save(path)
    return path
