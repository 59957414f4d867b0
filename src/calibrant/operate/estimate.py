"""Estimates of accuracy, log-loss and the confusion matrix of unlabelled rows, from calibrated probabilities.

For a function f(x, y) of a row, such as whether the decision is correct, the probabilities p(· | x) give the expectation
e(x) = Σ_k p_k f(x, k). With a labelled reference p is first recalibrated by a temperature; then the residual f − e is fitted as a
function r of the scores by least squares: piecewise linear in the confidence, with knots at quantiles of the reference, and
linear in the derivative of e by the temperature. The window's mean of f is estimated by

    mean_window e  +  mean_window r.

The second term corrects the bias of p at the window's own scores, wherever these have moved within those of the reference; its
variance is the sandwich T' V T, with T the mean of the basis over the window, and includes the uncertainty of the temperature
and of the calibrator, whether it was fitted on these reference rows or on others. The randomness of the window's labels adds
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
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError, LeakError
from calibrant.operate.line import Line
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
_A_KNOT, _MAX_KNOTS = 100, 30  # reference rows between knots; largest number of pieces
_FEWEST = 50  # smallest number of reference rows
_OUTSIDE = 0.2  # largest fraction of the window with confidences outside those of the reference
_A_LINE = 20  # with fewer reference rows of a decision, its residual is assumed constant
_MAX_CLASSES = 200  # largest number of classes for a confusion matrix
_NOTICED = 0.05
_NEAR = 1.01  # ratio of two temperatures, for a derivative
ASSUMED = (
    "These intervals assume that rows with equal scores are still labelled in the same way. Without labels no method can check "
    "that assumption; labels of a few hundred new rows would."
)
SHIFTED = (
    "The scores have moved. If the classes have become more or less frequent (label shift), adapt the calibrator by PriorShift and "
    "estimate without the reference."
)


@dataclass(frozen=True)
class Figure:
    """A function f of rows: its expectation and variance under the probabilities, and its values if labels are known.

    Args:
        expected: (N,) e(x).
        variance: (N,) Var(f | x).
        change: (N,) derivative of e by the logarithm of the temperature.
        seen: (N,) f(x, y) of labelled rows, or None.
        event: (N,) the mean squared change of f that an unlikely label causes.
    """

    expected: Floats
    variance: Floats
    change: Floats
    seen: Floats | None = None
    event: Floats | float = 1.0


@dataclass(frozen=True)
class Estimate:
    """Estimated performance on the window's rows, with 95 % intervals for the values that their labels will give.

    Args:
        lines: The accuracy, confidence − accuracy (positive if over-confident), and the log-loss in nats. The log-loss is missing
            if a label of the reference or, with a reference, any possible label of the window has probability 0.
        rows: Number of rows of the window.
        reference_rows: Number of labelled reference rows; 0 without a reference.
        confusion: (K, K) fractions of rows by decision and label; None for more than 200 classes.
        confusion_low: (K, K) lower ends of their 95 % intervals.
        confusion_high: (K, K) upper ends of their 95 % intervals.
        moved_p: p-value for the hypothesis that scores are distributed as in the reference: twice the smaller p-value of a
            Kolmogorov–Smirnov test of confidences and a χ² test of decisions; None without a reference.
    """

    lines: tuple[Line, ...]
    rows: int
    reference_rows: int
    confusion: Floats | None
    confusion_low: Floats | None
    confusion_high: Floats | None
    moved_p: float | None

    _repr_html_ = to_html

    @property
    def accuracy(self) -> Line:
        """The accuracy."""
        return self.lines[0]

    @property
    def gap(self) -> Line:
        """Confidence − accuracy."""
        return self.lines[1]

    @property
    def nll(self) -> Line | None:
        """The log-loss, or None."""
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
            lines.append("log-loss: not estimated, since some labels have probability 0, at which it is infinite")
        if self.moved_p is None:
            lines.append(
                "Without a reference the probabilities are assumed to be calibrated; intervals include chance only."
            )
        else:
            lines.append(f"scores: {'moved' if self.moved else 'as before'} (p = {self.moved_p:.3g})")
        return "\n".join([*lines, *([SHIFTED] if self.moved else []), ASSUMED])


def estimate(
    predictions: Predictions, calibrator: Calibrator | None = None, *, reference: Predictions | None = None
) -> Estimate:
    """Estimate accuracy, log-loss and confusion matrix of rows without labels.

    The estimates are valid if P(label | scores) is the same as in the reference. The distribution of the features may have changed
    (covariate shift).

    Args:
        predictions: Predictions of independent rows without weights; labels are ignored. They are calibrated, or not yet calibrated
            if ``calibrator`` is given.
        calibrator: A fitted calibrator to apply to ``predictions`` and ``reference``; None if they are calibrated.
        reference: At least 50 labelled, independent rows of the same model; the calibrator may have been fitted on them. With None
            the probabilities are assumed to be calibrated.

    Returns:
        The estimates with 95 % intervals.

    Raises:
        InputError: If predictions are of another kind, rows are weighted or dependent, the numbers of classes differ, or more than
            a fifth of the rows have confidences outside those of the reference.

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
                f"estimate needs a reference of at least {_FEWEST} rows of {window.classes} classes, not {len(known)} of {known.classes}"
            )
        # window and reference use the same calibrator's scores for the basis; only the residuals are out-of-fold
        scores, own = (row_confidence(data).cpu().numpy() for data in (window, same))
        basis, moved, temperature = _hats(scores, own), _moved(window, same), temperature_of(known)
    n, confidence = len(window), float(row_confidence(window).mean())
    right = projected(
        correctness(window, temperature), None if known is None else correctness(known, temperature), basis
    )
    value, low, high = (min(1.0, max(0.0, x)) for x in (right[0], right[1] - 0.5 / n, right[2] + 0.5 / n))
    lines = [
        Line("accuracy", value, low, high, n),
        Line("confidence − accuracy", confidence - value, confidence - high, confidence - low, n),
    ]
    # even if the reference has a finite loss, the window's is infinite if a label of probability 0 occurs
    if known is None or not bool(torch.isinf(known.nll).any() | torch.isinf(row_log_probs(window)).any()):
        lost = projected(loss(window, temperature), None if known is None else loss(known, temperature), basis)
        value, low, high = (max(0.0, x) for x in lost)
        lines.append(Line("log-loss", value, low, high, n))
    confusion = low_ends = high_ends = None
    if window.classes <= _MAX_CLASSES:
        confusion, low_ends, high_ends = confusion_of(window, known, temperature)
    return Estimate(tuple(lines), n, 0 if known is None else len(known), confusion, low_ends, high_ends, moved)


