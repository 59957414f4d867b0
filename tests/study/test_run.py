"""Running a study: what is finished stays, what is not goes on, what breaks says so; and the tables made from it."""

import importlib.util
import itertools
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from tests.conftest import needs
from tests.study.samples import FOLDS, write

from calibrant.errors import FileFormatError, FitError, InputError
from calibrant.metrics import ECE
from calibrant.statistics import null_band
from calibrant.study import Store, Study, collect, load_study
from calibrant.study.models import MLP
from calibrant.study.run import run_study, run_study_on_ray
from calibrant.study.tables import record_of, summarise, verdicts_on

pytestmark = needs("lightning")

ONCE = (
    FOLDS.replace("folds = 2, ", "").replace("epochs = 2", "epochs = 3, checkpoint_every = 1").replace("[0, 1]", "[0]")
)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return load_study(write(tmp_path_factory.mktemp("study"), FOLDS))


def run(study: Study, store: Store, **options: int) -> list[str]:
    return [
        f"{s.cell.objective} {s.cell.recipe.seed} {s.epoch}"
        for s in run_study(study, store, accelerator="cpu", **options)
    ]


@pytest.fixture(scope="module")
def twice(study: Study, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A study that was stopped after three trainings and run again: its store, what was there between, and the news since."""
    store = Store(tmp_path_factory.mktemp("store") / "runs")
    first = run_study(study, store, accelerator="cpu")
    while next(first).done < 3:  # CE is finished in both folds, Focal in one
        pass
    first.close()
    return SimpleNamespace(
        store=store,
        finished=[store.finished(cell.recipe) for cell in study.cells()],
        objectives=[m.objective for m in collect(study, store)],
        written={path: path.stat().st_mtime_ns for path in store.root.rglob("record.json")},
        news=list(run_study(study, store, accelerator="cpu")),
    )


def test_finished_runs_are_kept_and_the_rest_is_run(study: Study, twice: SimpleNamespace) -> None:
    store, recipe = twice.store, next(study.cells()).recipe
    assert twice.finished == [True] * 3 + [False] * 5
    assert twice.objectives == ["CE"]  # an objective without all its folds is left out of the table
    assert len(store.load(recipe).max_logits) == len(store.load(recipe).learned_epochs) == 40
    assert (twice.news[0].done, twice.news[-1].done, twice.news[-1].total) == (3, 8, 8)
    assert {path: path.stat().st_mtime_ns for path in twice.written} == twice.written
    assert run(study, store) == []
    assert not list(store.root.rglob("checkpoint.pt"))


@pytest.mark.parametrize("name", ["record.json", "predictions.npz", "learned.npz"])
def test_a_file_of_another_run_is_noticed(study: Study, twice: SimpleNamespace, tmp_path: Path, name: str) -> None:
    one, other = (cell.recipe for cell in itertools.islice(study.cells(), 2))
    store = Store(shutil.copytree(twice.store.root, tmp_path / "runs"))
    shutil.copy(store.folder(other) / name, store.folder(one) / name)
    with pytest.raises(FileFormatError, match=f"expected the {name} of this run, got .*it belongs to another recipe"):
        collect(study, store)


def test_every_row_is_tested_once_and_calibrated_by_its_own_fold(study: Study, twice: SimpleNamespace) -> None:
    store = twice.store
    measured = collect(study, store)
    assert [(m.objective, m.seed, len(m.before)) for m in measured] == [
        ("CE", 0, 1797), ("Focal", 0, 1797), ("CE", 1, 1797), ("Focal", 1, 1797)
    ]  # fmt: skip
    first = measured[0]
    size = len(store.load(next(study.cells()).recipe).test)
    for row, temperature in zip((0, size), first.temperatures, strict=True):
        scale = first.before.logits[row] / first.after("at_t").logits[row]
        assert torch.allclose(scale, torch.tensor(temperature).to(scale.dtype), rtol=1e-5)
    assert first.value("temperature") == pytest.approx(math.sqrt(math.prod(first.temperatures)))
    assert first.validation_uses == {"fit the temperature": 1}
    line = summarise(measured)[0]
    values = [ECE()(m.before) for m in measured if m.objective == "CE"]
    assert line.mean["ece"] == pytest.approx(sum(values) / 2)
    assert line.spread["ece"] == pytest.approx(abs(values[0] - values[1]) / math.sqrt(2))
    (found,) = record_of(study, measured[:1])["figures"]
    assert (found["objective"], found["seed"], found["n"]) == ("CE", 0, 1797)
    assert found["ece"] == pytest.approx(ECE()(first.before), abs=1e-6)
    assert found["ece_by_chance"] == pytest.approx(null_band(ECE(), first.after("at_t"), draws=100).high, abs=1e-6)
    assert verdicts_on(study, []) == []


def test_an_interrupted_save_does_not_count_as_finished(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "runs")

    with monkeypatch.context() as patch, pytest.raises(FileFormatError, match="No space left"):
        patch.setattr("calibrant.study.store.write_arrays", Mock(side_effect=FileFormatError("No space left")))
        run(study, store)
    cell = next(study.cells())
    assert not store.finished(cell.recipe)
    with pytest.raises(FileFormatError, match="expected a finished run"):
        store.load(cell.recipe)
    run(replace(study, seeds=(0,), objectives=study.objectives[:1]), store)
    assert store.finished(cell.recipe)
    assert [entry["epoch"] for entry in store.load(cell.recipe).trajectory] == [1, 2]


def test_one_training_that_does_not_fit_in_memory_is_a_sentence(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = MLP.forward

    def forward(self: MLP, x: torch.Tensor) -> torch.Tensor:
        if x.device.type == "meta":  # where shapes are checked
            return whole(self, x)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(MLP, "forward", forward)
    said = (
        "expected a training run with batch size 20 to fit in the memory of its device, .*run fewer workers at a time"
    )
    with pytest.raises(FitError, match=said):
        run(study, Store(tmp_path / "runs"))


def test_trainings_of_several_devices_are_not_started_inside_workers(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, FOLDS.replace("epochs = 2", "epochs = 2, devices = 2")))
    said = "expected devices = 1 with several workers or Ray, got 2; run it with one worker"
    with pytest.raises(InputError, match=said):
        next(run_study(study, Store(tmp_path / "runs"), workers=2))
    assert not (tmp_path / "runs").exists()


class Mortal(MLP):
    """A network that kills its process in the second epoch, once, when another training is finished."""

    def __init__(self, classes: int, inputs: int, marker: str, store: str) -> None:
        super().__init__(classes, inputs, hidden=(8,))
        self.marker, self.store, self.passes = Path(marker), Path(store), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += self.training
        if self.passes == 3 and not self.marker.exists():
            self.marker.touch()
            while self.store.exists() and not list(self.store.rglob("record.json")):
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


def mortal(folder: Path, module: str, *, store: str) -> tuple[Study, list[torch.Tensor]]:
    """Return a study one of whose trainings kills its process once, and the test logits that it gives undisturbed."""
    studies = []
    for marker in ("killed", "calm"):  # the second study's marker is there already: nothing dies
        model = f'{{ type = "{module}:Mortal", marker = "{folder / marker}", store = "{folder / store}" }}'
        studies.append(load_study(write(folder, ONCE.replace('{ type = "MLP", hidden = [8] }', model))))
    (folder / "calm").touch()
    alone = Store(folder / "alone")
    run(studies[1], alone)
    return studies[0], [alone.load(cell.recipe).test.logits for cell in studies[1].cells()]


@pytest.mark.slow
def test_a_study_that_loses_a_process_goes_on_when_it_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    study, expected = mortal(tmp_path, "test_run", store="together")
    together = Store(tmp_path / "together")
    with pytest.raises(FitError, match="expected 2 training runs at a time to finish, got a process that died"):
        list(run_study(study, together, workers=2, accelerator="cpu"))
    assert (tmp_path / "killed").exists()
    assert sum(together.finished(cell.recipe) for cell in study.cells()) == 1
    (*epochs, last) = run_study(study, together, workers=2, accelerator="cpu")
    assert (last.done, last.total, last.epoch) == (2, 2, 3)
    assert all(step.epoch < 3 and step.done == 1 for step in epochs)
    for cell, logits in zip(study.cells(), expected, strict=True):
        assert torch.equal(together.load(cell.recipe).test.logits, logits)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="optional package 'ray' is not installed")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")  # Ray's own
def test_ray_gives_what_one_process_gives_though_a_worker_is_killed(tmp_path: Path) -> None:
    import ray

    root = Path(__file__).parents[2]
    study, expected = mortal(tmp_path, "tests.study.test_run", store="none")
    cluster = Store(tmp_path / "cluster")
    ray.shutdown()  # of what an earlier test of this process started
    # workers import what this process can
    paths = {"env_vars": {"PYTHONPATH": os.pathsep.join(map(str, (root / "src", root)))}}
    quiet = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
    ray.init(num_cpus=2, _node_ip_address="127.0.0.1", runtime_env=paths, **quiet)
    try:
        news = list(run_study_on_ray(study, cluster, accelerator="cpu"))
        assert [(step.done, step.total) for step in news] == [(1, 2), (2, 2)]
        assert (tmp_path / "killed").exists()
        for cell, logits in zip(study.cells(), expected, strict=True):
            found = cluster.load(cell.recipe)
            assert torch.equal(found.test.logits, logits)
            assert [entry["epoch"] for entry in found.trajectory] == [1, 2, 3]
        assert list(run_study_on_ray(study, cluster, accelerator="cpu")) == []
    finally:
        ray.shutdown()


def command(path: Path, store: Path) -> list[str]:
    return [sys.executable, "-m", "calibrant", "study", "run", str(path), "--accelerator", "cpu", "--store", str(store)]


@pytest.mark.slow
def test_a_study_killed_in_the_middle_of_a_run_ends_with_the_same_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, ONCE.replace("epochs = 3", "epochs = 15"))
    whole, killed = Store(tmp_path / "whole"), Store(tmp_path / "killed")
    process = subprocess.Popen(command(path, killed.root), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(killed.root.rglob("checkpoint.pt")):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not list(killed.root.rglob("record.json"))
    study = load_study(path)
    for store in (whole, killed):
        run(study, store)
    for cell in study.cells():
        first, second = whole.load(cell.recipe), killed.load(cell.recipe)
        assert torch.equal(first.test.logits, second.test.logits)
        assert first.trajectory == second.trajectory


@pytest.mark.slow
def test_two_processes_that_share_each_batch_train_as_one_does(tmp_path: Path) -> None:
    # of 63 rows the last batch is not shared evenly
    text = ONCE.replace("train = 40", "train = 63").replace('"t"', '"A small study"')
    text += 'training = { reduction = "sum", clip = 2.0 }\n'
    one, two = Store(tmp_path / "one"), Store(tmp_path / "two")
    run(load_study(write(tmp_path, text)), one)
    path = write(tmp_path, text.replace("epochs = 3", "epochs = 3, devices = 2"))
    done = subprocess.run(command(path, two.root), capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("A small study") == 1  # the second process says nothing
    assert not list(two.root.rglob("checkpoint.pt"))
    for cell in load_study(path).cells():
        shared = two.load(cell.recipe).test
        alone = one.load(replace(cell.recipe, training=replace(cell.recipe.training, devices=1))).test
        assert torch.allclose(alone.logits, shared.logits, atol=1e-5)  # float32 sums in another order
        assert not torch.allclose(alone.logits, torch.zeros(()), atol=1e-2)
        assert torch.equal(alone.labels, shared.labels)
