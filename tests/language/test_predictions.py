"""Answers of a log as predictions: hand-computed probabilities, bounds, and the sentences of what cannot be one."""

import math
from collections.abc import Callable

import pytest
import torch

from calibrant.errors import InputError, UsageWarning
from calibrant.language import (
    Log,
    Option,
    Response,
    Token,
    choices,
    pairwise,
    parse_confidence,
    rating,
    sequences,
    verbalized,
    yes_no,
)


def said(name: str, top: dict[str, float], **facts: object) -> Response:
    """Return an answer of one token with top probabilities."""
    first = next(iter(top))
    logs = {text: math.log(p) for text, p in top.items()}
    return Response(name, first, (Token(first, logs[first], logs),), features={"model": "m"}, **facts)  # type: ignore[arg-type]


def test_an_options_probability_is_that_of_its_spellings() -> None:
    log = Log((said("q", {" A": 0.5, "A": 0.1, "ĠB": 0.2, "▁B": 0.05, " The": 0.1}),))
    data = choices(log, ("A", "B"), labels={"q": "B"})
    assert data.logits.exp().tolist() == [[pytest.approx(0.6), pytest.approx(0.25)]]
    assert data.labels.tolist() == [1]
    assert data.features["other_mass"].tolist() == [pytest.approx(0.15)]
    assert data.features["bounded"].tolist() == [0]
    assert list(data.features["model"]) == ["m"]


def test_white_space_before_the_answer_is_passed_over() -> None:
    answer = said("q", {"A": 0.6, "B": 0.3})
    spaced = Response("q", "\n A", (Token("\n", -0.1, {"\n": -0.1, "A": -3.0}), *answer.tokens))
    assert choices(Log((spaced,)), ("A", "B")).logits.exp().tolist() == [[pytest.approx(0.6), pytest.approx(0.3)]]


@pytest.mark.parametrize(
    ("top", "most"),
    [
        ({"A": 0.6, "B": 0.3, "x": 0.04}, 0.04),  # no more than the least that was returned
        ({"A": 0.6, "B": 0.3, "x": 0.09}, 0.01),  # no more than what is missing to 1
        ({"A": 0.001, "B": 0.6, "x": 0.2}, 0.199),  # a sampled token is returned however improbable: it bounds nothing
    ],
)
def test_a_missing_option_is_refused_bounded_or_its_answer_dropped(top: dict[str, float], most: float) -> None:
    log = Log((said("q1", {"A": 0.5, "B": 0.3, "C": 0.1}), said("q2", top)), "log.jsonl")
    with pytest.raises(
        InputError,
        match=r"log.jsonl: expected every option among the top tokens of 'q2', got none for 'C'; ask for more top_logprobs",
    ):
        choices(log, ("A", "B", "C"))
    bounded = choices(log, ("A", "B", "C"), missing="bound")
    assert bounded.logits[1, 2].exp().item() == pytest.approx(most, rel=1e-9)
    assert bounded.features["bounded"].tolist() == [0, 1]
    with pytest.warns(UsageWarning, match="left out 1 of 2 answers"):
        kept = choices(log, ("A", "B", "C"), missing="drop", labels=["B", "C"])
    assert kept.labels.tolist() == [1]


def test_a_bounded_option_has_at_least_its_true_probability() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(200, 12, generator=generator, dtype=torch.float64)
    names = [chr(65 + i) for i in range(12)]
    p = torch.softmax(logits, dim=1)
    drawn = torch.multinomial(p, 1, generator=generator)[:, 0].tolist()
    answers = []
    for row, sampled in enumerate(drawn):
        top = p[row].topk(5).indices.tolist()
        kept = [sampled, *(i for i in top if i != sampled)]  # the sampled token comes with the top ones
        answers.append(said(str(row), {names[i]: p[row, i].item() for i in kept}))
    got = choices(Log(tuple(answers)), names, missing="bound").logits.exp()
    assert bool((got >= p - 1e-9).all())


def test_top_log_probabilities_may_be_rounded_to_two_digits() -> None:
    assert len(choices(Log((said("a", {"A": 0.905, "B": 0.1}),)), ("A", "B"))) == 1


def test_labels_are_options_names_by_id_or_in_order() -> None:
    both = {"A": 0.6, "B": 0.3}
    log = Log((said("q/0", both, question="q"), said("q/1", both, question="q")))
    groups = choices(log, ("A", "B")).groups
    assert groups.tolist() == [0, 0]
    assert choices(log, ("A", "B"), labels={"q": "B"}).need_labels().tolist() == [1, 1]


