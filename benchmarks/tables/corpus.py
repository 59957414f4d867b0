"""The corpus: files as the libraries, services and spreadsheets write them that people have predictions from."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables.cases import NAMES, Array, Corpus, Truth, event, ids, named, of_event, softmax, some, whole

CORPUS = Corpus()
add = CORPUS.add


def frame(seed: int, prefix: str = "p_", *, label: str = "truth", digits: int | None = None) -> tuple[Any, Truth]:
    """Return a pandas table with ids, one column a class and the true class, and its truth."""
    import pandas

    logits, labels = some(seed)
    probs = softmax(logits) if digits is None else softmax(logits).round(digits)
    columns = {"id": ids(len(labels), seed=seed)}
    columns |= {prefix + name: probs[:, at] for at, name in enumerate(NAMES)}
    table = pandas.DataFrame({**columns, label: named(labels)})
    return table, Truth(probs / probs.sum(1, keepdims=True), labels)


# ---- pandas


@add("scores.csv")
def pandas_csv(folder: Path) -> Truth:
    """pandas, csv."""
    table, truth = frame(1)
    table.to_csv(folder / "scores.csv", index=False)
    return truth


@add("scores.csv")
def pandas_csv_with_index(folder: Path) -> Truth:
    """pandas, csv with its index in a column without a name."""
    table, truth = frame(2, "prob_")
    table.to_csv(folder / "scores.csv")
    return truth


@add("scores.csv")
def pandas_csv_of_europe(folder: Path) -> Truth:
    """pandas, csv with ; and decimal commas and a byte-order mark."""
    table, truth = frame(3, "proba_")
    table.to_csv(folder / "scores.csv", index=False, sep=";", decimal=",", encoding="utf-8-sig")
    return truth


@add("scores.csv.gz")
def pandas_gz(folder: Path) -> Truth:
    """pandas, csv.gz."""
    table, truth = frame(4)
    table.to_csv(folder / "scores.csv.gz", index=False)
    return truth


@add("scores.csv.bz2")
def pandas_bz2(folder: Path) -> Truth:
    """pandas, csv.bz2."""
    table, truth = frame(5)
    table.to_csv(folder / "scores.csv.bz2", index=False)
    return truth


@add("scores.jsonl.zst")
def lines_zst(folder: Path) -> Truth:
    """pandas' json lines, compressed with zstd."""
    import pyarrow

    table, truth = frame(6)
    with pyarrow.CompressedOutputStream(folder / "scores.jsonl.zst", "zstd") as file:
        file.write(table.to_json(orient="records", lines=True).encode())
    return truth


@add("scores.tsv")
def pandas_tsv(folder: Path) -> Truth:
    """pandas, tsv."""
    table, truth = frame(7, "prob_", label="y_true")
    table.to_csv(folder / "scores.tsv", index=False, sep="\t")
    return truth


@add("scores.csv")
def tabs_in_csv(folder: Path) -> Truth:
    """pandas, tabs in a file called csv."""
    table, truth = frame(8, "prob_", label="target")
    table.to_csv(folder / "scores.csv", index=False, sep="\t")
    return truth


@add("scores.csv")
def utf16(folder: Path) -> Truth:
    """Excel's "Unicode text": UTF-16 with tabs."""
    table, truth = frame(9)
    table.to_csv(folder / "scores.csv", index=False, sep="\t", encoding="utf-16")
    return truth


@add("scores.parquet")
def pandas_parquet(folder: Path) -> Truth:
    """pandas, parquet with categories."""
    table, truth = frame(10)
    table.astype({"truth": "category"}).to_parquet(folder / "scores.parquet")
    return truth


@add("scores.feather")
def pandas_feather(folder: Path) -> Truth:
    """pandas, feather."""
    table, truth = frame(11)
    table.to_feather(folder / "scores.feather")
    return truth


@add("scores.xlsx")
def pandas_xlsx(folder: Path) -> Truth:
    """pandas, xlsx (openpyxl)."""
    table, truth = frame(12)
    table.to_excel(folder / "scores.xlsx", index=False)
    return truth


