"""Files as products export them: warehouses, studios, annotation tools and the command lines of older programs."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables.cases import NAMES, Case, Rows, event, records, some
from benchmarks.tables.held_out import lines, two

CSV = "scores.csv"


def trainer(rows: Rows) -> dict[str, Any]:
    """Return the fields of ``PredictionOutput``, whose metrics are a dict that NumPy pickles."""
    return {"predictions": rows.logits, "label_ids": rows.labels, "metrics": np.array({"test_loss": 0.5}, dtype=object)}


def orange(rows: Rows) -> str:
    """Return Orange's .tab: names, types and roles in three lines."""
    model, values = "Logistic Regression", " ".join(NAMES)
    head = [
        ["sepal length", "iris", model, *(f"{model} ({n})" for n in NAMES), "Fold"],
        ["continuous", values, values, *["continuous"] * 4],
        ["", "class", *["meta"] * 5],
    ]
    body = zip(rows.logits[:, 0].round(1), rows.truth, rows.of(NAMES, rows.decided), *rows.probs.T, strict=True)
    return lines([*head, *([*row, at % 10] for at, row in enumerate(body))], sep="\t")


def spark(rows: Rows) -> Any:
    """Return what writes Spark's vectors, dense ones with their type, beside labels as doubles."""

    def write(path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        kind = {
            "type": pa.int8(),
            "size": pa.int32(),
            "indices": pa.list_(pa.int32()),
            "values": pa.list_(pa.float64()),
        }
        vector = pa.struct(list(kind.items()))

        def vectors(values: Any) -> Any:
            made = [{"type": 1, "size": None, "indices": None, "values": row} for row in values.tolist()]
            return pa.array(made, vector)

        columns = {"label": rows.labels.astype(float), "rawPrediction": vectors(rows.logits)}
        columns |= {"probability": vectors(rows.probs), "prediction": rows.decided.astype(float)}
        pq.write_table(pa.table(columns), path)

    return write


def libsvm(rows: Rows) -> dict[str, str]:
    """Return what ``svm-predict -b 1`` prints, the classes in the order of its training, and the test file."""
    order, number = (1, 0, 2), (1, 2, 3)
    told = ["labels " + " ".join(str(number[k]) for k in order)]
    told += [
        " ".join([str(number[k]), *(f"{row[j]:.9g}" for j in order)])
        for k, row in zip(rows.decided, rows.probs, strict=True)
    ]
    test = [f"{number[k]} 1:{at / 7:.4f} 2:0.25" for at, k in enumerate(rows.labels)]
    return {"out.predict": "\n".join(told) + "\n", "heart.test": "\n".join(test) + "\n"}


def title_rows(rows: Rows) -> Any:
    """Return a workbook with a title, a source and an empty row above its names, and probabilities shown as percentages."""
    import openpyxl

    book = openpyxl.Workbook()
    sheet = book.active
    for head in (
        ["Customer tiers, October"],
        ["Source: CRM"],
        [],
        ["Customer", *(f"P({n})" for n in NAMES), "Actual tier"],
    ):
        sheet.append(head)
    for row in zip(rows.ids, *rows.probs.T.tolist(), rows.truth, strict=True):
        sheet.append(row)
        for cell in sheet[sheet.max_row][1:4]:
            cell.number_format = "0.0%"
    return book.save


def studio(rows: Rows) -> list[dict[str, Any]]:
    """Return Label Studio's tasks, whose predictions have ids of their own."""

    def choice(name: str) -> list[dict[str, Any]]:
        return [{"value": {"choices": [name]}, "from_name": "kind", "to_name": "text", "type": "choices"}]

    return [
        {
            "id": at + 1,
            "data": {"text": i},
            "annotations": [{"id": 900 + at, "result": choice(n), "was_cancelled": False}],
            "predictions": [{"id": at, "model_version": "v1", "score": float(p), "result": choice(NAMES[k])}],
        }
        for at, (i, n, k, p) in enumerate(zip(rows.ids, rows.truth, rows.decided, rows.probs.max(1), strict=True))
    ]


def argilla(rows: Rows) -> list[dict[str, Any]]:
    """Return Argilla's records of version 2: suggestions and responses by the name of their question."""
    return [
        {
            "id": i,
            "fields": {"text": f"mail {i}"},
            "metadata": {},
            "suggestions": {"kind": {"value": NAMES[k], "score": float(p), "agent": "model"}},
            "responses": {"kind": [{"value": n, "user_id": "one"}]},
            "vectors": {},
        }
        for i, n, k, p in zip(rows.ids, rows.truth, rows.decided, rows.probs.max(1), strict=True)
    ]


def pairs(rows: Rows) -> list[list[list[Any]]]:
    """Return each row's classes and scores as lists of two."""
    return [[[one["label"], one["score"]] for one in row] for row in rows.scored("label", "score")]


# Written before their author had read the readers, with others of the same kinds (40 files in all): as these stood then, of the 35
# that say what they hold 11 were read at once, 17 by the printed command and 7 were refused without one that works; the other 5
# were refused with a command that works. None gave wrong numbers. Of 21 more, read once the readers did all of these, 19 say what they
# hold: 5 at once, 9 by the printed command, one by two commands, 3 refused, and one gave wrong numbers by its command (a row a class,
# rounded). What was refused or wrong stands here, too.
TOOLS = [
    Case("Trainer.predict, npz with its metrics as a pickled dict", "trainer.npz", trainer),
    Case(
        "caret, savePredictions: pred, obs, one column a class, rowIndex, mtry, Resample",
        "caret.csv",
        lambda r: (
            {"pred": r.of(NAMES, r.decided), "obs": r.truth}
            | r.spread("{}")
            | {
                "rowIndex": np.arange(len(r))[::-1] + 1,
                "mtry": 2,
                "Resample": [f"Fold{k % 10:02d}" for k in range(len(r))],
            }
        ),
    ),
    Case("Orange, .tab with types and roles under its names", "orange.tab", orange),
    Case(
        'Azure ML studio: Scored Probabilities for Class "CLASS", Scored Labels beside Species',
        "scored.csv",
        lambda r: (
            {"Species": r.truth}
            | r.spread('Scored Probabilities for Class "{}"')
            | {"Scored Labels": r.of(NAMES, r.decided)}
        ),
    ),
    Case("Spark ML, vectors with their type beside label", "part-0.parquet", spark),
    Case("LIBSVM, svm-predict -b 1 beside its test file", "out.predict --labels heart.test", libsvm),
    two(
        "SAS Enterprise Miner, a target of 0 and 1: P_BAD1, P_BAD0, F_BAD, I_BAD, U_BAD beside BAD",
        "em.csv",
        lambda r: (
            {"BAD": r.labels, "F_BAD": r.labels, "I_BAD": r.decided}
            | {"P_BAD1": r.p, "P_BAD0": 1 - r.p, "_WARN_": [""] * len(r), "U_BAD": r.decided}
        ),
    ),
    two(
        "Driverless AI: default payment.0, default payment.1 beside default payment",
        CSV,
        lambda r: {"ID": r.ids, "default payment": r.labels} | r.spread("default payment.{}", names=(0, 1)),
    ),
    two(
        "DataRobot: readmitted_True_PREDICTION, readmitted_False_PREDICTION, THRESHOLD beside readmitted",
        CSV,
        lambda r: (
            {"patient": r.ids, "readmitted": r.labels.astype(bool), "readmitted_True_PREDICTION": r.p}
            | {"readmitted_False_PREDICTION": 1 - r.p, "readmitted_PREDICTION": r.decided.astype(bool)}
            | {"THRESHOLD": 0.5, "POSITIVE_CLASS": True, "DEPLOYMENT_APPROVAL_STATUS": "APPROVED"}
        ),
    ),
    Case(
        "SageMaker Autopilot: probabilities and labels as lists in cells beside topic",
        CSV,
        lambda r: {
            "topic": r.truth,
            "predicted_label": r.of(NAMES, r.decided),
            "probability": r.probs.max(1),
            "probabilities": [str(row) for row in r.probs.tolist()],
            "labels": [str(list(NAMES))] * len(r),
        },
    ),
    Case(
        "Vertex AI, batch prediction of AutoML: instance beside prediction with classes and scores",
        "prediction.results-0.jsonl",
        lambda r: [
            {"instance": {"id": i, "risk": n}, "prediction": {"classes": list(NAMES), "scores": row}}
            for i, n, row in zip(r.ids, r.truth, r.probs.tolist(), strict=True)
        ],
    ),
    two(
        "Snowflake, an object in a cell with class and probability beside CHURNED in another case",
        CSV,
        lambda r: {
            "USER_ID": r.ids,
            "CHURNED": r.of(("false", "true")),
            "PREDICTION": [
                f'{{"class": "{bool(k)}", "logs": null, "probability": {{"False": {1 - p}, "True": {p}}}}}'
                for k, p in zip(r.decided, r.p.tolist(), strict=True)
            ],
        },
    ),
    Case(
        "Kaggle, Class_1 … Class_3 beside a solution in another order",
        "submission.csv --labels solution.csv",
        lambda r: {
            "submission.csv": {"id": r.ids} | r.spread("Class_{}", names=(1, 2, 3)),
            "solution.csv": r.shuffled(
                {"id": r.ids, "target": r.of(("Class_1", "Class_2", "Class_3")), "Usage": r.ids}
            ),
        },
    ),
    Case(
        "ISIC, predictions and a truth of ones and zeros in another order, both a column a class",
        "pred.csv --labels truth.csv",
        lambda r: {
            "pred.csv": {"image": r.ids} | r.spread("{}"),
            "truth.csv": r.shuffled({"image": r.ids} | r.spread("{}", values=np.eye(3)[r.labels])),
        },
    ),
    Case(
        "Watson AutoAI, probability as a list beside a decision that names its classes, and risk",
        CSV,
        lambda r: {
            "risk": r.truth,
            "prediction": r.of(NAMES, r.decided),
            "probability": [str(row) for row in r.probs.tolist()],
        },
    ),
    Case(
        "a row a class, rounded: sample_id, label_name, confidence, is_true",
        "long.csv",
        lambda r: {
            "sample_id": np.repeat([f"s{i}" for i in r.ids], 3),
            "label_name": list(NAMES) * len(r),
            "confidence": r.probs.round(4).reshape(-1),
            "is_true": np.eye(3, dtype=int)[r.labels].reshape(-1),
        },
        lambda s: some(s, digits=4),
    ),
    Case(
        "npz of oof_proba, y_train and fold",
        "oof.npz",
        lambda r: {"oof_proba": r.probs, "y_train": r.labels, "fold": np.arange(len(r)) % 5},
    ),
    Case("a workbook with a title and a source above its names", "tiers.xlsx", title_rows),
    Case("Label Studio, predictions with ids", "export.json", studio, pairs=True),
    Case("Argilla 2, suggestions beside responses", "records.json", argilla, pairs=True),
    Case(
        "Argilla 1, prediction as pairs beside annotation",
        "records.jsonl",
        lambda r: records({"text": r.ids, "prediction": pairs(r), "annotation": r.truth}),
    ),
    Case(
        "pandas, pairs as tuples in cells beside truth",
        CSV,
        lambda r: {"output": [str([tuple(one) for one in row]) for row in pairs(r)], "truth": r.truth},
    ),
    Case(
        "Roboflow, predictions of class, class_id and confidence beside ground_truth, top and confidence",
        "roboflow.jsonl",
        lambda r: records(
            {
                "image": r.ids,
                "ground_truth": r.truth,
                "predictions": [
                    [
                        {"class": one["class"], "class_id": NAMES.index(one["class"]), "confidence": one["score"]}
                        for one in row
                    ]
                    for row in r.scored("class", "score")
                ],
                "top": r.of(NAMES, r.decided),
                "confidence": r.probs.max(1),
            }
        ),
        lambda s: some(s, digits=4),
    ),
    Case(
        "TensorFlow Serving, predictions as lists, and labels in an array",
        "answer.json --labels y.npy",
        lambda r: {"answer.json": {"predictions": r.probs.tolist()}, "y.npy": r.labels},
        says=False,
    ),
    Case(
        "Prodigy, label and score beside answer",
        "prodigy.jsonl",
        lambda r: records(
            {"text": r.ids, "label": ["INSULT"] * len(r), "score": r.p, "answer": r.of(("reject", "accept"))}
        ),
        event,
        says=False,
    ),
    Case(
        "scikit-learn, npz of proba, y_true and classes_ that are numbers",
        "model.npz",
        lambda r: {"proba": r.probs, "y_true": np.array((3, 5, 8))[r.labels], "classes_": np.array((3, 5, 8))},
    ),
]
