"""A temperature and a bias for each group of rows, partially pooled."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from calibrant._core.check import refuse
from calibrant._core.constraints import Integer, Positive
from calibrant.calibrators.affine.fit import AffineChunk, Ridge, fit_affine, keep_excluded, lift_excluded
from calibrant.calibrators.base import ByFeatures, Certified
from calibrant.calibrators.chunks import check_label_logits
from calibrant.calibrators.convex import convex_fit
from calibrant.calibrators.features.columns import KnownColumn, check_column_names, from_buffer, to_buffer
from calibrant.calibrators.folds import fold_by_scores
from calibrant.calibrators.temperature import fit_temperature
from calibrant.data.record import Features
from calibrant.rows import Batch, MemoryRows, RowSource

_STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)  # of which cross-fitting chooses
_EVIDENCE = 2.0  # standard errors of its gain on rows held out, from which groups are told apart
_MOST_BIASES = 50  # classes, up to which a group has biases unless it is said otherwise
_MOST_GROUPS, _MOST_PARAMETERS = 1000, 1024
_PRIOR = 0.5  # standard deviation of log T of the fit for all rows
_PENALTY = 4.0  # nats a parameter of the fit for all rows, four times Akaike's: where rows are few, more would do harm


@dataclass(frozen=True)
class GroupFit:
    """What one group's rows are scaled by, if they belong to no other group.

    Args:
        column: The feature.
        value: Its category.
        temperature: Of the group's rows, of the mean slope where classes have their own; +inf where the slope is 0.
        bias: (K,) added to the tempered logits.
    """

    column: str
    value: str | int
    temperature: float
    bias: tuple[float, ...]


class GroupScaling(Certified, ByFeatures):
    """softmax((1 + Σ u_g) x + Σ v_g) over the groups g of a row, x = z/T + b: a temperature and biases a group, partially pooled.

    Groups are the categories of the feature columns; a row belongs to one of each column, whose parts add up. T and b are fitted on
    all rows first: neither, T, both, or both with a T of each class, whatever gains 4 nats a parameter.
    strength / N · Σ (u_g² + ‖v_g‖²) is added to the mean log-loss, so a group of few rows stays near the global fit; the strength is the
    one with the least log-loss on rows that a fit has not seen. Where no strength gains more than two standard errors of its gain, no
    group is told apart (``strength_used`` is inf). Every step is convex and ends with a gradient certificate; a slope is at least 0.

    Rows of a category that the fit has not seen get the global fit; where groups are told apart, rows without features are refused.

    Args:
        columns: Names of the feature columns; None takes all.
        strength: Of the ridge, > 0, or None to choose it by cross-fitted log-loss.
        bias: Whether each group has biases beside its temperature; None: with up to 50 classes.
        folds: Of the choice, ≥ 2; a row's fold depends on its content alone, and rows of one cluster share it.

    Attributes:
        strength_used: The strength of the fit; inf where no group is told apart.
        temperature: The global T, of the mean slope where classes have their own.
        groups: One ``GroupFit`` a group.
        gradient: The largest entry of the objective's gradient at the end, in nats: the certificate.

    Examples:
        >>> from calibrant import Predictions
        >>> z = torch.tensor([[2.0, 0.0]]).repeat(400, 1)
        >>> y = [0] * 180 + [1] * 20 + [0] * 120 + [1] * 80
        >>> data = Predictions.from_logits(z, y, features={"site": ["a"] * 200 + ["b"] * 200})
        >>> data.calibrated_by(GroupScaling(strength=1.0).fit(data), allow_fit_rows=True).probs[[0, -1], 0]
        tensor([0.8968, 0.6022], dtype=torch.float64)

    References:
        Gelman & Hill 2007, chapter 12 (partial pooling); Hébert-Johnson et al. 2018 (multicalibration).
    """

    slope: Tensor
    bias_: Tensor
    slopes: Tensor
    biases: Tensor
    categories: Tensor
    used: Tensor

    def __init__(
        self,
        columns: Sequence[str] | None = None,
        *,
        strength: Positive | None = None,
        bias: bool | None = None,
        folds: Annotated[int, Integer(2)] = 5,
    ) -> None:
        super().__init__()
        self.columns = check_column_names(columns)
        self.strength = strength
        self.bias = bias
        self.folds = folds

    def _learned_columns(self) -> tuple[KnownColumn, ...]:
        return from_buffer(self.categories)

    @property
    def temperature(self) -> float:
        """The global T; NaN before ``fit``."""
        return 1 / float(self.slope.mean()) if self.fitted else math.nan

    @property
    def strength_used(self) -> float:
        """The strength of the fit; NaN before ``fit``."""
        return float(self.used) if self.fitted else math.nan

    @property
    def groups(self) -> tuple[GroupFit, ...]:
        """What each group's rows are scaled by."""
        names = [(one.name, value) for one in self._known for value in one.values or ()]
        slopes = ((1 + self.slopes) * self.slope.mean()).tolist()
        biases = ((1 + self.slopes)[:, None] * self.bias_ + self.biases).tolist() if names else []
        found = zip(names, slopes, biases, strict=True)
        return tuple(GroupFit(*name, 1 / s if s > 0 else math.inf, tuple(b)) for name, s, b in found)

    def learned(self) -> str:
        """Return the global temperature, and how many groups are told apart."""
        return f"temperature={self.temperature:.4g}, {len(self.slopes)} groups, strength_used={self.strength_used:g}"

    def _fit(self, rows: RowSource) -> None:
        chunk, classes = rows.gathered(why="GroupScaling"), rows.classes
        check_label_logits(chunk)
        known = [KnownColumn.of(name, chunk.features) for name in (self.columns or chunk.features)]
        groups, biased = sum(map(len, known)), classes <= _MOST_BIASES if self.bias is None else self.bias
        size = groups * (1 + classes * biased)
        if groups > _MOST_GROUPS or size > _MOST_PARAMETERS:
            got = f"{groups} groups and {size:,} parameters"
            remedy = "leave out columns, or pass bias=False for a temperature a group alone"
            raise refuse(f"at most {_MOST_GROUPS} groups and {_MOST_PARAMETERS} parameters", got, remedy)
        self.slope, self.bias_, certificate = fit_everyone(MemoryRows.of_batch(chunk), biased=biased)
        theta, used = torch.zeros(size, dtype=torch.float64, device=rows.device), math.inf
        if known:
            x = lift_excluded(chunk.logits.double()) * self.slope + self.bias_
            pooled = _Pooled(x, codes_of(known, chunk.features).to(x.device), chunk.labels, chunk.row_weights, groups)
            used = self.strength or pooled.chosen(theta, fold_by_scores(chunk, self.folds, pooled.codes), self.folds)
            if math.isfinite(used):
                theta, worst = convex_fit(pooled.objective(used, rows.mass), theta)
                certificate = max(certificate, worst)
        table = theta.view(groups, 1 + classes * biased)
        self.slopes = table[:, 0].clone()
        self.biases = table[:, 1:].clone() if biased else theta.new_zeros(groups, classes)
        self.categories = to_buffer(known).to(rows.device)
        self.used = torch.tensor(used, dtype=torch.float64, device=rows.device)
        self._certify(certificate, rows.device)

    def _transform_with(self, logits: Tensor, features: Features | None) -> Tensor:
        x = lift_excluded(logits) * self.slope.to(logits.dtype) + self.bias_.to(logits.dtype)  # of the fit for all rows
        if features is not None and self._known:
            codes = codes_of(self._known, features, x.shape[0]).to(x.device)
            slopes, biases = (sum_over_groups(table, codes) for table in (self.slopes[:, None], self.biases))
            x = x * (1 + slopes).clamp_min(0).to(x.dtype) + biases.to(x.dtype)
        return keep_excluded(x, logits)