for orient in ("records", "columns", "split", "table"):

    @add("scores.json")
    def pandas_json(folder: Path, orient: Any = orient) -> Truth:
        """pandas, json."""
        table, truth = frame(13)
        table.to_json(folder / "scores.json", orient=orient)
        return truth


@add("scores.jsonl")
def pandas_lines(folder: Path) -> Truth:
    """pandas, json lines."""
    table, truth = frame(14)
    table.to_json(folder / "scores.jsonl", orient="records", lines=True)
    return truth


@add("scores.csv")
def arrays_in_cells(folder: Path) -> Truth:
    """pandas, csv with NumPy arrays in the cells of one column."""
    import pandas

    logits, labels = some(15)
    table = pandas.DataFrame({"image": ids(len(labels)), "probs": list(softmax(logits).round(6)), "label": labels})
    table.to_csv(folder / "scores.csv", index=False)
    return whole(logits, labels)


@add("scores.csv")
def dicts_in_cells(folder: Path) -> Truth:
    """pandas, csv with dicts in the cells of one column."""
    import pandas

    logits, labels = some(16)
    cells = [dict(zip(NAMES, map(float, row), strict=True)) for row in softmax(logits)]
    table = pandas.DataFrame({"image": ids(len(labels)), "probs": cells, "label": named(labels)})
    table.to_csv(folder / "scores.csv", index=False)
    return whole(logits, labels)


@add("scores.csv")
def percentages(folder: Path) -> Truth:
    """A spreadsheet's csv with cells such as 87.1 %."""
    table, truth = frame(17, digits=6)
    for name in NAMES:
        table["p_" + name] = [f"{100 * one:.4f} %" for one in table["p_" + name]]
    table.to_csv(folder / "scores.csv", index=False)
    return truth


@add("scores.csv", says=False)
def percentages_as_numbers(folder: Path) -> Truth:
    """A csv with numbers that sum to 100 in columns called as the classes are."""
    table, truth = frame(18, "", digits=6)
    for name in NAMES:
        table[name] = 100 * table[name]
    table.to_csv(folder / "scores.csv", index=False)
    return truth


@add("scores.csv")
def two_digits(folder: Path) -> Truth:
    """A csv with probabilities rounded to three digits."""
    table, truth = frame(19, digits=3)
    table.to_csv(folder / "scores.csv", index=False)
    return truth


@add("scores.csv")
def classes_from_the_last(folder: Path) -> Truth:
    """Columns from the last class to the first, called by numbers."""
    import pandas

    logits, labels = some(20)
    probs = softmax(logits)
    columns = {f"prob_class_{at}": probs[:, at] for at in (2, 1, 0)}
    pandas.DataFrame({**columns, "label": labels}).to_csv(folder / "scores.csv", index=False)
    return whole(logits, labels)


@add("scores.csv")
def event_first(folder: Path) -> Truth:
    """Columns P(1), P(0) with labels 0 and 1."""
    import pandas

    p, labels = event(21)
    pandas.DataFrame({"P(1)": p, "P(0)": 1 - p, "label": labels}).to_csv(folder / "scores.csv", index=False)
    return of_event(p, labels)


@add("scores.csv")
def booleans(folder: Path) -> Truth:
    """Columns p_True, p_False with boolean labels."""
    import pandas

    p, labels = event(22)
    pandas.DataFrame({"p_True": p, "p_False": 1 - p, "label": labels > 0}).to_csv(folder / "scores.csv", index=False)
    return of_event(p, labels)


@add("scores.csv")
def signs(folder: Path) -> Truth:
    """Columns prob_1, prob_-1 with labels 1 and -1."""
    import pandas

    p, labels = event(23)
    table = pandas.DataFrame({"prob_1": p, "prob_-1": 1 - p, "y_true": 2 * labels - 1})
    table.to_csv(folder / "scores.csv", index=False)
    return of_event(p, labels)


