"""What lies beside scores: every holder selects, joins and writes it alike, streams honour it, and what does not fit is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from calibrant import (
    MultiLabel,
    Pairs,
    Predictions,
)
from calibrant.calibrators import TemperatureScaling
from calibrant.data.record import Record
from calibrant.errors import InputError
from calibrant.evaluate import default_metrics
from calibrant.metrics import AURC, NLL, Accuracy, Brier
from calibrant.plot import classwise


def sample(rows: int = 60) -> Predictions:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, 3, generator=generator) * 2
    labels = torch.multinomial((logits * 0.6).softmax(dim=1), 1, generator=generator)[:, 0]
    weights = torch.randint(0, 4, (rows,), generator=generator) * 0.35
    features = {"region": np.array(["north", "süd"])[np.arange(rows) % 2], "age": torch.arange(rows) * 1.5}
    return Predictions.from_logits(logits, labels, groups=torch.arange(rows) // 2, weights=weights, features=features)


Z = [[2.0, -1.0], [0.5, 3.0], [-2.0, 1.0], [0.0, 0.5]]


def holders() -> list[Record]:
    """Return four rows of each type with the same beside them; the last two were decided otherwise than they score."""
    beside: dict[str, Any] = {
        "groups": [7, 7, 8, 9],
        "weights": [1, 0, 3, 2],
        "features": {"age": [1.5, 2.5, 3.5, 4.5], "site": ["x", "y", "x", "zü"]},
    }
    made: list[Record] = [
        Predictions.from_logits(Z, [0, 1, 1, 0], **beside),
        Predictions.from_probs([[0.9, 0.1], [0.3, 0.7], [0.2, 0.8], [0.5, 0.5]], [0, 1, 1, 0], **beside),
        Pairs.from_probs([0.9, 0.6, 0.2, 0.4], [1, 0, 1, 0], **beside),
        MultiLabel.from_logits(Z, [[1, 0], [-1, 1], [0, 1], [1, -1]], names=["cat", "dog"], **beside),
        Pairs.from_top_label([0.9, 0.6, 0.7, 0.8], [1, 0, 2, 0], [1, 1, 2, 0], **beside),
    ]
    return [*made, replace(made[0], decision=torch.tensor([0, 0, 0, 1]))]


HOLDERS = holders()


def same(left: Record, right: Record) -> None:
    """Hold that two records agree in everything that they store, scores included."""
    assert type(left) is type(right)
    assert torch.equal(left.scores, right.scores)
    assert (getattr(left, "given_probs", None) is None) == (getattr(right, "given_probs", None) is None)
    one, other = left.stored(text=True), right.stored(text=True)
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("rows", HOLDERS, ids=repr)
def test_what_lies_beside_is_selected_joined_and_counted(rows: Record) -> None:
    same(type(rows).cat([rows[:1], rows[torch.tensor([False, True, True, False])], rows[[3]]]), rows)
    last = rows[[3, 2]]
    assert last.groups.tolist() == [9, 8]
    assert last.features["age"].tolist() == [4.5, 3.5]
    assert list(last.features["site"]) == ["zü", "x"]
    assert rows.row_weights.tolist() == [1, 0, 3, 2]
    assert "weights, features age·site" in repr(rows)
    assert rows.weights.dtype == torch.float64
    assert (rows.count, len(rows.counted)) == (3, 3)
    with pytest.raises(InputError, match="weights in all parts or in none"):
        type(rows).cat([rows, replace(rows, weights=None)])


def test_what_is_made_of_predictions_keeps_it() -> None:
    data = HOLDERS[0]
    assert isinstance(data, Predictions)
    calibrated = data.calibrated_by(TemperatureScaling().fit([[3.0, 0.0]] * 10, [0] * 7 + [1] * 3))
    same(replace(calibrated, logits=data.logits), data)
    for pairs in (data.top_label(), data.one_vs_rest(1)):
        for name in ("groups", "weights", "features"):
            assert getattr(pairs, name) is getattr(data, name)


def test_positions_of_one_sample_share_its_weight() -> None:
    logits, labels = torch.randn(2, 3, 4), torch.tensor([[0, 1, -1, 2], [2, -1, 0, 1]])
    data = Predictions.from_logits(logits, labels, ignore_index=-1, weights=[1, 5], features={"site": ["a", "b"]})
    assert data.weights.tolist() == [1, 1, 1, 5, 5, 5]
    assert list(data.features["site"]) == ["a"] * 3 + ["b"] * 3


@pytest.mark.parametrize(
    ("beside", "words"),
    [
        ({"weights": [1.0, -2.0]}, "got -2 in row 1; leave out rows that must not count"),
        ({"weights": [1.0, float("nan")]}, "finite weights ≥ 0, got nan in row 1"),
        ({"weights": [0, 0]}, "expected a positive weight, got 2 weights of 0"),
        (
            {"weights": [1e300, 1.0]},
            "divide them by their mean: their scale does not matter",
        ),
        ({"features": {"a": [1, 2, 3]}}, r"expected the feature 'a' of shape \(2,\), got shape \(3,\)"),
        ({"features": {"a": [None, "x"]}}, "give missing entries a name of their own"),
    ],
)
def test_what_does_not_fit_is_refused(beside: dict[str, Any], words: str) -> None:
    for make in (
        lambda: Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0], **beside),
        lambda: Predictions.from_binary_probs([0.4, 0.9], [0, 1], **beside),
        lambda: Pairs.from_probs([0.4, 0.9], [0, 1], **beside),
    ):
        with pytest.raises(InputError, match=words):
            make()


def test_rows_without_weight_measure_nothing() -> None:
    data = sample()
    assert data.weights is not None
    with pytest.raises(InputError, match="expected at least one row of positive weight for Accuracy"):
        Accuracy()(data[data.weights == 0])


def test_what_does_not_honour_weights_refuses_them() -> None:
    with pytest.raises(InputError, match="expected rows without weights for a picture or a report, got weights"):
        classwise(sample())


def test_a_name_that_is_missing_is_refused_and_not_called_nan() -> None:
    for entry in (float("nan"), 3):
        with pytest.raises(InputError, match=r"names and .*give missing entries a name of their own"):
            Predictions.from_logits([[1.0, 0.0], [0.0, 1.0]], features={"site": ["a", entry]}, unchecked_kind=True)


def test_columns_of_any_dtype_of_tensors_are_read_or_refused() -> None:
    def made(column: Any, name: str = "features") -> Predictions:
        beside: dict[str, Any] = {name: {"age": column} if name == "features" else column}
        return Predictions.from_logits(2 * torch.eye(2), **beside)

    features = made(torch.tensor([1.5, 2.0], dtype=torch.bfloat16)).features
    assert features["age"].tolist() == [1.5, 2.0]
    with pytest.raises(InputError, match="groups as integers or names"):
        made(torch.ones(2, dtype=torch.bfloat16), "groups")
    with pytest.raises(InputError, match="with values"):
        made(torch.ones(2, device="meta"))
    with pytest.raises(InputError, match="dense"):
        made(torch.ones(2).to_sparse())
    with pytest.raises(InputError, match="below 2⁶³"):
        made(np.array([1, 2**63 + 3], dtype=np.uint64))


def test_weights_have_an_effective_number_of_rows() -> None:
    rows = Predictions.from_logits(Z, weights=[3.0, 1.0, 0.0, 0.0])
    assert (rows.count, rows.effective_count) == (2, pytest.approx(16 / 10))  # (Σw)² / Σw²


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Predictions(torch.zeros(2, 2), weights=torch.ones(2)), "float64"),
        (lambda: Predictions(torch.zeros(2, 2), given_probs=torch.zeros(2, 3)), "given_probs of shape"),
        (lambda: MultiLabel(torch.zeros(2, 2), names=("a",)), "2 names"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_pairs_of_events_and_of_decisions_have_default_metrics_of_their_own() -> None:
    predictions = HOLDERS[0]
    assert isinstance(predictions, Predictions)
    events, decisions = predictions.one_vs_rest(1), predictions.top_label()
    assert {Accuracy(), AURC()} < set(default_metrics(decisions))
    assert not {Accuracy(), AURC()} & set(default_metrics(events))
    for pairs in (events, decisions):
        assert not {NLL(), Brier()} & set(default_metrics(pairs))
        with pytest.raises(InputError, match="got pairs of a probability and what happened; make them with"):
            NLL()(pairs)


def test_metrics_of_one_object_do_not_change_each_other() -> None:
    """In float64 the log-loss once overwrote the largest logits that the next metric reads."""
    generator = torch.Generator().manual_seed(0)
    z = 3 * torch.randn(20_000, 10, generator=generator, dtype=torch.float64)
    data = Predictions.from_logits(z, z.argmax(dim=1), weights=torch.ones(20_000))
    fresh = Predictions.from_logits(z, z.argmax(dim=1))
    assert NLL()(data) == pytest.approx(NLL()(fresh), abs=1e-12)
    assert Brier()(data) == pytest.approx(Brier()(fresh), abs=1e-12)
