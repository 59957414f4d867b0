"""Two ranks of ``torch.distributed`` that hold rows: both end in the same bits, which are the parameters of memory."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from tests.scale.test_fit import MAKE, Tilt, agree, learned, quietly, random_set
from torch import Tensor, distributed

from calibrant import Predictions
from calibrant.calibrators import Calibrator, TemperatureScaling
from calibrant.errors import InputError, WorkerError
from calibrant.rows import DistributedRows, MemoryRows

METHODS: dict[str, Callable[[], Calibrator]] = MAKE | {"Tilt": Tilt}


def group(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=timedelta(seconds=300))


def rows_of(rank: int, folder: str) -> DistributedRows:
    logits, labels, first = torch.load(f"{folder}/rows.pt", weights_only=True)
    mine = slice(0, first) if rank == 0 else slice(first, None)
    if not len(logits[mine]):
        return DistributedRows(
            MemoryRows([], classes=logits.shape[1], count=0, weighted=False, device=torch.device("cpu"))
        )
    return DistributedRows(MemoryRows.of(logits[mine], labels[mine]))


def fitted_on_rank(rank: int, folder: str) -> dict[str, dict[str, Tensor]]:
    group(rank, folder)
    rows = rows_of(rank, folder)
    found = {
        name: dict(quietly(lambda make=make: make().fit_from(rows)).state_dict())  # type: ignore[misc]
        for name, make in METHODS.items()
    }
    distributed.destroy_process_group()
    return found


def message_on_rank(rank: int, folder: str) -> str:
    group(rank, folder)
    rows = rows_of(rank, folder)
    with pytest.raises(InputError) as caught:
        TemperatureScaling().fit_from(rows)
    TemperatureScaling(grid=[1.0, 2.0]).fit_from(rows.where(_finite))  # the ranks go on together
    distributed.destroy_process_group()
    return str(caught.value)


def _finite(chunk: object) -> Tensor:
    return torch.isfinite(chunk.logits).all(dim=1)  # type: ignore[attr-defined, no-any-return]


def lost_rank(rank: int, folder: str) -> str:
    group(rank, folder)
    rows = rows_of(rank, folder)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(WorkerError) as caught:
        TemperatureScaling().fit_from(rows)
    return str(caught.value)


def on_two_ranks(task: Callable[[int, str], object], folder: Path, data: Predictions, first: int) -> list[object]:
    """Return what ``task`` returns on either rank, or the error of a rank that was killed."""
    torch.save((data.logits, data.need_labels(), first), folder / "rows.pt")
    found: list[object] = []
    pools = [ProcessPoolExecutor(1, mp_context=get_context("spawn")) for _ in range(2)]
    for rank, future in [(rank, pool.submit(task, rank, str(folder))) for rank, pool in enumerate(pools)]:
        try:
            found.append(future.result(timeout=600))
        except BrokenProcessPool as error:
            found.append(error)
        pools[rank].shutdown()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("first", [100, 0], ids=["rows on both", "a rank without rows"])
def test_every_calibrator_is_that_of_memory_on_both_ranks(first: int, tmp_path: Path) -> None:
    data = random_set(tmp_path / "val", 7)
    ranks = on_two_ranks(fitted_on_rank, tmp_path, data, first)
    for name, make in METHODS.items():
        memory, fitted = quietly(lambda make=make: make().fit(data)), make()  # type: ignore[misc]
        one, other = (rank[name] for rank in ranks)  # type: ignore[index]
        assert all(torch.equal(value, other[key]) for key, value in one.items()), name
        fitted.load_state_dict(one)
        agree(fitted, memory, data.logits)
        assert learned(fitted)


@pytest.mark.slow
def test_an_error_on_one_rank_is_raised_on_both_and_a_lost_rank_is_said(tmp_path: Path) -> None:
    logits = torch.tensor([[3.0, 0.0], [0.0, 3.0], [2.0, 1.0], [-torch.inf, 1.0]])
    data = Predictions.from_logits(logits, [0, 1, 1, 0])
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    said = on_two_ranks(message_on_rank, tmp_path / "a", data, 2)
    assert said[0] == f"rank 1: {said[1]}"
    assert "expected a finite logit for every label, got −inf in row 1" in str(said[1])
    survivor, killed = on_two_ranks(lost_rank, tmp_path / "b", data, 2)
    assert isinstance(killed, BrokenProcessPool)
    assert "expected every rank to answer, got a lost one" in str(survivor)
