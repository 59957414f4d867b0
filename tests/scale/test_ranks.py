"""Two ranks of ``torch.distributed`` that hold rows: both end in the same bits, which are the parameters of memory."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from tests.draws import drawn
from tests.scale.conftest import MAKE, assert_same_fit, overconfident, quietly
from torch import Tensor, distributed

from calibrant import Predictions, save_predictions
from calibrant.calibrators import Calibrator, MatrixScaling, TemperatureScaling, VectorScaling
from calibrant.errors import InputError
from calibrant.rows import Batch, MemoryRows, RowSource
from calibrant.scale import batches, on_ranks

STRONG_PRIORS: list[Callable[[], Calibrator]] = [
    lambda: TemperatureScaling(prior=0.05),
    lambda: MatrixScaling(ridge=50.0),
]


def rows_of_rank(rank: int, folder: str) -> RowSource:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=timedelta(seconds=300))
    logits, labels, weights, first = torch.load(f"{folder}/rows.pt", weights_only=True)
    mine = slice(0, first) if rank == 0 else slice(first, None)
    if not len(logits[mine]):
        return on_ranks(MemoryRows(Batch(logits[:0], labels[:0])))
    return on_ranks(MemoryRows.of(logits[mine], labels[mine], weights=None if weights is None else weights[mine]))


def fit_on_rank(rank: int, folder: str) -> dict[str, dict[str, Tensor]]:
    rows = rows_of_rank(rank, folder)
    found = {name: dict(quietly(lambda make=make: make().fit(rows)).state_dict()) for name, make in MAKE.items()}
    distributed.destroy_process_group()
    return found


def message_on_rank(rank: int, folder: str) -> str:
    rows = rows_of_rank(rank, folder)
    with pytest.raises(InputError) as caught:
        TemperatureScaling().fit(rows)
    distributed.destroy_process_group()
    return str(caught.value)


def on_two_ranks(task: Callable[[int, str], object], folder: Path, data: Predictions, first: int) -> list[object]:
    """Return what ``task`` returns on either rank."""
    torch.save((data.logits, data.require_labels(), data.weights, first), folder / "rows.pt")
    pools = [ProcessPoolExecutor(1, mp_context=get_context("spawn")) for _ in range(2)]
    futures = [pool.submit(task, rank, str(folder)) for rank, pool in enumerate(pools)]
    found = [future.result(timeout=600) for future in futures]
    for pool in pools:
        pool.shutdown()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("first", [100, 0], ids=["rows on both", "a rank without rows"])
def test_every_calibrator_is_that_of_memory_on_both_ranks(first: int, tmp_path: Path) -> None:
    data = overconfident(300, 5, seed=7)
    one, other = on_two_ranks(fit_on_rank, tmp_path, data, first)
    for name, make in MAKE.items():
        for key, value in one[name].items():  # a grid has no certificate, which is NaN then
            assert torch.equal(value.nan_to_num(), other[name][key].nan_to_num()), (name, key)
        memory, fitted = quietly(lambda make=make: make().fit(data)), make()
        fitted.load_state_dict(one[name])
        assert_same_fit(fitted, memory, data.logits)


def weighted_fits_on_rank(rank: int, folder: str) -> list[dict[str, Tensor]]:
    in_memory = rows_of_rank(rank, folder)
    found = [make().fit(rows).state_dict() for rows in (in_memory, on_ranks(batches(f"{folder}/{rank}.parquet")))
             for make in STRONG_PRIORS]  # fmt: skip
    distributed.destroy_process_group()
    return found


@pytest.mark.slow
def test_weights_are_relative_to_the_mean_over_all_ranks(tmp_path: Path) -> None:
    data = overconfident(300, 4, seed=3)
    weights = torch.cat([torch.full((100,), 0.25), torch.full((200,), 8.0)])  # whose mean differs between the ranks
    data = replace(data, weights=(weights * (1 + torch.arange(300) % 3)).double())
    for rank, part in enumerate((data[:100], data[100:])):
        save_predictions(tmp_path / f"{rank}.parquet", part)
    one, other = on_two_ranks(weighted_fits_on_rank, tmp_path, data, 100)
    for mine, theirs, make in zip(one, other, 2 * STRONG_PRIORS, strict=True):
        assert all(torch.equal(value.nan_to_num(), theirs[key].nan_to_num()) for key, value in mine.items())
        fitted = make()
        fitted.load_state_dict(mine)
        assert_same_fit(fitted, make().fit(data), data.logits)


@pytest.mark.slow
def test_an_error_on_one_rank_is_raised_on_both(tmp_path: Path) -> None:
    logits = torch.tensor([[3.0, 0.0], [0.0, 3.0], [2.0, 1.0], [-torch.inf, 1.0]])
    said = on_two_ranks(message_on_rank, tmp_path, Predictions.from_logits(logits, [0, 1, 1, 0]), 2)
    assert said[0] == f"rank 1: {said[1]}"
    assert "expected a probability above 0 (a finite logit) for every label, got 0 (−inf) for the label" in str(said[1])


def test_one_rank_alone_fits_the_bits_of_memory() -> None:
    data = Predictions.from_logits(*drawn(300, 3, dtype=torch.float32))
    memory = MemoryRows.of(data.logits, data.labels)
    with pytest.raises(InputError, match="expected a process group, got none; call"):
        on_ranks(memory)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        one, other = VectorScaling().fit(on_ranks(memory)), VectorScaling().fit(data)
    finally:
        distributed.destroy_process_group()
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())
