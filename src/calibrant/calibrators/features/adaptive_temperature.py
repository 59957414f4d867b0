"""A temperature, and a bias of the top class, that vary with features of the logits and of the row."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.check import refuse, shown
from calibrant._core.constraints import Natural, Positive
from calibrant._core.minimise import Objective, minimise
from calibrant._core.numerics import row_chunks
from calibrant.calibrators.affine.fit import LOWEST, keep_excluded
from calibrant.calibrators.base.calibrator import ByFeatures, Certified
from calibrant.calibrators.base.chunks import check_label_logits
from calibrant.calibrators.features.columns import (
    KnownColumn,
    NamesOrNone,
    as_bytes,
    check_group_count,
    codes_of,
    columns_from_json,
    columns_in,
    from_bytes,
    need_column,
)
from calibrant.calibrators.features.feature_scaling import Hinges, fit_by_design, sums_by_design
from calibrant.calibrators.focal.temperature import TemperatureScaling
from calibrant.data.record import Features, join_columns
from calibrant.rows import Chunk, RowSource

# Rows as functions of a slope: after one pass over the logits, a fit of slopes and of the top class's bias needs no logits.
#
# L(s) = log Σ_{k ≠ top} exp(s (z_k − z_second)) is smooth and convex in the slope s. Its value and two derivatives at a few
# slopes, joined by polynomials of degree five (Hermite's, twice differentiable), replace the K logits of a row.

STEPS = 4  # slopes to a factor of two: the interpolation then errs by about 1e-6 nats
BELOW, ABOVE = 3, 2  # factors of two on either side of the unit: models are over-confident more often than not
_NOTHING = 80.0
_FAR = -1e30  # in place of −inf: its exponential is 0, and so is their product
LOGIT_FEATURES: tuple[Literal["confidence", "entropy"], ...] = ("confidence", "entropy")


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

    def loss_sums(self, design: Tensor, slopes: Tensor, theta: Tensor, parts: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return Σ log-loss, its gradient (P,) and Hessian (P, P); a row depends on its slope, and on its bias if ``parts`` is 2."""
        size = theta.numel()
        value, gradient, hessian = theta.new_zeros(()), theta.new_zeros(size), theta.new_zeros(size, size)
        for start in range(0, len(self), _PART):
            rows = slice(start, start + _PART)
            found = self.at(rows)._part_sums(design[rows], slopes, theta, parts)
            value, gradient, hessian = value + found[0], gradient + found[1], hessian + found[2]
        return value, gradient, hessian

    def _part_sums(self, design: Tensor, slopes: Tensor, theta: Tensor, parts: int) -> tuple[Tensor, ...]:
        # with t = s m + e − L(s), the log-odds of the top class: loss = softplus(t) − t where it is right, else
        # softplus(t) + L(s) − s u, u the label's distance to the second largest
        by_part = theta.view(parts, -1) @ design.T
        s = by_part[0]
        others = interpolated(self.table, slopes, s)
        bias = by_part[1] if parts == 2 else torch.zeros_like(s)
        t = s * self.margin + bias - others.value
        p, wrong = torch.sigmoid(t), 1 - self.right
        value = F.softplus(t) - self.right * t + wrong * (others.value - s * self.label)
        turn = self.margin - others.slope
        first = [(p - self.right) * turn + wrong * (others.slope - self.label), p - self.right]
        spread = p * (1 - p)
        bend = (1 - p) * others.curvature
        second = [[spread * turn.square() + bend, spread * turn], [spread * turn, spread]]
        return sums_by_design(design, self.weight, value, first[:parts], [row[:parts] for row in second[:parts]])


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
    margin = (top - second).clamp_max(-_FAR)  # a slope times it is finite
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
    return tuple(
        _profiles_of_block(chunk.logits[r].to(dtype), chunk.labels[r], chunk.weights[r], slopes) for r in parts
    )


