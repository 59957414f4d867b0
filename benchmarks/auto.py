"""AutoCalibrator on data that did not choose its constants: full validation sets and small resampled ones.

    python -m benchmarks.auto --data ../shared/data --out auto.jsonl            # the half that judges: 100 resamples
    python -m benchmarks.auto --data ../shared/data --half chosen --resamples 4   # the half that fixed the constants
    python -m benchmarks.auto --half calibrated --resamples 25   # models that are calibrated: what harm is done to them

Every row is one case: a set, a number of validation rows, a resample. Each is fitted on those rows and judged on up to
2,000 fixed test rows of the same set. Rows go to ``--out`` as they are found; rows already there are kept, so that a
stopped run goes on where it was. The table is printed at the end.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators import (
    AutoCalibrator,
    BetaCalibration,
    Calibrator,
    DirichletCalibration,
    EnsembleTemperatureScaling,
    Identity,
    IsotonicCalibration,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    TemperatureScaling,
    VectorScaling,
)
from calibrant.errors import CalibrantError, CalibrantWarning

# Model families that fixed the constants of calibrators/auto.py; all others judge it. No family is on both sides.
CHOSEN = ("resnet110", "wideresnet16x4", "mnist-crossval", "mobilevlm", "monkey", "moe-llava")
JUDGED = ("densenet", "vgg16", "lenet5", "news20-crossval", "emotion-qwen1.8b", "qwen-vl", "llava-v1")
CALIBRATED = ("two classes, one rare", "four classes", "ten classes, long tail")
SIZES = (100, 300, 1000)
TEST_ROWS = 2000
METHODS: dict[str, Callable[[], Calibrator]] = {
    "none": Identity,
    "TemperatureScaling": TemperatureScaling,
    "EnsembleTemperatureScaling": EnsembleTemperatureScaling,
    "VectorScaling": VectorScaling,
    "StructuredVectorScaling": StructuredVectorScaling,
    "StructuredMatrixScaling": StructuredMatrixScaling,
    "DirichletCalibration": DirichletCalibration,
    "BetaCalibration": BetaCalibration,
    "IsotonicCalibration": IsotonicCalibration,
    "AutoCalibrator": AutoCalibrator,
    "AutoCalibrator, decision kept": lambda: AutoCalibrator(keep_argmax=True),
}
# On resampled sets only these: the rest are behind them at every size (see the columns n = 1000, 300, 100 of --every).
QUICK = (
    "none",
    "TemperatureScaling",
    "StructuredVectorScaling",
    "StructuredMatrixScaling",
    "AutoCalibrator",
    "AutoCalibrator, decision kept",
)
# one fit takes a second there, and none of these wins with so many classes and so few rows
TOO_MANY_CLASSES = {"DirichletCalibration", "BetaCalibration", "IsotonicCalibration"}
Case = tuple[str, str, int, Tensor, Tensor, Tensor, Tensor]


def half_of(name: str) -> str:
    """Return "chosen" or "judged" for a set's name; monkey-chat and qwen-vl-chat go with their families."""
    return "chosen" if any(family in name for family in CHOSEN) else "judged"


def cases(folder: Path, half: str, resamples: int) -> Iterator[Case]:
    """Yield set, size, resample, validation logits and labels, test logits and labels; whole resamples of all sets in turn."""
    loaded = {}
    for path in sorted((folder / "logits").glob("*.npz")):
        if half_of(path.stem) == half:
            with np.load(path) as file:
                z, y, test, labels = (
                    torch.from_numpy(file[f"{split}_{kind}"])
                    for split in ("val", "test")
                    for kind in ("logits", "labels")
                )
            kept = torch.from_numpy(np.random.default_rng(1).permutation(len(labels))[:TEST_ROWS])
            loaded[path.stem] = (z, y, test[kept], labels[kept])
    for name, (z, y, test, labels) in loaded.items():
        yield name, "full", 0, z, y, test, labels
    for draw in range(resamples):
        for name, (z, y, test, labels) in loaded.items():
            order = torch.from_numpy(np.random.default_rng(draw).permutation(len(y)))
            for size in SIZES:
                yield name, str(size), draw, z[order[:size]], y[order[:size]], test, labels


