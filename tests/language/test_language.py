"""Predictions from language models' scores: hand-computed probabilities, bounds, and the sentences of what cannot be one."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calibrant.errors import FileFormatError, InputError, UsageWarning
from calibrant.language import choices, parse_confidence, read_lm_eval, sequences, verbalized


def logs(**probabilities: float) -> dict[str, float]:
    return {text.replace("_", " "): math.log(p) for text, p in probabilities.items()}


def test_an_options_probability_is_that_of_its_spellings() -> None:
    top = {" A": 0.5, "A": 0.1, "ĠB": 0.2, "▁B": 0.05, " The": 0.1}
    data = choices([{text: math.log(p) for text, p in top.items()}], ("A", "B"), ["B"])
    assert data.logits.exp().tolist() == [[pytest.approx(0.6), pytest.approx(0.25)]]
    assert data.labels.tolist() == [1]
    assert data.features["other_mass"].tolist() == [pytest.approx(0.15)]
    assert data.features["bounded"].tolist() == [0]
    named = choices([logs(pos=0.5, positive=0.2, neg=0.1)], {"positive": ["positive", "pos"], "negative": "neg"})
    assert named.logits.exp().tolist() == [[pytest.approx(0.7), pytest.approx(0.1)]]


def test_an_array_holds_the_options_in_order() -> None:
    given = np.log([[0.6, 0.3], [0.2, 0.7]])
    for scores in (given, torch.from_numpy(given), given.tolist()):
        data = choices(scores, ("A", "B"), [0, "B"])
        assert data.logits.tolist() == [pytest.approx(row) for row in given.tolist()]
        assert data.require_labels().tolist() == [0, 1]
        assert data.features["other_mass"].tolist() == pytest.approx([0.1, 0.1])


@pytest.mark.parametrize(
    ("top", "largest"),
    [
        ({"A": 0.6, "B": 0.3, "x": 0.04}, 0.04),  # no more than the least that was returned
        ({"A": 0.6, "B": 0.3, "x": 0.09}, 0.01),  # no more than what is missing to 1
        ({"A": 0.001, "B": 0.6, "x": 0.2}, 0.199),  # a sampled token is returned however improbable: it bounds nothing
    ],
)
def test_a_missing_option_is_refused_bounded_or_its_row_dropped(top: dict[str, float], largest: float) -> None:
    column = [logs(A=0.505, B=0.3, C=0.2), logs(**top)]  # the first sums to 1.005, as servers round to two digits
    with pytest.raises(InputError, match="row 1 has no 'C' among its top tokens; ask for more top_logprobs"):
        choices(column, ("A", "B", "C"))
    bounded = choices(column, ("A", "B", "C"), sampled=["A", "A"], missing="bound")
    assert bounded.logits[1, 2].exp().item() == pytest.approx(largest, rel=1e-9)
    assert bounded.features["bounded"].tolist() == [0, 1]
    with pytest.warns(UsageWarning, match="left out 1 of 2 rows"):
        kept = choices(column, ("A", "B", "C"), ["B", "C"], missing="drop")
    assert kept.require_labels().tolist() == [1]


def test_a_bounded_option_has_at_least_its_true_probability() -> None:
    generator = torch.Generator().manual_seed(0)
    p = torch.softmax(3 * torch.randn(200, 12, generator=generator, dtype=torch.float64), dim=1)
    names = [chr(65 + i) for i in range(12)]
    drawn = torch.multinomial(p, 1, generator=generator)[:, 0].tolist()
    # the sampled token comes with the top ones
    kept = [{sampled, *p[row].topk(5).indices.tolist()} for row, sampled in enumerate(drawn)]
    column = [{names[i]: math.log(p[row, i]) for i in tokens} for row, tokens in enumerate(kept)]
    got = choices(column, names, sampled=[names[i] for i in drawn], missing="bound").logits.exp()
    assert bool((got >= p - 1e-9).all())


def test_a_sequences_score_is_the_mean_or_the_sum_of_its_log_probabilities() -> None:
    mean, total = sequences([-0.4], [2], [True]), sequences([-0.4], [2], score="sum")
    assert mean.probs[0, 1].item() == pytest.approx(math.exp(-0.2), rel=1e-12)
    assert total.probs[0, 1].item() == pytest.approx(math.exp(-0.4), rel=1e-12)
    assert mean.require_labels().tolist() == [1]
    assert {name: column.tolist() for name, column in mean.features.items()} == {
        "log_prob_mean": [pytest.approx(-0.2)], "log_prob_sum": [pytest.approx(-0.4)], "length": [2]
    }  # fmt: skip
    assert math.isfinite(sequences([0.0], [1]).logits[0, 1].item())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("85 %.", 0.85), ("0.85", 0.85), (".5", 0.5), ("8/10", 0.8), ("Paris.\nConfidence: 85 %", 0.85), ("**Confidence:** 0.85", 0.85),
        ("The confidence score is 9 out of 10.", 0.9), ('{"answer": "x", "confidence": 0.7}', 0.7), ("confidence = 100%", 1.0),
        ("Confidence level: 0%", 0.0), ("In 1998, 12 of 20. Confidence: 60%", 0.6), ("Confidence: 60% … so confidence: 60%", 0.6),
    ],
)  # fmt: skip
def test_a_stated_confidence_is_understood(text: str, value: float) -> None:
    assert parse_confidence(text) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "85", "high", "Confidence: high", "80-90%", "Confidence: 80-90%", "Confidence: 80 to 90%", "about 85%", "Confidence: ~85%",
        "I am 85% sure", "Confidence: 60%, then confidence: 70%", "Confidence: 60%, then confidence: high", "120%", "11/10", "1.5", "-0.5",
        "0,85", "85%%", "Confidence: 0.85.1", "Confidence:", " ", "Confidence: 8 / 0", "Confidence: 1e-3", "٨٥%x",
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="states"):
        parse_confidence(text)


def test_a_scale_gives_whole_numbers_their_unit() -> None:
    assert parse_confidence("Confidence: 85", scale=100) == 0.85
    assert parse_confidence("1", scale=10) == 0.1
    assert parse_confidence("0.5", scale=100) == 0.5
    with pytest.raises(InputError, match="above 1"):
        parse_confidence("85", scale=10)


def test_stated_confidences_are_predictions_and_the_row_that_is_not_understood_is_named() -> None:
    data = verbalized(["Confidence: 100%", "Confidence: 30%"], [False, True])
    assert data.probs[:, 1].tolist() == [0.995, 0.3]
    assert data.require_labels().tolist() == [0, 1]
    assert data.features["stated"].tolist() == [1.0, 0.3]
    with pytest.raises(InputError, match=r"answer 1: 'Quite sure\.' states no confidence"):
        verbalized(["50 %", "Quite sure."])


AB = logs(A=0.6, B=0.3)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: choices([AB], ("A", "A")), "options must be at least two distinct names"),
        (lambda: choices([AB], {"first": ["A"], "second": ["B", " A"]}), "'A' is a spelling of both 'first' and 'second'"),
        (lambda: choices([logs(The=0.9, Well=0.1)], ("A", "B"), missing="bound"), "row 0 has no option .* 'The', 'Well'"),
        (lambda: choices([AB, {}], ("A", "B")), "row 1 has no log-probabilities; ask the server"),
        (lambda: choices([logs(A=0.9, B=0.8)], ("A", "B")), r"row 0 sum to 1\.7, above 1"),
        (lambda: choices([{"A": 0.9, "B": 0.1}], ("A", "B")), "scores must be natural logarithms"),
        (lambda: choices(np.zeros((2, 3)), ("A", "B")), r"shape \(N, 2\), .*not \(2, 3\)"),
        (lambda: choices([AB, AB], ("A", "B"), ["A", "C"]), "the label of row 1 is 'C', which is not among the options A, B"),
        (lambda: sequences([-1.0, math.nan], [1, 1]), "answer 1 must be finite and at most 0"),
        (lambda: sequences([-1.0], [0]), "answer 0 has no tokens"),
    ],
)  # fmt: skip
def test_what_cannot_be_predictions_is_told(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        call()


def sample(
    number: int, target: str, *, options: tuple[str, ...] = (" a", " bäb", " c"), **facts: Any
) -> dict[str, Any]:
    """Return a sample as lm-evaluation-harness 0.4 writes it."""
    asked = {f"gen_args_{i}": {"arg_0": "Q:", "arg_1": option} for i, option in enumerate(options)}
    scored = [[str(-1.0 - i), "False"] for i in range(len(options))]
    return {"doc_id": number, "target": target, "arguments": asked, "filtered_resps": scored, "filter": "none", **facts}


def written(folder: Path, *lines: Any) -> Path:
    path = folder / "samples_arc_easy_2026-01-02T03-04-05.678.jsonl"
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines), encoding="utf-8")
    return path


def test_samples_of_the_harness_are_read_with_their_labels_and_lengths(tmp_path: Path) -> None:
    older = sample(3, "c") | {
        "arguments": [["Q:", " a"], ["Q:", " c"]],
        "filtered_resps": [[["-1.0", "True"]], [["-4.0", "False"]]],
    }
    path = written(tmp_path, sample(1, "0"), sample(2, "bäb"), older)
    data = read_lm_eval(path)
    assert data.logits.tolist() == [[-1, -2, -3], [-1, -2, -3], [-1, -4, -math.inf]]
    assert data.require_labels().tolist() == [0, 1, 1]
    assert list(data.features["id"]) == ["1", "2", "3"]
    assert read_lm_eval(path, normalize="bytes").logits[0].tolist() == [-1, -0.5, -3]  # ä has two bytes
    assert read_lm_eval(path, normalize="characters").logits[0].tolist() == [-1, pytest.approx(-2 / 3), -3]


def test_a_target_that_is_an_index_and_a_text_is_read_as_the_accuracy_of_the_log_says(tmp_path: Path) -> None:
    options = (" 1", " 2", " 3")
    as_index = read_lm_eval(written(tmp_path, sample(1, "1", options=options, acc=0.0)))
    as_text = read_lm_eval(written(tmp_path, sample(1, "1", options=options, acc=1.0)))
    assert [as_index.require_labels().item(), as_text.require_labels().item()] == [1, 0]


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ((), "holds no samples"),
        (("{",), "line 1: not a multiple-choice sample"),
        ((sample(1, "0") | {"filtered_resps": ["42"]},), "calibrant.language.verbalized"),
        ((sample(1, "0"), sample(1, "0", filter="other")), "a doc_id twice"),
        ((sample(7, "d"),), "the target of doc_id 7, 'd', is not one of its options"),
    ],
)
def test_what_is_no_sample_of_the_harness_is_told(tmp_path: Path, lines: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(FileFormatError, match=sentence):
        read_lm_eval(written(tmp_path, *lines))