def _profiles_of_block(logits: Tensor, labels: Tensor, weight: Tensor, slopes: Tensor) -> Profiles:
    tops = tops_of(logits)
    # At the least slope s₀ what lies below −80 / s₀ is at the exponent's floor anyway; a quarter more leaves rounding no say in
    # which. The clamp bounds what e⁻⁸⁰ is multiplied with in the moments: −1e30 at excluded classes would not be nothing.
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
    # Hermite's quintic on [s_j, s_j+1], t = (s − s_j) / h: p(t) = f0 + d0 t + c0 t²/2 + a3 t³ + a4 t⁴ + a5 t⁵, in which the derivatives by
    # t are h and h² times those by s
    f0, d0, c0 = (value * h**power for power, value in enumerate(table[rows, left].unbind(dim=1)))
    f1, d1, c1 = (value * h**power for power, value in enumerate(table[rows, left + 1].unbind(dim=1)))
    # p(1) = f1, p′(1) = d1 and p″(1) = c1 leave three equations for the rest:
    #   a3 + a4 + a5 = rise,   3 a3 + 4 a4 + 5 a5 = turn,   6 a3 + 12 a4 + 20 a5 = bend
    rise, turn, bend = f1 - f0 - d0 - c0 / 2, d1 - d0 - c0, c1 - c0
    a3, a4, a5 = 10 * rise - 4 * turn + bend / 2, -15 * rise + 7 * turn - bend, 6 * rise - 3 * turn + bend / 2
    # Horner's rule for p, p′ and p″
    value = f0 + t * (d0 + t * (c0 / 2 + t * (a3 + t * (a4 + t * a5))))
    slope = (d0 + t * (c0 + t * (3 * a3 + t * (4 * a4 + t * 5 * a5)))) / h
    curvature = (c0 + t * (6 * a3 + t * (12 * a4 + t * 20 * a5))) / h**2
    beyond = free - s
    return Hermite(value + beyond * (slope + beyond * curvature / 2), slope + beyond * curvature, curvature)


# Piecewise linear functions of a row's numbers and categories: the design of a fit that varies with them.

_ROWS_A_KNOT = 100  # of each of a number's pieces, at least


@dataclass(frozen=True)
class Sources:
    """Where a row's numbers come from: its logits, columns of numbers, and one indicator for each name of columns of names.

    Args:
        logits: Names of features of the logits.
        numbers: Columns of numbers.
        names: Columns of names.
    """

    logits: tuple[str, ...] = ()
    numbers: tuple[KnownColumn, ...] = ()
    names: tuple[KnownColumn, ...] = ()

    @property
    def beside(self) -> bool:
        """Whether columns are needed."""
        return bool(self.numbers or self.names)

    @property
    def indicators(self) -> int:
        """How many indicators a row has."""
        return sum(map(len, self.names))

    @property
    def width(self) -> int:
        """How many numbers a row has."""
        return len(self.logits) + len(self.numbers) + self.indicators

    def values(self, of_logits: Tensor, features: Features | None) -> Tensor:
        """Return the numbers (n, F); NaN without columns, and at the indicators of a name that is none of them.

        Args:
            of_logits: (n, 2) the features of the rows' logits.
            features: The columns.

        Raises:
            InputError: If a column is missing, of another kind than in fit, not finite, or of another length.
        """
        # The length from the shape: a traced graph keeps it open, where len() would fix it to the example's.
        rows, kept = of_logits.shape[0], of_logits[:, [LOGIT_FEATURES.index(name) for name in self.logits]]
        if features is None or not self.beside:
            return torch.cat([kept, kept.new_full((rows, self.width - len(self.logits)), torch.nan)], dim=1)
        parts = [one.numbers(features, rows)[:, None] for one in self.numbers]
        if self.names:
            codes, start = codes_of(self.names, features, rows), 0
            for one, code in zip(self.names, codes.T, strict=True):
                hit = (code[:, None] == torch.arange(start, start + len(one))).double()
                parts.append(torch.where((code < self.indicators)[:, None], hit, torch.nan))
                start += len(one)
        return torch.cat([kept, *(part.to(kept.device) for part in parts)], dim=1)


def sources_of(logits: Sequence[str], features: Features, columns: Sequence[str]) -> Sources:
    """Return the sources that fitting rows with the columns ``features`` give.

    Raises:
        InputError: If columns of names have too many different ones.
    """
    found = columns_in(features, columns, whole=False)
    numbers, names = (tuple(one for one in found if (one.values is None) == kind) for kind in (True, False))
    check_group_count(names)
    return Sources(tuple(logits), numbers, names)


def sources_to_bytes(sources: Sources) -> Tensor:
    """Return the sources as JSON in bytes, a tensor that is saved with what was learned."""
    names = [{"name": one.name, "values": one.values} for one in sources.names]
    return as_bytes([sources.logits, [one.name for one in sources.numbers], names])


