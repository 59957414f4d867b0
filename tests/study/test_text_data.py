"""The treebank with three classes, of which one is never decided for, and word vectors from a GloVe file."""

from pathlib import Path
from typing import Any

import pytest
import torch

from calibrant.errors import FileFormatError, InputError
from calibrant.metrics import ECE, NLL, Error
from calibrant.study import Training, load_study
from calibrant.study.data import load_fold
from calibrant.study.data.text import TreeSplit
from calibrant.study.models import TreeLSTM
from calibrant.study.recipe import Recipe
from calibrant.study.resolve import make_model
from calibrant.study.train import predict

TRAIN = ["(3 (2 a) (4 (1 b) (2 c)))", "(0 (1 b) (2 a))", "(2 (2 a) (2 c))", "(4 good)"]
GLOVE = ["a .1 .2 .3", "good -1 0 1", "new day 4 5 6", "fine 7 8 9", "unused 1 1 1"]


def trees(folder: Path) -> Path:
    (folder / "train.txt").write_text("\n".join(TRAIN))
    (folder / "dev.txt").write_text("(1 fine)\n(2 a)\n(3 good)\n")
    (folder / "test.txt").write_text("(0 odd)\n(4 good)\n")
    (folder / "glove.txt").write_text("\n".join(GLOVE) + "\n")
    return folder


class Fixed(torch.nn.Module):
    """Gives each root the same logits."""

    def __init__(self, logits: list[list[float]]) -> None:
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, batch: Any) -> torch.Tensor:
        return self.logits[: len(batch.asked)]


def test_neutral_nodes_are_learned_and_never_decided_for(tmp_path: Path) -> None:
    fold = load_fold({"name": "sst", "folder": str(trees(tmp_path)), "classes": 3})
    assert (fold.sizes["classes"], len(fold.train), len(fold.validation), len(fold.test)) == (3, 3, 2, 2)
    assert fold.train.labels.tolist() == [2, 0, 2]
    _, labels = fold.train.batch(torch.tensor([0]), training=True)
    assert sorted(labels.tolist()) == [0, 1, 1, 2, 2]  # b; a and c; the inner node and the root
    # p = (.2, .5, .3) twice: neutral is likeliest, positive is decided, with its own .3
    logits = torch.tensor([0.2, 0.5, 0.3]).log().tolist()
    found = predict(Fixed([logits, logits]), fold.test)
    assert found.predicted.tolist() == [2, 2]
    assert found.confidence.tolist() == pytest.approx([0.3, 0.3])
    assert Error()(found) == 0.5
    assert ECE()(found) == pytest.approx(0.2)
    assert NLL()(found) == pytest.approx(-(torch.tensor([0.2, 0.3]).log().mean().item()))
    assert found[torch.tensor([1])].predicted.tolist() == [2]
    assert predict(Fixed([logits, logits]), TreeSplit(fold.test.trees)).predicted.tolist() == [1, 1]  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="expected classes"):
        load_fold({"name": "sst", "folder": str(tmp_path), "classes": 5})


def test_words_take_their_vectors_from_the_file_and_the_rest_random_ones(tmp_path: Path) -> None:
    data = {"name": "sst", "folder": str(trees(tmp_path)), "glove": "glove.txt"}
    fold, again, other = (load_fold(data, seed=seed) for seed in (0, 0, 1))
    vectors = fold.sizes["vectors"]
    # known: a, b, c, good from the training trees; fine (dev) has a vector, odd (test) has none and stays unknown
    assert vectors.shape == (1 + 5, 3) == (fold.sizes["vocabulary"], 3)
    place = {word: i for i, word in enumerate(["a", "b", "c", "fine", "good"], start=1)}
    assert vectors[place["a"]].tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert vectors[place["fine"]].tolist() == [7, 8, 9]
    assert fold.test.batch(torch.tensor([0]))[0].words.tolist() == [0]
    assert torch.equal(vectors, again.sizes["vectors"])
    same = (vectors == other.sizes["vectors"]).all(dim=1)
    assert same.tolist() == [False, True, False, False, True, True]
    model = make_model({"type": "TreeLSTM", "embedding": 3, "hidden": 4}, sizes=fold.sizes)
    assert torch.equal(model.embedding.weight, vectors)
    assert model.embedding.weight.requires_grad
    with pytest.raises(InputError, match="expected word vectors of 100 numbers, got 3; set embedding to 3"):
        TreeLSTM(2, 6, vectors=vectors)


