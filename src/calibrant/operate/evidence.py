"""Anytime-valid evidence that P(outcome | scores) has changed since the reference, even if the distribution of scores changes.

The monitored events are "the decision is correct" and, for up to 50 classes, "class k is true". Each has a probability p, computed
after the reference's temperature. The reference models the log-odds of the event as a + c ℓ(p) + v_b in bins b of p, where ℓ(p) is
the log-odds of p, and π_b is the posterior of v_b.

Without a change, the rows of a bin have the likelihood ∫ π_b L. So neither errors of the reference's probabilities nor scores that
move to other bins count as evidence. With a change, all v_b move by u (a shift) or by u d_b (a slope) at some time; later rows have
the likelihood with π_b moved, averaged over a prior of u. The likelihood ratio, averaged over the time of change with fixed weights,
is a martingale if nothing has changed, in any order of the rows. So the probability that it ever exceeds 1/α is at most α (Ville
1939), including the uncertainty of the reference.

log L is a sum over rows, stored at 16 Chebyshev nodes: sums of parts can be added, and interpolation is accurate to 1e-8 per row.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.data.checks import Data
from calibrant.data.predictions import Predictions
from calibrant.operate.rows import columns_of, stratum_edges

Floats = NDArray[np.float64]

CLASSES = 50  # with more classes, single classes are not monitored
NODES, REACH = 16, 2.0  # largest |v|, in log-odds
_A_BIN, _MAX_BINS, _STEPS = 50, 10, 40  # rows in a bin; bins; Newton steps to its offset
_HALF = 0.5  # half an event is added, so that a bin without events has finite log-odds
_LARGEST = 12.0  # log-odds are clipped to ± this, so that a single row cannot decide
_STEP = 0.025
_GRID = np.arange(-80, 81) * _STEP  # of v
_MOVES = np.arange(-24, 25) * 2  # of u, in steps of the grid: ±1.2
_JUMP, _SPREAD = 0.4, 0.25  # mean, in either direction, and standard deviation of u
_OVERCONFIDENT = 0.7  # prior probability that a change is towards overconfidence, the common case
_SHIFT, _SLOPE, _OF_CLASSES = 0.42, 0.21, 0.37  # prior weights of the kinds of change


# values at the nodes, the zeros of T₁₆, where interpolation is nearly the best polynomial, to values on the grid: (16, G)
_UNIT = np.cos((2 * np.arange(NODES) + 1) * np.pi / (2 * NODES))
_AT_NODES = np.polynomial.chebyshev.chebvander(_UNIT, NODES - 1)
_TO_GRID = np.linalg.solve(_AT_NODES.T, np.polynomial.chebyshev.chebvander(_GRID / REACH, NODES - 1).T)


def events_of(data: Data, *, temperature: float) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the probabilities (N, E) of the monitored events at this temperature, and whether they happened (N, E)."""
    right = data.correct.cpu().numpy()[:, None]
    if not isinstance(data, Predictions):
        return data.p.cpu().double().numpy()[:, None], right
    if data.classes > CLASSES:
        return columns_of(data, temperature)[:, :1], right
    labels = torch.nn.functional.one_hot(data.require_labels().cpu(), data.classes).bool().numpy()
    return columns_of(data, temperature), np.concatenate([right, labels], axis=1)


