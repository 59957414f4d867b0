"""``calibrant watch``: quiet, alarm, error; restarts, delayed labels and a new calibrator."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.conftest import Run, save_rows

from calibrant import load, load_predictions
from calibrant.calibrators import TemperatureScaling
from calibrant.operate import Monitor


def save(path: Path, *, rows: int, seed: int, **more: Any) -> Path:
    return save_rows(path, rows=rows, seed=seed, request=np.arange(rows) + 10_000 * seed, **more)


@pytest.fixture
def state(tmp_path: Path, run: Run) -> Path:
    path = tmp_path / "state.safetensors"
    reference = save(tmp_path / "reference.npz", rows=1500, seed=1)
    done = run("watch", path, "--reference", reference)
    assert (done.exit_code, done.stdout.split(":")[0]) == (0, "quiet"), done.output
    return path


@pytest.fixture
def fitted_three(tmp_path: Path) -> Path:
    with np.load(save(tmp_path / "fit.npz", rows=1000, seed=77)) as file:
        arrays = dict(file)
    path = tmp_path / "c.safetensors"
    TemperatureScaling().fit(torch.from_numpy(arrays["logits"]), torch.from_numpy(arrays["labels"])).save(path)
    return path


@pytest.mark.slow
def test_quiet_then_alarm_then_a_new_calibrator(state: Path, tmp_path: Path, run: Run) -> None:
    good, bad = save(tmp_path / "good.npz", rows=500, seed=2), save(tmp_path / "bad.npz", rows=800, seed=3, sharp=2.5)
    out = tmp_path / "new.safetensors"
    done = run("watch", state, good, "--time", "2026-01-01", "--refit", out)
    assert (done.exit_code, out.exists()) == (0, False)
    assert "no alarm, so nothing was fitted" in done.stdout
    outputs = ["--prometheus", tmp_path / "m.prom", "--html", tmp_path / "m.html"]
    done = run("watch", state, bad, "--time", "2026-01-02", "--refit", out, "--json", *outputs, code=1)
    shown = json.loads(done.stdout)
    assert (shown["verdict"], shown["direction"], shown["rows"]) == ("alarm", "overconfident", 1300)
    assert 'calibrant_alarm{model="state"} 1' in (tmp_path / "m.prom").read_text()
    assert "<svg" in (tmp_path / "m.html").read_text()
    run("evaluate", bad, "-c", out, "--draws", "0", code=0)


def test_labels_of_probability_0_are_watched_without_a_warning(tmp_path: Path, run: Run) -> None:
    paths = []
    for seed in (6, 7):
        with np.load(save(tmp_path / f"{seed}.npz", rows=400, seed=seed)) as file:
            good = dict(file)
        probs = np.exp(good["logits"].astype(float))
        probs[np.arange(40), good["labels"][:40]] = 0
        paths.append(tmp_path / f"zero{seed}.npz")
        np.savez(paths[-1], probs=probs / probs.sum(axis=1, keepdims=True), labels=good["labels"])
    done = run("watch", tmp_path / "zero.safetensors", paths[0], "--reference", paths[1], "--json")
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    assert json.loads(done.stdout)["rows"] == 400


def test_costs_are_watched_and_stay_with_the_state(tmp_path: Path, run: Run) -> None:
    costs, state = tmp_path / "costs.csv", tmp_path / "costs.safetensors"
    costs.write_text("a,b\n0,9\n1,0\n1,9\n")
    done = run("watch", state, "--reference", save(tmp_path / "r.npz", rows=600, seed=1), "--costs", costs)
    assert (done.exit_code, done.stdout.split(":")[0]) == (0, "quiet"), done.output
    new = save(tmp_path / "n.npz", rows=300, seed=2, sharp=4.0)
    assert json.loads(run("watch", state, new, "--json").stdout)["cost_gap"] > 0
    run("watch", state, save(tmp_path / "o.npz", rows=100, seed=3), "--costs", costs, code=2, says="--costs")
    assert Monitor.load(state).status.rows == 300


def test_late_labels_are_merged_and_rows_counted_once(state: Path, tmp_path: Path, run: Run) -> None:
    other, new = tmp_path / "other.safetensors", save(tmp_path / "new.npz", rows=200, seed=5)
    run("watch", other, new, "--reference", tmp_path / "reference.npz", "--ids", "request", code=0)
    assert json.loads(run("watch", state, "--merge", other, "--json").stdout)["rows"] == 200
    before = state.read_bytes()
    for arguments in (["--merge", other], [new, "--ids", "request"]):
        run("watch", state, *arguments, code=2)
    assert state.read_bytes() == before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: ["watch", path / "none.safetensors"], "start it with --reference FILE"),
        (lambda path: ["watch", path / "reference.npz"], "expected a monitor's state"),
        (
            lambda path: ["watch", path / "state.safetensors", path / "four.npz"],
            "K = 3 classes as in the reference, got K = 4",
        ),
        (lambda path: ["watch", path / "state.safetensors", "--reference", path / "three.npz"], "got another"),
        (lambda path: ["watch", path / "state.safetensors", path / "three.npz", "--ids", "name"], "the column 'name'"),
        (lambda path: ["watch", path / "state.safetensors", path / "three.npz", "--time", "noon"], "got 'noon'"),
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


def test_groups_of_a_column_are_watched_and_stay_with_the_state(tmp_path: Path, run: Run, fitted_three: Path) -> None:
    def grouped(name: str, *, rows: int, seed: int, worse: bool) -> Path:
        path = save(tmp_path / name, rows=rows, seed=seed)
        with np.load(path) as file:
            arrays = dict(file)
        region = np.random.default_rng(seed).integers(0, 2, rows)
        arrays["logits"][(region == 1) & worse] *= 3
        np.savez(path, **arrays, region=np.where(region == 1, "south", "north"))
        return path

    state = tmp_path / "groups.safetensors"
    reference = grouped("ref.npz", rows=1500, seed=1, worse=False)
    start = ["--reference", reference, "-c", fitted_three]
    run("watch", state, *start, "--by", "region", code=0)
    done = run("watch", state, grouped("bad.npz", rows=900, seed=2, worse=True), "-c", fitted_three, "--json", code=1)
    assert json.loads(done.stdout)["groups"][0] == "region = south (overconfident)"
    run("watch", state, *start, code=1)
    before = state.read_bytes()
    for arguments, message in (
        ([*start, "--by", "request"], "expected --by as"),
        ([save(tmp_path / "bare.npz", rows=60, seed=9)], "the feature 'region'"),
        (["--by", "region"], "got --by for a call without --reference"),
    ):
        run("watch", state, *arguments, code=2, says=message)
    assert state.read_bytes() == before


def test_rows_of_the_fit_start_a_state_out_of_fold(tmp_path: Path, run: Run, fitted_three: Path) -> None:
    state, fit = tmp_path / "fit.safetensors", tmp_path / "fit.npz"
    start = ["watch", state, "--reference", fit, "-c", fitted_three]
    for _ in range(2):  # the second time the state has this reference
        done = run(*start)
        assert (done.exit_code, done.stderr) == (0, ""), done.output
    rows = load_predictions(fit)
    assert Monitor.load(state).watches(Monitor.from_fit(load(fitted_three), rows))  # type: ignore[arg-type]
    assert not Monitor.load(state).watches(rows)
    for seed, sharp, code in ((5, 1.0, 0), (6, 3.0, 1)):
        new = save(tmp_path / f"{seed}.npz", rows=600, seed=seed, sharp=sharp)
        assert run("watch", state, new, "-c", fitted_three, code=code).stdout.startswith(("quiet:", "alarm:")[code])


@pytest.mark.slow
def test_writers_at_once_lose_no_batch_and_readers_see_whole_states(tmp_path: Path, state: Path) -> None:
    watch = [sys.executable, "-m", "calibrant", "watch", str(state), "--ids", "request"]
    files = [save(tmp_path / f"{seed}.npz", rows=20, seed=seed) for seed in range(2, 8)]
    writers = [subprocess.Popen([*watch, str(file)], stdout=subprocess.DEVNULL) for file in files]
    while any(writer.poll() is None for writer in writers):
        assert (Monitor.load(state).status.rows or 0) % 20 == 0
    assert all(writer.returncode in (0, 1) for writer in writers)
    assert Monitor.load(state).status.rows == 120
