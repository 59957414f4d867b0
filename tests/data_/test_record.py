"""The record beside scores: every holder selects, joins and writes it alike, and events are not decisions."""

from typing import Any

import numpy as np
import pytest
import torch

from calibrant import BinaryPairs, Decisions, Events, MultiLabelPredictions, Predictions, TopK
from calibrant.data.record import Record
from calibrant.errors import InputError
from calibrant.evaluate import default_metrics
from calibrant.metrics import AURC, ECE, NLL, Accuracy, Brier, Error

BESIDE: dict[str, Any] = {
    "groups": [7, 7, 8, 9],
    "weights": [1, 0, 3, 2],
    "weight_kind": "frequency",
    "features": {"age": [1.5, 2.5, 3.5, 4.5], "site": ["x", "y", "x", "z"]},
}
Z = [[2.0, -1.0], [0.5, 3.0], [-2.0, 1.0], [0.0, 0.5]]
HOLDERS = [
    Predictions.from_logits(Z, [0, 1, 1, 0], **BESIDE),
    Predictions.from_probs([[0.9, 0.1], [0.3, 0.7], [0.2, 0.8], [0.5, 0.5]], [0, 1, 1, 0], **BESIDE),
    BinaryPairs.from_probs([0.9, 0.6, 0.2, 0.4], [1, 0, 1, 0], **BESIDE),
    BinaryPairs.from_top_label([0.9, 0.6, 0.7, 0.8], [1, 0, 2, 0], [1, 1, 2, 0], **BESIDE),
    MultiLabelPredictions.from_logits(Z, [[1, 0], [-1, 1], [0, 1], [1, -1]], names=["cat", "dog"], **BESIDE),
    TopK(torch.tensor([[0.6, 0.3], [0.5, 0.1], [0.7, 0.2], [0.4, 0.4]]).log(), labels=[0, 2, 1, 0], **BESIDE),
]


def same(left: Record, right: Record) -> None:
    """Hold that two records agree in everything that they store, scores included."""
    assert type(left) is type(right)
    assert torch.equal(left.scores, right.scores)
    one, other = left.stored(text=True), right.stored(text=True)
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("rows", HOLDERS, ids=lambda rows: type(rows).__name__)
def test_what_lies_beside_is_selected_joined_and_counted(rows: Record) -> None:
    same(type(rows).cat([rows[:1], rows[torch.tensor([False, True, True, False])], rows[[3]]]), rows)
    last = rows[[3, 2]]
    assert last.groups.tolist() == [9, 8]
    assert last.features["age"].tolist() == [4.5, 3.5]
    assert list(last.features["site"]) == ["z", "x"]
    assert (rows.count, len(rows.counted), len(rows.repeated)) == (6, 3, 6)
    assert rows.repeated.features["age"].tolist() == [1.5, 3.5, 3.5, 3.5, 4.5, 4.5]
    assert rows.row_weights.tolist() == [1, 0, 3, 2]
    with pytest.raises(InputError, match="the same weight_kind"):
        type(rows).cat([rows, rows.repeated])


def test_sampling_weights_have_an_effective_number_of_rows() -> None:
    rows = Predictions.from_logits(Z, weights=[3.0, 1.0, 0.0, 0.0], weight_kind="sampling")
    assert (rows.count, rows.effective_count) == (2, pytest.approx(16 / 10))  # (Σw)² / Σw²
    assert rows.repeated is rows


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Predictions(torch.zeros(2, 2), weights=torch.ones(2), weight_kind="sampling"), "float64"),
        (lambda: Predictions(torch.zeros(2, 2), weights=torch.ones(2).long()), "weights of the kind None"),
        (lambda: Predictions(torch.zeros(2, 2), given_probs=torch.zeros(2, 3)), "given_probs of shape"),
        (lambda: Predictions(torch.zeros(2, 2), features={"a": torch.zeros(3)}), "2 entries of the feature 'a'"),
        (lambda: Predictions.from_logits(Z, weight_kind="counts", weights=[1] * 4), "weight_kind to be one of"),
        (lambda: MultiLabelPredictions(torch.zeros(2, 2), names=("a",)), "2 names"),
        (lambda: Predictions.cat([HOLDERS[0], HOLDERS[0][:1].repeated]), "weight_kind"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_an_unknown_argument_is_named() -> None:
    with pytest.raises(InputError, match="got the argument weight; the argument is called weights"):
        Predictions.from_logits(Z, weight=[1] * 4)  # type: ignore[call-arg]


def test_an_accuracy_is_one_of_decisions() -> None:
    """Of pooled events it was their frequency."""
    several = HOLDERS[4]
    assert isinstance(several, MultiLabelPredictions)
    predictions = HOLDERS[0]
    assert isinstance(predictions, Predictions)
    for events in (several.pooled(), several.label("cat"), predictions.one_vs_rest(1)):
        assert isinstance(events, Events)
        for metric in (Accuracy(), Error(), AURC()):
            with pytest.raises(InputError, match="got events with probabilities; measure ECE"):
                metric(events)
        for proper in (NLL(), Brier()):
            with pytest.raises(InputError, match="got events with probabilities; use a metric of pairs"):
                proper(events)
        assert ECE()(events) > 0
        assert not {Accuracy(), AURC()} & set(default_metrics(events))
    decided = BinaryPairs.from_decisions([0.9, 0.6], [1, 0])
    assert isinstance(decided, Decisions)
    assert Accuracy()(decided) == 0.5
    assert isinstance(predictions.top_label(), Decisions)
    assert Accuracy() in default_metrics(decided)


def test_metrics_of_one_object_do_not_change_each_other() -> None:
    """In float64 the log-loss once overwrote the largest logits that the next metric reads."""
    generator = torch.Generator().manual_seed(0)
    z = 3 * torch.randn(20_000, 10, generator=generator, dtype=torch.float64)
    data = Predictions.from_logits(z, z.argmax(dim=1), weights=torch.ones(20_000), weight_kind="sampling")
    fresh = Predictions.from_logits(z, z.argmax(dim=1))
    assert NLL()(data) == pytest.approx(NLL()(fresh), abs=1e-12)
    assert Brier()(data) == pytest.approx(Brier()(fresh), abs=1e-12)
