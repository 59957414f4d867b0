"""Files from elsewhere: databases' shells, clouds, other formats, hand-made text, benchmarks of language models and of tables."""

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables.cases import NAMES, Case, Rows, event, some
from benchmarks.tables.colleagues import CSV, ordered

FOUR = ("A", "B", "C", "D")


def cells_of(columns: dict[str, Any]) -> list[list[str]]:
    """Return the names and the cells of columns as text."""
    return [list(columns), *(list(map(str, row)) for row in zip(*columns.values(), strict=True))]


def comprehend(rows: Rows) -> dict[str, Any]:
    """Return what Amazon Comprehend's custom classification writes, and the labels by line."""
    answers = [
        {"File": "docs.csv", "Line": str(at), "Classes": [{"Name": one["label"], "Score": one["score"]} for one in row]}
        for at, row in enumerate(rows.scored("label", "score"))
    ]
    return {"predictions.jsonl": answers, "truth.csv": {"Line": range(len(rows)), "label": rows.truth}}


def azure_text(rows: Rows) -> dict[str, Any]:
    """Return documents of Azure's text classification with what was expected."""
    return {
        "kind": "CustomSingleLabelClassification",
        "documents": [
            {"id": i, "expected": t, "class": [{"category": o["label"], "confidenceScore": o["score"]} for o in row]}
            for i, t, row in zip(rows.ids, rows.truth, rows.scored("label", "score"), strict=True)
        ],
    }


def sqlcmd(rows: Rows) -> str:
    """Return what sqlcmd -s, prints: a line drawn below the names, between commas too."""
    head, *body = cells_of({"id": rows.ids, **rows.spread("p_{}"), "truth": rows.truth})
    rule = ["-" * 12] * len(head)
    return "\n".join(",".join(row) for row in [head, rule, *body]) + f"\n\n({len(rows)} rows affected)\n"


def boxed(rows: Rows) -> str:
    """Return what sqlite3 prints in its mode box."""
    head, *body = cells_of({"id": rows.ids, **rows.spread("p_{}"), "truth": rows.truth})
    wide = [[f" {cell:<22} " for cell in row] for row in [head, *body]]
    rules = [left + sign.join(["─" * 24] * len(head)) + right for left, sign, right in ("┌┬┐", "├┼┤", "└┴┘")]
    lines = ["│" + "│".join(row) + "│" for row in wide]
    return "\n".join([rules[0], lines[0], rules[1], *lines[1:], rules[2]]) + "\n"


def html(rows: Rows) -> Any:
    """Return what a web page exports as a workbook: a table of HTML."""

    def write(path: Path) -> None:
        head, *body = cells_of(rows.table())
        lines = ["<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in row) + "</tr>" for tag, row in [("th", head)]]
        lines += ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in body]
        path.write_text("<table border=1>\n" + "\n".join(lines) + "\n</table>\n")

    return write


def indented(rows: Rows) -> Any:
    """Return a workbook whose table begins at C4."""

    def write(path: Path) -> None:
        import openpyxl

        book = openpyxl.Workbook()
        columns = {"Sample": rows.ids, **ordered(rows, "P({})"), "Actual": rows.truth}
        for at, row in enumerate([list(columns), *zip(*columns.values(), strict=True)]):
            for to, one in enumerate(row):
                book.active.cell(at + 4, to + 3, one.item() if isinstance(one, np.generic) else one)
        book.save(path)

    return write


def by_pandas(method: str, **options: Any) -> Any:
    """Return what a method of pandas writes."""

    def content(rows: Rows) -> Any:
        import pandas

        return lambda path: getattr(pandas.DataFrame(rows.table()), method)(path, **options)

    return content


def matlab(rows: Rows) -> Any:
    """Return a workspace of MATLAB with posteriors, labels and the names of the classes."""

    def write(path: Path) -> None:
        from scipy.io import savemat

        names = np.array(NAMES, dtype=object)
        savemat(path, {"posterior": rows.probs, "labels": rows.labels[:, None] + 1, "classNames": names})

    return write


