"""Several processes and a Ray cluster give the bits of one process; a killed worker costs a retry, not an answer."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.scale.test_stream import write

import calibrant
from calibrant import Predictions
from calibrant.calibrators import EnsembleTemperatureScaling, TemperatureScaling
from calibrant.errors import InputError, WorkerError
from calibrant.report import diagnose_streamed, write_report
from calibrant.scale import (
    apply_streamed,
    evaluate_streamed,
    fit_streamed,
    processes,
    ray_cluster,
)
from calibrant.scale.execute import Executor, in_turn
from calibrant.scale.rows import ParquetRows, Shard

pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}Warning") for kind in ("Future", "Resource")]  # Ray's own


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 3000)
    logits = (2 * rng.normal(size=(3000, 5)) + 3 * np.eye(5)[labels]).astype(np.float32)
    write(tmp_path / "a.parquet", logits, labels, group=250)
    return tmp_path / "a.parquet"


def die_once(shard: Shard, *, marker: str) -> int:
    """Kill the own process the first time the third shard is seen."""
    if shard.row_group == 2 and not os.path.exists(marker):
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return shard.row_group


def die_always(shard: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return shard


class Deadly:
    """Runs shards on ``inner``; while fewer than ``times`` did so, the process that sees the third shard kills itself.

    Args:
        inner: An executor of processes that are not this one.
        marks: A folder that counts the deaths.
        times: How many die.
    """

    def __init__(self, inner: Executor, marks: Path, times: int) -> None:
        self.inner, self.marks, self.times = inner, str(marks), times
        marks.mkdir()

    def __call__(self, function: Callable[[Any], Any], shards: Sequence[Any], /) -> Iterator[Any]:
        return self.inner(partial(deadly, function=function, marks=self.marks, times=self.times), shards)


def deadly(shard: Shard, *, function: Callable[[Any], Any], marks: str, times: int) -> Any:
    dead = len(os.listdir(marks))
    if shard.row_group == 2 and dead < times:
        Path(marks, str(dead)).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return function(shard)


def many_tensors(shard: int) -> list[torch.Tensor]:
    return [torch.tensor([shard, i]) for i in range(200)]


def complain(shard: Shard) -> int:
    raise InputError(f"expected something else, got {shard.name}; mend it")


def test_a_streamed_fit_is_the_in_memory_fit(table: Path) -> None:
    data = calibrant.load_predictions(table)
    assert isinstance(data, Predictions)
    expected = TemperatureScaling().fit(data.logits, data.need_labels())
    passes: list[int] = []
    streamed = fit_streamed(
        TemperatureScaling(), table, progress=lambda begun, done, total: passes.append(begun) if done == total else None
    )
    assert streamed.temperature == pytest.approx(expected.temperature, rel=1e-6)
    assert abs(streamed.gradient) < 1e-6
    assert passes == list(range(1, len(passes) + 1))
    assert len(passes) < 15
    near = fit_streamed(TemperatureScaling().fit(data[:50]), table)
    assert near.temperature == pytest.approx(expected.temperature, rel=1e-6)
    assert near.fitted


@pytest.mark.slow
def test_several_processes_give_the_same_bits(table: Path) -> None:
    assert evaluate_streamed(table, executor=processes(2)) == evaluate_streamed(table)
    crew = processes(1)
    assert list(crew(abs, [-1])) == [1]
    with pytest.raises(WorkerError, match="got one that was killed; check memory"):
        list(crew(die_always, [0]))
    assert list(crew(abs, [-1])) == [1]  # a new process has come
    with pytest.raises(
        InputError, match=r"worker processes can import, got another .*<lambda>.*; move the function to the top"
    ):
        list(crew(lambda shard: shard, [0]))
    assert list(crew(abs, [-1])) == [1]
    with pytest.raises(TypeError, match="bad operand"):  # the function's own error
        list(crew(abs, ["a"]))
    crew.close()
    with pytest.raises(InputError, match="workers as an integer ≥ 1"):
        processes(0)


@pytest.mark.slow
def test_processes_that_cannot_import_the_script_are_explained() -> None:
    script = """
from calibrant.scale import processes

def double(number):
    return 2 * number

list(processes(1)(double, [1]))
"""
    done = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, timeout=120, check=False)
    assert "WorkerError: expected worker processes to start" in done.stderr
    assert "in a file that can be imported" in done.stderr


@pytest.mark.slow
def test_tensors_from_processes_hold_no_files_open() -> None:
    crew = processes(1)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        held = list(crew(many_tensors, range(3)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert [part[-1].tolist() for part in held] == [[0, 199], [1, 199], [2, 199]]
    crew.close()


@pytest.mark.slow
def test_a_ray_cluster_gives_the_same_bits_survives_a_killed_worker_and_reports_errors(
    ray: Any, table: Path, tmp_path: Path
) -> None:
    ray.cloudpickle.register_pickle_by_value(__import__(__name__))
    on_ray = ray_cluster()
    assert evaluate_streamed(table, executor=on_ray) == evaluate_streamed(table, executor=in_turn)
    assert (
        fit_streamed(TemperatureScaling(), table, executor=on_ray).temperature
        == fit_streamed(TemperatureScaling(), table).temperature
    )
    scaling, out = fit_streamed(TemperatureScaling(), table), {}
    classes = ParquetRows(table).classes
    z = torch.randn(200, classes, generator=torch.Generator().manual_seed(5))
    elsewhere = TemperatureScaling().fit(3 * z, torch.arange(200) % classes)
    for name, executor in (("ray", on_ray), ("turn", in_turn)):
        assert apply_streamed(scaling, table, tmp_path / name, executor=executor) == 1
        section = diagnose_streamed(table, calibrator=elsewhere, draws=50, executor=executor)
        fitted = fit_streamed(EnsembleTemperatureScaling(), table, executor=executor)
        page = write_report([section], tmp_path / "r.html").read_bytes()
        out[name] = ((tmp_path / name / "a.parquet").read_bytes(), page, fitted.weights.tolist())
    assert out["ray"] == out["turn"]
    shards = ParquetRows(table).shards
    marker = str(tmp_path / "killed")
    assert list(on_ray(lambda shard: die_once(shard, marker=marker), shards)) == list(range(12))
    assert os.path.exists(marker)
    with pytest.raises(InputError, match=r"got a\.parquet#0; mend it"):
        list(on_ray(complain, shards))


@pytest.mark.slow
def test_a_fit_on_ray_outlives_a_killed_worker_and_goes_on_after_four_deaths_of_a_shard(
    ray: Any, table: Path, tmp_path: Path
) -> None:
    ray.cloudpickle.register_pickle_by_value(__import__(__name__))
    expected = fit_streamed(TemperatureScaling(), table).temperature
    once = Deadly(ray_cluster(), tmp_path / "once", times=1)
    assert fit_streamed(TemperatureScaling(), table, executor=once).temperature == expected
    assert os.listdir(tmp_path / "once") == ["0"]
    journal = tmp_path / "fit.json"
    always = Deadly(ray_cluster(), tmp_path / "always", times=4)
    with pytest.raises(WorkerError, match="one that died 4 times on the same rows; check memory, and run it again"):
        fit_streamed(TemperatureScaling(), table, executor=always, checkpoint=journal)
    begun: list[int] = []
    fitted = fit_streamed(
        TemperatureScaling(),
        table,
        executor=ray_cluster(),
        checkpoint=journal,
        progress=lambda passes, done, total: begun.append(done),
    )
    assert begun[0] == 500  # the two shards before the deadly one are not read again
    assert fitted.temperature == expected
    assert not journal.exists()
