"""Figures of a study as numbers, from its stored runs; ``study.draw`` draws them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._core.warn import warn_user
from calibrant.binning import EqualWidth
from calibrant.data.predictions import Predictions
from calibrant.errors import CalibrantError, InputError
from calibrant.metrics import ECE, ood_roc
from calibrant.study.measures import (
    MEASURES,
    FoldFits,
    geometric_mean,
    ignore_bound_warnings,
    mean_or_nan,
    temperatures_along,
)
from calibrant.study.panels import Bars, Drawing, Line, Panel, Plot, Reliability
from calibrant.study.recipe import FigureSpec, Study
from calibrant.study.resolve import make_loss
from calibrant.study.tables import Measured, grouped

SPLITS = {"train": "training data", "validation": "validation data", "test": "test data"}
NAMES = {
    "nll": "log-loss", "nll_correct": "log-loss where right", "nll_wrong": "log-loss where wrong",
    "entropy": "entropy", "entropy_correct": "entropy where right", "entropy_wrong": "entropy where wrong",
    "error": "error", "ece": "ECE", "ece_mass": "equal-mass ECE", "ece_at_t": "ECE at T", "nll_at_t": "log-loss at T",
    "temperature": "best T", "ece_at_own_t": "ECE at its own best T", "optimal_ece": "optimal ECE (oracle)",
    "optimal_temperature": "T of the optimal ECE (oracle)",
    "classifier_norm": "norm of the last layer", "loss": "training loss",
}  # fmt: skip
FRACTIONS = {"error", "ece", "ece_mass", "ece_at_t", "ece_at_own_t", "optimal_ece"}


def trajectory(spec: FigureSpec, items: Sequence[Measured]) -> list[Plot]:
    """Return a panel for each entry of ``spec.panels``, with a curve for each objective and entry of the trajectory."""
    panels = []
    for places in spec.panels:
        lines = []
        for label, runs in by_objective(items):
            for place in places:
                words = label if len(places) == 1 else label_of_place(place, split=not _in_one_split(places))
                if len(places) > 1 and len(spec.objectives) != 1:
                    words = f"{label}: {words}"
                lines.append(curve(words, runs, place))
        if shown := _with_points(lines):
            panels.append(_plot_of_places(places, shown))
    return panels


def bins(spec: FigureSpec, items: Sequence[Measured]) -> list[Plot]:
    """Return a panel for each bin with confidence minus accuracy on validation data, and one with AdaFocal's γ in the bins."""
    panels = []
    for index in spec.bins:
        lines = tuple(curve(label, runs, f"validation.gaps_mass.{index}") for label, runs in by_objective(items))
        panels.append(Plot(f"bin {index} of 15 of equal mass", "epoch", "confidence − accuracy %", lines, percent=True))
    groups = by_objective(items)
    adaptive = [
        curve(f"γ of {label} in bin {index}", runs, f"loss_state.gammas.{index}")
        for label, runs in groups
        for index in spec.bins
    ]
    # colours of their own: those of the objectives stand for them in the panels beside
    adaptive = [replace(line, group=len(groups) + place) for place, line in enumerate(_with_points(adaptive))]
    if gammas := tuple(adaptive):
        panels.append(Plot("γ of the bins", "epoch", "γ (below 0: inverse focal loss)", gammas, level=0.0))
    return panels


def learned(spec: FigureSpec, items: Sequence[Measured]) -> list[Plot]:
    """Return the fraction of training samples that are classified correctly from an epoch to the end of training."""
    lines = []
    for label, runs in by_objective(items):
        epochs = [entry["epoch"] for entry in runs[0].fits.trajectories[0]]
        fractions = [
            [float(np.mean([((s > 0) & (s <= epoch)).double().mean() for s in since])) for epoch in epochs]
            for since in (run.fits.of_training("learned_epochs") for run in runs)
        ]
        lines.append(line_of(label, epochs, zip(*fractions, strict=True)))
    return [Plot("learned for good", "epoch", "training samples %", tuple(lines), percent=True)]


