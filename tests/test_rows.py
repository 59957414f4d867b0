"""Rows that a fit sums over: selection, counts, and what no rows have."""

import pytest
import torch
from tests.draws import drawn
from torch import Tensor

from calibrant.errors import InputError
from calibrant.rows import Chunk, MemoryRows, chunks_of


def row_count(chunk: Chunk) -> Tensor:
    return torch.tensor(len(chunk))


def of_class_1(chunk: Chunk) -> Tensor:
    return chunk.labels == 1


def unless_first(chunk: Chunk) -> Chunk | None:
    return chunk if chunk.start else None


def test_selected_rows_know_their_number() -> None:
    logits, labels = drawn(300, 3, dtype=torch.float32)
    chosen = MemoryRows.of(logits, labels).where(of_class_1)
    assert chosen.count == int((labels == 1).sum()) == int(chosen.total(row_count))
    assert chosen.mass == float(chosen.count)
    part = Chunk(logits, labels=labels, start=5)
    assert (part.where(slice(3, 9)).start, part.where(labels == 1).start) == (8, 5)


def test_chunks_are_all_rows_in_order_and_one_may_be_left_out() -> None:
    logits, labels = drawn(3000, 100, dtype=torch.float32)
    rows = MemoryRows.of(logits, labels)
    parts = chunks_of(rows.gathered())
    assert [part.start for part in parts] == [0, 1310, 2620]
    assert torch.equal(torch.cat([part.labels for part in parts]), labels)
    assert int(rows.prepared(unless_first).total(row_count)) == 1690
    assert len(rows.uncut.collected(row_count)) == 1


def test_rows_of_weight_0_are_left_out() -> None:
    logits, labels = drawn(6, 3)
    rows = MemoryRows.of(logits, labels, weight=[1, 0, 2, 0, 0.5, 1])
    assert (rows.count, rows.mass) == (4, 4.5)


def test_no_rows_have_no_sum() -> None:
    nothing = MemoryRows([], classes=3, count=0, weighted=False, device=torch.device("cpu"))
    assert nothing.part(row_count, torch.add) is None
    with pytest.raises(InputError, match="expected at least one row, got none that is selected"):
        nothing.total(row_count)
    with pytest.raises(InputError, match="expected at least one row"):
        MemoryRows.of(*drawn(4, 3)).where(never)


def never(chunk: Chunk) -> Tensor:
    return chunk.labels < 0
