"""Draws the pictures of docs/concepts: ``python docs/figures/concepts.py`` from a checkout, about two minutes.

``do-no-harm`` reads ``logits/cifar10-resnet110.npz`` from ``$CALIBRANT_DATA`` or ``../shared/data``, and ``speed`` the records of
the races; the others need no data.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import calibrant
from calibrant import Pairs, Predictions
from calibrant.calibrators import AutoCalibrator, IsotonicCalibration, MatrixScaling, TemperatureScaling, VectorScaling
from calibrant.losses import FocalLoss
from calibrant.metrics import ECE, NLL
from calibrant.statistics import null_band

INK, FAINT, GRID = "#1b1f24", "#767f89", "#d9dee3"
COLOURS = ("#1f6fb5", "#c2410c", "#8a5a00", "#3f7d3a", "#7b4fa0")


def axes(figure: Figure, place: Any = 111) -> Any:
    """Return axes in the house style, legible on white."""
    ax = figure.add_subplot(place)
    ax.grid(True, color=GRID, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(colors=FAINT, labelcolor=INK, labelsize=8, length=3)
    for spine in ax.spines.values():
        spine.set(color=FAINT, linewidth=0.6)
    return ax


def notions() -> Figure:
    """Draw the rows of one model with confidence 60 %: together, by predicted class, and by the whole probability vector."""
    figure = Figure(figsize=(7.2, 2.7), layout="constrained")
    looks = [
        ("all rows with confidence 60 %", [("accuracy 60 %", 0.6)]),
        ("… by predicted class", [("A: 70 %", 0.7), ("B: 50 %", 0.5)]),
        ("… by probability vector", [(".6 .3 .1:  80 %", 0.8), (".6 .1 .3: 60 %", 0.6), ("B, both: 50 %", 0.5)]),
    ]
    for place, (title, dots) in enumerate(looks):
        ax = axes(figure, 131 + place)
        ax.plot([0.35, 0.9], [0.35, 0.9], color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
        for text, right in dots:
            good = abs(right - 0.6) < 1e-9
            ax.plot(0.6, right, "o" if good else "D", color=COLOURS[0] if good else COLOURS[1], markersize=6)
            # above the diagonal to the left of the dot, else to its right: never across the line
            above = right > 0.6
            at = (0.57 if above else 0.63, right - (0.015 if good else 0))
            ax.annotate(text, at, fontsize=7.5, color=INK, va="center", ha="right" if above else "left")
        ax.set(xlim=(0.35, 0.9), ylim=(0.35, 0.9), xticks=[0.4, 0.6, 0.8], yticks=[0.4, 0.6, 0.8])
        ax.set_title(title, fontsize=9, color=INK)
        ax.set_xlabel("confidence", fontsize=9)
        if place == 0:
            ax.set_ylabel("accuracy", fontsize=9)
    return figure


def null_level() -> Figure:
    """Draw the ECE of perfectly calibrated models by number of rows."""
    figure = Figure(figsize=(5.2, 3.3), layout="constrained")
    ax = axes(figure)
    sizes = [100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000]
    for colour, (name, a, b) in zip(COLOURS, [("accuracy 95 %", 9.5, 0.5), ("accuracy 75 %", 3.0, 1.0)], strict=False):
        middle, high = [], []
        for n in sizes:
            share = (torch.arange(n, dtype=torch.float64) + 0.5) / n
            pairs = Pairs.from_probs(beta_quantile(share, a, b), torch.zeros(n, dtype=torch.int64))
            band = null_band(ECE(), pairs)
            middle.append(band.estimate)
            high.append(band.high)
        ax.plot(sizes, middle, color=colour, linewidth=1.6, label=name)
        ax.fill_between(sizes, middle, high, color=colour, alpha=0.18, linewidth=0)
    ax.set(xscale="log", yscale="log", xlabel="test rows", yticks=[0.002, 0.005, 0.01, 0.02, 0.05, 0.1])
    ax.set_yticklabels(["0.2 %", "0.5 %", "1 %", "2 %", "5 %", "10 %"])
    ax.set_ylabel("ECE if perfectly calibrated", fontsize=9)
    ax.minorticks_off()
    ax.legend(frameon=False, fontsize=8)
    return figure


def beta_quantile(share: Tensor, a: float, b: float) -> Tensor:
    """Return quantiles of a beta distribution."""
    from scipy.stats import beta

    return torch.from_numpy(beta.ppf(share.numpy(), a, b))


def temperature_by_epoch() -> Figure:
    """Draw the best temperature after each training epoch, by loss: the mean over three seeds, on noisy digits."""
    figure = Figure(figsize=(5.2, 3.3), layout="constrained")
    ax = axes(figure)
    losses: list[tuple[str, nn.Module]] = [
        ("cross-entropy", nn.CrossEntropyLoss()),
        ("focal, γ = 1", FocalLoss(1.0)),
        ("focal, γ = 3", FocalLoss(3.0)),
    ]
    epochs = torch.arange(1, 31).tolist()
    for colour, (name, loss) in zip(COLOURS, losses, strict=False):
        runs = torch.tensor([temperatures(loss, len(epochs), seed) for seed in range(3)])
        ax.plot(epochs, runs.mean(dim=0), color=colour, linewidth=1.6, label=name)
        ax.fill_between(epochs, runs.amin(dim=0), runs.amax(dim=0), color=colour, alpha=0.15, linewidth=0)
    ax.axhline(1, color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
    ax.set_xlabel("epoch", fontsize=9)
    ax.set_ylabel("best temperature on validation data", fontsize=9)
    ax.legend(frameon=False, fontsize=8)
    return figure


def temperatures(loss: nn.Module, epochs: int, seed: int) -> list[float]:
    """Train a small network on noisy digits; return the fitted temperature after each epoch."""
    from sklearn.datasets import load_digits

    torch.manual_seed(seed)
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels))
    x = (torch.tensor(images).float() / 16)[order]
    x, y = x + 0.4 * torch.randn_like(x), torch.tensor(labels)[order]
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    found = []
    for _ in range(epochs):
        for rows in torch.randperm(800).split(64):
            optimizer.zero_grad()
            loss(net(x[rows]), y[rows]).backward()
            optimizer.step()
        found.append(TemperatureScaling().fit(net(x[800:]).detach(), y[800:]).temperature)
    return found


def do_no_harm() -> Figure:
    """Change of test log-loss by the number of validation rows, on CIFAR-10, ResNet-110: mean of five samples."""
    folder = Path(os.environ.get("CALIBRANT_DATA", Path(__file__).parents[3] / "shared" / "data"))
    file = folder / "logits" / "cifar10-resnet110.npz"
    val, test = calibrant.read(file, split="val"), calibrant.read(file, split="test")
    assert isinstance(val, Predictions)
    assert isinstance(test, Predictions)
    # calibrated first: what is left to gain is little, what there is to lose is not
    scaling = TemperatureScaling().fit(val.logits, val.require_labels())
    val, test = val.calibrated_by(scaling, allow_fit_rows=True), test.calibrated_by(scaling)
    figure = Figure(figsize=(7.2, 3.3), layout="constrained")
    ax = axes(figure)
    sizes = [50, 100, 200, 500, 1000, 2000, 5000]
    start = NLL()(test)
    methods: list[Callable[[], Any]] = [
        TemperatureScaling,
        VectorScaling,
        MatrixScaling,
        IsotonicCalibration,
        AutoCalibrator,
    ]
    for colour, method in zip(COLOURS, methods, strict=True):
        changes = [_change(method, val, test, n) - start for n in sizes]
        wide = 2.6 if method is AutoCalibrator else 1.3
        ax.plot(sizes, changes, "o-", color=colour, linewidth=wide, markersize=3, label=method.__name__)
    ax.axhline(0, color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
    ax.set(xscale="log", xlabel="validation rows")
    ax.set_yscale("symlog", linthresh=0.01)
    ax.set_ylabel("change of test log-loss (below 0: gain)", fontsize=9)
    ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _change(method: Callable[[], Any], val: Predictions, test: Predictions, n: int) -> float:
    total = 0.0
    for seed in range(5):
        rows = torch.randperm(len(val), generator=torch.Generator().manual_seed(seed))[:n]
        total += NLL()(test.calibrated_by(method().fit(val.logits[rows], val.require_labels()[rows])))
    return total / 5


def speed() -> Figure:
    """Draw the time of the fastest other library divided by ours, with its interval, for each race on one thread."""
    folder = Path(__file__).parents[2] / "benchmarks" / "records"
    races = [
        race
        for family in ("metrics", "calibrators", "losses", "report")
        for race in json.loads((folder / f"bench-{family}.json").read_text())["records"]
        if race["threads"] == 1 and any(one["role"] == "peer" for one in race["contenders"])
    ]
    figure = Figure(figsize=(7.2, 0.2 * len(races) + 0.8), layout="constrained")
    ax = axes(figure)
    for height, race in enumerate(reversed(races)):
        peer = min((one for one in race["contenders"] if one["role"] == "peer"), key=lambda one: one["ratio"][0])
        times, low, high = (peer["ratio"] * 3)[:3]  # a race that is timed once has no interval
        colour = COLOURS[0] if times >= 1 else COLOURS[1]
        ax.plot([low, high], [height, height], color=colour, linewidth=1.2)
        ax.plot(times, height, "o" if times >= 1 else "D", color=colour, markersize=4)
    names = [f"{race['title'].split(', fitted and')[0]}, {race['rows']:,} × {race['classes']:,}" for race in races]
    ax.set_yticks(range(len(races)), list(reversed(names)), fontsize=7)
    ax.set(xscale="log", xticks=[0.2, 0.5, 1, 2, 5, 10, 20, 50], ylim=(-1, len(races)))
    ax.set_xticklabels(["0.2", "0.5", "1", "2", "5", "10", "20", "50"])
    ax.minorticks_off()
    ax.axvline(1, color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
    ax.set_xlabel("fastest other library's time / Calibrant's time", fontsize=8)
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "notions": notions,
    "null-level": null_level,
    "temperature-by-epoch": temperature_by_epoch,
    "do-no-harm": do_no_harm,
    "speed": speed,
}


def draw(name: str, folder: Path) -> Path:
    """Write one picture as an SVG that is the same at each run."""
    import matplotlib

    path = folder / f"{name}.svg"
    with matplotlib.rc_context({"svg.hashsalt": "calibrant", "svg.fonttype": "path"}):
        FIGURES[name]().savefig(path, metadata={"Date": None, "Creator": None})
    return path


if __name__ == "__main__":
    out = Path(__file__).parent / "concepts"
    out.mkdir(exist_ok=True)
    for wanted in sys.argv[1:] or FIGURES:
        draw(wanted, out)
