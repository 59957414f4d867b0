"""Text data sets: the Stanford Sentiment Treebank as trees, and 20 Newsgroups as words or tokens."""

import gzip
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from calibrant._files import error_boundary
from calibrant.errors import FileFormatError, InputError, optional
from calibrant.study.data._split import CPU, DataSet, Fold, Indices, TensorSplit, data_folder, split_rows
from calibrant.study.record import Flag, Size, Text, record

Node = list[Any]  # [label, word] or [label, left, right]
# Nodes as (height, word index, positions of the children, label or −1), ordered by height: first the leaves from left to right, last
# the root.
Tree = Sequence[tuple[int, int, Sequence[int], int]]


@dataclass(frozen=True, eq=False)
class TreeBatch:
    """A batch of trees in the order of computation.

    Args:
        words: (L,) int64 word indices of the L leaves of all trees.
        levels: For each height, the positions of the left and the right children among the nodes computed so far.
        asked: (M,) int64 positions of the nodes whose logits are requested.
    """

    words: Tensor
    levels: list[tuple[Tensor, Tensor]]
    asked: Tensor


@dataclass(frozen=True, eq=False)
class TreeSplit:
    """A split of trees, for training on all labelled nodes and evaluation at the roots.

    Args:
        trees: The N trees.
        device: Device of the batches.
        decided: The classes among which predictions are decided; () for all classes.
    """

    trees: Sequence[Tree]
    device: torch.device = CPU
    decided: tuple[int, ...] = ()

    @property
    def labels(self) -> Tensor:
        """The labels of the roots, (N,) int64."""
        return torch.tensor([tree[-1][3] for tree in self.trees], device=self.device)

    def __len__(self) -> int:
        return len(self.trees)

    def to(self, device: torch.device) -> "TreeSplit":
        """Return the split with batches on ``device``."""
        return replace(self, device=device)

    def batch(self, rows: Tensor, *, training: bool = False) -> tuple[TreeBatch, Tensor]:
        """Return the trees ``rows`` with the labels of all labelled nodes for training, or of the roots for evaluation."""
        trees, tensor = [self.trees[row] for row in rows.tolist()], partial(torch.tensor, device=self.device)
        # children have a smaller height than their parent, so a level needs only the levels before it
        nodes = sorted((node[0], i, j) for i, tree in enumerate(trees) for j, node in enumerate(tree))
        position = {(i, j): place for place, (_, i, j) in enumerate(nodes)}
        words, levels = [], []
        for height, level in groupby(nodes, key=itemgetter(0)):
            if height:
                pairs = tensor([[position[i, child] for child in trees[i][j][2]] for _, i, j in level])
                levels.append((pairs[:, 0], pairs[:, 1]))
            else:
                words = [trees[i][j][1] for _, i, j in level]
        asked = [
            (position[i, j], node[3])
            for i, tree in enumerate(trees)
            for j, node in enumerate(tree)
            if (node[3] >= 0 if training else j == len(tree) - 1)
        ]
        places, labels = tensor(asked).T
        return TreeBatch(tensor(words), levels, places), labels


def parse(line: str) -> Node:
    """Return a bracketed tree, such as ``(3 (2 a) (3 b))``, as nested lists.

    Raises:
        FileFormatError: If brackets do not match, or if a node does not have a label and either a word or two children.
    """
    wanted, remedy = "one tree per line, of '(label word)' or '(label left right)'", "see the Penn Treebank format"
    with error_boundary(wanted, f"{line[:60]!r}", remedy):
        stack: list[list[Any]] = [[]]
        for token in re.findall(r"[()]|[^() ]+", line.strip()):  # not split(), as words may contain no-break spaces
            if token == "(":
                stack.append([])
            elif token == ")":
                label, *children = stack.pop()
                if [type(child) for child in children] not in ([str], [list, list]):
                    raise ValueError("other children")
                stack[-1].append([int(label), *children])
            else:
                stack[-1].append(token)
        ((root,),) = stack
        return [*root]


def build_tree(root: Node, *, index: dict[str, int], labels: dict[int, int]) -> Tree:
    """Return a parsed tree in the order of computation.

    Args:
        root: The result of ``parse``.
        index: Dict from words to their indices; all other words have index 0.
        labels: Dict from labels in the file to classes; all other labels become −1.
    """
    nodes: list[tuple[int, int, list[int], int]] = []  # height, word, children, label; children before their parent

    def add(node: Node) -> int:
        children = [add(child) for child in node[1:]] if len(node) == 3 else []
        height = 1 + max((nodes[child][0] for child in children), default=-1)
        word = 0 if children else index.get(node[1], 0)
        nodes.append((height, word, children, labels.get(node[0], -1)))
        return len(nodes) - 1

    add(root)
    # sorting is stable, so the leaves come first, from left to right, and the root, which is highest, comes last
    order = sorted(range(len(nodes)), key=lambda node: nodes[node][0])
    place = {node: rank for rank, node in enumerate(order)}
    by_height = (nodes[node] for node in order)
    return [(height, word, [place[child] for child in children], label) for height, word, children, label in by_height]


