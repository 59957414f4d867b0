"""Files as colleagues of many trades send them: statistics packages, warehouses, services, training scripts and spreadsheets."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables.cases import NAMES, Case, Rows, event, quoted, some, trained
from benchmarks.tables.corpus import of_boosting, of_sklearn

CSV = "predictions.csv"
ORDER = (2, 0, 1)


def ordered(rows: Rows, pattern: str, *, values: Any = None) -> dict[str, Any]:
    """Return one column a class in another order than the classes."""
    values = rows.probs if values is None else values
    return {pattern.format(NAMES[k]): values[:, k] for k in ORDER}


def indexed(rows: Rows) -> dict[str, Any]:
    """Return features, one column a class, the decision and the truth, with pandas' index in front."""
    features = np.random.default_rng(1).normal(size=(len(rows), 2)).round(3)
    return {
        "": range(len(rows)),
        "length": features[:, 0] + 5,
        "width": features[:, 1] + 3,
        **rows.spread("{}"),
        "y_pred": rows.of(NAMES, rows.decided),
        "y_true": rows.truth,
    }


def multi_index(rows: Rows) -> Any:
    """Return what writes a pandas table with two levels of names to Parquet."""

    def write(path: Path) -> None:
        import pandas

        pairs = {("proba", name): cells for name, cells in rows.spread("{}").items()} | {("truth", ""): rows.truth}
        table = pandas.DataFrame(pairs)
        table.columns = pandas.MultiIndex.from_tuples(list(pairs))
        table.to_parquet(path)

    return write


def table_schema(rows: Rows) -> Any:
    """Return pandas' ``orient="table"``: a schema with the categories, and the rows."""
    import pandas

    table = pandas.DataFrame(rows.table("prob_{}", "label")).astype({"label": "category"})
    return json.loads(table.to_json(orient="table"))


def psql(rows: Rows) -> str:
    """Return what psql prints for a query."""
    columns = {"id": rows.ids, **rows.spread("p_{}"), "truth": rows.truth}
    head = "|".join(f" {name:^10} " for name in columns)
    rule = "+".join("-" * 12 for _ in columns)
    wide = [
        [f" {one if isinstance(one, str) else f'{one:.8f}':<10} " for one in row]
        for row in zip(*columns.values(), strict=True)
    ]
    return "\n".join([head, rule, *("|".join(row) for row in wide), f"({len(rows)} rows)", "", ""])


