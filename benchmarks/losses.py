"""Time and memory of every objective, forward and backward, as ratios to ``torch.nn.functional.cross_entropy``.

Rounds are interleaved: each runs every objective once, in random order, so that what else the machine does falls on all
alike. CPU time is this process's, with one thread; on CUDA it is measured by events. The ratio is that of the medians,
with a 95 % bootstrap interval. Peak memory is what one call needs beyond the logits, as a ratio, too.

    python -m benchmarks.losses                     # 4096 × 1000 and 512 × 50,000 on the CPU
    python -m benchmarks.losses --device cuda       # 4096 × 128,256 float32
"""

import argparse
import ctypes
import gc
import importlib.util
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant import losses

Objective = Callable[[Tensor, Tensor], Tensor]
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Row:
    """What was measured of one objective: seconds of each round, and the peak in bytes (None where it cannot be read)."""

    name: str
    seconds: list[float]
    peak: int | None


def objectives() -> dict[str, Objective]:
    """Return what is timed by name; the first is what all are compared with."""
    ours: list[torch.nn.Module] = [
        losses.CrossEntropyLoss(),
        losses.FocalLoss(3.0),
        losses.FocalLoss(0.5),
        losses.InverseFocalLoss(1.0),
        losses.SampleDependentFocalLoss(),
        losses.AdaFocalLoss(),
        losses.LabelSmoothingLoss(0.1),
        losses.BrierLoss(),
        losses.BSCELoss(),
        losses.EntropyRegularizedLoss(0.1),
        losses.LpNormLoss(0.01),
        losses.MDCALoss(),
        losses.MMCELoss(),
        losses.FocalCalibrationLoss(),
        losses.DualFocalLoss(),
        losses.MarginLabelSmoothingLoss(0.1, margin=6.0),
        losses.ACLSLoss(0.1, margin=6.0),
        losses.SoftBinnedECELoss(),
    ]
    named: dict[str, Objective] = {"torch cross_entropy": F.cross_entropy}
    named |= {repr(loss).split("\n")[0].removesuffix("("): loss for loss in ours}
    named["torch cross_entropy, smoothing"] = lambda z, y: F.cross_entropy(z, y, label_smoothing=0.1)
    named["torch cross_entropy, weighed by hand"] = _by_hand
    if importlib.util.find_spec("kornia"):
        from kornia.losses import focal_loss

        named["kornia focal_loss"] = lambda z, y: focal_loss(z, y, alpha=None, gamma=3.0, reduction="mean")
    return named


def _by_hand(logits: Tensor, labels: Tensor) -> Tensor:
    nll = F.cross_entropy(logits, labels, reduction="none")
    return ((1 - torch.exp(-nll)) ** 3 * nll).mean()


def run(objective: Objective, logits: Tensor, labels: Tensor) -> float:
    """Return the seconds of one forward and backward pass."""
    logits.grad = None
    if logits.device.type == "cuda":
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        objective(logits, labels).backward()
        stop.record()
        torch.cuda.synchronize()
        return start.elapsed_time(stop) / 1e3
    start_time = time.process_time()
    objective(logits, labels).backward()
    return time.process_time() - start_time


def peak(objective: Objective, logits: Tensor, labels: Tensor) -> int | None:
    """Return the most bytes that one pass held beyond what there was before, or None where the system does not tell."""
    logits.grad = None
    gc.collect()
    if logits.device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        objective(logits, labels).backward()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    if not CLEAR.exists():
        return None
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before = _resident("VmRSS")
    CLEAR.write_text("5")  # sets the high-water mark back
    objective(logits, labels).backward()
    return _resident("VmHWM") - before


def _resident(field: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def measure(rows: int, classes: int, device: str, rounds: int, chosen: str) -> list[Row]:
    """Return the rows of one shape."""
    generator = torch.Generator().manual_seed(0)
    logits = (2 * torch.randn(rows, classes, generator=generator)).to(device).requires_grad_()
    labels = torch.randint(classes, (rows,), generator=generator).to(device)
    named = {name: one for i, (name, one) in enumerate(objectives().items()) if i == 0 or chosen in name}
    for objective in named.values():
        if isinstance(objective, torch.nn.Module):
            objective.to(device)
        run(objective, logits, labels)
    seconds: dict[str, list[float]] = {name: [] for name in named}
    order = list(named)
    shuffled = random.Random(0)
    for _ in range(rounds):
        shuffled.shuffle(order)
        for name in order:
            seconds[name].append(run(named[name], logits, labels))
    return [Row(name, seconds[name], peak(objective, logits, labels)) for name, objective in named.items()]


def interval(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """Return the ratio of medians with its 95 % bootstrap interval over rounds."""
    draw = random.Random(1)
    rounds = len(ours)
    ratios = []
    for _ in range(1000):
        index = [draw.randrange(rounds) for _ in range(rounds)]
        ratios.append(statistics.median([ours[i] for i in index]) / statistics.median([theirs[i] for i in index]))
    ratios.sort()
    return statistics.median(ours) / statistics.median(theirs), ratios[25], ratios[974]


def show(rows: list[Row], shape: tuple[int, int], device: str) -> None:
    """Print a Markdown table."""
    base = rows[0]
    n, k = shape
    unit = statistics.median(base.seconds) * 1e3
    print(f"\n{n} × {k:,} on {device}, {len(base.seconds)} rounds; torch cross_entropy takes {unit:.3g} ms")
    print("\n| objective | time | 95 % interval | peak memory |\n| --- | --- | --- | --- |")
    for row in rows:
        ratio, low, high = interval(row.seconds, base.seconds)
        memory = f"{row.peak / base.peak:.2f}" if row.peak and base.peak else "–"
        print(f"| {row.name} | {ratio:.2f} | {low:.2f} … {high:.2f} | {memory} |")
    if device == "cuda":
        show_bandwidth(rows, n * k * 4)


def show_bandwidth(rows: list[Row], matrix: int) -> None:
    """Print the share of copy bandwidth that the fused pass reaches: logits read twice, gradient written once."""
    source = torch.empty(matrix // 4, device="cuda")
    target = torch.empty_like(source)
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(20):
        start.record()
        target.copy_(source)
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) / 1e3)
    copy = 2 * matrix / statistics.median(times)
    print(f"\ncopy: {copy / 1e12:.2f} TB/s")
    for row in rows[1:4]:
        moved = 3 * matrix / statistics.median(row.seconds)
        print(f"{row.name}: {moved / 1e12:.2f} TB/s of 2 reads and 1 write, {moved / copy:.0%} of copy")


def main() -> None:
    """Read the arguments and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--shape", action="append", help="N,K; may be given several times")
    parser.add_argument("--only", default="", help="a part of the names to time")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    usual = {"cpu": ["4096,1000", "512,50000"], "cuda": ["4096,128256"]}[arguments.device]
    for text in arguments.shape or usual:
        n, k = (int(part) for part in text.split(","))
        rows = measure(n, k, arguments.device, arguments.rounds, arguments.only)
        show(rows, (n, k), arguments.device)


if __name__ == "__main__":
    main()
