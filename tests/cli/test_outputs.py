"""No output destroys what its command reads: every output of every command against every file that stands beside it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from tests.cli.conftest import Run, some_logits

import calibrant
from calibrant import Predictions
from calibrant.cli import main
from calibrant.operate import Monitor, sample
from calibrant.operate.audit.table import write_table
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
    "convert": ".npz",
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
    "convert": ["a.npz", "OUT"],
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


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of every kind that a command reads, in the working directory."""
    monkeypatch.chdir(tmp_path)
    splits = {name: Predictions.from_logits(*some_logits(rows=60, seed=i)) for i, name in enumerate(("val", "test"))}
    for name in ("a.npz", "b.npz"):
        calibrant.save_predictions(tmp_path / name, splits)
    fresh = Predictions.from_logits(*some_logits(rows=120, seed=9))
    calibrant.calibrators.TemperatureScaling().fit(fresh.logits, fresh.labels).save(tmp_path / "c.safetensors")
    for name in ("state.safetensors", "other.safetensors"):
        Monitor(splits["val"]).save(tmp_path / name)
    drawn = sample(splits["test"], 20)
    drawn.save(tmp_path / "labelled.sample.json")
    write_table(tmp_path / "labelled.csv", drawn, {})
    (tmp_path / "names.txt").write_text("a\nb\nc\nd\n")
    (tmp_path / "policy.toml").write_text("[maximum]\nece = 0.9\n[no_worse]\nnll = 0.5\n")
    write_template(tmp_path / "mine.toml")
    return tmp_path


@pytest.mark.parametrize(("command", "name", "file"), list(trials()))
@pytest.mark.parametrize("link", ["hard", "soft"])
def test_an_output_that_is_a_link_to_what_is_read_is_refused(
    command: str, name: str, file: str, link: str, home: Path, run: Run
) -> None:
    suffix = WRITTEN.get(name) or SUFFIX[command]
    other = Path(f"link{suffix}")
    (os.link if link == "hard" else os.symlink)(file, other)  # another name, with a suffix that the output may have
    before = {entry.name: entry.read_bytes() for entry in home.iterdir()}
    line = [str(other) if part == "OUT" else part for part in LINES[command]]
    line += [] if name == "OUT" else [f"--{name}", str(other)]
    done = run(*command.split(), *line, code=2)
    assert done.stderr.count("\n") == 1, done.stderr
    assert "output" in done.stderr, done.stderr
    assert {entry.name: entry.read_bytes() for entry in home.iterdir()} == before


def test_labels_in_a_file_of_their_own_are_not_written_over(home: Path, run: Run) -> None:
    logits, labels = some_logits(rows=60)
    np.save("z.npy", logits)
    np.save("y.npy", labels)
    os.link("y.npy", "link.html")
    done = run("report", "--logits", "z.npy", "--labels", "y.npy", "-m", "none", "-o", "link.html")
    assert done.exit_code == 2
    assert "expected an output other than the input" in done.stderr
    assert np.array_equal(np.load("y.npy"), labels)