def test_where_the_vectors_lie_does_not_name_the_run() -> None:
    def fingerprint(glove: str) -> str:
        data = {"name": "sst", "glove": glove}
        return Recipe(data, {"type": "TreeLSTM"}, {"type": "CrossEntropyLoss"}, Training(1, 25)).fingerprint

    assert fingerprint("/a/glove.txt") == fingerprint("glove.txt") != fingerprint("other.txt")


def test_a_word_may_hold_spaces(tmp_path: Path) -> None:
    from calibrant.study.data.text import read_glove

    assert read_glove(Path("glove.txt"), folder=trees(tmp_path), words={"new day", "day"}) == {"new day": [4, 5, 6]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "expected a file of word vectors, got no such file"),
        ("", "expected a word and its numbers per line, got an empty file"),
        (
            "400000 300\na 1 2\n",
            r"expected a word and two numbers or more in line 1 of .*, got 1 numbers; .* without a header",
        ),
        ("a 1 2 3\nb 1 2\n", "expected a word and 3 numbers in line 2 of .*, got 2 numbers"),
        ("a 1 x 3\n", "expected a word and 3 numbers in line 1 of .*'x'"),
        ("a 1 nan 3\n", "expected a word and 3 numbers in line 1 of .*got NaN or infinity"),
        ("other 1 2 3\n", "expected vectors for words of the texts, got none"),
    ],
)
def test_a_broken_file_of_vectors_is_named_by_its_line(tmp_path: Path, text: str | None, said: str) -> None:
    file = trees(tmp_path) / "broken.txt"
    if text is not None:
        file.write_text(text)
    with pytest.raises(FileFormatError, match=said):
        load_fold({"name": "sst", "folder": str(tmp_path), "glove": "broken.txt"})


def test_newsgroups_have_the_vectors_of_the_file_and_padding_has_none(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="optional package 'pyarrow' is not installed")
    import pyarrow.parquet

    rows = {"text": ["From: x\n\na good day a"] * 8, "label": [0, 1] * 4}
    for name in ("train", "test"):
        pyarrow.parquet.write_table(pa.table(rows), trees(tmp_path) / f"{name}.parquet")
    data = {"name": "20news", "folder": str(tmp_path), "split": "random", "headers": False, "keep": "last", "length": 3}
    fold = load_fold({**data, "validation": 2, "glove": "glove.txt"})
    assert [len(part) for part in (fold.train, fold.validation, fold.test)] == [11, 2, 3]  # a fifth of 16 is tested
    assert fold.train.batch(torch.tensor([0]))[0].tolist() == [[2, 3, 1]]  # good, day, a: the last three words
    vectors = fold.sizes["vectors"]
    assert (vectors.shape, fold.sizes["vocabulary"]) == ((4, 3), 4)
    assert vectors[:3].tolist() == [[0, 0, 0], pytest.approx([0.1, 0.2, 0.3]), [-1, 0, 1]]
    model = make_model({"type": "PooledTextCNN", "embedding": 3, "kernel": 1}, sizes=fold.sizes)
    assert torch.equal(model.embedding.weight, vectors)
    assert not model.embedding.weight.requires_grad
    with pytest.raises(InputError, match="expected glove without a tokenizer"):
        load_fold({**data, "glove": "glove.txt", "tokenizer": "any"})


@pytest.mark.parametrize(("preset", "setting", "objective", "loss", "fields"), [
    ("mukhoti-table1", "SST Tree-LSTM", "MMCE 2", {"strength": 1.0}, {}),
    ("mukhoti-table1", "CIFAR-10 ResNet-50", "MMCE 2", {"strength": 2.0}, {"reduction": "sum", "clip": 2.0}),
    ("sst", "sst", "MMCE 1", {"strength": 1.0}, {}),
    ("sst", "sst", "FLSD-53", {"thresholds": [0.19]}, {}),
    ("adafocal-table", "20 Newsgroups CNN", "AdaFocal", {}, {"optimizer": "adam", "epochs": 50, "select": "accuracy"}),
    ("adafocal-table", "CIFAR-10 ResNet-110", "Brier", {}, {"reduction": "mean", "epochs": 350}),
])  # fmt: skip
def test_recipes_have_what_the_authors_code_has(
    preset: str, setting: str, objective: str, loss: dict[str, Any], fields: dict[str, Any]
) -> None:
    (recipe, *_) = (
        cell.recipe for cell in load_study(preset, scale="paper").cells()
        if (cell.setting, cell.objective) == (setting, objective)
    )  # fmt: skip
    assert loss.items() <= dict(recipe.loss).items()
    assert {name: getattr(recipe.training, name) for name in fields} == fields