@add("scores.csv")
def churn(folder: Path) -> Truth:
    """One probability of an event a row."""
    import pandas

    p, labels = event(24)
    table = pandas.DataFrame({"customer_id": ids(len(p)), "churn_probability": p, "label": labels})
    table.to_csv(folder / "scores.csv", index=False)
    return of_event(p, labels)


@add("scores.csv")
def yes_and_no(folder: Path) -> Truth:
    """prob_yes beside labels yes and no."""
    import pandas

    p, labels = event(25)
    table = pandas.DataFrame({"id": ids(len(p)), "prob_yes": p, "churned": np.array(["no", "yes"])[labels]})
    table.to_csv(folder / "scores.csv", index=False)
    return of_event(p, labels)


@add("scores.csv", says=False)
def yes_and_no_unsaid(folder: Path) -> Truth:
    """One score between 0 and 1 beside labels yes and no."""
    import pandas

    p, labels = event(26)
    table = pandas.DataFrame({"id": ids(len(p)), "churn_score": p, "churned": np.array(["no", "yes"])[labels]})
    table.to_csv(folder / "scores.csv", index=False)
    return of_event(p, labels)


@add("scores.csv", says=False)
def one_vs_rest(folder: Path) -> Truth:
    """Sigmoids of one-vs-rest classifiers."""
    import pandas

    logits, labels = some(27)
    sigmoids = 1 / (1 + np.exp(-logits))
    table = pandas.DataFrame({**{name: sigmoids[:, at] for at, name in enumerate(NAMES)}, "truth": named(labels)})
    table.to_csv(folder / "scores.csv", index=False)
    return Truth(sigmoids / sigmoids.sum(1, keepdims=True), labels)


@add("scores.csv")
def long(folder: Path) -> Truth:
    """A long table: a row for each class of each image."""
    import pandas

    logits, labels = some(28)
    names = ids(len(labels))
    probs = softmax(logits)
    rows = [
        {"image_id": names[row], "class": name, "probability": probs[row, at], "true_class": NAMES[labels[row]]}
        for row in range(len(labels))
        for at, name in enumerate(NAMES)
    ]
    pandas.DataFrame(rows).to_csv(folder / "scores.csv", index=False)
    return whole(logits, labels)


def first_of(logits: Array, labels: Array) -> tuple[Truth, Array, Array]:
    """Return the truth of pairs of a decision and its confidence, the classes from the largest, and their probabilities."""
    probs = softmax(logits)
    order = np.argsort(-probs, axis=1)
    found = np.take_along_axis(probs, order, axis=1)
    return Truth(found[:, 0], order[:, 0] == labels), order, found


@add("scores.csv")
def top_columns(folder: Path) -> Truth:
    """The two most probable classes in columns."""
    import pandas

    logits, labels = some(29)
    truth, order, probs = first_of(logits, labels)
    columns = {}
    for at in (0, 1):
        columns |= {f"top{at + 1}_class": named(order[:, at]), f"top{at + 1}_prob": probs[:, at]}
    pandas.DataFrame({"file": ids(len(labels)), **columns, "label": named(labels)}).to_csv(
        folder / "scores.csv", index=False
    )
    return truth