BINARY = {0: 0, 1: 0, 3: 1, 4: 1}  # neutral (2) is left out
TERNARY = {0: 0, 1: 0, 2: 1, 3: 2, 4: 2}
WORD = re.compile(r"[a-z0-9']+")
# the text between the characters that Keras filters out
KERAS_WORD = re.compile(r"""[^ \t\n!"#$%&()*+,\-./:;<=>?@\[\\\]^_`{|}~]+""")
OTHER_WORDS = (-0.05, 0.05)  # mean and deviation of random vectors for words without one, as in Mukhoti et al.'s code
UNREAD_VOCABULARY = 8  # placeholder for the vocabulary size of texts that have not been read
Length = Annotated[Size, Field(ge=2)]  # a tokenizer adds a first and a last token


@record
class Treebank(DataSet):
    """The binary Stanford Sentiment Treebank, 6,920 / 872 / 1,821 trees whose root is not neutral.

    With three classes, a network is also trained on the neutral nodes inside the trees. It decides only between negative (0)
    and positive (2), but its confidence is the probability among all three classes, as in Mukhoti et al.'s code.

    Args:
        folder: A folder with ``train.txt``, ``dev.txt`` and ``test.txt``, plain or as ``.gz``, with one bracketed tree per
            line.
        classes: Number of classes: 2, or 3 as in Mukhoti et al.'s code.
        glove: A file of word vectors, by its path or its name in ``folder``. Networks receive the vectors as ``vectors``;
            vectors of words that are not in the file are drawn by the seed.
    """

    outside = ()

    folder: Path
    classes: Literal[2, 3] = 2
    glove: Path | None = None

    def sizes(self) -> dict[str, Any]:
        """Return the sizes, with a placeholder for the number of words."""
        return {"classes": self.classes, "vocabulary": UNREAD_VOCABULARY}

    def load(self, *, seed: int, fold: int) -> Fold:
        """Return the splits.

        Raises:
            FileFormatError: If there are no such files.
        """
        place = data_folder(self.folder, name="sst")
        roots = {name: roots_of(place, name) for name in ("train", "dev", "test")}
        kept = {name: [root for root in found if root[0] in BINARY] for name, found in roots.items()}
        words = {name: {word for root in found for word in leaves_of(root)} for name, found in roots.items()}
        known, sizes = words["train"], self.sizes()
        if self.glove is not None:
            known = set().union(*words.values())  # also of validation and test trees, as vectors use no labels
            found = read_glove(self.glove, folder=place, words=known)
            sizes["vectors"] = vector_table(found, sorted(known), seed=seed)
        index = {word: place for place, word in enumerate(sorted(known), start=1)}
        labels, decided = (BINARY, ()) if self.classes == 2 else (TERNARY, (0, 2))
        trees = ([build_tree(root, index=index, labels=labels) for root in part] for part in kept.values())
        train, dev, test = (TreeSplit(part, decided=decided) for part in trees)
        return Fold(train, dev, test, sizes={**sizes, "vocabulary": len(index) + 1})


