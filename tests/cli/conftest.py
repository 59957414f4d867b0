"""Small prediction files, and the command line run in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from calibrant.cli import main

Run = Callable[..., Any]


def some_logits(*, rows: int = 400, classes: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return over-confident logits (N, K) float32 and labels (N,): three times what the labels were drawn from."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(rows, classes)) * 1.5
    p = np.exp(true) / np.exp(true).sum(1, keepdims=True)
    labels = (p.cumsum(1) < rng.random((rows, 1))).sum(1).clip(0, classes - 1)
    return (3 * true).astype(np.float32), labels.astype(np.int64)


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
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command line with arguments; ``input`` is bytes for stdin."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*arguments: object, input: bytes | None = None) -> Any:
        return CliRunner().invoke(main, [str(argument) for argument in arguments], input=input)

    return call


@pytest.fixture
def fitted(tmp_path: Path, good: Path, run: Run) -> Path:
    """A temperature fitted on the good file."""
    path = tmp_path / "c.safetensors"
    done = run("fit", good, "--method", "TemperatureScaling", "-o", path)
    assert done.exit_code == 0, done.output
    return path
