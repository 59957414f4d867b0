"""Predictions of several labels per row: what they keep, what they reduce to, what they refuse."""

import math

import pytest
import torch

from calibrant import MultiLabel, Predictions
from calibrant.calibrators import MultiLabelCalibrator, PlattScaling, TemperatureScaling
from calibrant.errors import InputError
from calibrant.evaluate import compare, multilabel_panel, panel
from calibrant.metrics import ECE

LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.5, 3.0, -4.0], [-0.5, 0.0, 1.0], [1.5, -2.0, 0.25]])
LABELS = torch.tensor([[1, 0, -1], [0, 1, 0], [-1, -1, 1], [1, 0, 0]])


def made(**more: object) -> MultiLabel:
    return MultiLabel.from_logits(LOGITS, LABELS, names=["cat", "dog", "owl"], **more)


def test_the_event_of_a_label_is_that_it_is_one_and_missing_rows_are_left_out() -> None:
    pairs = made().label("owl")
    assert torch.equal(pairs.p, torch.sigmoid(LOGITS[1:, 2].double()))
    assert pairs.y.tolist() == [0.0, 1.0, 0.0]
    assert pairs.groups is None
    assert torch.equal(made().label(2).p, pairs.p)


def test_pooled_pairs_are_all_known_labels_and_rows_are_their_groups() -> None:
    pairs = made().pooled()
    assert len(pairs) == 9
    assert pairs.y.sum() == 4
    assert pairs.groups.tolist() == [0, 0, 1, 1, 1, 2, 3, 3, 3]
    assert pairs.features["label"].tolist() == ["cat", "dog", "cat", "dog", "owl", "owl", "cat", "dog", "owl"]
    grouped = made(groups=["a", "b", "a", "b"]).pooled()
    assert grouped.groups.tolist() == [0, 0, 1, 1, 1, 0, 1, 1, 1]


def test_joined_rows_pool_with_their_weights_and_have_the_same_names() -> None:
    beside = {"weights": [1.0, 2.0, 0.5, 1.0], "groups": [3, 4, 5, 6]}
    data = made(**beside)
    both = MultiLabel.cat([data[:2], data[2:]])
    assert torch.equal(both.pooled().p, data.pooled().p)
    assert both.pooled().weights.tolist() == [1.0, 1.0, 2.0, 2.0, 2.0, 0.5, 1.0, 1.0, 1.0]
    with pytest.raises(InputError, match="the same names"):
        MultiLabel.cat([data, MultiLabel.from_logits(LOGITS, LABELS, **beside)])


def test_probabilities_are_kept_unchanged_and_zero_and_one_are_allowed() -> None:
    probs = torch.tensor([[0.0, 1.0], [0.25, 0.125]])
    data = MultiLabel.from_probs(probs, [[0, 1], [1, 0]])
    assert torch.equal(data.probs, probs)
    assert data.logits[0].tolist() == [-math.inf, math.inf]
    assert data.names == ("label 0", "label 1")


REFUSED = {
    "one class per row": (lambda: MultiLabel.from_logits(LOGITS, [0, 1, 2, 0]), "in Python, use Predictions"),
    "softmax": (lambda: MultiLabel.from_probs(torch.softmax(LOGITS, 1), LABELS), "leave out --multilabel"),
    "logits as probs": (lambda: MultiLabel.from_probs(LOGITS, LABELS), "from_logits in Python"),
    "label 2": (lambda: MultiLabel.from_logits(LOGITS, LABELS + 1), "got 2 for 'label 0' in row 0"),
    "another calibrator": (lambda: made().calibrated_by(TemperatureScaling().fit(LOGITS, [0, 1, 0, 0])), "MultiLabelCal"),
    "labels of several as one class": (lambda: Predictions.from_logits(LOGITS, LABELS), "MultiLabel"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_with_the_remedy(case: str) -> None:
    call, text = REFUSED[case]
    with pytest.raises(InputError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_what_is_for_one_class_a_row_names_what_is_for_several_and_the_reverse() -> None:
    several = MultiLabel.from_logits([[1.0, -1.0], [0.5, 2.0]], [[1, 0], [0, 1]])
    one = Predictions.from_logits([[1.0, -1.0], [0.5, 2.0]], [1, 0])
    for measure in (ECE(), panel, lambda data: compare(data, data)):
        with pytest.raises(InputError, match=r"got a MultiLabel; use .pooled\(\) or .label\(name\), or call"):
            measure(several)
    with pytest.raises(InputError, match="use panel and subgroups for one class per row"):
        multilabel_panel(one)
    with pytest.raises(InputError, match="this one is for MultiLabel; fit its base on one class per row"):
        one.calibrated_by(MultiLabelCalibrator(PlattScaling()).fit(several))
