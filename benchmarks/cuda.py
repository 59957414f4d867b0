"""What a CUDA device makes of fits and metrics: times against their aims, answers against the CPU's.

    python -m benchmarks.cuda

Times are medians of 20 calls after three to warm up, synchronised before and after; the bytes that must move, over the
time, give the fraction of the device's copy bandwidth. Prints one JSON record.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from calibrant import BinaryPairs, Predictions
from calibrant.calibrators import TemperatureScaling
from calibrant.metrics import ECE, NLL


def median_ms(work: Callable[[], Any], *, rounds: int = 20) -> float:
    """Return the median milliseconds of a call."""
    seconds = []
    for index in range(rounds + 3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        if index >= 3:
            seconds.append(time.perf_counter() - start)
    return 1e3 * statistics.median(seconds)


def copy_gb_per_second() -> float:
    """Return bytes read and written a second by a large device copy, in 10⁹."""
    source = torch.empty(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / median_ms(lambda: target.copy_(source)) / 1e6


def temperature(rows: int, classes: int) -> dict[str, Any]:
    """Time the temperature fit of logits (rows, classes) drawn at T = 1.7."""
    generator = torch.Generator("cuda").manual_seed(0)
    logits = 4 * torch.randn(rows, classes, device="cuda", generator=generator)
    gumbel = -torch.log(-torch.log(torch.rand(logits.shape, device="cuda", generator=generator).clamp(1e-9, 1 - 1e-7)))
    labels = (logits / 1.7 + gumbel).argmax(1)
    fitted = TemperatureScaling().fit(logits, labels)
    reference = TemperatureScaling().fit(logits.cpu(), labels.cpu())
    return {
        "what": f"temperature fit {rows}×{classes} float32",
        "ms": median_ms(lambda: TemperatureScaling().fit(logits, labels)),
        "temperature": fitted.temperature,
        "off_the_cpu_answer": abs(fitted.temperature - reference.temperature),
        "gradient": fitted.gradient,
    }


def pairs(count: int) -> dict[str, Any]:
    """Time ECE from (confidence, correct) pairs that lie on the device."""
    generator = torch.Generator("cuda").manual_seed(0)
    p = torch.rand(count, device="cuda", generator=generator)
    y = (torch.rand(count, device="cuda", generator=generator) < p**1.2).float()
    data = BinaryPairs(p, y)
    few = BinaryPairs(p[:100_000], y[:100_000])
    on_cpu = BinaryPairs(few.p.cpu(), few.y.cpu())
    ms = median_ms(lambda: ECE()(data))
    return {
        "what": f"ECE of {count} pairs",
        "ms": ms,
        "gb_per_second": 8 * count / ms / 1e6,
        "value": ECE()(data),
        "off_the_cpu_answer": abs(ECE()(few) - ECE()(on_cpu)),
    }


def panel(rows: int, classes: int) -> dict[str, Any]:
    """Time ECE and log-loss from logits, the check of the input included."""
    generator = torch.Generator("cuda").manual_seed(0)
    logits = 4 * torch.randn(rows, classes, device="cuda", generator=generator)
    labels = torch.randint(classes, (rows,), device="cuda", generator=generator)

    def measure() -> tuple[float, float]:
        data = Predictions.from_logits(logits, labels)
        return ECE()(data), NLL()(data)

    data = Predictions.from_logits(logits.cpu(), labels.cpu())
    ms = median_ms(measure)
    return {
        "what": f"ECE and NLL from logits {rows}×{classes} float32",
        "ms": ms,
        "gb_per_second": 4 * rows * classes / ms / 1e6,
        "off_the_cpu_answer": max(abs(a - b) for a, b in zip(measure(), (ECE()(data), NLL()(data)), strict=True)),
    }


def main() -> int:
    """Measure and print; return the exit code."""
    if not torch.cuda.is_available():
        print("expected a CUDA device, got none; run this where one is", file=sys.stderr)
        return 2
    record: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "copy_gb_per_second": copy_gb_per_second(),
        "measured": [],
    }
    for work in (lambda: temperature(25_000, 1000), lambda: pairs(50_000_000), lambda: panel(200_000, 1000)):
        try:
            record["measured"].append(work())
        except RuntimeError as error:  # a failure on the device is a finding, and the others still run
            record["measured"].append({"failed": str(error)[:300]})
    print(json.dumps(record, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
