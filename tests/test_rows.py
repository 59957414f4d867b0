"""Rows that a fit sums over: batches in order, weights, and what no rows have."""

import pytest
import torch
from tests.draws import drawn
from torch import Tensor

from calibrant.errors import InputError
from calibrant.rows import Batch, MemoryRows


def count_and_labels(batch: Batch) -> tuple[Tensor, list[Tensor]]:
    return torch.tensor(len(batch)), [batch.labels]


def test_a_sum_is_over_all_batches_in_their_order() -> None:
    logits, labels = drawn(3000, 100, dtype=torch.float32)
    rows = MemoryRows.of(logits, labels)
    assert [len(batch) for batch in rows.batches] == [1310, 1310, 380]
    count, parts = rows.total(count_and_labels)
    assert (int(count), len(rows.uncut.collected(len))) == (3000, 1)
    assert torch.equal(torch.cat(parts), labels)
    assert torch.equal(rows.gathered().logits, logits)
    assert rows.map(count_and_labels).collected(lambda one: int(one[0])) == [1310, 1310, 380]


def test_rows_of_weight_0_are_left_out() -> None:
    logits, labels = drawn(6, 3)
    rows = MemoryRows.of(logits, labels, weights=[1, 0, 2, 0, 0.5, 1])
    assert (rows.count, rows.mass, rows.weighted) == (4, 4.5, True)
    assert torch.equal(rows.gathered().labels, labels[[0, 2, 4, 5]])
    assert MemoryRows.of(logits, labels).gathered().row_weights.tolist() == [1.0] * 6


def test_no_rows_have_no_sum() -> None:
    nothing = MemoryRows(Batch(torch.empty(0, 3), torch.empty(0, dtype=torch.int64)))
    assert nothing.fold(len) is None
    with pytest.raises(InputError, match="expected at least one row, got none"):
        nothing.total(len)
