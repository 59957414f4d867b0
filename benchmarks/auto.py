"""AutoCalibrator on data that did not choose its constants: full validation sets and small resampled ones.

    python -m benchmarks.auto --data ../shared/data --out auto.jsonl            # the held-out half: 100 resamples
    python -m benchmarks.auto --data ../shared/data --half chosen --resamples 4   # the half that fixed the constants
    python -m benchmarks.auto --half chosen --only mnist-crossval --out mnist.jsonl   # one set of either half
    python -m benchmarks.auto --half calibrated --resamples 200   # models that are calibrated: what harm is done to them

Every row is one case: a set, a number of validation rows, a resample. Each is fitted on those rows and evaluated on up to
2,000 fixed test rows of the same set. Rows go to ``--out`` as they are found; rows already there are kept, so that a
stopped run goes on where it was. The table is printed at the end, and with ``--record docs/results/auto.json`` its figures are
written there, in place of those of the same half; ``benchmarks.evidence`` makes the page of them. With ``--first 59``
only later resamples are run, and their figures joined with those that the record has of the earlier ones.
"""

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.records import machine, versions
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

# Model families that fixed the constants of calibrators/auto.py; all others are held out. No family is on both sides.
CHOSEN = ("resnet110", "wideresnet16x4", "mnist-crossval", "mobilevlm", "monkey", "moe-llava")
JUDGED = ("densenet", "vgg16", "lenet5", "news20-crossval", "emotion-qwen1.8b", "qwen-vl", "llava-v1")
CALIBRATED = ("two classes, one rare", "four classes", "ten classes, long tail")
SIZES = (100, 300, 1000)
CALIBRATED_SIZES = (50, *SIZES)
TEST_ROWS = 2000
HARM, Z = (
    0.01,
    1.959963984540054,
)  # a case is harmed whose log-loss is up by more than this, and beyond its paired interval
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
Row = dict[str, Any]  # set, size, draw, losses and errors by method
Summary = dict[str, dict[str, dict[str, float]]]  # size → method → figures


def half_of(name: str) -> str:
    """Return "chosen" or "judged" for a set's name; monkey-chat and qwen-vl-chat go with their families."""
    return "chosen" if any(family in name for family in CHOSEN) else "judged"


def cases(folder: Path, half: str, draws: range) -> Iterator[Case]:
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
    if draws.start == 0:
        for name, (z, y, test, labels) in loaded.items():
            yield name, "full", 0, z, y, test, labels
    for draw in draws:
        for name, (z, y, test, labels) in loaded.items():
            order = torch.from_numpy(np.random.default_rng(draw).permutation(len(y)))
            for size in SIZES:
                yield name, str(size), draw, z[order[:size]], y[order[:size]], test, labels


def calibrated_cases(draws: range) -> Iterator[Case]:
    """Yield rows of models whose probabilities are the truth, as ``cases`` does; every draw has rows of its own."""

    def logits(name: str, rows: int, generator: torch.Generator) -> Tensor:
        if name == "two classes, one rare":
            return torch.randn(rows, 2, generator=generator).double() + torch.tensor([3.0, 0.0])
        if name == "four classes":
            return 2 * torch.randn(rows, 4, generator=generator).double()
        return 2 * torch.randn(rows, 10, generator=generator).double() - 0.35 * torch.arange(10)

    for draw in draws:
        for name in CALIBRATED:
            for size in CALIBRATED_SIZES:
                generator = torch.Generator().manual_seed(1000 * draw + size)
                z = logits(name, size + 2 * TEST_ROWS, generator)
                y = torch.softmax(z, dim=1).multinomial(1, generator=generator)[:, 0]
                yield name, str(size), draw, z[:size], y[:size], z[size:], y[size:]


def losses(
    names: Iterable[str], z: Tensor, y: Tensor, test: Tensor, labels: Tensor
) -> tuple[dict[str, float], dict[str, float]]:
    """Return each method's test log-loss, and the standard error of its difference from that of doing nothing.

    A method that refuses the data is counted as doing nothing.
    """
    found, errors = {}, {}
    base = cross_entropy(test.double(), labels, reduction="none")
    for name in names:
        if name in TOO_MANY_CLASSES and z.shape[1] > 20:
            continue
        try:
            answer = METHODS[name]().fit(z, y)(test.double())
        except CalibrantError:
            answer = test.double()
        loss = cross_entropy(answer, labels, reduction="none")
        found[name] = float(loss.mean())
        errors[name] = float((loss - base).std()) / math.sqrt(len(loss))
    return found, errors


def figures(rows: Sequence[Row], method: str) -> dict[str, float]:
    """Return a method's mean log-loss over cases, the share of them it harmed, and the changes that 1 % and no case exceed."""
    # left out with many classes: as if nothing were done there
    base = np.array([row["losses"]["none"] for row in rows])
    loss = np.array([row["losses"].get(method, row["losses"]["none"]) for row in rows])
    error = np.array([row["errors"].get(method, 0.0) for row in rows])
    change = loss / base - 1
    harmed = (change > HARM) & (loss - base > Z * error)
    return {
        "cases": len(rows),
        "loss": round(float(loss.mean()), 6),
        "harmed": round(float(harmed.mean()), 5),
        "beyond_harm": round(float((change > HARM).mean()), 5),
        "change_99": round(float(np.quantile(change, 0.99)), 5),
        "worst": round(float(change.max()), 5),
    }


def summary(rows: Sequence[Row]) -> Summary:
    """Return the figures of every method by size."""
    sizes = [
        size for size in ("full", *map(str, reversed(CALIBRATED_SIZES))) if any(row["size"] == size for row in rows)
    ]
    found: Summary = {}
    for size in sizes:
        here = [row for row in rows if row["size"] == size]
        tried = [method for method in METHODS if any(method in row["losses"] for row in here)]
        found[size] = {method: figures(here, method) for method in tried}
    return found


