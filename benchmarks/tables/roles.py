"""Files whose columns' parts are told by what stands beside them: two columns of classes, features, several models, batches, and
labels in a second file."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables.cases import NAMES, Case, Rows, event, records, some

CSV = "predictions.csv"
SIDES = ("neg", "pos")
SIGNS = ("NEGATIVE", "POSITIVE")
many = partial(some, classes=3)


def enum_stream(rows: Rows) -> Any:
    """Return what writes a Polars table with an enum, whose texts are views, as a stream."""

    def write(path: Path) -> None:
        import polars

        table = {name: list(cells) for name, cells in rows.spread("p_{}").items()}
        polars.DataFrame({**table, "true_label": polars.Series(rows.truth, dtype=polars.Enum(NAMES))}).write_ipc_stream(
            path
        )

    return write


def batches(rows: Rows) -> Any:
    """Return what writes lists of batches of tensors."""

    def write(path: Path) -> None:
        import torch

        parts = {"logits": torch.tensor(rows.logits), "labels": torch.tensor(rows.labels)}
        torch.save({name: list(one.split(64)) for name, one in parts.items()}, path)

    return write


def inspect_log(rows: Rows) -> dict[str, Any]:
    """Return Inspect's log of a multiple choice with the top tokens of each answer."""
    letters = "ABC"

    def sample(at: int) -> dict[str, Any]:
        top = [{"token": letters[k], "logprob": float(np.log(rows.probs[at, k]))} for k in np.argsort(-rows.probs[at])]
        answer = {"message": {"role": "assistant", "content": top[0]["token"]}}
        answer["logprobs"] = {"content": [{**top[0], "top_logprobs": top}]}
        target = letters[rows.labels[at]]
        scores = {"choice": {"value": "C" if top[0]["token"] == target else "I"}}
        return {
            "id": at,
            "epoch": 1,
            "input": "?",
            "choices": list("xyz"),
            "target": target,
            "output": {"model": "m", "choices": [answer]},
            "scores": scores,
        }

    return {
        "version": 2,
        "status": "success",
        "eval": {"task": "t", "model": "m", "dataset": {"name": "d"}},
        "samples": list(map(sample, range(len(rows)))),
    }


def measured(rows: Rows) -> dict[str, Any]:
    """Return numbers that are no scores: what a model was given."""
    rng = np.random.default_rng(len(rows))
    return {"age": rng.normal(40, 9, len(rows)).round(1), "share": rng.random(len(rows)).round(3)}


