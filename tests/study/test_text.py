"""Texts: trees of the treebank, newsgroups as words or as tokens, vectors from files, and BERT over tokens."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import late, needs
from tests.study.samples import finish, write_texts

from calibrant.errors import FileFormatError, InputError
from calibrant.metrics import ECE, NLL, Error
from calibrant.study import Training
from calibrant.study.build import make_model
from calibrant.study.data import load_fold
from calibrant.study.data.text import TreeSplit, parse
from calibrant.study.models import BertClassifier
from calibrant.study.recipe import Recipe
from calibrant.study.train import predict

transformers = late("transformers")

TREES = {
    "train.txt": "(3 (2 a) (4 (1 b) (2 c)))\n(0 (1 b) (2 a))\n(2 (2 a) (2 c))\n(4 good)\n",
    "dev.txt": "(1 fine)\n(2 a)\n(3 good)\n",
    "test.txt": "(0 odd)\n(4 good)\n",
    "glove.txt": "a .1 .2 .3\ngood -1 0 1\nnew day 4 5 6\nfine 7 8 9\nunused 1 1 1\n",
}
VOCABULARY = "[PAD] [UNK] [CLS] [SEP] [MASK] good bad film a ( )"


@pytest.fixture
def trees(tmp_path: Path) -> dict[str, Any]:
    """The data of a treebank of four training trees, with a file of word vectors beside it."""
    for name, text in TREES.items():
        (tmp_path / name).write_text(text)
    return {"name": "sst", "folder": str(tmp_path)}


@pytest.mark.parametrize("line", ["(3 (2 a)", "(3 (2 a) (2 b) (2 c))", "(x a)", "(3 a))"])
def test_a_broken_tree_is_refused(line: str) -> None:
    with pytest.raises(FileFormatError, match="expected one tree per line"):
        parse(line)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"expected train\.txt or train\.txt\.gz"):
        load_fold({"name": "sst", "folder": str(tmp_path)})
    with gzip.open(tmp_path / "train.txt.gz", "wt") as file:
        file.write("(3 (2 a)\n")
    with pytest.raises(FileFormatError, match="expected one tree per line"):
        load_fold({"name": "sst", "folder": str(tmp_path)})


class Fixed(torch.nn.Module):
    """Gives each root the same logits."""

    def __init__(self, p: list[float]) -> None:
        super().__init__()
        self.row = torch.tensor(p).log()

    def forward(self, batch: Any) -> torch.Tensor:
        return self.row.expand(len(batch.asked), -1)


def test_neutral_nodes_are_learned_and_never_decided_for(trees: dict[str, Any]) -> None:
    fold = load_fold({**trees, "classes": 3})
    assert (fold.sizes["classes"], len(fold.train), len(fold.validation), len(fold.test)) == (3, 3, 2, 2)
    assert fold.train.labels.tolist() == [2, 0, 2]
    _, labels = fold.train.batch(torch.tensor([0]), training=True)
    assert sorted(labels.tolist()) == [0, 1, 1, 2, 2]  # b; a and c; the inner node and the root
    # neutral is likeliest, positive is decided, with its own .3
    found = predict(Fixed([0.2, 0.5, 0.3]), fold.test)
    assert found.predicted.tolist() == [2, 2]
    assert found.confidence.tolist() == pytest.approx([0.3, 0.3])
    assert (Error()(found), ECE()(found)) == (0.5, pytest.approx(0.2))
    assert NLL()(found) == pytest.approx(-np.log([0.2, 0.3]).mean())
    assert found[torch.tensor([1])].predicted.tolist() == [2]
    assert predict(Fixed([0.2, 0.5, 0.3]), TreeSplit(fold.test.trees)).predicted.tolist() == [1, 1]


def test_words_take_their_vectors_from_the_file_and_the_rest_random_ones(trees: dict[str, Any]) -> None:
    fold, again, other = (load_fold({**trees, "glove": "glove.txt"}, seed=seed) for seed in (0, 0, 1))
    vectors = fold.sizes["vectors"]
    # a, b, c, good from the training trees, fine (dev) and odd (test): each word has a vector of its own, as in the authors' code
    assert vectors.shape == (1 + 6, 3) == (fold.sizes["vocabulary"], 3)
    place = {word: i for i, word in enumerate(["a", "b", "c", "fine", "good", "odd"], start=1)}
    assert vectors[place["a"]].tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert vectors[place["fine"]].tolist() == [7, 8, 9]
    assert fold.test.batch(torch.tensor([0]))[0].words.tolist() == [place["odd"]]
    assert torch.equal(vectors, again.sizes["vectors"])
    same = (vectors == other.sizes["vectors"]).all(dim=1)
    assert same.tolist() == [False, True, False, False, True, True, False]
    model = make_model({"type": "TreeLSTM", "embedding": 3, "hidden": 4}, sizes=fold.sizes)
    assert torch.equal(model.embedding.weight, vectors)
    assert model.embedding.weight.requires_grad


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "expected a file of word vectors, got no such file"),
        ("a 1 2 3\nb 1 2\n", "expected a word and 3 numbers in line 2 of .*, got 2 numbers"),
        ("a 1 nan 3\n", "expected a word and 3 numbers in line 1 of .*got NaN or infinity"),
    ],
)
def test_a_broken_file_of_vectors_is_named_by_its_line(trees: dict[str, Any], text: str | None, said: str) -> None:
    if text is not None:
        Path(trees["folder"], "broken.txt").write_text(text)
    with pytest.raises(FileFormatError, match=said):
        load_fold({**trees, "glove": "broken.txt"})


def test_newsgroups_are_read_as_keras_does_in_the_authors_code(trees: dict[str, Any]) -> None:
    texts, folder = [f"From: x\n\na Good-day, odd a text{row}" for row in range(19)] + ["no header a"], trees["folder"]
    write_texts(Path(folder), text=texts[:10], label=[0] * 10)
    write_texts(Path(folder), ("test",), text=texts[10:], label=[1] * 10)
    data = {"name": "20news", "folder": folder, "split": "mukhoti", "headers": False, "words": "keras", "length": 8}
    fold = load_fold({**data, "validation": 3, "glove": "glove.txt"}, seed=5)
    order = list(range(20))
    np.random.RandomState(1).shuffle(order)  # np.random.seed(1), np.random.shuffle: whatever the study's seed
    for part, rows in ((fold.train, order[:13]), (fold.validation, order[13:16]), (fold.test, order[16:])):
        assert part.labels.tolist() == [int(row >= 10) for row in rows]
    place = order[:13].index(next(row for row in order[:13] if row != 19))
    # by frequency over all texts: a, good, day, odd; padding stands before the words
    assert fold.train.batch(torch.tensor([place]))[0][0].tolist()[:7] == [0, 0, 1, 2, 3, 4, 1]
    vectors = fold.sizes["vectors"]
    assert vectors[1].tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert not vectors[[0, 4]].any()  # padding, and "odd", which is not in the file
    model = make_model({"type": "PooledTextCNN", "embedding": 3, "kernel": 1}, sizes=fold.sizes)
    assert torch.equal(model.embedding.weight, vectors)
    assert not model.embedding.weight.requires_grad


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"label": [20, 0]}, r"expected texts with labels in 0 … 19 in"),
        pytest.param({}, "expected a tokenizer's folder or name", marks=needs("transformers")),
    ],
)
def test_texts_that_do_not_serve_are_named(tmp_path: Path, columns: dict[str, Any], said: str) -> None:
    table = {"text": ["a", "b"], "label": [0, 1], **columns}
    write_texts(tmp_path, **{name: values * 15 for name, values in table.items() if values})
    with pytest.raises(FileFormatError, match=said):
        load_fold({"name": "20news", "folder": str(tmp_path), "validation": 6, "tokenizer": str(tmp_path / "none")})


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tokenizer and the weights of a small BERT."""
    pytest.importorskip("transformers", reason="optional package 'transformers' is not installed")
    folder = tmp_path_factory.mktemp("bert")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY.split()))
    transformers.BertTokenizerFast(str(folder / "vocab.txt"), do_lower_case=True).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    transformers.BertModel(transformers.BertConfig(vocab_size=11, **sizes)).save_pretrained(folder)
    return str(folder)


