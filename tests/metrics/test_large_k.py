"""Measures and a temperature at K = 128,256: no copy of the logits, and what is computed sparsely equals the dense."""

import math
import subprocess
import sys

import pytest
import torch

from calibrant import Predictions
from calibrant.metrics import NLL, Brier

SCRIPT = """
import sys, torch
from calibrant import Predictions
from calibrant.calibrators import TemperatureScaling
from calibrant.evaluate import default_metrics

def resident(key):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(key))

rows, classes, dtype = 512, 128_256, getattr(torch, sys.argv[1])
few = Predictions.from_logits(torch.randn(50, 7), torch.randint(7, (50,)))
for data in (few, *(Predictions.from_logits(torch.randn(2000, k).to(dtype), torch.randint(k, (2000,))) for k in (100, 200))):
    for metric in default_metrics(few):  # compiles or loads the loops, for few and for many classes
        metric(data)
    TemperatureScaling().fit(data.logits, data.labels)
generator = torch.Generator().manual_seed(0)
logits = torch.empty(rows, classes, dtype=dtype)
for start in range(0, rows, 32):
    logits[start : start + 32] = 3 * torch.randn(32, classes, generator=generator)
labels = torch.randint(classes, (rows,), generator=generator)
for row in range(0, rows, 2):
    labels[row] = logits[row].argmax()

def extra(work):
    found = []
    for _ in range(2):  # the least: a machine that takes pages back gives them again while something is measured
        open("/proc/self/clear_refs", "w").write("5")  # the high-water mark starts anew
        before = resident("VmRSS")
        work()
        found.append(resident("VmHWM") - before)
    return min(found)

print("from_logits", extra(lambda: Predictions.from_logits(logits, labels)))
for metric in default_metrics(few):
    data = Predictions.from_logits(logits, labels)
    print(type(metric).__name__, extra(lambda: metric(data)))
print("fit", extra(lambda: TemperatureScaling().fit(logits, labels)))
fitted = TemperatureScaling().fit(logits, labels)
print("apply", extra(lambda: fitted(logits)) - logits.numel() * logits.itemsize // 2**20)
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_nothing_of_the_size_of_the_logits_is_made(dtype: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, dtype], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    extra = {line.split()[0]: int(line.split()[1]) for line in done.stdout.splitlines()}
    assert len(extra) >= 12
    tables = 3 * 8 * 15 * 128_256 >> 20  # the sums of ClasswiseECE are one number a class and bin
    assert extra.pop("ClasswiseECE") < 2 * tables + 64
    assert max(extra.values()) < 40, extra  # MiB; the logits are 125 or 250


def test_a_row_longer_than_a_chunk_by_hand() -> None:
    # all of 300,000 classes equal: p = 1/K, so the log-loss is log K and the Brier score 1 − 1/K
    data = Predictions.from_logits(torch.zeros(3, 300_000), torch.tensor([0, 7, 299_999]))
    assert NLL()(data) == pytest.approx(math.log(300_000), rel=1e-12)
    assert Brier()(data) == pytest.approx(1 - 1 / 300_000, rel=1e-9)
    assert data.correct.tolist() == [True, False, False]  # the first of equal ones is the decision