@record
class Newsgroups(DataSet):
    """The 20 Newsgroups texts, as indices of their most frequent words or as tokens.

    Args:
        folder: A folder with ``train*.parquet`` and ``test*.parquet`` files that have the columns ``text`` and ``label``.
        vocabulary: Size of the vocabulary: the most frequent words of the training texts, and 0 for padding. Other words
            are left out.
        length: Number of words or tokens of a text that are kept.
        words: ``"first"`` keeps the first ``length`` words ``[a-z0-9']+``, and counts words in the training texts.
            ``"keras"`` follows Mukhoti et al.'s code: it keeps the last ``length`` words, puts the padding before them,
            counts words in all texts, and uses zeros as vectors of words that are not in ``glove``.
        split: ``"date"`` tests on the later texts. ``"mukhoti"`` uses the fixed shuffle of Mukhoti et al.'s code, with the
            last fifth as test set and the ``validation`` texts before it as validation set.
        headers: Whether to keep a text's header, up to its first empty line. A text without such a line is kept whole.
        validation: Number of validation texts. They are drawn from the training texts by the seed, unless ``split``
            determines them.
        glove: A file of word vectors, as in ``Treebank``. With it, the vocabulary is as large as there are words.
        tokenizer: A folder with a tokenizer's files, or a name on the hub, to read texts as tokens; None reads words.
    """

    outside = ()

    folder: Path
    vocabulary: Size = 20_000
    length: Length = 300
    words: Literal["first", "keras"] = "first"
    split: Literal["date", "mukhoti"] = "date"
    headers: Flag = True
    validation: Size = 900
    glove: Path | None = None
    tokenizer: Text | None = None

    def __post_init__(self) -> None:
        if self.tokenizer is not None and self.glove is not None:
            raise InputError("either glove or a tokenizer", "both", "leave one out")

    def sizes(self) -> dict[str, Any]:
        """Return the sizes."""
        return {"classes": 20, "vocabulary": self.vocabulary if self.tokenizer is None else UNREAD_VOCABULARY}

    def load(self, *, seed: int, fold: int) -> Fold:
        """Return the splits.

        Raises:
            FileFormatError: If there are no such files.
            MissingExtraError: If ``transformers`` is needed and not installed.
        """
        # with a split by date, the test texts are later than all others
        texts, labels, count = read_newsgroups(self.folder, headers=self.headers)
        if self.split == "date":
            fit, held = split_rows(count, validation=self.validation, rule="plain", seed=seed)
            tested = np.arange(count, len(texts))
        else:
            order = np.arange(len(texts))
            np.random.RandomState(1).shuffle(order)  # the generator that Mukhoti et al.'s code uses
            count = len(texts) - len(texts) // 5
            fit, held, tested = np.split(order, [count - self.validation, count])
        rows = (fit, held, tested)
        if self.tokenizer is not None:
            parts = [([texts[row] for row in part], labels[part]) for part in rows]
            return tokenised(parts, self.tokenizer, length=self.length)
        keras = self.words == "keras"
        words = [(KERAS_WORD if keras else WORD).findall(text.lower()) for text in texts]
        counts = Counter(word for row in (range(len(texts)) if keras else rows[0]) for word in words[row])
        index = {word: number for number, (word, _) in enumerate(counts.most_common(self.vocabulary - 1), start=1)}
        train, validation, test = (self._encoded([words[row] for row in part], labels[part], index) for part in rows)
        sizes = self.sizes()
        if self.glove is not None:
            found = read_glove(self.glove, folder=self.folder, words=set(index))
            vectors = vector_table(found, list(index), seed=seed)
            absent = [number for word, number in index.items() if word not in found] if keras else []
            vectors[[0, *absent]] = 0  # 0 is padding
            sizes |= {"vectors": vectors, "vocabulary": len(vectors)}
        return Fold(train, validation, test, sizes=sizes)

    def _encoded(self, texts: list[list[str]], labels: Indices, index: dict[str, int]) -> TensorSplit:
        """Return the split of these texts, as rows of word indices with padding."""
        length, keras = self.length, self.words == "keras"
        rows = torch.zeros(len(texts), length, dtype=torch.int32)
        for row, words in enumerate(texts):
            known = [number for word in words if (number := index.get(word)) is not None]
            found = torch.tensor(known[-length:] if keras else known[:length], dtype=torch.int32)
            rows[row, length - len(found) if keras else 0 :][: len(found)] = found
        return TensorSplit(rows, torch.from_numpy(labels), prepare=Tensor.long)


def read_newsgroups(folder: Path, *, headers: bool) -> tuple[list[str], Indices, int]:
    """Return the texts of 20 Newsgroups, their labels (N,), and the number of training texts, which come first.

    Args:
        folder: As in ``Newsgroups``.
        headers: Whether to keep a text's header, the lines up to the first empty line.

    Raises:
        FileFormatError: If there are no such files or columns, or if a label is not in [0, 20).
    """
    import pyarrow.parquet

    data_folder(folder, name="20news")
    texts: list[str] = []
    labels: list[Indices] = []
    trained = 0
    for name in ("train", "test"):
        files = sorted(folder.glob(f"{name}*.parquet"))
        if not files:
            raise FileFormatError(f"{name}*.parquet in {folder}", "none", "name the folder that contains them")
        trained = len(texts)
        for file in files:
            # the reader's errors have no common base class; each means that the file cannot be used
            with error_boundary(f"the columns text and label in {file}", "a file without them", "write it again"):
                table = pyarrow.parquet.read_table(file, columns=["text", "label"])
                texts += table["text"].to_pylist()
                labels.append(table["label"].to_numpy().astype(np.int64))
    found = np.concatenate(labels)
    if not all(isinstance(text, str) for text in texts) or not 0 <= found.min() <= found.max() < 20:
        raise FileFormatError(f"texts with labels in 0 … 19 in {folder}", "other values", "check the files")
    return texts if headers else [text[max(0, text.find("\n\n")) :] for text in texts], found, trained


