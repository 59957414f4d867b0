"""Scores of other programs and of several sampled answers, as predictions that any calibrator takes."""

import json
import math
from pathlib import Path

import pytest
import torch
from tests.conftest import late

from calibrant.calibrators import PlattScaling
from calibrant.errors import CalibrantError
from calibrant.language import Log, Response, read_lm_polygraph, read_uqlm, sampled, scored

pd = late("pandas")

DATA = {
    "prompts": ["a?", "b?"], "responses": ["Paris", "Rome"], "sampled_responses": [["paris.", "Lyon"], ["Rome", "Rome"]],
    "semantic_negentropy": [0.4, 0.9], "exact_match": [0.5, 1.0],
}  # fmt: skip


@pytest.mark.parametrize("suffix", [".json", ".csv", ".jsonl", ".parquet"])
def test_results_of_uqlm_are_read_from_every_file_they_are_saved_as(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"scored{suffix}"
    frame = pd.DataFrame(DATA).rename(columns={"prompts": "prompt", "responses": "response"})
    if suffix == ".json":
        path.write_text(json.dumps({"data": DATA, "metadata": {}}))
    elif suffix == ".csv":
        frame.to_csv(path, index=False)
    elif suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_parquet(path)
    log = read_uqlm(path)
    assert [one.samples for one in log] == [("paris.", "Lyon"), ("Rome", "Rome")]
    rows = scored(log, scorer="semantic_negentropy", labels=[0, 1])
    assert rows.one_vs_rest(1).p.tolist() == pytest.approx([0.4, 0.9])
    assert set(rows.features or {}) == {"id", "semantic_negentropy", "exact_match"}
    assert sampled(log).probs[:, 1].tolist() == pytest.approx([0.5, 2.5 / 3])


def test_uncertainties_of_lm_polygraph_become_log_odds_that_calibrators_take(tmp_path: Path) -> None:
    lines = [
        {"uncertainty": value, "input_text": f"q{row}", "generation_text": "x", "estimator": name}
        for row in range(40) for name, value in (("MTE", row / 10), ("SAR", [row - 20.0]))
    ]  # fmt: skip
    path = tmp_path / "u.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    log = read_lm_polygraph(path)
    assert len(log) == 40
    labels = {str(row): int(row % 3 > 0 if row < 20 else row % 3 == 0) for row in range(40)}
    rows = scored(log, scorer="SAR", labels=labels)
    assert rows.logits[:, 1].sub(rows.logits[:, 0]).tolist() == pytest.approx([20.0 - row for row in range(40)])
    fitted = PlattScaling().fit(rows)
    assert fitted(rows.logits).isfinite().all()


def test_answers_that_agree_are_surer_and_several_answers_to_a_question_are_its_samples() -> None:
    log = Log((Response("a", " Paris", samples=("paris", "Paris!", "Lyon", "Rome")),))
    rows = sampled(log, labels=[1])
    assert [float(torch.as_tensor(rows.features[name])) for name in ("agreement", "samples")] == [0.5, 4]
    assert float(torch.as_tensor(rows.features["entropy"])) == pytest.approx(1.5 * math.log(2))
    epochs = Log(tuple(Response(f"q/{i}", text, right=text == "4", question="q") for i, text in enumerate("4544")))
    one = sampled(epochs)
    assert (len(one), one.need_labels().tolist()) == (1, [1])
    assert one.one_vs_rest(1).p.tolist() == pytest.approx([3.5 / 5])


@pytest.mark.parametrize(
    ("make", "text", "message"),
    [
        (read_uqlm, '{"prompts": ["a"]}', "expected results of uqlm (prompt, response, scores), got prompt"),
        (read_uqlm, '{"responses": ["a"], "s": [1, 2]}', "expected lists of equal length"),
        (read_lm_polygraph, '{"text": 1}', "expected one uncertainty for each answer, got the fields text"),
        (read_lm_polygraph, '{"uncertainty": [1, 2]}', "estimate it of the whole sequence"),
    ],
)
def test_other_files_are_refused(make: object, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(CalibrantError) as caught:
        make(tmp_path / "x.json")  # type: ignore[operator]
    assert message in str(caught.value)


def test_a_single_line_without_a_line_break_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"response": "Paris", "exact_match": 0.5}')
    assert read_uqlm(tmp_path / "x.jsonl").responses[0].scores == {"exact_match": 0.5}


def test_a_pickled_manager_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "x.man").write_bytes(b"\x80\x04N.")
    with pytest.raises(CalibrantError, match=r"got a pickled manager; write json.dumps"):
        read_lm_polygraph(tmp_path / "x.man")


@pytest.mark.parametrize(
    ("log", "scorer", "message"),
    [
        (Log((Response("a"),)), None, "expected sampled answers to 'a', got none"),
        (Log((Response("a", scores={"x": 1.0, "y": 2.0}),)), "", "expected one scorer of the log, got x, y"),
        (
            Log((Response("a", scores={"x": 1.0}), Response("b"))),
            "x",
            "expected a score 'x' of every answer, got none of 'b'",
        ),
    ],
)
def test_what_the_log_lacks_is_named(log: Log, scorer: str | None, message: str) -> None:
    with pytest.raises(CalibrantError) as caught:
        sampled(log) if scorer is None else scored(log, scorer=scorer or None)
    assert message in str(caught.value)
