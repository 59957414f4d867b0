"""``calibrant watch``: quiet, alarm, error, and restarts."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.conftest import Run, save_rows

from calibrant import load, read
from calibrant.calibrators import TemperatureScaling
from calibrant.operate import Monitor


def save(path: Path, *, rows: int, seed: int, **more: Any) -> Path:
    return save_rows(path, rows=rows, seed=seed, **more)


@pytest.fixture
def state(tmp_path: Path, run: Run) -> Path:
    path = tmp_path / "state.safetensors"
    reference = save(tmp_path / "reference.npz", rows=1500, seed=1)
    done = run("watch", path, "--reference", reference)
    assert (done.exit_code, done.stdout.split(":")[0]) == (0, "quiet"), done.output
    return path


def test_quiet_then_alarm(state: Path, tmp_path: Path, run: Run) -> None:
    good, bad = save(tmp_path / "good.npz", rows=500, seed=2), save(tmp_path / "bad.npz", rows=800, seed=3, sharp=2.5)
    run("watch", state, good, code=0)
    shown = json.loads(run("watch", state, bad, "--json", code=1).stdout)
    assert (shown["verdict"], shown["direction"], shown["rows"]) == ("alarm", "overconfident", 1300)
    assert 400 <= shown["since"] <= 600
    assert run("watch", state, code=1).stdout.startswith("alarm: overconfident since label ")
    before = state.read_bytes()
    run("watch", state, bad, code=2, says="this batch was added to the state before")
    assert state.read_bytes() == before


@pytest.fixture
def fitted_three(tmp_path: Path) -> Path:
    with np.load(save(tmp_path / "fit.npz", rows=1000, seed=77)) as file:
        arrays = dict(file)
    path = tmp_path / "c.safetensors"
    TemperatureScaling().fit(torch.from_numpy(arrays["logits"]), torch.from_numpy(arrays["labels"])).save(path)
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: ["watch", path / "none.safetensors"], "start it with --reference FILE"),
        (lambda path: ["watch", path / "reference.npz"], "not the state of a monitor"),
        (
            lambda path: ["watch", path / "state.safetensors", "--reference", path / "three.npz"],
            "from another reference",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_the_state_as_before(
    state: Path, tmp_path: Path, run: Run, make: Any, message: str
) -> None:
    save(tmp_path / "three.npz", rows=60, seed=8)
    save(tmp_path / "four.npz", rows=60, seed=8, classes=4)
    before = state.read_bytes()
    run(*make(tmp_path), code=2, says=message)
    assert state.read_bytes() == before


def test_rows_of_the_fit_start_a_state_out_of_fold(tmp_path: Path, run: Run, fitted_three: Path) -> None:
    state, fit = tmp_path / "fit.safetensors", tmp_path / "fit.npz"
    start = ["watch", state, "--reference", fit, "-c", fitted_three]
    for _ in range(2):  # the second time the state has this reference
        done = run(*start)
        assert (done.exit_code, done.stderr) == (0, ""), done.output
    rows = read(fit, split="test")
    assert Monitor.load(state).watches(Monitor.from_fit(load(fitted_three), rows))
    assert not Monitor.load(state).watches(Monitor(rows))
    for seed, sharp, code in ((5, 1.0, 0), (6, 3.0, 1)):
        new = save(tmp_path / f"{seed}.npz", rows=600, seed=seed, sharp=sharp)
        assert run("watch", state, new, "-c", fitted_three, code=code).stdout.startswith(("quiet:", "alarm:")[code])


@pytest.mark.slow
def test_writers_at_once_lose_no_batch_also_through_a_link_and_readers_see_whole_states(
    tmp_path: Path, state: Path
) -> None:
    (tmp_path / "other").mkdir()
    link = tmp_path / "other" / "link.safetensors"
    link.symlink_to(state)
    files = [save(tmp_path / f"{seed}.npz", rows=20, seed=seed) for seed in range(2, 6)]
    watch = [sys.executable, "-m", "calibrant", "watch"]
    writers = [
        subprocess.Popen([*watch, str((state, link)[at % 2]), str(file)], stdout=subprocess.DEVNULL)
        for at, file in enumerate(files)
    ]
    while any(writer.poll() is None for writer in writers):
        assert (Monitor.load(state).status.rows or 0) % 20 == 0
    assert all(writer.returncode in (0, 1) for writer in writers)
    assert Monitor.load(state).status.rows == 80
