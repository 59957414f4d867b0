"""Predictions and pairs: what follows from each row, what stands with it, and every bad input with its sentence."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from calibrant import MultiLabel, Pairs, Predictions
from calibrant.calibrators import TemperatureScaling
from calibrant.data.record import Record
from calibrant.errors import InputError
from calibrant.metrics import NLL, Accuracy

GOOD = [[2.0, 0.0], [0.0, 3.0]]


def drawn(rows: int, classes: int = 7) -> torch.Tensor:
    return 3 * torch.randn(rows, classes, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_rows_are_those_of_a_float64_softmax(dtype: torch.dtype) -> None:
    logits = drawn(5000).to(dtype)
    data = Predictions.from_logits(logits, torch.zeros(5000, dtype=torch.int64))
    exact = logits.double().log_softmax(dim=1)
    rtol = 1e-14 if dtype == torch.float64 else 2e-7
    assert torch.allclose(data.confidence, exact.exp().amax(dim=1), rtol=rtol, atol=0)
    assert torch.allclose(data.log_probs, exact, rtol=0, atol=1e-12)
    assert torch.allclose(data.nll, -exact[:, 0], rtol=0, atol=1e-12)
    # a softmax in float32 gives 1 for both
    near = Predictions.from_logits(torch.tensor([[18.0, 0.0], [30.0, 0.0]]).to(dtype)).confidence
    assert (1 - near).tolist() == pytest.approx([math.exp(-18), math.exp(-30)], rel=1e-3)


def test_the_first_of_equal_maxima_is_decided() -> None:
    logits = torch.tensor([[1.5, 1.5, 0.0], [1.5, 1.5, 0.0], [0.0, 2.0, 2.0], [3.0, 0.0, 0.0]])
    data = Predictions.from_logits(logits, [0, 1, 2, 0])
    assert data.correct.tolist() == [True, False, False, True]
    assert data.predicted.tolist() == [0, 0, 1, 0]
    assert Predictions.from_probs([[0.5, 0.5], [0.5, 0.5]], [0, 1]).correct.tolist() == [True, False]


def test_excluded_classes_and_decisions_are_read() -> None:
    data = Predictions.from_logits([[-math.inf, 0.0, 0.0], [5.0, -math.inf, 0.0]], [1, 0])
    assert data.confidence.tolist() == pytest.approx([0.5, 1 / (1 + math.exp(-5))])
    assert replace(data, labels=torch.tensor([0, 0])).nll[0] == math.inf
    moved = replace(data, decision=torch.tensor([2, 2]))
    assert moved.predicted.tolist() == [2, 2]
    assert moved.correct.tolist() == [False, False]
    assert moved.confidence.tolist() == pytest.approx([0.5, 1 / (1 + math.exp(5))])


def test_probabilities_are_kept_unchanged() -> None:
    probs = torch.tensor([[0.1, 0.9], [1.0, 0.0]], dtype=torch.float64)
    data = Predictions.from_probs(probs, [1, 1])
    assert data.confidence.tolist() == [0.9, 1.0]
    assert data.nll.tolist() == [-math.log(0.9), math.inf]
    assert torch.equal(data.one_vs_rest(1).p, probs[:, 1])
    after = data.calibrated_by(TemperatureScaling().fit([[2.0, 0.0]] * 9, [0] * 6 + [1] * 3))
    assert after.given_probs is None
    assert torch.equal(after.probs, after.logits.double().softmax(dim=1))


def test_rounded_rows_are_divided_by_their_sums() -> None:
    probs = torch.tensor([[0.333, 0.333, 0.333], [0.5, 0.25, 0.25]], dtype=torch.float64)
    data = Predictions.from_probs(probs)
    assert data.probs.tolist() == [pytest.approx([1 / 3] * 3), [0.5, 0.25, 0.25]]
    half = torch.softmax(drawn(50, 1000), dim=1).half()
    assert torch.allclose(Predictions.from_probs(half).probs.sum(dim=1), torch.ones(50), atol=1e-6, rtol=0)
    with pytest.raises(InputError, match=r"sum to 1, got 0\.998 in row 1"):
        Predictions.from_probs([[0.5, 0.5], [0.5, 0.498]])


def test_positions_are_flattened_with_all_their_columns() -> None:
    logits = drawn(2 * 3 * 4, 5).reshape(2, 3, 4, 5)
    labels = torch.arange(24).reshape(2, 3, 4) % 5
    labels[0, 0, 0] = -100
    columns: dict[str, Any] = {"groups": [7, 9], "weights": [1, 5], "features": {"site": ["a", "b"]}}
    data = Predictions.from_logits(logits, labels, class_dim=-1, ignore_index=-100, **columns)
    assert (len(data), data.classes) == (23, 5)
    assert torch.equal(data.logits[0], logits[0, 0, 1])
    assert data.groups.tolist() == [7] * 11 + [9] * 12
    assert data.weights.tolist() == [1] * 11 + [5] * 12
    assert list(data.features["site"]) == ["a"] * 11 + ["b"] * 12
    same = Predictions.from_logits(logits.movedim(-1, 1), labels, ignore_index=-100)
    assert torch.equal(same.logits, data.logits)
    each = Predictions.from_logits(logits.movedim(-1, 1), groups=torch.arange(24).reshape(2, 3, 4))
    assert each.groups.tolist() == [*range(24)]


@pytest.mark.parametrize(
    "labels", [[0, 1], np.array([0, 1], dtype=np.uint16), torch.tensor([0, 1], dtype=torch.int8), ["cat", "dog"]]
)
def test_labels_are_integers_of_any_dtype_or_names(labels: Any) -> None:
    data = Predictions.from_logits(GOOD, labels, class_names=["cat", "dog"])
    assert (data.labels.dtype, data.labels.tolist()) == (torch.int64, [0, 1])


def test_counts_become_rows() -> None:
    data = Predictions.from_binary_probs([0.1, 0.4, 0.7], groups=[5, 6, 7]).repeat([[2, 0], [1, 3], [0, 0]])
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.groups.tolist() == [5, 5, 6, 6, 6, 6]
    assert data.probs[:, 1].tolist() == [0.1, 0.1, 0.4, 0.4, 0.4, 0.4]
    for counts in ([[1, 0]], [[1.0, 0.0]] * 3, [[1, -1]] * 3, [[0, 0]] * 3):
        with pytest.raises(InputError, match=r"expected counts of shape \(3, 2\)"):
            Predictions.from_binary_probs([0.1, 0.4, 0.7]).repeat(counts)


def test_a_model_is_run_in_evaluation_mode_and_put_back() -> None:
    model = torch.nn.Sequential(torch.nn.Dropout(0.9), torch.nn.Linear(3, 2))
    inputs = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    batches = [(inputs[:4], torch.zeros(4, dtype=torch.int64)), (inputs[4:], torch.ones(2, dtype=torch.int64))]
    model[1].eval()  # a frozen part stays frozen
    data = Predictions.collect(model, batches)
    assert [part.training for part in model.modules()] == [True, True, False]
    assert torch.allclose(data.logits, model[1](inputs))


@pytest.mark.parametrize(
    ("outputs", "batch", "message"),
    [
        (lambda x: x, torch.zeros(2, 3), "expected batches of inputs and a tensor of labels, got a Tensor of shape"),
        (lambda x: x, [torch.zeros(2, 3)], "expected batches of inputs and a tensor of labels, got"),
        (
            lambda x: (x, x),
            [torch.zeros(2, 3), torch.tensor([0, 1])],
            "expected a model that returns a tensor of logits",
        ),
    ],
)
def test_other_batches_and_outputs_are_refused(outputs: Any, batch: Any, message: str) -> None:
    class Model(torch.nn.Module):
        def forward(self, inputs: torch.Tensor) -> Any:
            return outputs(inputs)

    with pytest.raises(InputError, match=message):
        Predictions.collect(Model(), [batch])


# What stands with the scores: the same for every record ------------------------------------------------------------

Z = [[2.0, -1.0], [0.5, 3.0], [-2.0, 1.0], [0.0, 0.5]]
COLUMNS: dict[str, Any] = {
    "groups": [7, 7, 8, 9],
    "weights": [1, 0, 3, 2],
    "features": {"age": [1.5, 2.5, 3.5, 4.5], "site": ["x", "y", "x", "zü"]},
}
RECORDS: list[Record] = [
    Predictions.from_logits(Z, [0, 1, 1, 0], **COLUMNS),
    Predictions.from_probs([[0.9, 0.1], [0.3, 0.7], [0.2, 0.8], [0.5, 0.5]], [0, 1, 1, 0], **COLUMNS),
    Pairs.from_top_label([0.9, 0.6, 0.7, 0.8], [1, 0, 2, 0], [1, 1, 2, 0], **COLUMNS),
    MultiLabel.from_logits(Z, [[1, 0], [-1, 1], [0, 1], [1, -1]], names=["cat", "dog"], **COLUMNS),
]


@pytest.mark.parametrize("rows", RECORDS, ids=repr)
def test_every_column_is_selected_joined_and_counted(rows: Record) -> None:
    joined = type(rows).cat([rows[:1], rows[torch.tensor([False, True, True, False])], rows[[3]]])
    assert torch.equal(joined.scores, rows.scores)
    one, other = joined.stored(), rows.stored()
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)
    last = rows[[3, 2]]
    assert last.groups.tolist() == [9, 8]
    assert last.features["age"].tolist() == [4.5, 3.5]
    assert list(last.features["site"]) == ["zü", "x"]
    assert rows[np.array([3, 2])].weights.tolist() == rows[[-1, -2]].weights.tolist() == [2, 3]
    assert "weights, features age·site" in repr(rows)
    assert (rows.count, len(rows.counted)) == (3, 3)
    assert rows.effective_count == pytest.approx(36 / 14)  # (Σw)² / Σw²


def test_parts_that_differ_are_not_joined() -> None:
    data = Predictions.from_logits(GOOD, [0, 1], class_names=["cat", "dog"], features={"age": [1, 2]})
    for other, message in (
        (replace(data, weights=torch.ones(2).double()), "the same columns"),
        (Predictions.from_logits(drawn(2, 3), [0, 0]), "the same classes"),
        (replace(data, class_names=("dog", "cat")), "the same class_names"),
        (replace(data, features={"age": np.array(["x", "y"])}), "the same features"),
    ):
        with pytest.raises(InputError, match=message):
            Predictions.cat([data, other])


def test_what_is_made_of_predictions_keeps_their_columns() -> None:
    data = RECORDS[0]
    assert isinstance(data, Predictions)
    calibrated = data.calibrated_by(TemperatureScaling().fit([[3.0, 0.0]] * 10, [0] * 7 + [1] * 3))
    for made in (calibrated, data.top_label(), data.one_vs_rest(1)):
        for name in ("groups", "weights", "features"):
            assert getattr(made, name) is getattr(data, name)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"weights": [1.0, -2.0]}, "got -2 in row 1; leave out rows that must not count"),
        ({"weights": [1.0, math.nan]}, "finite weights ≥ 0, got nan in row 1"),
        ({"weights": [0, 0]}, "expected weights up to 1e150, not all 0, got 0 to 0"),
        ({"weights": [1.0]}, r"weights of shape \(2,\)"),
        ({"groups": [0.5, 1.0]}, "groups as integers or names"),
        ({"groups": [1.0, math.nan]}, "expected groups without empty entries, got an empty one in row 1"),
        ({"groups": ["a", ""]}, "expected groups without empty entries, got an empty one in row 1"),
        ({"groups": [None, "None"]}, "expected groups without empty entries, got an empty one in row 0"),
        ({"features": {"a": [1, 2, 3]}}, r"expected the feature 'a' of shape \(2,\), got shape \(3,\)"),
        ({"features": {"a": ["x", math.nan]}}, "names and nan; .*give missing entries a name of their own"),
    ],
)  # fmt: skip
def test_columns_that_do_not_fit_are_refused(columns: dict[str, Any], message: str) -> None:
    for make, scores in ((Predictions.from_logits, GOOD), (Pairs.from_probs, [0.4, 0.9])):
        with pytest.raises(InputError, match=message):
            make(scores, [0, 1], **columns)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Predictions.from_logits([[1.0, 9.0], [math.inf, 2.0]]), "got inf in row 1"),
        (lambda: Predictions.from_logits(np.zeros((0, 3))), "at least one row"),
        (lambda: Predictions.from_logits([[1.0], [2.0]]), "K = 1; for a single sigmoid output, use from_binary_logits"),
        (lambda: Predictions.from_logits(np.ma.masked_array(GOOD, mask=[[True, False]] * 2)), "without masked entries"),
        (lambda: NLL()(Pairs.from_probs([0.5], [1])), "got pairs of a probability and an outcome; pass the scores"),
        (lambda: Predictions.from_logits(GOOD, ["cat", "cow"], class_names=["cat", "dog"]), "got 'cow'"),
        (lambda: Predictions.from_logits(np.zeros((2, 3, 4)), np.zeros((2, 3), int)), "name the class axis with class_dim"),
        (lambda: Predictions.from_probs([[1.2, -0.2]]), "row 0; say kind logits"),
        (lambda: Predictions.from_logits(GOOD).calibrated_by(None), "expected a fitted calibrator, got NoneType"),
        (lambda: Predictions.from_logits(GOOD).calibrated_by(dict), "expected a fitted calibrator, got the class dict"),
        (lambda: TemperatureScaling().fit(GOOD), "expected labels as a numeric tensor or array, got None; pass labels"),
        (lambda: Pairs.from_probs([0.5], [2]), r"labels in \[0, 2\)"),
        (lambda: Predictions.from_logits(GOOD).correct, "expected labelled predictions"),
        (lambda: Accuracy()(Predictions.from_logits(GOOD, [0, 1], weights=[1, 0])[1:]), "at least one row of positive weight for Acc"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_one_sentence(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        make()
    text = str(caught.value)
    assert text.startswith("expected ")
    assert "; " in text
    assert "\n" not in text


def test_a_calibrator_is_applied_to_the_classes_of_its_fit() -> None:
    fitting = Predictions.from_logits([[2.0, 0.0]] * 9, [0] * 6 + [1] * 3, class_names=["cat", "dog"])
    fitted = TemperatureScaling().fit(fitting)
    for names in (["cat", "dog"], ["not dog", "dog"], None):
        assert len(Predictions.from_logits(GOOD, class_names=names).calibrated_by(fitted)) == 2
    for names in (["dog", "cat"], ["0", "1"], ["not cat", "cat"]):
        with pytest.raises(InputError, match="in order: cat, dog"):
            Predictions.from_logits(GOOD, class_names=names).calibrated_by(fitted)


@pytest.mark.parametrize("shape", [(2, 1, 4, 5), (2, 4, 5)])
def test_masks_are_two_class_predictions_of_their_pixels(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, masks = torch.randn(shape, generator=generator), torch.randint(2, (2, 4, 5), generator=generator)
    masks[0, 0] = 255
    data = Predictions.from_binary_logits(logits, masks.reshape(shape), ignore_index=255, groups=["first", "second"])
    z, y = logits.reshape(-1)[masks.reshape(-1) < 2], masks[masks < 2]
    expected = torch.nn.functional.binary_cross_entropy_with_logits(z.double(), y.double())
    assert NLL()(data) == pytest.approx(expected.item(), rel=1e-6)
    assert data.groups.unique(return_counts=True)[1].tolist() == [15, 20]
    assert torch.equal(Predictions.from_binary_logits(logits, masks, ignore_index=255).labels, y)
