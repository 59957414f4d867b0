"""Classes of tokens, and ids that a vocabulary does not have."""

from typing import Any

import pytest
import torch

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
