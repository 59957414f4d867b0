"""Make the small logs of tests/fixtures/language: what a server would log, with known probabilities.

    python -m benchmarks.language.made

``choices.jsonl`` holds answers by one token, ``answers.jsonl`` free answers of two models, one of which is surer than it is
right; ``choices.csv`` and ``answers.csv`` hold their labels. No model and no text of others is in them.
"""

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent.parent.parent / "tests" / "fixtures" / "language"
ROWS = 400


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(7)
    write("choices", *choices(rng))
    write("answers", *answers(rng))


def choices(rng: np.random.Generator) -> tuple[list[Any], list[str]]:
    """Return responses that answer positive or negative with log-odds 2.5 times those of the labels."""
    honest = rng.normal(size=ROWS) * 1.2
    labels = np.where(rng.random(ROWS) < 1 / (1 + np.exp(-honest)), "positive", "negative")
    lines = []
    for number, log_odds in enumerate(2.5 * honest):
        other, p = rng.uniform(0.02, 0.2), 1 / (1 + np.exp(-log_odds))
        spaced = rng.uniform(0.6, 0.95)  # of the option's probability, with a leading space
        masses = {
            " positive": p * (1 - other) * spaced,
            "positive": p * (1 - other) * (1 - spaced),
            " negative": (1 - p) * (1 - other) * spaced,
            "negative": (1 - p) * (1 - other) * (1 - spaced),
            " neutral": other,
        }
        top = [
            {"token": text, "logprob": round(float(np.log(mass)), 4)}
            for text, mass in sorted(masses.items(), key=lambda one: -one[1])
        ]
        lines.append(chat(f"review-{number}", "made", [{**top[0], "top_logprobs": top}]))
    return lines, list(labels)


def answers(rng: np.random.Generator) -> tuple[list[Any], list[str]]:
    """Return free answers whose probability of being right falls with their length, and is lower for one of the models."""
    lines, labels = [], []
    for number in range(ROWS):
        model, length = ("small", "large")[number % 2], int(rng.integers(1, 9))
        mean = -float(rng.gamma(1.5, 0.25))
        log_odds = np.log(-1 / np.expm1(mean) - 1) * 0.8 - 0.5 * (length - 4) - (2.0 if model == "small" else 0.0)
        labels.append("right" if rng.random() < 1 / (1 + np.exp(-log_odds)) else "wrong")
        parts = rng.dirichlet(np.full(length, 2.0)) * mean * length
        content = [{"token": f" t{place}", "logprob": round(float(value), 4)} for place, value in enumerate(parts)]
        lines.append(chat(f"question-{number}", model, content))
    return lines, labels


def chat(name: str, model: str, content: Sequence[Any]) -> dict[str, Any]:
    """Return a response of chat/completions."""
    message = {"role": "assistant", "content": "".join(one["token"] for one in content)}
    choice = {"index": 0, "message": message, "logprobs": {"content": list(content)}, "finish_reason": "stop"}
    return {"id": name, "object": "chat.completion", "model": model, "choices": [choice]}


def write(name: str, lines: Iterable[Any], labels: Sequence[str]) -> None:
    kept = list(lines)
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in kept)
    (FOLDER / f"{name}.jsonl").write_text(text)
    with open(FOLDER / f"{name}.csv", "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["id", "label"])
        table.writerows((line["id"], label) for line, label in zip(kept, labels, strict=True))


if __name__ == "__main__":
    main()