def _calibrated(data: Predictions, calibrator: Calibrator | None) -> Predictions:
    # labels are not used here, so rows of the fit are allowed
    return data if calibrator is None else data.calibrated_by(calibrator, allow_fit_rows=True)


def _out_of_fold(reference: Predictions, calibrator: Calibrator | None) -> Predictions:
    """Return the calibrated reference; rows that the calibrator was fitted on are calibrated out of fold."""
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
    # two tests of one hypothesis: Bonferroni
    return min(1.0, 2 * min(float(ks_2samp(a, b, method="asymp").pvalue), decisions))


def _hats(window: Floats, reference: Floats) -> tuple[Floats, Floats]:
    """Return a piecewise linear basis at the scores ``window`` (N,) and ``reference`` (M,): (N, B) and (M, B) with row sums 1.

    Raises:
        InputError: If too many of the window's scores lie outside those of the reference.
    """
    pieces = int(np.clip(len(reference) // _A_KNOT, 1, _MAX_KNOTS))
    # quantiles that are observed scores, rounded because equal scores can differ in the last digits
    knots = np.unique(np.quantile(reference, np.linspace(0, 1, pieces + 1), method="lower").round(9))
    outside = float(((window < knots[0] - 1e-6) | (window > knots[-1] + 1e-6)).mean())
    if outside > _OUTSIDE:
        raise InputError(
            f"{100 * outside:.3g} % of the rows have confidences outside those of the reference, {knots[0]:.4g} to {knots[-1]:.4g}; "
            "label some of these rows and add them to the reference"
        )
    window_hats, reference_hats = (
        np.stack([np.interp(scores, knots, row) for row in np.eye(len(knots))], axis=1)
        for scores in (window, reference)
    )
    return window_hats, reference_hats


def projected(
    window: Figure, reference: Figure | None, basis: tuple[Floats, Floats] | None
) -> tuple[float, float, float]:
    """Return the estimated mean of f over the window's rows, and the 95 % interval of the mean that their labels will give.

    Args:
        window: f of the rows without labels.
        reference: f of labelled rows; None assumes that the probabilities are calibrated.
        basis: The basis of ``_hats`` at the scores of both.
    """
    n = len(window.expected)
    mean, chance, of_reference = float(window.expected.mean()), float(window.variance.mean()), 0.0
    if reference is not None and basis is not None and reference.seen is not None:
        hats, share = basis[1], basis[0].mean(axis=0)
        design = np.column_stack([hats, reference.change])
        mean_row = np.append(share, window.change.mean())  # T of the formula at the top
        rows, residual = hats.sum(axis=0), reference.seen - reference.expected
        inverse = np.linalg.pinv(design.T @ design, rcond=1e-10, hermitian=True)
        fit = inverse @ (design.T @ residual)
        # the fit makes residuals too small; the leverage says by how much
        leverage = ((design @ inverse) * design).sum(axis=1).clip(max=1 - 1e-9)
        squares = (residual - design @ fit) ** 2 / (1 - leverage)
        # a piece may contain no errors by chance; one additional unlikely label keeps its variance above 0
        event = hats.T @ np.broadcast_to(reference.event, residual.shape) / rows
        added = share * event / max(float(share @ event), 1e-300) * event
        meat = (design * squares[:, None]).T @ design + np.diag(np.append(added, 0.0))
        weight = inverse @ mean_row
        mean, of_reference = mean + float(mean_row @ fit), float(weight @ meat @ weight)
        # over-confident probabilities imply too small a variance of the labels
        chance = max(chance, float(share @ ((hats.T @ squares + added) / rows)))
    half = _Z * math.sqrt(chance / n + of_reference)
    return mean, mean - half, mean + half


def correctness(data: Predictions, temperature: float) -> Figure:
    """Return the function "the decision is correct" of each row, for labels whose probabilities have this temperature."""
    decided, log_p = data.predicted.cpu()[:, None], row_log_probs(data)
    p, colder = (
        torch.softmax(log_p / t, dim=1).gather(1, decided)[:, 0].numpy() for t in (temperature, temperature / _NEAR)
    )
    seen = None if data.labels is None else np.asarray(data.correct.cpu().double().numpy())
    return Figure(p, p * (1 - p), (p - colder) / math.log(_NEAR), seen)


def loss(data: Predictions, temperature: float) -> Figure:
    """Return the log-loss of each row, in nats, for labels whose probabilities have this temperature."""
    log_p = row_log_probs(data)
    parts = []
    for part in row_chunks(*log_p.shape):
        lost = -torch.where(log_p[part] == -torch.inf, 0.0, log_p[part])  # a class with p = 0 contributes 0
        p, colder = (torch.softmax(log_p[part] / t, dim=1) for t in (temperature, temperature / _NEAR))
        mean, rise = (p * lost).sum(dim=1), lost + log_p[part].amax(dim=1, keepdim=True)
        unlikely = torch.where(rise > 0, p, 0.0).sum(dim=1).clamp_min(1e-300)
        # E ℓ² − (E ℓ)² under the row's own probabilities, and E of the squared rise given that the label is unlikely
        variance, event = (p * lost * lost).sum(dim=1) - mean**2, (p * rise * rise).sum(dim=1) / unlikely
        change = ((p - colder) * lost).sum(dim=1) / math.log(_NEAR)
        parts.append(torch.stack([mean, variance.clamp_min(0), change, event]))
    expected, variance, change, event = torch.cat(parts, dim=1).numpy()
    seen = None if data.labels is None else np.asarray(data.nll.cpu().double().numpy())
    return Figure(expected, variance, change, seen, event)


def confusion_of(
    window: Predictions, reference: Predictions | None, temperature: float
) -> tuple[Floats, Floats, Floats]:
    """Return the expected fractions (K, K) of rows by decision and label, and both ends of their 95 % intervals.

    Among rows decided as class j, the reference corrects the probability of each class k by a linear function of the confidence.
    """
    classes, n = window.classes, len(window)
    # Σ p and Σ p (1 − p) of the rows decided as j: mean and variance of their count of each label
    p = torch.softmax(row_log_probs(window) / temperature, dim=1).numpy()
    mean, variance = _by_decision(window, p) / n, _by_decision(window, p * (1 - p)) / n**2
    if reference is not None:
        counts, centres = zip(*(_decision_columns(data) for data in (window, reference)), strict=True)
        share, rows = counts[0][:, None] / n, np.maximum(counts[1], 1)[:, None]
        # how the labelled rows decided as j correct the probabilities
        hits = torch.nn.functional.one_hot(reference.require_labels().cpu(), classes).numpy()
        residual = hits - torch.softmax(row_log_probs(reference) / temperature, dim=1).numpy()
        total, squares = _by_decision(reference, residual), _by_decision(reference, residual**2)
        away = (row_confidence(reference).cpu().numpy() - centres[1][reference.predicted.cpu().numpy()])[:, None]
        spread = _by_decision(reference, away**2)
        # few rows or equal confidences do not determine a slope, so the mean is used
        known = (rows >= _A_LINE) & (spread > 1e-9 * rows)
        slope = np.where(known, _by_decision(reference, away * residual) / np.where(known, spread, 1.0), 0.0)
        moved = np.where(known, (centres[0] - centres[1])[:, None], 0.0)
        each = (np.maximum(squares - total**2 / rows, 0) + 1 / classes) / np.maximum(rows - 1, 1)
        mean = mean + share * (total / rows + slope * moved)
        of_reference = share**2 * each * (1 / rows + moved**2 / np.where(known, spread, 1.0))
        variance = np.maximum(variance, share * each / n) + of_reference
    half = _Z * np.sqrt(variance) + 1 / (2 * n)
    return np.clip(mean, 0, 1), np.clip(mean - half, 0, 1), np.clip(mean + half, 0, 1)


def _by_decision(data: Predictions, rows: Floats) -> Floats:
    """Return the sums (K, C) of ``rows`` (N, C) over the rows decided as each class."""
    sums = torch.zeros(data.classes, rows.shape[1], dtype=torch.float64)
    return np.asarray(sums.index_add(0, data.predicted.cpu(), torch.from_numpy(rows)).numpy())


def _decision_columns(data: Predictions) -> tuple[Floats, Floats]:
    """Return the number (K,) of rows decided as each class, and their mean confidence; 0 where there are none."""
    one = np.stack([np.ones(len(data)), row_confidence(data).cpu().numpy()], axis=1)
    count, confidence = _by_decision(data, one).T
    return count, confidence / np.maximum(count, 1)
