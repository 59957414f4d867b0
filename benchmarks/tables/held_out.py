"""Files that were added after the readers, chosen by their producers and not by the readers: three sets, each after its readers."""

import csv
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables.cases import NAMES, Case, Rows, event, quoted, records, some
from benchmarks.tables.corpus import CSV, long, top, two_files

SHOWN = ("setosa", "versicolor", "virginica")


def decided(
    rows: Rows, pattern: str, *, pred: str, label: str, key: str, names: tuple[str, ...] = NAMES
) -> dict[str, Any]:
    """Return a key, the true class, one column a class, and the decision."""
    numbered = [at if key.startswith("row") else f"Row{at}" for at in range(len(rows))]  # R and RapidMiner count
    keys = {key: numbered, label: rows.of(names)}
    return keys | rows.spread(pattern, names=names) | {pred: rows.of(names, rows.decided)}


def listed(rows: Rows) -> list[dict[str, Any]]:
    """Return each row's classes and scores as two lists, the largest first."""
    order, probs = rows.best(len(NAMES))
    return records({"label": rows.truth, "classes": [rows.of(NAMES, row) for row in order], "scores": probs})


def polars_lists(rows: Rows) -> Any:
    """Return a Polars table with a column of lists."""
    import polars

    return polars.DataFrame({"probabilities": rows.probs.tolist(), "y_true": rows.labels}).write_parquet


def workbook(rows: Rows) -> Any:
    """Return a workbook with 12.5 % as formatted numbers."""
    import openpyxl

    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append(["id", *(f"P_{name}" for name in NAMES), "actual"])
    for at, (row, label) in enumerate(zip(rows.probs, rows.truth, strict=True)):
        sheet.append([f"{at:04d}", *map(float, row), label])
        for cell in sheet[at + 2][1:4]:
            cell.number_format = "0.0%"
    return book.save


def all_quoted(rows: Rows) -> Any:
    """Return what writes every cell in quotes."""

    def write(path: Path) -> None:
        with path.open("w", newline="") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)
            columns = rows.spread("prob_{}", names=(0, 1, 2)) | {"label": rows.labels}
            writer.writerows([list(columns), *zip(*columns.values(), strict=True)])

    return write


def indexed(rows: Rows) -> dict[str, Any]:
    """Return predictions and, in another order, the test table with the label, both with one index."""
    made = two_files("autogluon.csv", "test.csv", "row_id", lambda r: r.spread("{}"), lambda r: {"class": r.truth})
    return dict(made(rows))


def letters(rows: Rows) -> list[dict[str, Any]]:
    """Return the samples of lm-eval with options A to D, and the target as text of its index."""
    likely = np.log(rows.probs) - 2
    lines = []
    for at, (row, label) in enumerate(zip(likely, rows.labels, strict=True)):
        answers = [[str(z), "False"] for z in row]
        lines.append(
            {
                "doc_id": at,
                "target": str(label),
                "arguments": {f"gen_args_{k}": {"arg_0": f"Q{at}", "arg_1": f" {one}"} for k, one in enumerate("ABCD")},
                "resps": [[one] for one in answers],
                "filtered_resps": answers,
                "acc": int(row.argmax() == label),
            }
        )
    return lines


two = partial(Case, rows=event)

