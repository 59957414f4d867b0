"""Roles of columns: what names say of them, and what values say of one another."""

import numpy as np
import pyarrow as pa
import pytest

from calibrant.data.formats.evidence import Columns, codes_of, decides, explained, few, speaks_of_smaller
from calibrant.data.formats.layout import Layout
from calibrant.data.formats.proposal import propose
from calibrant.data.formats.roles import called, has_role, is_decided, mark_of, plain_name, subject_of


@pytest.mark.parametrize(
    ("name", "plain"), [("TrueLabel", "true_label"), ("true label", "true_label"), ("P (1)", "p_1"), (".row", "_row")]
)
def test_one_name_has_one_spelling(name: str, plain: str) -> None:
    assert plain_name(name) == plain


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("Y True", "truth"),
        ("PredictedProb", "event"),
        ("pred.conf", "confidence"),
        ("is_correct", "right"),
        ("CustomerID", "key"),
        (".config", "model"),
        ("fold", "part"),
        ("prob_upr", "bound"),
        ("Risk (%)", "percentage"),
    ],
)
def test_names_say_roles(name: str, role: str) -> None:
    assert called(name, role)
    assert has_role(name)


@pytest.mark.parametrize("name", ["age", "bmi", "weight_kg"])
def test_names_of_features_say_none(name: str) -> None:
    assert not has_role(name)


@pytest.mark.parametrize(
    ("name", "kind", "part"),
    [
        ("prob_cat", "probs", "cat"),
        ("P(1)", "probs", "1)"),
        ("probs/cat", "probs", "cat"),
        ("RawFormulaVal:Class=cat", "logits", "Class=cat"),
        (".pred_cat", "probs", "cat"),
    ],
)
def test_marks_say_the_kind_and_the_class(name: str, kind: str, part: str) -> None:
    mark = mark_of(name)
    assert mark is not None
    assert (mark.kind, mark.part) == (kind, part)


@pytest.mark.parametrize(
    ("name", "subject"),
    [("predicted_species", "species"), ("species_predictions", "species"), ("$C-churn", "churn"), ("I_BAD", "bad")],
)
def test_decisions_name_what_they_are_on(name: str, subject: str) -> None:
    assert subject_of(name) == subject


def test_a_record_of_a_prediction_decides() -> None:
    assert is_decided("prediction.label")
    assert not is_decided("prediction.label_probability")


def test_the_largest_score_is_told_from_what_it_misses() -> None:
    scores = np.array([[0.7, 0.3], [0.2, 0.8], [0.6, 0.4], [0.1, 0.9]])
    assert decides(np.array(["a", "b", "a", "b"], dtype=object), scores)
    assert not decides(np.array(["a", "b", "b", "b"], dtype=object), scores)
    assert explained(np.array([0, 1, 0, 1]), scores) == 0  # of a decision
    # in each column 4 · .05² between the two values, of Σ (x − .4)² = .26
    assert explained(np.array([0, 0, 1, 1]), scores) == pytest.approx((4 * 0.05**2) / 0.26)


def test_a_constant_score_decides_nothing() -> None:
    labels = np.tile([0, 1], 20)
    assert not decides(labels, np.full(40, 0.5))
    proposal = propose(pa.table({"p": np.full(40, 0.5), "y": labels}), Layout())
    assert proposal is not None
    assert not proposal.certain
    assert dict(proposal.remedy.reading) == {"columns": "p", "label": "y", "kind": "probs"}


def test_codes_keep_long_cells_apart_without_text_of_them() -> None:
    code, distinct = codes_of(np.array(["x" * 1000, "y", "x" * 1000, None], dtype=object))
    assert code.tolist() == [0, 1, 0, 2]
    assert distinct[1:] == ["y", None]
    assert codes_of(np.array([3, 1, 3]))[1] == [1, 3]
    assert codes_of(np.array([{"a": 1}, {"a": 1}], dtype=object))[0].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("cells", "most", "said"), [([0, 1, 1], 2, True), ([0, 1, 2], 2, False), ([5, 5, 5], 2, False)]
)
def test_few_values_can_be_classes(cells: list[int], most: int, said: bool) -> None:
    assert few(np.array(cells), most) is said


def test_a_probability_of_the_other_side_is_told_by_means_far_apart() -> None:
    labels = np.tile([0, 1], 30)
    scores = np.where(labels == 1, 0.2, 0.8) + np.linspace(-0.05, 0.05, 60)
    assert speaks_of_smaller(labels, scores) == 0
    assert speaks_of_smaller(labels, 1 - scores) is None
    assert speaks_of_smaller(labels, np.linspace(0, 1, 60)) is None


def test_columns_that_repeat_the_label_are_one_label() -> None:
    y = np.tile([0, 1, 1], 20)
    p = np.where(y == 1, 0.7, 0.4) + np.linspace(0, 0.2, 60)
    table = pa.table({"BAD": y, "F_BAD": y, "P_BAD1": p, "P_BAD0": 1 - p, "I_BAD": (p > 0.5).astype(int)})
    assert Columns(table).mirrored(["BAD", "F_BAD"], 2) == "BAD"
    proposal = propose(table, Layout())
    assert proposal is not None
    assert proposal.certain
    assert proposal.layout.label == "BAD"
    other = table.set_column(1, "F_BAD", pa.array(1 - y))
    assert Columns(other).mirrored(["BAD", "F_BAD"], 2) is None


@pytest.mark.parametrize(("other", "certain"), [([0, 1, 1] * 20, True), ([1, 1, 0] * 20, False)])
def test_two_columns_called_as_labels_are_one_question(other: list[int], certain: bool) -> None:
    y = np.tile([0, 1, 1], 20)
    p = np.where(y == 1, 0.6, 0.4) + np.linspace(0, 0.3, 60)
    proposal = propose(pa.table({"prob": p, "target": other, "y": y}), Layout())
    assert proposal is not None
    assert proposal.certain is certain
    assert certain or proposal.layout.label == "y"  # of which the probabilities tell more
    assert certain or proposal.remedy.before.startswith("if y and not target holds the labels")


def test_logits_beside_their_softmax_are_one_reading() -> None:
    z = np.random.default_rng(0).normal(size=(30, 3))
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    names = ("cat", "dog", "eel")
    logits, probs = (
        {f"{kind}_{one}": v[:, k] for k, one in enumerate(names)} for kind, v in (("logit", z), ("prob", p))
    )
    truth = {"truth": [names[k] for k in z.argmax(axis=1)]}
    proposal = propose(pa.table({**logits, **probs, **truth}), Layout())
    assert proposal is not None
    assert proposal.certain
    assert proposal.layout.columns == tuple(probs)
    proposal = propose(
        pa.table({**logits, **{name: np.roll(one, 1) for name, one in probs.items()}, **truth}), Layout()
    )
    assert proposal is not None
    assert not proposal.certain
