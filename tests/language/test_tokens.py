"""Classes of tokens, and ids that a vocabulary does not have."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.language import tokens as benchmark

from calibrant.errors import InputError
from calibrant.language import token_classes


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Ġthe", "word"), ("▁Der", "word"), (" le", "word"), ("ing", "part"), ("Ünd", "part"), ("Ġ1990", "number"),
        ("3", "number"), ("Ġ(", "punctuation"), ("...", "punctuation"), ("Ġ", "space"), ("ĊĊ", "space"), ("", "space"),
        ("<|im_end|>", "control"), ("[MASK]", "control"), ("Ġ<", "punctuation"),
    ],
)  # fmt: skip
def test_a_token_has_a_class(text: str, name: str) -> None:
    assert token_classes(["x", text], torch.tensor([1])).tolist() == [name]
    assert token_classes(["x", text], torch.zeros(0, dtype=torch.int64)).tolist() == []


@pytest.mark.parametrize(
    ("vocabulary", "tokens", "sentence"),
    [
        (["a", "b"], [0, 2], "expected ids below the vocabulary's 2 tokens, got 0 … 2; use the tokenizer of the model"),
        (["a", "b"], [-100, 1], "got -100 … 1"),
        (["a", "b"], [0.5], "ids of tokens"),
        (["a", "b"], torch.tensor([True, False]), "ids of tokens"),
        (["a", None], [0], "a text for every token, got None for token 1"),
        ("ab", [0], "a vocabulary as a list of texts"),
        ([], [0], "a vocabulary as a list of texts"),
    ],
)
def test_a_tokenizer_that_does_not_match_is_refused(vocabulary: Any, tokens: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        token_classes(vocabulary, tokens)


def test_a_run_is_measured_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(0)
    texts, places, classes = 60, 8, 60
    hidden, head = torch.randn(texts * places, 8, generator=rng), torch.randn(classes, 8, generator=rng)
    labels = torch.multinomial(torch.softmax(hidden @ head.T / 1.5, dim=1), 1, generator=rng)[:, 0]
    arrays = {"hidden": hidden.half(), "labels": labels, "position": torch.arange(1, places + 1).repeat(texts)}
    text = torch.arange(texts).repeat_interleave(places)
    np.savez(tmp_path / "tokens.npz", text=text.numpy(), **{name: one.numpy() for name, one in arrays.items()})
    np.save(tmp_path / "head.npy", head.numpy())
    (tmp_path / "vocabulary.json").write_text(json.dumps(["Ġthe", "ing", "."] * 20))
    monkeypatch.setattr(benchmark, "PAIRS", tmp_path / "pairs.npz")
    fit, test = benchmark.halves(tmp_path)
    assert set(fit.texts.tolist()).isdisjoint(test.texts.tolist())
    found = benchmark.measured(fit, test)
    rows = {row["method"]: row for row in found["results"]}
    assert list(rows) == ["none", *benchmark.METHODS]
    assert rows["none"]["nll"] == pytest.approx(found["fused_loss"], rel=1e-5)
    assert rows[benchmark.ONE]["nll"] < rows["none"]["nll"] - 0.02
    assert rows[benchmark.ONE]["versus"] is None
    assert len({row["accuracy"] for row in rows.values()}) == 1  # no method changes a decision
    assert (tmp_path / "pairs.npz").exists()
    assert len(benchmark.table(found)) == 2 + len(rows)