def roots_of(folder: Path, name: str) -> list[Node]:
    """Return the parsed trees of ``train``, ``dev`` or ``test``."""
    for path, opener in ((folder / f"{name}.txt", open), (folder / f"{name}.txt.gz", gzip.open)):
        if path.is_file():
            with opener(path, "rt", encoding="utf-8") as file:  # type: ignore[operator]
                return [parse(line) for line in file if line.strip()]
    raise FileFormatError(f"{name}.txt or {name}.txt.gz in {folder}", "neither", "name the folder of the trees")


def leaves_of(node: Node) -> list[str]:
    """Return the words of a parsed tree, from left to right."""
    return [node[1]] if len(node) == 2 else [*leaves_of(node[1]), *leaves_of(node[2])]


def read_glove(path: Path, *, folder: Path, words: Set[str]) -> dict[str, list[float]]:
    """Return the vectors of all ``words`` that occur in a file with one word and its numbers per line.

    Args:
        path: A file such as glove.840B.300d.txt, by its path or its name in ``folder``. A word may contain spaces.
        folder: The folder of the texts.
        words: The words to read, with upper and lower case as in the file.

    Raises:
        FileFormatError: If there is no such file, or if a line does not have a word and as many numbers as the first line.
    """
    path = path if path.is_file() else folder / path
    if not path.is_file():
        raise FileFormatError("a file of word vectors", f"no such file: {path}", "check the path")
    found: dict[str, list[float]] = {}
    place = numbers = 0
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        try:
            for line in file:
                place += 1
                numbers = numbers or line.rstrip().count(" ")
                word, *values = line.rstrip().rsplit(" ", numbers)
                if not len(values) == numbers >= 2:
                    raise ValueError(f"{len(values)} numbers")
                if word in words:
                    found[word] = [float(value) for value in values]
                    if not all(map(math.isfinite, found[word])):
                        raise ValueError("NaN or infinity")
        except ValueError as error:
            wanted = f"a word and {max(numbers, 2)} numbers in line {place} of {path}"
            raise FileFormatError(wanted, str(error), "get the file again, without a header") from error
    return found


def vector_table(found: Mapping[str, Sequence[float]], words: Sequence[str], *, seed: int) -> Tensor:
    """Return a table of vectors (1 + words, size), whose row 0 is for unknown words.

    Args:
        found: The result of ``read_glove``.
        words: The words in the order of their indices, which are counted from 1.
        seed: Seed for drawing random vectors for words that have none.

    Raises:
        FileFormatError: If no word was found.
    """
    if not found:
        raise FileFormatError("vectors for words in the texts", "none", "check the file's language and case")
    size = len(next(iter(found.values())))
    table = np.random.default_rng(seed).normal(*OTHER_WORDS, (len(words) + 1, size))
    for place, word in enumerate(words, start=1):
        if word in found:
            table[place] = found[word]
    return torch.from_numpy(table.astype(np.float32))


def _trimmed(ids: Tensor, *, pad: int) -> Tensor:
    """Return int64 token ids (B, longest) without the columns that are padding in all rows."""
    used = (ids != pad).any(dim=0).nonzero()
    return ids[:, : int(used.max()) + 1 if len(used) else 1].long()


def tokenised(parts: Sequence[tuple[list[str], Indices]], name: str, *, length: int) -> Fold:
    """Return the splits of training, validation and test texts as tokens.

    Args:
        parts: Texts and labels of the three splits.
        name: A folder with a tokenizer's files, or a name on the hub.
        length: Number of tokens of a text that are kept.

    Raises:
        FileFormatError: If there is no such tokenizer.
        MissingExtraError: If ``transformers`` is not installed.
    """
    with optional("transformers", extra="transformers"):
        from transformers import AutoTokenizer
    # no folder, no network, broken files …
    with error_boundary("a tokenizer's folder or name", f"{name!r}", "check it"):
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    if tokenizer.pad_token_id is None:
        remedy = "choose the tokenizer of an encoder such as BERT"
        raise InputError("a tokenizer with padding", f"{name!r} without padding", remedy)
    splits = []
    for texts, labels in parts:
        encoded = tokenizer(texts, truncation=True, max_length=length, padding="max_length", return_tensors="np")
        ids = torch.from_numpy(np.asarray(encoded["input_ids"], dtype=np.int32))
        splits.append(TensorSplit(ids, torch.from_numpy(labels), prepare=partial(_trimmed, pad=tokenizer.pad_token_id)))
    sizes = {"classes": 20, "vocabulary": len(tokenizer), "padding": tokenizer.pad_token_id}
    train, validation, test = splits
    return Fold(train, validation, test, sizes)
