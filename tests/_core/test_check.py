"""The validators: what passes unchanged, and the one sentence that each refusal is."""

import math

import numpy as np
import pytest
import torch

from calibrant._core import check
from calibrant.errors import InputError


def test_arrays_lists_and_read_only_views_become_tensors() -> None:
    array = np.arange(6.0).reshape(3, 2)
    assert check.as_tensor(array, name="logits").data_ptr() == array.ctypes.data
    view = array[::-1]
    assert check.as_tensor(view, name="logits").tolist() == view.tolist()
    frozen = array.copy()
    frozen.flags.writeable = False
    assert check.as_tensor(frozen, name="logits").tolist() == array.tolist()
    assert check.as_tensor(array.astype(">f4"), name="logits").tolist() == array.tolist()
    assert check.as_tensor(np.array([1, 2], dtype=np.uint32), name="labels").tolist() == [1, 2]
    with pytest.raises(InputError, match="numeric tensor or array, got list of dtype"):
        check.as_tensor(["a", "b"], name="labels")


@pytest.mark.parametrize(
    ("logits", "text"),
    [
        (torch.zeros(3, 2, dtype=torch.int64), "floating dtype, got torch.int64"),
        (torch.zeros(3, 2, 4), "whose class_dim=1 is the class axis"),
        (torch.zeros(0, 2), "at least one row of logits, got an empty split"),
        (torch.tensor([[0.0, 3.0], [math.nan, 1.0]]), "got NaN in row 1"),
        (torch.full((2, 2), -math.inf), "got -inf in row 0; a row of −inf alone has no class left"),
        (torch.tensor([[0.25, 0.75], [1.0, 0.0]]), "which are probabilities; use from_probs"),
    ],
)
def test_bad_logits_get_one_sentence(logits: torch.Tensor, text: str) -> None:
    with pytest.raises(InputError, match=text):
        check.check_logits(logits)


def test_logits_that_look_like_probabilities_can_be_named() -> None:
    like = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    assert check.check_logits(like, unchecked_kind=True) is like
    assert not check.look_like_probs(torch.tensor([[0.25, 0.75], [1.0, 0.1]]))
    excluded = torch.tensor([[-math.inf, 2.0]])
    assert check.check_logits(excluded) is excluded


@pytest.mark.parametrize(
    ("probs", "text"),
    [
        (torch.tensor([[0.5, 0.5], [1.5, -0.5]]), r"in \[0, 1\], got 1.5 in row 1; use from_logits"),
        (torch.tensor([[0.5, 0.4]]), "sum to 1, got 0.9 in row 0"),
    ],
)
def test_bad_probabilities_get_one_sentence(probs: torch.Tensor, text: str) -> None:
    with pytest.raises(InputError, match=text):
        check.check_probs(probs)


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (torch.tensor([0.0, 1.0]), "integer labels, got dtype torch.float32"),
        (torch.tensor([[0], [1]]), r"shape \(2,\), got shape \(2, 1\); flatten"),
        (torch.tensor([0, 2]), r"labels in \[0, 2\), got 2 in row 1"),
        (torch.tensor([-1, 0]), r"got -1 in row 0"),
    ],
)
def test_bad_labels_get_one_sentence(labels: torch.Tensor, text: str) -> None:
    with pytest.raises(InputError, match=text):
        check.check_labels(labels, rows=2, classes=2)


@pytest.mark.parametrize("layout", ["nested", "quantized", "sparse", "csr"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_remedy_of_a_layout_works(layout: str) -> None:
    rows = torch.randn(5, 3)
    logits = {
        "nested": lambda: torch.nested.nested_tensor([rows[:2], rows[2:]]),
        "quantized": lambda: torch.quantize_per_tensor(rows, 0.1, 0, torch.qint8),
        "sparse": rows.to_sparse,
        "csr": rows.to_sparse_csr,
    }[layout]()
    with pytest.raises(InputError, match="expected logits as a dense tensor") as refused:
        check.check_floating(logits, name="logits")
    expression = str(refused.value).rpartition(" with ")[2]
    assert check.check_floating(eval(expression, {"torch": torch, "logits": logits}), name="logits").shape == rows.shape


def test_numbers_counts_and_choices() -> None:
    assert check.check_number(np.float32(0.5), name="x", low=0, high=1) == 0.5
    with pytest.raises(InputError, match=r"gamma in \(-1, inf\), got -1"):
        check.check_number(-1, name="gamma", low=-1, open_low=True)
    with pytest.raises(InputError, match=r"gamma in \[0, inf\), got inf"):
        check.check_number(10**400, name="gamma", low=0)
    with pytest.raises(InputError, match="got a value of type int; choose"):
        check.check_count(10**5000, name="bins")
    with pytest.raises(InputError, match="got True; pass a number"):
        check.check_number(True, name="x")
    assert check.check_count(np.int32(3), name="bins") == 3
    with pytest.raises(InputError, match="bins as an integer ≥ 1, got 0"):
        check.check_count(0, name="bins")
    with pytest.raises(InputError, match="one of 'a', 'b', got 'c'"):
        check.check_choice("c", name="mode", choices=("a", "b"))


def test_the_unit_interval() -> None:
    for bad, text in [
        (torch.tensor([0.5, 1.5]), "got 1.5 in row 1; pass probabilities"),
        (torch.zeros(0), "empty split"),
        (torch.zeros(2, 2), "shape"),
        (torch.zeros(2, dtype=torch.int64), "floating"),
    ]:
        with pytest.raises(InputError, match=text):
            check.check_unit_interval(bad, name="p")
