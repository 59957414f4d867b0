"""Logs as their programs write them: what is read of them, and what is refused."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calibrant.errors import FileFormatError
from calibrant.language import Option, read_inspect, read_labels, read_lm_eval, read_openai


def written(folder: Path, name: str, *lines: Any) -> Path:
    path = folder / name
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return path


def chat(name: str = "chatcmpl-1", **token: Any) -> dict[str, Any]:
    """Return a response of chat/completions with one token."""
    top = [{"token": " A", "logprob": -0.25, "bytes": [32, 65]}, {"token": "B", "logprob": -1.75, "bytes": [66]}]
    content = [{"token": " A", "logprob": -0.25, "bytes": [32, 65], "top_logprobs": top, **token}]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": " A", "refusal": None},
        "logprobs": {"content": content, "refusal": None},
        "finish_reason": "length",
    }
    return {"id": name, "object": "chat.completion", "created": 1, "model": "gpt-x", "choices": [choice], "usage": {}}


def completion() -> dict[str, Any]:
    """Return a response of completions, as vLLM's server writes it."""
    kept = {
        "tokens": [" Par", "is"],
        "token_logprobs": [-0.5, -0.1],
        "top_logprobs": [{" Par": -0.5, " Lon": -1.5}, {"is": -0.1, "ma": -9999.0}],
        "text_offset": [0, 4],
    }
    choice = {"index": 0, "text": " Paris", "logprobs": kept, "finish_reason": "stop", "stop_reason": None}
    return {"id": "cmpl-1", "object": "text_completion", "model": "m", "choices": [choice]}


def test_chat_completions_and_text_completions_are_read(tmp_path: Path) -> None:
    log = read_openai(written(tmp_path, "log.jsonl", chat(), completion()))
    assert log.ids == ("chatcmpl-1", "cmpl-1")
    assert log.responses[0].tokens[0].top == {" A": -0.25, "B": -1.75}
    assert log.responses[0].features == {"model": "gpt-x"}
    assert log.responses[1].text == " Paris"
    assert log.responses[1].log_prob == pytest.approx(-0.6, abs=1e-12)
    assert log.responses[1].tokens[1].top == {"is": -0.1}  # −9999 stands for a value that the server has not


def test_a_batch_file_is_read_by_its_custom_ids_and_its_failures_are_refused_or_left_out(tmp_path: Path) -> None:
    good = {
        "id": "b1",
        "custom_id": "q7",
        "response": {"status_code": 200, "request_id": "r", "body": chat()},
        "error": None,
    }
    bad = {"id": "b2", "custom_id": "q8", "response": None, "error": {"code": "batch_expired", "message": "late"}}
    limited = {"id": "b3", "custom_id": "q9", "response": {"status_code": 429, "body": {"error": {}}}, "error": None}
    assert read_openai(written(tmp_path, "good.jsonl", good)).ids == ("q7",)
    path = written(tmp_path, "all.jsonl", good, "", bad, limited)
    with pytest.raises(FileFormatError, match=r"line 3: expected a response, got a failed request .*skip_failed=True"):
        read_openai(path)
    assert read_openai(path, skip_failed=True).ids == ("q7",)
    with pytest.raises(FileFormatError, match="failed requests alone"):
        read_openai(written(tmp_path, "none.jsonl", bad), skip_failed=True)


def test_several_choices_of_one_response_are_answers_of_their_own(tmp_path: Path) -> None:
    two = chat()
    two["choices"].append({**two["choices"][0], "index": 1})
    assert read_openai(written(tmp_path, "log.jsonl", two)).ids == ("chatcmpl-1/0", "chatcmpl-1/1")


def test_a_response_without_log_probabilities_has_no_tokens(tmp_path: Path) -> None:
    plain = chat()
    plain["choices"][0]["logprobs"] = None
    log = read_openai(written(tmp_path, "log.jsonl", plain))
    assert log.responses[0].tokens == ()
    assert log.responses[0].log_prob == -math.inf


def test_names_that_cannot_be_stored_are_replaced(tmp_path: Path) -> None:
    line = json.dumps(chat()).replace("gpt-x", "\\ud800").replace("chatcmpl-1", "\\udfff")
    (one,) = read_openai(written(tmp_path, "log.jsonl", line))
    assert (one.id, one.features) == ("?", {"model": "?"})


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileFormatError, match="expected text in UTF-8"):
        read_openai(tmp_path / "log.jsonl")


