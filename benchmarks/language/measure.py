"""What calibration changes on a run of SmolLM2: answers by one word, and free answers."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from calibrant import BinaryPairs, Predictions, language
from calibrant.calibrators import (
    Calibrator,
    FeatureScaling,
    Identity,
    IsotonicCalibration,
    PlattScaling,
    TemperatureScaling,
)
from calibrant.errors import UsageWarning
from calibrant.metrics import ECE, NLL, Accuracy
from calibrant.statistics import null_band

DRAWS = 500
DIGITS = 4
OPTIONS = ("negative", "positive")
SCORES = ["log_prob_sum", "length"]


def sentiment_of(folder: Path) -> Predictions:
    """Return the answers of ``sentiment.jsonl`` that have both options among their top tokens, with their labels."""
    log = language.read_openai(folder / "sentiment.jsonl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UsageWarning)  # the record holds how many are left out
        found = language.choices(log, OPTIONS, labels=language.read_labels(folder / "sentiment.csv"), missing="drop")
    return replace(found, logits=found.logits.round(decimals=DIGITS))  # as the record keeps them


def words_of(folder: Path) -> Predictions:
    """Return the answers of ``words.jsonl``: wrong or right."""
    log = language.read_openai(folder / "words.jsonl")
    return language.sequences(log, labels=language.read_labels(folder / "words.csv"))


def sentiment(data: Predictions) -> dict[str, Any]:
    """Return the figures of answers by one word; the first half is fitted on, the other evaluated."""
    half = len(data) // 2
    val, test = data[:half], data[half:]
    methods: dict[str, Calibrator] = {"none": Identity(), "temperature": TemperatureScaling(), "Platt": PlattScaling()}
    rows = []
    for name, method in methods.items():
        after = test.calibrated_by(method.fit(val))
        rows.append(
            {
                "method": name,
                "accuracy": Accuracy()(after),
                "confidence": float(after.confidence.mean()),
                **errors(after, after.top_label()),
            }
        )
    other = torch.as_tensor((data.features or {})["other_mass"])
    return {
        "rows": [half, len(data) - half],
        "other_mass": [float(other.mean()), float(other.max())],
        "results": rows,
        "scores": {
            "log_probs": [[round(value, DIGITS) for value in row] for row in data.logits.tolist()],
            "labels": data.need_labels().tolist(),
        },
    }


def words(data: Predictions) -> dict[str, Any]:
    """Return the figures of free answers; the first half is fitted on, the other evaluated."""
    half = len(data) // 2
    val, test = data[:half], data[half:]
    methods: dict[str, Calibrator] = {
        "exp of the mean log-probability": Identity(),
        "Platt": PlattScaling(),
        "isotonic": IsotonicCalibration(),
        "with sum and length": FeatureScaling(SCORES),
    }
    rows = []
    for name, method in methods.items():
        after = test.calibrated_by(method.fit(val))
        pairs = after.one_vs_rest(1)
        rows.append({"method": name, "confidence": float(pairs.p.mean()), **errors(after, pairs)})
    columns = {name: torch.as_tensor((data.features or {})[name]).tolist() for name in ("log_prob_sum", "length")}
    return {
        "rows": [half, len(data) - half],
        "right": float(test.need_labels().double().mean()),
        "results": rows,
        "scores": {
            "log_prob_sum": [round(value, DIGITS) for value in columns["log_prob_sum"]],
            "length": columns["length"],
            "right": data.need_labels().tolist(),
        },
    }


def errors(after: Predictions, pairs: BinaryPairs) -> dict[str, float]:
    """Return log-loss, ECE and the 97.5 % limit of the ECE if calibrated."""
    return {"nll": NLL()(after), "ece": ECE()(pairs), "ece_limit": null_band(ECE(), pairs, draws=DRAWS, seed=0).high}


def table(results: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a page's table."""
    return _lines(results, {"accuracy": ("accuracy", ".1%"), "mean confidence": ("confidence", ".1%")})


def word_table(results: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a page's table of free answers."""
    return _lines(results, {"mean probability": ("confidence", ".1%")})


def _lines(results: list[dict[str, Any]], first: dict[str, tuple[str, str]]) -> list[str]:
    columns = first | {
        "log-loss": ("nll", ".3f"),
        "ECE": ("ece", ".1%"),
        "ECE if calibrated, 97.5 % limit": ("ece_limit", ".1%"),
    }
    head = [f"| | {' | '.join(columns)} |", f"| {' | '.join(['---'] * (1 + len(columns)))} |"]
    rows = [[row["method"], *(f"{row[key]:{form}}" for key, form in columns.values())] for row in results]
    return head + [f"| {' | '.join(cells)} |" for cells in rows]