ROLES = [
    Case(
        "features, a probability, a decision and a residual, as SPSS saves them",
        CSV,
        lambda r: {
            **measured(r),
            "default": r.labels,
            "PRE_1": r.p,
            "PGR_1": r.decided,
            "RES_1": r.labels - r.p,
        },
        event,
    ),
    Case(
        "an event's probability by two models",
        CSV,
        lambda r: {"y": r.labels, "prob_gbm": r.p, "prob_glm": (r.p + 0.5) / 2},
        event,
        says=False,
    ),
    Case(
        "an event's probability with its error and bounds, as statsmodels writes them",
        CSV,
        lambda r: {
            "mean": r.p,
            "mean_se": r.p / 9,
            "mean_ci_lower": 0.9 * r.p,
            "mean_ci_upper": r.p**0.9,
            "y": r.labels,
        },
        event,
        says=False,
    ),
    Case(
        "the probability that an event does not happen",
        CSV,
        lambda r: {"loan": r.ids, "prob_no_default": r.probs[:, 0], "default": r.labels},
        event,
    ),
    Case(
        "two models' columns and decisions, as Orange writes them",
        CSV,
        lambda r: {
            "churn": r.of(SIDES),
            "Forest": r.of(SIDES, r.decided),
            "Tree": r.of(SIDES, (r.p**2 > 0.5).astype(int)),
            **r.spread("Forest ({})", names=SIDES),
            "Tree (neg)": 1 - r.p**2,
            "Tree (pos)": r.p**2,
        },
        event,
        says=False,
    ),
    Case(
        "an event's risk, and a flag of it at a low threshold, beside what happened",
        CSV,
        lambda r: {"mrn": r.ids, "risk": r.p, "high_risk_flag": (r.p > 0.2).astype(int), "event": r.labels},
        event,
        says=False,
    ),
    Case(
        "classes called 1 star, 2 stars …, and labels from 1",
        CSV,
        lambda r: {**{f"{k + 1} star{'s' * (k > 0)}": r.probs[:, k] for k in range(4)}, "stars": r.labels + 1},
        partial(some, classes=4),
        says=False,
    ),
    Case(
        "a decision, its confidence, and a record of all scores, as flair writes them",
        "flair.jsonl",
        lambda r: [
            {
                "gold": SIGNS[y],
                "predicted": SIGNS[d],
                "confidence": max(p),
                "all_scores": {SIGNS[1]: p[1], SIGNS[0]: p[0]},
            }
            for y, d, p in zip(r.labels, r.decided, r.probs.tolist(), strict=True)
        ],
        event,
    ),
    Case(
        "the first two classes as objects, as a pipeline of top_k=2 writes them",
        "scored.jsonl",
        lambda r: [
            {"text": at, "top": scored[:2], "true_class": true}
            for at, (scored, true) in enumerate(zip(r.scored("label", "score"), r.truth, strict=True))
        ],
        partial(some, classes=3),
        pairs=True,
    ),
    Case(
        "fastText, predict(k=-1) as tuples and arrays in cells",
        CSV,
        lambda r: {
            "label": [f"__label__{one}" for one in r.truth],
            "labels": [str(tuple(f"__label__{NAMES[k]}" for k in row)) for row in r.best(3)[0]],
            "probs": [str(row) for row in r.best(3)[1]],
        },
        partial(some, digits=4),
    ),
    Case(
        "Prodigy, options with scores, and what was accepted",
        "annotated.jsonl",
        lambda r: [
            {
                "options": [{"id": name, "text": name.title(), "score": p} for name, p in zip(NAMES, row, strict=True)],
                "accept": [true],
                "answer": "accept",
            }
            for row, true in zip(r.probs.tolist(), r.truth, strict=True)
        ],
    ),
    Case(
        "Class is the decision and Label the truth, as CatBoost writes them",
        "eval.tsv",
        lambda r: {
            "SampleId": range(len(r)),
            **r.spread("Probability:Class={}"),
            "Class": r.of(NAMES, r.decided),
            "Label": r.truth,
        },
    ),
    Case(
        "class is the decision and species the truth",
        CSV,
        lambda r: {**r.spread("prob_{}"), "class": r.of(NAMES, r.decided), "species": r.truth},
        says=False,
    ),
    Case(
        "a pipeline's label and score beside gold, of two classes",
        CSV,
        lambda r: {"text": r.ids, "gold": r.of(SIGNS), "label": r.of(SIGNS, r.decided), "score": r.probs.max(1)},
        event,
        pairs=True,
    ),
    Case(
        "label, pred and prob",
        CSV,
        lambda r: {"fname": r.ids, "label": r.truth, "pred": r.of(NAMES, r.decided), "prob": r.probs.max(1)},
        pairs=True,
    ),
    Case(
        "actual, predicted and prediction, as Weka writes three classes",
        CSV,
        lambda r: {
            "inst#": range(1, len(r) + 1),
            "actual": [f"{k + 1}:{NAMES[k]}" for k in r.labels],
            "predicted": [f"{k + 1}:{NAMES[k]}" for k in r.decided],
            "error": ["" if a == b else "+" for a, b in zip(r.labels, r.decided, strict=True)],
            "prediction": r.probs.max(1),
        },
        pairs=True,
    ),
    Case(
        "actual, predicted and prediction of two classes",
        CSV,
        lambda r: {
            "actual": [f"{k + 1}:{SIGNS[k]}" for k in r.labels],
            "predicted": [f"{k + 1}:{SIGNS[k]}" for k in r.decided],
            "prediction": r.probs.max(1),
        },
        event,
        pairs=True,
    ),
    Case(
        "the event's probability, the decision's and the decision, as SAS Enterprise Miner writes them",
        CSV,
        lambda r: {
            "EM_EVENTPROBABILITY": r.probs[:, 1],
            "EM_PROBABILITY": r.probs.max(1),
            "EM_CLASSIFICATION": r.decided,
            "RESPONDED": r.labels,
        },
        event,
    ),
    Case(
        "predictions and label_ids beside a record of metrics",
        "predictions.json",
        lambda r: {
            "predictions": r.logits.tolist(),
            "label_ids": r.labels.tolist(),
            "metrics": {"test_loss": 0.4, "test_runtime": 3.1},
        },
    ),
    Case("lists of batches", "val.pt", batches),
    Case("an enum in a stream of Polars", "valid.arrow", enum_stream),
    Case("an Inspect log with top tokens", "log.json", inspect_log),
    Case(
        "a submission and its solution, two files in a row",
        "submission.csv solution.csv",
        lambda r: {
            "submission.csv": {"id": r.ids, **r.spread("{}")},
            "solution.csv": r.shuffled({"id": r.ids, "target": r.truth}),
        },
    ),
    Case(
        "labels before scores, two arrays in a row",
        "y_test.npy y_proba.npy",
        lambda r: {"y_test.npy": r.labels, "y_proba.npy": r.probs},
    ),
    Case(
        "one-hot truths in a second file",
        "submission.csv solution.csv",
        lambda r: {
            "submission.csv": {"image_id": r.ids, **r.spread("{}")},
            "solution.csv": r.shuffled({"image_id": r.ids, **r.spread("{}", values=np.eye(3, dtype=int)[r.labels])}),
        },
    ),
    Case(
        "records of the two sides, and the truth as one of them",
        "scored.jsonl",
        lambda r: records(
            {"text": r.ids, "cats": [dict(zip(NAMES, row, strict=True)) for row in r.probs.tolist()], "gold": r.truth}
        ),
        many,
    ),
]
