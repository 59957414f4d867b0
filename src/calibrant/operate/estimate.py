"""Estimates of accuracy, log-loss and the confusion matrix of unlabelled rows, from calibrated probabilities.

For a function f(x, y) of a row, such as whether the decision is correct, the probabilities p(· | x) give the expectation
e(x) = Σ_k p_k f(x, k). The window's mean of f is estimated by

    mean_window e  +  Σ_b T_b · mean_reference(f − e | b),

with T_b the fraction of the window in stratum b of the score. The second term corrects the bias of p in the strata where the
window's rows lie; its sampling variance Σ_b T_b² s_b² / m_b includes the uncertainty of the calibrator, whether it was fitted
on these reference rows or on others. The randomness of the window's labels adds Σ Var(f | x) / n², which no reference reduces;
if the reference shows a larger variance (over-confident probabilities), that is used instead.
"""

import math
from dataclasses import asdict, dataclass
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
    CLASS_WINDOW,
    LABELLED_CLASSES,
    confidence_of,
    matched_out_of_fold,
    need_source,
    stratum_edges,
)

Floats = NDArray[np.float64]

_Z = 1.959963984540054
_A_STRATUM, _MOST_STRATA = 100, 30  # reference rows per stratum; largest number of strata
_FEWEST = 50  # reference rows
_MOST_CLASSES = 200  # for a confusion matrix
_NOTICED = 0.05
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
        seen: (N,) f(x, y) of labelled rows, or None.
        event: (N,) the mean square of how far an unlikely label moves f.
    """

    expected: Floats
    variance: Floats
    seen: Floats | None = None
    event: Floats | float = 1.0


@dataclass(frozen=True)
class Strata:
    """The stratum of each row of the window (N,) and of the reference (M,), and the number of strata."""

    window: NDArray[np.int64]
    reference: NDArray[np.int64]
    count: int

    @classmethod
    def of(cls, window: Floats, reference: Floats) -> "Strata":
        """Return strata of the scores ``window`` (N,) and ``reference`` (M,), with about equally many reference rows each."""
        edges = stratum_edges(reference, bins=int(np.clip(len(reference) // _A_STRATUM, 1, _MOST_STRATA)))
        return cls(np.searchsorted(edges, window), np.searchsorted(edges, reference), len(edges) + 1)


@dataclass(frozen=True)
class Estimate:
    """Estimated performance on the window's rows, with 95 % intervals for the values that their labels will give.

    Args:
        lines: The accuracy, the confidence − accuracy (overconfidence is positive), and the log-loss in nats; without the log-loss if a
            label of the reference has probability 0, or any label of the window beside a reference.
        rows: Number of rows of the window.
        reference_rows: Number of labelled reference rows; 0 without a reference.
        confusion: (K, K) fractions of rows by decision and label; None for more than 200 classes.
        confusion_low: (K, K) lower ends.
        confusion_high: (K, K) upper ends.
        moved_p: p-value of scores that are distributed as in the reference: twice the smaller one of confidences (Kolmogorov–Smirnov)
            and decisions (χ²); None without a reference.
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
        """Whether the scores are distributed otherwise than in the reference, at 5 %."""
        return self.moved_p is not None and self.moved_p <= _NOTICED

    def plain(self) -> dict[str, Any]:
        """Return the estimate as JSON data; None becomes null."""
        return json_data({**asdict(self), "moved": self.moved})  # type: ignore[no-any-return]

    def __str__(self) -> str:
        lines = [f"{self.rows:,} rows without labels, {self.reference_rows:,} labelled reference rows"]
        lines += [f"{line.name:<22}{line.value:.4f} [{line.low:.4f}, {line.high:.4f}]" for line in self.lines]
        if self.nll is None:
            lines.append("log-loss              not estimated: some labels have probability 0, at which it is infinite")
        if self.moved_p is None:
            lines.append("Without a reference the probabilities are taken to be right: intervals count chance alone.")
        else:
            lines.append(f"scores                {'moved' if self.moved else 'as before'} (p = {self.moved_p:.3g})")
        return "\n".join([*lines, *([SHIFTED] if self.moved else []), ASSUMED])


