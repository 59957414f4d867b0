"""What the losses' checks of their input cost: CPU time of the checks beside that of the whole loss, at 4096 × 1000.

Run ``python -m benchmarks.loss_checks``. Checks and losses take turns in one process, one thread; the checks are called
twenty times a turn, since one call is shorter than the clock can tell, and medians are compared.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch

from calibrant import losses
from calibrant._objective.batch import check_pair, check_range

ROWS, CLASSES, ROUNDS, CALLS = 4096, 1000, 15, 20
NAMES = ("CrossEntropyLoss", "FocalLoss", "BrierLoss", "LabelSmoothingLoss", "DualFocalLoss", "MDCALoss", "MMCELoss")
MAKE = {"LabelSmoothingLoss": lambda: losses.LabelSmoothingLoss(0.1), "FocalLoss": lambda: losses.FocalLoss(3.0)}


def seconds(call: Callable[[], object]) -> float:
    """Return the CPU time of one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> int:
    """Print each loss with the share of its forward pass that the checks of hard labels take, in per cent."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(ROWS, CLASSES, generator=generator)
    labels = torch.randint(CLASSES, (ROWS,), generator=generator)

    def checks() -> None:
        for _ in range(CALLS):
            check_pair(logits, labels)
            check_range(labels, classes=CLASSES, ignore_index=-100)

    made = {name: MAKE.get(name, getattr(losses, name))() for name in NAMES}
    times: dict[str, list[float]] = {name: [] for name in made}
    checked = []
    for _ in range(ROUNDS):
        checked.append(seconds(checks) / CALLS)
        for name, loss in made.items():
            times[name].append(seconds(lambda loss=loss: loss(logits, labels)))  # type: ignore[misc]
    share = statistics.median(checked)
    for name, found in times.items():
        whole = statistics.median(found)
        sys.stdout.write(f"{name:22} {1e3 * whole:8.2f} ms, checks {1e3 * share:.3f} ms: {100 * share / whole:.2f} %\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
