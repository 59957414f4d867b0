"""Measures losses, metrics and a temperature fit on a CUDA device: time, peak memory, and difference from the CPU's results.

    python -m benchmarks.cuda -o record.json         # about 3 minutes on one GPU with 24 GiB
    python -m benchmarks.cuda --device cpu --small   # checks that the code runs, without a device

Times are medians of 20 calls after three warm-up calls, with a synchronisation before and after each call.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import calibrant
from calibrant import Pairs, Predictions, losses
from calibrant.calibrators import TemperatureScaling
from calibrant.losses import FusedLinearLoss
from calibrant.metrics import ECE, NLL, Brier

Record = dict[str, Any]


class Bench:
    """Times work on one device; ``small`` divides every size, so that the code can be checked without one."""

    def __init__(self, device: str, small: bool) -> None:
        self.device, self.small = device, small
        self.generator = torch.Generator(device).manual_seed(0)

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def timed(self, what: str, work: Callable[[], Any]) -> Record:
        """Return the median milliseconds of a call, and the MiB that it takes beyond what was held before it."""
        seconds = []
        for index in range(6 if self.small else 23):
            self.synchronize()
            start = time.perf_counter()
            work()
            self.synchronize()
            if index >= 3:
                seconds.append(time.perf_counter() - start)
        found: Record = {"what": what, "ms": round(1e3 * statistics.median(seconds), 4)}
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            work()
            self.synchronize()
            found["peak_mib"] = round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)
        return found

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return normal numbers of ``shape``."""
        return torch.randn(shape, device=self.device, generator=self.generator).to(dtype)

    def uniform(self, *shape: int) -> Tensor:
        """Return uniform numbers of ``shape``."""
        return torch.rand(shape, device=self.device, generator=self.generator)

    def labels(self, rows: int, classes: int) -> Tensor:
        """Return labels (rows,)."""
        return torch.randint(classes, (rows,), device=self.device, generator=self.generator)


def loss(bench: Bench, rows: int, classes: int, dtype: torch.dtype) -> list[Record]:
    """Time forward and backward of losses, each as a ratio to PyTorch's cross-entropy."""
    rows = max(8, rows // 64) if bench.small else rows
    logits, labels = (4 * bench.normal(rows, classes)).to(dtype).requires_grad_(), bench.labels(rows, classes)
    criteria: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "torch cross_entropy": F.cross_entropy,
        "CrossEntropyLoss()": losses.CrossEntropyLoss(),
        "FocalLoss(3)": losses.FocalLoss(3.0),
        "InverseFocalLoss(1)": losses.InverseFocalLoss(1.0),
        "LabelSmoothingLoss(0.1)": losses.LabelSmoothingLoss(0.1),
        "BrierLoss()": losses.BrierLoss(),
        "EntropyRegularizedLoss(0.1)": losses.EntropyRegularizedLoss(0.1),
        "DualFocalLoss()": losses.DualFocalLoss(),
    }
    found: list[Record] = []
    for name, criterion in criteria.items():

        def step(criterion: Callable[[Tensor, Tensor], Tensor] = criterion) -> None:
            logits.grad = None
            criterion(logits, labels).backward()

        record = bench.timed(f"{name} {rows}×{classes} {dtype}", step)
        record["ratio_to_torch"] = round(record["ms"] / (found[0]["ms"] if found else record["ms"]), 3)
        few = logits.detach()[:8]
        here = criterion(few.cpu().double(), labels[:8].cpu())
        record["off_the_cpu_answer"] = abs(float(criterion(few, labels[:8])) - float(here))
        found.append(record)
    return found


