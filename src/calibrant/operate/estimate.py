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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant._core.check import refuse
from calibrant._core.config import json_data
from calibrant._core.constraints import Share, checked
from calibrant._core.notebook import to_html
from calibrant._core.numerics import row_chunks
from calibrant.calibrators import Calibrator
from calibrant.data.predictions import Predictions
from calibrant.errors import LeakError
from calibrant.metrics import entropy_rows
from calibrant.operate.rows import (
    ClassWindow,
    LabelledClasses,
    SomeCalibrator,
    confidence_of,
    matched_out_of_fold,
    need_source,
    stratum_edges,
)
from calibrant.statistics.means import Interval

Floats = NDArray[np.float64]

LEVEL = 0.95
_Z = 1.959963984540054
_A_STRATUM, _MOST_STRATA = 100, 30  # reference rows per stratum; largest number of strata
_MOST_CLASSES = 200  # for a confusion matrix
_NOTICED = 0.05
_FEWEST_RANKED = 10  # rows of each kind in a stratum whose entropies are compared
UNSEEN = (
    "What cannot be seen without labels: whether rows with the same scores are now labelled differently (concept shift). "
    "No interval here counts it; labels of a few hundred new rows would show it."
)

SHIFTED = (
    "The scores have moved. The intervals hold where rows of equal scores have the labels they had; they do not where the "
    "classes have become more or less frequent (label shift): then adapt the calibrator by PriorShift, and estimate without "
    "the reference."
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
        edges = stratum_edges(reference, bins=bins)
        places = [np.asarray(np.searchsorted(edges, values, side="left")) for values in (window, reference)]
        return cls(places[0], places[1], len(edges) + 1)


@dataclass(frozen=True)
class Moved:
    """Whether the scores are distributed as in the reference, and what else can be seen of the assumption.

    Args:
        p_value: Of equal distributions: twice the smaller p-value of confidences (Kolmogorov–Smirnov) and decisions (χ²).
        distance: Largest difference of the two distribution functions of the confidence.
        confidence: Mean confidence of the reference.
        beyond: Fraction of the window's rows whose confidence, or a feature of both, lies outside what the reference holds.
        hardness_p: That rows of equal confidence have as much entropy as in the reference (van Elteren's test): a small value says that
            they are of another kind; None for two classes, whose confidence determines it.
    """

    p_value: float
    distance: float
    confidence: float
    beyond: float = 0.0
    hardness_p: float | None = None

    @property
    def verdict(self) -> str:
        """ "moved" if the p-value is at most 5 %, else "as before"."""
        return "moved" if self.p_value <= _NOTICED else "as before"


@dataclass(frozen=True)
class Changed:
    """Intervals that also hold where P(the decision is right | scores) differs from the reference's by up to ``most``.

    The other classes keep their proportions.

    Args:
        most: The largest difference, in probability.
        accuracy: Of the accuracy.
        gap: Of confidence − accuracy.
        nll: Of the log-loss, or None.
        confusion_low: (K, K) lower ends of the confusion matrix, or None.
        confusion_high: (K, K) upper ends.
    """

    most: float
    accuracy: Interval
    gap: Interval
    nll: Interval | None
    confusion_low: Floats | None
    confusion_high: Floats | None


@dataclass(frozen=True)
class Estimate:
    """Estimated performance on the window's rows, with 95 % intervals for the values that their labels will give.

    Args:
        rows: Number of rows of the window.
        reference_rows: Number of labelled reference rows; 0 without a reference.
        confidence: Mean calibrated confidence of the decisions.
        accuracy: Accuracy on the window.
        gap: Confidence − accuracy: overall over- (+) or underconfidence (−).
        nll: Mean log-loss in nats; None if a reference label has probability 0, or any label of the window beside a reference.
        confusion: (K, K) fractions of rows by decision and label; None for more than 200 classes.
        confusion_low: (K, K) lower ends.
        confusion_high: (K, K) upper ends.
        atc: Accuracy estimated by average thresholded confidence, for comparison; None without a reference.
        moved: Whether the scores have moved; None without a reference.
        changed: The same figures where equal scores no longer have the same labels, for ``sensitivity`` > 0.
    """

    rows: int
    reference_rows: int
    confidence: float
    accuracy: Interval
    gap: Interval
    nll: Interval | None
    confusion: Floats | None
    confusion_low: Floats | None
    confusion_high: Floats | None
    atc: float | None
    moved: Moved | None
    changed: Changed | None = None

    _repr_html_ = to_html

    def plain(self) -> dict[str, Any]:
        """Return the estimate as JSON data; None becomes null."""
        verdict = None if self.moved is None else self.moved.verdict
        return {
            **json_data(self),
            "scores": verdict,
            "shift": SHIFTED if verdict == "moved" else None,
            "unseen": UNSEEN,
        }

    def __str__(self) -> str:
        def percent(one: Interval) -> str:
            return f"{100 * one.estimate:.2f} % [{100 * one.low:.2f}, {100 * one.high:.2f}]"

        lines = [
            f"{self.rows:,} rows without labels, {self.reference_rows:,} labelled reference rows",
            f"accuracy      {percent(self.accuracy)}",
            f"confidence    {100 * self.confidence:.2f} %; minus the accuracy {percent(self.gap)}",
        ]
        if self.nll is None:
            lines.append("log-loss      not estimated: some labels have probability 0, at which it is infinite")
        else:
            lines.append(f"log-loss      {self.nll.estimate:.4f} [{self.nll.low:.4f}, {self.nll.high:.4f}]")
        if self.atc is not None:
            lines.append(f"to compare    {100 * self.atc:.2f} % accuracy by average thresholded confidence (ATC)")
        if self.moved is None:
            lines.append("Without a reference the probabilities are taken to be right: intervals count chance alone.")
        else:
            lines.append(f"scores        {self.moved.verdict} (p = {self.moved.p_value:.3g})")
            if self.moved.verdict == "moved":
                lines.append(SHIFTED)
            if self.moved.beyond > _NOTICED:
                lines.append(
                    f"{100 * self.moved.beyond:.0f} % of the rows lie beyond the reference: it says nothing of their labels."
                )
            if (p := self.moved.hardness_p) is not None and p <= _NOTICED:
                lines.append(
                    f"Rows of equal confidence have another entropy than before (p = {p:.3g}): the assumption is doubtful."
                )
        if self.changed is not None:
            lines.append(
                f"If equal scores are right up to {100 * self.changed.most:g} points more or less often than before:"
            )
            lines.append(f"accuracy      {percent(self.changed.accuracy)}")
        return "\n".join([*lines, UNSEEN])


@checked
def estimate(
    predictions: ClassWindow,
    calibrator: SomeCalibrator | None = None,
    *,
    reference: LabelledClasses | None = None,
    sensitivity: Share = 0.0,
) -> Estimate:
    """Estimate accuracy, log-loss and confusion matrix of rows without labels.

    Valid if the distribution of labels given the *scores* is that of the reference. Labels given the inputs are not enough: where
    more rows are hard than their scores tell, the accuracy falls and no score says so. Labelled reference rows correct the
    probabilities in each stratum of scores. The intervals are for the values that the window's labels will give: they include the
    randomness of these labels, which dominates in windows of few hundred rows, and the uncertainty from the number of reference
    rows.

    Args:
        predictions: The window, of independent rows; labels are not needed.
        calibrator: Applied to window and reference first; None if they are already calibrated.
        reference: At least 50 labelled, independent rows. They may be those the calibrator was fitted on: it is then refitted
            five times to calibrate each fifth by the others.
        sensitivity: δ: also return intervals that hold where P(the decision is right | scores) has changed by up to δ, in probability.

    Raises:
        InputError: For predictions of another kind, weighted or dependent rows, or another number of classes.

    Examples:
        >>> from calibrant import Predictions
        >>> z = torch.randn(3000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2
        >>> y = torch.multinomial(z.softmax(dim=1), 1, generator=torch.Generator().manual_seed(1))[:, 0]
        >>> found = estimate(Predictions.from_logits(z[:1000]), reference=Predictions.from_logits(z[1000:], y[1000:]))
        >>> found.accuracy.low < float((z.argmax(dim=1) == y)[:1000].double().mean()) < found.accuracy.high
        True
        >>> found.moved.verdict
        'as before'

    References:
        Białek, Kuberski, Perrakis, Bifet 2024, Estimating Model Performance Under Covariate Shift Without Labels (CBPE);
        Garg, Balakrishnan, Lipton, Neyshabur, Sedghi 2022, Leveraging Unlabeled Data to Predict OOD Performance (ATC), eq. 1, 2.
    """
    window = _calibrated_window(predictions, calibrator)
    known = same = None
    if reference is not None:
        known = _reference_out_of_fold(reference, calibrator)
        same = _calibrated_window(reference, calibrator)
        if known.classes != window.classes or len(known) < 50:
            got = f"{len(known)} of {known.classes}"
            raise refuse(f"at least 50 reference rows of {window.classes} classes", got, "pass rows of the same model")
    right, told = correctness(window), None if known is None else correctness(known)
    # strata use the scores of one calibrator for window and reference; only the residuals are out-of-fold
    strata = None if same is None else Strata.of(right.expected, correctness(same).expected)
    accuracy = projected(right, told, strata, step=1.0)
    mean, low, high = (min(1.0, max(0.0, x)) for x in (accuracy.estimate, accuracy.low, accuracy.high))
    accuracy = Interval(mean, low, high, LEVEL, "CBPE")
    confidence = float(right.expected.mean())
    small = window.classes <= _MOST_CLASSES
    cells = confusion_of(window, known) if small else (None, None, None)
    gap = Interval(confidence - mean, confidence - high, confidence - low, LEVEL, "CBPE")
    found = Estimate(
        rows=len(window),
        reference_rows=0 if known is None else len(known),
        confidence=confidence,
        accuracy=accuracy,
        gap=gap,
        nll=_loss(window, known, strata),
        confusion=cells[0],
        confusion_low=cells[1],
        confusion_high=cells[2],
        atc=None if told is None else _atc(right, told),
        moved=None if same is None or strata is None else _moved(window, same, strata),
    )
    return replace(found, changed=_changed(found, window, sensitivity)) if sensitivity else found


def _changed(found: Estimate, window: Predictions, most: float) -> Changed:
    """Return the intervals of ``found`` where P(right | scores) may be up to δ = ``most`` lower or higher in every row.

    The other classes share a change d as their probabilities o_k (Σ o_k = 1) do: the mean of f changes by d · (f of the decision −
    Σ o_k f_k). With a reference d may be −δ to δ, for P(right | scores) need not be the confidence c; without one, P is c, and d lies in
    [−min(δ, c), min(δ, 1 − c)]. The labels are then also more random: for a fraction Var(f) grows by at most |its change|, for
    another f by that of E (f − μ)², μ its mean before.
    """
    log_p, decided = _log_probs(window), window.predicted.cpu()
    n, at = len(log_p), (torch.arange(len(log_p)), decided)
    c, delta = log_p[at].exp(), torch.full((n,), most, dtype=torch.float64)
    known = found.reference_rows > 0
    up, down = (delta, delta) if known else (delta.minimum(1 - c), delta.minimum(c))
    # where the decision has all the probability, the others are taken to be equally likely
    others = torch.where((c < 1)[:, None], log_p.exp(), 1.0).index_put(at, torch.zeros(()).double())
    others = others / others.sum(dim=1, keepdim=True)

    def end(half: Floats | float, shift: Floats | float, more: Floats | float) -> Any:
        """Return how far an end lies from the estimate, with ``more`` variance of a row's f and a mean moved by ``shift``."""
        return np.sqrt(half**2 + _Z**2 * more / n) + shift

    def wider(one: Interval, below: float, above: float, more: float, ends: tuple[float, float]) -> Interval:
        low = max(one.estimate - float(end(one.estimate - one.low, below, more)), ends[0])
        high = min(one.estimate + float(end(one.high - one.estimate, above, more)), ends[1])
        return Interval(one.estimate, low, high, one.level, f"{one.method}, equal scores changed by up to {most:g}")

    lower, higher = float(down.mean()), float(up.mean())
    nll = None
    if found.nll is not None:
        # a class without probability has no share in a change, unless it is decided or the decision has all of it
        f = torch.where((log_p > -math.inf) | (others.index_put(at, torch.ones(()).double()) > 0), -log_p, 0.0)
        mu = torch.where(log_p > -math.inf, log_p.exp() * f, 0.0).sum(dim=1, keepdim=True)
        rise = (others * f).sum(dim=1) - f[at]  # of the mean of f, for each unit of probability that the decision loses
        spread = (others * (f - mu).square()).sum(dim=1) - (f[at] - mu[:, 0]).square()  # and of E (f − μ)² ≥ Var(f)
        if bool(torch.isfinite(rise).all()):
            below, above = torch.maximum(up * rise, -down * rise), torch.maximum(down * rise, -up * rise)
            variance = float(torch.maximum(down * spread, -up * spread).mean())
            nll = wider(found.nll, float(below.mean()), float(above.mean()), variance, (0.0, math.inf))
    low, high = found.confusion_low, found.confusion_high
    if found.confusion is not None and low is not None and high is not None:
        cells = torch.zeros(2, *low.shape, dtype=torch.float64)
        for one, (change, other) in enumerate(((down, up), (up, down))):  # lower ends, upper ends
            cells[one].index_add_(0, decided, others * other[:, None] / n)
            cells[one].diagonal().copy_(torch.bincount(decided, change, minlength=len(low)) / n)
        middle, (falls, rises) = found.confusion, cells.numpy()
        low, high = middle - end(middle - low, falls, falls), middle + end(high - middle, rises, rises)
        low, high = np.clip(low, 0, 1), np.clip(high, 0, 1)
    accuracy, gap, both = found.accuracy, found.gap, max(lower, higher)
    return Changed(
        most,
        wider(accuracy, lower, higher, both, (0.0, 1.0)),
        wider(gap, higher, lower, both, (-1.0, 1.0)),
        nll,
        low,
        high,
    )


def _calibrated_window(data: Predictions, calibrator: Calibrator | None) -> Predictions:
    # labels are not used here, so rows of the fit are allowed
    return data if calibrator is None else data.calibrated_by(calibrator, allow_fit_rows=True)


def _reference_out_of_fold(reference: Predictions, calibrator: Calibrator | None) -> Predictions:
    """Return the calibrated reference; rows the calibrator was fitted on are calibrated out of fold, to avoid optimism."""
    if calibrator is None:
        return reference
    need_source(calibrator)
    try:
        return reference.calibrated_by(calibrator)
    except LeakError:  # fitted on these rows
        return matched_out_of_fold(calibrator, reference)[0]


def _loss(window: Predictions, reference: Predictions | None, strata: Strata | None) -> Interval | None:
    told = None if reference is None else loss(reference)
    # a reference of finite loss does not exclude an infinite one where the window gives some label the probability 0
    if told is not None and (np.isinf(told.seen).any() or bool(torch.isinf(_log_probs(window)).any())):  # type: ignore[arg-type]
        return None
    found = projected(loss(window), told, strata)  # a log-loss is never below 0
    return Interval(max(0.0, found.estimate), max(0.0, found.low), max(0.0, found.high), found.level, found.method)


def _atc(window: Figure, reference: Figure) -> float:
    """Return the fraction of the window above the confidence below which the reference has as many rows as errors."""
    errors = round(float((1 - reference.seen).sum())) if reference.seen is not None else 0
    # eq. 1: the threshold t with as many reference confidences below it as there are errors
    place = np.sort(reference.expected)[min(errors, len(reference.expected) - 1)]
    return float((window.expected >= place).mean())


def _moved(window: Predictions, reference: Predictions, strata: Strata) -> Moved:
    from scipy.stats import chi2_contingency, ks_2samp

    a, b = (np.asarray(confidence_of(data).cpu().numpy()) for data in (window, reference))
    found = ks_2samp(a, b, method="asymp")
    counts = torch.stack([data.predicted.cpu().bincount(minlength=window.classes) for data in (window, reference)])
    table = counts[:, counts.sum(dim=0) > 0].numpy()
    decisions = float(chi2_contingency(table).pvalue) if table.shape[1] > 1 else 1.0
    # outside what the reference holds nothing is known of the labels
    beyond = (a < b.min() - 1e-9) | (a > b.max() + 1e-9)  # the last digits of few scores say nothing
    for name in set(window.features or {}) & set(reference.features or {}):
        new, old = (np.asarray(data.features[name]) for data in (window, reference))  # type: ignore[index]
        if {new.dtype.kind, old.dtype.kind} & set("UO"):
            beyond |= ~np.isin(new.astype(str), old.astype(str))
        elif not np.isnan(old).all():
            beyond |= (new < np.nanmin(old)) | (new > np.nanmax(old))
    hardness = None if window.classes == 2 else _hardness(window, reference, strata)
    # two tests of one hypothesis: Bonferroni
    p_value = min(1.0, 2 * min(float(found.pvalue), decisions))
    return Moved(p_value, float(found.statistic), float(b.mean()), float(beyond.mean()), hardness)


def _hardness(window: Predictions, reference: Predictions, strata: Strata) -> float:
    """Return the p-value of van Elteren's (1960) test: Wilcoxon's rank sums of the entropies within strata, added up.

    What entropy follows from the confidence within a stratum is taken out first, by a parabola; of fewer than three scores exactly.
    """
    from scipy.special import ndtr
    from scipy.stats import rankdata

    total = variance = 0.0
    entropy = np.concatenate([entropy_rows(data).cpu().numpy() for data in (window, reference)])
    score = np.concatenate([confidence_of(data).cpu().numpy() for data in (window, reference)])
    stratum, new = np.concatenate([strata.window, strata.reference]), np.arange(len(score)) < len(window)
    for number in range(strata.count):
        inside = stratum == number
        n, m = int(inside.sum()), int((inside & new).sum())
        if min(m, n - m) < _FEWEST_RANKED:
            continue
        degree = min(2, len(np.unique(np.round(score[inside], 9))) - 1)
        curve = np.polynomial.Polynomial.fit(score[inside], entropy[inside], degree)
        ranks = rankdata(np.round(entropy[inside] - curve(score[inside]), 9))  # rounding errors are ties
        total += (ranks[new[inside]].sum() - m * (n + 1) / 2) / (n + 1)
        variance += m * (n - m) / n * float(np.var(ranks, ddof=1)) / (n + 1) ** 2
    return float(2 * ndtr(-abs(total) / math.sqrt(variance))) if variance > 0 else 1.0


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
    variance = chance / n + of_reference
    half = _Z * math.sqrt(variance) + step / (2 * n)
    return Interval(mean, mean - half, mean + half, LEVEL, "expected from probabilities")


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
        parts.append(
            torch.stack([mean, (p * lost * lost).sum(dim=1) - mean**2, (p * rise * rise).sum(dim=1) / unlikely])
        )
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
