"""Predictions and pairs: what they hold, the row statistics, and every bad input with its sentence."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from calibrant import Pairs, Predictions
from calibrant.calibrators import TemperatureScaling
from calibrant.errors import InputError
from calibrant.losses import BinaryCrossEntropyLoss


def logits_of(
    rows: int = 200, classes: int = 7, *, scale: float = 3.0, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    return (torch.randn(rows, classes, generator=torch.Generator().manual_seed(0)) * scale).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_confidence_and_log_probs_are_those_of_a_float64_softmax(dtype: torch.dtype) -> None:
    logits = logits_of(5000, dtype=dtype)
    data = Predictions.from_logits(logits, torch.zeros(5000, dtype=torch.int64))
    exact = logits.double().log_softmax(dim=1)
    tolerance = 1e-14 if dtype == torch.float64 else 2e-7
    assert torch.allclose(data.confidence, exact.exp().amax(dim=1), rtol=tolerance, atol=0)
    assert torch.allclose(data.log_probs, exact, rtol=0, atol=1e-12)
    assert torch.allclose(data.nll, -exact[:, 0], rtol=0, atol=1e-12)
    assert data.confidence.dtype == torch.float64


def test_float32_confidences_near_1_stay_apart() -> None:
    margins = torch.tensor([[18.0, 0.0], [20.0, 0.0], [30.0, 0.0]])  # softmax in float32 gives 1 for all three
    confidence = Predictions.from_logits(margins).confidence
    assert (1 - confidence).tolist() == pytest.approx([math.exp(-18), math.exp(-20), math.exp(-30)], rel=1e-3)


def test_the_first_index_of_the_maximum_is_decided_and_ties_are_settled_without_argmax() -> None:
    logits = torch.tensor([[1.5, 1.5, 0.0], [1.5, 1.5, 0.0], [0.0, 2.0, 2.0], [3.0, 0.0, 0.0]])
    data = Predictions.from_logits(logits, [0, 1, 2, 0])
    assert data.correct.tolist() == [True, False, False, True]
    assert data.predicted.tolist() == [0, 0, 1, 0]
    probs = Predictions.from_probs([[0.5, 0.5], [0.5, 0.5]], [0, 1])
    assert probs.correct.tolist() == [True, False]


def test_excluded_classes_and_decisions_are_read() -> None:
    data = Predictions.from_logits([[-math.inf, 0.0, 0.0], [5.0, -math.inf, 0.0]], [1, 0])
    assert data.confidence.tolist() == pytest.approx([0.5, 1 / (1 + math.exp(-5))])
    moved = Predictions(data.logits, labels=data.labels, decision=torch.tensor([2, 2]))
    assert moved.predicted.tolist() == [2, 2]
    assert moved.correct.tolist() == [False, False]
    assert moved.confidence.tolist() == pytest.approx([0.5, 1 / (1 + math.exp(5))])


def test_probabilities_are_kept_unchanged() -> None:
    probs = torch.tensor([[0.1, 0.9], [1.0, 0.0]], dtype=torch.float64)
    data = Predictions.from_probs(probs, [1, 1])
    assert data.confidence.tolist() == [0.9, 1.0]
    assert data.nll.tolist() == [-math.log(0.9), math.inf]
    assert torch.equal(data.one_vs_rest(1).p, probs[:, 1])


def test_binary_input_becomes_two_classes() -> None:
    by_logit = Predictions.from_binary_logits([2.0, -1.0], [1, 1])
    by_probability = Predictions.from_binary_probs(
        torch.sigmoid(torch.tensor([2.0, -1.0], dtype=torch.float64)), [1, 1]
    )
    assert by_logit.predicted.tolist() == by_probability.predicted.tolist() == [1, 0]
    assert torch.allclose(by_logit.confidence, by_probability.confidence, atol=1e-7)


def test_positions_are_flattened_with_labels_groups_and_ignored_rows() -> None:
    logits = logits_of(2 * 3 * 4, 5).reshape(2, 3, 4, 5)
    labels = torch.arange(24).reshape(2, 3, 4) % 5
    labels[0, 0, 0] = -100
    data = Predictions.from_logits(logits, labels, class_dim=-1, ignore_index=-100, groups=[7, 9])
    assert (len(data), data.classes) == (23, 5)
    assert torch.equal(data.logits[0], logits[0, 0, 1])
    assert data.groups.tolist() == [7] * 11 + [9] * 12
    same = Predictions.from_logits(logits.movedim(-1, 1), labels, ignore_index=-100, groups=[7, 9])
    assert torch.equal(same.logits, data.logits)


def test_rows_are_taken_and_joined() -> None:
    data = Predictions.from_logits(logits_of(10), [0] * 10, groups=list("aabbccddee"))
    joined = Predictions.cat([data[:4], data[4:]])
    assert torch.equal(joined.logits, data.logits)
    assert torch.equal(joined.groups, data.groups)
    assert len(data[torch.tensor([1, 3])]) == 2
    assert len(data.top_label()[data.groups == 1]) == 2
    with pytest.raises(InputError, match="groups in all parts or in none"):
        Predictions.cat([data, Predictions.from_logits(logits_of(2), [0, 0])])
    with pytest.raises(InputError, match="equally many classes"):
        Predictions.cat([data, Predictions.from_logits(logits_of(2, 3), [0, 0])])
    with pytest.raises(InputError, match="at least one part"):
        Predictions.cat([])


def test_a_model_is_run_in_evaluation_mode_and_put_back() -> None:
    model = torch.nn.Sequential(torch.nn.Dropout(0.9), torch.nn.Linear(3, 2))
    inputs = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    batches = [(inputs[:4], torch.zeros(4, dtype=torch.int64)), (inputs[4:], torch.ones(2, dtype=torch.int64))]
    data = Predictions.collect(model, batches)
    assert model.training
    assert torch.allclose(data.logits, model[1](inputs))
    with pytest.raises(InputError, match="empty loader"):
        Predictions.collect(model, [])


def test_a_calibrator_changes_the_logits_and_drops_the_probabilities() -> None:
    data = Predictions.from_probs(torch.tensor([[0.9, 0.1]] * 6 + [[0.2, 0.8]] * 4), [0, 0, 0, 0, 1, 1, 1, 1, 0, 1])
    after = data.calibrated_by(TemperatureScaling().fit(data.logits, data.labels), allow_fit_rows=True)
    assert after.given_probs is None
    assert torch.equal(after.probs, after.logits.double().softmax(dim=1))
    assert torch.equal(data.probs, data.given_probs)
    assert torch.equal(after.predicted, data.predicted)
    assert "10 rows, 2 classes, labelled" in repr(after)


GOOD = [[2.0, 0.0], [0.0, 3.0]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Predictions.from_logits([[math.nan, 0.0], [1.0, 2.0]]), "got NaN in row 0"),
        (lambda: Predictions.from_logits([[1.0, 9.0], [math.inf, 2.0]]), "got inf in row 1"),
        (lambda: Predictions.from_logits([[-math.inf, -math.inf]]), "got -inf in row 0"),
        (lambda: Predictions.from_logits([[0.5, 0.5], [0.1, 0.9]]), "which are probabilities; use from_probs"),
        (lambda: Predictions.from_logits(np.zeros((0, 3))), "at least one row"),
        (lambda: Predictions.from_logits([[1.0], [2.0]]), "K = 1; for a single sigmoid output use from_binary_logits"),
        (lambda: Predictions.from_logits(GOOD, [0, 2]), r"labels in \[0, 2\)"),
        (lambda: Predictions.from_logits(GOOD, [-1, 0]), r"labels in \[0, 2\)"),
        (lambda: Predictions.from_logits(GOOD, [0.0, 1.0]), "labels"),
        (lambda: Predictions.from_logits(GOOD, [0, 1], groups=[1]), "groups of shape"),
        (lambda: Predictions.from_logits(GOOD, [0, 1], groups=[0.5, 1.0]), "groups as integers or names"),
        (lambda: Predictions.from_logits(np.zeros((2, 3, 4)), np.zeros((2, 3), int)), "pass class_dim=2"),
        (lambda: Predictions.from_probs([[1.2, -0.2]]), "row 0; use from_logits"),
        (lambda: Predictions.from_probs([[0.5, 0.4]]), "sum"),
        (lambda: Predictions.from_binary_probs([1.5]), r"probs in \[0, 1\]"),
        (lambda: Predictions.from_binary_logits([[1.0, 2.0]]), "one a row"),
        (lambda: Pairs.from_probs([0.5, math.nan], [0, 1]), "row 1"),
        (lambda: Pairs.from_probs([0.5], [2]), r"labels in \[0, 2\)"),
        (lambda: Predictions.from_logits(GOOD).correct, "expected labelled predictions"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        make()
    text = str(caught.value)
    assert text.startswith("expected ")
    assert "; " in text
    assert "\n" not in text


def test_logits_that_look_like_probabilities_pass_when_the_kind_is_said() -> None:
    assert len(Predictions.from_logits([[0.5, 0.5], [0.1, 0.9]], unchecked_kind=True)) == 2


def test_a_sparse_tensor_is_named_by_its_layout_and_a_dense_one_by_its_dtype() -> None:
    with pytest.raises(InputError, match=r"got sparse_coo torch.float32 \(2, 2\); convert with logits.to_dense\(\)"):
        Predictions.from_logits(torch.eye(2).to_sparse())
    with pytest.raises(InputError, match=r"got torch.complex64 \(2,\); pass labels.real"):
        BinaryCrossEntropyLoss()(torch.zeros(2), torch.zeros(2, dtype=torch.complex64))


HOSTILE = [None,
           "abc",
           2.5,
           object(),
           [],
           [[1.0], [1.0, 2.0]],
           [None],
           np.ma.masked_array([[2.0, 0.0]], mask=[[True, False]]),
           np.array([["a"]]),
           torch.eye(2).to_sparse(),
           torch.zeros(2, 2, device="meta"),
           torch.zeros(0, 2),
           torch.tensor([True, False]),
]  # fmt: skip


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: repr(value)[:40].split(" at 0x")[0].replace("\n", ""))
def test_every_constructor_refuses_what_is_no_data_in_one_sentence(value: Any) -> None:
    good, labels = [[2.0, 0.0], [0.0, 3.0]], [0, 1]
    calls = [
        lambda: Predictions(value),
        lambda: Predictions.from_logits(value, labels),
        lambda: Predictions.from_probs(value, labels),
        lambda: Predictions.from_binary_logits(value, labels),
        lambda: Predictions.from_binary_probs(value, labels),
        lambda: Pairs(value, value),
        lambda: Pairs.from_probs(value, labels),
        lambda: Pairs.from_top_label(value, labels, labels),
        lambda: Pairs.from_top_label([0.5, 0.5], value, labels),
        lambda: Predictions.cat(value),
        lambda: Predictions.from_logits(good).calibrated_by(value),
        lambda: Predictions.collect(value, []),
        lambda: Predictions.collect(torch.nn.Linear(2, 2), value),
    ]
    if value is not None:
        calls.append(lambda: Predictions.from_logits(good, value))
    if isinstance(value, torch.Tensor) and value.dtype == torch.float32 and value.dim() == 2:
        calls.pop(0)  # the raw constructor trusts values: it is for those who have checked them
    for call in calls:
        with pytest.raises(InputError, match=r"(?s)expected .*, got .*; "):
            call()


@pytest.mark.parametrize(
    "index",
    [
        3,
        "a",
        (0, 1),
        [0, 9],
        [True],
        True,
        slice(0, 2, 0),
    ],
)
def test_what_selects_no_rows_is_refused(index: Any) -> None:
    data = Predictions.from_logits([[2.0, 0.0], [0.0, 3.0]], [0, 1])
    for each in (data, data.top_label()):
        with pytest.raises(InputError, match=r"expected .*got .*; "):
            each[index]


def test_slices_masks_and_numbers_select_rows() -> None:
    data = Predictions.from_logits(logits_of(5, 3), [0, 1, 2, 0, 1])
    for index, rows in (
        (slice(1, 3), [1, 2]),
        (slice(None, None, -2), [4, 2, 0]),
        ([4, -5], [4, 0]),
        (np.array([True, False, True, False, False]), [0, 2]),
        ([], []),
    ):
        assert torch.equal(data[index].logits, data.logits[rows])
        assert torch.equal(data.top_label()[index].p, data.confidence[rows])


def test_masks_that_hide_nothing_and_one_byte_floats_are_read() -> None:
    plain = Predictions.from_logits(np.ma.masked_array([[2.0, 0.0]], mask=False), [0])
    assert plain.logits.tolist() == [[2.0, 0.0]]
    small = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    assert torch.equal(Predictions.from_logits(small.to(torch.float8_e4m3fn)).logits, small)
