"""The record of the run of SmolLM2: its figures are those of its scores, and the page shows them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.language.measure import OPTIONS, sentiment, words, words_of
from benchmarks.language.tokens import ALL, ONE

from calibrant import BinaryPairs, Predictions, language
from calibrant.errors import UsageWarning
from calibrant.metrics import ECE

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "docs" / "results" / "language.json").read_text(encoding="utf-8"))
    return found


def test_the_figures_are_those_of_the_scores(record: dict[str, Any]) -> None:
    kept = record["sentiment"]
    logits = torch.tensor(kept["scores"]["log_probs"], dtype=torch.float64)
    other = 1 - logits.exp().sum(dim=1)
    data = Predictions.from_logits(
        logits, kept["scores"]["labels"], features={"other_mass": other}, unchecked_kind=True
    )
    again = sentiment(data)
    assert again["rows"] == kept["rows"]
    assert again["other_mass"] == pytest.approx(kept["other_mass"], abs=1e-4)  # scores have four digits
    for row, expected in zip(again["results"], kept["results"], strict=True):
        assert row.pop("method") == expected["method"]
        assert row == pytest.approx({name: expected[name] for name in row}, abs=1e-9)


def test_the_figures_of_free_answers_are_those_of_the_scores(record: dict[str, Any]) -> None:
    kept = record["words"]
    sums = torch.tensor(kept["scores"]["log_prob_sum"], dtype=torch.float64)
    length = torch.tensor(kept["scores"]["length"])
    mean = (sums / length).clamp_max(-1e-9)
    features = {"log_prob_sum": sums, "length": length}
    data = Predictions.from_binary_logits(mean - (-mean.expm1()).log(), kept["scores"]["right"], features=features)
    again = words(data)
    assert again["right"] == kept["right"]
    for row, expected in zip(again["results"], kept["results"], strict=True):
        assert row.pop("method") == expected["method"]
        assert row["nll"] == pytest.approx(expected["nll"], abs=1e-3)  # scores have four digits
        assert row["confidence"] == pytest.approx(expected["confidence"], abs=1e-3)


def test_the_record_holds_no_text(record: dict[str, Any]) -> None:
    def texts(value: Any) -> set[str]:
        if isinstance(value, dict):
            return set().union(*map(texts, value.values())) if value else set()
        if isinstance(value, list):
            return set().union(*map(texts, value)) if value else set()
        return {value} if isinstance(value, str) else set()

    assert max(map(len, texts(record))) < 60


def test_free_answers_are_measured_as_the_run_measures_them(tmp_path: Path) -> None:
    for suffix in (".jsonl", ".csv"):
        (tmp_path / f"words{suffix}").write_bytes(
            (ROOT / "tests" / "fixtures" / "language" / f"answers{suffix}").read_bytes()
        )
    found = words(words_of(tmp_path))
    assert found["rows"] == [200, 200]
    losses = {row["method"]: row["nll"] for row in found["results"]}
    assert losses["with sum and length"] < losses["Platt"] < losses["exp of the mean log-probability"]


def test_the_log_in_a_clone_gives_the_scores_of_the_record(record: dict[str, Any]) -> None:
    folder = ROOT / "tests" / "fixtures" / "smollm2"
    log = language.read_openai(folder / "sentiment.jsonl")
    with pytest.warns(UsageWarning, match="left out 28 of 300"):
        found = language.choices(log, OPTIONS, labels=language.read_labels(folder / "sentiment.csv"), missing="drop")
    assert found.logits.tolist() == [pytest.approx(row, abs=2e-4) for row in record["sentiment"]["scores"]["log_probs"]]
    assert found.need_labels().tolist() == record["sentiment"]["scores"]["labels"]


@pytest.fixture(scope="module")
def tokens() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "docs" / "results" / "tokens.json").read_text(encoding="utf-8"))
    return found


def test_the_figures_of_tokens_are_those_of_the_confidences_in_a_clone(tokens: dict[str, Any]) -> None:
    rows = {row["method"]: row for row in tokens["results"]}
    with np.load(ROOT / "tests" / "fixtures" / "smollm2" / "tokens.npz") as file:
        for key, name in (("one", ONE), ("adaptive", ALL)):
            pairs = BinaryPairs.from_probs(file[key].astype(float), file["right"])
            assert ECE()(pairs) == pytest.approx(rows[name]["ece"], abs=1e-5)
            assert float(pairs.p.mean()) == pytest.approx(rows[name]["confidence"], abs=1e-6)
            assert float(pairs.y.mean()) == pytest.approx(rows[name]["accuracy"])
    assert rows["none"]["nll"] == pytest.approx(tokens["fused_loss"], rel=1e-5)  # computed without LinearLogits
    assert tokens["peak_mib"] < tokens["logits_mib"]
