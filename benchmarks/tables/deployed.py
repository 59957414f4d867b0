"""Files as statistics packages, clouds, automatic learners and clinics write them, with what stands in such tables besides."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables.cases import NAMES, Case, Rows, event, quoted, records, some

CSV = "predictions.csv"
ANSWERS = ("No", "Yes")


def clinic(rows: Rows) -> dict[str, Any]:
    """Return what patients were measured by, their weight in kilograms with it."""
    rng = np.random.default_rng(len(rows))
    return {
        "age": rng.integers(18, 90, len(rows)),
        "weight": rng.normal(78, 14, len(rows)).round(1),
        "bmi": rng.normal(26, 4, len(rows)).round(1),
    }


def folds(rows: Rows, pattern: str = "Fold{}") -> list[str]:
    """Return the fold of each row."""
    return [pattern.format(1 + at % 5) for at in range(len(rows))]


def weka(rows: Rows) -> str:
    """Return what Weka's evaluation prints as CSV with distributions."""
    lines = ["inst#,actual,predicted,error,distribution,,"]
    for at, (label, decided, row) in enumerate(zip(rows.labels, rows.decided, rows.probs, strict=True)):
        cells = [f"{'*' if k == decided else ''}{one:.6f}" for k, one in enumerate(row)]
        wrong = "+" if label != decided else ""
        lines.append(f"{at + 1},{label + 1}:{NAMES[label]},{decided + 1}:{NAMES[decided]},{wrong},{','.join(cells)}")
    return "\n".join(lines) + "\n"


def bigquery(rows: Rows) -> list[dict[str, Any]]:
    """Return what bq query --format=json prints of ML.PREDICT: numbers as text."""
    return [
        {
            "predicted_species": NAMES[decided],
            "predicted_species_probs": [{"label": NAMES[k], "prob": str(row[k])} for k in np.argsort(-row)],
            "length": str(1.5),
            "species": truth,
        }
        for decided, row, truth in zip(rows.decided, rows.probs, rows.truth, strict=True)
    ]


def vertex(rows: Rows) -> list[dict[str, Any]]:
    """Return a batch prediction of Vertex AI of a table with its target."""
    return [
        {
            "instance": {"length": "1.5", "species": truth},
            "prediction": {"classes": list(NAMES), "scores": row.tolist()},
        }
        for truth, row in zip(rows.truth, rows.probs, strict=True)
    ]