@dataclass(frozen=True, eq=False)
class Curves:
    """The log-odds of each event in the reference: a linear function of the log-odds of p, plus an offset in each bin.

    Args:
        edges: (E, B − 1) edges between the bins; infinite after the last bin of an event with fewer bins.
        lines: (E, 2) a and c.
        offsets: (E, B) v_b.
        slope: (B,) d_b, half the log-odds in each bin of the confidence, by which a change of slope moves it.
        sums: (E, B, 16) log L(v) − log L(v_b) of the reference at the nodes v − v_b.
    """

    edges: Floats
    lines: Floats
    offsets: Floats
    slope: Floats
    sums: Floats

    @classmethod
    def of(cls, p: Floats, happened: NDArray[np.bool_]) -> "Curves":
        """Return the curves of the reference's events (N, E)."""
        rows, events = p.shape
        bins = int(np.clip(rows // _A_BIN, 1, _MAX_BINS))
        edges, lines, offsets = np.full((events, bins - 1), np.inf), np.zeros((events, 2)), np.zeros((events, bins))
        log_odds = _log_odds_of_events(p)
        for e in range(events):
            # bins by the number of rows and by their variance in equal parts, since most rows surely belong to another class
            variance = p[:, e] * (1 - p[:, e])
            own = stratum_edges(log_odds[:, e], bins=bins, weight=1 / rows + variance / max(variance.sum(), 1e-300))
            edges[e, : len(own)] = own
            lines[e] = _fitted_line(log_odds[:, e], happened[:, e])
            own = lines[e, 0] + lines[e, 1] * log_odds[:, e]
            offsets[e] = _offsets(np.searchsorted(edges[e], log_odds[:, e]), own, happened[:, e], bins)
        found = cls(edges, lines, offsets, np.zeros(bins), np.empty(0))
        index, at = found.at(0, log_odds[:, 0])
        centre = np.bincount(index, at, bins) / np.maximum(np.bincount(index, minlength=bins), 1)
        return replace(found, slope=centre / 2, sums=found.gather(p, happened))

    def at(self, e: int, log_odds: Floats) -> tuple[NDArray[np.int64], Floats]:
        """Return the bin (N,) of each row's log-odds (N,) of event ``e``, and the reference's log-odds (N,) in that bin."""
        index = np.searchsorted(self.edges[e], log_odds)
        return index, self.lines[e, 0] + self.lines[e, 1] * log_odds + self.offsets[e, index]

    def gather(self, p: Floats, happened: NDArray[np.bool_]) -> Floats:
        """Return log L(v) − log L(v_b) (E, B, 16) of rows (N, E), summed in each bin."""
        sums, log_odds = np.zeros((*self.offsets.shape, NODES)), _log_odds_of_events(p)
        for e in range(p.shape[1]):
            index, at = self.at(e, log_odds[:, e])
            sign = np.where(happened[:, e], 1.0, -1.0)
            # log σ(x) = −log(1 + e^−x)
            terms = np.logaddexp(0, -sign * at)[:, None] - np.logaddexp(
                0, -sign[:, None] * (at[:, None] + REACH * _UNIT)
            )
            sums[e] = np.eye(sums.shape[1])[index].T @ terms
        return sums

    def expected(self, p: Floats) -> float:
        """Return the sum over rows of the reference's probability that the decision is correct."""
        return float((1 / (1 + np.exp(-self.at(0, _log_odds_of_events(p[:, 0]))[1]))).sum())


def _fitted_line(log_odds: Floats, happened: NDArray[np.bool_]) -> Floats:
    """Return a and c of the logistic regression on the log-odds (N,), with standard normal priors of a and c − 1."""
    design, line = np.stack([np.ones_like(log_odds), log_odds], axis=1), np.array([0.0, 1.0])
    for _ in range(_STEPS):  # Newton, limited as below
        q = 1 / (1 + np.exp(-(design @ line)))
        gradient = design.T @ (happened - q) - (line - [0.0, 1.0])
        step = np.linalg.solve((design * (q * (1 - q))[:, None]).T @ design + np.eye(2), gradient)
        line = line + step / max(1.0, float(np.abs(step).max()))
    return line


def _offsets(index: NDArray[np.int64], log_odds: Floats, happened: NDArray[np.bool_], bins: int) -> Floats:
    """Return the v_b (B,) at which Σ σ(ℓ + v_b) is the number of events, after adding half an event of either kind."""
    count, hits, total = (np.bincount(index, each, bins) for each in (None, happened, 1 / (1 + np.exp(-log_odds))))
    # add at most the number of events that the probabilities predict, so that a bin without data keeps its rate
    more, less = np.minimum(_HALF, total), np.minimum(_HALF, count - total)
    wanted, v = count * (hits + more) / np.maximum(count + more + less, 1e-300), np.zeros(bins)
    for _ in range(_STEPS):  # the likelihood is concave, and a step of at most 1 cannot overshoot far
        q = 1 / (1 + np.exp(-(log_odds + v[index])))
        value, bend = np.bincount(index, q, bins), np.bincount(index, q * (1 - q), bins)
        v += np.clip((wanted - value) / np.maximum(bend, 1e-300), -1, 1)
    return v


def _log_odds_of_events(p: Floats) -> Floats:
    clipped = np.clip(p, 1e-12, 1 - 1e-12)
    return np.asarray(np.clip(np.log(clipped) - np.log1p(-clipped), -_LARGEST, _LARGEST))


@dataclass(frozen=True)
class ChangeEvidence:
    """Evidence for a change of each event.

    Args:
        logs: Log evidence of "shift", "slope", "class 0" ….
        log: Logarithm of the weighted mean of all evidence, which decides.
        start: Index of the block at which the change most likely began.
    """

    logs: dict[str, float]
    log: float
    start: int


def since_change(curves: Curves, blocks: Floats, weights: Floats) -> ChangeEvidence:
    """Return the evidence that something changed at the start of some block.

    Args:
        curves: The curves of the reference.
        blocks: (T, E, B, 16) sums of ``gather`` over each block, in order of time.
        weights: (T,) prior probability that the change began with each block; they sum to at most 1.
    """
    after = np.cumsum(blocks[::-1], axis=0)[::-1]  # sums from each block on; the rest of the total is before it
    posterior = np.exp(_normal(curves.sums @ _TO_GRID))  # (E, B, G)
    classes, still = len(posterior) - 1, np.zeros_like(curves.slope)
    down = np.array([_OVERCONFIDENT] + [0.5] * classes)  # a class becomes rarer as easily as more frequent
    unmoved = _averaged(np.concatenate([after[:1] - after, after[:1]]), posterior, still, down)
    unchanged = unmoved[:-1] - unmoved[-1]
    shifted = unchanged + _averaged(after, posterior, np.ones_like(still), down)  # (T, E)
    turned = unchanged[:, :1] + _averaged(after[:, :1], posterior[:1], curves.slope, down[:1])
    ratios = np.concatenate([shifted[:, :1], turned, shifted[:, 1:]], axis=1)
    prior = np.array([_SHIFT, _SLOPE, *[_OF_CLASSES / max(classes, 1)] * classes])
    prior /= prior.sum()
    weighted = ratios + np.log(weights)[:, None]
    # no change yet: likelihood ratio 1
    logs = np.logaddexp(np.logaddexp.reduce(weighted, axis=0), math.log(max(1e-300, 1 - weights.sum())))
    names = ["shift", "slope", *(f"class {k}" for k in range(classes))]
    start = int(np.unravel_index(np.argmax(weighted + np.log(prior)), weighted.shape)[0])
    log = float(np.logaddexp.reduce(logs + np.log(prior)))
    return ChangeEvidence(dict(zip(names, logs.tolist(), strict=True)), log, start)


def _averaged(sums: Floats, posterior: Floats, direction: Floats, down: Floats) -> Floats:
    """Return log ∫ L (T, E) of sums (T, E, B, 16) whose bins moved by u in ``direction`` (B,), averaged over u.

    ``down`` (E,) is the prior probability that u is negative.
    """
    u = _MOVES * _STEP
    # two normal distributions, centred at −_JUMP and _JUMP
    sides = [-((u + jump) ** 2) / (2 * _SPREAD**2) for jump in (_JUMP, -_JUMP)]
    prior = _normal(np.logaddexp(np.log(down)[:, None] + sides[0], np.log(1 - down)[:, None] + sides[1]))
    moves = (
        np.rint(_MOVES[:, None] * direction).astype(np.int64) if direction.any() else np.zeros((1, len(direction)), int)
    )
    marginal = _marginal(sums, posterior, moves)
    return np.asarray(np.logaddexp.reduce(marginal + prior, axis=-1) if len(moves) > 1 else marginal[..., 0])


def _marginal(sums: Floats, posterior: Floats, moves: NDArray[np.int64]) -> Floats:
    """Return Σ_b log ∫ π_b(v − u_b) L_b(v) dv (T, E, U) for bins that moved by ``moves`` (U, B) steps of the grid."""
    logs = np.moveaxis(sums @ _TO_GRID, 0, 2)  # (E, B, T, G)
    top = logs.max(axis=-1, keepdims=True)
    at = np.arange(len(_GRID))[:, None] - moves.T[:, None, :]  # (B, G, U)
    inside = (at >= 0) & (at < len(_GRID))
    bins = np.arange(posterior.shape[1])[:, None, None]
    prior = np.where(inside, posterior[:, bins, at.clip(0, len(_GRID) - 1)], 0.0)  # (E, B, G, U)
    prior /= np.maximum(prior.sum(axis=2, keepdims=True), 1e-300)
    found = np.log(np.maximum(np.exp(logs - top) @ prior, 1e-300)) + top
    return np.asarray(np.moveaxis(found.sum(axis=1), 1, 0))


def _normal(logs: Floats) -> Floats:
    return np.asarray(logs - np.logaddexp.reduce(logs, axis=-1)[..., None])