def test_padding_changes_no_logit_and_every_parameter_learns(bert: str) -> None:
    model = BertClassifier(3, bert, vocabulary=11)
    ids = torch.tensor([[2, 5, 7, 3], [2, 6, 3, 0]])
    logits = model.eval()(ids)
    assert logits.shape == (2, 3)
    assert torch.allclose(model(torch.cat([ids, torch.zeros(2, 5, dtype=torch.int64)], dim=1)), logits, atol=1e-6)
    assert torch.allclose(model(ids[1:, :3]), logits[1:], atol=1e-6)
    assert not torch.allclose(model(ids.flip(0)), logits, atol=1e-4)
    model.train()(ids).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_tokens_split_as_words_and_train_from_kept_weights(tmp_path: Path, bert: str) -> None:
    write_texts(tmp_path, text=["good film", "bad"] * 15, label=[19, 0] * 15)
    words = {"name": "20news", "folder": str(tmp_path), "validation": 6}
    data = {**words, "tokenizer": bert}
    tokens, plain = load_fold(data, seed=3), load_fold(words, seed=3)
    for name in ("train", "validation", "test"):
        assert torch.equal(getattr(tokens, name).labels, getattr(plain, name).labels)
    ids, labels = tokens.test.batch(torch.tensor([0, 1]))
    assert (ids.tolist(), labels.tolist()) == ([[2, 5, 7, 3], [2, 6, 3, 0]], [19, 0])
    assert tokens.sizes == {"classes": 20, "vocabulary": 11, "padding": 0}
    assert load_fold({**data, "length": 3}).test.batch(torch.tensor([0]))[0].tolist() == [[2, 5, 3]]
    plan = Training(epochs=12, batch=8, optimizer="adamw", lr=5e-3, measure_every=12)
    model = {"type": "BertClassifier", "weights": bert, "dropout": 0.0}
    recipe = Recipe(data, model, {"type": "CrossEntropyLoss"}, plan)
    run = finish(recipe)
    assert run.trajectory[-1]["train"]["error"] == 0
    assert run.test.correct.all()
    elsewhere = f"/elsewhere/{Path(bert).name}"
    moved = Recipe({**data, "tokenizer": elsewhere}, {**model, "weights": elsewhere}, recipe.loss, plan)
    assert moved.fingerprint == recipe.fingerprint


def test_weights_for_fewer_tokens_are_refused(bert: str) -> None:
    with pytest.raises(InputError, match="expected at most 11 tokens, got 12 in the data"):
        make_model({"type": "BertClassifier", "weights": bert, "vocabulary": 12}, sizes={"classes": 2})
