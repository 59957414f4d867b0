"""Estimates of the accuracy and log-loss on unlabelled rows (the window), from calibrated probabilities.

For a function f(x, y) of a row, such as whether the decision is correct, the probabilities p(· | x) give the expectation
e(x) = Σ_k p_k f(x, k). With a labelled reference, p is first recalibrated by a temperature. The residual f − e is then fitted by
least squares as a function r of the scores. This function is piecewise linear in the confidence, with knots at quantiles of the
reference, plus a line in the confidence for each decided class, plus a term that is linear in the derivative of e with respect to the
temperature. The mean of f over the window is estimated by

    mean_window e  +  mean_window r.

The second term corrects the bias of p at the window's own scores, as long as these stay within the range of the reference. Its
variance is the sandwich T' V T, where T is the mean of the basis over the window, and includes the uncertainty of the temperature
and of the calibrator, whether that was fitted on these reference rows or on others. The randomness of the window's labels adds
Σ Var(f | x) / n², which no reference reduces; if the reference shows a larger variance, that is used instead.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant._core.config import json_data
from calibrant._core.notebook import to_html
from calibrant._core.numerics import row_chunks
from calibrant.calibrators import Calibrator
from calibrant.data.predictions import Predictions, check_class_order
from calibrant.errors import InputError, LeakError
from calibrant.operate.bounds import Line
from calibrant.operate.rows import (
    matched_out_of_fold,
    require_classes,
    require_source,
    row_confidence,
    row_log_probs,
    temperature_of,
)

Floats = NDArray[np.float64]

_Z = 1.959963984540054
_A_KNOT, _MAX_KNOTS = 100, 30  # number of reference rows between knots; largest number of pieces
_FEWEST = 50  # smallest number of reference rows
_OUTSIDE = 0.2  # largest accepted fraction of the window with confidences outside those of the reference
_A_PART, _MAX_PARTS = 50, 50  # reference rows that a decision needs for its own residual; most such decisions
_NOTICED = 0.05
_NEAR = 1.01  # ratio of two temperatures, for a numerical derivative
ASSUMED = (
    "These intervals assume that rows with equal scores are still labelled in the same way. Without labels, no method can check "
    "this assumption; labels for a few hundred new rows would."
)
SHIFTED = (
    "The scores have moved. If the classes have become more or less frequent (label shift), adapt the calibrator with PriorShift and "
    "estimate without the reference."
)


@dataclass(frozen=True)
class Figure:
    """A function f of rows: its expectation and variance under the probabilities, and its values if labels are known.

    Args:
        expected: The expectation e(x) (N,).
        variance: The variance Var(f | x) (N,).
        change: The derivative of e with respect to the logarithm of the temperature (N,).
        seen: The values f(x, y) on labelled rows (N,), or None.
        event: The mean squared change of f that an unlikely label causes (N,).
    """

    expected: Floats
    variance: Floats
    change: Floats
    seen: Floats | None = None
    event: Floats | float = 1.0


@dataclass(frozen=True)
class Estimate:
    """Estimated performance on unlabelled rows, with 95 % intervals for the values that their labels will give.

    Args:
        lines: The accuracy, the gap (confidence − accuracy, positive if over-confident), and the log-loss in nats. With a
            reference, the log-loss is missing if a label in the reference, or any possible label of the unlabelled rows, has
            probability 0.
        rows: Number of unlabelled rows.
        reference_rows: Number of labelled reference rows; 0 without a reference.
        moved_p: p-value for the hypothesis that the scores are distributed as in the reference: twice the smaller of the p-values
            of a Kolmogorov–Smirnov test on the confidences and a χ² test on the decisions; None without a reference.
    """

    lines: tuple[Line, ...]
    rows: int
    reference_rows: int
    moved_p: float | None

    _repr_html_ = to_html

    @property
    def accuracy(self) -> Line:
        """The estimated accuracy."""
        return self.lines[0]

    @property
    def gap(self) -> Line:
        """The estimated gap, confidence − accuracy."""
        return self.lines[1]

    @property
    def nll(self) -> Line | None:
        """The estimated log-loss, or None if it is missing."""
        return self.lines[2] if len(self.lines) > 2 else None

    @property
    def moved(self) -> bool:
        """Whether the distribution of the scores differs from that of the reference, at the 5 % level."""
        return self.moved_p is not None and self.moved_p <= _NOTICED

    def plain(self) -> dict[str, Any]:
        """Return the estimate as JSON data; None becomes null."""
        return {**json_data(self), "moved": self.moved}

    def __str__(self) -> str:
        lines = [f"{self.rows:,} rows without labels, {self.reference_rows:,} labelled reference rows"]
        lines += map(str, self.lines)
        if self.nll is None:
            lines.append("log-loss: not estimated, because it is infinite if a label with probability 0 occurs")
        if self.moved_p is None:
            lines.append(
                "Without a reference, the probabilities are assumed to be calibrated; intervals include only chance."
            )
        else:
            lines.append(f"scores: {'moved' if self.moved else 'as before'} (p = {self.moved_p:.3g})")
        return "\n".join([*lines, *([SHIFTED] if self.moved else []), ASSUMED])


def estimate(
    predictions: Predictions, calibrator: Calibrator | None = None, *, reference: Predictions | None = None
) -> Estimate:
    """Estimate the accuracy and the log-loss on rows without labels.

    The estimates are valid if P(label | scores) is the same as in the reference. The distribution of the features may have changed
    (covariate shift).

    Args:
        predictions: Predictions for independent rows without weights; labels are ignored. The predictions must be calibrated,
            unless a ``calibrator`` is given.
        calibrator: A fitted calibrator to apply to ``predictions`` and ``reference``; None if they are already calibrated.
        reference: At least 50 labelled, independent rows with predictions of the same model. The calibrator may have been fitted
            on them. With None, the probabilities are assumed to be calibrated.

    Returns:
        The estimates with 95 % intervals.

    Raises:
        InputError: If these are not predictions for all classes, if rows are weighted or dependent, if the classes or their
            order differ, or if more than a fifth of the rows have confidences outside those of the reference.

    Examples:
        >>> from calibrant import Predictions
        >>> z = torch.randn(3000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2
        >>> y = torch.multinomial(z.softmax(dim=1), 1, generator=torch.Generator().manual_seed(1))[:, 0]
        >>> found = estimate(Predictions.from_logits(z[:1000]), reference=Predictions.from_logits(z[1000:], y[1000:]))
        >>> found.accuracy.low < float((z.argmax(dim=1) == y)[:1000].double().mean()) < found.accuracy.high
        True
        >>> found.moved
        False

    References:
        Białek, Kuberski, Perrakis, Bifet 2024, Estimating Model Performance Under Covariate Shift Without Labels (CBPE).
    """
    window = _calibrated(require_classes(predictions, what="estimate", labelled=False), calibrator)
    known = basis = moved = None
    temperature = 1.0
    if reference is not None:
        rows = require_classes(reference, what="estimate")
        known, same = _out_of_fold(rows, calibrator), _calibrated(rows, calibrator)
        if known.classes != window.classes or len(known) < _FEWEST:
            raise InputError(
                f"estimate needs a reference with at least {_FEWEST} rows and {window.classes} classes, not {len(known)} rows and "
                f"{known.classes} classes"
            )
        check_class_order(window.class_names, known.class_names, of="of the reference")
        # the basis uses scores of the same calibrator for the window and the reference; only the residuals are out-of-fold
        basis, moved, temperature = _basis(window, same), _moved(window, same), temperature_of(known)
    n, confidence = len(window), float(row_confidence(window).mean())
    right = projected(
        correctness(window, temperature), None if known is None else correctness(known, temperature), basis
    )
    value, low, high = (min(1.0, max(0.0, x)) for x in (right[0], right[1] - 0.5 / n, right[2] + 0.5 / n))
    lines = [
        Line("accuracy", value, low, high, n),
        Line("confidence − accuracy", confidence - value, confidence - high, confidence - low, n),
    ]
    # even if the loss is finite on the reference, it is infinite on the window if a label with probability 0 occurs
    if known is None or not bool(torch.isinf(known.nll).any() | torch.isinf(row_log_probs(window)).any()):
        lost = projected(loss(window, temperature), None if known is None else loss(known, temperature), basis)
        value, low, high = (max(0.0, x) for x in lost)
        lines.append(Line("log-loss", value, low, high, n))
    return Estimate(tuple(lines), n, 0 if known is None else len(known), moved)


def _calibrated(data: Predictions, calibrator: Calibrator | None) -> Predictions:
    # labels are not used here, so fitting rows are allowed
    return data if calibrator is None else data.calibrated_by(calibrator, allow_fit_rows=True)


def _out_of_fold(reference: Predictions, calibrator: Calibrator | None) -> Predictions:
    """Return the calibrated reference; if the calibrator was fitted on it, its rows are calibrated out of fold."""
    if calibrator is None:
        return reference
    require_source(calibrator)
    try:
        return reference.calibrated_by(calibrator)
    except LeakError:  # fitted on these rows
        return matched_out_of_fold(calibrator, reference)[0]


def _moved(window: Predictions, reference: Predictions) -> float:
    from scipy.stats import chi2_contingency, ks_2samp

    a, b = (np.asarray(row_confidence(data).cpu().numpy()) for data in (window, reference))
    counts = torch.stack([data.predicted.cpu().bincount(minlength=window.classes) for data in (window, reference)])
    table = counts[:, counts.sum(dim=0) > 0].numpy()
    decisions = float(chi2_contingency(table).pvalue) if table.shape[1] > 1 else 1.0
    # Bonferroni correction for two tests of one hypothesis
    return min(1.0, 2 * min(float(ks_2samp(a, b, method="asymp").pvalue), decisions))


def _basis(window: Predictions, reference: Predictions) -> tuple[Floats, Floats]:
    """Return the basis functions at the window's and at the reference's rows, (N, B) and (M, B).

    The first functions are piecewise linear in the confidence and sum to 1. The others are a constant and a linear function of the
    confidence for each predicted class with enough reference rows, because a model may be over-confident in only one class. The
    most frequent class has no functions of its own, because the first functions describe it.

    Raises:
        InputError: If too many of the window's confidences lie outside those of the reference.
    """
    scores, own = (row_confidence(data).cpu().numpy() for data in (window, reference))
    pieces = int(np.clip(len(own) // _A_KNOT, 1, _MAX_KNOTS))
    # quantiles that are observed scores; they are rounded because equal scores can differ in the last digits
    knots = np.unique(np.quantile(own, np.linspace(0, 1, pieces + 1), method="lower").round(9))
    outside = float(((scores < knots[0] - 1e-6) | (scores > knots[-1] + 1e-6)).mean())
    if outside > _OUTSIDE:
        raise InputError(
            f"{100 * outside:.3g} % of the rows have confidences outside those of the reference, {knots[0]:.4g} to {knots[-1]:.4g}; "
            "label some of these rows and add them to the reference"
        )
    decided = reference.predicted.cpu().numpy()
    counts = np.bincount(decided, minlength=reference.classes)
    classes = np.array([k for k in np.argsort(-counts)[1:_MAX_PARTS] if counts[k] >= _A_PART], dtype=np.int64)
    centres = np.array([own[decided == k].mean() for k in classes])
    found = []
    for data, confidence in ((window, scores), (reference, own)):
        hats = [np.interp(confidence, knots, row) for row in np.eye(len(knots))]
        part = (data.predicted.cpu().numpy()[:, None] == classes).astype(float)
        found.append(np.column_stack([*hats, part, part * (confidence[:, None] - centres)]))
    return found[0], found[1]


def projected(
    window: Figure, reference: Figure | None, basis: tuple[Floats, Floats] | None
) -> tuple[float, float, float]:
    """Return the estimated mean of f over the window, and the 95 % interval for the mean that the labels will give.

    Args:
        window: The function f on the rows without labels.
        reference: The function f on labelled rows; None assumes that the probabilities are calibrated.
        basis: The result of ``_basis`` for both.

    Returns:
        The estimate and the ends of the interval.
    """
    n = len(window.expected)
    mean, chance, of_reference = float(window.expected.mean()), float(window.variance.mean()), 0.0
    if reference is not None and basis is not None and reference.seen is not None:
        design = np.column_stack([basis[1], reference.change])
        mean_row = np.append(basis[0].mean(axis=0), window.change.mean())  # T of the formula at the top
        inverse = np.linalg.pinv(design.T @ design, rcond=1e-10, hermitian=True)
        weight, residual = (
            design @ (inverse @ mean_row),
            reference.seen - reference.expected,
        )  # weights of the rows sum to 1
        mean += float(weight @ residual)
        # residuals are too small because of the fit, by an amount that the leverage gives
        leverage = ((design @ inverse) * design).sum(axis=1).clip(max=1 - 1e-9)
        squares = ((residual - design @ (inverse @ (design.T @ residual))) / (1 - leverage)) ** 2
        # there may be no errors by chance: one additional unlikely label among the rows that count keeps the variance above 0
        event = np.abs(weight) * reference.event
        place = event / max(float(event.sum()), 1e-300)
        of_reference = float(weight**2 @ squares + place @ (np.abs(weight) * event))
        # over-confident probabilities imply too small a variance for the labels
        chance = max(chance, float(weight @ squares + place @ event))
    half = _Z * math.sqrt(chance / n + of_reference)
    return mean, mean - half, mean + half


def correctness(data: Predictions, temperature: float) -> Figure:
    """Return the function "the decision is correct", for labels drawn from the probabilities at this temperature."""
    decided, log_p = data.predicted.cpu()[:, None], row_log_probs(data)
    p, colder = (
        torch.softmax(log_p / t, dim=1).gather(1, decided)[:, 0].numpy() for t in (temperature, temperature / _NEAR)
    )
    seen = None if data.labels is None else np.asarray(data.correct.cpu().double().numpy())
    return Figure(p, p * (1 - p), (p - colder) / math.log(_NEAR), seen)


def loss(data: Predictions, temperature: float) -> Figure:
    """Return the log-loss of each row in nats, for labels drawn from the probabilities at this temperature."""
    log_p = row_log_probs(data)
    parts = []
    for part in row_chunks(*log_p.shape):
        lost = -torch.where(log_p[part] == -torch.inf, 0.0, log_p[part])  # a class with p = 0 contributes 0
        p, colder = (torch.softmax(log_p[part] / t, dim=1) for t in (temperature, temperature / _NEAR))
        mean, rise = (p * lost).sum(dim=1), lost + log_p[part].amax(dim=1, keepdim=True)
        unlikely = torch.where(rise > 0, p, 0.0).sum(dim=1).clamp_min(1e-300)
        # E ℓ² − (E ℓ)² under the row's own probabilities, and the expected squared rise given that the label is unlikely
        variance, event = (p * lost * lost).sum(dim=1) - mean**2, (p * rise * rise).sum(dim=1) / unlikely
        change = ((p - colder) * lost).sum(dim=1) / math.log(_NEAR)
        parts.append(torch.stack([mean, variance.clamp_min(0), change, event]))
    expected, variance, change, event = torch.cat(parts, dim=1).numpy()
    seen = None if data.labels is None else np.asarray(data.nll.cpu().double().numpy())
    return Figure(expected, variance, change, seen, event)
