"""BERT over tokenised sentences: the published size, padding that changes nothing, weights kept, and a whole small training."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import late, needs
from tests.study.samples import finish, write_texts

from calibrant.errors import CalibrantError, FileFormatError, InputError
from calibrant.study import Training
from calibrant.study.data import load_fold
from calibrant.study.models import BertClassifier
from calibrant.study.recipe import Recipe
from calibrant.study.resolve import make_model

pytestmark = needs("transformers")

transformers = late("transformers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "a", "(", ")"]
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    made = transformers.BertTokenizerFast(str(folder / "vocab.txt"), do_lower_case=True)
    made.save_pretrained(folder)
    return str(folder)


def treebank(folder: Path) -> Path:
    (folder / "train.txt").write_text("(4 (3 Good) (2 film))\n(0 (1 bad) (2 (2 a) (2 film)))\n(2 film)\n" * 12)
    (folder / "dev.txt").write_text("(3 (2 -LRB-) (3 (3 good) (2 -RRB-)))\n(1 bad)\n")
    (folder / "test.txt").write_text("(4 good)\n(0 (1 bad) (2 odd))\n")
    return folder


def test_bert_base_has_its_published_parameters() -> None:
    with torch.device("meta"):
        model = BertClassifier(classes=20, config={})
    assert sum(p.numel() for p in model.encoder.parameters()) == 109_482_240
    assert sum(p.numel() for p in model.classifier.parameters()) == 20 * 769


def test_padding_changes_no_logit_and_every_parameter_learns() -> None:
    torch.manual_seed(0)
    model = BertClassifier(classes=3, vocabulary=11, config=SMALL)
    ids = torch.tensor([[2, 5, 7, 3], [2, 6, 3, 0]])
    logits = model.eval()(ids)
    assert logits.shape == (2, 3)
    assert torch.allclose(model(torch.cat([ids, torch.zeros(2, 5, dtype=torch.int64)], dim=1)), logits, atol=1e-6)
    assert torch.allclose(model(ids[1:, :3]), logits[1:], atol=1e-6)
    assert not torch.allclose(model(ids.flip(0)), logits, atol=1e-4)
    model.train()(ids).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_sentences_are_the_leaves_of_the_trees(tmp_path: Path, tokenizer: str) -> None:
    fold = load_fold({"name": "sst", "folder": str(treebank(tmp_path)), "tokenizer": tokenizer, "length": 8})
    assert [len(part) for part in (fold.train, fold.validation, fold.test)] == [24, 2, 2]
    assert fold.sizes == {"classes": 2, "vocabulary": 11, "padding": 0}
    ids, labels = fold.validation.batch(torch.tensor([0, 1]))
    assert ids.tolist() == [[2, 9, 5, 10, 3], [2, 6, 3, 0, 0]]  # trimmed to the longest; "-LRB-" is "("
    assert labels.tolist() == [1, 0]
    assert fold.test.batch(torch.tensor([1]))[0].tolist() == [[2, 6, 1, 3]]
    short = load_fold({"name": "sst", "folder": str(tmp_path), "tokenizer": tokenizer, "length": 3, "train": 5})
    assert short.validation.batch(torch.tensor([0]))[0].tolist() == [[2, 9, 3]]
    assert len(short.train) == 5


def test_newsgroups_are_split_as_words_are(tmp_path: Path, tokenizer: str) -> None:
    write_texts(tmp_path, text=["good film", "bad film"] * 15, label=[19, 0] * 15)
    data = {"name": "20news", "folder": str(tmp_path), "validation": 6}
    tokens, words = load_fold({**data, "tokenizer": tokenizer}, seed=3), load_fold(data, seed=3)
    for name in ("train", "validation", "test"):
        assert torch.equal(getattr(tokens, name).labels, getattr(words, name).labels)
    ids, labels = tokens.test.batch(torch.tensor([0, 1]))
    assert ids.tolist() == [[2, 5, 7, 3], [2, 6, 7, 3]]
    assert labels.tolist() == [19, 0]


@pytest.mark.slow
def test_a_whole_training_learns_from_kept_weights(tmp_path: Path, tokenizer: str) -> None:
    torch.manual_seed(1)
    weights = tmp_path / "weights"
    BertClassifier(classes=2, vocabulary=11, config=SMALL).encoder.save_pretrained(weights)
    first = BertClassifier(classes=2, weights=str(weights), vocabulary=11)
    second = BertClassifier(classes=2, weights=str(weights))
    assert all(torch.equal(a, b) for a, b in zip(first.encoder.parameters(), second.encoder.parameters(), strict=True))
    data = {"name": "sst", "folder": str(treebank(tmp_path)), "tokenizer": tokenizer, "length": 8}
    plan = Training(epochs=12, batch=8, optimizer="adamw", lr=5e-3)
    model = {"type": "BertClassifier", "weights": str(weights), "dropout": 0.0}
    recipe = Recipe(data, model, {"type": "CrossEntropyLoss"}, plan)
    outcome = finish(recipe)
    assert outcome.trajectory[-1]["train"]["error"] == 0
    assert outcome.test.correct.tolist() == [True, True]
    moved = Recipe(
        {**data, "tokenizer": f"/elsewhere/{Path(tokenizer).name}"}, {**model, "weights": "weights"}, recipe.loss, plan
    )
    assert moved.fingerprint == recipe.fingerprint


def test_what_does_not_fit_is_named(tmp_path: Path, tokenizer: str) -> None:
    def refuse(kind: type[CalibrantError], said: str, **table: Any) -> None:
        with pytest.raises(kind, match=said):
            make_model({"type": "BertClassifier", **table}, sizes={"classes": 2, "vocabulary": 11, "padding": 0})

    refuse(FileFormatError, "expected a folder or a name of BERT's weights", weights=str(tmp_path))
    refuse(InputError, "expected weights or a config, got both", weights="x", config=SMALL)
    refuse(InputError, "expected at most 5 tokens, got 11 in the data", config={**SMALL, "vocab_size": 5})
    with pytest.raises(FileFormatError, match="expected a tokenizer's folder or name"):
        load_fold({"name": "sst", "folder": str(treebank(tmp_path)), "tokenizer": str(tmp_path / "none")})
    for columns, said in (
        ({"label": [20, 0] * 15}, r"expected texts with labels in 0 … 19 in"),
        ({"text": [None, "a"] * 15}, r"expected texts with labels in 0 … 19 in"),
    ):
        write_texts(tmp_path, **{"text": ["a", "b"] * 15, "label": [0, 1] * 15, **columns})
        with pytest.raises(FileFormatError, match=said):
            load_fold({"name": "20news", "folder": str(tmp_path)})
    write_texts(tmp_path, words=["a"])
    with pytest.raises(FileFormatError, match="expected the columns text and label in"):
        load_fold({"name": "20news", "folder": str(tmp_path)})
