"""Every calibrator on 60 random sets and six real ones: memory and a stream have one answer, processes and a local Ray its bits."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.scale.conftest import in_parts
from tests.scale.test_fit import MAKE, Tilt, agree, quietly, random_set
from torch import Tensor

from calibrant import Predictions
from calibrant._core import minimise
from calibrant.calibrators import Calibrator
from calibrant.scale import fit_streamed, processes, ray_cluster
from calibrant.scale.execute import Executor

METHODS: dict[str, Callable[[], Calibrator]] = MAKE | {"Tilt": Tilt}
EVERY = 20  # of so many random sets one goes through processes and Ray too, and of the real ones the first two: all take an hour
REAL = ["cifar10-resnet110", "emotion-qwen1.8b", "mmbench-monkey", "news20-crossval", "oodcv-monkey", "mnist-crossval"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("everywhere"),  # one pool and one Ray for all of them
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class Everywhere:
    """Computes every sum in this process, in another one and on Ray, and yields it if all three have the same bits.

    A fit on a stream sees its rows through these sums alone, so that each of the three would end in the same parameters.
    """

    def __init__(self, others: Sequence[Executor]) -> None:
        self.others, self.sums = others, 0

    def __call__(self, function: Callable[[Any], Any], shards: Sequence[Any], /) -> Iterator[Any]:
        elsewhere = [executor(function, shards) for executor in self.others]
        for found in zip(*elsewhere, map(function, shards), strict=True):
            self.sums += 1
            assert all(same_bits(one, found[-1]) for one in found[:-1])
            yield found[-1]


def same_bits(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return (
            one.dtype == other.dtype and one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()
        )
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if dataclasses.is_dataclass(one):
        return all(same_bits(getattr(one, key.name), getattr(other, key.name)) for key in dataclasses.fields(one))
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same_bits, one, other))
    if isinstance(one, dict):
        return same_bits(list(one.items()), list(other.items()))
    return bool(one == other)


@pytest.fixture(scope="module")
def others(ray: Any) -> Iterator[list[Executor]]:
    pool = processes(2)
    yield [pool, ray_cluster()]
    pool.close()


@pytest.fixture
def objectives(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The objectives at the ends of the L-BFGS fits, in order."""
    found: list[float] = []
    original = minimise.lbfgs

    def noted(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        found.append(result.value)
        return result

    monkeypatch.setattr(minimise, "lbfgs", noted)
    return found


def one_answer(name: str, folder: Path, data: Predictions, others: Sequence[Executor], objectives: list[float]) -> None:
    everywhere = Everywhere(others)
    streamed = quietly(lambda: fit_streamed(METHODS[name](), folder, executor=everywhere))
    assert everywhere.sums > 0
    on_stream = objectives[:]
    objectives.clear()
    memory = quietly(lambda: METHODS[name]().fit(data))
    agree(streamed, memory, data.logits, by_lbfgs=bool(objectives))
    assert on_stream == pytest.approx(objectives, abs=1e-9)
    objectives.clear()


@pytest.mark.parametrize("name", METHODS)
def test_sixty_random_sets(name: str, tmp_path: Path, others: list[Executor], objectives: list[float]) -> None:
    for seed in range(60):
        data = random_set(tmp_path / f"val{seed}", seed)
        one_answer(name, tmp_path / f"val{seed}", data, () if seed % EVERY else others, objectives)


@pytest.fixture(scope="module")
def real(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Predictions]]:
    """The first 1500 rows of six real sets, each as a folder of three files and in memory."""
    found = []
    for name in REAL:
        with np.load(data / "logits" / f"{name}.npz") as file:
            whole = Predictions.from_logits(file["val_logits"][:1500], file["val_labels"][:1500])
        found.append((in_parts(whole, tmp_path_factory.mktemp(name)), whole))
    return found


@pytest.mark.parametrize("name", METHODS)
def test_six_real_sets(
    name: str, real: list[tuple[Path, Predictions]], others: list[Executor], objectives: list[float]
) -> None:
    for i, (folder, whole) in enumerate(real):
        one_answer(name, folder, whole, others if i < 2 else (), objectives)
