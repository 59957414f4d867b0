"""BERT over tokenised texts: padding that changes nothing, kept weights, and a whole small training."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import late, needs
from tests.study.samples import finish, write_texts

from calibrant.errors import CalibrantError, FileFormatError, InputError
from calibrant.study import Training
from calibrant.study.build import make_model
from calibrant.study.data import load_fold
from calibrant.study.models import BertClassifier
from calibrant.study.recipe import Recipe

pytestmark = needs("transformers")

transformers = late("transformers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "a", "(", ")"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    made = transformers.BertTokenizerFast(str(folder / "vocab.txt"), do_lower_case=True)
    made.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the weights of a small BERT."""
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    transformers.BertModel(transformers.BertConfig(vocab_size=11, **sizes)).save_pretrained(folder)
    return str(folder)


def test_padding_changes_no_logit_and_every_parameter_learns(weights: str) -> None:
    model = BertClassifier(3, weights, vocabulary=11)
    ids = torch.tensor([[2, 5, 7, 3], [2, 6, 3, 0]])
    logits = model.eval()(ids)
    assert logits.shape == (2, 3)
    assert torch.allclose(model(torch.cat([ids, torch.zeros(2, 5, dtype=torch.int64)], dim=1)), logits, atol=1e-6)
    assert torch.allclose(model(ids[1:, :3]), logits[1:], atol=1e-6)
    assert not torch.allclose(model(ids.flip(0)), logits, atol=1e-4)
    model.train()(ids).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_texts_are_split_as_words_are_and_trimmed_to_the_longest(tmp_path: Path, tokenizer: str) -> None:
    write_texts(tmp_path, text=["good film", "bad"] * 15, label=[19, 0] * 15)
    data = {"name": "20news", "folder": str(tmp_path), "validation": 6}
    tokens, words = load_fold({**data, "tokenizer": tokenizer}, seed=3), load_fold(data, seed=3)
    for name in ("train", "validation", "test"):
        assert torch.equal(getattr(tokens, name).labels, getattr(words, name).labels)
    ids, labels = tokens.test.batch(torch.tensor([0, 1]))
    assert ids.tolist() == [[2, 5, 7, 3], [2, 6, 3, 0]]
    assert labels.tolist() == [19, 0]
    assert tokens.sizes == {"classes": 20, "vocabulary": 11, "padding": 0}
    short = load_fold({**data, "tokenizer": tokenizer, "length": 3})
    assert short.test.batch(torch.tensor([0]))[0].tolist() == [[2, 5, 3]]


@pytest.mark.slow
def test_a_whole_training_learns_from_kept_weights(tmp_path: Path, tokenizer: str, weights: str) -> None:
    write_texts(tmp_path, text=["good film", "a bad film"] * 15, label=[19, 0] * 15)
    data = {"name": "20news", "folder": str(tmp_path), "validation": 6, "tokenizer": tokenizer, "length": 8}
    plan = Training(epochs=12, batch=8, optimizer="adamw", lr=5e-3)
    model = {"type": "BertClassifier", "weights": weights, "dropout": 0.0}
    recipe = Recipe(data, model, {"type": "CrossEntropyLoss"}, plan)
    outcome = finish(recipe)
    assert outcome.trajectory[-1]["train"]["error"] == 0
    assert outcome.test.correct.all()
    elsewhere = {**data, "tokenizer": f"/elsewhere/{Path(tokenizer).name}"}
    moved = Recipe(elsewhere, {**model, "weights": Path(weights).name}, recipe.loss, plan)
    assert moved.fingerprint == recipe.fingerprint


def test_what_does_not_fit_is_named(tmp_path: Path, weights: str) -> None:
    def refuse(kind: type[CalibrantError], said: str, **sizes: Any) -> None:
        with pytest.raises(kind, match=said):
            make_model({"type": "BertClassifier", "weights": weights, **sizes}, sizes={"classes": 2})

    refuse(FileFormatError, "expected a folder or a name of BERT's weights", weights=str(tmp_path / "none"))
    refuse(InputError, "expected at most 11 tokens, got 12 in the data", vocabulary=12)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"label": [20, 0]}, r"expected texts with labels in 0 … 19 in"),
        ({"text": [None, "a"]}, r"expected texts with labels in 0 … 19 in"),
        ({"text": None}, "expected the columns text and label in"),
        ({}, "expected a tokenizer's folder or name"),
    ],
)
def test_texts_that_do_not_serve_are_named(tmp_path: Path, columns: dict[str, Any], said: str) -> None:
    table = {"text": ["a", "b"], "label": [0, 1], **columns}
    write_texts(tmp_path, **{name: values * 15 for name, values in table.items() if values})
    with pytest.raises(FileFormatError, match=said):
        load_fold({"name": "20news", "folder": str(tmp_path), "validation": 6, "tokenizer": str(tmp_path / "none")})