def bigquery_structs(rows: Rows) -> Any:
    """Return what writes the structs of classes and scores that Vertex AI exports to BigQuery, as Parquet."""

    def write(path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        cells = [{"classes": list(NAMES), "scores": row.tolist()} for row in rows.probs]
        pq.write_table(pa.table({"id": rows.ids, "species": rows.truth, "predicted_species": cells}), path)

    return write


def autopilot(rows: Rows) -> dict[str, Any]:
    """Return what a model of SageMaker Autopilot answers, joined to its input."""
    return {
        "species": rows.truth,
        "length": 1.5,
        "predicted_label": rows.of(NAMES, rows.decided),
        "probability": rows.probs.max(1),
        "probabilities": [json.dumps(row.tolist()) for row in rows.probs],
        "labels": ["['cat', 'dog', 'eel']"] * len(rows),
    }


def linear_learner(rows: Rows) -> list[dict[str, Any]]:
    """Return what SageMaker's linear learner answers, joined to its input."""
    return [
        {"features": [1.0, 2.5], "label": int(y), "SageMakerOutput": {"score": float(p), "predicted_label": int(d)}}
        for y, p, d in zip(rows.labels, rows.p, rows.decided, strict=True)
    ]


def top_five(rows: Rows) -> dict[str, Any]:
    """Return the five most probable of six classes in columns."""
    order, probs = rows.best(5)
    names = [f"n0{k}" for k in range(6)]
    columns: dict[str, Any] = {"image": [f"{one}.jpg" for one in rows.ids], "gt": rows.of(tuple(names))}
    for at in range(5):
        columns[f"top{at + 1}"] = rows.of(tuple(names), order[:, at])
        columns[f"top{at + 1}_score"] = probs[:, at]
    return columns


def longer(rows: Rows) -> str:
    """Return what pivot_longer makes of the columns of predictions."""
    return quoted(
        {
            ".row": np.repeat(np.arange(1, len(rows) + 1), 3),
            "species": [one for one in rows.truth for _ in NAMES],
            "name": [f".pred_{name}" for name in NAMES] * len(rows),
            "value": rows.probs.reshape(-1),
        }
    )


def two_models(rows: Rows) -> dict[str, Any]:
    """Return two models' probabilities of the same rows, one below the other, without a key."""
    other = 0.5 + (rows.p - 0.5) / 3
    return {
        "model": ["gbm"] * len(rows) + ["glm"] * len(rows),
        "prob": np.concatenate([rows.p, other]),
        "label": np.tile(rows.labels, 2),
    }


def ucla(rows: Rows) -> str:
    """Return a data frame with what predict(type="link", se.fit=TRUE) adds, and the probability made of it."""
    fit = rows.logits[:, 1] - rows.logits[:, 0]
    rng = np.random.default_rng(len(rows))
    return quoted(
        {
            "": [str(at + 1) for at in range(len(rows))],
            "admit": rows.labels,
            "gre": rng.integers(40, 80, len(rows)) * 10,
            "rank": rng.integers(1, 5, len(rows)),
            "fit": fit,
            "se.fit": np.abs(fit) / 9 + 0.1,
            "residual.scale": np.ones(len(rows)),
            "UL": 1 / (1 + np.exp(-fit - 0.3)),
            "LL": 1 / (1 + np.exp(-fit + 0.3)),
            "PredictedProb": rows.p,
        }
    )


def lightning(rows: Rows) -> Any:
    """Return what writes the list of batches that a predict_step returned."""

    def write(path: Path) -> None:
        import torch

        parts = zip(torch.tensor(rows.logits).split(64), torch.tensor(rows.labels).split(64), strict=True)
        torch.save([{"logits": z, "y": y} for z, y in parts], path)

    return write


def german(rows: Rows) -> str:
    """Return a table of a German clinic: semicolons, decimal commas, ja and nein."""
    lines = ["Patient;Alter;Risiko_Wahrscheinlichkeit;Ereignis"]
    for key, p, label in zip(rows.ids, rows.p, rows.of(("nein", "ja")), strict=True):
        lines.append(f"{key};63;{p:.8f};{label}".replace(".", ","))
    return "\n".join(lines) + "\n"


def risks(rows: Rows) -> str:
    """Return what read.csv2 reads: predicted risks with decimal commas beside outcomes of yes and no."""
    columns = {"patient_id": rows.ids, "predicted_probability": rows.p, "outcome": rows.of(("no", "yes"))}
    return quoted(columns, sep=";", decimal=",")


def orders(rows: Rows, pattern: str, values: Any = None) -> dict[str, Any]:
    """Return columns of classes in another order than the classes'."""
    columns = list(rows.spread(pattern, values=values).items())
    return dict([columns[2], columns[0], columns[1]])


# Written before any reader was looked at or changed for them. As these stood then: of the 35 that say what they hold 14 were read at once,
# 17 by the printed command (89 % read), two refused, and two gave wrong numbers by their command (a decision as the label, a weight in
# kilograms as that of rows); of the other 11 one at once, eight by the command, and two wrong (a bound among scores, two models pooled).
# Since roles and their evidence are one table: 18 at once and 17 by the command; of the others two and nine; none wrong.
def printed(rows: Rows) -> str:
    """Return what Weka's buffer shows: a sign beside wrong decisions, and nothing beside right ones."""
    lines = ["=== Predictions on test data ===", "", "    inst#     actual  predicted error prediction"]
    for at, (label, decided, top) in enumerate(zip(rows.labels, rows.decided, rows.probs.max(1), strict=True)):
        wrong = "  +  " if label != decided else " " * 5
        cells = f"{label + 1}:{NAMES[label]}", f"{decided + 1}:{NAMES[decided]}"
        lines.append(f"{at + 1:9d} {cells[0]:>10} {cells[1]:>10} {wrong} {top:.6f} ")
    return "\n".join(lines) + "\n\n"


def decisions(rows: Rows) -> str:
    """Return Weka's CSV of two classes, with the probability of the decision alone."""
    lines = ["inst#,actual,predicted,error,prediction"]
    for at, (label, decided, top) in enumerate(zip(rows.labels, rows.decided, rows.probs.max(1), strict=True)):
        wrong = "+" if label != decided else ""
        lines.append(f"{at + 1},{label + 1}:{ANSWERS[label]},{decided + 1}:{ANSWERS[decided]},{wrong},{top:.6f}")
    return "\n".join(lines) + "\n"


def pasted(rows: Rows) -> str:
    """Return the true label, a tab, and each label with its probability."""
    cells = zip(rows.truth, rows.scored("label", "p"), strict=True)
    lines = (
        "\t".join([f"__label__{y}", " ".join(f"__label__{k['label']} {k['p']:.6f}" for k in row)]) for y, row in cells
    )
    return "\n".join(lines) + "\n"


def images(rows: Rows) -> dict[str, Any]:
    """Return batch predictions with numbers of classes beside their names, and labels in another order."""
    order, probs = rows.best(3)
    made = [
        {
            "instance": {"content": f"gs://b/{one}.jpg", "mimeType": "image/jpeg"},
            "prediction": {
                "ids": [str(100 + k) for k in ks],
                "displayNames": [NAMES[k] for k in ks],
                "confidences": p.tolist(),
            },
        }
        for one, ks, p in zip(rows.ids, order, probs, strict=True)
    ]
    labels = {"content": [f"gs://b/{one}.jpg" for one in rows.ids[::-1]], "label": rows.truth[::-1]}
    return {"predictions_00001.jsonl": made, "labels.csv": labels}


def summary(rows: Rows) -> dict[str, Any]:
    """Return the decision of each row as a name and as a number, beside its confidence; the labels in another file."""
    made = zip(rows.decided.tolist(), rows.probs.max(1).tolist(), strict=True)
    return {
        "results.json": [{"name": NAMES[k], "class": k, "confidence": p} for k, p in made],
        "truth.csv": {"label": rows.truth},
    }


def concepts(rows: Rows) -> list[dict[str, Any]]:
    """Return scores called value beside ids and names of concepts."""
    made = zip(rows.ids, rows.truth, rows.scored("name", "value"), strict=True)
    return [
        {"id": one, "data": {"concepts": [{"id": f"c_{k['name']}", **k} for k in row]}, "ground_truth": y}
        for one, y, row in made
    ]


def unnested(rows: Rows) -> dict[str, Any]:
    """Return a row for each class of each id, beside the true class and the decision."""
    order, probs = rows.best(3)
    thrice = {"id": rows.ids, "species": rows.truth, "predicted_species": rows.of(NAMES, rows.decided)}
    long = {name: np.repeat(cells, 3) for name, cells in thrice.items()}
    return long | {"label": [NAMES[k] for k in order.reshape(-1)], "prob": probs.reshape(-1)}


def numpy_texts(rows: Rows) -> dict[str, Any]:
    """Return dicts as Python prints them where the classes are NumPy's texts."""
    cells = [dict(zip(map(np.str_, NAMES), one, strict=True)) for one in rows.probs.tolist()]
    return {"label": rows.truth, "prob_classify": list(map(repr, cells))}


def fixed_ranks(rows: Rows) -> dict[str, Any]:
    """Return a column of one class, and one of its score, for each class in turn."""
    ranks = {f"predicted_kind.classes.{k}": [name] * len(rows) for k, name in enumerate(NAMES)}
    return {"kind": rows.truth, **ranks, **rows.spread("predicted_kind.scores.{}", names=(0, 1, 2))}


def numbered_cells(rows: Rows) -> dict[str, Any]:
    """Return classes from 1 with their probabilities in one cell."""
    cells = [" ".join(f"{k}:{p!r}" for k, p in enumerate(one, start=1)) for one in rows.probs.tolist()]
    return {"label": rows.labels + 1, "prediction": cells}


def long_html(rows: Rows) -> str:
    """Return a table of HTML with a line for each cell."""
    import pandas

    return str(pandas.DataFrame(rows.table("prob_{}", "label")).to_html(index=False, float_format="{:.17g}".format))


def of_documents(rows: Rows) -> dict[str, Any]:
    """Return a row for each class of a document, whose name is text, with the true class in each."""
    return {
        "doc": [f"d{at:03d}" for at in range(len(rows)) for _ in NAMES],
        "class": [*NAMES] * len(rows),
        "probability": rows.probs.reshape(-1),
        "actual": np.repeat(rows.truth, len(NAMES)),
    }


def with_usage(rows: Rows) -> dict[str, Any]:
    """Return a submission, and the solution with the part of the board that each row counts for."""
    parts = ["Public" if at % 3 else "Private" for at in range(len(rows))]
    solution = rows.shuffled({"id": rows.ids, "Status": rows.truth, "Usage": parts})
    return {"submission.csv": {"id": rows.ids, **rows.spread("Status_{}")}, "solution.csv": solution}


def two_purchases(rows: Rows) -> dict[str, Any]:
    """Return PyCaret's decision of two classes and its score, with pandas' index in front."""
    kinds = ("CH", "MM")
    return {
        "": range(len(rows)),
        "Purchase": rows.of(kinds),
        "prediction_label": rows.of(kinds, rows.decided),
        "prediction_score": rows.probs.max(1),
    }


DEPLOYED = [
    Case(
        "scikit-learn, cross_val_predict with the fold",
        CSV,
        lambda r: {"fold": folds(r, "{}"), **r.spread("proba_{}"), "y_true": r.truth, "y_pred": r.of(NAMES, r.decided)},
    ),
    Case(
        "pandas, predict_proba with numbers as names",
        CSV,
        lambda r: {"x": r.logits[:, 0], **r.spread("{}", names=(0, 1, 2)), "y": r.labels},
        says=False,
    ),
    Case("XGBoost, softprob and label", "xgb.npz", lambda r: {"softprob": r.probs, "label": r.labels}),
    Case(
        "LightGBM, raw_score of three classes",
        "lgb.parquet",
        lambda r: {**r.spread("raw_score_{}", values=r.logits, names=(0, 1, 2)), "label": r.labels},
        says=False,
    ),
    Case(
        "CatBoost, Probability of two classes by calc",
        "out.tsv",
        lambda r: {"DocId": range(len(r)), "Probability": r.p, "Label": r.labels},
        event,
    ),
    Case(
        "h2o, two classes decided at another threshold",
        CSV,
        lambda r: {"predict": (r.p > 0.27).astype(int), "p0": r.probs[:, 0], "p1": r.p, "actual": r.labels},
        event,
    ),
    Case(
        "Keras, files with a column a class, and the true class",
        CSV,
        lambda r: {
            "Filename": [f"test/{t}/{i}.png" for t, i in zip(r.truth, r.ids, strict=True)],
            **r.spread("{}"),
            "Predictions": r.of(NAMES, r.decided),
            "True": r.truth,
        },
        says=False,
    ),
    Case(
        "Trainer, texts with logits, label and predicted_label",
        "eval.jsonl",
        lambda r: records(
            {
                "text": [f"a text, {i}" for i in r.ids],
                "label": r.labels,
                "logits": r.logits,
                "predicted_label": r.decided,
            }
        ),
    ),
    Case(
        "randomForest, cbind of data and predict(type = 'prob')",
        CSV,
        lambda r: quoted(
            {
                "": [str(at + 1) for at in range(len(r))],
                "Sepal.Length": r.logits[:, 0],
                "Species": r.truth,
                **r.spread("{}"),
            }
        ),
        says=False,
    ),
    Case("glm, fit, se.fit and PredictedProb", CSV, ucla, event, says=False),
    Case(
        "caret, saved predictions of two classes",
        CSV,
        lambda r: {
            "pred": r.of(ANSWERS, r.decided),
            "obs": r.of(ANSWERS),
            **r.spread("{}", names=ANSWERS),
            "rowIndex": range(1, len(r) + 1),
            "mtry": 2,
            "Resample": folds(r),
        },
        event,
    ),
    Case(
        "tidymodels, collect_predictions",
        CSV,
        lambda r: {
            **r.spread(".pred_{}"),
            "id": folds(r),
            ".row": range(1, len(r) + 1),
            ".pred_class": r.of(NAMES, r.decided),
            "species": r.truth,
            ".config": "Preprocessor1_Model1",
        },
    ),
    Case("tidymodels, made longer", CSV, longer),
    Case(
        "mlr3, as.data.table of a prediction",
        CSV,
        lambda r: {
            "row_ids": range(1, len(r) + 1),
            "truth": r.truth,
            "response": r.of(NAMES, r.decided),
            **orders(r, "prob.{}"),
        },
    ),
    Case("Weka, CSV with distributions", CSV, weka),
    Case(
        "SAS Enterprise Miner, P_, F_, I_ and U_",
        CSV,
        lambda r: {
            "LOAN": r.logits[:, 0].round(2) * 100,
            "BAD": r.labels,
            "_WARN_": "",
            "F_BAD": r.labels,
            "P_BAD1": r.p,
            "P_BAD0": r.probs[:, 0],
            "I_BAD": r.decided,
            "U_BAD": r.decided,
        },
        event,
    ),
    Case(
        "SPSS Modeler, a decision and its confidence",
        CSV,
        lambda r: {
            "id": r.ids,
            "churn": r.of(("F", "T")),
            "$C-churn": r.of(("F", "T"), r.decided),
            "$CC-churn": r.probs.max(1),
        },
        event,
        pairs=True,
    ),
    Case(
        "SPSS Modeler, a probability a class",
        CSV,
        lambda r: {
            "churn": r.of(("F", "T")),
            "$L-churn": r.of(("F", "T"), r.decided),
            "$LP-churn": r.probs.max(1),
            "$LP-F": r.probs[:, 0],
            "$LP-T": r.p,
        },
        event,
    ),
    Case(
        "Azure ML, Scored Labels and Scored Probabilities",
        CSV,
        lambda r: {"age": 40, "label": r.labels, "Scored Labels": r.decided, "Scored Probabilities": r.p},
        event,
    ),
    Case(
        "Azure ML, Scored Probabilities of three classes",
        CSV,
        lambda r: {
            "class": r.truth,
            "Scored Labels": r.of(NAMES, r.decided),
            **orders(r, "Scored Probabilities_{}"),
        },
    ),
    Case("BigQuery ML, bq query --format=json", "bq.json", bigquery),
    Case("Vertex AI, instance and prediction", "prediction.results-00000-of-00001.jsonl", vertex),
    Case("Vertex AI, structs of classes and scores", "export.parquet", bigquery_structs),
    Case("SageMaker Autopilot, labels and probabilities in cells", CSV, autopilot),
    Case("SageMaker's linear learner, jsonl", "out.jsonl", linear_learner, event),
    Case(
        "AutoGluon, predict_proba_oof with its index and class",
        CSV,
        lambda r: {"Unnamed: 0": range(len(r)), **r.spread("{}"), "class": r.truth},
        says=False,
    ),
    Case(
        "Kaggle, a submission of classes and a solution with its Usage",
        "submission.csv --labels solution.csv",
        lambda r: {
            "submission.csv": {"id": r.ids, **r.spread("Class_{}", names=(1, 2, 3))},
            "solution.csv": r.shuffled(
                {
                    "id": r.ids,
                    "target": r.of(("Class_1", "Class_2", "Class_3")),
                    "Usage": ["Public" if at % 3 else "Private" for at in range(len(r))],
                }
            ),
        },
        says=False,
    ),
    Case(
        "Kaggle, target in both files",
        "submission.csv --labels answers.csv",
        lambda r: {
            "submission.csv": {"id": r.ids, "target": r.p},
            "answers.csv": r.shuffled({"id": r.ids, "target": r.labels.tolist()}),
        },
        event,
        says=False,
    ),
    Case(
        "W&B, exported as CSV",
        CSV,
        lambda r: {
            "run": "sunny-haze-7",
            "step": 400,
            "truth": r.truth,
            "guess": r.of(NAMES, r.decided),
            **orders(r, "probs/{}"),
        },
    ),
    Case("a clinic, predicted_probability with decimal commas and yes or no", CSV, risks, event),
    Case("a clinic in Germany", CSV, german, event, says=False),
    Case(
        "a bank, Probability of default with signs of per cent",
        "loans.xlsx",
        lambda r: {
            "Loan No": r.ids,
            "Probability of default": [f"{100 * p:.4f}%" for p in r.p],
            "Default": r.of(("N", "Y")),
        },
        event,
    ),
    Case(
        "a weight in kilograms beside the probability of diabetes",
        CSV,
        lambda r: {**clinic(r), "prob_diabetes": r.p, "diabetes": r.labels},
        event,
    ),
    Case(
        "visits of patients with the probability of sepsis",
        CSV,
        lambda r: {
            "patient": [f"P{at // 4:03d}" for at in range(len(r))],
            "visit": [at % 4 for at in range(len(r))],
            "sepsis_probability": r.p,
            "sepsis": r.of((False, True)),
        },
        event,
    ),
    Case("two models below one another without a key", CSV, two_models, event, says=False),
    Case(
        "one column a class of truth and of probability",
        CSV,
        lambda r: {
            **{f"actual_{name}": (r.labels == at).astype(int) for at, name in enumerate(NAMES)},
            **orders(r, "probability_{}"),
        },
    ),
    Case("the five best of six classes", CSV, top_five, partial(some, classes=6), pairs=True),
    Case(
        "Spark, toPandas of label, probability and prediction",
        CSV,
        lambda r: {
            "label": r.labels.astype(float),
            "rawPrediction": [str(row) for row in r.logits.tolist()],
            "probability": [str(row) for row in r.probs.tolist()],
            "prediction": r.decided.astype(float),
        },
    ),
    Case(
        "Ludwig, predictions and probabilities of an output feature",
        "predictions.parquet",
        lambda r: {
            "species": r.truth,
            "species_predictions": r.of(NAMES, r.decided),
            "species_probability": r.probs.max(1),
            **r.spread("species_probabilities_{}"),
        },
    ),
    Case(
        "DataRobot, a PREDICTION a class",
        CSV,
        lambda r: {
            "row_id": range(len(r)),
            "readmitted_True_PREDICTION": r.p,
            "readmitted_False_PREDICTION": r.probs[:, 0],
            "readmitted_PREDICTION": r.of((False, True), r.decided),
            "THRESHOLD": 0.5,
            "POSITIVE_CLASS": True,
            "readmitted": r.of((False, True)),
        },
        event,
    ),
    Case(
        "PyCaret, raw scores of three classes",
        CSV,
        lambda r: {
            "length": r.logits[:, 1].round(2),
            "species": r.truth,
            "prediction_label": r.of(NAMES, r.decided),
            **r.spread("prediction_score_{}"),
        },
    ),
    Case(
        "KNIME, P (species=…) with its confidence",
        CSV,
        lambda r: {
            "row ID": [f"Row{at}" for at in range(len(r))],
            "species": r.truth,
            **r.spread("P (species={})"),
            "Prediction (species)": r.of(NAMES, r.decided),
            "Prediction (species) (Confidence)": r.probs.max(1),
        },
    ),
    Case(
        "RapidMiner, confidence(…)",
        "scored.xlsx",
        lambda r: {
            "Row No.": range(1, len(r) + 1),
            "species": r.truth,
            "prediction(species)": r.of(NAMES, r.decided),
            **orders(r, "confidence({})"),
        },
    ),
    Case(
        "Stata, p1 p2 p3 after mlogit",
        CSV,
        lambda r: {"y": r.labels + 1, "x": r.logits[:, 0].round(3), **r.spread("p{}", names=(1, 2, 3))},
        says=False,
    ),
    Case(
        "images with the index of truth and decision, confidence and correct",
        CSV,
        lambda r: {
            "filename": [f"{i}.png" for i in r.ids],
            "label_idx": r.labels,
            "pred_idx": r.decided,
            "confidence": r.probs.max(1),
            "correct": r.labels == r.decided,
        },
        pairs=True,
    ),
    Case("Lightning, batches of a predict_step", "preds.pt", lightning),
    Case(
        "Weka, predictions as plain text, where right ones leave a cell empty",
        "weka.txt",
        printed,
        partial(some, digits=6),
        pairs=True,
    ),
    Case("Weka, CSV of two classes without distributions", CSV, decisions, partial(event, digits=6)),
    Case("fastText, predict-prob beside the true labels by paste", "pred.txt", pasted, partial(some, digits=6)),
    Case(
        "Vertex AI, ids, displayNames and confidences of images", "predictions_00001.jsonl --labels labels.csv", images
    ),
    Case("YOLO, a summary of name, class and confidence", "results.json --labels truth.csv", summary, pairs=True),
    Case("Clarifai, concepts of id, name and value", "concepts.json", concepts),
    Case(
        "cleanlab, pred_probs and given_labels",
        "labels.npz",
        lambda r: {"pred_probs": r.probs, "given_labels": r.labels},
    ),
    Case(
        "MindsDB, species beside species_original and species_confidence",
        CSV,
        lambda r: {
            "species": r.of(NAMES, r.decided),
            "species_original": r.truth,
            "species_confidence": r.probs.max(1),
        },
        pairs=True,
    ),
    Case("BigQuery ML, unnested: the class of a row is called label", CSV, unnested, says=False),
    Case(
        "fastai, get_preds beside the vocabulary",
        "preds.npz",
        lambda r: {"preds": r.probs, "targs": r.labels, "vocab": np.array(NAMES)},
    ),
    Case("NLTK, dicts that NumPy's texts print", CSV, numpy_texts),
    Case("AutoML Tables, the same class in all of a column, and its score", CSV, fixed_ranks, says=False),
    Case("Vowpal Wabbit, 1:0.2 2:0.8 in a cell", CSV, numbered_cells, says=False),
    Case("pandas, to_html of many rows", "report.html", long_html),
    Case(
        "SAS, obs that counts rows beside y from 1",
        CSV,
        lambda r: {"obs": range(1, len(r) + 1), "y": r.labels + 1, **r.spread("prob{}", names=(1, 2, 3))},
    ),
    Case("a row for each class of a document, with actual", "long.csv", of_documents),
    Case(
        "pandas, probabilities with exponents in one cell",
        "cells.tsv",
        lambda r: {
            "gold": r.labels,
            "probabilities": [";".join(map(repr, one)) for one in np.float64(r.probs).tolist()],
        },
        partial(some, digits=5),
    ),
    Case(
        "Trainer, predictions and label_ids as JSON",
        "predictions.json",
        lambda r: {"predictions": r.logits.tolist(), "label_ids": r.labels.tolist()},
    ),
    Case(
        "AutoGluon, the class before the mark: cat_proba",
        "test.parquet",
        lambda r: {**r.spread("{}_proba"), "class_pred": r.of(NAMES, r.decided), "class": r.truth},
    ),
    Case("a network, cat_logit beside gt", CSV, lambda r: {**r.spread("{}_logit", values=r.logits), "gt": r.truth}),
    Case("Kaggle, a solution with its usage", "submission.csv --labels solution.csv", with_usage, says=False),
    Case("PyCaret, two classes and the larger score", CSV, two_purchases, event),
]
