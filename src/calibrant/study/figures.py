"""Computes the numbers in a study's figures from its stored runs; ``study.draw`` draws the figures."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from calibrant._core.warn import warn_user
from calibrant.binning import EqualWidth
from calibrant.data.predictions import Predictions
from calibrant.errors import CalibrantError, InputError
from calibrant.metrics import ECE, ood_roc
from calibrant.study.build import make_loss
from calibrant.study.measures import (
    MEASURES,
    Measured,
    Run,
    calibrate_folds,
    geometric_mean,
    mean_or_nan,
    temperatures_along,
)
from calibrant.study.panels import Bars, Drawing, Line, Panel, Plot, Reliability
from calibrant.study.recipe import FigureSpec, Study
from calibrant.study.tables import grouped

Groups = Mapping[str, Sequence[Measured]]  # maps each objective to its runs, one per seed, in the order of the study
SPLITS = {"train": "training data", "validation": "validation data", "test": "test data"}
NAMES = {
    "nll": "log-loss", "nll_correct": "log-loss if correct", "nll_wrong": "log-loss if misclassified",
    "entropy": "entropy", "entropy_correct": "entropy if correct", "entropy_wrong": "entropy if misclassified",
    "error": "error", "ece": "ECE", "ece_mass": "equal-mass ECE", "ece_at_t": "ECE at T", "nll_at_t": "log-loss at T",
    "temperature": "best T", "ece_at_own_t": "ECE at its own best T", "optimal_ece": "optimal ECE (oracle)",
    "optimal_temperature": "T of the optimal ECE (oracle)",
    "classifier_norm": "norm of the last layer", "loss": "training loss",
}  # fmt: skip
FRACTIONS = {"error", "ece", "ece_mass", "ece_at_t", "ece_at_own_t", "optimal_ece"}
FAMILIES = {
    "LabelSmoothingLoss": "label smoothing", "LpNormLoss": "norm of the logits", "FocalLoss": "focal loss",
    "InverseFocalLoss": "inverse focal loss", "Training": "",
}  # fmt: skip
SYMBOLS = {"weight_decay": "weight decay", "smoothing": "smoothing", "strength": "coefficient", "gamma": "γ"}
PLAIN = "CrossEntropyLoss"  # the loss that every family of losses is at strength 0
SIZES = (25, 50, 100, 200, 400, 800, 1600, 3200, 6400)  # sizes of the subsets of validation samples
DRAWS = 5  # number of subsets of each size
GAMMAS = (-0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 2.0, 3.0, 5.0)
BINS = (0, 7, 14)  # indices of the bins of 15 that a figure of kind "bins" shows
BARS = 40
ROC_POINTS = 200


def drawings(study: Study, measured: Sequence[Measured]) -> list[Drawing]:
    """Return the figures of a study, one of each kind for each setting with finished runs.

    Figures that cannot be drawn are left out, with a warning that names them.

    Args:
        study: The study.
        measured: The result of ``collect``.

    Returns:
        The figures, in the order of the study.
    """
    places = list(dict.fromkeys(item.setting for item in measured))
    found = []
    for spec in study.figures:
        drawn = [item for item in measured if not spec.objectives or item.objective in spec.objectives]
        for place in [""] if spec.kind == "best" else places:
            items = [item for item in drawn if place in ("", item.setting)]
            try:
                made = KINDS[spec.kind](spec, grouped(items, lambda item: item.objective)) if items else []
            except CalibrantError as error:
                warn_user(f"the figure {spec.name!r} is left out: {error}", UserWarning)
                continue
            # a curve with one point shows nothing, and the tables already show what has finished so far
            panels = [one for one in made if not isinstance(one, Plot) or max(len(line.x) for line in one.lines) > 1]
            if panels:
                found.append(_drawing(spec, items, panels, place if len(places) > 1 else ""))
            elif items:
                warn_user(f"the figure {spec.name!r} is left out: its runs did not record what it shows", UserWarning)
    return found


def _drawing(spec: FigureSpec, items: Sequence[Measured], panels: Sequence[Panel], place: str) -> Drawing:
    """Return the figure with its caption; ``place`` is the setting's label if there are several settings."""
    seeds = len({item.seed for item in items})
    shown = f"{seeds} seed{'s' if seeds > 1 else ''}"
    if any(len(line.low) for panel in panels if isinstance(panel, Plot) for line in panel.lines):
        shown += "; bands from the smallest to the largest value over seeds"
    if spec.kind == "reliability":
        shown = "the first seed; darker bars contain more samples"
    after = f" After {spec.source}." if spec.source else ""
    where = ", ".join(dict.fromkeys(item.setting for item in items))
    return Drawing(
        "-".join([spec.name, *re.findall(r"\w+", place.lower())]),
        f"{spec.title}: {place}" if place else spec.title,
        f"{spec.title}.{after} {where}, {shown}.",
        panels,
        4 if spec.kind == "reliability" and len(panels) >= 4 else 0,
    )