def sample(**more: Any) -> dict[str, Any]:
    """Return a multiple-choice sample as lm-evaluation-harness logs it: numbers are text."""
    asked = {
        f"gen_args_{i}": {"arg_0": "Question: …\nAnswer:", "arg_1": f" {text}"}
        for i, text in enumerate(("cat", "dogs"))
    }
    answers = [["-3.5", "False"], ["-2.25", "True"]]
    facts = {"doc_id": 4, "doc": {"q": "…"}, "target": "1", "arguments": asked, "resps": [[one] for one in answers]}
    return {
        **facts,
        "filtered_resps": answers,
        "filter": "none",
        "metrics": ["acc"],
        "acc": 1.0,
        "doc_hash": "0",
        **more,
    }


def generation(**more: Any) -> dict[str, Any]:
    asked = {"gen_args_0": {"arg_0": "Question", "arg_1": {"until": ["\n"]}}}
    facts = {"doc_id": 0, "target": "18", "arguments": asked, "resps": [["It is 18."]], "filtered_resps": ["18"]}
    return {**facts, "filter": "strict-match", "exact_match": 1.0, **more}


def test_samples_of_a_multiple_choice_are_read(tmp_path: Path) -> None:
    log = read_lm_eval(written(tmp_path, "samples_arc_easy_2026-01-02T03-04-05.678.jsonl", sample()), model="m")
    (one,) = log
    assert one.options == (Option(" cat", -3.5), Option(" dogs", -2.25))
    assert (one.id, one.target, one.right, one.features) == ("4", "dogs", True, {"model": "m", "task": "arc_easy"})


def test_samples_in_the_older_layout_are_read(tmp_path: Path) -> None:
    older = sample(arguments=[["…", " cat"], ["…", " dogs"]], filtered_resps=[[-3.5, False], [-2.25, True]], target=0)
    (one,) = read_lm_eval(written(tmp_path, "samples_t.jsonl", older))
    assert one.options == (Option(" cat", -3.5), Option(" dogs", -2.25))
    assert one.target == "cat"


def test_samples_of_a_generation_are_read_by_filter(tmp_path: Path) -> None:
    path = written(
        tmp_path, "samples_gsm8k.jsonl", generation(), generation(filter="flexible-extract", exact_match=0.0)
    )
    with pytest.raises(
        FileFormatError,
        match="line 2: expected the answers of one filter, got those of 'flexible-extract' and 'strict-match'",
    ):
        read_lm_eval(path)
    (one,) = read_lm_eval(path, filter="flexible-extract")
    assert (one.text, one.right) == ("18", False)
    with pytest.raises(
        FileFormatError, match="answers of the filter 'x', got those of 'strict-match', 'flexible-extract'"
    ):
        read_lm_eval(path, filter="x")


def evaluation(*samples: dict[str, Any]) -> dict[str, Any]:
    about = {"task": "capitals", "model": "openai/gpt-x", "run_id": "r"}
    return {"version": 2, "status": "success", "eval": about, "plan": {}, "samples": list(samples)}


def inspected(value: Any = "C", **more: Any) -> dict[str, Any]:
    choice = {"message": {"role": "assistant", "content": "A"}, "stop_reason": "stop", "logprobs": {"content": [
        {"token": "A", "logprob": -0.1, "bytes": None, "top_logprobs": [{"token": "A", "logprob": -0.1, "bytes": None}]}
    ]}}  # fmt: skip
    output = {"model": "gpt-x", "choices": [choice], "completion": "A"}
    scores = {"choice": {"value": value, "answer": "A", "explanation": None, "metadata": {}}}
    return {
        "id": "q1",
        "epoch": 1,
        "input": "…",
        "choices": ["x", "y"],
        "target": ["A"],
        "output": output,
        "scores": scores,
        **more,
    }


def test_an_inspect_log_is_read(tmp_path: Path) -> None:
    log = read_inspect(written(tmp_path, "log.json", evaluation(inspected(), inspected("I", id=2, epoch=2))))
    assert log.ids == ("q1/1", "2/2")
    one, other = log
    assert (one.right, other.right) == (True, False)
    assert (one.target, one.text, one.tokens[0].top) == ("A", "A", {"A": -0.1})
    assert one.features == {"model": "openai/gpt-x", "task": "capitals"}


def test_scores_of_inspect_are_right_from_a_least_value_on(tmp_path: Path) -> None:
    path = written(tmp_path, "log.json", evaluation(inspected("P"), inspected(0.8, id="b"), inspected(0.2, id="c")))
    with pytest.raises(
        FileFormatError, match="sample q1: expected the score of 'choice' as right or wrong, got 'P'; pass least"
    ):
        read_inspect(path)
    assert [one.right for one in read_inspect(path, least=0.5)] == [True, True, False]


