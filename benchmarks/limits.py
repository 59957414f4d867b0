"""How near each operation comes to what this machine can do: its copy bandwidth, or the rate of its exponentials.

    python -m benchmarks.limits --json DIR      # one thread

An operation has to move the bytes of its input and of its output, and to take so many exponentials. Whichever takes
longer at the measured rates is its limit: no program for the same task on one thread is faster. Rates and operations take
turns in one process; the medians of CPU time count.
"""

import argparse
import random
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.data import overconfident, pairs
from benchmarks.records import Store
from calibrant import BinaryPairs, Predictions, losses
from calibrant.binning import EqualMass
from calibrant.calibrators import TemperatureScaling
from calibrant.calibrators.focal.temperature import TemperatureRows
from calibrant.metrics import ECE, NLL, Brier, ClasswiseECE, SmoothECE

ROUNDS = 7
COPIED = 1 << 30  # bytes: far beyond the last cache
IN_CACHE = 1 << 18  # bytes of a block whose exponentials are timed


@dataclass(frozen=True)
class Operation:
    """One operation: bytes that it has to move, and the exponentials by their width in bytes."""

    name: str
    rows: int
    classes: int
    call: Callable[[], Any]
    moved: int
    exponentials: dict[int, int]


@contextmanager
def counted() -> Iterator[Counter[torch.dtype]]:
    """Count the exponentials of temperature fits by their dtype, while this lasts."""
    original, found = TemperatureRows.moments, Counter[torch.dtype]()

    def moments(self: TemperatureRows, beta: float, dtype: torch.dtype) -> tuple[float, float]:
        found[dtype] += self.logits.numel()
        return original(self, beta, dtype)

    TemperatureRows.moments = moments  # type: ignore[method-assign]
    try:
        yield found
    finally:
        TemperatureRows.moments = original  # type: ignore[method-assign]


def of_logits(rows: int, classes: int) -> list[Operation]:
    """Return the operations on logits of this size."""
    z, y = overconfident(rows, classes)
    entries, inputs = z.numel(), z.numel() * 4 + 8 * rows
    with counted() as passes:
        fitted = TemperatureScaling().fit(z, y)
    fit = {dtype.itemsize: count for dtype, count in passes.items()}
    leaf, focal = z.clone().requires_grad_(), losses.FocalLoss(3.0)

    def of(name: str, call: Callable[[], Any], moved: int, exponentials: dict[int, int]) -> Operation:
        return Operation(name, rows, classes, call, moved, exponentials)

    def gradient() -> None:
        leaf.grad = None
        focal(leaf, y).backward()

    return [
        of("ECE", lambda: ECE()(Predictions.from_logits(z, y)), inputs, {4: entries}),
        of("log-loss", lambda: NLL()(Predictions.from_logits(z, y)), inputs, {8: entries}),
        of("Brier score", lambda: Brier()(Predictions.from_logits(z, y)), inputs, {8: entries}),
        of("classwise ECE", lambda: ClasswiseECE()(Predictions.from_logits(z, y)), inputs, {8: entries}),
        of(
            "temperature, fitted",
            lambda: TemperatureScaling().fit(z, y),
            sum(fit.values()) // entries * inputs,
            fit,
        ),
        of("temperature, applied", lambda: fitted(z), 2 * 4 * entries, {}),
        of("focal loss, forward and backward", gradient, 3 * 4 * entries, {4: entries}),
    ]


def of_pairs(rows: int) -> list[Operation]:
    """Return the operations on confidences."""
    p, hit = pairs(rows)
    data = BinaryPairs.from_probs(p, hit.long())
    inputs = 16 * rows
    return [
        Operation("ECE from confidences", rows, 2, lambda: ECE()(data), inputs, {}),
        Operation("equal-mass ECE from confidences", rows, 2, lambda: ECE(EqualMass(15))(data), inputs, {}),
        Operation("smooth ECE from confidences", rows, 2, lambda: SmoothECE()(data), inputs, {}),
    ]


def rates() -> dict[str, Callable[[], Any]]:
    """Return what the limits are measured by."""
    source = torch.ones(COPIED // 4)
    target = torch.empty_like(source)
    found: dict[str, Callable[[], Any]] = {"copy": lambda: target.copy_(source)}
    for dtype in (torch.float32, torch.float64):
        block = torch.randn(IN_CACHE // dtype.itemsize, dtype=dtype)
        out = torch.empty_like(block)
        found[f"exp{dtype.itemsize}"] = lambda block=block, out=out: [torch.exp(block, out=out) for _ in range(100)]
    return found


def measure(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the median CPU seconds of each call over interleaved rounds."""
    for call in calls.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    order, shuffled = list(calls), random.Random(0)
    for _ in range(ROUNDS):
        shuffled.shuffle(order)
        for name in order:
            start = time.process_time()
            calls[name]()
            seconds[name].append(time.process_time() - start)
    return {name: statistics.median(found) for name, found in seconds.items()}


def record(operations: list[Operation]) -> dict[str, Any]:
    """Return rates and operations of one size, measured together."""
    spent = measure(rates() | {one.name: one.call for one in operations})
    copy = 2 * COPIED / spent["copy"]
    exp = {width: 100 * IN_CACHE / width / spent[f"exp{width}"] for width in (4, 8)}
    rows = []
    for one in operations:
        by_bytes = one.moved / copy
        by_exp = sum(count / exp[width] for width, count in one.exponentials.items())
        rows.append(
            {
                "name": one.name,
                "seconds": spent[one.name],
                "moved_bytes": one.moved,
                "exponentials": {str(8 * width): count for width, count in one.exponentials.items()},
                "of_copy": by_bytes / spent[one.name],
                "of_exp": by_exp / spent[one.name] if one.exponentials else None,
            }
        )
    first = operations[0]
    return {
        "rows": first.rows,
        "classes": first.classes,
        "copy_bytes_a_second": copy,
        "exp_a_second": {str(8 * width): rate for width, rate in exp.items()},
        "operations": rows,
    }


def main() -> None:
    """Measure every size that the records do not hold yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="folder of records; none is written without it")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    store = Store(options.json, "limits")
    for rows, classes in ((2_000_000, 10), (40_000, 1000), (5_000_000, 2)):
        if store.find({"rows": rows, "classes": classes}) is None:
            store.add(record(of_pairs(rows) if classes == 2 else of_logits(rows, classes)))
        found = store.find({"rows": rows, "classes": classes}) or {}
        print(
            f"\nN = {rows:,}, K = {classes:,}: copy {found['copy_bytes_a_second'] / 1e9:.1f} GB/s, "
            f"exp {found['exp_a_second']['32'] / 1e9:.2f} and {found['exp_a_second']['64'] / 1e9:.2f} G/s (float32, float64)"
        )
        for one in found["operations"]:
            of_exp = "" if one["of_exp"] is None else f"{one['of_exp']:.0%}"
            print(
                f"  {one['name']:34s} {1000 * one['seconds']:9.1f} ms  of copy {one['of_copy']:6.0%}  of exp {of_exp}"
            )


if __name__ == "__main__":
    main()