def trajectory(spec: FigureSpec, groups: Groups) -> list[Plot]:
    """Return a panel for each entry of ``spec.panels``, with a curve for each objective and each key of the trajectory."""
    panels = []
    for places in spec.panels:
        pairs = [(place.rpartition(".")[0], place.rpartition(".")[2]) for place in places]
        # the title names the split that all curves share; otherwise each label names its own
        title = SPLITS.get(pairs[0][0], "") if len({split for split, _ in pairs}) == 1 else ""
        lines = []
        for label, runs in groups.items():
            for place, (split, name) in zip(places, pairs, strict=True):
                words = NAMES.get(name, name) if title else f"{NAMES.get(name, name)}, {SPLITS.get(split, '')}"
                shown = label if len(places) == 1 else words if len(groups) == 1 else f"{label}: {words}"
                lines.append(curve(shown, runs, place))
        if lines := with_points(lines):
            names = [name for _, name in pairs]
            what = " and ".join(dict.fromkeys(NAMES.get(name, name).split(" if ")[0] for name in names))
            percent = all(name in FRACTIONS for name in names)
            level = 1.0 if all("temperature" in name for name in names) else None
            panels.append(Plot(title, "epoch", f"{what} %" if percent else what, lines, percent=percent, level=level))
    return panels


def bins(spec: FigureSpec, groups: Groups) -> list[Plot]:
    """Return panels with confidence − accuracy on validation data for each bin, and a panel with AdaFocal's γ of the bins."""
    panels = []
    for index in BINS:
        lines = [curve(label, runs, f"validation.gaps_mass.{index}") for label, runs in groups.items()]
        panels.append(Plot(f"bin {index} of 15 of equal mass", "epoch", "confidence − accuracy %", lines, percent=True))
    every = [
        curve(f"γ of {label} in bin {index}", runs, f"loss_state.gammas.{index}")
        for label, runs in groups.items()
        for index in BINS
    ]
    # colours of their own, because the other panels use the first colours for objectives
    gammas = [replace(line, group=len(groups) + place) for place, line in enumerate(with_points(every))]
    if gammas:
        panels.append(Plot("γ of the bins", "epoch", "γ (below 0: inverse focal loss)", gammas, level=0.0))
    return panels


def learned(spec: FigureSpec, groups: Groups) -> list[Plot]:
    """Return a panel with the fraction of training samples that stay correctly classified from each epoch to the end."""
    lines = []
    for label, runs in groups.items():
        epochs = [entry["epoch"] for entry in runs[0].runs[0].trajectory]
        fractions = [
            [float(np.mean([((s > 0) & (s <= epoch)).double().mean() for s in since])) for epoch in epochs]
            for since in ([run.learned_epochs for run in one.runs] for one in runs)
        ]
        lines.append(line_of(label, epochs, zip(*fractions, strict=True)))
    return [Plot("correct from this epoch to the end", "epoch", "training samples %", lines, percent=True)]