def test_of_several_scorers_one_is_named(tmp_path: Path) -> None:
    two = {"match": {"value": "I"}, "model_graded_qa": {"value": "C"}}
    path = written(tmp_path, "log.json", evaluation(inspected(scores=two)))
    with pytest.raises(FileFormatError, match="expected one scorer, got match, model_graded_qa"):
        read_inspect(path)
    assert read_inspect(path, scorer="model_graded_qa").responses[0].right is True
    with pytest.raises(FileFormatError, match="expected a score of 'x', got those of match"):
        read_inspect(path, scorer="x")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("l.csv", "id,label\nq1,A\nq2,1\n"),
        ("l.tsv", "label\tid\nA\tq1\n1\tq2\n"),
        ("l.json", '{"q1": "A", "q2": 1}'),
        ("l.jsonl", '{"id": "q1", "label": "A"}\n{"id": "q2", "label": 1}\n'),
    ],
)
def test_labels_are_read_from_each_format(tmp_path: Path, name: str, content: str) -> None:
    assert read_labels(written(tmp_path, name, content)) == {"q1": "A", "q2": "1"}


def one_token(log_probs: list[Any]) -> dict[str, Any]:
    return {"choices": [{"text": "a", "logprobs": {"tokens": ["a"], "token_logprobs": log_probs}}]}


RESPONSES = [
    ("{", "line 1: expected responses of chat/completions or completions, one JSON object per line"),
    ("[1]", "line 1: expected a line as an object, got a list"),
    ("", "got an empty file"),
    ({"id": "x"}, "expected choices as a list, got none"),
    ({"choices": []}, "expected at least one choice, got none"),
    ({"object": "response", "output": []}, "got one of the responses API; log chat/completions"),
    ({"choices": [{"delta": {"content": "A"}}]}, "got neither; log whole responses, not streamed pieces"),
    (chat(logprob=None), "expected logprob as a natural logarithm ≤ 0, got none"),
    (chat(logprob=0.7), r"expected logprob as a natural logarithm ≤ 0, got 0\.7"),
    (chat(logprob=[]), r"expected logprob as a natural logarithm ≤ 0, got \[\]"),
    (chat(token=3), "expected token as text, got a number"),
    (chat(top_logprobs=[{"token": "A"}]), "the logprob of a top token as a natural logarithm ≤ 0, got none"),
    (one_token([math.nan]), "NaN in place of a number"),
    (one_token([]), "got 1, 0 and 1"),
    (one_token([None]), "ask without echo"),
    ("[" * 100_000, "expected responses"),
]
SAMPLES = [
    (chat(), "expected samples of lm-evaluation-harness"),
    (
        sample(filtered_resps=[["nan", "False"], ["-1", "True"]]),
        "the log-likelihood of an option as a natural logarithm ≤ 0, got 'nan'",
    ),
    (sample(arguments=[["a", " yes"], ["b", " yes"]]), "expected distinct options, got ' yes' twice"),
    (sample(acc=0.5), "expected acc to be 0 or 1, got 0.5"),
    (sample(arguments=3), "expected arguments as a list, got a number"),
    (generation(filtered_resps=[3]), "expected options with log-likelihoods, or a text, got 3"),
]
INSPECTED = [
    ({"samples": []}, "expected an Inspect log"),
    (evaluation(), "expected samples, got none"),
    (evaluation(inspected({"a": 1})), "the score of 'choice' as C, I, P, N or a number"),
    ("no json", "expected an Inspect log in JSON"),
]


@pytest.mark.parametrize(
    ("read", "name", "content", "sentence"),
    [
        *((read_openai, "log.jsonl", *one) for one in RESPONSES),
        *((read_lm_eval, "samples_t.jsonl", *one) for one in SAMPLES),
        *((read_inspect, "log.json", *one) for one in INSPECTED),
        (read_inspect, "log.eval", "PK", "inspect log convert --to json"),
        (read_labels, "l.csv", "name,label\nq1,A\n", "line 2: expected the fields id and label"),
        (read_labels, "l.csv", "id,label\nq1,A\nq1,B\n", "line 3: expected one label per id, got 'A' and 'B' for 'q1'"),
        (read_labels, "l.csv", "", "expected labels, got none"),
        (read_labels, "l.txt", "A", "expected labels in .csv, .tsv, .jsonl or .json"),
    ],
)
def test_what_is_none_is_refused_in_one_sentence(
    tmp_path: Path, read: Callable[[Path], Any], name: str, content: Any, sentence: str
) -> None:
    with pytest.raises(FileFormatError, match=sentence) as error:
        read(written(tmp_path, name, content))
    assert "\n" not in str(error.value)
