"""Estimates of means over unlabelled rows from their probabilities, corrected by labelled reference rows.

For a function f(x, y) of a row, such as whether the decision is correct, the probabilities p(· | x) give the expectation
e(x) = Σ_k p_k f(x, k). The window's mean of f is estimated by

    mean_window e  +  Σ_b T_b · mean_reference(f − e | b),

with T_b the fraction of the window in stratum b of the score. The second term corrects the bias of p in the strata where the
window's rows lie; its sampling variance Σ_b T_b² s_b² / m_b includes the uncertainty of the calibrator, whether it was fitted
on these reference rows or on others. The randomness of the window's labels adds Σ Var(f | x) / n², which no reference reduces;
if the reference shows a larger variance (over-confident probabilities), that is used instead.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant._core.numerics import row_chunks
from calibrant.data.predictions import Predictions
from calibrant.operate.rows import confidence_of
from calibrant.statistics.interval import Interval

__all__ = ["Figure", "Strata", "confusion_of", "correctness", "loss", "projected"]

Floats = NDArray[np.float64]

LEVEL = 0.95
_Z = 1.959963984540054
_A_STRATUM, _MOST_STRATA = 100, 30  # reference rows per stratum; largest number of strata


@dataclass(frozen=True)
class Figure:
    """A function f of rows: its expectation and variance under the probabilities, and its values if labels are known.

    Args:
        expected: (N,) e(x).
        variance: (N,) Var(f | x).
        seen: (N,) f(x, y) of labelled rows, or None.
    """

    expected: Floats
    variance: Floats
    seen: Floats | None = None


@dataclass(frozen=True)
class Strata:
    """The stratum of each row of window and reference.

    Args:
        window: (N,) stratum of each row of the window.
        reference: (M,) stratum of each reference row.
        count: Number of strata.
    """

    window: NDArray[np.int64]
    reference: NDArray[np.int64]
    count: int

    @classmethod
    def of(cls, window: Floats, reference: Floats) -> "Strata":
        """Return strata of the scores ``window`` (N,) and ``reference`` (M,), with about equally many reference rows each."""
        bins = int(np.clip(len(reference) // _A_STRATUM, 1, _MOST_STRATA))
        edges = np.unique(np.quantile(reference, np.linspace(0, 1, bins + 1)[1:-1]))
        places = [np.asarray(np.searchsorted(edges, values, side="left")) for values in (window, reference)]
        return cls(places[0], places[1], len(edges) + 1)


def projected(window: Figure, reference: Figure | None, strata: Strata | None, *, step: float = 0.0) -> Interval:
    """Return the estimated mean of f over the window's rows, with a 95 % interval for the mean that their labels will give.

    Args:
        window: f of the rows without labels.
        reference: f of labelled rows; None assumes that the probabilities are calibrated.
        strata: Strata of both.
        step: Distance between possible values of f, 1 for correct and wrong; step / (2 n) is the continuity correction.
    """
    n = len(window.expected)
    mean, chance, of_reference = float(window.expected.mean()), float(window.variance.mean()), 0.0
    if reference is not None and strata is not None and reference.seen is not None:
        share = np.bincount(strata.window, minlength=strata.count) / n
        rows = np.bincount(strata.reference, minlength=strata.count)
        residual = reference.seen - reference.expected
        total = np.bincount(strata.reference, residual, minlength=strata.count)
        squares = np.bincount(strata.reference, residual**2, minlength=strata.count)
        means = total / np.maximum(rows, 1)
        # a stratum may have no errors by chance: one pseudo-row, spread over the strata, keeps their variance above 0
        spread = (np.maximum(squares - rows * means**2, 0) + step**2 / strata.count) / np.maximum(rows - 1, 1)
        mean += float(share @ means)
        chance = max(chance, float(share @ spread))
        of_reference = float((share**2 * spread / np.maximum(rows, 1)).sum())
    variance = chance / n + of_reference
    half = _Z * math.sqrt(variance) + step / (2 * n)
    return Interval(mean, mean - half, mean + half, LEVEL, "expected from probabilities")


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
        mean = (p * lost).sum(dim=1)
        parts.append(torch.stack([mean, (p * lost * lost).sum(dim=1) - mean**2]))
    expected, variance = torch.cat(parts, dim=1).clamp_min(0).numpy()
    seen = None if data.labels is None else np.asarray(data.nll.cpu().double().numpy())
    return Figure(expected, variance, seen)


def confusion_of(window: Predictions, reference: Predictions | None) -> tuple[Floats, Floats, Floats]:
    """Return the expected fractions (K, K) of rows by decision and label, and both ends of their 95 % intervals.

    The strata are the decisions: among rows decided as class j, the reference corrects the probability of each class k.
    """
    classes, n = window.classes, len(window)
    mean, variance = np.zeros((classes, classes)), np.zeros((classes, classes))
    decided = window.predicted.cpu()
    p = _log_probs(window).exp()
    for j in range(classes):
        rows = p[decided == j].numpy()
        mean[j], variance[j] = rows.sum(axis=0) / n, (rows * (1 - rows)).sum(axis=0) / n**2
    if reference is not None:
        share = np.bincount(decided.numpy(), minlength=classes) / n
        told, labels = reference.predicted.cpu(), reference.need_labels().cpu()
        q = _log_probs(reference).exp()
        for j in range(classes):
            rows = q[told == j].numpy()
            m = len(rows)
            residual = np.eye(classes)[labels[told == j].numpy()] - rows
            average = residual.sum(axis=0) / max(m, 1)
            spread = (np.maximum((residual**2).sum(axis=0) - m * average**2, 0) + 1 / classes) / max(m - 1, 1)
            mean[j] += share[j] * average
            variance[j] = np.maximum(variance[j], share[j] * spread / n) + share[j] ** 2 * spread / max(m, 1)
    half = _Z * np.sqrt(variance) + 1 / (2 * n)
    return np.clip(mean, 0, 1), np.clip(mean - half, 0, 1), np.clip(mean + half, 0, 1)


def _log_probs(data: Predictions) -> torch.Tensor:
    return data.logits.detach().cpu().double().log_softmax(dim=1)