def sources_from_bytes(buffer: Tensor) -> Sources:
    """Return the sources of ``sources_to_bytes``.

    Raises:
        ValueError: If it is none: it may come from a file.
    """
    if not buffer.numel():
        return Sources()
    logits, numbers, table = from_bytes(buffer)
    names = tuple(columns_from_json(table))
    texts = [*logits, *numbers, *(value for one in names for value in one.values or ())]
    if not all(isinstance(text, str) for text in texts) or not set(logits) <= set(LOGIT_FEATURES):
        raise ValueError("names of features were expected")
    return Sources(tuple(logits), tuple(map(KnownColumn, numbers)), names)


def hinges_of(values: Tensor, weight: Tensor, knots: int, known: Sources) -> Hinges:
    """Return columns for ``values`` (n, F) of rows of ``weight`` (n,).

    The knots of a number lie at its weighted quantiles, at equal distances of rank.

    Args:
        values: One number a column; those of the logits are held between their .1 and 99.9 % quantiles instead of their extremes.
        weight: > 0.
        knots: Between the ends of each number, fewer where rows are few.
        known: What the columns are; indicators, the last of them, are 0 or 1.
    """
    pieces = 1 + min(knots, int(weight.sum() / _ROWS_A_KNOT))
    owners: list[int] = []
    begin: list[float] = []
    end: list[float] = []
    for column, x in enumerate(values.unbind(dim=1)):
        if column >= known.width - known.indicators:
            found = [0.0, 1.0]
        else:
            outer = 1e-3 if column < len(known.logits) else 0.0
            ranks = torch.linspace(0, 1, pieces + 1, dtype=torch.float64).clamp(outer, 1 - outer)
            found = sorted(set(_weighted_quantiles(x, weight, ranks).tolist()))
        owners += [column] * (len(found) - 1)
        begin += found[:-1]
        end += [found[-1]] * (len(found) - 1)
    first, last = (torch.tensor(one, dtype=torch.float64, device=values.device) for one in (begin, end))
    owner = torch.tensor(owners, dtype=torch.int64, device=values.device)
    zero, one = torch.zeros_like(first), torch.ones_like(first)
    raw = Hinges(owner, first, last, zero, one).design(values)[:, 1:]
    mass = weight.sum()
    center = weight @ raw / mass
    spread = (weight @ (raw - center).square() / mass).sqrt()
    kept = spread > 1e-9 * raw.abs().amax(dim=0) if len(owner) else torch.zeros(0, dtype=torch.bool)
    return Hinges(owner[kept], first[kept], last[kept], center[kept], spread[kept])


def _weighted_quantiles(x: Tensor, weight: Tensor, ranks: Tensor) -> Tensor:
    """Return the smallest of ``x`` (n,) up to which at least ``ranks`` (R,) of the weight lie: as of repeated rows."""
    order = x.argsort()
    below = weight[order].cumsum(dim=0)
    place = torch.searchsorted(below, ranks.to(x.device) * below[-1] * (1 - 1e-12))
    return x[order][place.clamp_max(len(x) - 1)]


_PART = 1 << 15  # rows whose interpolation is in memory at once
_MOST_ROWS, _MOST_COLUMNS = 1 << 22, 500
_AHEAD = 1e-6  # of the top class's logit over the second's, at least: the decision stays, also as the first index of a maximum
_INNER = (0.25, 2.0)  # where the single best slope lies in units of the table's centre, or the table is made anew