def database(rows: Rows) -> Any:
    """Return a database of SQLite with one table."""

    def write(path: Path) -> None:
        with closing(sqlite3.connect(path)) as base, base:
            base.execute("CREATE TABLE predictions (id TEXT, p_cat REAL, p_dog REAL, p_eel REAL, truth TEXT)")
            cells = zip(rows.ids, *rows.probs.T.tolist(), rows.truth, strict=True)
            base.executemany("INSERT INTO predictions VALUES (?, ?, ?, ?, ?)", cells)

    return write


def parts(rows: Rows) -> dict[str, Any]:
    """Return what Spark writes to a folder: parts with a title each, and an empty mark of success."""
    table = rows.table("prob_{}", "label")
    halves = [{name: cells[at::2] for name, cells in table.items()} for at in (0, 1)]
    return {f"out/part-0000{at}-9f3a.csv": half for at, half in enumerate(halves)} | {
        "out/_SUCCESS.crc": lambda path: path.write_bytes(b"")
    }


def hits(rows: Rows) -> dict[str, Any]:
    """Return what Elasticsearch answers."""
    found = [
        {"_index": "scores", "_id": i, "_source": {"probs": {NAMES[k]: float(p[k]) for k in (2, 0, 1)}, "label": t}}
        for i, p, t in zip(rows.ids, rows.probs, rows.truth, strict=True)
    ]
    return {"took": 4, "timed_out": False, "hits": {"total": {"value": len(rows)}, "hits": found}}


def mongo(rows: Rows) -> list[dict[str, Any]]:
    """Return what mongoexport writes."""
    return [
        {
            "_id": {"$oid": f"{int(i):024x}"},
            "at": {"$date": "2024-05-01T00:00:00Z"},
            "probabilities": {NAMES[k]: float(p[k]) for k in (1, 2, 0)},
            "truth": t,
        }
        for i, p, t in zip(rows.ids, rows.probs, rows.truth, strict=True)
    ]


def choices(rows: Rows) -> list[dict[str, Any]]:
    """Return answers of a model that picks one of four options, with the log-probability of each."""
    logs = rows.logits - np.log(np.exp(rows.logits).sum(1, keepdims=True))
    return [
        {
            "question": f"q {i}",
            "choices": ["an option", "another", "a third", "none of these"],
            "choice_logprobs": {FOUR[k]: float(row[k]) for k in np.argsort(-row)},
            "answer": FOUR[y],
        }
        for i, row, y in zip(rows.ids, logs, rows.labels, strict=True)
    ]


def mmlu(rows: Rows) -> dict[str, Any]:
    """Return the table of the script that came with MMLU: options, answer, whether it was right, and a column for each choice."""
    return {
        **{name: [f"option {name} {i}" for i in rows.ids] for name in FOUR},
        "answer": rows.of(FOUR),
        "davinci_correct": rows.decided == rows.labels,
        **{f"davinci_choice{name}_probs": rows.probs[:, at] for at, name in enumerate(FOUR)},
    }


def openml(rows: Rows) -> dict[str, Any]:
    """Return OpenML's predictions, whose column correct holds the true class."""
    return {
        "repeat": 0,
        "fold": [at % 10 for at in range(len(rows))],
        "row_id": range(len(rows)),
        "prediction": rows.of(NAMES, rows.decided),
        "correct": rows.truth,
        **ordered(rows, "confidence.{}"),
    }


def arff(rows: Rows) -> str:
    """Return an ARFF file of what AddClassification of Weka adds."""
    head = ["@relation iris", "", "@attribute length numeric", "@attribute class {cat,dog,eel}"]
    head += ["@attribute classification {cat,dog,eel}", *(f"@attribute distribution_{name} numeric" for name in NAMES)]
    body = zip(rows.logits[:, 0].round(2), rows.truth, rows.of(NAMES, rows.decided), *rows.probs.T, strict=True)
    return "\n".join([*head, "", "@data", *(",".join(map(str, row)) for row in body)]) + "\n"


