"""A temperature, and a bias of the top class, that vary with features of the logits and of the row."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.check import check_choice, check_count, check_flag, check_number, refuse, shown
from calibrant._core.newton import Derivatives, newton
from calibrant.calibrators._affine import keep_excluded
from calibrant.calibrators._base import Certified
from calibrant.calibrators._groups import check_names, need_column
from calibrant.calibrators._hinges import Hinges, Sources, from_bytes, hinges_of, sources_of, to_bytes
from calibrant.calibrators._profiles import (
    LOGIT_FEATURES,
    Profiles,
    interpolated,
    joined,
    profiles_of,
    slopes_around,
    tops_of,
)
from calibrant.calibrators.temperature import TemperatureScaling
from calibrant.data.record import Features, join_columns
from calibrant.rows import Chunk, RowSource

__all__ = ["AdaptiveTemperatureScaling"]

_TOLERANCE, _ENOUGH = 1e-10, 1e-7  # of a gradient entry of the mean log-loss, in nats per standard deviation
_SETTLES = 1e-3  # rows of prior on the slope and the bias of the mean row: it keeps separable data finite
_PART = 1 << 15  # rows whose interpolation is in memory at once
_MOST_ROWS, _MOST_COLUMNS = 1 << 22, 500
_AHEAD = 1e-6  # of the top class's logit over the second's, at least: the decision stays, also as the first index of a maximum
_INNER = (0.25, 2.0)  # where the single best slope lies in units of the table's centre, or the table is made anew


class AdaptiveTemperatureScaling(Certified):
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
        columns: Sequence[str] = (),
        *,
        by: Sequence[str] = LOGIT_FEATURES,
        knots: int = 6,
        bias: bool = True,
        ridge: float = 1.0,
    ) -> None:
        super().__init__()
        if columns is None:
            raise refuse("columns as a list of names", "None", "leave columns out for none")
        empty = isinstance(columns, list | tuple) and not columns
        self.columns: tuple[str, ...] = () if empty else check_names(columns) or ()
        named = by if isinstance(by, list | tuple) else ()
        self.by = tuple(check_choice(one, name="by", choices=LOGIT_FEATURES) for one in named)
        if not isinstance(by, list | tuple) or len(set(by)) < len(by):
            raise refuse("distinct features of the logits as a list", shown(by), 'write ["confidence", "entropy"]')
        self.knots = check_count(knots, name="knots", low=0)
        self.bias = check_flag(bias, name="bias")
        self.ridge = check_number(ridge, name="ridge", low=0, open_low=True)
        self._declare("slopes", "biases", "limits", "knot", "highest", "center", "spread", "certificate")
        self.register_buffer("owner", torch.empty(0, dtype=torch.int64))
        self.register_buffer("sources", torch.empty(0, dtype=torch.uint8))
        self._known = Sources((), (), ())
        self.needs_features = bool(self.columns)

    def _update_facts(self) -> None:
        self._known = from_bytes(self.sources, LOGIT_FEATURES)
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
        names = [*known.logits, *known.numbers, *(one.name for one in known.names)]
        return f"temperature={self.temperature:.4g}, by {', '.join(names) or 'nothing'}"

    def _fit(self, rows: RowSource) -> None:
        if rows.count > _MOST_ROWS:
            raise refuse(f"at most {_MOST_ROWS:,} rows", f"{rows.count:,}", "fit on a random sample of so many")
        unit, profiles, features = _table(rows, self.columns)
        mass = float(profiles.weight.sum())
        known = sources_of(self.by, features, self.columns)
        values = _values(profiles.features, known, known.columns(features, rows=len(profiles)).to(rows.device))
        indicators = sum(map(len, known.names))
        hinges = hinges_of(values, profiles.weight, knots=self.knots, trimmed=len(known.logits), indicators=indicators)
        if len(hinges.owner) > _MOST_COLUMNS:
            raise refuse(
                f"at most {_MOST_COLUMNS} pieces", str(len(hinges.owner)), "name fewer columns, or fewer knots"
            )
        theta, certificate = self._newton(profiles, hinges.design(values), mass)
        length = 1 + len(hinges.owner)
        self.slopes = theta[:length] * unit
        self.biases = theta[length:].clone() if self.bias else torch.zeros_like(self.slopes)
        slopes = slopes_around(unit)
        self.limits = slopes[[0, -1]].to(rows.device)
        self.owner, self.knot, self.highest = hinges.owner, hinges.knot, hinges.highest
        self.center, self.spread = hinges.center, hinges.spread
        self.sources = to_bytes(known).to(rows.device)
        self.certificate = torch.tensor(certificate, dtype=torch.float64, device=rows.device)

    def _newton(self, profiles: Profiles, design: Tensor, mass: float) -> tuple[Tensor, float]:
        """Return the coefficients (P,), of slopes in units of the table's centre, and the certificate."""
        parts = 2 if self.bias else 1
        weight = torch.full_like(design[0], self.ridge / mass)
        weight[0] = _SETTLES / mass
        ridge = weight.repeat(parts)
        center = torch.zeros_like(ridge)
        center[0] = 1.0
        unit = slopes_around(1.0).to(design.device)

        def derivatives(theta: Tensor) -> Derivatives:
            value, gradient, hessian = _loss_sums(profiles, design, unit, theta[0], parts)
            off = theta[0] - center
            return Derivatives(
                (value / mass + (ridge * off.square()).sum())[None],
                (gradient / mass + 2 * ridge * off)[None],
                (hessian / mass + torch.diag(2 * ridge))[None],
            )

        found = newton(derivatives, center[None], tolerance=_TOLERANCE, enough=_ENOUGH)
        return found.x[0], float(found.gradient[0])

    def _transform(self, logits: Tensor) -> Tensor:
        return self._mapped(logits, None)

    def _transform_with(self, logits: Tensor, features: Features) -> Tensor:
        return self._mapped(logits, features)

    def _mapped(self, logits: Tensor, features: Features | None) -> Tensor:
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        tops = tops_of(wide)
        if features is None or not self._known.beside:
            width = self._known.width - len(self._known.logits)
            columns = tops.features.new_full((logits.shape[0], width), torch.nan)
        else:
            columns = self._known.columns(features, rows=logits.shape[0])
        values = _values(tops.features, self._known, columns.to(logits.device))
        design = Hinges(self.owner, self.knot, self.highest, self.center, self.spread).design(values)
        slope = torch.minimum(torch.maximum(design @ self.slopes, self.limits[0]), self.limits[1]).to(wide.dtype)
        top = (slope * tops.margin + (design @ self.biases).to(wide.dtype)).clamp_min(_AHEAD)
        answer = (tops.below * slope[:, None]).scatter(1, tops.at[:, None], top[:, None])
        return keep_excluded(answer, logits)


