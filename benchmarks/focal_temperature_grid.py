"""The focal temperature grid as one would write it in NumPy, and Calibrant's exact search beside it.

    python -m benchmarks.focal_temperature_grid            # ratios; ties together and log-loss; the same answer is checked

The plain version is the reference: every (γ, T) is evaluated on all rows and classes, with the same rules (ties stay
together; of equal values the smallest |γ|, then the T closest to 1).
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.calibrators import load_set
from calibrant.binning import EqualMass
from calibrant.calibrators import FocalTemperatureScaling
from calibrant.calibrators.focal.focal_search import Best, FocalGrid, Search
from calibrant.rows import MemoryRows

GAMMAS = [*FocalTemperatureScaling.published, 0.0]
TEMPERATURES = [i / 100 for i in range(1, 501)]
Array = np.ndarray[Any, Any]


def focal_log_probs(logits: Array, gamma: float, temperature: float) -> Array:
    """Return log p (N, K) of the focal map at softmax(z / T), vectorised, in float64, right on saturated rows."""
    z = logits / temperature
    z = z - z.max(axis=1, keepdims=True)
    e = np.exp(z)
    total = e.sum(axis=1, keepdims=True)
    rows, top = np.arange(len(z)), z.argmax(axis=1)
    others = e.copy()
    others[rows, top] = 0
    rest = others.sum(axis=1)
    q = e / total
    not_q = 1 - q
    not_q[rows, top] = rest / total[:, 0]
    log_q = z - np.log(total)
    log_q[rows, top] = np.log1p(-not_q[rows, top])
    with np.errstate(divide="ignore", invalid="ignore"):
        u = np.where(not_q < 1e-8, 1 - not_q / 2, -q * log_q / not_q)
        log_h = log_q - gamma * np.log(np.maximum(not_q, 1e-300)) - np.log1p(gamma * u)
    log_h -= log_h.max(axis=1, keepdims=True)
    return log_h - np.log(np.exp(log_h).sum(axis=1, keepdims=True))


def equal_mass_error(confidence: Array, correct: Array, bins: int = 15) -> float:
    """Return the ECE over bins of equal mass with ties together."""
    order = np.argsort(confidence, kind="stable")
    p, y = confidence[order], correct[order]
    starts = np.cumsum([0, *(len(part) for part in np.array_split(p, bins))])[:-1]
    index = np.searchsorted(starts, np.searchsorted(p, p, side="left"), side="right") - 1
    gap = np.bincount(index, weights=p - y, minlength=bins)
    return float(np.abs(gap).sum() / len(p))


def plain(logits: Array, labels: Array, *, ece: bool, temperatures: list[float]) -> Best:
    """Return the best of every pair."""
    rows = np.arange(len(labels))
    correct = (logits.argmax(axis=1) == labels).astype(float)
    found = []
    for gamma in GAMMAS:
        for temperature in temperatures:
            log_p = focal_log_probs(logits, gamma, temperature)
            if ece:
                value = equal_mass_error(np.exp(log_p.max(axis=1)), correct)
            else:
                value = float(-log_p[rows, labels].mean())
            found.append(Best(value, gamma, temperature))
    return min(found, key=Best.least_change)


def seconds(work: Callable[[], Best]) -> tuple[float, Best]:
    """Return CPU seconds and the result."""
    start = time.process_time()
    found = work()
    return time.process_time() - start, found


def measure(name: str, *, ece: bool, rounds: int, every: int) -> None:
    """Print the ratio of medians for one set; the plain side takes every ``every``-th T and is scaled up."""
    logits, labels = load_set(name)["val"]
    wide = logits.double().numpy()
    times: list[tuple[float, float]] = []
    best = Best(math.nan, math.nan, math.nan)
    for _ in range(rounds):
        part, _ = seconds(lambda: plain(wide, labels.numpy(), ece=ece, temperatures=TEMPERATURES[::every]))
        full, best = seconds(
            lambda: Search(
                FocalGrid(MemoryRows.of(logits, labels), EqualMass(15) if ece else None), Best.least_change
            ).best(GAMMAS, TEMPERATURES)
        )
        times.append((part * len(TEMPERATURES) / len(TEMPERATURES[::every]), full))
    slow, fast = (statistics.median(column) for column in zip(*times, strict=True))
    kind = "ECE" if ece else "NLL"
    print(f"{name:26s} {kind}  plain {slow:6.1f} s  exact search {fast:5.2f} s  ratio {slow / fast:5.1f}  {best}")


def main() -> None:
    """Measure from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="*", default=["cifar100-wideresnet16x4", "cifar10-resnet110"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--every", type=int, default=1, help="time the plain side on every n-th T only, and scale")
    parser.add_argument(
        "--check", action="store_true", help="run the plain side on all pairs once; compare the answers"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.sets:
        for ece in (True, False):
            measure(name, ece=ece, rounds=arguments.rounds, every=arguments.every)
            if arguments.check:
                check(name, ece=ece)


def check(name: str, *, ece: bool) -> None:
    """Print whether both find the same pair."""
    logits, labels = load_set(name)["val"]
    expected = plain(logits.double().numpy(), labels.numpy(), ece=ece, temperatures=TEMPERATURES)
    search = Search(FocalGrid(MemoryRows.of(logits, labels), EqualMass(15) if ece else None), Best.least_change)
    got = search.best(GAMMAS, TEMPERATURES)
    same = (got.gamma, got.temperature) == (expected.gamma, expected.temperature)
    print(f"    same pair: {same}; values differ by {abs(got.value - expected.value):.1e}")


if __name__ == "__main__":
    main()