def table(found: Summary) -> str:
    """Return a table of mean log-loss, share of cases harmed, and the change that 1 % of cases exceed."""
    lines = [
        "| mean test log-loss (harmed, 99 % of changes below) | " + " | ".join(f"n = {size}" for size in found) + " |",
        "| --- |" + " --- |" * len(found),
    ]
    for method in METHODS:
        if not any(method in one for one in found.values()):
            continue
        cells = [f"{one[method]['loss']:.4f} ({harm(one[method])})" if method in one else "–" for one in found.values()]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    counts = ", ".join(f"{size}: {one['none']['cases']:.0f}" for size, one in found.items())
    return "\n".join([*lines, "", f"Cases: {counts}."])


def harm(one: dict[str, float]) -> str:
    """Return the share of harmed cases and the change that 1 % of cases exceed, in words."""
    return f"{100 * one['harmed']:.1f} %, {100 * one['change_99']:+.1f} %"


def joined(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """Return the figures of the cases of both; the change that 1 % exceed is the larger of the two, a bound on that of all."""
    cases = one["cases"] + other["cases"]
    mean = {
        name: round((one["cases"] * one[name] + other["cases"] * other[name]) / cases, 6)
        for name in ("loss", "harmed", "beyond_harm")
    }
    return {"cases": cases, **mean} | {name: max(one[name], other[name]) for name in ("change_99", "worst")}


def joined_sizes(one: Summary, other: Summary) -> Summary:
    """Return the figures of the cases of both, by size and method; what one lacks is the other's."""
    found: Summary = {}
    for size in dict.fromkeys([*one, *other]):
        first, second = one.get(size, {}), other.get(size, {})
        found[size] = {
            method: joined(first[method], second[method])
            if method in first and method in second
            else (first | second)[method]
            for method in dict.fromkeys([*first, *second])
        }
    return found


def keep(path: Path, part: str, rows: Sequence[Row], *, first: int = 0) -> None:
    """Write the figures of ``rows`` into the record at ``path`` as its part ``part``; other parts stay.

    Args:
        path: JSON.
        part: Which half, and sets if not all.
        rows: Of whole resamples.
        first: Their first resample; from 1 on the figures are joined with those of the record, which are of the ones before.

    Raises:
        SystemExit: If the record's part does not end where ``rows`` begin.
    """
    record = json.loads(path.read_text()) if path.exists() else {"parts": {}}
    sets = sorted({row["set"] for row in rows})
    found, by_set = summary(rows), {name: summary([row for row in rows if row["set"] == name]) for name in sets}
    if first:
        old = record["parts"].get(part, {"draws": 0})
        if old["draws"] != first:
            raise SystemExit(f"expected {first} resamples of {part} in {path}, got {old['draws']}; run from there on")
        found = joined_sizes(old["all"], found)
        by_set = {name: joined_sizes(old["sets"][name], one) for name, one in by_set.items()}
    record["parts"][part] = {
        "machine": machine(),
        "versions": {name: number for name, number in versions().items() if name in ("python", "calibrant", "torch")},
        "draws": 1 + max(row["draw"] for row in rows),
        "all": found,
        "sets": by_set,
    }
    text = json.dumps(record, indent=1, ensure_ascii=False)
    beside = path.with_suffix(".partial")
    beside.write_text(text + "\n")
    beside.replace(path)


def read(path: Path) -> list[Row]:
    """Return the rows of an earlier run, none if there is none.

    Raises:
        SystemExit: If they lack standard errors, as those of earlier versions do.
    """
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if any("errors" not in row for row in rows):
        raise SystemExit(f"expected rows with standard errors in {path}, got rows without; name another --out")
    return rows


def main() -> None:
    """Run what the command line names, and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--half", choices=("judged", "chosen", "calibrated"), default="judged")
    parser.add_argument("--only", nargs="*", default=[], help="names of sets; others are left out")
    parser.add_argument("--resamples", type=int, default=100)
    parser.add_argument(
        "--first", type=int, default=0, help="leave out the full sets and the resamples before this one"
    )
    parser.add_argument("--out", type=Path, default=Path("auto.jsonl"))
    parser.add_argument("--record", type=Path, help="write the figures into this record, too; with --first join them")
    parser.add_argument(
        "--every", action="store_true", help="all methods on the resampled sets too: four times the time"
    )
    parser.add_argument("--methods", nargs="*", default=[], choices=METHODS, help="these alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", CalibrantWarning)
    rows = read(options.out)
    done = {(row["set"], row["size"], row["draw"]) for row in rows}
    start = time.process_time()
    made = options.half == "calibrated"
    draws = range(options.first, options.resamples)
    found = calibrated_cases(draws) if made else cases(options.data, options.half, draws)
    with options.out.open("a") as out:
        for name, size, draw, *data in found:
            if (name, size, draw) not in done and (not options.only or name in options.only):
                names = options.methods or (METHODS if size == "full" or options.every else QUICK)
                loss, error = losses(names, *data)
                rows.append({"set": name, "size": size, "draw": draw, "losses": loss, "errors": error})
                print(json.dumps(rows[-1]), file=out, flush=True)
    if options.record:
        keep(options.record, " ".join([options.half, *options.only]), rows, first=options.first)
    if made:
        for name in CALIBRATED:
            print(f"\n{name}\n\n{table(summary([row for row in rows if row['set'] == name]))}")
    else:
        print(f"half: {options.half}; families {', '.join(JUDGED if options.half == 'judged' else CHOSEN)}")
        print(table(summary(rows)))
    print(f"{time.process_time() - start:.0f} CPU seconds")


if __name__ == "__main__":
    main()
