"""Measures how time and memory grow with the number of rows and the number of classes, for each task.

    python -m benchmarks.growth                       # everything, about 10 minutes on one core
    python -m benchmarks.growth ece temperature --rows 1000,1000000 --classes 10,1000

The number of rows varies with 10 classes, and the number of classes with 10,000 rows. Each combination runs on one thread in a
separate process. Its time is the shortest of up to three runs, after a first run on few rows. Its memory is the peak resident
size during the run, minus that of the data. The exponents in the table are the slopes of log(time) and log(memory) between the
two largest sizes: an exponent of 1 means that twice the size costs twice as much.
"""

import argparse
import json
import math
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from calibrant import Predictions
from calibrant.calibrators import (
    AutoCalibrator,
    HistogramBinning,
    IsotonicCalibration,
    StructuredMatrixScaling,
    TemperatureScaling,
    VectorScaling,
)
from calibrant.evaluate import panel
from calibrant.losses import FocalLoss
from calibrant.metrics import ECE, NLL, CanonicalError, ClasswiseECE, SmoothECE
from calibrant.statistics import interval, null_band

WORK: dict[str, Callable[[Predictions], object]] = {
    "nll": NLL(),
    "ece": ECE(),
    "classwise": ClasswiseECE(),
    "smooth": SmoothECE(),
    "canonical": CanonicalError(),
    "ece interval and limit": lambda data: (interval(ECE(), data), null_band(ECE(), data)),
    "panel": panel,
    "focal loss": lambda data: FocalLoss(gamma=3.0)(data.logits, data.labels),
    "temperature": lambda data: TemperatureScaling().fit(data),
    "vector": lambda data: VectorScaling().fit(data),
    "structured matrix": lambda data: StructuredMatrixScaling().fit(data),
    "isotonic": lambda data: IsotonicCalibration().fit(data),
    "histogram": lambda data: HistogramBinning().fit(data),
    "auto": lambda data: AutoCalibrator().fit(data),
}
ROWS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
CLASSES = (2, 10, 100, 1_000, 10_000)
FIXED_ROWS, FIXED_CLASSES = 10_000, 10
LONG = 15.0  # a task that takes more seconds than this is not tried at larger sizes


def sample(rows: int, classes: int) -> Predictions:
    """Return over-confident logits whose labels are drawn at temperature 1.7."""
    source = torch.Generator().manual_seed(0)
    logits = torch.empty(rows, classes).normal_(0, 4, generator=source)
    labels = torch.empty(rows, dtype=torch.int64)
    for start in range(0, rows, 100_000):
        part = logits[start : start + 100_000]
        noise = torch.empty_like(part).exponential_(generator=source).log_()
        labels[start : start + 100_000] = (part / 1.7).sub_(noise).argmax(1)
    return Predictions.from_logits(logits, labels)


def resident(line: str) -> float:
    """Return a line of this process's status, such as VmHWM (the peak resident size), in MiB."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(entry.split()[1]) / 1024 for entry in status if entry.startswith(line))


def measure(name: str, rows: int, classes: int) -> dict[str, float]:
    """Return the seconds and the MiB that one task takes at one size; call this in a separate process."""
    WORK[name](sample(300, min(classes, 10)))
    seconds = math.inf
    data = sample(rows, classes)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = resident("VmRSS")
    for _ in range(3):
        fresh = Predictions.from_logits(data.logits, data.labels)
        start = time.perf_counter()
        WORK[name](fresh)
        seconds = min(seconds, time.perf_counter() - start)
        if seconds > 5:
            break
    return {"seconds": seconds, "mib": max(resident("VmHWM") - before, 0.0)}


def slope(cells: list[dict[str, Any]], axis: str, kind: str, least: float) -> str:
    """Return the slope between the two largest sizes on logarithmic axes, or a dash if one of the values is below ``least``."""
    if len(cells) < 2 or min(cell[kind] for cell in cells[-2:]) < least:
        return "–"
    return f"{math.log(cells[-1][kind] / cells[-2][kind]) / math.log(cells[-1][axis] / cells[-2][axis]):.2f}"


def table(cells: list[dict[str, Any]]) -> str:
    """Return the exponents, and the largest size with its time and memory, as a Markdown table."""
    lines = [
        "| task | time by rows | memory by rows | most rows | time by classes | memory by classes | most classes |",
        "|" + " --- |" * 7,
    ]
    for name in dict.fromkeys(cell["work"] for cell in cells):
        line = [name]
        for axis in ("rows", "classes"):
            found = [cell for cell in cells if (cell["work"], cell["axis"]) == (name, axis)]
            last = found[-1]
            line += [slope(found, axis, "seconds", 0.001), slope(found, axis, "mib", 100.0)]
            line.append(f"{last[axis]:,}: {last['seconds']:.2g} s, {last['mib']:.0f} MiB")
        lines.append("| " + " | ".join(line) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure the requested combinations, print each when it is finished, and print the table of exponents at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", nargs="*", metavar="WORK", help=f"all by default: {', '.join(WORK)}")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)), help="numbers of rows, separated by commas")
    parser.add_argument("--classes", default=",".join(map(str, CLASSES)), help="numbers of classes")
    parser.add_argument("--record", type=Path, help="JSON lines file for the cells")
    parser.add_argument("--table", type=Path, metavar="RECORD", help="print the table of a record and measure nothing")
    options = parser.parse_args()
    if options.table:
        print(table([json.loads(line) for line in options.table.read_text().splitlines()]))
        return
    if unknown := set(options.work) - set(WORK):
        parser.error(f"expected some of {', '.join(WORK)}, got {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    for name in ("nll", "ece", "temperature", "vector"):  # loads the compiled loops, which every process then has
        WORK[name](sample(600_000, FIXED_CLASSES))
    cells = []
    fork = multiprocessing.get_context("fork")
    for name in options.work or WORK:
        for axis, sizes in (("rows", options.rows), ("classes", options.classes)):
            for size in map(int, sizes.split(",")):
                rows, classes = (size, FIXED_CLASSES) if axis == "rows" else (FIXED_ROWS, size)
                with fork.Pool(1) as pool:
                    found = pool.apply(measure, (name, rows, classes))
                cells.append({"work": name, "axis": axis, "rows": rows, "classes": classes, **found})
                print(json.dumps(cells[-1]), flush=True)
                if found["seconds"] > LONG:
                    break
    print(table(cells))
    if options.record:
        options.record.write_text("\n".join(json.dumps(cell) for cell in cells) + "\n")


if __name__ == "__main__":
    main()
