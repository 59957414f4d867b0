"""Files that were added after the readers, without looking at these or changing them for it."""

import json
from pathlib import Path

import numpy as np

from benchmarks.tables.cases import NAMES, Corpus, Truth, event, ids, named, of_event, softmax, some, whole
from benchmarks.tables.corpus import quoted

HELD_OUT = Corpus()
add = HELD_OUT.add
SHOWN = ("setosa", "versicolor", "virginica")


@add("scored.csv")
def azure(folder: Path) -> Truth:
    """Azure Machine Learning, Scored Probabilities_CLASS and Scored Labels beside the column of the label."""
    logits, labels = some(201)
    probs = softmax(logits)
    head = ["Sepal", "Label", *(f"Scored Probabilities_{name}" for name in SHOWN), "Scored Labels"]
    rows = [
        [str(at), SHOWN[label], *row, SHOWN[row.argmax()]]
        for at, (row, label) in enumerate(zip(probs, labels, strict=True))
    ]
    (folder / "scored.csv").write_text(quoted([head, *rows]))
    return whole(logits, labels)


@add("out.csv")
def rapidminer(folder: Path) -> Truth:
    """RapidMiner, confidence(CLASS) and prediction(label) beside label, separated by semicolons."""
    logits, labels = some(202)
    probs = softmax(logits)
    head = ["row no.", "label", "prediction(label)", *(f"confidence({name})" for name in NAMES)]
    rows = [
        [float(at), NAMES[label], NAMES[row.argmax()], *row]
        for at, (row, label) in enumerate(zip(probs, labels, strict=True))
    ]
    (folder / "out.csv").write_text(quoted([head, *rows], ";"))
    return whole(logits, labels)


@add("knime.csv")
def knime(folder: Path) -> Truth:
    """KNIME, P (target=CLASS) and Prediction (target) beside target."""
    logits, labels = some(203)
    probs = softmax(logits)
    head = ["row ID", "target", *(f"P (target={name})" for name in NAMES), "Prediction (target)"]
    rows = [
        [f"Row{at}", NAMES[label], *row, NAMES[row.argmax()]]
        for at, (row, label) in enumerate(zip(probs, labels, strict=True))
    ]
    (folder / "knime.csv").write_text(quoted([head, *rows]))
    return whole(logits, labels)


@add("pred.csv")
def mlr3(folder: Path) -> Truth:
    """R, as.data.table of an mlr3 prediction: row_ids, truth, response, prob.CLASS."""
    logits, labels = some(204)
    probs = softmax(logits)
    head = ["row_ids", "truth", "response", *(f"prob.{name}" for name in NAMES)]
    rows = [
        [float(at + 1), NAMES[label], NAMES[row.argmax()], *row]
        for at, (row, label) in enumerate(zip(probs, labels, strict=True))
    ]
    (folder / "pred.csv").write_text(quoted([head, *rows]))
    return whole(logits, labels)


