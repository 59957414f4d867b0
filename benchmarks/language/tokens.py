"""SmolLM2's next token before and after calibration: one temperature, and temperatures by position, entropy and token class.

    python -m benchmarks.language.tokens --data ../shared/data     # install, run, fit, measure; writes docs/results/tokens.json
    python -m benchmarks.language.tokens --run .wild/tokens        # measure the hidden states of an earlier run

The first half of the texts is fitted on, the other measured. No logits of more than a chunk of rows are ever in memory. The
record holds figures alone.
"""

import argparse
import json
import resource
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.language.__main__ import environment_of
from benchmarks.records import machine, versions
from calibrant import BinaryPairs, Predictions
from calibrant.calibrators import AdaptiveTemperatureScaling, Calibrator
from calibrant.evaluate import compare
from calibrant.language import token_classes
from calibrant.losses import CrossEntropyLoss
from calibrant.metrics import ECE, SquaredGaps
from calibrant.statistics import null_band, paired_test
from calibrant.vocabulary import FusedLinearLoss, LinearLogits

RECORD = Path(__file__).parent.parent.parent / "docs" / "results" / "tokens.json"
ONE, NONE = "one temperature", "none"
METHODS: dict[str, Callable[[], AdaptiveTemperatureScaling]] = {
    ONE: lambda: AdaptiveTemperatureScaling(by=(), bias=False),
    "temperature by position": lambda: AdaptiveTemperatureScaling(["position"], by=(), bias=False),
    "temperature by entropy": lambda: AdaptiveTemperatureScaling(by=("entropy",), bias=False),
    "temperature by token class": lambda: AdaptiveTemperatureScaling(["class"], by=(), bias=False),
    "temperature by all three": lambda: AdaptiveTemperatureScaling(["position", "class"], by=("entropy",), bias=False),
    "temperature and top bias by confidence, entropy": AdaptiveTemperatureScaling,
    "temperature and top bias by all four": lambda: AdaptiveTemperatureScaling(["position", "class"]),
}
DRAWS = 200


