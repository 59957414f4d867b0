"""What each objective does to calibration, before and after temperature scaling, on the digits of scikit-learn.

Five folds, so that each of the 1,797 images is tested once; pixels in [0, 1] with fixed Gaussian noise of .22 on all;
400 images to train and 400 to validate from the other folds; a network 64-128-128-10, SGD .05 with momentum .9, batch
32, 100 epochs. The temperature is fitted to the validation images of each fold. Nothing is tuned on test images.

    python -m benchmarks.loss_effects --seeds 3 --processes 2
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context

import torch
from sklearn.datasets import load_digits

from calibrant import Predictions, losses, metrics
from calibrant.calibrators import TemperatureScaling

FOLDS, TRAIN, NOISE, EPOCHS, BATCH, RATE = 5, 400, 0.22, 100, 32, 0.05
OBJECTIVES: dict[str, Callable[[], torch.nn.Module]] = {
    "CrossEntropyLoss()": losses.CrossEntropyLoss,
    "LabelSmoothingLoss(.05, spread='others')": lambda: losses.LabelSmoothingLoss(0.05, spread="others"),
    "BrierLoss()": losses.BrierLoss,
    "MMCELoss()": losses.MMCELoss,
    "MMCELoss(normalisation='torrvision')": lambda: losses.MMCELoss(normalisation="torrvision"),
    "FocalLoss(1)": lambda: losses.FocalLoss(1.0),
    "FocalLoss(3)": lambda: losses.FocalLoss(3.0),
    "FocalLoss(3, detach_weight=True)": lambda: losses.FocalLoss(3.0, True),
    "ScheduledFocalLoss((5, 3, 1), (30, 70))": lambda: losses.ScheduledFocalLoss((5.0, 3.0, 1.0), (30, 70)),
    "SampleDependentFocalLoss()": losses.SampleDependentFocalLoss,
    "AdaFocalLoss()": losses.AdaFocalLoss,
    "InverseFocalLoss(1)": lambda: losses.InverseFocalLoss(1.0),
    "InverseFocalLoss(3)": lambda: losses.InverseFocalLoss(3.0),
    "ProperFocalLoss(3)": lambda: losses.ProperFocalLoss(3.0),
    "LpNormLoss(.01)": lambda: losses.LpNormLoss(0.01),
    "EntropyRegularizedLoss(.1)": lambda: losses.EntropyRegularizedLoss(0.1),
    "DualFocalLoss()": losses.DualFocalLoss,
    "BSCELoss()": losses.BSCELoss,
    "MDCALoss()": losses.MDCALoss,
    "MarginLabelSmoothingLoss(.1, 6)": lambda: losses.MarginLabelSmoothingLoss(0.1, margin=6.0),
    "ACLSLoss(.1, 6)": lambda: losses.ACLSLoss(0.1, margin=6.0),
    "FocalCalibrationLoss()": losses.FocalCalibrationLoss,
    "SoftBinnedECELoss()": losses.SoftBinnedECELoss,
}


@dataclass(frozen=True)
class Outcome:
    """Figures over all test images of one seed; the temperature is the mean over folds."""

    error: float
    nll: float
    ece: float
    temperature: float
    nll_after: float
    ece_after: float


def trained(
    loss: torch.nn.Module, train: Sequence[torch.Tensor], validation: Sequence[torch.Tensor]
) -> torch.nn.Module:
    """Return the network after all epochs. MMCE takes larger batches and a lower rate, without which it breaks."""
    layers = [torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(128, 10))
    batch, rate, epochs = (100, 0.01, 200) if isinstance(loss, losses.MMCELoss) else (BATCH, RATE, EPOCHS)
    optimiser = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    images, labels = train
    for epoch in range(epochs):
        if isinstance(loss, losses.ScheduledFocalLoss):
            loss.set_epoch(epoch)
        for rows in torch.randperm(len(labels)).split(batch):
            optimiser.zero_grad()
            loss(model(images[rows]), labels[rows]).backward()
            optimiser.step()
        if isinstance(loss, losses.AdaFocalLoss):
            with torch.no_grad():
                loss.update(Predictions.from_logits(model(validation[0]), validation[1]))
    return model


def outcome(task: tuple[str, int]) -> Outcome:
    """Return the figures of one objective and seed."""
    name, seed = task
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    digits = load_digits()
    labels = torch.tensor(digits.target)
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    images += NOISE * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    fold = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1)) % FOLDS
    before, after, temperatures = [], [], []
    for test in range(FOLDS):
        rest = torch.nonzero(fold != test)[:, 0]
        rest = rest[torch.randperm(len(rest), generator=torch.Generator().manual_seed(2))]
        train, validation = rest[:TRAIN], rest[TRAIN : 2 * TRAIN]
        model = trained(OBJECTIVES[name](), (images[train], labels[train]), (images[validation], labels[validation]))
        with torch.no_grad():
            kept, judged = model(images[validation]), model(images[fold == test])
        scaling = TemperatureScaling().fit(kept, labels[validation])
        before.append(Predictions.from_logits(judged, labels[fold == test]))
        after.append(before[-1].calibrated_by(scaling))
        temperatures.append(float(scaling.temperature))
    raw, scaled = Predictions.cat(before), Predictions.cat(after)
    nll, ece = metrics.NLL(), metrics.ECE()
    return Outcome(metrics.Error()(raw), nll(raw), ece(raw), statistics.mean(temperatures), nll(scaled), ece(scaled))


def main() -> None:
    """Read the arguments and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", default="", help="a part of the names")
    arguments = parser.parse_args()
    names = [name for name in OBJECTIVES if arguments.only in name]
    tasks = [(name, seed) for name in names for seed in range(arguments.seeds)]
    with get_context("spawn").Pool(arguments.processes) as pool:
        outcomes = pool.map(outcome, tasks, chunksize=1)
    print(
        "| objective | error % | NLL | ECE % | T | NLL at T | ECE % at T |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    for name in names:
        mine = [found for task, found in zip(tasks, outcomes, strict=True) if task[0] == name]

        def spread(field: str, scale: float = 1.0, mine: list[Outcome] = mine) -> str:
            values = [scale * getattr(one, field) for one in mine]
            more = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            return f"{statistics.mean(values):.2f}{more}"

        cells = [spread("error", 100), spread("nll"), spread("ece", 100), spread("temperature"), spread("nll_after")]
        print(f"| `{name}` | {' | '.join([*cells, spread('ece_after', 100)])} |")


if __name__ == "__main__":
    main()