def apart(sign: str) -> Any:
    """Return probabilities of a cell that a sign parts."""
    return lambda r: {
        "image": r.ids,
        "probs": [sign.join(f"{one:.8f}" for one in row) for row in r.probs],
        "label": r.labels,
    }


def german_exponents(rows: Rows) -> str:
    """Return semicolons with decimal commas and exponents in capitals."""
    head, *body = cells_of(
        {
            "Fall": rows.ids,
            **{
                name: [f"{one:.9E}".replace(".", ",") for one in cells]
                for name, cells in ordered(rows, "prob_{}").items()
            },
            "label": rows.truth,
        }
    )
    return "\n".join(";".join(row) for row in [head, *body]) + "\n"


def spaced(rows: Rows) -> str:
    """Return commas with a blank behind each."""
    return (
        "\n".join(", ".join(row) for row in cells_of({"id": rows.ids, **rows.spread("p_{}"), "truth": rows.truth}))
        + "\n"
    )


def single_quotes(rows: Rows) -> str:
    """Return every cell in single quotes."""
    return "\n".join(",".join(f"'{cell}'" for cell in row) for row in cells_of(rows.table())) + "\n"


def markdown(rows: Rows) -> str:
    """Return a table of Markdown."""
    head, *body = cells_of(rows.table())
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *body]) + "\n"