def curve(label: str, runs: Sequence[Measured], place: str) -> Line:
    """Return the entry ``place`` of the trajectory over epochs: mean over folds, then mean, minimum and maximum over seeds.

    Args:
        label: Its label in the legend.
        runs: Runs of one objective, one per seed.
        place: Keys and indices joined by dots, such as ``"validation.gaps_mass.7"``.
    """
    by_seed, epochs = [], [0]
    for run in runs:
        folds = run.fits.trajectories
        epochs = [entry["epoch"] for entry in folds[0]]
        # folds are parts of one experiment, so that their mean is the figure of a seed; bands are over seeds
        of_folds = zip(*([value_at(entry, place) for entry in entries] for entries in folds), strict=True)
        by_seed.append([mean_or_nan([value for value in values if not math.isnan(value)]) for values in of_folds])
    return line_of(label, epochs, zip(*by_seed, strict=True))


def line_of(label: str, x: Iterable[float], values: Iterable[Sequence[float]]) -> Line:
    """Return the mean of the values (seeds,) at each x, with minimum and maximum if there are several."""
    rows = list(values)
    several = max(map(len, rows), default=0) > 1
    spread = (tuple(map(min, rows)), tuple(map(max, rows))) if several else ((), ())
    return Line(label, tuple(map(float, x)), tuple(float(np.mean(row)) for row in rows), *spread)


def value_at(entry: Any, place: str) -> float:
    """Return the number at ``place`` in an entry of a trajectory, NaN if there is none."""
    for key in place.split("."):
        if isinstance(entry, list):
            entry = entry[int(key)] if int(key) < len(entry) else None
        else:
            entry = entry.get(key) if entry is not None else None
        if entry is None:
            return math.nan
    return float(entry)


def by_objective(items: Sequence[Measured]) -> list[tuple[str, list[Measured]]]:
    """Return the runs of each objective, in the order of the study."""
    return list(grouped(items, lambda item: item.objective).items())


def label_of_place(place: str, *, split: bool = True) -> str:
    """Return a label for a place of the trajectory, such as ``"log-loss where wrong, test data"``."""
    where, _, name = place.rpartition(".")
    words = NAMES.get(name, name.replace("_", " "))
    return f"{words}, {SPLITS[where]}" if split and where in SPLITS else words


def _plot_of_places(places: Sequence[str], lines: tuple[Line, ...]) -> Plot:
    names = [place.rpartition(".")[2] for place in places]
    percent = all(name in FRACTIONS for name in names)
    if len(places) == 1:
        title, what = label_of_place(places[0]), NAMES.get(names[0], names[0])
    else:
        title = SPLITS.get(places[0].split(".")[0], "") if _in_one_split(places) else ""
        what = " and ".join(dict.fromkeys(NAMES.get(name, name).split(" where")[0] for name in names))
    level = 1.0 if all("temperature" in name for name in names) else None
    return Plot(title, "epoch", f"{what} %" if percent else what, lines, percent=percent, level=level)