def fused(bench: Bench, rows: int, classes: int, width: int) -> list[Record]:
    """Time the fused layer and loss in bfloat16 against layer and loss in turn."""
    rows, classes = (rows // 64, classes // 64) if bench.small else (rows, classes)
    hidden = bench.normal(rows, width, dtype=torch.bfloat16).requires_grad_()
    weight = (bench.normal(classes, width) / width**0.5).to(torch.bfloat16).requires_grad_()
    labels, criterion = bench.labels(rows, classes), losses.FocalLoss(3.0)
    layer = FusedLinearLoss(criterion)

    def step(work: Callable[[], Tensor]) -> None:
        hidden.grad = weight.grad = None
        work().backward()

    works: dict[str, Callable[[], Tensor]] = {
        "layer and loss in turn": lambda: criterion(hidden @ weight.t(), labels),
        "FusedLinearLoss": lambda: layer(hidden, weight, labels),
    }
    size = f"FocalLoss(3) {rows}×{classes} from {width} bfloat16"
    return [bench.timed(f"{name}, {size}", lambda work=work: step(work)) for name, work in works.items()]


def temperature(bench: Bench, rows: int, classes: int) -> list[Record]:
    """Time the temperature fit of logits (rows, classes) whose labels are drawn at T = 1.7."""
    rows = rows // 16 if bench.small else rows
    logits = 4 * bench.normal(rows, classes)
    noise = -torch.log(-torch.log(bench.uniform(rows, classes).clamp(1e-9, 1 - 1e-7)))
    labels = (logits / 1.7 + noise).argmax(1)
    record = bench.timed(f"temperature fit {rows}×{classes} float32", lambda: TemperatureScaling().fit(logits, labels))
    here, there = (TemperatureScaling().fit(z, y) for z, y in ((logits.cpu(), labels.cpu()), (logits, labels)))
    off = abs(there.temperature - here.temperature)
    return [record | {"temperature": round(there.temperature, 4), "off_the_cpu_answer": off}]


def pairs(bench: Bench, count: int) -> list[Record]:
    """Time the ECE of (confidence, correct) pairs that lie on the device."""
    count = count // 256 if bench.small else count
    p = bench.uniform(count)
    y = (bench.uniform(count) < p**1.2).long()
    data, few = Pairs.from_probs(p, y), (p[:100_000], y[:100_000])
    off = ECE()(Pairs.from_probs(*few)) - ECE()(Pairs.from_probs(*(one.cpu() for one in few)))
    return [bench.timed(f"ECE of {count} pairs", lambda: ECE()(data)) | {"off_the_cpu_answer": abs(off)}]


def panel(bench: Bench, rows: int, classes: int) -> list[Record]:
    """Time three metrics from logits, the check of the input included."""
    rows = max(8, rows // 256) if bench.small else rows
    logits, labels = 4 * bench.normal(rows, classes), bench.labels(rows, classes)

    def measure(z: Tensor, y: Tensor) -> list[float]:
        data = Predictions.from_logits(z, y)
        return [metric(data) for metric in (ECE(), NLL(), Brier())]

    record = bench.timed(f"ECE, NLL and Brier {rows}×{classes} float32", lambda: measure(logits, labels))
    both = zip(measure(logits, labels), measure(logits.cpu(), labels.cpu()), strict=True)
    return [record | {"off_the_cpu_answer": max(abs(a - b) for a, b in both)}]


def main() -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", type=Path, help="also write the record to this file")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="use small sizes, to check that the code runs")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        print("expected a CUDA device, got none; run this on a machine that has one", file=sys.stderr)
        return 2
    bench = Bench(given.device, given.small)
    works: list[Callable[[], list[Record]]] = [
        lambda: loss(bench, 4096, 128_256, torch.float32),
        lambda: loss(bench, 4096, 128_256, torch.bfloat16),
        lambda: loss(bench, 4096, 1024, torch.float32),
        lambda: fused(bench, 8192, 128_256, 2048),
        lambda: temperature(bench, 25_000, 1000),
        lambda: pairs(bench, 50_000_000),
        lambda: panel(bench, 200_000, 1000),
    ]
    measured: list[Record] = []
    for work in works:
        try:
            measured += work()
        except RuntimeError as error:  # a failure on the device is a finding, and the others still run
            measured.append({"failed": str(error)[:300]})
    record: Record = {
        "device": torch.cuda.get_device_name() if given.device == "cuda" else "cpu",
        "torch": torch.__version__,
        "calibrant": calibrant.__version__,
        "measured": measured,
    }
    text = json.dumps(record, indent=1, ensure_ascii=False)
    print(text)
    if given.o is not None:
        given.o.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