def reliability(spec: FigureSpec, groups: Groups) -> list[Reliability]:
    """Return two reliability diagrams for each objective's first seed: uncalibrated, and at the T with the lowest validation ECE."""
    panels = []
    for label, runs in groups.items():
        first = runs[0]
        after = f" at T = {first.value('temperature_by_ece'):.2f} by ECE"
        for words, rows in (("", first.before), (after, first.after("by_ece"))):
            top = rows.top_label()
            title = f"{label}{words}\nECE {100 * ECE()(rows):.2f} %, 15 bins of equal width"
            panels.append(Reliability(title, EqualWidth(15).table(top.p, top.y)))
    return panels


def logits(spec: FigureSpec, groups: Groups) -> list[Bars]:
    """Return histograms of the training samples' largest logits for the first seed, grouped by when the samples were learned."""
    found = {}
    for label, runs in groups.items():
        folds = runs[0].runs
        since, epochs = torch.cat([run.learned_epochs for run in folds]), folds[0].trajectory[-1]["epoch"]
        third = max(1, round(epochs / 3))
        parts = {
            f"correct since epoch ≤ {third}": (since > 0) & (since <= third),
            f"≤ {2 * third}": (since > third) & (since <= 2 * third),
            f"≤ {epochs}": since > 2 * third,
            "misclassified at the end": since == 0,
        }
        found[label] = torch.cat([run.max_logits for run in folds]).double(), parts
    # the range leaves out outliers, a handful of which would leave most bars empty
    low = min(float(torch.quantile(largest, 0.001)) for largest, _ in found.values())
    high = max(float(torch.quantile(largest, 0.999)) for largest, _ in found.values())
    edges = torch.linspace(low, high, BARS + 1, dtype=torch.float64)
    counts = {
        label: {name: torch.histogram(largest[rows], bins=edges).hist for name, rows in parts.items()}
        for label, (largest, parts) in found.items()
    }
    # all panels have the same scale, so that their heights can be compared
    top = 1.05 * max(float(torch.stack([*parts.values()]).sum(dim=0).max()) for parts in counts.values())
    return [Bars(label, "largest logit", "training samples", edges, parts, top) for label, parts in counts.items()]


def ood(spec: FigureSpec, groups: Groups) -> list[Plot]:
    """Return panels with the ROC curves for detecting each out-of-distribution set by entropy, with and without temperature."""
    first = {label: runs[0] for label, runs in groups.items()}
    panels = []
    for name in dict.fromkeys(name for one in first.values() for name in one.runs[0].ood):
        for words, stage in (("without temperature", ""), ("at T by ECE", "by_ece")):
            lines = [_roc(label, one, name, stage) for label, one in first.items() if name in one.runs[0].ood]
            title = f"{name.replace('-', ' ')}, {words}"
            panels.append(Plot(title, "false positive rate %", "true positive rate %", lines, diagonal=100.0))
    return panels


def _roc(label: str, measured: Measured, name: str, stage: str) -> Line:
    """Return the ROC curve for detecting the out-of-distribution set ``name``, with its area in the label."""
    parts = [run.ood[name] for run in measured.runs]
    outside = calibrate_folds(parts, measured.calibrators(stage)) if stage else Predictions.cat(parts)
    curve = ood_roc(measured.after(stage), outside)
    # a vector drawing of every threshold would take megabytes
    steps = torch.linspace(0, len(curve.threshold) - 1, min(ROC_POINTS, len(curve.threshold))).round().long()
    return Line(f"{label} ({curve.area:.3f})", 100 * curve.false_positive[steps], 100 * curve.true_positive[steps])