HELD_OUT = [
    Case(
        "Azure Machine Learning, Scored Probabilities_CLASS and Scored Labels beside the column of the label",
        "scored.csv",
        lambda r: quoted(
            decided(r, "Scored Probabilities_{}", pred="Scored Labels", label="Label", key="Sepal", names=SHOWN)
        ),
    ),
    Case(
        "RapidMiner, confidence(CLASS) and prediction(label) beside label, separated by semicolons",
        "out.csv",
        lambda r: quoted(decided(r, "confidence({})", pred="prediction(label)", label="label", key="row no."), ";"),
    ),
    Case(
        "KNIME, P (target=CLASS) and Prediction (target) beside target",
        "knime.csv",
        lambda r: quoted(decided(r, "P (target={})", pred="Prediction (target)", label="target", key="row ID")),
    ),
    Case(
        "R, as.data.table of an mlr3 prediction: row_ids, truth, response, prob.CLASS",
        "pred.csv",
        lambda r: quoted(decided(r, "prob.{}", pred="response", label="truth", key="row_ids")),
    ),
    Case(
        "Vertex AI, batch prediction: classes and scores of all classes as two lists, the largest first, beside label",
        "predictions.jsonl",
        listed,
    ),
    two(
        "a binary model's evaluation table: target, prediction and probability_1",
        "eval.csv",
        lambda r: {"target": r.labels, "prediction": (r.p > 0.5).astype(int), "probability_1": r.p},
    ),
    Case(
        "AutoGluon, predict_proba with its index, and the test table with the label in another file of the same index",
        "autogluon.csv --labels test.csv",
        indexed,
        says=False,
    ),
    Case(
        "a list of objects with an image, the logits' list called output, and target",
        "timm.json",
        lambda r: records({"filename": r.ids, "output": r.logits, "target": r.labels}),
        says=False,
    ),
    Case("Polars, parquet with a column of lists called probabilities and y_true", "val.parquet", polars_lists),
    two(
        "Kaggle, Id and Probability, and answers called Expected in another order",
        "submission.csv --labels answers.csv",
        two_files(
            "submission.csv", "answers.csv", "Id", lambda r: {"Probability": r.p}, lambda r: {"Expected": r.labels}
        ),
    ),
    Case(
        "tsv.gz with logit_CLASS columns and gold",
        "results.tsv.gz",
        lambda r: r.spread("logit_{}", values=r.logits) | {"gold": r.truth},
        options={"sep": "\t"},
    ),
    Case(
        "openpyxl, a workbook with a title of columns P_cat … and 12.5 % as formatted numbers", "sheet.xlsx", workbook
    ),
    Case(
        "Keras, from_logits=True: logits and y_true of one-hot rows",
        "out.npz",
        lambda r: {"logits": r.logits.astype(np.float32), "y_true": np.eye(3, dtype=np.float32)[r.labels]},
    ),
    Case(
        "torch.save of preds and target, as torchmetrics names them",
        "preds.pt",
        lambda r: {"preds": r.probs, "target": r.labels},
        says=False,
    ),
    Case("csv of quoted numbers, prob_0 … prob_2 and label, written by Python's csv with QUOTE_ALL", CSV, all_quoted),
    Case(
        "R's pivot_longer: id, truth, class, prob, separated by semicolons with decimal commas",
        "long.csv",
        lambda r: quoted(dict(zip(("id", "class", "prob", "truth"), long(r).values(), strict=True)), ";", ","),
    ),
    Case(
        "top1_label, top1_score, top2_label, top2_score and true_label",
        "top.csv",
        lambda r: top(r, "top{}_label", "top{}_score", "true_label"),
        pairs=True,
    ),
    Case(
        "feather with proba_3, proba_1, proba_2 of classes 1 to 3 and the label from 1",
        "model.feather",
        lambda r: {f"proba_{at + 1}": r.probs[:, at] for at in (2, 0, 1)} | {"y": r.labels + 1},
    ),
    Case(
        "scikit-learn, pandas.DataFrame(predict_proba) with the columns 0, 1, 2, and y_test",
        CSV,
        lambda r: r.spread("{}", names=(0, 1, 2)) | {"y_test": r.labels},
        says=False,
    ),
    Case(
        "a decision with its probability: predicted_class, prob, actual_class",
        "weka.csv",
        lambda r: {"actual_class": r.truth, "predicted_class": r.of(NAMES, r.decided), "prob": r.probs.max(1)},
        pairs=True,
    ),
    Case(
        "lm-eval, options A to D with the target as a string of its index",
        "samples_mc_2026-01-01T00-00-00.jsonl",
        letters,
        partial(some, classes=4),
    ),
]


