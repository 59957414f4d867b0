"""Rows that ranks of ``torch.distributed`` hold: one rank alone, here; two in tests/scale/test_ranks.py."""

from collections.abc import Iterator

import pytest
import torch
from tests.draws import drawn
from torch import Tensor, distributed

from calibrant.calibrators import AutoCalibrator, VectorScaling
from calibrant.errors import InputError, LeakError
from calibrant.rows import Chunk, DistributedRows, LazyRows, MemoryRows, RowSource

NOTHING = MemoryRows([], classes=3, count=0, weighted=False, device=torch.device("cpu"))


@pytest.fixture
def alone() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def row_count(chunk: Chunk) -> Tensor:
    return torch.tensor(len(chunk))


def of_class_1(chunk: Chunk) -> Tensor:
    return chunk.labels == 1


def failing(chunk: Chunk) -> Tensor:
    raise InputError("expected something else, got this; correct it")


def test_a_rank_alone_fits_the_bits_of_memory(alone: None) -> None:
    logits, labels = drawn(300, 3, dtype=torch.float32)
    memory = MemoryRows.of(logits, labels)
    rows = DistributedRows(memory)
    one, other = VectorScaling().fit_from(rows), VectorScaling().fit_from(memory)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())
    with pytest.raises(LeakError):
        from calibrant import Predictions

        Predictions.from_logits(logits, labels).calibrated_by(one)
    chosen = AutoCalibrator(candidates=[VectorScaling()]).fit_from(rows)
    assert torch.equal(chosen.weights, AutoCalibrator(candidates=[VectorScaling()]).fit(logits, labels).weights)


def test_what_is_selected_of_ranks_knows_its_number_of_rows(alone: None) -> None:
    logits, labels = drawn(300, 3, dtype=torch.float32)
    rows = DistributedRows(MemoryRows.of(logits, labels))
    chosen = rows.where(of_class_1)
    assert chosen.count == int((labels == 1).sum()) == int(chosen.total(row_count))
    assert chosen.prepared(_same).count == chosen.count
    assert chosen.mass == float(chosen.count)
    part = Chunk(logits, labels=labels, start=5)
    assert (part.where(slice(3, 9)).start, part.where(labels == 1).start) == (8, 5)


def _same(chunk: Chunk) -> Chunk:
    return chunk


def test_an_error_on_a_rank_is_raised_and_rows_are_needed(alone: None) -> None:
    rows = DistributedRows(MemoryRows.of(*drawn(300, 3, dtype=torch.float32)))
    for ask in (rows.total, rows.prepared):
        with pytest.raises(InputError, match="expected something else"):
            ask(failing)
    nothing = DistributedRows(NOTHING)
    assert nothing.part(row_count, torch.add) is None
    with pytest.raises(InputError, match="expected at least one row, got none that is selected"):
        nothing.total(row_count)


@pytest.mark.parametrize("rows", [NOTHING, LazyRows(lambda: iter([]), classes=3, count=0, device=torch.device("cpu"))])
def test_no_rows_have_no_sum(rows: RowSource) -> None:
    assert rows.part(row_count, torch.add) is None
    with pytest.raises(InputError, match="expected at least one row"):
        rows.total(row_count)


def test_ranks_need_a_process_group() -> None:
    with pytest.raises(InputError, match="expected a process group, got none; call"):
        DistributedRows(NOTHING)