def halves(rows: Rows) -> Any:
    """Return what writes lists of half precision."""

    def write(path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        flat = pa.array(rows.probs.astype(np.float16).ravel())
        table = {"probs": pa.FixedSizeListArray.from_arrays(flat, 3), "label": pa.array(rows.labels)}
        pq.write_table(pa.table(table), path)

    return write


def half(seed: int) -> Rows:
    """Return rows whose probabilities are rounded to half precision."""
    base = some(seed)
    probs = base.probs.astype(np.float16).astype(np.float64)
    return Rows(base.labels, base.logits, probs / probs.sum(1, keepdims=True))


def members(rows: Rows) -> dict[str, Any]:
    """Return the logits of five members of an ensemble, whose mean probability is the prediction."""
    return {"logits": np.stack([rows.logits] * 5), "labels": rows.labels}


# Written from imagination after the colleagues' files were read, before any reader was changed for them. As these stood then: of the 31
# that say what they hold 8 were read at once, 7 by the printed command (48 % read), 15 were refused without one that works, and one gave
# wrong numbers by its command (one of three columns of 0 and 1 as the label); of the other 8 six by the command, one refused, and one
# gave wrong numbers by it (percentages of one event as logits). Since then 15 at once and 15 by the command (97 %), MATLAB's refused.
ELSEWHERE = [
    Case(
        "Amazon Comprehend, Classes of Name and Score, and labels by Line",
        "predictions.jsonl --labels truth.csv",
        comprehend,
    ),
    Case("Azure, documents with class and expected", "azure.json", azure_text),
    Case(
        "Inference API, lists of label and score without a name, and labels a line",
        "answer.json --labels y.txt",
        lambda r: {"answer.json": r.scored("label", "score"), "y.txt": "\n".join(r.truth) + "\n"},
    ),
    Case(
        "class_0 … beside target and features",
        CSV,
        lambda r: {"x1": r.logits[:, 0] * 2, "target": r.labels, **{f"class_{k}": r.probs[:, k] for k in range(3)}},
        says=False,
    ),
    Case(
        "out-of-fold predictions and labels as arrays",
        "oof_preds.npy --labels y.npy",
        lambda r: {"oof_preds.npy": r.probs, "y.npy": r.labels},
        says=False,
    ),
    Case("Spark, a folder of csv parts", "out", parts),
    Case("SQL Server, sqlcmd with commas and a line drawn", CSV, sqlcmd),
    Case("SQLite, mode box", "query.txt", boxed),
    Case("a table of HTML called xls", "export.xls", html),
    Case("Excel, a table that begins at C4", "sheet.xlsx", indented),
    Case("Stata, dta", "scores.dta", by_pandas("to_stata", write_index=False)),
    Case("Hive, orc", "scores.orc", by_pandas("to_orc")),
    Case("MATLAB, mat of posterior, labels and classNames", "run.mat", matlab),
    Case("SQLite, a database of one table", "scores.db", database),
    Case(
        "Google Sheets, values with the names in the first row",
        "values.json",
        lambda r: {"range": "Sheet1!A1:E161", "values": cells_of(r.table())},
    ),
    Case("Elasticsearch, hits", "hits.json", hits),
    Case("MongoDB, mongoexport", "scores.jsonl", mongo),
    Case(
        "Hugging Face evaluate, references, predictions and probabilities",
        "eval.json",
        lambda r: {
            "references": r.labels.tolist(),
            "predictions": r.decided.tolist(),
            "probabilities": r.probs.tolist(),
        },
    ),
    Case(
        "CLIP, prompts as names beside label",
        CSV,
        lambda r: {"path": r.ids, **r.spread("a photo of a {}"), "label": r.truth},
        says=False,
    ),
    Case(
        "Class 1 … beside Real",
        CSV,
        lambda r: {**{f"Class {k + 1}": r.probs[:, k] for k in range(3)}, "Real": r.labels + 1},
        says=False,
    ),
    Case(
        "a clinic, Risk (%) beside Event",
        "cohort.xlsx",
        lambda r: {"Patient ID": r.ids, "Age": 63, "Risk (%)": 100 * r.p, "Event": r.labels},
        event,
    ),
    Case(
        "forecasts, PoP in percent beside Rain",
        CSV,
        lambda r: {
            "date": [f"2023-{1 + at % 12:02d}-{1 + at // 12:02d}" for at in range(len(r))],
            "PoP": 100 * r.p,
            "Rain": r.of(("no", "yes")),
        },
        event,
        says=False,
    ),
    Case(
        "football, home_prob, draw_prob and away_prob beside result H, D or A",
        CSV,
        lambda r: {**r.spread("{}_prob", names=("home", "draw", "away")), "result": r.of(("H", "D", "A"))},
        says=False,
    ),
    Case("options with choice_logprobs beside answer", "answers.jsonl", choices, partial(some, classes=4)),
    Case("MMLU, choiceA_probs beside answer and correct", CSV, mmlu, partial(some, classes=4)),
    Case("OpenML, confidence.… beside correct, which is the class", CSV, openml),
    Case("Weka, ARFF with a distribution", "scored.arff", arff),
    Case("probabilities of a cell parted by blanks", CSV, apart(" "), partial(some, digits=8)),
    Case("probabilities of a cell parted by bars", CSV, apart("|"), partial(some, digits=8)),
    Case("Excel in Germany, exponents in capitals", CSV, german_exponents, partial(some, digits=9)),
    Case("commas with blanks behind", CSV, spaced),
    Case("single quotes around every cell", CSV, single_quotes),
    Case("quotes around every cell", CSV, lambda r: r.table("prob_{}"), options={"quoting": 1}),
    Case("a table of Markdown", "results.md", markdown),
    Case(
        "is_cat … beside score_cat …",
        CSV,
        lambda r: {
            **{f"is_{name}": (r.labels == at).astype(int) for at, name in enumerate(NAMES)},
            **ordered(r, "score_{}"),
        },
    ),
    Case("Parquet, probabilities of half precision", "probs.parquet", halves, half),
    Case("an ensemble's logits with an axis of members", "members.npz", members, says=False),
    Case(
        "torchmetrics, preds and target by torch.save",
        "step.pt",
        lambda r: {"preds": r.probs, "target": r.labels},
        says=False,
    ),
    Case(
        "two files by study and subject",
        "scores.csv --labels outcomes.csv",
        lambda r: {
            "scores.csv": {"study": "A1", "subject": r.ids, "p_event": r.p},
            "outcomes.csv": r.shuffled({"subject": r.ids, "study": ["A1"] * len(r), "event": r.labels}),
        },
        event,
    ),
]