def codes_of(columns: Sequence[KnownColumn], features: Features, rows: int | None = None) -> Tensor:
    """Return the group (N, C) of each row in each column, numbered through all columns; their number in all for unknown ones."""
    total, start, found = sum(map(len, columns)), 0, []
    for one in columns:
        code = one.codes(features, rows)
        found.append(torch.where(code < len(one), code + start, total))
        start += len(one)
    return torch.stack(found, dim=1)


def sum_over_groups(table: Tensor, codes: Tensor) -> Tensor:
    """Return the sums (n, F) of the lines of ``table`` (G, F) of each row's groups (n, C); group G is none, and adds nothing."""
    return torch.cat([table, table.new_zeros(1, table.shape[1])])[codes].sum(dim=1)


@dataclass(frozen=True)
class _Pooled:
    """Rows of the partially pooled fit: inputs (n, K), groups (n, C), labels and weights (n,); G groups."""

    x: Tensor
    codes: Tensor
    labels: Tensor
    weights: Tensor
    groups: int

    def where(self, rows: Tensor) -> "_Pooled":
        return _Pooled(self.x[rows], self.codes[rows], self.labels[rows], self.weights[rows], self.groups)

    def losses(self, theta: Tensor) -> Tensor:
        """Return the log-loss (n,) at the slopes and biases θ of all groups."""
        moved = sum_over_groups(theta.view(self.groups, -1), self.codes)
        z = (1 + moved[:, :1]) * self.x
        z = z + moved[:, 1:] if moved.shape[1] > 1 else z
        return -torch.log_softmax(z, dim=1).gather(1, self.labels[:, None])[:, 0]

    def objective(self, strength: float, mass: float) -> Callable[[Tensor], Tensor]:
        """Return the penalised mean log-loss as a function of θ."""
        return lambda theta: (self.weights @ self.losses(theta) + strength * theta.square().sum()) / mass

    def chosen(self, start: Tensor, fold: Tensor, folds: int) -> float:
        """Return the strength with the least cross-fitted log-loss, or inf where it gains less than two standard errors."""
        gains = torch.zeros(len(_STRENGTHS), len(fold), dtype=torch.float64, device=start.device)
        for k in range(folds):
            held, rest, theta = self.where(fold == k), self.where(fold != k), start
            for at in reversed(range(len(_STRENGTHS))):  # from the strongest, which lies near the start
                loss = rest.objective(_STRENGTHS[at], float(rest.weights.sum()))
                theta, _ = convex_fit(loss, theta, tolerance=1e-6)
                gains[at, fold == k] = held.losses(start) - held.losses(theta)
        sums, mass = gains @ self.weights, self.weights.sum()
        best = int(sums.argmax())
        error = (self.weights @ (gains[best] - sums[best] / mass).square()).sqrt()
        return _STRENGTHS[best] if float(sums[best]) > _EVIDENCE * float(error) else math.inf