def estimate(
    predictions: Predictions, calibrator: Calibrator | None = None, *, reference: Predictions | None = None
) -> Estimate:
    """Return estimated accuracy, log-loss and confusion matrix of rows without labels.

    Valid if rows with equal scores have labels as before: features may shift (covariate shift), but P(label | scores) may not.

    Args:
        predictions: Of independent rows without weights; labels are not read. Calibrated, or with ``calibrator`` before calibration.
        calibrator: Fitted, applied to both; None for predictions that are calibrated.
        reference: At least 50 labelled, independent rows of the same model; they may be those that the calibrator was fitted on. None
            takes the probabilities to be right.

    Raises:
        InputError: For predictions of another kind, weighted or dependent rows, or another number of classes.

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
    window = _calibrated(CLASS_WINDOW.check(predictions, "predictions", "estimate"), calibrator)
    known = strata = moved = None
    right = correctness(window)
    if reference is not None:
        rows = LABELLED_CLASSES.check(reference, "reference", "estimate")
        known, same = _out_of_fold(rows, calibrator), _calibrated(rows, calibrator)
        if known.classes != window.classes or len(known) < _FEWEST:
            raise InputError(
                f"the reference must hold at least {_FEWEST} rows of {window.classes} classes, not {len(known)} of {known.classes}"
            )
        # strata use the scores of one calibrator for window and reference; only the residuals are out-of-fold
        strata, moved = Strata.of(right.expected, correctness(same).expected), _moved(window, same)
    n, confidence = len(window), float(right.expected.mean())
    value, low, high = (
        min(1.0, max(0.0, x)) for x in projected(right, None if known is None else correctness(known), strata, step=1.0)
    )
    lines = [
        Line("accuracy", value, low, high, n),
        Line("confidence − accuracy", confidence - value, confidence - high, confidence - low, n),
    ]
    told = None if known is None else loss(known)
    # a reference of finite loss does not exclude an infinite one where the window gives some label the probability 0
    if told is None or not (np.isinf(told.seen).any() or bool(torch.isinf(_log_probs(window)).any())):  # type: ignore[arg-type]
        value, low, high = (max(0.0, x) for x in projected(loss(window), told, strata))
        lines.append(Line("log-loss", value, low, high, n))
    confusion, low_ends, high_ends = (
        confusion_of(window, known) if window.classes <= _MOST_CLASSES else (None, None, None)
    )
    return Estimate(tuple(lines), n, 0 if known is None else len(known), confusion, low_ends, high_ends, moved)


def _calibrated(data: Predictions, calibrator: Calibrator | None) -> Predictions:
    # labels are not used here, so rows of the fit are allowed
    return data if calibrator is None else data.calibrated_by(calibrator, allow_fit_rows=True)


def _out_of_fold(reference: Predictions, calibrator: Calibrator | None) -> Predictions:
    """Return the calibrated reference; rows the calibrator was fitted on are calibrated out of fold, to avoid optimism."""
    if calibrator is None:
        return reference
    need_source(calibrator)
    try:
        return reference.calibrated_by(calibrator)
    except LeakError:  # fitted on these rows
        return matched_out_of_fold(calibrator, reference)[0]


def _moved(window: Predictions, reference: Predictions) -> float:
    from scipy.stats import chi2_contingency, ks_2samp

    a, b = (np.asarray(confidence_of(data).cpu().numpy()) for data in (window, reference))
    counts = torch.stack([data.predicted.cpu().bincount(minlength=window.classes) for data in (window, reference)])
    table = counts[:, counts.sum(dim=0) > 0].numpy()
    decisions = float(chi2_contingency(table).pvalue) if table.shape[1] > 1 else 1.0
    # two tests of one hypothesis: Bonferroni
    return min(1.0, 2 * min(float(ks_2samp(a, b, method="asymp").pvalue), decisions))


def projected(
    window: Figure, reference: Figure | None, strata: Strata | None, *, step: float = 0.0
) -> tuple[float, float, float]:
    """Return the estimated mean of f over the window's rows, and the 95 % interval of the mean that their labels will give.

    Args:
        window: f of the rows without labels.
        reference: f of labelled rows; None assumes that the probabilities are calibrated.
        strata: Strata of both.
        step: Distance between possible values of f, 1 for correct and wrong; step / (2 n) is the continuity correction.
    """
    n = len(window.expected)
    mean, chance, of_reference = float(window.expected.mean()), float(window.variance.mean()), 0.0
    if reference is not None and strata is not None and reference.seen is not None:
        # T_b and m_b of the formula at the top
        share = np.bincount(strata.window, minlength=strata.count) / n
        residual = reference.seen - reference.expected
        # strata may have no errors by chance: one unlikely label more keeps their variance above 0, placed where it would count
        each = np.broadcast_to(reference.event, residual.shape)
        rows, total, squares, sums = (
            np.bincount(strata.reference, one, minlength=strata.count).astype(float)
            for one in (np.ones_like(residual), residual, residual**2, each)
        )
        event = np.where(rows > 0, sums / np.maximum(rows, 1), each.mean())
        place = share * event / max(float(share @ event), 1e-300)
        added, seen, of_means = (part.sum() for part in _correction(share, rows, total, squares, place * event))
        mean, of_reference = mean + float(added), float(of_means)
        # over-confident probabilities promise too little variance of the labels
        chance = max(chance, float(seen))
    half = _Z * math.sqrt(chance / n + of_reference) + step / (2 * n)
    return mean, mean - half, mean + half


def _correction(
    share: Floats, rows: Floats, total: Floats, squares: Floats, event: Floats | float
) -> tuple[Floats, Floats, Floats]:
    """Return by stratum what residuals f − e add to the mean, the variance of f that they show, and that of what they add.

    Args:
        share: T_b, the fraction of the window.
        rows: m_b, of the reference.
        total: Σ (f − e) over the reference.
        squares: Σ (f − e)² likewise.
        event: The squares of one unlikely label more.
    """
    means = total / np.maximum(rows, 1)
    spread = (np.maximum(squares - rows * means**2, 0) + event) / np.maximum(rows - 1, 1)
    return share * means, share * spread, share**2 * spread / np.maximum(rows, 1)


def correctness(data: Predictions) -> Figure:
    """Return the function "the decision is correct" of each row."""
    p = np.asarray(confidence_of(data).cpu().numpy())
    seen = None if data.labels is None else np.asarray(data.correct.cpu().double().numpy())
    return Figure(p, p * (1 - p), seen)


def loss(data: Predictions) -> Figure:
    """Return the log-loss of each row, in nats."""
    log_p = _log_probs(data)
    parts = []
    for part in row_chunks(*log_p.shape):
        lost = -torch.where(log_p[part] == -torch.inf, 0.0, log_p[part])  # a class with p = 0 contributes 0
        p = log_p[part].exp()
        mean, rise = (p * lost).sum(dim=1), lost + log_p[part].amax(dim=1, keepdim=True)
        unlikely = torch.where(rise > 0, p, 0.0).sum(dim=1).clamp_min(1e-300)
        # E ℓ and E ℓ² − (E ℓ)² under the row's own probabilities, and E of the squared rise given that the label is unlikely
        variance, event = (p * lost * lost).sum(dim=1) - mean**2, (p * rise * rise).sum(dim=1) / unlikely
        parts.append(torch.stack([mean, variance, event]))
    expected, variance, event = torch.cat(parts, dim=1).clamp_min(0).numpy()
    seen = None if data.labels is None else np.asarray(data.nll.cpu().double().numpy())
    return Figure(expected, variance, seen, event)


def confusion_of(window: Predictions, reference: Predictions | None) -> tuple[Floats, Floats, Floats]:
    """Return the expected fractions (K, K) of rows by decision and label, and both ends of their 95 % intervals.

    The strata are the decisions: among rows decided as class j, the reference corrects the probability of each class k.
    """
    classes, n = window.classes, len(window)

    def by_decision(data: Predictions, rows: torch.Tensor) -> Floats:
        sums = torch.zeros(classes, classes, dtype=torch.float64).index_add(0, data.predicted.cpu(), rows)
        return np.asarray(sums.numpy())

    # Σ p and Σ p (1 − p) of the rows decided as j: mean and variance of their count of each label
    p = _log_probs(window).exp()
    mean, variance = by_decision(window, p) / n, by_decision(window, p * (1 - p)) / n**2
    if reference is not None:
        decided, rows = (
            np.bincount(data.predicted.cpu().numpy(), minlength=classes).astype(float)[:, None]
            for data in (window, reference)
        )
        # what the labelled rows decided as j add to the probabilities
        hits = torch.nn.functional.one_hot(reference.need_labels().cpu(), classes)
        residual = hits - _log_probs(reference).exp()
        total, squares = by_decision(reference, residual), by_decision(reference, residual.square())
        added, chance, of_reference = _correction(decided / n, rows, total, squares, 1 / classes)
        mean, variance = mean + added, np.maximum(variance, chance / n) + of_reference
    half = _Z * np.sqrt(variance) + 1 / (2 * n)
    return np.clip(mean, 0, 1), np.clip(mean - half, 0, 1), np.clip(mean + half, 0, 1)


def _log_probs(data: Predictions) -> torch.Tensor:
    return data.logits.detach().cpu().double().log_softmax(dim=1)
