"""What a case of the corpus is: rows with a truth, the files that a producer makes of them, and the words that name these."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
NAMES = ("cat", "dog", "eel")
COMPRESSED = (".gz", ".bz2", ".zst")


@dataclass(frozen=True)
class Truth:
    """Probabilities (N, K) and the column (N,) of each row's class; or confidences (N,) and whether they were right."""

    probs: Array
    labels: Array


@dataclass(frozen=True)
class Rows:
    """Rows that a model predicted: logits, or probabilities alone, with labels and ids in no order."""

    labels: Array
    logits: Array
    probs: Array

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def p(self) -> Array:
        """(N,): the probability of class 1, of two."""
        return np.asarray(self.probs[:, 1])

    @property
    def ids(self) -> list[str]:
        """Distinct ids with leading zeros."""
        return [f"{one:06d}" for one in np.random.default_rng(len(self)).permutation(len(self) * 7)[: len(self)]]

    @property
    def truth(self) -> list[str]:
        """The classes' names."""
        return self.of(NAMES)

    @property
    def decided(self) -> Array:
        """(N,): the class of the largest probability."""
        return np.asarray(self.probs.argmax(1))

    def of(self, names: tuple[Any, ...], codes: Array | None = None) -> list[Any]:
        """Return the names of labels, or of other classes (N,)."""
        return [names[code] for code in (self.labels if codes is None else codes)]

    def spread(self, pattern: str, *, values: Array | None = None, names: tuple[Any, ...] = NAMES) -> dict[str, Array]:
        """Return one column a class, called as ``pattern`` with the class in it."""
        values = self.probs if values is None else values
        return {pattern.format(name): values[:, at] for at, name in enumerate(names)}

    def table(self, pattern: str = "p_{}", label: str = "truth") -> dict[str, Any]:
        """Return ids, one column a class and the true class."""
        return {"id": self.ids, **self.spread(pattern), label: self.truth}

    def best(self, count: int) -> tuple[Array, Array]:
        """Return the ``count`` most probable classes of each row, and their probabilities."""
        order = np.argsort(-self.probs, axis=1)[:, :count]
        return order, np.take_along_axis(self.probs, order, axis=1)

    def scored(self, label: str, score: str) -> list[list[dict[str, Any]]]:
        """Return each row's classes as objects of a label and a score, the largest first."""
        order, probs = self.best(len(NAMES))
        return [
            [{label: NAMES[k], score: float(p)} for k, p in zip(*row, strict=True)]
            for row in zip(order, probs, strict=True)
        ]

    def shuffled(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return columns in another order of the rows."""
        order = np.random.default_rng(0).permutation(len(self))
        return {name: [cells[at] for at in order] for name, cells in columns.items()}


@dataclass(frozen=True)
class Case:
    """The files that a producer makes.

    Args:
        name: What they are.
        words: What a person types after the command; the first that is no option is the file.
        content: Makes, of rows, what the file holds, or of several files a dict by name of such.
        rows: Makes rows of a seed.
        says: Whether names, or a producer's mark, say what the numbers are, and which column is the truth.
        pairs: Whether the file holds decisions with their confidences alone.
        options: How pandas writes it.
    """

    name: str
    words: str
    content: Callable[[Rows], Any]
    rows: Callable[[int], Rows] = field(default_factory=lambda: some)
    says: bool = True
    pairs: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> Truth:
        """Write the files into a folder, and return the truth."""
        rows = self.rows(sum(map(ord, self.name)))
        content = self.content(rows)
        several = isinstance(content, dict) and all(Path(str(name)).suffix for name in content)
        named = content if several else {next(one for one in self.words.split() if one[0] != "-"): content}
        for name, one in named.items():
            (folder / name).parent.mkdir(exist_ok=True)
            put(folder / name, one, **self.options)
        if self.pairs:
            return Truth(rows.probs.max(1), rows.decided == rows.labels)
        return Truth(rows.probs, rows.labels)


def put(path: Path, content: Any, **options: Any) -> None:
    """Write what a file holds as its name says: text as it is, columns by pandas, arrays, tensors, or JSON."""
    suffix = next(one for one in reversed(path.suffixes) if one not in COMPRESSED)
    if callable(content):
        content(path)
    elif isinstance(content, str):
        path.write_text(content)
    elif suffix in (".json", ".jsonl"):
        lines = isinstance(content, list) and suffix == ".jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in content) if lines else json.dumps(content))
    elif suffix == ".npy":
        np.save(path, content)
    elif suffix == ".npz":
        np.savez(path, **content)
    elif suffix == ".safetensors":
        from safetensors.numpy import save_file

        save_file(content, path)
    elif suffix == ".pt":
        import torch

        torch.save(_tensors(content), path)
    else:
        import pandas

        table = pandas.DataFrame(content)
        writers = {".parquet": table.to_parquet, ".feather": table.to_feather, ".xlsx": table.to_excel}
        write = writers.get(suffix, partial(table.to_csv, sep="\t") if suffix == ".tsv" else table.to_csv)
        write(path, **({} if suffix in (".parquet", ".feather") else {"index": False}) | options)


def _tensors(content: Any) -> Any:
    import torch

    if isinstance(content, dict) and all(isinstance(one, str) for one in content.values()):
        return content
    if isinstance(content, dict):
        return {name: _tensors(one) for name, one in content.items()}
    return tuple(map(torch.tensor, content)) if isinstance(content, tuple) else torch.tensor(content)


def records(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return columns as rows of JSON."""
    lists = {name: cells.tolist() if isinstance(cells, np.ndarray) else cells for name, cells in columns.items()}
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def quoted(columns: Mapping[str, Any], sep: str = ",", decimal: str = ".") -> str:
    """Return what R's write.csv writes: text in quotes, numbers bare."""

    def cell(value: Any) -> str:
        return f'"{value}"' if isinstance(value, str) else repr(float(value)).replace(".", decimal)

    return "\n".join(sep.join(map(cell, row)) for row in [columns, *zip(*columns.values(), strict=True)]) + "\n"


def softmax(logits: Array) -> Array:
    """Return probabilities (N, K)."""
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(shifted / shifted.sum(1, keepdims=True))


def some(seed: int, *, classes: int = 3, digits: int | None = None, sigmoids: bool = False) -> Rows:
    """Return rows that are over-confident, with classes of different frequency; rounded, or of one-vs-rest classifiers."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(160, classes)) * 1.4 + np.linspace(0.8, 0, classes)
    labels = (softmax(true).cumsum(1) < rng.random((160, 1))).sum(1).clip(0, classes - 1)
    logits = (2 * true).astype(np.float32).astype(np.float64)  # some files hold float32
    probs = 1 / (1 + np.exp(-logits)) if sigmoids else softmax(logits)
    probs = probs if digits is None else probs.round(digits)
    return Rows(labels, logits, probs / probs.sum(1, keepdims=True))


event = partial(some, classes=2)


def trained(
    fit: Callable[[Array, Array, Array], tuple[Array, bool]], *, named: bool = False, classes: int = 3
) -> Callable[[int], Rows]:
    """Return rows of a model: ``fit`` takes features and labels to train on and new features; it returns scores, and if they are logits."""

    def rows(seed: int) -> Rows:
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(420, 4))
        scores = x @ rng.normal(size=(4, 3)) * 1.3
        labels = (softmax(scores).cumsum(1) < rng.random((420, 1))).sum(1).clip(0, 2)
        labels = (labels == 2).astype(int) if classes == 2 else labels
        found, margins = fit(x[:220], np.array(NAMES)[labels[:220]] if named else labels[:220], x[220:])
        found = np.asarray(found, dtype=np.float64)
        return Rows(labels[220:], found, softmax(found) if margins else found)

    return rows