@add("predictions.jsonl")
def vertex(folder: Path) -> Truth:
    """Vertex AI, batch prediction: instance, and prediction with displayNames and confidences of all classes."""
    logits, labels = some(205)
    lines = []
    for row, label in zip(softmax(logits), labels, strict=True):
        order = np.argsort(-row)
        lines.append(
            {"label": NAMES[label], "classes": [NAMES[k] for k in order], "scores": [float(row[k]) for k in order]}
        )
    (folder / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return whole(logits, labels)


@add("eval.csv")
def mlflow(folder: Path) -> Truth:
    """A binary model's evaluation table: target, prediction and probability_1."""
    import pandas

    p, labels = event(206)
    table = pandas.DataFrame({"target": labels, "prediction": (p > 0.5).astype(int), "probability_1": p})
    table.to_csv(folder / "eval.csv", index=False)
    return of_event(p, labels)


@add("autogluon.csv", "--labels", "test.csv", says=False)
def autogluon(folder: Path) -> Truth:
    """AutoGluon, predict_proba with its index, and the test table with the label in another file of the same index."""
    import pandas

    logits, labels = some(207)
    index = np.random.default_rng(0).permutation(900)[: len(labels)]
    pandas.DataFrame(softmax(logits), columns=NAMES, index=index).to_csv(folder / "autogluon.csv", index_label="row_id")
    truth = pandas.DataFrame({"class": named(labels)}, index=index).sort_index()
    truth.to_csv(folder / "test.csv", index_label="row_id")
    return whole(logits, labels)


@add("timm.json", says=False)
def timm(folder: Path) -> Truth:
    """A list of objects with an image, the logits' list called output, and target."""
    logits, labels = some(208)
    rows = [
        {"filename": f"{at}.jpg", "output": row.tolist(), "target": int(label)}
        for at, (row, label) in enumerate(zip(logits, labels, strict=True))
    ]
    (folder / "timm.json").write_text(json.dumps(rows))
    return whole(logits, labels)


@add("val.parquet")
def polars_lists(folder: Path) -> Truth:
    """Polars, parquet with a column of lists called probabilities and a categorical y_true."""
    import polars

    logits, labels = some(209)
    table = polars.DataFrame({"probabilities": softmax(logits).tolist(), "y_true": labels})
    table.write_parquet(folder / "val.parquet")
    return whole(logits, labels)


@add("submission.csv", "--labels", "answers.csv")
def kaggle_probability(folder: Path) -> Truth:
    """Kaggle, Id and Probability, and answers called Expected in another order."""
    import pandas

    p, labels = event(210)
    names = ids(len(p))
    order = np.random.default_rng(1).permutation(len(p))
    pandas.DataFrame({"Id": names, "Probability": p}).to_csv(folder / "submission.csv", index=False)
    pandas.DataFrame({"Id": np.array(names)[order], "Expected": labels[order]}).to_csv(
        folder / "answers.csv", index=False
    )
    return of_event(p, labels)


@add("results.tsv.gz")
def gz_tsv(folder: Path) -> Truth:
    """tsv.gz with logit_CLASS columns and gold."""
    import pandas

    logits, labels = some(211)
    table = pandas.DataFrame({f"logit_{name}": logits[:, at] for at, name in enumerate(NAMES)}).assign(
        gold=named(labels)
    )
    table.to_csv(folder / "results.tsv.gz", sep="\t", index=False)
    return whole(logits, labels)


@add("sheet.xlsx")
def excel(folder: Path) -> Truth:
    """openpyxl, a workbook with a title of columns P_cat … and 12.5 % as formatted numbers."""
    import openpyxl

    logits, labels = some(212)
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append(["id", *(f"P_{name}" for name in NAMES), "actual"])
    for at, (row, label) in enumerate(zip(softmax(logits), labels, strict=True)):
        sheet.append([f"{at:04d}", *map(float, row), NAMES[label]])
        for cell in sheet[at + 2][1:4]:
            cell.number_format = "0.0%"
    book.save(folder / "sheet.xlsx")
    return whole(logits, labels)


@add("out.npz")
def keras_logits(folder: Path) -> Truth:
    """Keras, from_logits=True: logits and y_true of one-hot rows."""
    logits, labels = some(213)
    np.savez(folder / "out.npz", logits=logits.astype(np.float32), y_true=np.eye(3, dtype=np.float32)[labels])
    return whole(logits.astype(np.float32).astype(np.float64), labels)


@add("preds.pt", says=False)
def torch_nested(folder: Path) -> Truth:
    """torch.save of preds and target, as torchmetrics names them."""
    import torch

    logits, labels = some(214)
    torch.save({"preds": torch.tensor(softmax(logits)), "target": torch.tensor(labels)}, folder / "preds.pt")
    return whole(logits, labels)


@add("scores.csv")
def numbers_as_text(folder: Path) -> Truth:
    """csv of quoted numbers, prob_0 … prob_2 and label, written by Python's csv with QUOTE_ALL."""
    import csv

    logits, labels = some(215)
    with (folder / "scores.csv").open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(["prob_0", "prob_1", "prob_2", "label"])
        writer.writerows([[*row, label] for row, label in zip(softmax(logits), labels, strict=True)])
    return whole(logits, labels)


@add("long.csv")
def tidy(folder: Path) -> Truth:
    """R's pivot_longer: id, truth, class, prob, separated by semicolons with decimal commas."""
    logits, labels = some(216)
    rows = [
        [f"i{at}", NAMES[labels[at]], name, row[k]]
        for at, row in enumerate(softmax(logits))
        for k, name in enumerate(NAMES)
    ]
    (folder / "long.csv").write_text(quoted([["id", "truth", "class", "prob"], *rows], ";", ","))
    return whole(logits, labels)


@add("top.csv")
def top_five(folder: Path) -> Truth:
    """top1_label, top1_score, top2_label, top2_score and true_label."""
    import pandas

    logits, labels = some(217)
    probs = softmax(logits)
    order = np.argsort(-probs, axis=1)
    found = np.take_along_axis(probs, order, axis=1)
    columns = {}
    for at in (0, 1):
        columns |= {f"top{at + 1}_label": named(order[:, at]), f"top{at + 1}_score": found[:, at]}
    pandas.DataFrame({**columns, "true_label": named(labels)}).to_csv(folder / "top.csv", index=False)
    return Truth(found[:, 0], order[:, 0] == labels)


@add("model.feather")
def lightgbm_feather(folder: Path) -> Truth:
    """feather with proba_3, proba_1, proba_2 of classes 1 to 3 and the label from 1."""
    import pandas

    logits, labels = some(218)
    probs = softmax(logits)
    table = pandas.DataFrame({f"proba_{at + 1}": probs[:, at] for at in (2, 0, 1)}).assign(y=labels + 1)
    table.to_feather(folder / "model.feather")
    return whole(logits, labels)


@add("scores.csv", says=False)
def classes_as_numbers(folder: Path) -> Truth:
    """scikit-learn, pandas.DataFrame(predict_proba) with the columns 0, 1, 2, and y_test."""
    import pandas

    logits, labels = some(219)
    pandas.DataFrame(softmax(logits)).assign(y_test=labels).to_csv(folder / "scores.csv", index=False)
    return whole(logits, labels)


@add("weka.csv")
def weka(folder: Path) -> Truth:
    """A decision with its probability: predicted_class, prob, actual_class."""
    import pandas

    logits, labels = some(220)
    probs = softmax(logits)
    table = pandas.DataFrame(
        {"actual_class": named(labels), "predicted_class": named(probs.argmax(1)), "prob": probs.max(1)}
    )
    table.to_csv(folder / "weka.csv", index=False)
    return Truth(probs.max(1), probs.argmax(1) == labels)


@add("samples_mc_2026-01-01T00-00-00.jsonl")
def lm_eval_letters(folder: Path) -> Truth:
    """lm-eval, options A to D with the target as a string of its index."""
    logits, labels = some(221, classes=4)
    likely = np.log(softmax(logits)) - 2
    lines = []
    for at, (row, label) in enumerate(zip(likely, labels, strict=True)):
        asked = {f"gen_args_{k}": {"arg_0": f"Q{at}", "arg_1": f" {letter}"} for k, letter in enumerate("ABCD")}
        answers = [[str(z), "False"] for z in row]
        lines.append(
            {
                "doc_id": at,
                "target": str(label),
                "arguments": asked,
                "resps": [[one] for one in answers],
                "filtered_resps": answers,
                "acc": int(row.argmax() == label),
            }
        )
    (folder / "samples_mc_2026-01-01T00-00-00.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return whole(logits, labels)