class AdaptiveTemperatureScaling(Certified, ByFeatures):
    """softmax(s(f) z + e(f) 1[k = top]): a slope s = 1/T and a bias e of the top class by piecewise linear functions of features f.

    Features are, of the logits, the log-odds of the top class ("confidence") and the entropy; and any columns beside them:
    numbers, such as a token's position, and names, such as its class. The bias lets the top class be right as often as
    its confidence says in every range of confidence; the slope spreads what is left over the others. The decision never
    changes: where the bias would make another class more likely, both get the same probability.

    The log-loss is convex in all coefficients. One pass over the logits keeps log Σ exp(s z) of each row as a function of s
    (at 21 slopes with two derivatives, interpolated to about 1e-6 nats), so that the fit takes memory for 70 numbers a
    row instead of K, and ends with a gradient certificate. Slopes are held between ⅛ and 4, in units of the best single slope where
    that is not within [¼, 2]; the fit continues log Σ exp(s z) beyond by a parabola.

    Rows without columns, and names that the fit has not seen, get the map of the mean row.

    Args:
        columns: Names of feature columns, of numbers or names; none by default.
        by: Features of the logits: of "confidence" and "entropy", or none.
        knots: Of each number, at quantiles of the fitting rows; at least 100 rows lie between two.
        bias: Whether the top class has one; without it each row has a temperature and nothing else.
        ridge: Strength of the shrinkage to one temperature, in rows, > 0.

    Attributes:
        temperature: 1 / s of a row with the mean features.
        gradient: The largest entry of the objective's gradient at the end, in nats: the certificate.

    Examples:
        >>> from calibrant.calibrators import TemperatureScaling
        >>> rng = torch.Generator().manual_seed(0)
        >>> z = 3 * torch.randn(4000, 50, generator=rng)
        >>> sure = z.amax(dim=1, keepdim=True) > 7  # where it is sure, it is too sure
        >>> y = torch.multinomial(torch.softmax(torch.where(sure, z / 2, z), dim=1), 1, generator=rng)[:, 0]
        >>> fitted = AdaptiveTemperatureScaling().fit(z[:2000], y[:2000])
        >>> one = TemperatureScaling().fit(z[:2000], y[:2000])
        >>> loss = torch.nn.functional.cross_entropy
        >>> bool(loss(fitted(z[2000:]), y[2000:]) < loss(one(z[2000:]), y[2000:]) - 0.05)
        True

    References:
        Joy et al. 2023, Sample-dependent Adaptive Temperature Scaling; Balanya et al. 2024, Adaptive temperature scaling for robust
        calibration of deep neural networks (by entropy); Xie et al. 2024, Calibrating Language Models with Adaptive
        Temperature Scaling (by token).
    """

    preserves_argmax = True

    slopes: Tensor
    biases: Tensor
    limits: Tensor
    owner: Tensor
    knot: Tensor
    highest: Tensor
    center: Tensor
    spread: Tensor
    sources: Tensor

    def __init__(
        self,
        columns: NamesOrNone = (),
        *,
        by: Sequence[Literal["confidence", "entropy"]] = LOGIT_FEATURES,
        knots: Natural = 6,
        bias: bool = True,
        ridge: Positive = 1.0,
    ) -> None:
        super().__init__()
        self.columns, self.by = tuple(columns), tuple(by)
        if len(set(by)) < len(by):
            raise refuse("distinct features of the logits", shown(by), 'write ["confidence", "entropy"]', argument="by")
        self.knots = knots
        self.bias = bias
        self.ridge = ridge
        self._known = Sources()
        self.needs_features = bool(self.columns)

    def _update_facts(self) -> None:
        self._known = sources_from_bytes(self.sources)
        self.needs_features = self._known.beside if self.fitted else bool(self.columns)
        if not self.fitted:
            return
        columns = self.owner.shape
        shapes = {one.shape for one in (self.knot, self.highest, self.center, self.spread)}
        owners = self.owner.tolist()
        if shapes != {columns} or {self.slopes.shape, self.biases.shape} != {(1 + len(owners),)}:
            raise ValueError("as many coefficients as pieces were expected")
        if self.limits.shape != (2,) or any(not 0 <= one < self._known.width for one in owners):
            raise ValueError("pieces of known features were expected")

    @property
    def temperature(self) -> float:
        """1 / s of a row with the mean features, s held between its limits; NaN before ``fit``."""
        if not self.fitted:
            return math.nan
        slope = float(torch.minimum(torch.maximum(self.slopes[0], self.limits[0]), self.limits[1]))
        return 1 / slope if slope else math.nan

    def learned(self) -> str:
        """Return the temperature at the mean features, and what it varies with."""
        known = self._known
        names = [*known.logits, *(one.name for one in (*known.numbers, *known.names))]
        return f"temperature={self.temperature:.4g}, by {', '.join(names) or 'nothing'}"

    def _fit(self, rows: RowSource) -> None:
        if rows.count > _MOST_ROWS:
            raise refuse(f"at most {_MOST_ROWS:,} rows", f"{rows.count:,}", "fit on a random sample of so many")
        unit, profiles, features = _table(rows, self.columns)
        known = sources_of(self.by, features, self.columns)
        values = known.values(profiles.features, features)
        hinges = hinges_of(values, profiles.weight, self.knots, known)
        if len(hinges.owner) > _MOST_COLUMNS:
            raise refuse(
                f"at most {_MOST_COLUMNS} pieces", str(len(hinges.owner)), "name fewer columns, or fewer knots"
            )
        design, steps, parts = hinges.design(values), slopes_around(1.0).to(rows.device), 2 if self.bias else 1
        first = torch.zeros(parts * design.shape[1], dtype=torch.float64, device=rows.device)
        first[0] = 1.0  # of slopes in units of the table's centre
        found = fit_by_design(
            lambda theta: profiles.loss_sums(design, steps, theta, parts),
            first, parts=parts, ridge=self.ridge, mass=float(profiles.weight.sum()), unit=1.0,
        )  # fmt: skip
        theta = found.theta.view(parts, -1)
        self.slopes = theta[0] * unit
        self.biases = theta[1].clone() if self.bias else torch.zeros_like(self.slopes)
        slopes = slopes_around(unit)
        self.limits = slopes[[0, -1]].to(rows.device)
        self.owner, self.knot, self.highest = hinges.owner, hinges.knot, hinges.highest
        self.center, self.spread = hinges.center, hinges.spread
        self.sources = sources_to_bytes(known).to(rows.device)
        self._certify(found.gradient, rows.device)

    def _transform_with(self, logits: Tensor, features: Features | None) -> Tensor:
        tops = tops_of(logits)
        values = self._known.values(tops.features, features)
        design = Hinges(self.owner, self.knot, self.highest, self.center, self.spread).design(values)
        slope = torch.minimum(torch.maximum(design @ self.slopes, self.limits[0]), self.limits[1]).to(logits.dtype)
        top = (slope * tops.margin + (design @ self.biases).to(logits.dtype)).clamp_min(_AHEAD)
        answer = (tops.below * slope[:, None]).scatter(1, tops.at[:, None], top[:, None])
        return keep_excluded(answer, logits)