def sweep(spec: FigureSpec, groups: Groups) -> list[Plot]:
    """Return panels with measures as functions of a loss parameter, such as the γ of focal loss.

    Each entry of ``spec.sweep`` has its own panels, but if an entry has a sign, all entries share one axis.
    """
    # the sign puts the parameters of two losses on one axis: −γ of focal loss, 0, γ of inverse focal loss
    together = any(len(entry) > 2 for entry in spec.sweep)
    panels = []
    for entries in [spec.sweep] if together else [(entry,) for entry in spec.sweep]:
        strengths = _strengths(entries, groups)
        runs_at = sorted((x, groups[label]) for label, x in strengths.items())
        xs = sorted(set(strengths.values()))
        if len(xs) < 2:
            continue
        family = " to ".join(FAMILIES.get(entry[0], entry[0]) for entry in entries)
        axis = "−γ of focal loss … γ of inverse focal loss" if together else SYMBOLS.get(entries[0][1], entries[0][1])
        for measures in spec.panels:
            lines = [
                line_of(
                    MEASURES[measure].label if len(measures) > 1 else "",
                    [xs.index(x) for x, _ in runs_at],
                    [[run.value(measure) for run in runs] for _, runs in runs_at],
                )
                for measure in measures
            ]
            first = MEASURES[measures[0]]
            level = 1.0 if measures[0].startswith("temperature") else None
            y = first.heading if len(measures) == 1 else "T" if level else ""
            ticks = {float(place): short(x) for place, x in enumerate(xs)}
            panels.append(Plot(family, axis, y, with_points(lines), ticks, first.percent, level=level, marked=True))
    return panels


def _strengths(entries: Sequence[Sequence[str]], groups: Groups) -> dict[str, float]:
    """Return each objective's position on the axis, which is the value of its parameter."""
    found = {}
    for label, runs in groups.items():
        recipe = runs[0].recipes[0]
        if recipe.loss["type"] == PLAIN:
            found[label] = 0.0
        for kind, number, *sign in entries:
            if kind == "Training":
                found[label] = float(getattr(recipe.training, number))
            elif recipe.loss["type"] == kind:
                found[label] = (-1 if sign else 1) * float(recipe.loss[number])
    return found


def best(spec: FigureSpec, groups: Groups) -> list[Plot]:
    """Return a panel for each loss family with its best parameter as a function of the number of training samples.

    The best parameter has the lowest ECE on validation data before calibration.
    """
    panels = []
    for kind, number, *_ in spec.sweep:
        least: dict[int, tuple[float, float]] = {}  # maps the size to the lowest ECE and its parameter
        for item in (item for runs in groups.values() for item in runs):
            loss, size = item.recipes[0].loss, int(item.recipes[0].data["train"])
            if loss["type"] == kind:
                error = ECE()(Predictions.cat(list(item.validation)))
                least[size] = min(least.get(size, (math.inf, 0.0)), (error, float(loss[number])))
        if least:
            ticks = {float(place): f"{size:,}" for place, size in enumerate(sorted(least))}
            line = Line("", list(ticks), [least[size][1] for size in sorted(least)])
            y = f"best {SYMBOLS.get(number, number)}"
            panels.append(Plot(FAMILIES.get(kind, kind), "training samples", y, [line], ticks, marked=True))
    return panels


def sizes(spec: FigureSpec, groups: Groups) -> list[Plot]:
    """Return panels with the test ECE after calibrators fitted on subsets of the validation samples, a mean of five draws."""
    panels = []
    for title, stage in (("temperature scaling by ECE", "by_ece"), ("histogram binning", "binned")):
        lines, marks = [], set[int]()
        for label, runs in groups.items():
            whole = min(len(rows) for run in runs for rows in run.validation)
            # sizes near the whole set are left out, so that the last two marks do not overlap
            counts = [size for size in SIZES if 2 * size <= whole] + [whole]
            by_seed = [[_at_size(run, stage, size) for size in counts] for run in runs]
            lines.append(line_of(label, [math.log2(size) for size in counts], zip(*by_seed, strict=True)))
            marks |= set(counts)
        ticks = {math.log2(size): f"{size:,}" for size in sorted(marks)}
        panels.append(Plot(title, "validation samples", "ECE %", lines, ticks, percent=True, marked=True))
    return panels


def _at_size(measured: Measured, stage: str, size: int) -> float:
    """Return the mean test ECE after fitting a calibrator on random subsets of ``size`` validation samples."""
    # there is only one way to draw all samples
    draws = 1 if size == min(map(len, measured.validation)) else DRAWS
    found = []
    for draw in range(draws):
        drawn = []
        for fold, run in enumerate(measured.runs):
            generator = torch.Generator().manual_seed(1000 * draw + fold)
            rows = torch.randperm(len(run.validation), generator=generator)[:size]
            drawn.append(Run(run.validation[rows], run.test))
        found.append(Measured(drawn).value(f"ece_{stage}"))
    return float(np.mean(found))