def mysql(rows: Rows) -> str:
    """Return what ``mysql --batch`` prints, with rows that have no label yet."""
    columns = {"customer_id": rows.ids, **rows.spread("prob_{}"), "actual_class": rows.truth}
    body = ["\t".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    body[3:3] = ["999999\t0.2\t0.3\t0.5\tNULL", "999998\t0.1\t0.8\t0.1\tNULL"]
    return "\n".join(["\t".join(columns), *body]) + "\n"


def duckdb_map(rows: Rows) -> Any:
    """Return what lets DuckDB write a MAP of class and probability."""

    def write(path: Path) -> None:
        import duckdb
        import pandas

        base = pandas.DataFrame(rows.table())
        pairs = ", ".join(f"'{NAMES[k]}', p_{NAMES[k]}" for k in ORDER)
        keys, values = (", ".join(pairs.split(", ")[at::2]) for at in (0, 1))
        connection = duckdb.connect()
        connection.register("base", base)
        query = f"SELECT id, MAP([{keys}], [{values}]) AS probabilities, truth FROM base"
        connection.execute(f"COPY ({query}) TO '{path}' (FORMAT parquet)")

    return write


def polars_array(rows: Rows) -> Any:
    """Return what writes Polars' arrays of fixed width to Arrow."""

    def write(path: Path) -> None:
        import polars

        probs = polars.Series("probabilities", rows.probs, dtype=polars.Array(polars.Float64, 3))
        polars.DataFrame([polars.Series("id", rows.ids), probs, polars.Series("label", rows.labels)]).write_ipc(path)

    return write


def polars_struct(rows: Rows) -> Any:
    """Return what writes Polars' structs as lines of JSON."""

    def write(path: Path) -> None:
        import polars

        cells = [{NAMES[k]: float(row[k]) for k in ORDER} for row in rows.probs]
        polars.DataFrame({"id": rows.ids, "proba": cells, "target": rows.truth}).write_ndjson(path)

    return write


def two_sheets(rows: Rows) -> Any:
    """Return a workbook whose first sheet explains the second."""

    def write(path: Path) -> None:
        import openpyxl

        book = openpyxl.Workbook()
        book.active.title = "Readme"
        book.active.append(["Predictions of model 4, see next sheet"])
        sheet = book.create_sheet("Predictions")
        columns = {"sample": rows.ids, **ordered(rows, "prob_{}"), "true_class": rows.truth}
        for row in [list(columns), *zip(*columns.values(), strict=True)]:
            sheet.append([one.item() if isinstance(one, np.generic) else one for one in row])
        book.save(path)

    return write


def german(rows: Rows) -> Any:
    """Return what Excel saves in Germany: semicolons, decimal commas, percentages, umlauts in Windows' encoding."""
    names = ("Käfer", "Hund", "Möwe")
    head = ";".join(["Nr", *(f"P({names[k]})" for k in ORDER), "Klasse"])
    percent = [[f"{100 * row[k]:.6f} %".replace(".", ",") for k in ORDER] for row in rows.probs]
    body = [
        ";".join([str(at + 1), *cells, names[y]])
        for at, (cells, y) in enumerate(zip(percent, rows.labels, strict=True))
    ]
    return lambda path: path.write_bytes(("\r\n".join([head, *body]) + "\r\n").encode("cp1252"))


def unicode_text(rows: Rows) -> Any:
    """Return what Excel calls Unicode text: tabs in UTF-16."""
    columns = rows.table()
    text = "\r\n".join("\t".join(map(str, row)) for row in [list(columns), *zip(*columns.values(), strict=True)])
    return lambda path: path.write_bytes((text + "\r\n").encode("utf-16"))


def lightgbm_cli(rows: Rows) -> dict[str, str]:
    """Return what LightGBM's command line writes, and the file it predicted, whose first column is the label."""
    x = np.random.default_rng(2).normal(size=(len(rows), 3))
    result = "\n".join("\t".join(f"{one:.17g}" for one in row) for row in rows.probs) + "\n"
    test = "\n".join("\t".join([str(y), *(f"{one:.3f}" for one in row)]) for y, row in zip(rows.labels, x, strict=True))
    return {"LightGBM_predict_result.txt": result, "multiclass.test": test + "\n"}


def savetxt(rows: Rows) -> Any:
    """Return numpy.savetxt of a booster's scores and of the labels."""
    return {
        "preds.txt": lambda path: np.savetxt(path, rows.p),
        "y_test.txt": lambda path: np.savetxt(path, rows.labels, fmt="%d"),
    }


def zero_shot(rows: Rows) -> list[dict[str, Any]]:
    """Return what a zero-shot pipeline returns: candidate labels and scores, the largest first, beside the gold label."""
    order, probs = rows.best(3)
    return [
        {"sequence": f"text {i}", "labels": [NAMES[k] for k in o], "scores": p.tolist(), "gold": t}
        for i, o, p, t in zip(rows.ids, order, probs, rows.truth, strict=True)
    ]


def textcat(rows: Rows) -> list[dict[str, Any]]:
    """Return spaCy's categories beside the gold ones."""
    return [
        {
            "text": f"text {i}",
            "cats": {NAMES[k].upper(): float(p[k]) for k in ORDER},
            "gold": {NAMES[k].upper(): float(k == y) for k in ORDER},
        }
        for i, p, y in zip(rows.ids, rows.probs, rows.labels, strict=True)
    ]


def batches(rows: Rows) -> Any:
    """Return what saves Lightning's list of batches."""

    def write(path: Path) -> None:
        import torch

        z, y = torch.tensor(rows.logits), torch.tensor(rows.labels)
        torch.save([{"logits": z[at : at + 32], "labels": y[at : at + 32]} for at in range(0, len(rows), 32)], path)

    return write


def checkpointed(rows: Rows) -> Any:
    """Return what saves logits and targets with what a training script knows besides."""

    def write(path: Path) -> None:
        import torch

        torch.save(
            {
                "epoch": 12,
                "val_loss": 0.61,
                "logits": torch.tensor(rows.logits, dtype=torch.float32),
                "targets": torch.tensor(rows.labels),
                "class_names": list(NAMES),
            },
            path,
        )

    return write


def get_preds(rows: Rows) -> Any:
    """Return fastai's pair of predictions and targets."""
    return rows.probs, rows.labels


def adult(rows: Rows) -> Any:
    """Return AutoGluon's probabilities whose classes begin with a space, as the census data has them."""
    return {
        "": range(len(rows)),
        " <=50K": rows.probs[:, 0],
        " >50K": rows.probs[:, 1],
        "class": rows.of((" <=50K", " >50K")),
    }


def pycaret(rows: Rows) -> dict[str, Any]:
    """Return PyCaret's decision and its score beside features and target."""
    weeks = np.random.default_rng(3).integers(220, 280, len(rows))
    return {
        "Id": range(1, len(rows) + 1),
        "WeekofPurchase": weeks,
        "Purchase": rows.of(("CH", "MM", "XX")),
        "prediction_label": rows.of(("CH", "MM", "XX"), rows.decided),
        "prediction_score": rows.probs.max(1),
    }


def mlflow(rows: Rows) -> dict[str, Any]:
    """Return MLflow's evaluation table: columns and data."""
    columns = {**rows.spread("prob_{}"), "prediction": rows.of(NAMES, rows.decided), "target": rows.truth}
    data = [
        [one.item() if isinstance(one, np.generic) else one for one in row]
        for row in zip(*columns.values(), strict=True)
    ]
    return {"columns": list(columns), "data": data}


def vertex(rows: Rows) -> list[dict[str, Any]]:
    """Return a batch prediction of Vertex AI's tables: the instance and its classes with scores."""
    return [
        {
            "instance": {"sepal_length": "5.1", "species": t},
            "prediction": {"classes": [NAMES[k] for k in ORDER], "scores": [float(p[k]) for k in ORDER]},
        }
        for p, t in zip(rows.probs, rows.truth, strict=True)
    ]


def linear_learner(rows: Rows) -> dict[str, Any]:
    """Return SageMaker's answers of several classes, and the labels."""
    answers = [{"predicted_label": int(k), "score": p.tolist()} for k, p in zip(rows.decided, rows.probs, strict=True)]
    return {"test.jsonl": answers, "labels.csv": {"label": rows.labels}}


def datarobot(rows: Rows) -> dict[str, Any]:
    """Return DataRobot's scored file with the target passed through."""
    return {
        "patient": rows.ids,
        "readmitted_True_PREDICTION": rows.p,
        "readmitted_False_PREDICTION": 1 - rows.p,
        "readmitted_PREDICTION": rows.of(("False", "True"), rows.decided),
        "THRESHOLD": 0.5,
        "POSITIVE_CLASS": "True",
        "readmitted": rows.of(("False", "True")),
        "DEPLOYMENT_APPROVAL_STATUS": "APPROVED",
    }


def weka(rows: Rows) -> str:
    """Return Weka's predictions with the whole distribution, whose largest value has a star."""
    body = []
    for at, (y, k, p) in enumerate(zip(rows.labels, rows.decided, rows.probs, strict=True)):
        cells = ",".join(f"*{one:.6f}" if j == k else f"{one:.6f}" for j, one in enumerate(p))
        body.append(f"{at + 1},{y + 1}:{NAMES[y]},{k + 1}:{NAMES[k]},{'+' if k != y else ''},{cells}")
    return "\n".join(["inst#,actual,predicted,error,distribution", *body]) + "\n"


def nomreg(rows: Rows) -> dict[str, Any]:
    """Return what SPSS's NOMREG saves: estimated probabilities, the decision, its probability and that of the truth."""
    return {
        "id": range(len(rows)),
        "jobcat": rows.labels + 1,
        "EST1_1": rows.probs[:, 0],
        "EST2_1": rows.probs[:, 1],
        "EST3_1": rows.probs[:, 2],
        "PRE_1": rows.decided + 1,
        "PCP_1": rows.probs.max(1),
        "ACP_1": rows.probs[np.arange(len(rows)), rows.labels],
    }


def label_studio(rows: Rows) -> list[dict[str, Any]]:
    """Return Label Studio's export: annotations, and predictions with their scores."""

    def result(name: str) -> list[dict[str, Any]]:
        return [{"from_name": "kind", "to_name": "text", "type": "choices", "value": {"choices": [name]}}]

    return [
        {
            "id": at,
            "data": {"text": f"text {i}"},
            "annotations": [{"id": at, "completed_by": 1, "result": result(t)}],
            "predictions": [{"model_version": "v3", "score": float(p.max()), "result": result(NAMES[p.argmax()])}],
        }
        for at, (i, t, p) in enumerate(zip(rows.ids, rows.truth, rows.probs, strict=True))
    ]


def plants(rows: Rows) -> dict[str, Any]:
    """Return a submission of one column a class, and the solution of the same columns in another order."""
    truth = {name: (rows.labels == at).astype(int) for at, name in enumerate(NAMES)}
    solution = rows.shuffled({"image_id": rows.ids, **truth})
    return {"submission.csv": {"image_id": rows.ids, **rows.spread("{}")}, "solution.csv": solution}


def wandb_media(rows: Rows) -> dict[str, Any]:
    """Return a logged table of Weights & Biases with pictures."""
    picture = {"_type": "image-file", "path": "media/images/a.png", "format": "png", "width": 8, "height": 8}
    data = [
        [picture, NAMES[k], t, *(float(p[j]) for j in ORDER)]
        for k, t, p in zip(rows.decided, rows.truth, rows.probs, strict=True)
    ]
    return {"columns": ["image", "prediction", "ground truth", *(f"score_{NAMES[j]}" for j in ORDER)], "data": data}


def hub(rows: Rows) -> Any:
    """Return what writes a data set of Hugging Face, whose label is a ClassLabel."""

    def write(path: Path) -> None:
        import datasets

        features = datasets.Features(
            {
                "text": datasets.Value("string"),
                "label": datasets.ClassLabel(names=list(NAMES)),
                "logits": datasets.Sequence(datasets.Value("float64")),
            }
        )
        table = {"text": rows.ids, "label": rows.labels.tolist(), "logits": rows.logits.tolist()}
        datasets.Dataset.from_dict(table, features=features).to_parquet(str(path))

    return write


def snowflake(rows: Rows) -> Any:
    """Return what writes decimals under names in capitals, with the time of each row."""

    def write(path: Path) -> None:
        import datetime
        import decimal

        import pyarrow as pa
        import pyarrow.parquet as pq

        start = datetime.datetime(2024, 3, 1, tzinfo=datetime.UTC)
        columns = {
            "SCORED_AT": pa.array([start + datetime.timedelta(hours=at) for at in range(len(rows))]),
            "TRUTH": pa.array(rows.truth),
        }
        for name, cells in ordered(rows, "P_{}").items():
            texts = [decimal.Decimal(f"{one:.12f}") for one in cells]
            columns[name.upper()] = pa.array(texts, pa.decimal128(18, 12))
        pq.write_table(pa.table(columns), path)

    return write


def cells_of(template: str, *, labels: bool = False) -> Any:
    """Return probabilities as text of a cell, and labels so too."""

    def content(rows: Rows) -> dict[str, Any]:
        texts = [template.format(", ".join(f"{one:.8f}" for one in row)) for row in rows.probs]
        cells = [f"tensor({y})" for y in rows.labels] if labels else rows.labels
        return {"path": rows.ids, "probs": texts, "label": cells}

    return content


def numpy_cells(rows: Rows) -> dict[str, Any]:
    """Return a column of arrays as pandas writes it to csv."""
    return {"path": rows.ids, "probs": [str(row) for row in rows.probs], "label": rows.labels}


def commented(rows: Rows) -> str:
    """Return tabs below lines that begin with #."""
    columns = {"sample": rows.ids, **rows.spread("prob_{}"), "label": rows.truth}
    body = ["\t".join(map(str, row)) for row in [list(columns), *zip(*columns.values(), strict=True)]]
    return "\n".join(["# model: resnet50, commit 3f2a", "# written 2024-05-02", *body]) + "\n"


def zipped(rows: Rows) -> Any:
    """Return what pandas writes to a name that ends in zip."""

    def write(path: Path) -> None:
        import pandas

        pandas.DataFrame(rows.table()).to_csv(path, index=False)

    return write


def fasttext(rows: Rows) -> dict[str, str]:
    """Return what ``fasttext predict-prob model test.txt 3`` prints, and the test file."""
    order, probs = rows.best(3)
    said = [
        " ".join(f"__label__{NAMES[k]} {one:.8f}" for k, one in zip(o, p, strict=True))
        for o, p in zip(order, probs, strict=True)
    ]
    test = [f"__label__{t} some words {i}" for t, i in zip(rows.truth, rows.ids, strict=True)]
    return {"predicted.txt": "\n".join(said) + "\n", "test.txt": "\n".join(test) + "\n"}


def two_models(rows: Rows) -> dict[str, Any]:
    """Return two models' probabilities in one table."""
    other = rows.probs**0.5 / (rows.probs**0.5).sum(1, keepdims=True)
    return {"id": rows.ids, **rows.spread("resnet_{}"), **rows.spread("vit_{}", values=other), "truth": rows.truth}


def nullable(rows: Rows) -> Any:
    """Return what writes pandas' nullable integers to Feather, rows without a label among them."""

    def write(path: Path) -> None:
        import pandas

        labels = pandas.array([*rows.labels.tolist(), None, None], dtype="Int64")
        probs = np.concatenate([rows.probs, [[0.2, 0.3, 0.5]] * 2])
        pandas.DataFrame({f"prob_{k}": probs[:, k] for k in ORDER} | {"label": labels}).to_feather(path)

    return write


def api(rows: Rows) -> dict[str, Any]:
    """Return the answer of a service with what it says about itself."""
    results = [
        {"id": i, "scores": {NAMES[k]: float(p[k]) for k in ORDER}, "expected": t}
        for i, p, t in zip(rows.ids, rows.probs, rows.truth, strict=True)
    ]
    return {"model": "ranker-7", "created": 1714651123, "results": results}


# Written before their author had read the readers. As these stood then: of the 67 that say what they hold 30 were read at once, 26 by the
# printed command and 11 refused without one that works (84 % read); of the other 12 five were read by the command, six refused, and one
# gave wrong numbers at once (Arize's: a score of one of two classes, below a half in many rows, taken for the decision's confidence).
# Since the readers were opened: 36 at once and 31 by the command, the others by the command.
COLLEAGUES = [
    Case("pandas, index, features, a column a class, y_pred and y_true", CSV, indexed),
    Case(
        "scikit-learn, predict_log_proba beside y_test",
        CSV,
        lambda r: {**ordered(r, "log_proba_{}", values=np.log(r.probs)), "y_test": r.truth},
        trained(of_sklearn("LogisticRegression"), named=True),
    ),
    Case("pandas, Parquet with two levels of names", "oof.parquet", multi_index),
    Case("pandas, JSON with a table schema", "oof.json", table_schema),
    Case(
        "pandas, pipes, fraud as True and False beside fraud_probability",
        CSV,
        lambda r: {"txn": r.ids, "amount": 12.5, "fraud_probability": r.p, "fraud": r.of((False, True))},
        event,
        options={"sep": "|"},
    ),
    Case("PostgreSQL, what psql prints", "query.txt", psql),
    Case("MySQL, batch output with NULL", "dump.tsv", mysql),
    Case("DuckDB, a MAP of class and probability", "scores.parquet", duckdb_map),
    Case("Polars, arrays of fixed width in Arrow", "scores.arrow", polars_array),
    Case("Polars, structs as lines of JSON", "scores.ndjson", polars_struct),
    Case(
        "R, cbind of iris and predict(type = prob)",
        CSV,
        lambda r: quoted(
            {
                "": [str(at + 1) for at in range(len(r))],
                "Sepal.Length": r.logits[:, 0].round(1) + 5,
                "Species": r.truth,
                **r.spread("{}"),
            }
        ),
    ),
    Case(
        "R, glm's fitted beside y in csv2",
        CSV,
        lambda r: quoted({"age": r.logits[:, 0].round(0), "y": r.labels, "fitted": r.p}, sep=";", decimal=","),
        event,
        says=False,
    ),
    Case(
        "R, mlr3's prediction as a table",
        CSV,
        lambda r: {
            "row_ids": range(1, len(r) + 1),
            "truth": r.truth,
            "response": r.of(NAMES, r.decided),
            **ordered(r, "prob.{}"),
        },
    ),
    Case(
        "R, fwrite with TRUE and FALSE",
        CSV,
        lambda r: {"id": r.ids, "p_event": r.p, "event": r.of(("FALSE", "TRUE"))},
        event,
    ),
    Case("Excel, a sheet of words before that of predictions", "report.xlsx", two_sheets),
    Case("Excel in Germany, percentages and umlauts", CSV, german),
    Case(
        "Excel, boolean cells called Outcome beside Probability",
        "outcomes.xlsx",
        lambda r: {"Patient": r.ids, "Probability": r.p, "Outcome": r.of((False, True))},
        event,
    ),
    Case("Excel, Unicode text", "Book1.txt", unicode_text),
    Case(
        "XGBoost, scores and labels by savetxt",
        "preds.txt --labels y_test.txt",
        savetxt,
        trained(lambda x, y, n: of_boosting("xgboost")(x, y, n), classes=2),
        says=False,
    ),
    Case(
        "XGBoost, columns 0, 1, 2 and label in Parquet",
        "xgb.parquet",
        lambda r: {**{str(k): r.probs[:, k] for k in range(3)}, "label": r.labels},
        trained(of_boosting("xgboost")),
    ),
    Case(
        "XGBoost, margins beside label",
        "xgb.parquet",
        lambda r: {**{f"margin_{k}": r.logits[:, k] for k in ORDER}, "label": r.labels},
        says=False,
    ),
    Case(
        "LightGBM, result of the command line and the test file",
        "LightGBM_predict_result.txt --labels multiclass.test",
        lightgbm_cli,
        says=False,
    ),
    Case(
        "LightGBM, proba_0 … by add_prefix",
        CSV,
        lambda r: {**{f"proba_{k}": r.probs[:, k] for k in range(3)}, "target": r.labels},
        trained(of_boosting("lightgbm")),
    ),
    Case(
        "CatBoost, classes, probabilities and labels in one JSON",
        "catboost.json",
        lambda r: {
            "classes": [NAMES[k] for k in ORDER],
            "probabilities": r.probs[:, ORDER].tolist(),
            "labels": r.truth,
        },
        trained(of_boosting("catboost"), named=True),
    ),
    Case(
        "Transformers, a pipeline with top_k=None beside label ids",
        "pipe.jsonl",
        lambda r: [
            {
                "text": i,
                "label": int(y),
                "prediction": [{"label": f"LABEL_{k}", "score": float(p[k])} for k in np.argsort(-p)],
            }
            for i, y, p in zip(r.ids, r.labels, r.probs, strict=True)
        ],
    ),
    Case("Transformers, a zero-shot pipeline beside gold", "zero.jsonl", zero_shot),
    Case(
        "Transformers, predict() by torch.save",
        "test_predictions.pt",
        lambda r: {"predictions": r.logits, "label_ids": r.labels},
    ),
    Case("fastai, get_preds by torch.save", "preds.pt", get_preds, says=False),
    Case("spaCy, cats beside gold cats", "textcat.jsonl", textcat),
    Case("Lightning, a list of batches by torch.save", "predictions.pt", batches),
    Case("PyTorch, logits, targets, epoch and class_names", "val.pt", checkpointed),
    Case(
        "NumPy, a colleague's features, probs_test and labels_test",
        "fold3.npz",
        lambda r: {"features_test": r.logits[:, :2] * 3, "probs_test": r.probs, "labels_test": r.labels},
    ),
    Case(
        "NumPy, outputs and targets",
        "dump.npz",
        lambda r: {"outputs": r.probs, "targets": r.labels},
        says=False,
    ),
    Case(
        "NumPy, logits of half precision and labels as a column",
        "val_logits.npz",
        lambda r: {"logits": r.logits.astype(np.float16), "labels": r.labels[:, None]},
        lambda s: Rows(
            (base := some(s)).labels,
            (half := base.logits.astype(np.float16).astype(np.float64)),
            np.exp(half) / np.exp(half).sum(1, keepdims=True),
        ),
    ),
    Case(
        "H2O, predict, p0 and p1 beside CAPSULE",
        CSV,
        lambda r: {"CAPSULE": r.labels, "predict": r.decided, "p0": 1 - r.p, "p1": r.p},
        event,
    ),
    Case("AutoGluon, classes that begin with a space", CSV, adult, event),
    Case("PyCaret, prediction_label and prediction_score", CSV, pycaret, pairs=True),
    Case(
        "PyCaret, raw scores",
        CSV,
        lambda r: {
            "Purchase": r.of(("CH", "MM")),
            "prediction_label": r.of(("CH", "MM"), r.decided),
            "prediction_score_CH": 1 - r.p,
            "prediction_score_MM": r.p,
        },
        event,
    ),
    Case("MLflow, an evaluation table", "eval_results_table.json", mlflow),
    Case("SageMaker, linear learner of several classes", "test.jsonl --labels labels.csv", linear_learner),
    Case(
        "SageMaker, batch transform joined to its input",
        "test.csv.out",
        lambda r: (
            "\n".join(f"{y},{at % 9},{p:.9f}" for at, (y, p) in enumerate(zip(r.labels, r.p, strict=True))) + "\n"
        ),
        event,
        says=False,
    ),
    Case("Vertex AI, batch prediction of tables", "prediction.results-00000-of-00001.jsonl", vertex),
    Case(
        "Vertex AI, exported to BigQuery and csv",
        CSV,
        lambda r: {"species": r.truth, **{f"species_{NAMES[k]}_score": r.probs[:, k] for k in ORDER}},
    ),
    Case(
        "Azure ML, Scored Labels and Scored Probabilities of two classes",
        CSV,
        lambda r: {
            "age": 40,
            "income": r.of(("<=50K", ">50K")),
            "Scored Labels": r.of(("<=50K", ">50K"), r.decided),
            "Scored Probabilities": r.p,
        },
        event,
    ),
    Case("DataRobot, scored with the target passed through", CSV, datarobot, event),
    Case(
        "Dataiku, scored with prediction_correct",
        CSV,
        lambda r: {
            "species": r.truth,
            **r.spread("proba_{}"),
            "prediction": r.of(NAMES, r.decided),
            "prediction_correct": (r.decided == r.labels).tolist(),
        },
    ),
    Case(
        "KNIME, P (Species=…) and its confidence",
        CSV,
        lambda r: {
            "Species": r.truth,
            **ordered(r, "P (Species={})"),
            "Prediction (Species)": r.of(NAMES, r.decided),
            "Prediction (Species) (Confidence)": r.probs.max(1),
        },
    ),
    Case(
        "RapidMiner, confidence(…) and prediction(label)",
        CSV,
        lambda r: quoted(
            {"label": r.truth, "prediction(label)": r.of(NAMES, r.decided), **ordered(r, "confidence({})")}, sep=";"
        ),
    ),
    Case("Weka, csv with the distribution", CSV, weka, partial(some, digits=6)),
    Case(
        "SAS, PROC LOGISTIC's F_, I_ and P_",
        CSV,
        lambda r: {"F_tier": r.truth, "I_tier": r.of(NAMES, r.decided), **r.spread("P_{}"), "_LEVEL_": ""},
    ),
    Case("SPSS, NOMREG's EST, PRE, PCP and ACP", CSV, nomreg),
    Case(
        "Stata, predict p1 p2 p3",
        CSV,
        lambda r: {"patid": r.ids, "insure": r.labels + 1, **{f"p{k + 1}": r.probs[:, k] for k in range(3)}},
    ),
    Case(
        "JMP, Prob[…] and Most Likely",
        CSV,
        lambda r: {"species": r.truth, **ordered(r, "Prob[{}]"), "Most Likely species": r.of(NAMES, r.decided)},
    ),
    Case(
        "MATLAB, writetable of label and score_1 …",
        CSV,
        lambda r: {
            "Y": r.truth,
            "label": r.of(NAMES, r.decided),
            **{f"score_{k + 1}": r.probs[:, k] for k in range(3)},
        },
        says=False,
    ),
    Case("Label Studio, annotations and predictions with scores", "project-1.json", label_studio, pairs=True),
    Case("Kaggle, a column a class and the solution as such", "submission.csv --labels solution.csv", plants),
    Case("Weights & Biases, a table with pictures", "preds.table.json", wandb_media),
    Case(
        "NannyML, y_pred_proba_… with period and timestamp",
        CSV,
        lambda r: {
            "timestamp": [f"2024-01-{1 + at // 24:02d} {at % 24:02d}:00:00" for at in range(len(r))],
            "period": "reference",
            **ordered(r, "y_pred_proba_{}"),
            "y_pred": r.of(NAMES, r.decided),
            "y_true": r.truth,
        },
    ),
    Case(
        "Arize, prediction_label, actual_label and prediction_score",
        CSV,
        lambda r: {
            "prediction_id": r.ids,
            "prediction_label": r.of(("stay", "churn"), r.decided),
            "actual_label": r.of(("stay", "churn")),
            "prediction_score": r.p,
        },
        event,
        says=False,
    ),
    Case(
        "detections with confidence and tp",
        CSV,
        lambda r: {
            "image_id": [f"{at // 3:05d}.jpg" for at in range(len(r))],
            "class": r.of(NAMES, r.decided),
            "confidence": r.probs.max(1),
            "x1": 10,
            "y1": 20,
            "iou": 0.7,
            "tp": (r.decided == r.labels).astype(int),
        },
        pairs=True,
    ),
    Case(
        "pandas, melt to variable and value",
        CSV,
        lambda r: {
            "id": np.repeat(r.ids, 3),
            "truth": np.repeat(r.truth, 3),
            "variable": [NAMES[k] for k in ORDER] * len(r),
            "value": r.probs[:, ORDER].reshape(-1),
        },
    ),
    Case("Hugging Face, a data set whose label is a ClassLabel", "scored.parquet", hub),
    Case("Snowflake, decimals under names in capitals", "DATA_0_0_0.parquet", snowflake),
    Case(
        "scikit-learn, decision_function beside labels of ±1",
        CSV,
        lambda r: {"decision_function": r.logits[:, 1] - r.logits[:, 0], "y": 2 * r.labels - 1},
        event,
        says=False,
    ),
    Case(
        "a probability called proba beside y of ±1",
        CSV,
        lambda r: {"proba": r.p, "y": 2 * r.labels - 1},
        event,
    ),
    Case(
        "credit, p_bad beside outcome good or bad",
        CSV,
        lambda r: {"loan": r.ids, "p_bad": r.p, "outcome": r.of(("good", "bad"))},
        event,
    ),
    Case("comments above tabs", "run.tsv", commented),
    Case("a service's answer, results of scores and expected", "answer.json", api),
    Case(
        "probabilities in cells as tensors print",
        CSV,
        cells_of("tensor([{}])", labels=True),
        partial(some, digits=8),
    ),
    Case("probabilities in cells as arrays print", CSV, numpy_cells, partial(some, digits=4)),
    Case("pandas, csv in a zip", "preds.csv.zip", zipped),
    Case("pandas, nullable integers in Feather", "preds.feather", nullable),
    Case(
        "fastText, predict-prob and the test file", "predicted.txt --labels test.txt", fasttext, partial(some, digits=8)
    ),
    Case("two models in one table", CSV, two_models, says=False),
    Case(
        "cross-validation, fold and oof_proba_…",
        CSV,
        lambda r: {
            "row": range(len(r)),
            "fold": [at % 5 for at in range(len(r))],
            **ordered(r, "oof_proba_{}"),
            "target": r.truth,
        },
    ),
    Case(
        "percentages under the classes' names",
        CSV,
        lambda r: {"Photo": r.ids, **ordered(r, "{} (%)", values=100 * r.probs), "True class": r.truth},
    ),
    Case(
        "log_odds beside default",
        CSV,
        lambda r: {"account": r.ids, "log_odds": r.logits[:, 1] - r.logits[:, 0], "default": r.labels},
        event,
    ),
    Case(
        "neg_logit and pos_logit beside neg or pos",
        CSV,
        lambda r: {
            "text": r.ids,
            "pos_logit": r.logits[:, 1],
            "neg_logit": r.logits[:, 0],
            "gold": r.of(("neg", "pos")),
        },
        event,
    ),
    Case(
        "prob_0 and prob_1 beside no or yes",
        CSV,
        lambda r: {"prob_0": 1 - r.p, "prob_1": r.p, "answered": r.of(("no", "yes"))},
        event,
        says=False,
    ),
]