def scored(*values: float, target: str | None = "a") -> Response:
    texts = (" a", " bäb", " c")
    options = tuple(Option(text, value) for text, value in zip(texts, values, strict=False))
    return Response("1", options=options, target=target)


def test_scored_options_are_logits_and_places_left_over_are_excluded() -> None:
    data = choices(Log((scored(-1.0, -2.0, -3.0), scored(-1.0, -4.0, target="bäb"))))
    assert data.logits.tolist() == [[-1, -2, -3], [-1, -4, -math.inf]]
    assert data.need_labels().tolist() == [0, 1]
    by_bytes = choices(Log((scored(-1.0, -2.0, -3.0),)), normalize="bytes")
    assert by_bytes.logits.tolist() == [[-1, -0.5, -3]]  # ä has two bytes
    by_characters = choices(Log((scored(-1.0, -2.0, -3.0),)), normalize="characters")
    assert by_characters.logits.tolist() == [[-1, pytest.approx(-2 / 3), -3]]


def test_a_sequences_score_is_the_mean_or_the_sum_of_its_log_probabilities() -> None:
    answer = Response("q", "Paris", (Token("Par", -0.1, {}), Token("is", -0.3, {})), right=True, features={"task": "t"})
    mean, total = sequences(Log((answer,))), sequences(Log((answer,)), score="sum")
    assert mean.probs[0, 1].item() == pytest.approx(math.exp(-0.2), rel=1e-12)
    assert total.probs[0, 1].item() == pytest.approx(math.exp(-0.4), rel=1e-12)
    assert mean.need_labels().tolist() == [1]
    assert {name: column.tolist() for name, column in mean.features.items()} == {
        "id": ["q"], "task": ["t"], "log_prob_mean": [pytest.approx(-0.2)], "log_prob_sum": [pytest.approx(-0.4)], "length": [2]
    }  # fmt: skip
    sure = Response("q", "A", (Token("A", 0.0, {}),))
    assert math.isfinite(sequences(Log((sure,))).logits[0, 1].item())


def test_a_judge_of_yes_and_no() -> None:
    log = Log((said("a", {"Yes": 0.5, " yes": 0.1, "No": 0.2}, target="Paris"), said("b", {"No": 0.7, "Yes": 0.1})))
    data = yes_no(log, labels={"a": "right", "b": 0})
    assert data.probs[:, 1].tolist() == [pytest.approx(0.75), pytest.approx(0.125)]
    assert data.need_labels().tolist() == [1, 0]


def test_a_judges_rating_is_the_expected_level() -> None:
    log = Log(
        (said("a", {"5": 0.5, "4": 0.25, "3": 0.25}), said("b", {"1": 0.5, "2": 0.3, "3": 0.1, "4": 0.05, "5": 0.05}))
    )
    with pytest.raises(InputError, match="got none for '1'"):
        rating(log)
    data = rating(log, labels=[1, 0], missing="bound")
    assert data.features["rating"][1].item() == pytest.approx(1.85)
    assert data.probs[1, 1].item() == pytest.approx(0.85 / 4)
    assert data.need_labels().tolist() == [1, 0]
    assert data.features["rating"][0].item() == pytest.approx(4.25, abs=1e-5)  # nothing is missing to 1
    with pytest.warns(UsageWarning, match="left out 1 of 2"):
        assert rating(log, labels=[1, 0], missing="drop").need_labels().tolist() == [0]


def test_both_orders_of_a_pair_remove_the_preference_for_a_place() -> None:
    log_odds, place = 0.8, 0.5  # of the second answer; toward the second place
    p, q = (1 / (1 + math.exp(-x)) for x in (log_odds + place, -log_odds + place))
    first = Log((said("q", {"A": 1 - p, "B": p}),))
    second = Log((said("q", {"A": 1 - q, "B": q}),))
    data = pairwise(first, second, labels=["B"])
    assert (data.logits[0, 1] - data.logits[0, 0]).item() == pytest.approx(log_odds, abs=1e-9)
    assert data.features["place_effect"].item() == pytest.approx(place, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("85%", 0.85),
        ("85 %.", 0.85),
        ("0.85", 0.85),
        (".5", 0.5),
        ("8/10", 0.8),
        ("Paris.\nConfidence: 85 %", 0.85),
        ("**Confidence:** 0.85", 0.85),
        ("The confidence score is 9 out of 10.", 0.9),
        ('{"answer": "x", "confidence": 0.7}', 0.7),
        ("confidence = 100%", 1.0),
        ("Confidence level: 0%", 0.0),
        ("In 1998, 12 of 20. Confidence: 60%", 0.6),
        ("Confidence: 60% … so confidence: 60%", 0.6),
    ],
)
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
    with pytest.raises(InputError, match="expected"):
        parse_confidence(text)


