"""What a set of calibrators does to one package's probabilities."""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from benchmarks.wild.scores import Scored
from calibrant import Predictions, calibrators
from calibrant.calibrators import AutoCalibrator, Calibrator
from calibrant.calibrators.auto.auto import with_levels
from calibrant.errors import CalibrantError, DuplicateRowsWarning
from calibrant.evaluate import compare
from calibrant.metrics import ECE, NLL
from calibrant.statistics import null_band

AUTO, TOP, HISTOGRAM = "AutoCalibrator", "AutoCalibrator, top label", "HistogramBinning"
DRAWS, BINS = 1000, 15
METHODS: dict[str, Callable[[], Calibrator]] = {
    "none": calibrators.Identity,
    "TemperatureScaling": calibrators.TemperatureScaling,
    "FocalTemperatureScaling": lambda: calibrators.FocalTemperatureScaling(search="continuous"),
    "EnsembleTemperatureScaling": calibrators.EnsembleTemperatureScaling,
    "VectorScaling": calibrators.VectorScaling,
    "StructuredVectorScaling": calibrators.StructuredVectorScaling,
    "StructuredMatrixScaling": calibrators.StructuredMatrixScaling,
    "DirichletCalibration": calibrators.DirichletCalibration,
    HISTOGRAM: calibrators.HistogramBinning,
    TOP: lambda: AutoCalibrator(top_label=True),
}


@dataclass(frozen=True)
class Figure:
    """One method on one package's test rows.

    Args:
        log_loss: None where it is infinite.
        ece: Top-label, 15 bins of equal width.
        null_high: The ECE's 97.5 % limit if these probabilities were calibrated.
        seconds: Of the fit, CPU.
        versus: Log-loss minus AutoCalibrator's, and its interval; None for AutoCalibrator and top-label methods.
        low: Lower end.
        high: Upper end.
        ece_versus: ECE minus the top-label variant's, with the ends of its interval; None for that variant.
    """

    log_loss: float | None
    ece: float
    null_high: float
    seconds: float
    versus: float | None = None
    low: float | None = None
    high: float | None = None
    ece_versus: tuple[float, float, float] | None = None


def measured(scored: Scored, names: Sequence[str] = tuple(METHODS)) -> tuple[dict[str, Any], Predictions]:
    """Return the figures of AutoCalibrator and the named methods, as plain data, and the test rows through AutoCalibrator.

    Exact zeros under a true label, which the other methods refuse, get the floor that AutoCalibrator found; doing nothing
    is shown without.
    """
    val, test = scored.val, scored.test
    auto = AutoCalibrator()
    best, figure, leak = _through(auto, val, test)
    floored = [val, test]
    if auto.floor.numel():
        floored = [replace(one, logits=with_levels(one.logits, auto.floor)) for one in (val, test)]
    figures, answers = {AUTO: figure}, {AUTO: best}
    for name in names:
        fit_on, on = (val, test) if name in ("none", TOP) else floored
        try:
            after, figure, warned = _through(METHODS[name](), fit_on, on)
        except CalibrantError as error:
            print(f"  {name}: {error}", flush=True)
            continue
        leak = leak or warned
        figures[name], answers[name] = figure, after
        if name != HISTOGRAM and figure.log_loss is not None:
            [row] = compare(best, after, metrics=[NLL()]).rows
            figures[name] = replace(figure, versus=row.difference, low=row.low, high=row.high)
    for name in answers if TOP in answers else ():
        if name != TOP:
            figures[name] = replace(figures[name], ece_versus=ece_difference(answers[TOP], answers[name]))
    found = {
        "classes": scored.classes,
        "left_out": scored.left_out,
        "top_only": scored.top_only,
        "val": len(val),
        "test": len(test),
        "accuracy": float(test.correct.double().mean()),
        "confidence": float(test.confidence.mean()),
        "zeros_at_label": int(_zeros_at_label(test)),
        "leak_warning": leak,
        "uses": auto.learned(),
        "methods": {name: asdict(figures[name]) for name in (*METHODS, AUTO) if name in figures},
    }
    return found, best


def ece_difference(one: Predictions, other: Predictions) -> tuple[float, float, float]:
    """Return the ECE of ``other`` minus that of ``one``, and the ends of its 95 % bootstrap interval, paired by message."""
    groups = torch.arange(len(one)) if one.groups is None else torch.unique(one.groups, return_inverse=True)[1]
    rows = torch.bincount(groups).double()
    drawn = torch.multinomial(
        rows.new_ones(len(rows)).expand(DRAWS, -1),
        len(rows),
        replacement=True,
        generator=torch.Generator().manual_seed(0),
    )
    times = torch.cat(
        [torch.ones_like(rows)[None], torch.stack([torch.bincount(draw, minlength=len(rows)) for draw in drawn])]
    )
    found = []
    for data in (one, other):
        cell = (data.confidence * BINS).ceil().long().clamp(1, BINS) - 1
        gaps = rows.new_zeros(len(rows), BINS).index_put_((groups, cell), data.correct.double() - data.confidence, True)
        found.append((times @ gaps).abs().sum(dim=1) / (times @ rows))
    difference = found[1] - found[0]
    low, high = difference[1:].quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return float(difference[0]), low, high


def _through(calibrator: Calibrator, val: Predictions, test: Predictions) -> tuple[Predictions, Figure, bool]:
    """Return the test rows through a calibrator fitted on ``val``, their figure, and whether rows were called a leak."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.process_time()
        calibrator.fit(val)
        seconds = time.process_time() - start
        after = test.calibrated_by(calibrator)
        figure = _figure(after, seconds)
    return after, figure, any(issubclass(one.category, DuplicateRowsWarning) for one in caught)


def _figure(data: Predictions, seconds: float) -> Figure:
    loss = NLL()(data)
    limit = null_band(ECE(), data, draws=200).high
    return Figure(None if loss == float("inf") else loss, ECE()(data), limit, round(seconds, 2))


def _zeros_at_label(data: Predictions) -> torch.Tensor:
    return torch.isneginf(data.logits.gather(1, data.need_labels()[:, None])).sum()