def vectors(rows: Rows) -> Any:
    """Return what writes Spark's vectors: a record of type, size, indices and values."""

    def write(path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet

        cells = [{"type": 1, "size": 3, "indices": None, "values": row.tolist()} for row in rows.probs]
        columns = {
            "features_id": rows.ids,
            "probability": cells,
            "prediction": rows.decided * 1.0,
            "label": rows.labels * 1.0,
        }
        pyarrow.parquet.write_table(pa.table(columns), path)

    return write


LATER = [
    Case(
        "SAS, PROC LOGISTIC's output: _FROM_, _INTO_, P_CLASS",
        "out.csv",
        lambda r: {"_FROM_": r.truth, "_INTO_": r.of(NAMES, r.decided), **r.spread("P_{}")},
    ),
    Case(
        "Stata, export delimited after predict pr1 pr2 pr3: y from 1 to 3",
        "pr.csv",
        lambda r: {"y": r.labels + 1, "x1": np.arange(len(r)) / 7, **r.spread("pr{}", names=(1, 2, 3))},
    ),
    Case(
        "MATLAB, writetable: TrueLabel, PredictedLabel, Posterior_1 …, with labels by name",
        "posterior.csv",
        lambda r: {"TrueLabel": r.truth, "PredictedLabel": r.of(NAMES, r.decided), **r.spread("Posterior_{}")},
    ),
    Case(
        "Orange, the model's name with the class in brackets, and the decision under the model's name",
        "orange.csv",
        lambda r: {"target": r.truth, "Random Forest": r.of(NAMES, r.decided), **r.spread("Random Forest ({})")},
        says=False,
    ),
    two(
        "DataRobot, readmitted_True_PREDICTION and readmitted_False_PREDICTION beside readmitted",
        "deployment.csv",
        lambda r: {
            "readmitted_True_PREDICTION": r.p,
            "readmitted_False_PREDICTION": 1 - r.p,
            "readmitted_PREDICTION": r.p > 0.5,
            "THRESHOLD": [0.5] * len(r),
            "POSITIVE_CLASS": [True] * len(r),
            "readmitted": r.labels > 0,
        },
    ),
    Case(
        "SageMaker Autopilot, predicted_label, probability, and labels and probabilities as lists in cells",
        "autopilot.csv",
        lambda r: {
            "target": r.truth,
            "predicted_label": r.of(NAMES, r.decided),
            "probability": r.probs.max(1),
            "probabilities": [str(row.tolist()) for row in r.probs],
            "labels": [str(list(NAMES))] * len(r),
        },
    ),
    two(
        "Google AutoML, churn_0_score and churn_1_score beside churn",
        "tables.csv",
        lambda r: {"churn": r.labels, "churn_0_score": 1 - r.p, "churn_1_score": r.p},
        says=False,
    ),
    Case(
        "Snowflake ML, OUTPUT with class and probability of each class in one cell of JSON, beside LABEL",
        "snowflake.jsonl",
        lambda r: records(
            {
                "ID": r.ids,
                "LABEL": r.truth,
                "OUTPUT": [
                    {"class": name, "probability": probs}
                    for name, probs in zip(r.of(NAMES, r.decided), records(r.spread("{}")), strict=True)
                ],
            }
        ),
    ),
    Case("fastai, torch.save of learn.get_preds()", "preds.pt", lambda r: (r.probs, r.labels), says=False),
    Case("Spark ML, parquet with probability as a record of its vector type", "part-00000.parquet", vectors),
]


def padded(rows: Rows, columns: dict[str, Any], label: str, missing: Any = "") -> dict[str, Any]:
    """Return columns with twelve more rows, as copies of the first, that nobody labelled."""
    longer = {name: [*cells, *cells[:12]] for name, cells in columns.items() if name != label}
    return longer | {label: [*columns[label], *[missing] * 12]}


def lines(table: list[list[Any]], sep: str = ",", end: str = "\n") -> str:
    """Return rows of cells as bare text."""
    return "".join(sep.join(map(str, row)) + end for row in table)


def bare(rows: Rows) -> list[list[Any]]:
    """Return rows of probabilities and the label without a title."""
    return [[*row, label] for row, label in zip(rows.probs.tolist(), rows.labels.tolist(), strict=True)]


def sheets(rows: Rows) -> Any:
    """Return a workbook whose first sheet is a note, and whose second holds the table with dates and truth values."""
    import datetime

    import openpyxl

    book = openpyxl.Workbook()
    book.active.title = "Notes"
    book.active.append(["Exported on", datetime.date(2026, 3, 1)])
    sheet = book.create_sheet("Predictions")
    sheet.append(["id", "seen", "checked", *(f"prob_{name}" for name in NAMES), "label"])
    for at, (row, label) in enumerate(zip(rows.probs.tolist(), rows.truth, strict=True)):
        sheet.append([f"{at:05d}", datetime.datetime(2026, 1, 1 + at % 28), at % 3 == 0, *row, label])
    return book.save


def arrow(columns: Any, *, stream: bool = False) -> Any:
    """Return what writes typed Arrow columns as Parquet, or as an Arrow stream."""

    def content(rows: Rows) -> Any:
        def write(path: Path) -> None:
            import pyarrow as pa
            import pyarrow.parquet

            table = pa.table(columns(rows, pa))
            if not stream:
                pyarrow.parquet.write_table(table, path)
                return
            with pa.ipc.new_stream(path, table.schema) as file:
                file.write_table(table)

        return write

    return content


def german(rows: Rows, cell: Callable[[float], str]) -> list[list[str]]:
    """Return the lines of a table whose cells have a decimal comma."""
    cells = ([cell(p).replace(".", ",") for p in row] for row in rows.probs)
    named = zip(rows.ids, cells, rows.truth, strict=True)
    return [["id", *(f"prob_{n}" for n in NAMES), "label"], *([i, *row, n] for i, row, n in named)]


def flagged(rows: Rows) -> dict[str, Any]:
    """Return a line for each class of each image, with a 1 beside the true one."""
    places = [(at, k) for at in range(len(rows)) for k in np.random.default_rng(at).permutation(3).tolist()]
    return {
        "image": [f"im{at:03d}.png" for at, _ in places],
        "candidate": [NAMES[k] for _, k in places],
        "confidence": [rows.probs[at, k] for at, k in places],
        "is_true": [int(rows.labels[at] == k) for at, k in places],
    }


def half(seed: int) -> Rows:
    """Return rows of a softmax in float16, whose sums are near 1."""
    rows = some(seed)
    probs = rows.probs.astype(np.float16).astype(np.float64)
    return Rows(rows.labels, rows.logits, probs / probs.sum(1, keepdims=True))


def tokens(rows: Rows) -> dict[str, Any]:
    """Return a Trainer's arrays for tokens: sequences of ten, of which the last two are padding."""
    logits, labels = np.zeros((20, 10, 3)), np.full((20, 10), -100)
    logits[:, :8], labels[:, :8] = rows.logits.reshape(20, 8, 3), rows.labels.reshape(20, 8)
    return {"predictions": logits, "label_ids": labels}


CODES = ("001", "010", "100")
NUMBERS = (10, 2, 33)
COUNTRIES = ("DE", "NA", "FR")  # Namibia

# Written before its author had read the readers. As these stood then: of the 32 files that say what they hold 13 were read at
# once, 3 by the printed command, 15 were refused without one that works, and 1 gave wrong numbers (prob_max among the classes);
# of the 13 others 6 by the printed command, 6 refused, 1 wrong (a column of one-hot truth taken for the labels).
STRANGERS = [
    Case(
        "scikit-learn, numpy.savetxt of predict_proba with classes_ as its title, labels that are text one a line",
        "proba.txt --labels y.txt",
        lambda r: {"proba.txt": lines([list(NAMES), *r.probs.tolist()]), "y.txt": lines([[n] for n in r.truth])},
        says=False,
    ),
    Case(
        "German Excel: ; and cells such as 87,1 %, prob_CLASS and label",
        "export.csv",
        lambda r: lines(german(r, lambda p: f"{100 * p:.4f} %"), ";", "\r\n"),
    ),
    Case(
        "German Excel, exponents with a decimal comma: 1,2E-03",
        "export.csv",
        lambda r: lines(german(r, lambda p: f"{p:.9E}"), ";"),
    ),
    Case(
        "German words: Wahrscheinlichkeit_CLASS and Klasse",
        "modell.csv",
        lambda r: r.spread("Wahrscheinlichkeit_{}") | {"Klasse": r.truth},
        says=False,
    ),
    Case(
        "columns class_3, class_0, class_2, class_1 called prob_class_3 …, labels as numbers",
        CSV,
        lambda r: {f"prob_class_{k}": r.probs[:, k] for k in (3, 0, 2, 1)} | {"label": r.labels},
        partial(some, classes=4),
    ),
    Case(
        "pandas, csv with a title of two rows (a MultiIndex of columns)",
        CSV,
        lambda r: lines(
            [["", "prob", "prob", "prob", "label"], ["id", *NAMES, ""]]
            + [[i, *row, n] for i, row, n in zip(r.ids, r.probs.tolist(), r.truth, strict=True)]
        ),
        says=False,
    ),
    Case(
        "class names with a trailing space in the labels",
        CSV,
        lambda r: r.spread("prob_{}") | {"label": [f"{name} " for name in r.truth]},
    ),
    Case(
        "labels in upper case beside columns in lower case",
        CSV,
        lambda r: r.spread("prob_{}") | {"label": [name.upper() for name in r.truth]},
    ),
    Case(
        "classes called 10, 2 and 33, in this order, with labels as numbers",
        CSV,
        lambda r: r.spread("prob_{}", names=NUMBERS) | {"label": r.of(NUMBERS)},
    ),
    Case(
        "classes called 001, 010 and 100, labels with their zeros",
        CSV,
        lambda r: r.spread("prob_{}", names=CODES) | {"label": r.of(CODES)},
    ),
    Case(
        "classes DE, NA and FR, where NA is a country",
        CSV,
        lambda r: r.spread("prob_{}", names=COUNTRIES) | {"label": r.of(COUNTRIES)},
    ),
    Case(
        "class names with commas, quotes and ampersands",
        CSV,
        lambda r: (
            r.spread("prob_{}", names=("R&D, other", 'the "rest"', "a=b"))
            | {"label": r.of(("R&D, other", 'the "rest"', "a=b"))}
        ),
    ),
    Case(
        "class names with accents, composed in the columns and decomposed in the labels",
        CSV,
        lambda r: (
            r.spread("prob_{}", names=("café", "müsli", "tea")) | {"label": r.of(("cafe\u0301", "mu\u0308sli", "tea"))}
        ),
    ),
    Case(
        "PyTorch, a softmax in float16 as Parquet: rows sum to .999 or 1.001",
        "half.parquet",
        arrow(
            lambda r, pa: (
                {n: pa.array(p.astype(np.float16)) for n, p in r.spread("prob_{}", names=(0, 1, 2)).items()}
                | {"label": r.labels}
            )
        ),
        half,
    ),
    Case(
        "Arrow stream with dictionary columns, whose dictionary is in another order than the columns",
        "pred.arrow",
        arrow(
            lambda r, pa: (
                {"id": r.ids}
                | r.spread("prob_{}")
                | {
                    "label": pa.DictionaryArray.from_arrays(
                        pa.array([2 - k for k in r.labels.tolist()], pa.int8()), pa.array(NAMES[::-1])
                    )
                }
            ),
            stream=True,
        ),
    ),
    Case(
        "DuckDB, parquet with a map of class to probability",
        "map.parquet",
        arrow(
            lambda r, pa: {
                "id": r.ids,
                "probabilities": pa.array(
                    [list(row.items()) for row in records(r.spread("{}"))], pa.map_(pa.string(), pa.float64())
                ),
                "label": r.truth,
            }
        ),
    ),
    Case(
        "Polars, a struct of class to probability in Parquet",
        "struct.parquet",
        arrow(lambda r, pa: {"id": r.ids, "probs": records(r.spread("{}")), "label": r.truth}),
    ),
    Case("a workbook whose first sheet is a note", "book.xlsx", sheets),
    Case(
        "labels in a Parquet file that lacks twelve of the ids",
        "probs.csv --labels truth.parquet",
        lambda r: {
            "probs.csv": {
                "id": [*r.ids, *(f"x{at:05d}" for at in range(12))],
                **{n: [*p, *p[:12]] for n, p in r.spread("prob_{}").items()},
            },
            "truth.parquet": r.shuffled({"id": r.ids, "label": r.truth}),
        },
    ),
    Case(
        "twelve rows whose label is empty",
        CSV,
        lambda r: padded(r, r.spread("prob_{}") | {"label": r.truth}, "label"),
    ),
    Case(
        "labels as 0.0, 1.0 and NaN, as pandas writes integers with a gap",
        CSV,
        lambda r: padded(r, r.spread("prob_{}", names=(0, 1)) | {"label": r.labels * 1.0}, "label", "NaN"),
        event,
    ),
    Case(
        "amounts with thousands separators in quotes beside probabilities, with a date",
        CSV,
        lambda r: quoted(
            {
                "amount": [f"{1234.5 * at:,.2f}" for at in range(len(r))],
                "day": [f"2026-01-{1 + at % 28:02d}" for at in range(len(r))],
                **r.spread("prob_{}"),
                "label": r.truth,
            }
        ),
    ),
    two("one column of sigmoids beside label", CSV, lambda r: {"sigmoid": r.p, "label": r.labels}, says=False),
    two(
        "probability beside is_fraud of True and False",
        CSV,
        lambda r: {"probability": r.p, "is_fraud": r.labels > 0},
        says=False,
    ),
    two("proba beside y of 1 and -1", CSV, lambda r: {"proba": r.p, "y": 2 * r.labels - 1}),
    two(
        "Pr(Y=1) before Pr(Y=0)",
        CSV,
        lambda r: {"Pr(Y=1)": r.p, "Pr(Y=0)": 1 - r.p, "Y": r.labels},
    ),
    two(
        "tidymodels, .pred_No and .pred_Yes beside Churn",
        CSV,
        lambda r: {".pred_No": 1 - r.p, ".pred_Yes": r.p, "Churn": r.of(("No", "Yes"))},
        says=False,
    ),
    two(
        "R, data.frame(predict(type = 'prob')) makes X0 and X1 of classes 0 and 1; obs",
        CSV,
        lambda r: {"obs": r.labels, "X0": 1 - r.p, "X1": r.p},
        says=False,
    ),
    Case(
        "LightGBM's command line: a result without a title, and test data whose first column is the label",
        "LightGBM_predict_result.txt --labels test.tsv",
        lambda r: {
            "LightGBM_predict_result.txt": lines(r.probs.tolist(), "\t"),
            "test.tsv": lines([[k, at / 7, at % 5] for at, k in enumerate(r.labels)], "\t"),
        },
        says=False,
    ),
    Case("csv without a title, the label in the last column", CSV, lambda r: lines(bare(r)), says=False),
    two(
        "Keras, predict of one sigmoid (N, 1) beside y_true",
        "out.npz",
        lambda r: {"y_pred": r.p[:, None].astype(np.float32), "y_true": r.labels},
        says=False,
    ),
    Case(
        "Trainer's arrays for tokens, padded with -100",
        "tokens.npz",
        tokens,
    ),
    Case(
        "pandas, melt: id, label, variable of prob_CLASS, value",
        CSV,
        lambda r: {
            "id": np.repeat(r.ids, 3),
            "label": np.repeat(r.truth, 3),
            "variable": [f"prob_{n}" for n in NAMES] * len(r),
            "value": r.probs.reshape(-1),
        },
        says=False,
    ),
    Case(
        "lists in cells of a csv: top5_labels, top5_scores and label",
        CSV,
        lambda r: {
            "top5_labels": [str(r.of(NAMES, row)) for row in r.best(2)[0]],
            "top5_scores": [str(row) for row in r.best(2)[1].tolist()],
            "label": r.truth,
        },
        pairs=True,
    ),
    Case(
        "an index saved twice: a column without a name and Unnamed: 0; a column called note twice",
        CSV,
        lambda r: lines(
            [["", "Unnamed: 0", "note", "note", *(f"prob_{n}" for n in NAMES), "label"]]
            + [[at, at, "a", "b", *row, n] for at, (row, n) in enumerate(zip(r.probs.tolist(), r.truth, strict=True))]
        ),
    ),
    Case(
        "a space after each comma, a byte-order mark and CRLF",
        CSV,
        lambda r: (
            "\ufeff"
            + lines(
                [["id", *(f"prob_{n}" for n in NAMES), "label"]]
                + [[i, *row, n] for i, row, n in zip(r.ids, r.probs.tolist(), r.truth, strict=True)],
                ", ",
                "\r\n",
            )
        ),
    ),
    Case(
        "log-probabilities: logprob_CLASS and label",
        CSV,
        lambda r: r.spread("logprob_{}", values=np.log(r.probs)) | {"label": r.truth},
    ),
    two(
        "h2o, predict, False and True beside response",
        "predictions.csv",
        lambda r: {"predict": r.p > 0.5, "False": 1 - r.p, "True": r.p, "response": r.labels > 0},
    ),
    Case(
        "json of arrays with classes in another order than the alphabet's, labels as names",
        "out.json",
        lambda r: {
            "classes": ["eel", "cat", "dog"],
            "probs": r.probs[:, [2, 0, 1]].tolist(),
            "labels": r.truth,
        },
    ),
    Case(
        "npz of proba, y_test as names and classes of a model, the last class first",
        "model.npz",
        lambda r: {"proba": r.probs[:, ::-1], "y_test": np.array(r.truth), "classes": np.array(NAMES[::-1])},
    ),
    Case(
        "json lines with a dict of scores in each, called probs, in an order of each row's own",
        "rows.jsonl",
        lambda r: [
            {
                "text": i,
                "probs": {NAMES[k]: float(row[k]) for k in order},
                "label": n,
                "meta": {"day": "2026-01-01", "tags": ["a"]},
            }
            for i, row, order, n in zip(r.ids, r.probs, r.best(3)[0], r.truth, strict=True)
        ],
    ),
    Case(
        "prob_max and prob_margin after prob_CLASS",
        CSV,
        lambda r: (
            r.spread("prob_{}")
            | {
                "prob_max": r.probs.max(1),
                "prob_margin": np.sort(r.probs)[:, -1] - np.sort(r.probs)[:, -2],
                "label": r.truth,
            }
        ),
    ),
    Case(
        "prediction and confidence beside prob_CLASS and label",
        CSV,
        lambda r: (
            {"prediction": r.of(NAMES, r.decided), "confidence": r.probs.max(1)}
            | r.spread("prob_{}")
            | {"label": r.truth}
        ),
    ),
    Case(
        "Keras, one-hot truth in columns y_true_CLASS beside y_prob_CLASS",
        CSV,
        lambda r: {f"y_true_{n}": (r.labels == k) * 1 for k, n in enumerate(NAMES)} | r.spread("y_prob_{}"),
        says=False,
    ),
    Case(
        "Weights & Biases, the csv of a table: truth, guess and score_CLASS",
        "wandb_export.csv",
        lambda r: quoted({"truth": r.truth, "guess": r.of(NAMES, r.decided), **r.spread("score_{}")}),
        says=False,
    ),
]

# What a last look at the readers showed. As these stood then 5 of the 8 gave wrong numbers, 4 of them without a word; 3 were refused
# without a command that works.
LAST_LOOK = [
    *(
        Case(
            f"logit_CLASS beside logit_{name}, which is no class",
            CSV,
            lambda r, name=name, of=of: (
                r.spread("logit_{}", values=r.logits) | {f"logit_{name}": of(r)} | {"label": r.truth}
            ),
            says=False,
        )
        for name, of in (
            ("energy", lambda r: np.log(np.exp(r.logits).sum(1))),
            ("gap12", lambda r: -np.diff(np.sort(r.logits)[:, -2:])[:, 0]),
            ("spread", lambda r: r.logits.std(1)),
            ("novelty", lambda r: np.random.default_rng(1).normal(size=len(r))),
        )
    ),
    Case("a line for each candidate of an image, is_true as a flag", CSV, flagged),
    Case(
        "R's iris, columns in another order than the classes, pred and Species as text",
        CSV,
        lambda r: {NAMES[k]: r.probs[:, k] for k in (2, 0, 1)} | {"pred": r.of(NAMES, r.decided), "Species": r.truth},
        says=False,
    ),
    Case(
        "p0 and p1 beside labels -1 and 1",
        CSV,
        lambda r: r.spread("p{}", names=(0, 1)) | {"label": 2 * r.labels - 1},
        event,
    ),
    Case(
        "one column of percentages with % in its title",
        CSV,
        lambda r: {"p_convert (%)": 100 * r.p, "converted": r.labels},
        event,
        says=False,
    ),
]


def braces(rows: Rows, open_: str, close: str) -> list[str]:
    """Return each row's probabilities as one cell of text."""
    return [open_ + ",".join(map(str, row)) + close for row in rows.probs.tolist()]


def titled(rows: Rows) -> Any:
    """Return a workbook whose table begins below a title and an empty row."""
    import openpyxl

    book = openpyxl.Workbook()
    for row in (["Model results, third quarter"], [], ["id", *(f"prob_{n}" for n in NAMES), "label"]):
        book.active.append(row)
    for row in zip(rows.ids, *rows.probs.T.tolist(), rows.truth, strict=True):
        book.active.append(row)
    return book.save


def answers(rows: Rows) -> dict[str, Any]:
    """Return a submission of probabilities, and answers of one column a class in another order of the rows."""
    ones = {name: (rows.labels == k) * 1 for k, name in enumerate(NAMES)}
    return {
        "submission.csv": {"id": rows.ids, **rows.spread("{}")},
        "solution.csv": rows.shuffled({"id": rows.ids, **ones}),
    }


def split_lines(rows: Rows) -> dict[str, Any]:
    """Return a table as pandas' to_json(orient="split")."""
    table = rows.spread("prob_{}") | {"label": rows.truth}
    return {"columns": list(table), "index": list(range(len(rows))), "data": [list(r.values()) for r in records(table)]}


def ranked(rows: Rows) -> dict[str, Any]:
    """Return all classes of each row, the most probable first, as label_1, score_1, label_2, …"""
    order, probs = rows.best(len(NAMES))
    pairs = ((f"label_{k + 1}", rows.of(NAMES, order[:, k]), f"score_{k + 1}", probs[:, k]) for k in range(len(NAMES)))
    return {name: cells for a, b, c, d in pairs for name, cells in ((a, b), (c, d))} | {"truth": rows.truth}


# Written before their author had read the readers. As these stood then: of the 16 that say what they hold 8 were read at once, 2 by the
# printed command and 6 were refused without one that works; of the other 4 one was read by the command. None gave wrong numbers.
FRESH = [
    Case(
        "CatBoost's command line, RawFormulaVal:Class=CLASS beside Label",
        "eval.tsv",
        lambda r: {"SampleId": r.ids, **r.spread("RawFormulaVal:Class={}", values=r.logits), "Label": r.truth},
    ),
    Case(
        "BigQuery ML, predicted_label_probs as a list of records beside label",
        "bq.jsonl",
        lambda r: records(
            {
                "label": r.truth,
                "predicted_label": r.of(NAMES, r.decided),
                "predicted_label_probs": r.scored("label", "prob"),
            }
        ),
    ),
    Case(
        "a pipeline's list of LABEL_0 … with scores beside gold as a number",
        "hf.jsonl",
        lambda r: [
            {
                "text": i,
                "gold": int(y),
                "output": [{"label": f"LABEL_{k}", "score": float(row[k])} for k in np.argsort(-row)],
            }
            for i, y, row in zip(r.ids, r.labels, r.probs, strict=True)
        ],
    ),
    Case(
        "a language model's logprob_A … of the options, not normalised, beside the answer's letter",
        "mmlu.csv",
        lambda r: (
            {"question": r.ids}
            | r.spread("logprob_{}", values=np.log(r.probs) - 1.5, names=("A", "B", "C"))
            | {"answer": r.of(("A", "B", "C"))}
        ),
    ),
    Case(
        "Spark, toPandas().to_csv(): vectors as text in rawPrediction and probability",
        "spark.csv",
        lambda r: {
            "label": r.labels * 1.0,
            "rawPrediction": [str(row) for row in r.logits.tolist()],
            "probability": braces(r, "[", "]"),
            "prediction": r.decided * 1.0,
        },
    ),
    Case(
        "an image folder: filepath, target_idx and softmax_0 …",
        CSV,
        lambda r: (
            {"filepath": [f"val/{n}/{i}.jpg" for n, i in zip(r.truth, r.ids, strict=True)], "target_idx": r.labels}
            | r.spread("softmax_{}", names=(0, 1, 2))
        ),
    ),
    Case(
        "caret, savePredictions: pred, obs, a column a class, rowIndex, Resample",
        "caret.csv",
        lambda r: quoted(
            {"pred": r.of(NAMES, r.decided), "obs": r.truth}
            | r.spread("{}")
            | {"rowIndex": np.arange(len(r)) + 1.0, "Resample": [f"Fold{k % 5 + 1}" for k in range(len(r))]}
        ),
        says=False,
    ),
    Case("a workbook whose table begins below a title and an empty row", "report.xlsx", titled),
    Case(
        "percentages of 0 to 100 with decimals, pct_CLASS beside label",
        CSV,
        lambda r: r.spread("pct_{}", values=100 * r.probs) | {"label": r.truth},
    ),
    Case(
        "probabilities of two models, prob_CLASS_rf and prob_CLASS_xgb, beside label",
        CSV,
        lambda r: r.spread("prob_{}_rf") | r.spread("prob_{}_xgb", values=r.probs[:, ::-1]) | {"label": r.truth},
        says=False,
    ),
    Case(
        "a submission with one column a class, and answers of ones and zeros",
        "submission.csv --labels solution.csv",
        answers,
        says=False,
    ),
    Case(
        "json of objects by id, each with probs and label",
        "by_id.json",
        lambda r: {i: {"probs": p, "label": int(y)} for i, p, y in zip(r.ids, r.probs.tolist(), r.labels, strict=True)},
    ),
    Case(
        "pandas, to_json(): a dict of the index in each column",
        "frame.json",
        lambda r: {
            name: {str(at): cell for at, cell in enumerate(np.asarray(cells).tolist())}
            for name, cells in (r.spread("prob_{}") | {"label": r.truth}).items()
        },
    ),
    Case("pandas, to_json(orient='split')", "split.json", split_lines),
    Case(
        "cross-validation: fold, index, y_true, proba_CLASS, y_pred",
        CSV,
        lambda r: (
            {"fold": np.arange(len(r)) % 5, "index": np.arange(len(r)), "y_true": r.truth}
            | r.spread("proba_{}")
            | {"y_pred": r.of(NAMES, r.decided)}
        ),
    ),
    Case(
        "Salesforce, Will_Churn__c of TRUE and FALSE beside Churn_Probability__c",
        CSV,
        lambda r: {"Id": r.ids, "Will_Churn__c": r.of(("FALSE", "TRUE")), "Churn_Probability__c": r.p},
        event,
        says=False,
    ),
    Case(
        "parquet with a fixed-size list called logits and a categorical label",
        "val.parquet",
        arrow(
            lambda r, pa: {
                "logits": pa.FixedSizeListArray.from_arrays(pa.array(r.logits.reshape(-1)), 3),
                "label": pa.array(r.truth).dictionary_encode(),
                "classes": pa.array([list(NAMES)] * len(r)),
            }
        ),
    ),
    Case(
        "Postgres, COPY to csv: an array in braces called probs, beside label",
        "pg.csv",
        lambda r: {"id": r.ids, "probs": braces(r, "{", "}"), "label": r.labels},
    ),
    Case(
        "csv below two lines of comment that begin with #",
        CSV,
        lambda r: (
            "# model: resnet50\n# split: test, 160 rows\n"
            + lines(
                [["id", *(f"prob_{n}" for n in NAMES), "label"], *zip(r.ids, *r.probs.T.tolist(), r.truth, strict=True)]
            )
        ),
    ),
    Case(
        "json of a model's name, classes and a list of predictions with probabilities by name",
        "run.json",
        lambda r: {
            "model": "resnet50",
            "classes": list(NAMES),
            "predictions": records({"id": r.ids, "probabilities": records(r.spread("{}")), "label": r.truth}),
        },
    ),
]

# What a former look found refused without a command that works.
REFUSED = [
    Case("ranked pairs: label_1, score_1, label_2, …, truth", CSV, ranked, says=False),
    Case(
        "an ensemble's mean_CLASS beside std_CLASS",
        CSV,
        lambda r: (
            {
                name: cells
                for k, n in enumerate(NAMES)
                for name, cells in (
                    (f"mean_{n}", r.probs[:, k]),
                    (f"std_{n}", 0.1 * np.sqrt(r.probs[:, k] * (1 - r.probs[:, k]))),
                )
            }
            | {"label": r.truth}
        ),
        says=False,
    ),
    Case(
        "scikit-learn, npz of proba, y as names and classes_",
        "model.npz",
        lambda r: {"proba": r.probs[:, ::-1], "y": np.array(r.truth), "classes_": np.array(NAMES[::-1])},
    ),
    Case(
        "one score, and labels yes and no in another file",
        "scores.csv --labels answers.csv",
        two_files(
            "scores.csv", "answers.csv", "id", lambda r: {"score": r.p}, lambda r: {"answer": r.of(("no", "yes"))}
        ),
        event,
        says=False,
    ),
    Case(
        "probabilities, and names of classes in a csv without a title",
        "probs.csv --labels truth.csv",
        lambda r: {"probs.csv": r.spread("prob_{}"), "truth.csv": lines([[n] for n in r.truth])},
        says=False,
    ),
    Case(
        "labels, one a line, in a file called test.label",
        "probs.csv --labels test.label",
        lambda r: {
            "probs.csv": r.spread("prob_{}"),
            "test.label": lambda p, r=r: p.write_text(lines([[n] for n in r.truth])) and None,
        },
        says=False,
    ),
    Case(
        "whole percentages of an event",
        CSV,
        lambda r: {"id": r.ids, "churn_pct": (100 * r.p).round().astype(int), "churned": r.labels},
        partial(some, classes=2, digits=2),
        says=False,
    ),
    Case(
        "a record of number and name as the label",
        "rows.jsonl",
        lambda r: records(
            {
                "probs": records(r.spread("{}")),
                "label": [{"id": int(y), "name": n} for y, n in zip(r.labels, r.truth, strict=True)],
            }
        ),
    ),
    Case(
        "a column called label twice, with the same cells",
        CSV,
        lambda r: lines(
            [
                ["id", *(f"prob_{n}" for n in NAMES), "label", "label"],
                *zip(r.ids, *r.probs.T.tolist(), r.truth, r.truth, strict=True),
            ]
        ),
    ),
]
