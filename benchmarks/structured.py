"""Structured matrix scaling beside probmetrics in one process: time, penalised objective, test log-loss.

    python -m benchmarks.structured --data ../shared/data --rounds 3

Both minimise mean log-loss + K/N · (Σ v² + Σ b²) + K(K−1)/N · Σ M² after a temperature mixed with 1 / (N + 1) of the
uniform. The objective is computed here, from each one's answer on the same inputs, so that neither judges itself.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators import StructuredMatrixScaling, TemperatureMixture


def objective(x: Tensor, y: Tensor, scale: Tensor, bias: Tensor) -> float:
    """Return the penalised log-loss of softmax(scale · x + bias)."""
    rows, classes = x.shape
    deviation = scale - torch.eye(classes, dtype=torch.float64)
    single = float((deviation.diagonal() ** 2).sum())
    off = float((deviation**2).sum()) - single
    loss = float(torch.nn.functional.cross_entropy(x @ scale.T + bias, y))
    rate = classes / rows
    return loss + rate * (single + float((bias**2).sum())) + rate * (classes - 1) * off


def ours(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return our scale and bias."""
    fitted = StructuredMatrixScaling().fit(z, y)
    return fitted.scale, fitted.bias


def theirs(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return probmetrics' scale and bias; its own temperature step is inside, as ours is."""
    from probmetrics.calibrators.logistic import SMSCalibrator

    fitted = SMSCalibrator(opt="bfgs", print_init_info=False)
    fitted.fit(torch.softmax(z.double(), 1).numpy(), y.numpy())
    return torch.from_numpy(fitted.W_[:, :-1]).double(), torch.from_numpy(fitted.W_[:, -1]).double()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| set | ours, CPU s | probmetrics, CPU s | ratio | ours, objective | probmetrics | test log-loss, ours | probmetrics |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in ("cifar100-wideresnet16x4", "cifar100-lenet5"):
        with np.load(options.data / "logits" / f"{name}.npz") as file:
            z, y, test, labels = (
                torch.from_numpy(file[f"{s}_{k}"]) for s in ("val", "test") for k in ("logits", "labels")
            )
        seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
        found = {}
        for _ in range(options.rounds):
            for who, fit in (("ours", ours), ("theirs", theirs)):
                start = time.process_time()
                found[who] = fit(z, y)
                seconds[who].append(time.process_time() - start)
        mixture = TemperatureMixture().fit(z, y)
        x, fresh = mixture(z.double()), mixture(test.double())
        medians = [float(np.median(seconds[who])) for who in ("ours", "theirs")]
        values = [objective(x, y, *found[who]) for who in ("ours", "theirs")]
        tests = [
            float(torch.nn.functional.cross_entropy(fresh @ scale.T + bias, labels)) for scale, bias in found.values()
        ]
        print(
            f"| {name} | {medians[0]:.2f} | {medians[1]:.2f} | {medians[1] / medians[0]:.1f} | {values[0]:.7f} | "
            f"{values[1]:.7f} | {tests[0]:.4f} | {tests[1]:.4f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