@add("scores.jsonl")
def top_lists(folder: Path) -> Truth:
    """The two most probable classes in lists, as json lines."""
    logits, labels = some(30)
    truth, order, probs = first_of(logits, labels)
    rows = [
        {"top_classes": order[row, :2].tolist(), "top_probs": probs[row, :2].tolist(), "label": int(labels[row])}
        for row in range(len(labels))
    ]
    (folder / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return truth


@add("scores.csv")
def decisions(folder: Path) -> Truth:
    """Decisions with their confidences."""
    import pandas

    logits, labels = some(31)
    truth, order, _ = first_of(logits, labels)
    table = pandas.DataFrame({"pred_label": named(order[:, 0]), "confidence": truth.probs, "true_label": named(labels)})
    table.to_csv(folder / "scores.csv", index=False)
    return truth


@add("scores.npz")
def decisions_in_arrays(folder: Path) -> Truth:
    """conf, pred and label in npz."""
    logits, labels = some(32)
    truth, order, _ = first_of(logits, labels)
    np.savez(folder / "scores.npz", conf=truth.probs, pred=order[:, 0], label=labels)
    return truth


# ---- Polars


def of_polars(seed: int) -> tuple[Any, Truth]:
    """Return a Polars table and its truth."""
    import polars

    table, truth = frame(seed)
    return polars.DataFrame({name: table[name].tolist() for name in table.columns}), truth


@add("scores.csv")
def polars_csv(folder: Path) -> Truth:
    """Polars, csv."""
    table, truth = of_polars(40)
    table.write_csv(folder / "scores.csv")
    return truth


@add("scores.parquet")
def polars_parquet(folder: Path) -> Truth:
    """Polars, parquet with an Enum."""
    import polars

    table, truth = of_polars(41)
    table.with_columns(polars.col("truth").cast(polars.Enum(["eel", "cat", "dog"]))).write_parquet(
        folder / "scores.parquet"
    )
    return truth


@add("scores.arrow")
def polars_ipc(folder: Path) -> Truth:
    """Polars, IPC."""
    table, truth = of_polars(42)
    table.write_ipc(folder / "scores.arrow")
    return truth


@add("scores.ndjson")
def polars_ndjson(folder: Path) -> Truth:
    """Polars, ndjson."""
    table, truth = of_polars(43)
    table.write_ndjson(folder / "scores.ndjson")
    return truth


# ---- libraries that train


def trained(seed: int) -> tuple[Any, Any, Any, Array, Array, Array]:
    """Return features and labels to train on, and to predict."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(420, 4))
    scores = x @ rng.normal(size=(4, 3)) * 1.3
    labels = (softmax(scores).cumsum(1) < rng.random((420, 1))).sum(1).clip(0, 2)
    return x[:220], labels[:220], None, x[220:], labels[220:], scores[220:]


@add("scores.csv", says=False)
def sklearn_columns(folder: Path) -> Truth:
    """scikit-learn, predict_proba with the names of classes_ as columns."""
    import pandas
    from sklearn.linear_model import LogisticRegression

    x, y, _, new, truth, _ = trained(1)
    model = LogisticRegression(C=100).fit(x, named(y))
    probs = model.predict_proba(new)
    pandas.DataFrame(probs, columns=model.classes_).assign(species=named(truth)).to_csv(
        folder / "scores.csv", index=False
    )
    return Truth(probs, truth)


@add("scores.csv", says=False)
def sklearn_decision(folder: Path) -> Truth:
    """scikit-learn, decision_function in columns decision_0 …."""
    import pandas
    from sklearn.linear_model import LogisticRegression

    x, y, _, new, truth, _ = trained(2)
    scores = LogisticRegression(C=100).fit(x, y).decision_function(new)
    table = pandas.DataFrame(scores, columns=[f"decision_{at}" for at in range(3)]).assign(y=truth)
    table.to_csv(folder / "scores.csv", index=False)
    return whole(scores, truth)


@add("scores.csv")
def sklearn_with_prediction(folder: Path) -> Truth:
    """scikit-learn, proba_ columns, prediction and target."""
    import pandas
    from sklearn.ensemble import RandomForestClassifier

    x, y, _, new, truth, _ = trained(3)
    model = RandomForestClassifier(20, random_state=0, min_samples_leaf=4).fit(x, named(y))
    probs = model.predict_proba(new)
    table = pandas.DataFrame(probs, columns=[f"proba_{name}" for name in model.classes_])
    table.assign(prediction=model.predict(new), target=named(truth)).to_csv(folder / "scores.csv", index=False)
    return Truth(probs, truth)


@add("scores.parquet")
def xgboost_table(folder: Path) -> Truth:
    """XGBoost, predict_proba in parquet."""
    import pandas
    import xgboost

    x, y, _, new, truth, _ = trained(4)
    probs = xgboost.XGBClassifier(n_estimators=20, n_jobs=1).fit(x, y).predict_proba(new)
    pandas.DataFrame(probs, columns=[f"prob_{at}" for at in range(3)]).assign(label=truth).to_parquet(
        folder / "scores.parquet"
    )
    return Truth(probs.astype(np.float64), truth)


@add("scores.npz")
def xgboost_margins(folder: Path) -> Truth:
    """XGBoost, output_margin as logits in npz."""
    import xgboost

    x, y, _, new, truth, _ = trained(5)
    margins = xgboost.XGBClassifier(n_estimators=20, n_jobs=1).fit(x, y).predict(new, output_margin=True)
    np.savez(folder / "scores.npz", logits=margins, y=truth)
    return whole(margins.astype(np.float64), truth)


@add("scores.csv")
def xgboost_binary(folder: Path) -> Truth:
    """XGBoost, binary:logistic as y_prob beside y_true."""
    import pandas
    import xgboost

    x, y, _, new, truth, _ = trained(6)
    probs = xgboost.XGBClassifier(n_estimators=20, n_jobs=1).fit(x, y == 2).predict_proba(new)[:, 1]
    pandas.DataFrame({"y_true": (truth == 2).astype(int), "y_prob": probs}).to_csv(folder / "scores.csv", index=False)
    return of_event(probs.astype(np.float64), (truth == 2).astype(int))


@add("scores.npz", says=False)
def lightgbm_raw(folder: Path) -> Truth:
    """LightGBM, raw_score beside y."""
    import lightgbm

    x, y, _, new, truth, _ = trained(7)
    model = lightgbm.LGBMClassifier(n_estimators=15, verbose=-1, n_jobs=1, min_child_samples=5).fit(x, y)
    scores = model.predict(new, raw_score=True)
    np.savez(folder / "scores.npz", raw_score=scores, y=truth)
    return whole(scores, truth)


@add("scores.csv")
def lightgbm_csv(folder: Path) -> Truth:
    """LightGBM, pred_proba_ columns with names of classes."""
    import lightgbm
    import pandas

    x, y, _, new, truth, _ = trained(8)
    model = lightgbm.LGBMClassifier(n_estimators=15, verbose=-1, n_jobs=1, min_child_samples=5).fit(x, named(y))
    probs = model.predict_proba(new)
    table = pandas.DataFrame(probs, columns=[f"pred_proba_{name}" for name in model.classes_])
    table.assign(actual=named(truth)).to_csv(folder / "scores.csv", index=False)
    return Truth(probs, truth)


def catboost_model(x: Array, y: Array) -> Any:
    """Return a fitted model that writes no files."""
    import catboost

    model = catboost.CatBoostClassifier(
        iterations=20, verbose=False, allow_writing_files=False, thread_count=1, loss_function="MultiClass"
    )
    return model.fit(x, y)


@add("eval.tsv")
def catboost_probabilities(folder: Path) -> Truth:
    """CatBoost, the table of `catboost calc --output-columns SampleId,Probability,Label`."""
    x, y, _, new, truth, _ = trained(9)
    model = catboost_model(x, named(y))
    probs = model.predict_proba(new)
    head = ["SampleId", *(f"Probability:Class={name}" for name in model.classes_), "Label"]
    lines = [[str(row), *map(repr, map(float, probs[row])), NAMES[truth[row]]] for row in range(len(truth))]
    (folder / "eval.tsv").write_text("\n".join("\t".join(line) for line in [head, *lines]) + "\n")
    return Truth(probs, truth)


@add("eval.tsv")
def catboost_raw(folder: Path) -> Truth:
    """CatBoost, the same with RawFormulaVal."""
    x, y, _, new, truth, _ = trained(10)
    model = catboost_model(x, named(y))
    scores = model.predict(new, prediction_type="RawFormulaVal")
    head = ["SampleId", *(f"RawFormulaVal:Class={name}" for name in model.classes_), "Label"]
    lines = [[str(row), *map(repr, map(float, scores[row])), NAMES[truth[row]]] for row in range(len(truth))]
    (folder / "eval.tsv").write_text("\n".join("\t".join(line) for line in [head, *lines]) + "\n")
    return whole(scores, truth)


@add("predictions.csv", "--labels", "truth.csv")
def h2o_classes(folder: Path) -> Truth:
    """h2o, export of model.predict: predict, then a column a class."""

    table, truth = frame(44, "")
    decided = np.array(NAMES)[np.asarray(truth.probs).argmax(1)]
    table[["id", "truth"]].to_csv(folder / "truth.csv", index=False)
    table.assign(predict=decided)[["predict", *NAMES]].to_csv(folder / "predictions.csv", index=False)
    return truth


@add("predictions.csv")
def h2o_event(folder: Path) -> Truth:
    """h2o, predict, p0 and p1 beside actual."""
    import pandas

    p, labels = event(45)
    table = pandas.DataFrame({"predict": (p > 0.31).astype(int), "p0": 1 - p, "p1": p, "actual": labels})
    table.to_csv(folder / "predictions.csv", index=False)
    return of_event(p, labels)


@add("scores.npz", says=False)
def keras_arrays(folder: Path) -> Truth:
    """Keras, y_pred of model.predict beside y_true."""
    logits, labels = some(46)
    np.savez(folder / "scores.npz", y_pred=softmax(logits).astype(np.float32), y_true=labels)
    return whole(logits, labels)


@add("scores.npz", says=False)
def keras_one_hot(folder: Path) -> Truth:
    """Keras, y_pred beside y_true of one-hot rows."""
    logits, labels = some(47)
    np.savez(folder / "scores.npz", y_pred=softmax(logits).astype(np.float32), y_true=np.eye(3)[labels])
    return whole(logits, labels)


@add("y_prob.npy", "--labels", "y_true.npy", says=False)
def arrays_of_files(folder: Path) -> Truth:
    """NumPy, y_prob.npy beside y_true.npy."""
    logits, labels = some(48)
    np.save(folder / "y_prob.npy", softmax(logits))
    np.save(folder / "y_true.npy", labels)
    return whole(logits, labels)


@add("--logits", "q.npy", "--labels", "t.npy")
def logits_file(folder: Path) -> Truth:
    """NumPy, logits and labels in two files that the options name."""
    logits, labels = some(49)
    np.save(folder / "q.npy", logits)
    np.save(folder / "t.npy", labels)
    return whole(logits, labels)


@add("test.npz")
def splits(folder: Path) -> Truth:
    """NumPy, probs and labels in npz."""
    logits, labels = some(50)
    np.savez(folder / "test.npz", probs=softmax(logits), labels=labels)
    return whole(logits, labels)


# ---- PyTorch


@add("out.pt")
def torch_dict(folder: Path) -> Truth:
    """torch.save of a dict of logits and targets."""
    import torch

    logits, labels = some(51)
    torch.save({"logits": torch.tensor(logits), "targets": torch.tensor(labels)}, folder / "out.pt")
    return whole(logits, labels)


@add("out.pt", says=False)
def torch_outputs(folder: Path) -> Truth:
    """torch.save of a dict of outputs and targets."""
    import torch

    logits, labels = some(52)
    torch.save({"outputs": torch.tensor(logits), "targets": torch.tensor(labels)}, folder / "out.pt")
    return whole(logits, labels)


@add("logits.pt")
def torch_pair(folder: Path) -> Truth:
    """torch.save of a pair, in a file called logits.pt."""
    import torch

    logits, labels = some(53)
    torch.save((torch.tensor(logits), torch.tensor(labels)), folder / "logits.pt")
    return whole(logits, labels)


@add("out.safetensors")
def safetensors_file(folder: Path) -> Truth:
    """safetensors, logits and labels."""
    from safetensors.numpy import save_file

    logits, labels = some(54)
    save_file({"logits": logits.astype(np.float32), "labels": labels}, folder / "out.safetensors")
    return whole(logits.astype(np.float32).astype(np.float64), labels)


@add("pred.npz")
def trainer(folder: Path) -> Truth:
    """transformers, the fields of Trainer.predict."""
    logits, labels = some(55)
    np.savez(folder / "pred.npz", predictions=logits, label_ids=labels, metrics=np.array([0.5]))
    return whole(logits, labels)


@add("pipe.jsonl")
def pipeline(folder: Path) -> Truth:
    """transformers, pipeline(top_k=None) with the true label in each line."""
    logits, labels = some(56)
    lines = []
    for row, label in zip(softmax(logits), labels, strict=True):
        scores = sorted(
            ({"label": n, "score": float(p)} for n, p in zip(NAMES, row, strict=True)), key=lambda s: -s["score"]
        )
        lines.append({"text": "…", "scores": scores, "label": NAMES[label]})
    (folder / "pipe.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return whole(logits, labels)


# ---- R, Spark, BigQuery, W&B, Kaggle


def quoted(rows: list[list[Any]], sep: str = ",", decimal: str = ".") -> str:
    """Return what R's write.csv writes: text in quotes, numbers bare."""

    def cell(value: Any) -> str:
        return f'"{value}"' if isinstance(value, str) else repr(float(value)).replace(".", decimal)

    return "\n".join(sep.join(map(cell, row)) for row in rows) + "\n"


@add("scores.csv")
def tidymodels(folder: Path) -> Truth:
    """R, augment() of tidymodels by write.csv, with row names."""
    logits, labels = some(57)
    probs = softmax(logits)
    head = ["", ".pred_class", *(f".pred_{name}" for name in NAMES), "truth"]
    rows = [[str(at + 1), NAMES[row.argmax()], *row, NAMES[labels[at]]] for at, row in enumerate(probs)]
    (folder / "scores.csv").write_text(quoted([head, *rows]))
    return whole(logits, labels)


@add("scores.csv")
def r_csv2(folder: Path) -> Truth:
    """R, write.csv2: semicolons and decimal commas, quoted names."""
    logits, labels = some(58)
    rows = [[str(at + 1), *row, NAMES[labels[at]]] for at, row in enumerate(softmax(logits))]
    head = ["", *(f"prob.{name}" for name in NAMES), "truth"]
    (folder / "scores.csv").write_text(quoted([head, *rows], ";", ","))
    return whole(logits, labels)


@add("scores.csv", says=False)
def caret(folder: Path) -> Truth:
    """R, caret's table of pred, obs and a column a class."""
    logits, labels = some(59)
    probs = softmax(logits)
    rows = [[NAMES[row.argmax()], NAMES[labels[at]], *row] for at, row in enumerate(probs)]
    (folder / "scores.csv").write_text(quoted([["pred", "obs", *NAMES], *rows]))
    return whole(logits, labels)


@add("part.json")
def spark(folder: Path) -> Truth:
    """Spark ML, json lines with a probability vector, prediction and label, in a file called json."""
    logits, labels = some(60)
    rows = [
        {"label": float(label), "probability": list(map(float, row)), "prediction": float(row.argmax())}
        for row, label in zip(softmax(logits), labels, strict=True)
    ]
    (folder / "part.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return whole(logits, labels)


@add("rows.jsonl")
def bigquery(folder: Path) -> Truth:
    """BigQuery ML.PREDICT, predicted_label_probs as lists of label and prob."""
    logits, labels = some(61)
    rows = []
    for row, label in zip(softmax(logits), labels, strict=True):
        probs = sorted(
            ({"label": n, "prob": float(p)} for n, p in zip(NAMES, row, strict=True)), key=lambda s: -s["prob"]
        )
        rows.append({"predicted_label": probs[0]["label"], "predicted_label_probs": probs, "label": NAMES[label]})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return whole(logits, labels)


@add("table.json")
def wandb(folder: Path) -> Truth:
    """Weights & Biases, a logged table."""
    logits, labels = some(62)
    probs = softmax(logits)
    columns = ["image", "guess", "truth", *(f"score_{name}" for name in NAMES)]
    columns = [name.replace("score_", "prob_") for name in columns]
    data = [[f"{at}.png", NAMES[row.argmax()], NAMES[labels[at]], *map(float, row)] for at, row in enumerate(probs)]
    (folder / "table.json").write_text(json.dumps({"_type": "table", "columns": columns, "data": data}))
    return whole(logits, labels)


@add("submission.csv", "--labels", "solution.csv", says=False)
def kaggle_event(folder: Path) -> Truth:
    """Kaggle, submission and solution of one target, in another order."""
    import pandas

    p, labels = event(63)
    names = ids(len(p))
    order = np.random.default_rng(0).permutation(len(p))
    pandas.DataFrame({"id": names, "target": p}).to_csv(folder / "submission.csv", index=False)
    pandas.DataFrame({"id": np.array(names)[order], "target": labels[order]}).to_csv(
        folder / "solution.csv", index=False
    )
    return of_event(p, labels)


@add("submission.csv", "--labels", "solution.csv", says=False)
def kaggle_classes(folder: Path) -> Truth:
    """Kaggle, submission of a column a class and solution by its name, in another order."""
    import pandas

    logits, labels = some(64)
    names = [int(one) for one in ids(len(labels))]
    order = np.random.default_rng(0).permutation(len(labels))
    table = pandas.DataFrame(softmax(logits), columns=[f"Class_{at + 1}" for at in range(3)])
    table.insert(0, "id", names)
    table.to_csv(folder / "submission.csv", index=False)
    pandas.DataFrame({"id": np.array(names)[order], "target": [f"Class_{at + 1}" for at in labels[order]]}).to_csv(
        folder / "solution.csv", index=False
    )
    return whole(logits, labels)


@add("probs.csv", "--labels", "truth.csv")
def shuffled(folder: Path) -> Truth:
    """Two tables of one id with leading zeros, in another order."""
    table, truth = frame(65)
    table.drop(columns="truth").to_csv(folder / "probs.csv", index=False)
    table[["id", "truth"]].sample(frac=1, random_state=0).to_csv(folder / "truth.csv", index=False)
    return truth


# ---- language models


@add("samples_task.jsonl")
def lm_eval(folder: Path) -> Truth:
    """lm-eval, samples with numerals as options and an index as target."""
    logits, labels = some(66, classes=4)
    logits = np.log(softmax(logits)) - 20  # log-likelihoods of options
    rows = []
    for at, (row, label) in enumerate(zip(logits, labels, strict=True)):
        rows.append(
            {
                "doc_id": at,
                "doc": {"question": "?", "choices": ["1", "2", "3", "4"], "answer": int(label)},
                "target": int(label),
                "arguments": [[f"Question {at}", f" {option}"] for option in "1234"],
                "resps": [[[float(z), False]] for z in row],
                "filtered_resps": [[float(z), False] for z in row],
                "acc": float(row.argmax() == label),
            }
        )
    (folder / "samples_task.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return whole(logits, labels)


@add("batch.jsonl", "--labels", "labels.csv", says=False)
def openai(folder: Path) -> Truth:
    """OpenAI, a batch of completions with logprobs, and labels in a table."""
    logits, labels = some(67, classes=2)
    probs = softmax(logits)
    lines = []
    for at, row in enumerate(probs):
        top = [{"token": name, "logprob": float(np.log(p)), "bytes": None} for name, p in zip("AB", row, strict=True)]
        top.sort(key=lambda one: -one["logprob"])
        content = [{**top[0], "top_logprobs": top}]
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": top[0]["token"]},
            "logprobs": {"content": content},
        }
        body = {"id": f"c{at}", "object": "chat.completion", "model": "m", "choices": [choice]}
        lines.append(
            {"id": f"r{at}", "custom_id": f"q{at}", "response": {"status_code": 200, "body": body}, "error": None}
        )
    (folder / "batch.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "labels.csv").write_text("id,label\n" + "".join(f"q{at},{'AB'[one]}\n" for at, one in enumerate(labels)))
    return whole(logits, labels)