@dataclass(frozen=True)
class Half:
    """Predictions of some texts.

    Args:
        source: Their logits.
        labels: (N,) true next tokens.
        features: Position, and class of the most probable token.
        texts: (N,) the text of each.
    """

    source: LinearLogits
    labels: Tensor
    features: dict[str, Any]
    texts: Tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, default=Path(".wild"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--run", type=Path, help="the folder of an earlier run, which is then only measured")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = options.run or run(options.home, options.data)
    fit, test = halves(folder)
    record = {
        "model": "SmolLM2-135M-Instruct, Q4_1, Apache-2.0",
        "machine": machine(),
        "versions": {key: versions()[key] for key in ("python", "calibrant", "torch")},
        "classes": fit.source.classes,
        "rows": [len(fit.labels), len(test.labels)],
        "texts": [len(fit.texts.unique()), len(test.texts.unique())],
        **measured(fit, test),
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("\n".join(table(record)))


def run(home: Path, data: Path) -> Path:
    """Return the folder of a run, made in an environment of its own."""
    python, weights = environment_of(home)
    script = Path(__file__).parent / "score_tokens.py"
    subprocess.run([str(python), str(script), str(weights), str(data), str(home / "tokens")], check=True)
    return home / "tokens"


def halves(folder: Path) -> tuple[Half, Half]:
    """Return the first and the second half of the texts of a run."""
    with np.load(folder / "tokens.npz") as file:
        hidden, labels, position, texts = (
            torch.from_numpy(file[name]) for name in ("hidden", "labels", "position", "text")
        )
    head = torch.from_numpy(np.load(folder / "head.npy"))
    vocabulary = json.loads((folder / "vocabulary.json").read_text())
    found = []
    for rows in (texts < (texts.max() + 1) // 2, texts >= (texts.max() + 1) // 2):
        source = LinearLogits(hidden[rows].float(), head)
        features = {"position": position[rows], "class": token_classes(vocabulary, source.predicted)}
        found.append(Half(source, labels[rows], features, texts[rows]))
    return found[0], found[1]


def measured(fit: Half, test: Half) -> dict[str, Any]:
    """Return the figures of every method, as plain data."""
    rows = fit.source.rows(fit.labels, features=fit.features)
    fitted: dict[str, Calibrator] = {}
    seconds = {}
    for name, make in METHODS.items():
        start = time.process_time()
        fitted[name] = make().fit_from(rows)  # the first makes the pass over the logits that all others share
        seconds[name] = time.process_time() - start
        print(f"{name}: {fitted[name]}, {seconds[name]:.1f} CPU s", flush=True)
    start = time.process_time()
    losses, pairs = through(test, fitted)
    passed = time.process_time() - start
    start = time.process_time()
    fused = FusedLinearLoss(CrossEntropyLoss())(test.source.hidden, test.source.weight, test.labels)
    fused_seconds = time.process_time() - start
    results = [
        {
            "method": name,
            **figures(losses[name], pairs[name]),
            **versus(losses[name], pairs[name], losses[ONE], pairs[ONE], test.texts),
            "seconds": round(seconds.get(name, 0.0), 2),
        }
        for name in losses
    ]
    return {
        "results": results,
        "evaluation_seconds": round(passed, 1),
        "fused_loss": float(fused),
        "fused_seconds": round(fused_seconds, 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "logits_mib": len(fit.labels) * fit.source.classes * 4 // 2**20,
    }


def through(test: Half, fitted: Mapping[str, Calibrator]) -> tuple[dict[str, Tensor], dict[str, BinaryPairs]]:
    """Return the log-loss (N,) and the pairs of each method's top label; the logits are computed once for all."""
    names = [NONE, *fitted]
    found: dict[str, list[Tensor]] = {name: [] for name in names}
    for part in test.source.predictions(test.labels, features=test.features):
        for name in names:
            # the texts are others than those of the fit
            after = part if name == NONE else part.calibrated_by(fitted[name], allow_fit_rows=True)
            found[name].append(scored(after))
    whole = {name: torch.cat(parts) for name, parts in found.items()}
    pairs = {name: BinaryPairs(one[:, 1], one[:, 2], groups=test.texts) for name, one in whole.items()}
    return {name: one[:, 0] for name, one in whole.items()}, pairs


def scored(part: Predictions) -> Tensor:
    """Return log-loss, confidence and correctness (n, 3) of predictions, in float64."""
    labels, predicted = part.need_labels(), part.predicted
    norm = torch.cat([torch.logsumexp(row.double(), dim=1) for row in part.logits.split(8)])
    own, top = (part.logits.gather(1, one[:, None])[:, 0].double() for one in (labels, predicted))
    return torch.stack([norm - own, (top - norm).exp(), (predicted == labels).double()], dim=1)


def figures(loss: Tensor, pairs: BinaryPairs) -> dict[str, float]:
    """Return log-loss, accuracy, mean confidence, ECE and its 97.5 % limit if calibrated."""
    return {
        "nll": float(loss.mean()),
        "accuracy": float(pairs.y.mean()),
        "confidence": float(pairs.p.mean()),
        "ece": ECE()(pairs),
        "ece_limit": null_band(ECE(), pairs, draws=DRAWS, seed=0).high,
    }


def versus(loss: Tensor, pairs: BinaryPairs, other: Tensor, others: BinaryPairs, texts: Tensor) -> dict[str, Any]:
    """Return the differences to one temperature in log-loss and in squared gaps, with intervals paired by text."""
    if pairs is others:
        return {"nll_versus": None, "gaps_versus": None}
    test, _ = paired_test(loss - other, groups=texts, level=0.95)
    [row] = compare(others, pairs, metrics=[SquaredGaps()]).rows
    return {
        "nll_versus": [float((loss - other).mean()), test.low, test.high],
        "gaps_versus": [row.difference, row.low, row.high],
    }


def table(record: dict[str, Any]) -> list[str]:
    """Return the lines of a page's table."""
    head = (
        "",
        "log-loss",
        "minus one temperature's",
        "mean confidence",
        "ECE",
        "ECE if calibrated, 97.5 % limit",
        "CPU seconds",
    )
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join(['---'] * len(head))} |"]
    for row in record["results"]:
        against = row["nll_versus"]
        difference = "" if against is None else f"{against[0]:+.4f} [{against[1]:+.4f}, {against[2]:+.4f}]"
        cells = [
            row["method"],
            f"{row['nll']:.4f}",
            difference,
            f"{row['confidence']:.1%}",
            f"{row['ece']:.2%}",
            f"{row['ece_limit']:.2%}",
            f"{row['seconds']:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