def _values(found: Tensor, known: Sources, columns: Tensor) -> Tensor:
    """Return the numbers (n, F) of rows whose logits have the features ``found`` (n, 2)."""
    kept = [LOGIT_FEATURES.index(name) for name in known.logits]
    return torch.cat([found[:, kept], columns], dim=1)


def _table(rows: RowSource, columns: tuple[str, ...]) -> tuple[float, Profiles, dict[str, Any]]:
    """Return the slope at the table's centre, the table in units of it, and the columns of all rows, in one pass or two.

    The centre is 1, or, for logits of quite another scale, the slope of the best single temperature.
    """
    profiles, features = _pass(rows, 1.0, columns)
    unit = slopes_around(1.0).to(rows.device)
    ones = torch.ones_like(profiles.margin)[:, None]
    mass = float(profiles.weight.sum())

    def derivatives(theta: Tensor) -> Derivatives:
        value, gradient, hessian = _loss_sums(profiles, ones, unit, theta[0], 1)
        return Derivatives(value[None] / mass, gradient[None] / mass, hessian[None] / mass)

    ends = unit[[0]], unit[[-1]]
    best = float(newton(derivatives, torch.ones_like(ends[0])[None], tolerance=1e-6, enough=1e-4, bounds=ends).x)
    if _INNER[0] <= best <= _INNER[1]:
        return 1.0, profiles, features
    single = TemperatureScaling()
    single._learn(rows)
    centre = 1 / single.temperature
    again, _ = _pass(rows, centre, columns)
    return centre, again, features


def _pass(rows: RowSource, centre: float, columns: tuple[str, ...]) -> tuple[Profiles, dict[str, Any]]:
    """Return the profiles of all rows with slopes in units of ``centre``, and their columns; fits on one source share them."""
    parts, beside = rows.once(_part, _both, centre)
    made = joined(parts)
    scale = torch.tensor([1.0, centre, centre**2], dtype=torch.float64, device=rows.device)
    scaled = Profiles(
        made.table * scale, made.margin * centre, made.label * centre, made.right, made.features, made.weight
    )
    found = {name: [need_column(part, name) for part in beside] for name in columns}
    return scaled, {name: join_columns(entries, name=name) for name, entries in found.items()}


def _part(chunk: Chunk, centre: float) -> tuple[Any, Any]:
    return profiles_of(chunk, slopes_around(centre).to(chunk.logits.device)), (chunk.features,)


def _both(left: tuple[Any, Any], right: tuple[Any, Any]) -> tuple[Any, Any]:
    return left[0] + right[0], left[1] + right[1]


def _loss_sums(profiles: Profiles, design: Tensor, slopes: Tensor, theta: Tensor, parts: int) -> tuple[Tensor, ...]:
    """Return Σ log-loss, its gradient (P,) and Hessian (P, P); a row depends on its slope, and on its bias if ``parts`` is 2."""
    size = theta.numel()
    value, gradient, hessian = theta.new_zeros(()), theta.new_zeros(size), theta.new_zeros(size, size)
    for start in range(0, len(profiles), _PART):
        rows = slice(start, start + _PART)
        found = _part_sums(profiles.at(rows), design[rows], slopes, theta, parts)
        value, gradient, hessian = value + found[0], gradient + found[1], hessian + found[2]
    return value, gradient, hessian


def _part_sums(rows: Profiles, design: Tensor, slopes: Tensor, theta: Tensor, parts: int) -> tuple[Tensor, ...]:
    # with t = s m + e − L(s), the log-odds of the top class: loss = softplus(t) − t where it is right, else
    # softplus(t) + L(s) − s u, u the label's distance to the second largest
    by_part = theta.view(parts, -1) @ design.T
    s = by_part[0]
    others = interpolated(rows.table, slopes, s)
    bias = by_part[1] if parts == 2 else torch.zeros_like(s)
    t = s * rows.margin + bias - others.value
    p, wrong = torch.sigmoid(t), 1 - rows.right
    value = F.softplus(t) - rows.right * t + wrong * (others.value - s * rows.label)
    turn = rows.margin - others.slope
    first = [(p - rows.right) * turn + wrong * (others.slope - rows.label), p - rows.right]
    spread = p * (1 - p)
    bend = (1 - p) * others.curvature
    second = [[spread * turn.square() + bend, spread * turn], [spread * turn, spread]]
    gradient = torch.cat([(one * rows.weight) @ design for one in first[:parts]])
    blocks = [torch.cat([(design.T * (one * rows.weight)) @ design for one in row[:parts]], dim=1) for row in second]
    return rows.weight @ value, gradient, torch.cat(blocks[:parts])