def focal(spec: FigureSpec, groups: Groups) -> list[Plot]:
    """Return a panel with the T that minimises the equal-mass validation ECE at each γ of the focal map, for the first seed."""
    lines = []
    for label, runs in groups.items():
        by_fold = [temperatures_along(rows, GAMMAS) for rows in runs[0].validation]
        lines.append(Line(label, GAMMAS, list(map(geometric_mean, zip(*by_fold, strict=True)))))
    return [Plot("chosen by validation ECE", "γ of the focal map", "best T", lines, level=1.0, marked=True)]


def losses(spec: FigureSpec, groups: Groups) -> list[Plot]:
    """Return a panel with each loss as a function of the label's probability, for two classes."""
    p = torch.linspace(0.01, 0.999, 200, dtype=torch.float64)
    # the softmax of (log p, log(1 − p)) is (p, 1 − p)
    rows, label = torch.stack([p.log(), torch.log1p(-p)], dim=1), torch.zeros(len(p), dtype=torch.int64)
    lines, without = [], []
    for name, runs in groups.items():
        try:
            loss = make_loss({**runs[0].recipes[0].loss, "reduction": "none"})
        except InputError:  # MMCE is a loss of a whole batch, which has no value for a single row
            without.append(name)
            continue
        lines.append(Line(name, p, loss(rows, label)))
    title = f"without {', '.join(without)}: no loss of single samples" if without else ""
    return [Plot(title, "probability of the label", "loss", lines)] if lines else []


KINDS: Mapping[str, Callable[[FigureSpec, Groups], Sequence[Panel]]] = {
    kind.__name__: kind
    for kind in (trajectory, sweep, best, sizes, reliability, bins, logits, learned, ood, focal, losses)
}


def curve(label: str, runs: Sequence[Measured], place: str) -> Line:
    """Return one number of the trajectory as a curve over the epochs.

    The number is averaged over folds. The curve shows its mean, minimum and maximum over seeds.

    Args:
        label: The label in the legend.
        runs: Runs of one objective, one per seed.
        place: Where the number is in the trajectory: keys and indices joined by dots, such as ``"validation.gaps_mass.7"``.
    """
    by_seed = []
    for run in runs:
        # folds are parts of one experiment, so each seed's number is their mean, and bands are over seeds
        of_folds = zip(*([value_at(entry, place) for entry in fold.trajectory] for fold in run.runs), strict=True)
        by_seed.append([mean_or_nan([value for value in values if not math.isnan(value)]) for values in of_folds])
    epochs = [entry["epoch"] for entry in runs[0].runs[0].trajectory]
    return line_of(label, epochs, zip(*by_seed, strict=True))


def line_of(label: str, x: Sequence[float], values: Iterable[Sequence[float]]) -> Line:
    """Return the curve of the means of the values (seeds,) at each x, with their minimum and maximum for several seeds."""
    rows = list(values)
    several = max(map(len, rows), default=0) > 1
    spread = (list(map(min, rows)), list(map(max, rows))) if several else ((), ())
    return Line(label, list(map(float, x)), [float(np.mean(row)) for row in rows], *spread)


def with_points(lines: Iterable[Line]) -> list[Line]:
    """Return the lines that have at least one point to draw."""
    return [line for line in lines if not all(math.isnan(y) for y in line.y)]


def value_at(entry: Any, place: str) -> float:
    """Return the number at ``place`` in an entry of a trajectory, or NaN if there is none."""
    for key in place.split("."):
        if isinstance(entry, list):
            entry = entry[int(key)] if int(key) < len(entry) else None
        else:
            entry = entry.get(key) if entry is not None else None
    return math.nan if entry is None else float(entry)


def short(x: float) -> str:
    """Return a number formatted for an axis.

    Examples:
        >>> short(-0.05), short(3.0)
        ('−.05', '3')
    """
    return f"{x:g}".replace("-", "−").replace("0.", ".", 1) if abs(x) < 1 and x else f"{x:g}".replace("-", "−")
