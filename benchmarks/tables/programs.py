"""Files that other programs keep, in formats and encodings of their own; what stands above a table; and arrays by their names."""

import pickle
import sqlite3
import zipfile
from collections.abc import Callable
from contextlib import closing
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
    with closing(sqlite3.connect(path)) as base, base:
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


def in_percent(rows: Rows) -> dict[str, Any]:
    """Return confidences in percent, decisions and true classes."""
    return {"Confidence (%)": 100 * rows.probs.max(1), "Predicted": rows.of(NAMES, rows.decided), "Actual": rows.truth}


def numbered(rows: Rows) -> dict[str, Any]:
    """Return confidences beside decisions and true classes by number, and the fold."""
    fold = np.arange(len(rows)) % 5
    return {"confidence": rows.probs.max(1), "prediction": rows.decided, "species": rows.labels, "fold": fold}


def in_one_cell(row: list[float]) -> str:
    """Return the scores of a row as text."""
    return "; ".join(f"{name}={p!r}" for name, p in zip(NAMES, row, strict=True))


def levels(rows: Rows) -> dict[str, Any]:
    """Return a row for each class."""
    count = len(rows)
    each = {"id": np.repeat(np.arange(count), 3), "species": np.repeat(rows.truth, 3)}
    return {**each, "_LEVEL_": [*NAMES] * count, "phat": rows.probs.reshape(-1)}


def by_id(rows: Rows) -> dict[str, Any]:
    """Return an object of scores for each id, and columns of the true classes."""
    scores = [dict(zip(NAMES, row, strict=True)) for row in rows.probs.tolist()]
    truth = rows.shuffled({"id": rows.ids, "label": rows.truth})
    return {"scores.json": dict(zip(rows.ids, scores, strict=True)), "truth.json": truth}


def of_lists(rows: Rows) -> dict[str, Any]:
    """Return logits and labels as lists."""
    return {"logits": rows.logits.tolist(), "labels": rows.labels.tolist()}


def judged_scores(rows: Rows) -> dict[str, Any]:
    """Return the score of each decision, and whether it is right."""
    return {"id": rows.ids, "score": rows.probs.max(1), "correct": (rows.decided == rows.labels).astype(int)}


def likelihoods(rows: Rows) -> list[dict[str, Any]]:
    """Return log-likelihoods of the choices of each question."""
    pairs = zip(rows.labels.tolist(), rows.logits.tolist(), strict=True)
    return [{"gold": label, "choices": list(NAMES), "loglikelihoods": each} for label, each in pairs]


def by_class(rows: Rows) -> dict[str, Any]:
    """Return a list of probabilities for each class."""
    return {"labels": rows.truth, "probabilities": {name: cells.tolist() for name, cells in rows.spread("{}").items()}}


def quoted_commas(rows: Rows) -> str:
    """Return text with commas between cells, and in numbers."""
    lines = [",".join(f'"{p!r}"'.replace(".", ",") for p in row) for row in rows.probs.tolist()]
    return "\n".join(["p_cat,p_dog,p_eel,truth", *map(",".join, zip(lines, rows.truth, strict=True))]) + "\n"


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
    Case("a confidence in percent", CSV, in_percent, pairs=True),
    Case("a score, and whether the decision is correct", CSV, judged_scores, pairs=True),
    Case("decisions and classes by number, with a fold", CSV, numbered, says=False, pairs=True),
    Case(
        "Spark, printed vectors",
        CSV,
        lambda r: {"label": r.labels, "probability": [f"DenseVector({one})" for one in r.probs.tolist()]},
    ),
    Case(
        "classes and scores in a cell",
        CSV,
        lambda r: {"y_true": r.truth, "scores": list(map(in_one_cell, r.probs.tolist()))},
    ),
    unsaid("SAS, a level in each row", CSV, levels),
    unsaid("objects by id", "scores.json --labels truth.json", by_id),
    Case("objects of a list for each class", "run.json", by_class),
    Case(
        "columns within results, beside settings",
        "run.json",
        lambda r: {"config": {"layers": [1, 2, 3]}, "results": of_lists(r)},
    ),
    Case("columns of splits", "run.json", lambda r: {"val": of_lists(r), "test": of_lists(r)}),
    Case("a language model's likelihoods of choices", "log.jsonl", likelihoods),
    Case("decimal commas in quotes, and commas between cells", CSV, quoted_commas),
]


def _text(rows: Rows) -> str:
    import pandas

    return str(pandas.DataFrame(rows.table("p_{}", "truth")).to_csv(index=False))
