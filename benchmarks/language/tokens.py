"""SmolLM2's next token before and after calibration: one temperature, and temperatures by position, entropy and token class.

    python -m benchmarks.language.tokens --data ../shared/data     # install, run, fit, measure; writes docs/results/tokens.json
    python -m benchmarks.language.tokens --run .wild/tokens        # measure the hidden states of an earlier run

The first half of the texts is fitted on, the other measured. No logits of more than a chunk of rows are ever in memory. The
record holds figures alone.
"""

import json
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.language.__main__ import facts, folder_of_run
from calibrant import BinaryPairs, Decisions, Predictions
from calibrant.calibrators import AdaptiveTemperatureScaling, Calibrator
from calibrant.language import token_classes
from calibrant.losses import CrossEntropyLoss
from calibrant.metrics import ECE
from calibrant.statistics import null_band
from calibrant.statistics.means import paired_test
from calibrant.vocabulary import FusedLinearLoss, LinearLogits

ROOT = Path(__file__).parent.parent.parent
RECORD = ROOT / "docs" / "results" / "tokens.json"
PAIRS = ROOT / "tests" / "fixtures" / "smollm2" / "tokens.npz"  # what the tutorial reads
ONE, ALL, NONE = "one temperature", "temperature and top bias by all four", "none"
METHODS: dict[str, Callable[[], AdaptiveTemperatureScaling]] = {
    ONE: lambda: AdaptiveTemperatureScaling(by=(), bias=False),
    "temperature by position": lambda: AdaptiveTemperatureScaling(["position"], by=(), bias=False),
    "temperature by entropy": lambda: AdaptiveTemperatureScaling(by=("entropy",), bias=False),
    "temperature by token class": lambda: AdaptiveTemperatureScaling(["class"], by=(), bias=False),
    "temperature by all three": lambda: AdaptiveTemperatureScaling(["position", "class"], by=("entropy",), bias=False),
    "temperature and top bias by confidence, entropy": AdaptiveTemperatureScaling,
    ALL: lambda: AdaptiveTemperatureScaling(["position", "class"]),
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
    what = "the folder of an earlier run, which is then only measured"
    fit, test = halves(folder_of_run(__doc__, "run", what, "score_tokens.py", "tokens"))
    record = {
        **facts(),
        "classes": fit.source.classes,
        "rows": [len(fit.labels), len(test.labels)],
        "texts": [len(fit.texts.unique()), len(test.texts.unique())],
        **measured(fit, test),
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("\n".join(table(record)))


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
        source = LinearLogits(hidden[rows].float(), head, chunk=64)
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
    keep(pairs)
    return {
        "results": results(losses, pairs, test, seconds),
        "evaluation_seconds": round(passed, 1),
        "fused_loss": float(fused),
        "fused_seconds": round(fused_seconds, 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "logits_mib": len(fit.labels) * fit.source.classes * 4 // 2**20,
    }


def results(
    losses: Mapping[str, Tensor], pairs: Mapping[str, BinaryPairs], test: Half, seconds: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Return the figures of every method."""
    return [
        {
            "method": name,
            **figures(losses[name], pairs[name]),
            **by_kind(pairs[name], test.features),
            "versus": versus(losses[name], losses[ONE], test.texts),
            "seconds": round(seconds.get(name, 0.0), 2),
        }
        for name in losses
    ]


def keep(pairs: Mapping[str, BinaryPairs]) -> None:
    """Write confidence, by one temperature and by all features, and whether the top token is right, to ``PAIRS``."""
    arrays = {"one": pairs[ONE].p, "adaptive": pairs[ALL].p}
    kept = {name: p.numpy().astype(np.float32) for name, p in arrays.items()}
    np.savez_compressed(PAIRS, **kept, right=pairs[ONE].y.numpy().astype(np.uint8))


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
    pairs = {name: Decisions(one[:, 1], one[:, 2], groups=test.texts) for name, one in whole.items()}
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


def by_kind(pairs: BinaryPairs, features: Mapping[str, Any]) -> dict[str, float]:
    """Return Σ share · |confidence − accuracy| over token classes and quarters of the positions, and its 97.5 % limit if calibrated.

    A model can be calibrated on average, and too sure at the start of a text or of parts of words.
    """
    position = torch.as_tensor(features["position"])
    quarter = 4 * (position - 1) // position.max()
    _, kind = np.unique(features["class"], return_inverse=True)
    cell = 4 * torch.from_numpy(kind) + quarter
    drawn = torch.bernoulli(pairs.p.expand(DRAWS, -1), generator=torch.Generator().manual_seed(0))
    gaps = torch.cat([pairs.y[None], drawn]) - pairs.p
    sums = gaps.new_zeros(len(gaps), int(cell.max()) + 1).index_add_(1, cell, gaps)
    errors = sums.abs().sum(dim=1) / len(cell)
    return {"group_error": float(errors[0]), "group_error_limit": float(errors[1:].quantile(0.975))}


def versus(loss: Tensor, other: Tensor, texts: Tensor) -> list[float] | None:
    """Return the difference in log-loss to one temperature with its interval, paired by text."""
    if loss is other:
        return None
    [test] = paired_test(loss - other, groups=texts, level=0.95)
    return [float((loss - other).mean()), test.low, test.high]


def table(record: dict[str, Any]) -> list[str]:
    """Return the lines of a page's table."""
    head = (
        "",
        "log-loss",
        "minus one temperature's",
        "mean confidence",
        "ECE",
        "limit if calibrated",
        "gap by class and position",
        "limit if calibrated",
        "CPU seconds",
    )
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join(['---'] * len(head))} |"]
    for row in record["results"]:
        against = row["versus"]
        difference = "" if against is None else f"{against[0]:+.4f} [{against[1]:+.4f}, {against[2]:+.4f}]"
        cells = [
            row["method"],
            f"{row['nll']:.4f}",
            difference,
            f"{row['confidence']:.1%}",
            f"{row['ece']:.2%}",
            f"{row['ece_limit']:.2%}",
            f"{row['group_error']:.2%}",
            f"{row['group_error_limit']:.2%}",
            f"{row['seconds']:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