def calibrated_cases(resamples: int) -> Iterator[Case]:
    """Yield rows of models whose probabilities are the truth, as ``cases`` does; every draw has rows of its own."""

    def logits(name: str, rows: int, generator: torch.Generator) -> Tensor:
        if name == "two classes, one rare":
            return torch.randn(rows, 2, generator=generator).double() + torch.tensor([3.0, 0.0])
        if name == "four classes":
            return 2 * torch.randn(rows, 4, generator=generator).double()
        return 2 * torch.randn(rows, 10, generator=generator).double() - 0.35 * torch.arange(10)

    for draw in range(resamples):
        for name in CALIBRATED:
            for size in SIZES:
                generator = torch.Generator().manual_seed(1000 * draw + size)
                z = logits(name, size + 2 * TEST_ROWS, generator)
                y = torch.softmax(z, dim=1).multinomial(1, generator=generator)[:, 0]
                yield name, str(size), draw, z[:size], y[:size], z[size:], y[size:]


def losses(names: Iterable[str], z: Tensor, y: Tensor, test: Tensor, labels: Tensor) -> dict[str, float]:
    """Return each method's test log-loss; a method that refuses the data is counted as doing nothing."""
    found = {}
    for name in names:
        if name in TOO_MANY_CLASSES and z.shape[1] > 20:
            continue
        try:
            answer = METHODS[name]().fit(z, y)(test.double())
        except CalibrantError:
            answer = test.double()
        found[name] = float(torch.nn.functional.cross_entropy(answer, labels))
    return found


def table(rows: list[dict[str, object]]) -> str:
    """Return mean log-loss, share of cases harmed by more than 1 %, and the worst case, a method and size."""
    sizes = [size for size in ("full", *map(str, reversed(SIZES))) if any(row["size"] == size for row in rows)]
    lines = [
        "| mean test log-loss (harm > 1 %, worst) | " + " | ".join(f"n = {size}" for size in sizes) + " |",
        "| --- |" + " --- |" * len(sizes),
    ]
    for method in METHODS:
        cells = []
        for size in sizes:
            here = [row["losses"] for row in rows if row["size"] == size]
            if not any(method in case for case in here):  # type: ignore[operator]
                cells.append("–")
                continue
            base = np.array([case["none"] for case in here])  # type: ignore[index]
            # left out with many classes: as if nothing were done there
            loss = np.array([case.get(method, case["none"]) for case in here])  # type: ignore[union-attr, index]
            change = loss / base - 1
            cells.append(f"{loss.mean():.4f} ({100 * (change > 0.01).mean():.1f} %, {100 * change.max():+.1f} %)")
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    counts = ", ".join(f"{size}: {sum(row['size'] == size for row in rows)}" for size in sizes)
    return "\n".join([*lines, "", f"Cases: {counts}."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--half", choices=("judged", "chosen", "calibrated"), default="judged")
    parser.add_argument("--resamples", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("auto.jsonl"))
    parser.add_argument(
        "--every", action="store_true", help="all methods on the resampled sets too: four times the time"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", CalibrantWarning)
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {(row["set"], row["size"], row["draw"]) for row in rows}
    start = time.process_time()
    made = options.half == "calibrated"
    found = calibrated_cases(options.resamples) if made else cases(options.data, options.half, options.resamples)
    with options.out.open("a") as out:
        for name, size, draw, *data in found:
            if (name, size, draw) not in done:
                names = METHODS if size == "full" or options.every else QUICK
                rows.append({"set": name, "size": size, "draw": draw, "losses": losses(names, *data)})
                print(json.dumps(rows[-1]), file=out, flush=True)
    if made:
        for name in CALIBRATED:
            print(f"\n{name}\n\n{table([row for row in rows if row['set'] == name])}")
    else:
        print(f"half: {options.half}; families {', '.join(JUDGED if options.half == 'judged' else CHOSEN)}")
        print(table(rows))
    print(f"{time.process_time() - start:.0f} CPU seconds")


if __name__ == "__main__":
    main()
