"""The checks that families share: what passes unchanged, and the one sentence that each refusal is."""

import math

import numpy as np
import pytest
import torch

from calibrant._core import check
from calibrant.errors import InputError


def test_arrays_lists_and_read_only_views_become_tensors() -> None:
    array = np.arange(6.0).reshape(3, 2)
    assert check.as_tensor(array, name="logits").data_ptr() == array.ctypes.data
    frozen = array.copy()
    frozen.flags.writeable = False
    for values in (array[::-1][::-1], frozen, array.astype(">f4"), array.tolist()):
        assert check.as_tensor(values, name="logits").tolist() == array.tolist()
    assert check.as_tensor(array[::-1], name="logits").tolist() == array[::-1].tolist()
    assert check.as_tensor(np.array([1, 2], dtype=np.uint32), name="labels").tolist() == [1, 2]
    assert check.as_tensor(np.ma.masked_array([2.0], mask=False), name="logits").tolist() == [2]
    with pytest.raises(InputError, match="list of dtype <U1; make predictions with from_logits"):
        check.as_tensor(["a", "b"], name="labels")


def test_bad_logits_are_refused_and_odd_ones_are_not() -> None:
    for logits, text in (
        (torch.zeros(3, 2, dtype=torch.int64), "floating dtype, got torch.int64"),
        (torch.zeros(3, 2, 4), "where class_dim=1 names the class axis"),
        (torch.tensor([[0.0, 3.0], [math.nan, 1.0]]).half(), "got NaN in row 1"),
        (torch.full((2, 2), -math.inf), "got -inf in row 0; leave at least one class finite"),
        (torch.tensor([[0.25, 0.75], [1.0, 0.0]]), "which are probabilities; say kind probs"),
    ):
        with pytest.raises(InputError, match=text):
            check.check_logits(logits)
    for good in ([[-math.inf, 2.0]], [[3e38, 0.0], [3e38, 1.0]], [[0.25, 0.75], [1.0, 0.1]], [[0.5, 0.6], [1.2, -0.2]]):
        logits = torch.tensor(good)
        assert check.check_logits(logits) is logits


def test_bad_rows_are_named_beyond_the_first_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_BLOCK_ROWS", 2)
    probs = torch.full((5, 2), 0.5)
    assert check.check_probs(probs) is probs
    probs[4, 1] = 0.6
    with pytest.raises(InputError, match=r"sum to 1, got 1\.1 in row 4"):
        check.check_probs(probs)
    probs[3, 0] = 1.5
    with pytest.raises(InputError, match=r"in \[0, 1\], got 1\.5 in row 3"):
        check.check_probs(probs)
    probs[3], probs[4] = 0.5, torch.tensor([0.9, 0.3])
    assert check.check_logits(probs) is probs


def test_labels_that_mark_rows_to_skip_are_named() -> None:
    for labels, text in (
        ([255, 1], "ignore_index=255"),
        ([-1, 0], "ignore_index=-1"),
        ([-1, 1], "got -1 in row 0; count classes from 0, and leave out"),
        ([[1, 0], [0, 1]], r"got shape \(2, 2\); pass their argmax\(1\) if they are one-hot"),
    ):
        with pytest.raises(InputError, match=text):
            check.check_labels(torch.tensor(labels), rows=2, classes=2)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tensors_that_are_not_dense_are_refused() -> None:
    rows = torch.randn(5, 3)
    for logits in (torch.nested.nested_tensor([rows[:2], rows[2:]]), rows.to_sparse()):
        for refusing in (check.check_floating, check.as_tensor):
            with pytest.raises(InputError, match=r"expected logits as a dense tensor.*with logits\.to_dense\(\)"):
                refusing(logits, name="logits")


def test_numbers_counts_and_choices() -> None:
    assert check.check_number(np.float32(0.5), name="x", low=0.5, high=1) == 0.5
    assert check.check_number(1, name="x", low=0, high=1) == 1.0
    assert check.check_count(np.int32(3), name="bins", low=3, high=3) == 3
    assert check.check_choice("b", name="mode", choices=("a", "b")) == "b"
    for call, text in (
        (lambda: check.check_number(-1, name="gamma", low=-1, open_low=True), r"gamma in \(-1, inf\), got -1"),
        (lambda: check.check_number(2, name="x", high=2, open_high=True), r"x in \(-inf, 2\), got 2"),
        (lambda: check.check_number(True, name="x"), "got True; pass a number"),
        (lambda: check.check_choice("modd", name="mode", choices=("a", "mode")), "got 'modd'; did you mean 'mode'"),
        (lambda: check.check_unit_interval(torch.tensor([0.5, 1.5]), name="p"), r"got 1\.5 in row 1; pass probabilities"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=text):
            call()