def test_a_scale_gives_whole_numbers_their_unit() -> None:
    assert parse_confidence("Confidence: 85", scale=100) == 0.85
    assert parse_confidence("1", scale=10) == 0.1
    assert parse_confidence("0.5", scale=100) == 0.5
    with pytest.raises(InputError, match="at most 1"):
        parse_confidence("85", scale=10)


def test_stated_confidences_are_predictions_and_the_row_that_is_not_understood_is_named() -> None:
    log = Log(
        (Response("a", "Confidence: 100%", right=False), Response("b", "Confidence: 30%", right=True)), "log.json"
    )
    data = verbalized(log)
    assert data.probs[:, 1].tolist() == [0.995, 0.3]
    assert data.need_labels().tolist() == [0, 1]
    assert data.features["stated"].tolist() == [1.0, 0.3]
    with pytest.raises(InputError, match=r"log\.json, 'c': expected one confidence"):
        verbalized(Log((Response("c", "Quite sure."),), "log.json"))


def test_a_log_is_selected_as_a_list_is() -> None:
    log = Log(tuple(Response(str(i)) for i in range(5)))
    assert log[1:3].ids == ("1", "2")
    assert log[[4, 0]].ids == ("4", "0")
    assert log[torch.tensor([True, False, False, False, True])].ids == ("0", "4")


AB = {"A": 0.6, "B": 0.3}
ONE, TWO = Log((said("q", AB),)), Log((said("a", AB, right=True), said("b", AB)), "log.jsonl")
OTHER, NEITHER = Log((said("other", AB), said("q", AB))), Log((said("q", {" The": 0.9, " Well": 0.1}),))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: choices(NEITHER, "AB"), "expected at least two distinct options, got 'AB'"),
        (lambda: choices(NEITHER, ("A", "B")), r"an option \(A, B\) among the top tokens of 'q', got ' The', ' Well'"),
        (lambda: choices(NEITHER, ("A", "B"), missing="bound"), r"an option \(A, B\) among the top tokens of 'q'"),
        (lambda: choices(Log((Response("q", "A"),)), ("A", "B")), "expected top log-probabilities of 'q', got none"),
        (
            lambda: choices(Log((Response("q", "A", (Token("A", -1.0, {}),)),)), ("A", "B")),
            "got its own tokens' alone; ask the server for logprobs with top_logprobs=20",
        ),
        (
            lambda: choices(Log((said("a", {"A": 0.9, "B": 0.8}),), "log.jsonl"), ("A", "B")),
            r"log\.jsonl: expected top log-probabilities of 'a' that sum to at most 1, got 1\.7",
        ),
        (lambda: choices(TWO, ("A", "B"), labels={"p": "B"}), r"every answer, got none for 'a' of log\.jsonl"),
        (lambda: choices(TWO, ("A", "B"), labels=["A", "C"]), "the true option of 'b' among A, B, got 'C'"),
        (lambda: choices(TWO, ("A", "B"), labels=["A"]), "expected 2 labels, got 1"),
        (lambda: choices(ONE, {"first": ["A"], "second": ["B", " A"]}), "a spelling of one option, got 'A'"),
        (lambda: choices(ONE), "expected scored options of 'q', got a free answer"),
        (lambda: sequences(Log((scored(-1.0, -2.0),))), "a free answer in '1', got scored options; use choices"),
        (lambda: choices(Log((scored(-1.0, -2.0),)), ("a", "b")), "leave options out: the log names them"),
        (lambda: choices(ONE, ("A", "B"), normalize="bytes"), "leave normalize out"),
        (
            lambda: sequences(Log((Response("0", "18", right=True),))),
            "log-probabilities of the answer '0', got none; .*generation logs of lm-evaluation-harness",
        ),
        (lambda: sequences(Log((Response("0", "18", (Token("18", -math.inf, {}),)),))), "got −9999"),
        (lambda: sequences(TWO), "a score for every answer, got none for 'b'"),
        (lambda: sequences(TWO, labels=["A", "B"]), "labels that say right or wrong"),
        (lambda: sequences(ONE[:0]), "expected a log with answers"),
        (lambda: pairwise(ONE, OTHER), "the same ids in both orders, each once, got 'other'"),
    ],
)
def test_what_cannot_be_predictions_is_told(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        call()