def fit_everyone(rows: MemoryRows, *, biased: bool) -> tuple[Tensor, Tensor, float]:
    """Return the global slopes (K,), biases (K,) and certificate: softmax(slope ∘ z + bias) of all rows.

    Of doing nothing, a temperature, a temperature with biases, and slopes of each class with biases, the one with the least
    log-loss, in nats of all rows, plus 4 a parameter.

    Args:
        rows: Without a true class at −inf.
        biased: Whether to try biases, and slopes of each class.
    """
    chunk, mass, slope = rows.gathered(), rows.mass, 1 / fit_temperature(rows, _PRIOR)
    x, ones = lift_excluded(chunk.logits.double()), torch.ones(rows.classes, dtype=torch.float64, device=rows.device)
    tried: list[tuple[int, Tensor, Tensor, float]] = [(0, ones, 0 * ones, 0.0), (1, slope * ones, 0 * ones, 0.0)]
    if biased:
        none = torch.zeros(len(chunk), 1, dtype=torch.int64, device=rows.device)
        one = _Pooled(x * slope, none, chunk.labels, chunk.row_weights, 1)
        theta, worst = convex_fit(
            one.objective(1.0, mass), torch.zeros(1 + rows.classes, dtype=torch.float64).to(rows.device)
        )
        tried.append((rows.classes, slope * (1 + theta[0]) * ones, theta[1:], worst))
        free = fit_affine(rows.map(_affine_of, slope), mass, Ridge(1 / mass, 0.0, 1 / mass), diagonal=True)
        if bool((free.scale > 0).all()):
            tried.append((2 * rows.classes - 1, slope * free.scale, free.bias, free.gradient))

    def cost(one: tuple[int, Tensor, Tensor, float]) -> float:
        log_p = torch.log_softmax(x * one[1] + one[2], dim=1).gather(1, chunk.labels[:, None])[:, 0]
        return _PENALTY * one[0] - float(chunk.row_weights @ log_p)

    return min(tried, key=cost)[1:]


def _affine_of(chunk: Batch, slope: float) -> AffineChunk:
    return AffineChunk(lift_excluded(chunk.logits.double()) * slope, chunk.labels, chunk.row_weights)
