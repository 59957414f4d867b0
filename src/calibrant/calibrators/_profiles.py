"""Rows as functions of a slope: after one pass over the logits, a fit of slopes and of the top class's bias needs no logits.

L(s) = log Σ_{k ≠ top} exp(s (z_k − z_second)) is smooth and convex in the slope s. Its value and two derivatives at a few
slopes, joined by polynomials of degree five (Hermite's, twice differentiable), replace the K logits of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.numerics import row_chunks
from calibrant.calibrators._affine import LOWEST
from calibrant.calibrators._chunks import check_label_logits
from calibrant.rows import Chunk

STEPS = 4  # slopes to a factor of two: the interpolation then errs by about 1e-6 nats
BELOW, ABOVE = 3, 2  # factors of two on either side of the unit: models are over-confident more often than not
_NOTHING = 80.0
_FAR = -1e30  # in place of −inf: its exponential is 0, and so is their product
LOGIT_FEATURES = ("confidence", "entropy")


@dataclass(frozen=True)
class Tops:
    """The largest logit of each row and what lies below it.

    Args:
        at: (n,) the first place of the largest.
        margin: (n,) its distance to the second largest, ≥ 0.
        below: (n, K) each logit less the second largest; about −1e30 at the largest and at excluded classes.
        alone: (n,) whether all other classes are excluded.
        features: (n, 2) float64: log-odds of the largest at slope 1, and the entropy in nats.
    """

    at: Tensor
    margin: Tensor
    below: Tensor
    alone: Tensor
    features: Tensor


@dataclass(frozen=True)
class Profiles:
    """Rows (n,) as functions of a slope, float64.

    Args:
        table: (n, J, 3) L, L′ and L″ at J slopes.
        margin: (n,) of the largest logit over the second.
        label: (n,) the label's logit less the second largest, 0 where the label is the top class.
        right: (n,) 1 where it is, else 0.
        features: (n, 2) ``LOGIT_FEATURES``.
        weight: (n,).
    """

    table: Tensor
    margin: Tensor
    label: Tensor
    right: Tensor
    features: Tensor
    weight: Tensor

    def __len__(self) -> int:
        return len(self.margin)

    def at(self, rows: slice) -> "Profiles":
        """Return some of the rows."""
        return Profiles(**{one.name: getattr(self, one.name)[rows] for one in fields(self)})


def slopes_around(unit: float) -> Tensor:
    """Return the slopes (J,) of a table: four to a factor of two, from an eighth of ``unit`` to four times it."""
    steps = torch.arange(-STEPS * BELOW, STEPS * ABOVE + 1, dtype=torch.float64)
    return unit * torch.exp2(steps / STEPS)


def tops_of(logits: Tensor) -> Tops:
    """Return what lies around the largest of ``logits`` (n, K), float32 or wider; excluded classes are −inf."""
    top, at = logits.max(dim=1)
    rest = logits.scatter(1, at[:, None], -torch.inf)
    second = rest.amax(dim=1)
    alone = torch.isneginf(second)
    second = torch.where(alone, top + LOWEST, second)
    margin = top - second
    below = (rest - second[:, None]).clamp_min(_FAR)
    weight = below.exp()
    total = torch.where(alone, 1.0, weight.sum(dim=1).double())
    log_sum, mean = total.log(), (weight * below).sum(dim=1).double() / total
    log_odds = margin.double() - log_sum
    p, q = torch.sigmoid(log_odds), torch.sigmoid(-log_odds)
    own = -p * F.logsigmoid(log_odds) - q * F.logsigmoid(-log_odds)
    return Tops(at, margin, below, alone, torch.stack([log_odds, own + q * (log_sum - mean)], dim=1))


def profiles_of(chunk: Chunk, slopes: Tensor) -> tuple[Profiles, ...]:
    """Return the profiles of a chunk's rows, in parts of consecutive rows. Exponentials have the logits' precision."""
    check_label_logits(chunk)
    dtype = torch.promote_types(chunk.logits.dtype, torch.float32)
    size = 2 * dtype.itemsize  # of the two arrays that are read again and again
    parts = row_chunks(*chunk.logits.shape, itemsize=size, device=chunk.logits.device)
    return tuple(_block(chunk.logits[r].to(dtype), chunk.labels[r], chunk.weights[r], slopes) for r in parts)


def _block(logits: Tensor, labels: Tensor, weight: Tensor, slopes: Tensor) -> Profiles:
    tops = tops_of(logits)
    # what is e⁻⁸⁰ of the second largest counts for nothing, and smaller numbers are slow: processors handle them in software
    below = tops.below.clamp_min(-1.25 * _NOTHING / float(slopes[0]))
    scratch, moments = torch.empty_like(below), []
    for slope in slopes.tolist():
        torch.mul(below, slope, out=scratch).clamp_min_(-_NOTHING).exp_()
        total = torch.where(tops.alone, 1.0, scratch.sum(dim=1).double())
        first = scratch.mul_(below).sum(dim=1).double() / total
        second = scratch.mul_(below).sum(dim=1).double() / total
        moments += [total.log(), first, (second - first.square()).clamp_min(0.0)]
    right = tops.at == labels
    label = torch.where(right, 0.0, tops.below.gather(1, labels[:, None])[:, 0].double())
    table = torch.stack(moments, dim=1).view(len(labels), len(slopes), 3)
    return Profiles(table, tops.margin.double(), label, right.double(), tops.features, weight)


def joined(parts: Sequence[Profiles]) -> Profiles:
    """Return the rows of all parts."""
    return Profiles(**{one.name: torch.cat([getattr(part, one.name) for part in parts]) for one in fields(Profiles)})


@dataclass(frozen=True)
class Hermite:
    """The interpolated L of each row and its first two derivatives by s, (n,)."""

    value: Tensor
    slope: Tensor
    curvature: Tensor


def interpolated(table: Tensor, slopes: Tensor, s: Tensor) -> Hermite:
    """Return L and its derivatives at ``s`` (n,), from ``table`` (n, J, 3) at ``slopes`` (J,).

    Beyond the ends L is continued by its parabola there, so that it stays convex and twice differentiable.
    """
    free, s = s, s.clamp(slopes[0], slopes[-1])
    left = (torch.searchsorted(slopes, s.contiguous(), right=True) - 1).clamp(0, len(slopes) - 2)
    rows = torch.arange(len(s), device=s.device)
    h = slopes[left + 1] - slopes[left]
    t = (s - slopes[left]) / h
    f0, d0, c0 = (value * h**power for power, value in enumerate(table[rows, left].unbind(dim=1)))
    f1, d1, c1 = (value * h**power for power, value in enumerate(table[rows, left + 1].unbind(dim=1)))
    rise, turn, bend = f1 - f0 - d0 - c0 / 2, d1 - d0 - c0, c1 - c0
    a3, a4, a5 = 10 * rise - 4 * turn + bend / 2, -15 * rise + 7 * turn - bend, 6 * rise - 3 * turn + bend / 2
    value = f0 + t * (d0 + t * (c0 / 2 + t * (a3 + t * (a4 + t * a5))))
    slope = (d0 + t * (c0 + t * (3 * a3 + t * (4 * a4 + t * 5 * a5)))) / h
    curvature = (c0 + t * (6 * a3 + t * (12 * a4 + t * 20 * a5))) / h**2
    beyond = free - s
    return Hermite(value + beyond * (slope + beyond * curvature / 2), slope + beyond * curvature, curvature)
