"""Files that other programs keep, in formats and encodings of their own; what stands above a table; and arrays by their names."""

import pickle
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables.cases import NAMES, Case, Rows, event

CSV = "predictions.csv"
Put = Callable[[Path], object]


def written(
    put: Callable[[Any, Path], object], *, pattern: str = "s_{}", label: str = "species"
) -> Callable[[Rows], Put]:
    """Return what writes a pandas table of ids, a column a class and the true class, by ``put``."""

    def content(rows: Rows) -> Put:
        import pandas

        table = pandas.DataFrame(rows.table(pattern, label))
        return lambda path: put(table, path)

    return content


def zipped(table: Any, path: Path) -> None:
    """Write an archive of one table."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("scores.csv", table.to_csv(index=False))


def in_base(table: Any, path: Path) -> None:
    """Write the one table of a database."""
    with sqlite3.connect(path) as base:
        table.to_sql("predictions", base, index=False)


def accented(table: Any, path: Path) -> None:
    """Write text of western Europe, as Excel there does."""
    path.write_bytes(table.to_csv(index=False).replace("cat", "Kätzchen").encode("cp1252"))


def arff(rows: Rows) -> str:
    """Return what Weka keeps."""
    lines = [
        f"{name},{','.join(map(repr, row))},{true}"
        for name, row, true in zip(rows.ids, rows.probs.tolist(), rows.truth, strict=True)
    ]
    scores = [f"@attribute s_{name} numeric" for name in NAMES]
    head = ["@relation scores", "@attribute id string", *scores, "@attribute species {cat,dog,eel}", "@data"]
    return "\n".join([*head, *lines]) + "\n"


def below(above: list[list[Any]]) -> Callable[[Rows], Put]:
    """Return what writes a sheet with rows above its table."""

    def content(rows: Rows) -> Put:
        import openpyxl

        book = openpyxl.Workbook()
        table = rows.table("p_{}", "truth")
        cells = zip(*(np.asarray(one).tolist() for one in table.values()), strict=True)
        for row in [*above, list(table), *map(list, cells)]:
            book.active.append(row)
        return book.save

    return content


def tokens(rows: Rows) -> dict[str, Any]:
    """Return logits of tokens (N, T, K), and labels of which some are padded."""
    scores, truth = rows.logits.reshape(20, 8, 3), rows.labels.reshape(20, 8)
    logits = np.pad(scores, [(0, 0), (0, 4), (0, 0)])
    labels = np.pad(truth, [(0, 0), (0, 4)], constant_values=-100)
    return {"predictions": logits, "label_ids": labels}


def in_matlab(rows: Rows) -> Put:
    """Return what writes arrays as MATLAB does."""
    import scipy.io

    return lambda path: scipy.io.savemat(path, {"probs": rows.probs, "labels": rows.labels})


def pickled(rows: Rows) -> Put:
    """Return what pickles arrays by name."""
    return lambda path: path.write_bytes(pickle.dumps({"probs": rows.probs, "labels": rows.labels}))


def cars(rows: Rows) -> dict[str, Any]:
    """Return what cars were measured by, their weight with it."""
    at = np.arange(len(rows))
    return {"mpg": at / 3, "weight": at * 7 % 900 + 1500.5, "origin": rows.truth, **rows.spread("prob_{}")}


def of_decisions(rows: Rows) -> dict[str, Any]:
    """Return the largest probability of each row, its class and the true one."""
    return {"max_prob": rows.probs.max(1), "y_pred": rows.decided, "y_true": rows.labels}


def of_judged(rows: Rows) -> dict[str, Any]:
    """Return confidences of decisions, and whether these are right."""
    return {"confidence": rows.probs.max(1), "correct": rows.decided == rows.labels}


def embedded(rows: Rows, **columns: Any) -> dict[str, Any]:
    """Return arrays beside an embedding of each row."""
    return {"embeddings": np.random.default_rng(0).normal(size=(len(rows), 16)), **columns}


def unsaid(name: str, words: str, content: Callable[[Rows], Any]) -> Case:
    """Return a case whose names do not say what it holds."""
    return Case(name, words, content, says=False)


PROGRAMS = [
    unsaid("Excel, text in Windows-1252", CSV, written(accented, label="art")),
    unsaid("Weka, ARFF of scores", "scores.arff", arff),
    unsaid("Stata, scores", "scores.dta", written(lambda t, path: t.to_stata(path, write_index=False))),
    unsaid("Hive, scores", "scores.orc", written(lambda t, path: t.to_orc(path))),
    unsaid("SQLite, one table", "scores.sqlite", written(in_base)),
    unsaid("a zipped table", "scores.zip", written(zipped)),
    unsaid("text called .out", "scores.out", written(lambda t, path: t.to_csv(path, index=False))),
    unsaid("text called .xls", "scores.xls", written(lambda t, path: t.to_csv(path, index=False, sep="\t"))),
    Case("a pickled table", "scores.pkl", written(lambda t, path: t.to_pickle(path), pattern="p_{}")),
    Case("a pickled dict of arrays", "run.pkl", pickled),
    Case(
        "NumPy, labels as objects",
        "run.npz",
        lambda r: {"probs": r.probs, "labels": np.array(r.truth, dtype=object), "class_names": np.array(NAMES)},
    ),
    Case("MATLAB, probs and labels", "run.mat", in_matlab),
    Case("a sheet below two cells and a blank row", "scores.xlsx", below([["Model", "gbm v2"], []])),
    Case("a sheet below three cells", "scores.xlsx", below([["Run", "gbm", "v2"]])),
    Case(
        "text below a line of another width",
        CSV,
        lambda r: lambda path: path.write_text("\n\n".join(["Model,gbm v2", _text(r)])),
    ),
    Case(
        "text below a full line", CSV, lambda r: lambda path: path.write_text(f"Model,gbm,v2,of,May\n,,,,\n{_text(r)}")
    ),
    Case("a weight in kilograms beside mpg, and the true class by no name", CSV, cars),
    Case(
        "probabilities beside an embedding",
        "run.safetensors",
        lambda r: embedded(r, probabilities=r.probs, labels=r.labels),
    ),
    unsaid("outputs beside an embedding", "run.npz", lambda r: embedded(r, outputs=r.logits, target=r.labels)),
    Case("y_prob and y_true", "run.npz", lambda r: {"y_prob": r.probs, "y_true": r.labels}),
    Case(
        "logits beside their softmax", "run.npz", lambda r: {"logits": r.logits, "probs": r.probs, "labels": r.labels}
    ),
    Case("max_prob, y_pred and y_true", "run.npz", of_decisions, pairs=True),
    Case("confidence and correct", "run.npz", of_judged, event, pairs=True),
    Case("Trainer, tokens with padding", "run.npz", tokens),
]


def _text(rows: Rows) -> str:
    import pandas

    return str(pandas.DataFrame(rows.table("p_{}", "truth")).to_csv(index=False))