def _with_points(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Return the lines that have a point to draw."""
    return tuple(line for line in lines if not all(math.isnan(y) for y in line.y))


def _in_one_split(places: Sequence[str]) -> bool:
    return len({place.split(".")[0] for place in places}) == 1


BARS = 40
ROC_POINTS = 200


def reliability(spec: FigureSpec, items: Sequence[Measured]) -> list[Reliability]:
    """Return two diagrams for each objective's first seed: uncalibrated, and at the T of least validation ECE."""
    panels = []
    for label, runs in by_objective(items):
        fits = runs[0].fits
        after = f" at T = {fits.value('temperature_by_ece'):.2f} by ECE"
        for words, rows in (("", fits.before), (after, fits.after("by_ece"))):
            top = rows.top_label()
            title = f"{label}{words}\nECE {100 * ECE()(rows):.2f} %, 15 bins of equal width"
            panels.append(Reliability(title, EqualWidth(15).table(top.p, top.y)))
    return panels


def logits(spec: FigureSpec, items: Sequence[Measured]) -> list[Bars]:
    """Return the largest logits of training samples of an objective's first seed, by the epoch at which they were learned."""
    found = []
    for label, runs in by_objective(items):
        fits = runs[0].fits
        largest = torch.cat([*fits.of_training("max_logits")]).double()
        since = torch.cat([*fits.of_training("learned_epochs")])
        epochs = max(entry["epoch"] for entry in fits.trajectories[0])
        found.append((label, largest, since, epochs))
    # a handful of outliers would leave most bars empty
    low = min(float(torch.quantile(largest, 0.001)) for _, largest, _, _ in found)
    high = max(float(torch.quantile(largest, 0.999)) for _, largest, _, _ in found)
    edges = torch.linspace(low, high, BARS + 1, dtype=torch.float64)
    groups = [(label, _by_learned(largest, since, epochs, edges)) for label, largest, since, epochs in found]
    # one scale for all panels, so that their heights can be compared
    top = 1.05 * max(sum(heights) for _, parts in groups for heights in zip(*(part for _, part in parts), strict=True))
    ends = tuple(edges.tolist())
    return [Bars(label, "largest logit", "training samples", ends, parts, top) for label, parts in groups]


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


def ood(spec: FigureSpec, items: Sequence[Measured]) -> list[Plot]:
    """Return the ROC curves of detecting each out-of-distribution set by entropy, with and without temperature."""
    first = [(label, runs[0].fits) for label, runs in by_objective(items)]
    names = dict.fromkeys(name for _, fits in first for name in fits.ood[0])
    panels = []
    for name in names:
        for words, calibrated in (("without temperature", False), ("at T by ECE", True)):
            lines = tuple(
                _roc(label, fits, name, calibrated=calibrated) for label, fits in first if name in fits.ood[0]
            )
            title = f"{name.replace('-', ' ')}, {words}"
            panels.append(Plot(title, "test data taken for outside %", "outside found %", lines, diagonal=100.0))
    return panels


def _roc(label: str, fits: FoldFits, name: str, *, calibrated: bool) -> Line:
    inside, outside = fits.before, [sets[name] for sets in fits.ood]
    if calibrated:
        inside = fits.after("by_ece")
        with ignore_bound_warnings():
            calibrators = fits.calibrators("by_ece")
            outside = [rows.calibrated_by(fitted) for rows, fitted in zip(outside, calibrators, strict=True)]
    curve = ood_roc(inside, Predictions.cat(outside))
    # a vector drawing of every threshold would weigh megabytes
    steps = torch.linspace(0, len(curve.threshold) - 1, min(ROC_POINTS, len(curve.threshold))).round().long()
    x, y = curve.false_positive[steps], curve.true_positive[steps]
    return Line(f"{label} ({curve.area:.3f})", tuple((100 * x).tolist()), tuple((100 * y).tolist()))


FAMILIES = {
    "LabelSmoothingLoss": "label smoothing", "LpNormLoss": "norm of the logits", "FocalLoss": "focal loss",
    "InverseFocalLoss": "inverse focal loss", "Training": "",
}  # fmt: skip
SYMBOLS = {"weight_decay": "weight decay", "smoothing": "smoothing", "strength": "coefficient", "gamma": "γ"}
PLAIN = "CrossEntropyLoss"  # every family at 0
SIZES = (25, 50, 100, 200, 400, 800, 1600, 3200, 6400)
DRAWS = 5  # subsets of each size
GAMMAS = (-0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 2.0, 3.0, 5.0)


def sweep(spec: FigureSpec, items: Sequence[Measured]) -> list[Plot]:
    """Return measures by the strength of a loss; entries with a sign share one axis, others have separate panels."""
    # with a sign the parameters of two losses become one axis: −γ of focal loss, 0, γ of inverse focal loss
    together = any(len(entry) > 2 for entry in spec.sweep)
    groups = [spec.sweep] if together else [(entry,) for entry in spec.sweep]
    panels = []
    for entries in groups:
        numbers = _numbers(entries, items)
        xs = sorted(set(numbers.values()))
        if len(xs) < 2:
            continue
        ticks = tuple((float(place), short(x)) for place, x in enumerate(xs))
        family = " to ".join(FAMILIES.get(entry[0], entry[0]) for entry in entries)
        axis = "−γ of focal loss … γ of inverse focal loss" if together else SYMBOLS.get(entries[0][1], entries[0][1])
        for measures in spec.panels:
            every = [_over(measure, numbers, items, many=len(measures) > 1) for measure in measures]
            lines = _with_points(every)
            if absent := [line.label for line in every if line not in lines]:
                warn_user(f"the figure {spec.name!r} is drawn without {', '.join(absent)}: no run has it", UserWarning)
            first = MEASURES[measures[0]]
            level = 1.0 if measures[0].startswith("temperature") else None
            y = first.heading if len(measures) == 1 else "T" if level else ""
            panels.append(Plot(family, axis, y, lines, ticks, percent=first.percent, level=level, marked=True))
    return panels


def _numbers(entries: Sequence[Sequence[str]], items: Sequence[Measured]) -> dict[str, float]:
    """Return the position of each objective on the axis."""
    found = {}
    for label, runs in by_objective(items):
        loss = runs[0].recipes[0].loss
        if loss["type"] == PLAIN:
            found[label] = 0.0
        for kind, number, *sign in entries:
            if kind == "Training":
                found[label] = float(getattr(runs[0].recipes[0].training, number))
            elif loss["type"] == kind:
                found[label] = (-1 if sign else 1) * float(loss[number])
    return found


def _over(measure: str, numbers: Mapping[str, float], items: Sequence[Measured], *, many: bool) -> Line:
    groups = sorted((numbers[label], runs) for label, runs in by_objective(items) if label in numbers)
    xs = sorted({x for x, _ in groups})
    rows = [[run.fits.value(measure) for run in runs] for _, runs in groups]
    places = [float(xs.index(x)) for x, _ in groups]
    return line_of(MEASURES[measure].label if many else "", places, rows)


def best(spec: FigureSpec, items: Sequence[Measured]) -> list[Plot]:
    """Return, for each family, the strength with the lowest raw ECE on validation data, by the number of training samples."""
    panels = []
    for kind, number, *_ in spec.sweep:
        chosen: dict[int, float] = {}
        least: dict[int, float] = {}
        for item in items:
            loss, size = item.recipes[0].loss, int(item.recipes[0].data["train"])
            if loss["type"] == kind:
                figure = ECE()(Predictions.cat(list(item.fits.validation)))
                if figure < least.get(size, math.inf):
                    least[size], chosen[size] = figure, float(loss[number])
        sizes = sorted(chosen)
        if sizes:
            line = Line("", tuple(map(float, range(len(sizes)))), tuple(chosen[size] for size in sizes))
            ticks = tuple((float(place), f"{size:,}") for place, size in enumerate(sizes))
            y = f"best {SYMBOLS.get(number, number)}"
            panels.append(Plot(FAMILIES.get(kind, kind), "training samples", y, (line,), ticks, marked=True))
    return panels


def sizes(spec: FigureSpec, items: Sequence[Measured]) -> list[Plot]:
    """Return the ECE on test data after calibrators fitted on subsets of the validation samples, mean of five draws."""
    panels = []
    for title, stage in (("temperature scaling by ECE", "by_ece"), ("histogram binning", "binned")):
        lines = []
        for label, runs in by_objective(items):
            most = min(len(rows) for run in runs for rows in run.fits.validation)
            counts = [size for size in SIZES if 2 * size <= most] + [most]  # so that the last two marks do not overlap
            by_seed = [[_at_size(run.fits, stage, size) for size in counts] for run in runs]
            lines.append(line_of(label, [math.log2(size) for size in counts], zip(*by_seed, strict=True)))
        marks = sorted({x for line in lines for x in line.x})
        ticks = tuple((x, f"{round(2**x):,}") for x in marks)
        panels.append(Plot(title, "validation samples", "ECE %", tuple(lines), ticks, percent=True, marked=True))
    return panels


def _at_size(fits: FoldFits, stage: str, size: int) -> float:
    # all samples can be drawn in one way only
    draws = 1 if size == min(len(rows) for rows in fits.validation) else DRAWS
    found = []
    for draw in range(draws):
        drawn = []
        for fold, seen in enumerate(fits.validation):
            generator = torch.Generator().manual_seed(1000 * draw + fold)
            drawn.append(seen[torch.randperm(len(seen), generator=generator)[:size]])
        found.append(FoldFits(drawn, fits.test).value(f"ece_{stage}"))
    return float(np.mean(found))


def focal(spec: FigureSpec, items: Sequence[Measured]) -> list[Plot]:
    """Return, for each objective's first seed, the T that minimises validation ECE (equal mass) at each γ of the focal map."""
    lines = []
    for label, runs in by_objective(items):
        by_fold = [temperatures_along(rows, GAMMAS) for rows in runs[0].fits.validation]
        lines.append(Line(label, GAMMAS, tuple(map(geometric_mean, zip(*by_fold, strict=True)))))
    return [Plot("chosen by validation ECE", "γ of the focal map", "best T", tuple(lines), level=1.0, marked=True)]


def losses(spec: FigureSpec, items: Sequence[Measured]) -> list[Plot]:
    """Return each loss as a function of the label's probability, for two classes."""
    p = torch.linspace(0.01, 0.999, 200, dtype=torch.float64)
    # the softmax of (log p, log(1 − p)) is (p, 1 − p)
    logits = torch.stack([p.log(), torch.log1p(-p)], dim=1)
    label = torch.zeros(len(p), dtype=torch.int64)
    lines, without = [], []
    for name, runs in by_objective(items):
        try:
            loss = make_loss({**runs[0].recipes[0].loss, "reduction": "none"})
        except InputError:  # MMCE is a loss of a batch, which has no value of a row
            without.append(name)
            continue
        lines.append(Line(name, tuple(p.tolist()), tuple(loss(logits, label).tolist())))
    title = f"without {', '.join(without)}: no loss of single samples" if without else ""
    return [Plot(title, "probability of the label", "loss", tuple(lines))] if lines else []


def short(x: float) -> str:
    """Return a number formatted for an axis.

    Examples:
        >>> short(-0.05), short(3.0)
        ('−.05', '3')
    """
    return f"{x:g}".replace("-", "−").replace("0.", ".", 1) if abs(x) < 1 and x else f"{x:g}".replace("-", "−")


KINDS: Mapping[str, Callable[[FigureSpec, Sequence[Measured]], Sequence[Any]]] = {
    "trajectory": trajectory,
    "sweep": sweep,
    "best": best,
    "sizes": sizes,
    "reliability": reliability,
    "bins": bins,
    "logits": logits,
    "learned": learned,
    "ood": ood,
    "focal": focal,
    "losses": losses,
}


def drawings(study: Study, measured: Sequence[Measured]) -> list[Drawing]:
    """Return the figures of a study that have finished runs, one for each setting.

    Args:
        study: The study.
        measured: The result of ``collect``.

    Raises:
        InputError: If an argument is of another type.
    """
    places = list(dict.fromkeys(item.setting for item in measured))
    found = []
    for spec in study.figures:
        drawn = [item for item in measured if not spec.objectives or item.objective in spec.objectives]
        settings = [None] if spec.kind == "best" else [p for p in places if spec.setting in ("", p)]
        for place in settings:
            items = [item for item in drawn if place is None or item.setting == place]
            try:
                made = KINDS[spec.kind](spec, items) if items else ()
            except CalibrantError as error:
                warn_user(f"the figure {spec.name!r} is left out: {error}", UserWarning)
                continue
            # one point along the axis shows nothing: what has finished so far is in the tables
            panels = tuple(
                one for one in made if not isinstance(one, Plot) or max(len(line.x) for line in one.lines) > 1
            )
            if panels:
                found.append(_drawing(spec, items, panels, place if len(settings) > 1 else None))
    return found


def _drawing(spec: FigureSpec, items: Sequence[Measured], panels: tuple[Panel, ...], place: str | None) -> Drawing:
    seeds = len({item.seed for item in items})
    banded = any(line.low for panel in panels if isinstance(panel, Plot) for line in panel.lines)
    spread = "; bands from the least to the largest of the seeds" if banded else ""
    after = f" After {spec.source}." if spec.source else ""
    where = ", ".join(dict.fromkeys(item.setting for item in items))
    shown = f"{seeds} seed{'s' if seeds > 1 else ''}{spread}"
    if spec.kind == "reliability":
        shown = "the first seed; a darker bar holds more samples"
    caption = f"{spec.title}.{after} {where}, {shown}."
    name = spec.name if place is None else f"{spec.name}-{slug(place)}"
    title = spec.title if place is None else f"{spec.title}: {place}"
    count = len(panels)
    columns = 4 if spec.kind == "reliability" and count >= 4 else count if count <= 3 else 2 if count == 4 else 3
    return Drawing(name, title, caption, panels, columns)


def slug(text: str) -> str:
    """Return the name of a figure's file.

    Examples:
        >>> slug("SST Tree-LSTM")
        'sst-tree-lstm'
    """
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())
