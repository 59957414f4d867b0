"""Speed of the metrics against other libraries, from the same float32 logits.

    python -m benchmarks.metrics [--rounds 7] [--large]

One thread, interleaved rounds, medians of CPU time in one process; memory is the largest resident set above the start of
a call (Linux). Peers that are not installed are left out. ``--large`` sums 10⁷ rows and compares with ``math.fsum``.
"""

import argparse
import importlib
import math
import statistics
import sys
import time
import types
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from calibrant import BinaryPairs, Predictions
from calibrant.binning import EqualMass
from calibrant.evaluate import compare, panel
from calibrant.metrics import ECE, ClasswiseECE, SmoothECE

Contender = Callable[[], object]


def resident(key: str) -> float:
    """Return a line of this process's memory status in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    return math.nan


def peak_of(call: Contender) -> float:
    """Return the memory in MiB that one ``call`` takes above what there is before it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    except OSError:
        return math.nan
    before = resident("VmRSS")
    call()
    return resident("VmHWM") - before


def race(title: str, contenders: dict[str, Contender], *, rounds: int) -> None:
    """Print each contender's median CPU time, its ratio to the first, and its memory."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for call in contenders.values():
        call()
    for _ in range(rounds):
        for name, call in contenders.items():
            start = time.process_time()
            call()
            seconds[name].append(time.process_time() - start)
    print(f"\n### {title}\n\n| | CPU ms | ratio | peak MiB |\n| --- | --- | --- | --- |")
    first = statistics.median(next(iter(seconds.values())))
    for name, call in contenders.items():
        median = statistics.median(seconds[name])
        print(f"| {name} | {1000 * median:.1f} | {median / first:.2f} | {peak_of(call):.1f} |")


def torch_uncertainty(module: str) -> Any:
    """Import a calibration module of torch-uncertainty without its package, which needs torchvision; None if absent."""
    name = "torch_uncertainty"
    if name not in sys.modules:
        spec = find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            return None
        root = Path(next(iter(spec.submodule_search_locations)))
    else:
        root = Path(sys.modules[name].__path__[0])
    for part in ("", "metrics", "classification", "calibration"):
        if part:
            root, name = root / part, f"{name}.{part}"
        stub = types.ModuleType(name)
        stub.__path__ = [str(root)]
        sys.modules.setdefault(name, stub)
    return importlib.import_module(f"{name}.{module}")


def optional(name: str) -> Any:
    """Import ``name``, or return None."""
    return importlib.import_module(name) if find_spec(name.split(".")[0]) else None


def random_logits(rows: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, classes, generator=generator) * 3, torch.randint(classes, (rows,), generator=generator)


def equal_width(rows: int, classes: int, *, rounds: int) -> None:
    z, y = random_logits(rows, classes)
    contenders: dict[str, Contender] = {
        "calibrant, checks included": lambda: ECE()(Predictions.from_logits(z, y)),
        "softmax alone": lambda: torch.softmax(z, dim=1),
    }
    if tm := optional("torchmetrics.functional.classification"):
        contenders["torchmetrics"] = lambda: tm.multiclass_calibration_error(z, y, classes, 15)
    race(f"ECE-15, N = {rows:,}, K = {classes:,}", contenders, rounds=rounds)


def equal_mass(rows: int, classes: int, *, rounds: int) -> None:
    z, y = random_logits(rows, classes)
    contenders: dict[str, Contender] = {"calibrant": lambda: ECE(EqualMass(15))(Predictions.from_logits(z, y))}
    if tu := torch_uncertainty("adaptive_calibration_error"):
        contenders["torch-uncertainty"] = lambda: _fed(
            tu.MulticlassAdaptiveCalibrationError(classes, n_bins=15), z.softmax(dim=1), y
        )
    race(f"equal mass, 15 bins, N = {rows:,}, K = {classes}", contenders, rounds=rounds)


def classwise(rows: int, classes: int, *, rounds: int) -> None:
    z, y = random_logits(rows, classes)
    contenders: dict[str, Contender] = {"calibrant": lambda: ClasswiseECE()(Predictions.from_logits(z, y))}
    if tu := torch_uncertainty("classwise_calibration_error"):
        contenders["torch-uncertainty"] = lambda: _fed(tu.ClasswiseCalibrationError(classes, 15), z.softmax(dim=1), y)
    race(f"classwise, 15 bins, N = {rows:,}, K = {classes}", contenders, rounds=rounds)


def _fed(metric: Any, p: torch.Tensor, y: torch.Tensor) -> object:
    metric.update(p, y)
    return metric.compute()


def smooth(rows: int, *, rounds: int) -> None:
    z, y = random_logits(rows, 10)
    data = Predictions.from_logits(z, y)
    p, hit = data.confidence.numpy(), data.correct.double().numpy()
    labels = data.correct.long()
    contenders: dict[str, Contender] = {"calibrant": lambda: SmoothECE()(BinaryPairs.from_probs(p, labels))}
    if relplot := optional("relplot.metrics"):
        contenders["relplot"] = lambda: relplot.smECE(p, hit)
    if probcal := optional("probcal.metrics"):
        contenders["probcal"] = lambda: probcal.smooth_ece(hit, p)
    race(f"smooth ECE, N = {rows:,}, from confidences", contenders, rounds=rounds)


def uncertainty(rows: int, *, rounds: int) -> None:
    z, y = random_logits(rows, 10)
    contenders: dict[str, Contender] = {
        "compare, 4 metrics, 1,000 paired draws": lambda: compare(
            Predictions.from_logits(z, y), Predictions.from_logits(z * 0.8, y)
        ),
        "panel with intervals and null levels": lambda: panel(Predictions.from_logits(z, y)),
    }
    race(f"uncertainty, N = {rows:,}, K = 10", contenders, rounds=min(rounds, 3))


def large() -> None:
    rows = 10_000_000
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(rows, generator=generator, dtype=torch.float64)
    table = ECE().cells(BinaryPairs(p, torch.zeros_like(p))).table()
    exact = math.fsum(p.tolist())
    print(f"\nN = 10⁷: relative error of the summed confidences {abs(float(table.sum_p.sum()) - exact) / exact:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--large", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    equal_width(1_000_000, 10, rounds=chosen.rounds)
    equal_width(100_000, 1000, rounds=chosen.rounds)
    equal_mass(1_000_000, 10, rounds=chosen.rounds)
    classwise(100_000, 100, rounds=min(3, chosen.rounds))
    for rows in (100_000, 1_000_000):
        smooth(rows, rounds=chosen.rounds)
    uncertainty(10_000, rounds=chosen.rounds)
    if chosen.large:
        large()


if __name__ == "__main__":
    main()
