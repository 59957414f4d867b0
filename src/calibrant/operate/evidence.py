"""Anytime-valid evidence that calibration has changed since the reference.

For outcomes y with log-odds ℓ let L(u) be the likelihood under changed log-odds: ℓ + u for a shift, e^(u/2) ℓ for a slope. The
reference rows determine u up to the posterior π₀ ∝ L_reference. Without a change all rows have the probability ∫ π₀ L. If u
changed to an unknown value at some time, the rows before it have ∫ π₀ L and those after it ∫ π₁ L, with π₁ wider than π₀. The
likelihood ratio, averaged over the time of change with fixed weights, is a martingale if nothing has changed, in any order of
the rows. So the probability that it ever exceeds 1/α is at most α (Ville 1939), including the uncertainty of the reference.
The likelihood is that of probabilities with the reference's own curve: how far its bins of confidence are off is taken out first
(``ReferenceCurve``), since a constant error of another shape than a shift or slope would else be evidence of a change that never was.
Of a class all rows of a bin of its probability have one rate (``ClassCurves``): given the bin its labels then are independent with
that very rate, whatever the model says within it, so that their sums vary as the likelihood says.
log L is a sum over rows, stored at 16 Chebyshev nodes: sums of parts can be added, and interpolation to any u is accurate to
1e-8 per row.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant._core.numerics import log1mexp
from calibrant.data.checks import Data
from calibrant.data.predictions import Predictions
from calibrant.operate.rows import stratum_edges

Floats = NDArray[np.float64]

REACH = 2.0  # largest |u|, in log-odds; slopes lie between e^−1 and e
NODES = 16
CLASSES = 100  # with more classes, single classes are not monitored
_A_BIN, _MOST_BINS, _STEPS = 50, 15, 40  # rows in a bin of the curve; bins; steps to its offsets, which lie within ±24
_HALF = 0.5  # of an event more than were seen: a bin without any has a finite log-odds
_GRID = np.linspace(-REACH, REACH, 801)
_LARGEST = 12.0  # log-odds are clipped to this, so that a single row cannot decide
_JUMP, _SPREAD = 0.4, 0.25  # mean, in either direction, and standard deviation of the change under π₁, in log-odds
_OVERCONFIDENT = 0.7  # prior probability, under π₁, of a change towards overconfidence, which is the common case
_SHIFT, _SLOPE, _OF_CLASSES, _LOSS = 0.4, 0.2, 0.35, 0.05  # prior weights of the monitored quantities
_BETS = 0.9 / 2.0 ** np.arange(8)  # fractions of the largest possible bet on the log-loss


def _nodes() -> Floats:
    # the zeros of T₁₆: interpolation there is nearly the best polynomial
    return np.asarray(REACH * np.cos((2 * np.arange(NODES) + 1) * np.pi / (2 * NODES)))


def _interpolation() -> Floats:
    """Return the matrix (G, 16) from values at the nodes to values on the grid."""
    nodes = _nodes() / REACH
    vandermonde = np.polynomial.chebyshev.chebvander(nodes, NODES - 1)
    return np.asarray(np.polynomial.chebyshev.chebvander(_GRID / REACH, NODES - 1) @ np.linalg.inv(vandermonde))


_TO_GRID = _interpolation()


def quantity_names(classes: int) -> list[str]:
    """Return the names of the monitored quantities: shift, slope, each of K classes (none for K = 0 or many)."""
    return ["shift", "slope", *(f"class {k}" for k in range(classes if classes <= CLASSES else 0))]


@dataclass(frozen=True, eq=False)
class ReferenceCurve:
    """How far the log-odds of correctness lie from those of the confidence, by bins of confidence of the reference.

    With its offset v a bin has the rate of ``_rates``. Its noise along shift and slope is what the posterior of these two counts, since
    both are fitted on the same rows; along other directions it has no first-order effect.

    Args:
        edges: (B − 1,) between the bins.
        offsets: (B,) log-odds.
    """

    edges: Floats
    offsets: Floats

    @classmethod
    def of(cls, data: Data, values: Floats | None = None) -> "ReferenceCurve":
        """Return the curve of labelled rows, with about ``_A_BIN`` rows or more a bin; ``values`` as in ``gather``."""
        p, right = (np.asarray(part.cpu().double().numpy()) for part in (data.confidence, data.correct))
        p = p if values is None else values[:, -1]
        edges = stratum_edges(p, bins=_bins_for(len(p)))
        index, size = np.searchsorted(edges, p), len(edges) + 1
        log_odds, v = _clipped_log_odds(torch.from_numpy(p)).numpy(), np.zeros(size)
        count, hits, total = (np.bincount(index, each, size).astype(float) for each in (np.ones_like(p), right, p))
        hits = count * _rates(count, hits, total)
        for _ in range(_STEPS):  # Newton; the likelihood is concave, and a step of at most 1 cannot overshoot far
            q = 1 / (1 + np.exp(-(log_odds + v[index])))
            slope, bend = (np.bincount(index, each, size) for each in (q, q * (1 - q)))
            v += np.clip((hits - slope) / np.maximum(bend, 1e-300), -1, 1)
        return cls(edges, v)

    def moved(self, p: Tensor) -> Tensor:
        """Return the probabilities (N,) float64 that confidences ``p`` (N,) have on this curve."""
        index = np.searchsorted(self.edges, p.double().numpy())
        return torch.sigmoid(_clipped_log_odds(p.double()) + torch.from_numpy(self.offsets[index]))


def _bins_for(rows: int) -> int:
    return int(np.clip(rows // _A_BIN, 1, _MOST_BINS))


def _rates(count: Floats, hits: Floats, total: Floats) -> Floats:
    """Return the rate of an event in bins (…, B) of ``count`` rows with ``hits`` events, of which probabilities say ``total``.

    An event, and its absence, count half a time more than seen, or as often as the probabilities expect if that is less: what is not
    seen keeps the rate that the model says, and one that it calls impossible has the rate that is seen. (A normal prior of the log-odds,
    which one event moves by 1 at most, hides such events from the variance.) Then all log-odds are shifted so that the sum over bins is
    what was seen, at which the reference's posterior of a shift is centred.
    """
    more, less = np.minimum(_HALF, total), np.minimum(_HALF, count - total)
    rate = ((hits + more) / np.maximum(count + more + less, 1e-300)).clip(1e-12, 1 - 1e-12)
    seen, expected, rows = (each.sum(axis=-1, keepdims=True) for each in (hits, total, count))
    wanted = seen.clip(np.minimum(_HALF, expected), rows - np.minimum(_HALF, rows - expected))
    log_odds = np.log(rate) - np.log1p(-rate)
    for _ in range(_STEPS):  # Newton, as in ``ReferenceCurve``
        bend = (count * rate * (1 - rate)).sum(axis=-1, keepdims=True)
        log_odds = log_odds + np.clip(
            (wanted - (count * rate).sum(axis=-1, keepdims=True)) / np.maximum(bend, 1e-300), -1, 1
        )
        rate = 1 / (1 + np.exp(-log_odds))
    return np.asarray(rate)


@dataclass(frozen=True, eq=False)
class ClassCurves:
    """How frequent each class is in the reference, by bins of its log-odds.

    Args:
        edges: (K, B − 1) between the bins; infinite beyond the last of a class with fewer.
        log_odds: (K, B) of the class in each bin.
    """

    edges: Floats
    log_odds: Floats

    @classmethod
    def of(cls, data: Data, classes: int, values: Floats | None = None) -> "ClassCurves":
        """Return the curves of labelled rows; none where single classes are not monitored. ``values`` as in ``gather``."""
        if not isinstance(data, Predictions) or not 0 < classes <= CLASSES:
            return cls(np.empty((0, 0)), np.empty((0, 0)))
        log_odds, labels = _class_log_odds(data, values), data.need_labels().cpu()
        bins = _bins_for(len(data))
        edges = np.full((classes, bins - 1), np.inf)
        for k, column in enumerate(log_odds.T.cpu().numpy()):
            p = 1 / (1 + np.exp(-column))
            # half of the bins by rows, half by what they tell of the class: most rows are surely of another one
            told = p * (1 - p)
            own = stratum_edges(column, bins=bins, weight=1 / len(p) + told / told.sum())
            edges[k, : len(own)] = own
        empty = cls(edges, np.zeros((classes, bins)))
        count, hits = empty.counts(log_odds, labels)
        total = empty.counts(log_odds, labels, values=torch.sigmoid(log_odds))[0]
        return cls(edges, _clipped_log_odds(torch.from_numpy(_rates(count, hits, total))).numpy())

    def counts(self, log_odds: Tensor, labels: Tensor, *, values: Tensor | None = None) -> tuple[Floats, Floats]:
        """Return how many rows lie in each bin (K, B), or the sums of their ``values``, and how many of them are of the class.

        Args:
            log_odds: (N, K).
            labels: (N,).
            values: (N, K), or None for 1.
        """
        classes, bins = self.log_odds.shape
        edges = torch.from_numpy(self.edges).to(log_odds.device)
        place = (
            torch.searchsorted(edges, log_odds.T.contiguous())
            + bins * torch.arange(classes, device=edges.device)[:, None]
        )
        own = place.gather(0, labels.to(place.device)[None])[0]
        weights = None if values is None else values.T.reshape(-1)
        found = [
            torch.bincount(place.reshape(-1), weights, classes * bins),
            torch.bincount(own, minlength=classes * bins),
        ]
        rows, hits = (each.double().cpu().numpy().reshape(classes, bins) for each in found)
        return rows, hits

    def terms(self, count: Floats, hits: Floats) -> Tensor:
        """Return log L(u) − log L(0) (K, 16) at the nodes of the rows with these ``counts``."""
        log_odds, nodes = torch.from_numpy(self.log_odds), torch.from_numpy(_nodes())
        parts = [(hits, 1.0), (count - hits, -1.0)]
        found = [
            torch.from_numpy(times)[..., None]
            * _terms(log_odds[..., None] + nodes, log_odds, log_odds.new_tensor(sign))
            for times, sign in parts
        ]
        return (found[0] + found[1]).sum(dim=1)


def _class_log_odds(data: Predictions, values: Floats | None) -> Tensor:
    if values is not None:
        return _clipped_log_odds(torch.from_numpy(values[:, :-1])).to(data.logits.device)
    logs = data.log_probs.clamp(-_LARGEST, -1e-12)
    return (logs - log1mexp(logs)).clamp(-_LARGEST, _LARGEST)


def _clipped_log_odds(p: Tensor) -> Tensor:
    clipped = p.clamp(1e-12, 1 - 1e-12)
    return (clipped.log() - torch.log1p(-clipped)).clamp(-_LARGEST, _LARGEST)


def gather(
    data: Data, *, classes: int, curve: ReferenceCurve, curves: ClassCurves, values: Floats | None = None
) -> Floats:
    """Return log L(u) − log L(0) (F, 16) at the nodes, summed over the rows of ``data``, one line per name of ``quantity_names``.

    Args:
        data: Labelled.
        classes: K, or 0 for top-label pairs.
        curve: That of the reference.
        curves: Those of its classes.
        values: (N, K + 1) probabilities of the classes and of the decision in place of the rows' own (``matched_out_of_fold``).
    """
    confidence = data.confidence.cpu() if values is None else torch.from_numpy(values[:, -1])
    found = list(confidence_terms(curve.moved(confidence), data.correct.cpu()).sum(dim=0))
    if isinstance(data, Predictions) and len(curves.log_odds):
        found += list(curves.terms(*curves.counts(_class_log_odds(data, values), data.need_labels())))
    return np.asarray(torch.stack(found).numpy())


def confidence_terms(p: Tensor, right: Tensor) -> Tensor:
    """Return log L(u) − log L(0) (N, 2, 16) of each row at the nodes: shift and slope.

    Args:
        p: (N,) confidences, float64.
        right: (N,) bool.
    """
    log_odds = _clipped_log_odds(p)
    nodes = torch.from_numpy(_nodes())
    # ℓ + u, and e^(u/2) ℓ
    moved = torch.stack([log_odds[:, None] + nodes, log_odds[:, None] * (nodes / 2).exp()], dim=1)
    sign = right.double() * 2 - 1
    return _terms(moved, log_odds[:, None], sign[:, None])


def _terms(moved: Tensor, odds: Tensor, sign: Tensor) -> Tensor:
    logsigmoid = torch.nn.functional.logsigmoid
    return logsigmoid(sign[..., None] * moved) - logsigmoid(sign * odds)[..., None]


@dataclass(frozen=True)
class ChangeEvidence:
    """Evidence for a change of each monitored quantity.

    Args:
        logs: Name → log evidence; "loss" is the evidence that the log-loss has increased.
        log: Log of their weighted mean, which decides.
        start: Index of the block at which the change most likely began.
        moved: Name → maximum-likelihood change of the log-odds since then, relative to the reference.
    """

    logs: dict[str, float]
    log: float
    start: int
    moved: dict[str, float]


def since_change(
    reference: Floats,
    blocks: Floats,
    losses: Floats,
    weights: Floats,
    *,
    classes: int,
    limit: float,
) -> ChangeEvidence:
    """Return the evidence that something changed at the start of some block.

    Args:
        reference: (F, 16) sums of ``gather`` over the reference rows.
        blocks: (T, F, 16) sums of ``gather`` over each block, in order of time.
        losses: (T, 3) rows, Σ z and Σ z² of the capped log-losses z in [0, 1].
        weights: (T,) prior probability that the change began with each block; they sum to at most 1.
        classes: K, or 0.
        limit: Upper bound of the reference's mean z.
    """
    single = len(reference) - 2
    unchanged, changed = _priors(reference, single=single)
    after = np.cumsum(blocks[::-1], axis=0)[::-1]  # (T, F, 16): from each block on
    # the sums of all blocks less those from each block on
    before = after[:1] - after
    ratios = _averaged(before, unchanged) + _averaged(after, changed) - _averaged(after[:1], unchanged)  # (T, F)
    tail = np.cumsum(losses[::-1], axis=0)[::-1]
    ratios = np.concatenate([ratios, _loss_ratio(tail, limit)[:, None]], axis=1)
    names = [*quantity_names(classes), "loss"]
    rest = math.log(max(1e-300, 1 - weights.sum()))  # no change yet: likelihood ratio 1
    weighted = ratios + np.log(weights)[:, None]
    logs = np.logaddexp(np.logaddexp.reduce(weighted, axis=0), rest)
    shares = np.log(_prior_weights(single))
    best = int(np.unravel_index(np.argmax(weighted + shares), weighted.shape)[0])
    # maximum likelihood after the change, less the posterior mean before it
    likeliest = _GRID[(after[best] @ _TO_GRID.T).argmax(axis=-1)] - np.exp(unchanged) @ _GRID
    return ChangeEvidence(
        logs=dict(zip(names, logs.tolist(), strict=True)),
        log=float(np.logaddexp.reduce(logs + shares)),
        start=best,
        moved=dict(zip(names, likeliest.tolist(), strict=False)),
    )


def _priors(reference: Floats, *, single: int) -> tuple[Floats, Floats]:
    """Return log π₀ and log π₁ (F, G) on the grid of u; ``single`` lines are of classes."""
    unchanged = _normal(reference @ _TO_GRID.T)
    mean = np.exp(unchanged) @ _GRID
    spread = np.exp(unchanged) @ _GRID**2 - mean**2
    away, variance = _GRID - mean[:, None], spread[:, None] + _SPREAD**2
    # π₁: two normals, ``_JUMP`` below and above where the reference was, as wide as both uncertainties together
    down = np.full((len(reference), 1), _OVERCONFIDENT)
    down[2 : 2 + single] = 0.5  # a class becomes rarer as easily as more frequent
    worse = np.log(down) - (away + _JUMP) ** 2 / (2 * variance)
    better = np.log(1 - down) - (away - _JUMP) ** 2 / (2 * variance)
    return unchanged, _normal(np.logaddexp(worse, better))


def _normal(logs: Floats) -> Floats:
    return np.asarray(logs - np.logaddexp.reduce(logs, axis=-1)[..., None])


def _averaged(sums: Floats, prior: Floats) -> Floats:
    """Return log ∫ prior L (T, F), as a sum over the grid."""
    logs = sums @ _TO_GRID.T + prior
    top = logs.max(axis=-1)
    return np.asarray(top + np.log(np.exp(logs - top[..., None]).sum(axis=-1)))


def _loss_ratio(tail: Floats, limit: float) -> Floats:
    """Return the log evidence (T,) that the mean of z is above ``limit``: e-values as in ``operate.bounds``."""
    count, total, squares = tail.T
    # Σ y and Σ y² of y = z − limit, which is at least −limit
    y, yy = total - limit * count, squares - 2 * limit * total + limit * limit * count
    # log (1 + t y) ≥ t y − ψ(t B) y² / B² with B = limit, u = t B and ψ(u) = −log(1 − u) − u
    u = _BETS[:, None]
    logs = u / limit * y + (np.log1p(-u) + u) / limit**2 * yy
    return np.asarray(np.logaddexp.reduce(logs, axis=0) - math.log(len(_BETS)))


def _prior_weights(single: int) -> Floats:
    """Return the prior weights (F + 1,) of shift, slope, ``single`` classes, and loss."""
    scale = 1.0 if single else 1 / (1 - _OF_CLASSES)
    classes = np.full(single, _OF_CLASSES / max(1, single))
    return scale * np.concatenate([[_SHIFT, _SLOPE], classes, [_LOSS]])
