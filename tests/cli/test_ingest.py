"""``calibrant ingest``: a language model's log becomes a file that the other commands read."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import Run

import calibrant
from calibrant import Predictions


def line(name: str, p: float, **more: Any) -> dict[str, Any]:
    """Return a response whose first token is A with probability 0.9 p and B with 0.9 (1 − p)."""
    top = [{"token": " A", "logprob": math.log(0.9 * p)}, {"token": " B", "logprob": math.log(0.9 * (1 - p))}]
    content = [{"token": " A", "logprob": top[0]["logprob"], "top_logprobs": top}]
    return {
        "id": name,
        "model": "m",
        "choices": [{"message": {"content": " A"}, "logprobs": {"content": content}}],
        **more,
    }


def write_log(path: Path, rows: int = 400) -> None:
    rng = np.random.default_rng(0)
    p = rng.uniform(0.05, 0.95, rows)
    path.write_text("\n".join(json.dumps(line(f"q{i}", float(value))) for i, value in enumerate(p)))
    sharp = 1 / (1 + ((1 - p) / p) ** 0.5)  # the model is over-confident
    labels = np.where(rng.random(rows) < sharp, "A", "B")
    path.with_name("labels.csv").write_text("id,label\n" + "".join(f"q{i},{one}\n" for i, one in enumerate(labels)))


def test_a_log_is_ingested_fitted_and_evaluated(home: Path, run: Run) -> None:
    write_log(home / "log.jsonl")
    run(
        "ingest log.jsonl p.npz --from vllm --options A,B --labels labels.csv --test .5",
        code=0,
        says="10.0% of the probability on other tokens",
    )
    splits = calibrant.load_splits(home / "p.npz")
    assert set(splits) == {"val", "test"}
    assert sum(map(len, splits.values())) == 400
    run("fit", "p.npz", "--method", "TemperatureScaling", "-o", "c.safetensors", code=0)
    found = run("evaluate", "p.npz", "--split", "test", "--calibrator", "c.safetensors", "--metric", "NLL", "--json")
    before, after = (row["value"] for row in json.loads(found.stdout)["rows"])
    assert after < before


def test_the_split_of_a_question_does_not_change_with_the_others(home: Path, run: Run) -> None:
    write_log(home / "log.jsonl", 100)
    first = (home / "log.jsonl").read_text().splitlines()
    arguments = ("--from", "openai", "--options", "A,B", "--test", ".3")
    run("ingest", "log.jsonl", "all.npz", *arguments, code=0)
    (home / "log.jsonl").write_text("\n".join(first[:50]))
    run("ingest", "log.jsonl", "half.npz", *arguments, code=0)
    whole, half = calibrant.load_splits(home / "all.npz"), calibrant.load_splits(home / "half.npz")
    assert 15 <= len(whole["test"]) <= 45
    for name in ("val", "test"):
        data, part = whole[name], half[name]
        assert isinstance(data, Predictions)
        assert isinstance(part, Predictions)
        assert data.logits[: len(part)].tolist() == part.logits.tolist()


def test_each_kind_of_answer_is_ingested(home: Path, run: Run) -> None:
    yes = [{"token": "Yes", "logprob": -0.2}, {"token": "No", "logprob": -1.8}]
    levels = [{"token": str(i), "logprob": -6.0 - i / 10} for i in range(1, 6)]
    content = [{"token": "Yes", "logprob": -0.2, "top_logprobs": yes + levels}]
    choice = {"message": {"content": "Yes. Confidence: 85"}, "logprobs": {"content": content}}
    levels_sum = math.fsum(math.exp(one["logprob"]) for one in levels)
    (home / "log.jsonl").write_text(json.dumps({"custom_id": "a", "response": {"body": {"choices": [choice]}}}))
    (home / "labels.json").write_text('{"a": 1}')
    expected = {
        "sequences": math.exp(-0.2),
        "yes-no": 1 / (1 + math.exp(-1.6)),
        "verbalized": 0.85,
        "rating": (math.fsum(i * math.exp(-6.0 - i / 10) for i in range(1, 6)) / levels_sum - 1) / 4,
    }
    for kind, p in expected.items():
        more = ["--scale", "100"] if kind == "verbalized" else []
        run(f"ingest log.jsonl {kind}.npz --from openai --as {kind} --labels labels.json", *more, code=0)
        data = calibrant.load_splits(home / f"{kind}.npz")["all"]
        assert isinstance(data, Predictions)
        assert data.probs[0, 1].item() == pytest.approx(p, rel=1e-9)
        assert data.need_labels().tolist() == [1]


def test_a_pair_in_both_orders_is_ingested(home: Path, run: Run) -> None:
    (home / "one.jsonl").write_text("\n".join(json.dumps(line(f"q{i}", 0.8)) for i in range(20)))
    (home / "two.jsonl").write_text("\n".join(json.dumps(line(f"q{i}", 0.5)) for i in range(20)))
    run("ingest one.jsonl p.npz --from openai --as pairwise --swapped two.jsonl --test .5", code=0)
    data = calibrant.load_splits(home / "p.npz")["test"]
    assert isinstance(data, Predictions)
    assert data.probs[0].tolist() == [pytest.approx(2 / 3), pytest.approx(1 / 3)]  # the log-odds of 4 to 1, halved


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--from openai", "expected scored options of 'q0', got a free answer; name the options"),
        ("--from openai --options A", "at least two distinct options"),
        ("--from openai --options A,,B", "distinct names with commas between them for --options"),
        ("--from openai --options A,C", "use its largest possible probability (--missing bound)"),
        ("--from openai --options A,B --score sum", "got --score for --as choices; leave it out"),
        ("--from openai --as sequences --filter x", "got --filter for --from openai; leave it out"),
        ("--from openai --as verbalized", "log.jsonl, 'q0': expected one confidence"),
        ("--from inspect --as sequences", "expected an Inspect log in JSON"),
        ("--from lm-eval", "expected samples of lm-evaluation-harness"),
        ("--from openai --options A,B --labels none.csv", "no such file"),
        ("--from openai --options A,B --test 1", "expected --test in (0, 1)"),
        ("--from openai --as pairwise --swapped ./log.jsonl", "got the log itself, ./log.jsonl"),
        ("--from openai --as pairwise --swapped hard.jsonl", "got the log itself, hard.jsonl"),
        ("--from openai --as pairwise --swapped link.jsonl", "got the log itself, link.jsonl"),
        ("--from openai --as verbalized --scale 0", "expected --scale as an integer"),
        ("--from openai --as rating --low -1", "expected --low as an integer"),
        ("--from openai --as rating --high 12", "expected --high as an integer"),
        ("--from openai --options A,B --labels .", "got the folder .; name a file inside it"),
        ("--from other --options A,B", "expected arguments as in calibrant ingest --help"),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_is_written(home: Path, run: Run, arguments: str, sentence: str) -> None:
    write_log(home / "log.jsonl", 20)
    (home / "hard.jsonl").hardlink_to(home / "log.jsonl")
    (home / "link.jsonl").symlink_to(home / "log.jsonl")
    run(f"ingest log.jsonl p.npz {arguments}", code=2, says=sentence)
    assert not (home / "p.npz").exists()


def test_the_log_is_never_written_over(home: Path, run: Run) -> None:
    write_log(home / "log.jsonl", 20)
    (home / "log.jsonl").rename(home / "log.npz")
    run("ingest", "log.npz", "log.npz", "--from", "openai", "--options", "A,B", code=2)
    run("ingest", "log.npz", "p.csv", "--from", "openai", "--options", "A,B", code=2)


def test_a_folder_in_the_logs_place_is_what_is_refused(home: Path, run: Run) -> None:
    write_log(home / "log.jsonl", 20)
    (home / "p.npz").write_text("there already")
    done = run("ingest", ".", "p.npz", "--from", "openai", "--options", "A,B")
    assert (done.exit_code, done.stderr) == (2, "error: expected a file, got the folder .; name a file inside it\n")
    assert (home / "p.npz").read_text() == "there already"
