"""Figures of distributions: reliability, largest logits, and detection of out-of-distribution data."""

from collections.abc import Sequence

import torch
from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.metrics import ECE, ood_roc
from calibrant.study.figures._curves import by_objective
from calibrant.study.figures._panels import Bars, Line, Plot, Reliability
from calibrant.study.measures import quietly
from calibrant.study.recipe import FigureSpec
from calibrant.study.store import Store
from calibrant.study.tables import Measured

BARS = 40
POINTS = 200  # points of a ROC curve


def reliability(spec: FigureSpec, items: Sequence[Measured], store: Store) -> list[Reliability]:
    """Return two diagrams for each objective's first seed: uncalibrated and at T."""
    panels = []
    for label, runs in by_objective(items):
        for words, rows in (("", runs[0].before), (f" at T = {runs[0].fits.value('temperature'):.2f}", runs[0].after)):
            panels.append(Reliability(f"{label}{words}\nECE {100 * ECE()(rows):.2f} %", rows))
    return panels


def logits(spec: FigureSpec, items: Sequence[Measured], store: Store) -> list[Bars]:
    """Return the largest logits of training samples of an objective's first seed, by the epoch at which they were learned."""
    found = []
    for label, runs in by_objective(items):
        largest = torch.cat([store.max_logits(recipe) for recipe in runs[0].recipes]).double()
        since = torch.cat([store.learned_epochs(recipe) for recipe in runs[0].recipes])
        epochs = max(entry["epoch"] for entry in store.trajectory(runs[0].recipes[0]))
        found.append((label, largest, since, epochs))
    if not found:
        return []
    low = min(float(torch.quantile(largest, 0.001)) for _, largest, _, _ in found)
    high = max(float(torch.quantile(largest, 0.999)) for _, largest, _, _ in found)
    edges = torch.linspace(low, high, BARS + 1, dtype=torch.float64)
    return [
        Bars(
            label,
            "largest logit",
            "training samples",
            tuple(edges.tolist()),
            _by_learned(largest, since, epochs, edges),
        )
        for label, largest, since, epochs in found
    ]


def _by_learned(
    largest: Tensor, since: Tensor, epochs: int, edges: Tensor
) -> tuple[tuple[str, tuple[float, ...]], ...]:
    third = max(1, round(epochs / 3))
    groups = [
        (f"right since epoch ≤ {third}", (since > 0) & (since <= third)),
        (f"≤ {2 * third}", (since > third) & (since <= 2 * third)),
        (f"≤ {epochs}", since > 2 * third),
        ("wrong at the end", since == 0),
    ]
    counts = [(label, torch.histogram(largest[rows], bins=edges).hist) for label, rows in groups]
    return tuple((label, tuple(count.tolist())) for label, count in counts)


def ood(spec: FigureSpec, items: Sequence[Measured], store: Store) -> list[Plot]:
    """Return the ROC curves of detecting each out-of-distribution set by entropy, with and without temperature."""
    first = [
        (label, runs[0], [store.load(recipe).ood for recipe in runs[0].recipes]) for label, runs in by_objective(items)
    ]
    names = dict.fromkeys(name for _, _, outside in first for name in outside[0])
    panels = []
    for name in names:
        for words, calibrated in (("without temperature", False), ("at T", True)):
            lines = tuple(
                _roc(label, run, [sets[name] for sets in outside], calibrated=calibrated)
                for label, run, outside in first
                if name in outside[0]
            )
            title = f"{name.replace('-', ' ')}, {words}"
            panels.append(Plot(title, "test data taken for outside %", "outside found %", lines, diagonal=True))
    return panels


def _roc(label: str, run: Measured, outside: Sequence[Predictions], *, calibrated: bool) -> Line:
    inside = run.after if calibrated else run.before
    if calibrated:
        with quietly():
            calibrators = run.fits.calibrators("at_t")
            outside = [rows.calibrated_by(fitted) for rows, fitted in zip(outside, calibrators, strict=True)]
    curve = ood_roc(inside, Predictions.cat(list(outside)))
    steps = torch.linspace(0, len(curve.threshold) - 1, min(POINTS, len(curve.threshold))).round().long()
    x, y = curve.false_positive[steps], curve.true_positive[steps]
    return Line(f"{label} ({curve.area:.3f})", tuple((100 * x).tolist()), tuple((100 * y).tolist()))
