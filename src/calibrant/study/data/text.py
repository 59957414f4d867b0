"""Text: the Stanford Sentiment Treebank as trees, and 20 Newsgroups as word indices."""

import gzip
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant.errors import FileFormatError
from calibrant.study.data._labelled_text import body_of, read_texts
from calibrant.study.data._papers import split_rows
from calibrant.study.data._requests import check_only_fold, check_options, data_folder, options_from
from calibrant.study.data._split import Fold, TensorSplit
from calibrant.study.data._trees import Node, TreeSplit, build, parse
from calibrant.study.data.glove import read_glove, table_of

BINARY = {0: 0, 1: 0, 3: 1, 4: 1}  # neutral (2) is left out
TERNARY = {0: 0, 1: 0, 2: 1, 3: 2, 4: 2}
SPLIT_STREAM = 20260106  # makes the draw of test texts independent of others with the same seed
WORD = re.compile(r"[a-z0-9']+")


def sst(
    *, seed: int, fold: int, folder: str, train: int | None = None, classes: int = 2, glove: str | None = None
) -> Fold:
    """Return the binary Stanford Sentiment Treebank: 6,920 / 872 / 1,821 trees whose root is not neutral.

    With three classes a network is also trained on the neutral nodes inside the trees, and decides between negative (0) and
    positive (2) only; the confidence is the probability among all three classes, as in Mukhoti et al.'s code.

    Args:
        seed: Draws the training trees if ``train`` is given, and the vectors of words that are not in ``glove``.
        fold: 0; the treebank has fixed splits.
        folder: A folder with ``train.txt``, ``dev.txt`` and ``test.txt``, plain or ``.gz``, one bracketed tree per line.
        train: Number of training trees to use; None is all.
        classes: 2, or 3 as in the authors' code.
        glove: A file of word vectors, by its path or its name in ``folder``; networks receive them as ``vectors``.

    Raises:
        InputError: If an option has an impossible value.
        FileFormatError: If there are no such files.
    """
    check_options({"seed": seed, "fold": fold, "train": train, "classes": classes, "glove": glove})
    check_only_fold(fold)
    place = data_folder(folder, name="sst")
    roots = {name: roots_of(place, name) for name in ("train", "dev", "test")}
    words = {name: {word for root in found for word in leaves_of(root)} for name, found in roots.items()}
    known = words["train"]
    sizes: dict[str, Any] = {"classes": classes}
    if glove is not None:
        file = Path(glove) if Path(glove).is_file() else place / glove
        found = read_glove(file, words=set().union(*words.values()))
        known = known | set(found)  # words of validation and test trees too: their vectors do not use labels
        sizes["vectors"] = table_of(found, sorted(known), seed=seed)
    index = {word: place for place, word in enumerate(sorted(known), start=1)}
    labels = BINARY if classes == 2 else TERNARY
    trees = {
        name: [build(root, index=index, labels=labels) for root in found if root[0] in BINARY]
        for name, found in roots.items()
    }
    kept = trees["train"]
    if train is not None:
        rows = np.random.default_rng(seed).permutation(len(kept))[:train]
        kept = [kept[row] for row in rows]
    decided = () if classes == 2 else (0, 2)
    train_split, dev, test = (TreeSplit(part, decided=decided) for part in (kept, trees["dev"], trees["test"]))
    return Fold(train_split, dev, test, sizes={**sizes, "vocabulary": len(index) + 1})


@dataclass(frozen=True)
class WordOptions:
    """Options of 20 Newsgroups as words.

    Args:
        folder: A folder with ``train*.parquet`` and ``test*.parquet`` with the columns ``text`` and ``label``.
        vocabulary: Size of the vocabulary, the most frequent words of the training texts, with 0 for padding; other
            words are left out.
        length: Number of words of a text that are kept.
        keep: ``"first"`` or ``"last"``: which of them.
        split: ``"date"``, or ``"random"``: a fifth of all texts for testing, as in Mukhoti et al.'s code.
        headers: Whether a text's header, up to its first empty line, is kept.
        validation: Number of validation texts, drawn from the training ones.
        train: Number of training texts to use; None is all.
    """

    folder: str
    vocabulary: int = 20_000
    length: int = 300
    keep: str = "first"
    split: str = "date"
    headers: bool = True
    validation: int = 900
    train: int | None = None


def newsgroups(*, seed: int, fold: int, **options: Any) -> Fold:
    """Return 20 Newsgroups as indices of its most frequent words.

    Args:
        seed: Draws the validation texts, the test texts if the split is random, and the training texts if ``train`` is given.
        fold: 0; there is one test set.
        options: Fields of ``WordOptions``.

    Raises:
        InputError: If an option has an impossible value.
        FileFormatError: If there are no such files.
    """
    check_options({"seed": seed, "fold": fold, **options})
    check_only_fold(fold)
    chosen = options_from(WordOptions, options, name="20news")
    place = data_folder(chosen.folder, name="20news")
    parts = [read_texts(place, name, classes=20) for name in ("train", "test")]
    texts = [text if chosen.headers else body_of(text) for part, _ in parts for text in part]
    words, labels = [WORD.findall(text.lower()) for text in texts], np.concatenate([found for _, found in parts])
    order, count = np.arange(len(words)), len(parts[0][0])
    if chosen.split == "random":
        order, count = np.random.default_rng([SPLIT_STREAM, seed]).permutation(order), len(words) - len(words) // 5
    fit, held = split_rows(count, validation=chosen.validation, rule="plain", seed=seed)
    fit = fit[: chosen.train] if chosen.train is not None else fit
    counts = Counter(word for row in order[fit] for word in words[row])
    index = {word: number for number, (word, _) in enumerate(counts.most_common(chosen.vocabulary - 1), start=1)}
    train, validation, test = (
        _encode([words[row] for row in rows], labels[rows], index, chosen)
        for rows in (order[fit], order[held], order[count:])
    )
    return Fold(train, validation, test, sizes={"classes": 20, "vocabulary": chosen.vocabulary})


def _encode(texts: list[list[str]], labels: np.ndarray, index: dict[str, int], chosen: WordOptions) -> TensorSplit:
    rows = torch.zeros(len(texts), chosen.length, dtype=torch.int32)
    kept = slice(chosen.length) if chosen.keep == "first" else slice(-chosen.length, None)
    for row, words in enumerate(texts):
        found = [number for word in words if (number := index.get(word)) is not None][kept]
        rows[row, : len(found)] = torch.tensor(found, dtype=torch.int32)
    return TensorSplit(rows, torch.from_numpy(labels), prepare=_long)


def _long(rows: torch.Tensor) -> torch.Tensor:
    return rows.long()


def roots_of(folder: Path, name: str) -> list[Node]:
    """Return the parsed trees of ``train``, ``dev`` or ``test``."""
    return [parse(line) for line in _lines(folder, name)]


def _lines(folder: Path, name: str) -> Iterable[str]:
    for path, opener in ((folder / f"{name}.txt", open), (folder / f"{name}.txt.gz", gzip.open)):
        if path.is_file():
            with opener(path, "rt", encoding="utf-8") as file:  # type: ignore[operator]
                return [line for line in file if line.strip()]
    raise FileFormatError(f"{name}.txt or {name}.txt.gz in {folder}", "neither", "name the folder of the trees")


def leaves_of(node: Node) -> Iterable[str]:
    """Yield the words of a parsed tree, from left to right."""
    if len(node) == 2:
        yield str(node[1])
    else:
        yield from leaves_of(node[1])
        yield from leaves_of(node[2])