def _table(rows: RowSource, columns: tuple[str, ...]) -> tuple[float, Profiles, dict[str, Any]]:
    """Return the slope at the table's centre, the table in units of it, and the columns of all rows, in one pass or two.

    The centre is 1, or, for logits of quite another scale, the slope of the best single temperature.
    """
    profiles, features = _pass(rows, 1.0, columns)
    unit = slopes_around(1.0).to(rows.device)
    ones = torch.ones_like(profiles.margin)[:, None]
    mass = float(profiles.weight.sum())

    loss = Objective(mass, lambda theta: profiles.loss_sums(ones, unit, theta, 1), bounds=(unit[[0]], unit[[-1]]))
    best = float(minimise(loss, torch.ones_like(unit[[0]]), tolerance=1e-6, enough=math.inf).theta)
    if _INNER[0] <= best <= _INNER[1]:
        return 1.0, profiles, features
    single = TemperatureScaling()
    single._learn(rows)
    centre = 1 / single.temperature
    again, _ = _pass(rows, centre, columns)
    return centre, again, features


def _pass(rows: RowSource, centre: float, columns: tuple[str, ...]) -> tuple[Profiles, dict[str, Any]]:
    """Return the profiles of all rows with slopes in units of ``centre``, and their columns; fits on one source share them."""
    parts, beside = rows.once(_profiles_and_features, _both, centre)
    made = Profiles(*(torch.cat([getattr(part, one.name) for part in parts]) for one in fields(Profiles)))
    scale = torch.tensor([1.0, centre, centre**2], dtype=torch.float64, device=rows.device)
    scaled = Profiles(
        made.table * scale, made.margin * centre, made.label * centre, made.right, made.features, made.weight
    )
    found = {name: [need_column(part, name) for part in beside] for name in columns}
    return scaled, {name: join_columns(entries, name=name) for name, entries in found.items()}


def _profiles_and_features(chunk: Chunk, centre: float) -> tuple[Any, Any]:
    return profiles_of(chunk, slopes_around(centre).to(chunk.logits.device)), (chunk.features,)


def _both(left: tuple[Any, Any], right: tuple[Any, Any]) -> tuple[Any, Any]:
    return left[0] + right[0], left[1] + right[1]
