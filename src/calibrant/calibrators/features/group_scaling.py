"""A temperature and a bias for each group of rows, partially pooled."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from calibrant._core.check import refuse
from calibrant._core.constraints import Integer, Positive
from calibrant._core.minimise import Objective, minimise
from calibrant.calibrators.affine.fit import AffineChunk, Ridge, fit_affine, keep_excluded, lift_excluded
from calibrant.calibrators.base.calibrator import ByFeatures, Certified
from calibrant.calibrators.base.folds import fold_by_scores
from calibrant.calibrators.features.columns import (
    KnownColumn,
    Names,
    check_group_count,
    codes_of,
    columns_from_json,
    from_bytes,
    known_columns,
    names_of,
    to_buffer,
)
from calibrant.calibrators.focal.temperature import fit_temperature
from calibrant.data.record import Features
from calibrant.rows import Chunk, RowSource

STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_MOST_BIASES = 50  # classes, up to which a group has biases unless it is said otherwise
_MOST_PARAMETERS = 1024  # a Hessian of this side takes 8 MiB, and one a fold is held


@dataclass(frozen=True)
class ParameterLayout:
    """Which parameters there are.

    Args:
        groups: G.
        columns: C.
        classes: K.
        bias: Whether each group has biases beside its slope.
    """

    groups: int
    columns: int
    classes: int
    bias: bool

    @property
    def block(self) -> int:
        """F: parameters a group."""
        return 1 + self.classes * self.bias

    @property
    def parameters(self) -> int:
        """P."""
        return self.groups * self.block

    @property
    def lowest(self) -> Tensor:
        """(P,) lower bounds: slopes of −1/C at least, so that the slope of no row is below 0."""
        low = torch.full((self.groups, self.block), -torch.inf, dtype=torch.float64)
        low[:, 0] = -1 / self.columns
        return low.reshape(-1)

    def outputs(self, theta: Tensor, x: Tensor, cell: Tensor, groups: Tensor) -> Tensor:
        """Return the logits (n, K) of inputs (n, K) with combinations (n,) of groups (m, C)."""
        moved = sum_over_groups(theta.view(self.groups, self.block), groups)[cell]
        z = (1 + moved[:, :1]) * x
        return z + moved[:, 1:] if self.bias else z


def sum_over_groups(table: Tensor, groups: Tensor) -> Tensor:
    """Return the sums (n, F) of the lines of ``table`` (G, F) of each row's ``groups`` (n, C); group G is none, and adds nothing."""
    return torch.cat([table, table.new_zeros(1, table.shape[1])])[groups].sum(dim=1)


@dataclass(frozen=True)
class GroupChunk:
    """Inputs of rows, and in which groups they are.

    Args:
        x: (n, K) float64.
        cell: (n,) which of the combinations of groups a row has.
        groups: (m, C) the groups of each combination, G for none.
        labels: (n,).
        weight: (n,).
        fold: (n,).
    """

    x: Tensor
    cell: Tensor
    groups: Tensor
    labels: Tensor
    weight: Tensor
    fold: Tensor

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    @classmethod
    def of(
        cls, chunk: Chunk, slope: Tensor | float, bias: Tensor | float, known: tuple[KnownColumn, ...], folds: int
    ) -> "GroupChunk":
        """Return rows, mapped by slope and bias, in the groups of the ``known`` columns; without any, all in one group."""
        x = lift_excluded(chunk.logits.double()) * slope + bias
        alone = torch.zeros(len(chunk), 1, dtype=torch.int64)
        groups = (codes_of(known, chunk.features) if known else alone).to(x.device)
        cell = torch.zeros(len(groups), dtype=torch.int64, device=x.device)
        for column in groups.unbind(dim=1):
            cell = torch.unique(cell * (int(column.max()) + 1) + column, return_inverse=True)[1]
        held = groups.new_empty(int(cell.max()) + 1, groups.shape[1])
        held[cell] = groups
        fold = fold_by_scores(chunk, folds, groups) if folds > 1 else torch.zeros_like(cell)
        return cls(x, cell, held, chunk.labels, chunk.weights, fold)

    def loss_sums(self, theta: Tensor, layout: ParameterLayout) -> tuple[Tensor, Tensor, Tensor]:
        """Return Σ log-loss, its gradient (P,) and its Hessian (P, P)."""
        log_p = torch.log_softmax(layout.outputs(theta, self.x, self.cell, self.groups), dim=1)
        loss = -(log_p.gather(1, self.labels[:, None])[:, 0] * self.weight).sum()
        gradient, blocks = self._derivatives(log_p.exp(), layout)
        return loss, *_by_groups(gradient, blocks, self.cell, self.groups, layout)

    def fold_sums(self, theta: Tensor, layout: ParameterLayout, folds: int) -> tuple[Tensor, Tensor]:
        """Return gradient (folds, P) and Hessian (folds, P, P) at θ (P,), by fold."""
        p = torch.softmax(layout.outputs(theta, self.x, self.cell, self.groups), dim=1)
        gradient, blocks = self._derivatives(p, layout)
        parts = [torch.nonzero(self.fold == fold)[:, 0] for fold in range(folds)]
        found = [_by_groups(gradient[part], blocks[part], self.cell[part], self.groups, layout) for part in parts]
        return torch.stack([one for one, _ in found]), torch.stack([one for _, one in found])

    def held_out(self, thetas: Tensor, layout: ParameterLayout) -> tuple[Tensor, Tensor]:
        """Return Σ and Σ² (S,) of the gain in log-loss over θ = 0, of rows under the θ (S, folds, P) fitted on the other folds."""
        label = self.labels[:, None]
        plain = torch.log_softmax(self.x, dim=1).gather(1, label)[:, 0]
        sums, squares = torch.zeros(2, thetas.shape[0], dtype=torch.float64, device=self.x.device)
        for fold in range(thetas.shape[1]):
            rows = torch.nonzero(self.fold == fold)[:, 0]
            x, cell, own, weight, before = (part[rows] for part in (self.x, self.cell, label, self.weight, plain))
            for at in range(thetas.shape[0]):
                z = layout.outputs(thetas[at, fold], x, cell, self.groups)
                gain = torch.log_softmax(z, dim=1).gather(1, own)[:, 0] - before
                sums[at] += (gain * weight).sum()
                squares[at] += (gain.square() * weight).sum()
        return sums, squares

    def _derivatives(self, p: Tensor, layout: ParameterLayout) -> tuple[Tensor, Tensor]:
        """Return each row's gradient (n, F) and Hessian (n, F, F) by the parameters of any of its groups."""
        error = p.clone()
        error.scatter_add_(1, self.labels[:, None], error.new_full((len(self), 1), -1.0))
        mean = (p * self.x).sum(dim=1, keepdim=True)
        slope = (error * self.x).sum(dim=1, keepdim=True)
        gradient = torch.cat([slope, error], dim=1) if layout.bias else slope
        curved = p * (self.x - mean)
        blocks = p.new_empty(len(self), layout.block, layout.block)
        blocks[:, 0, 0] = (curved * self.x).sum(dim=1)
        if layout.bias:
            blocks[:, 0, 1:] = curved
            blocks[:, 1:, 0] = curved
            blocks[:, 1:, 1:] = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        return gradient * self.weight[:, None], blocks * self.weight[:, None, None]


def fit_groups(
    rows: RowSource, mass: float, layout: ParameterLayout, strength: float, start: Tensor | None = None
) -> tuple[Tensor, float]:
    """Return the certified minimum (P,) of the mean log-loss plus strength / mass · Σ θ², and its gradient.

    Raises:
        FitError: If the gradient's certificate is not reached.
    """
    first = torch.zeros(layout.parameters, dtype=torch.float64, device=rows.device) if start is None else start
    low = layout.lowest.to(rows.device)
    loss = Objective(
        mass,
        lambda theta: rows.total(GroupChunk.loss_sums, theta, layout),
        ridge=strength / mass,
        bounds=(low, torch.full_like(low, torch.inf)),
    )
    # steps of at most 4 in a slope or a bias: from 0, where the curvature is that of equal groups, a few rows can ask for hundreds
    found = minimise(loss, first, longest=4.0)
    return found.theta, found.gradient


def _by_groups(
    gradient: Tensor, blocks: Tensor, cell: Tensor, groups: Tensor, layout: ParameterLayout
) -> tuple[Tensor, Tensor]:
    """Return the gradient (P,) and the Hessian (P, P) of rows with gradients (n, F) and blocks (n, F, F): first by combination."""
    size, block = layout.groups + 1, layout.block
    row, column = torch.triu_indices(block, block, device=blocks.device)
    parts = torch.cat([gradient, blocks[:, row, column]], dim=1)
    sums = _sums_by_code([cell], parts, len(groups))
    columns = groups.unbind(dim=1)
    own = _sums_by_code(columns, sums, size)
    pairs = [one * size + other for at, one in enumerate(columns) for other in columns[at + 1 :]]
    upper = _full_matrices(_sums_by_code(pairs, sums[:, block:], size * size), block).view(size, size, block, block)
    hessian = upper + upper.transpose(0, 1)  # blocks are symmetric
    every = torch.arange(size, device=sums.device)
    hessian[every, every] += _full_matrices(own[:, block:], block)
    kept = hessian[:-1, :-1].permute(0, 2, 1, 3)
    return own[:-1, :block].reshape(-1), kept.reshape(layout.parameters, layout.parameters)


def _full_matrices(parts: Tensor, block: int) -> Tensor:
    """Return symmetric matrices (n, F, F) of their upper halves (n, F (F + 1) / 2)."""
    row, column = torch.triu_indices(block, block, device=parts.device)
    found = parts.new_empty(len(parts), block, block)
    found[:, row, column] = parts
    found[:, column, row] = parts
    return found


def _sums_by_code(codes: Sequence[Tensor], parts: Tensor, size: int) -> Tensor:
    """Return Σ parts (size, F) of the rows (n, F) by each of their codes (n,)."""
    sums = parts.new_zeros(parts.shape[1], size)
    for at, part in enumerate(parts.T.contiguous()):
        for code in codes:
            sums[at] += torch.bincount(code, weights=part, minlength=size)
    return sums.T


# One map for all rows, as free as they pay for: what methods by features start from and fall back to.

EVIDENCE = 2.0  # standard errors of its gain on rows held out, from which what goes by features is used
PRIOR = 0.5  # standard deviation of log T of the fit for all rows
PENALTY = 4.0  # nats a parameter


def surely_gains(gain: float, square: float, mass: float) -> bool:
    """Return whether a summed gain on rows held out, with the sum of its squares, is above ``EVIDENCE`` of its standard errors."""
    return gain > EVIDENCE * math.sqrt(max(square - gain**2 / mass, 0.0))


def fit_everyone(rows: RowSource, mass: float, *, biased: bool) -> tuple[Tensor, Tensor, float]:
    """Return the global slopes (K,), biases (K,) and certificate: softmax(slope ∘ z + bias) of all rows.

    Of doing nothing, a temperature, a temperature with biases, and slopes of each class with biases, the one with the least
    log-loss, in nats of all rows, plus 4 a parameter, four times Akaike's (1974) penalty: where rows are few, a fit that they do
    not pay for does harm.

    Args:
        rows: Without a true class at −inf.
        mass: Σ of their weights.
        biased: Whether to try biases, and slopes of each class.
    """
    slope, classes = 1 / fit_temperature(rows, PRIOR), rows.classes
    ones = torch.ones(classes, dtype=torch.float64, device=rows.device)
    tried: list[tuple[int, Tensor, Tensor, float]] = [(0, ones, 0 * ones, 0.0), (1, slope * ones, 0 * ones, 0.0)]
    if biased:
        theta, worst = fit_groups(
            rows.prepared(GroupChunk.of, slope, 0.0, (), 1), mass, ParameterLayout(1, 1, classes, bias=True), 1.0
        )
        tried.append((classes, slope * (1 + theta[0]) * ones, theta[1:], worst))
        free = fit_affine(rows.prepared(_affine_of, slope), mass, Ridge(1 / mass, 0.0, 1 / mass), diagonal=True)
        if bool((free.scale > 0).all()):
            tried.append((2 * classes - 1, slope * free.scale, free.bias, free.gradient))
    slopes, biases = torch.stack([one[1] for one in tried]), torch.stack([one[2] for one in tried])
    penalty = PENALTY * torch.tensor([float(one[0]) for one in tried], dtype=torch.float64, device=rows.device)
    best = int((rows.total(_losses_of_maps, slopes, biases) + penalty).argmin())
    return tried[best][1], tried[best][2], tried[best][3]


def _affine_of(chunk: Chunk, slope: float) -> AffineChunk:
    return AffineChunk(lift_excluded(chunk.logits.double()) * slope, chunk.labels, chunk.weights)


def _losses_of_maps(chunk: Chunk, slopes: Tensor, biases: Tensor) -> Tensor:
    """Return Σ log-loss (M,) of each of the maps (M, K)."""
    x, label = lift_excluded(chunk.logits.double()), chunk.labels[:, None]
    maps = zip(slopes, biases, strict=True)
    return torch.stack([-(chunk.weights @ torch.log_softmax(x * a + b, dim=1).gather(1, label)[:, 0]) for a, b in maps])


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
    group is told apart (``strength_used`` is inf). Slopes are held at u_g ≥ −1/C for C columns, so that no row's slope is negative.
    Every step is convex and ends with a gradient certificate.

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
        columns: Names | None = None,
        *,
        strength: Positive | None = None,
        bias: bool | None = None,
        folds: Annotated[int, Integer(2)] = 5,
    ) -> None:
        super().__init__()
        self.columns = columns
        self.strength = strength
        self.bias = bias
        self.folds = folds

    def _learned_columns(self) -> list[KnownColumn]:
        return columns_from_json(from_bytes(self.categories))

    def _update_facts(self) -> None:
        super()._update_facts()
        if self.fitted and self.slopes.shape != (sum(map(len, self._known)),):
            raise ValueError("as many slopes as groups were expected")

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
        names = self.columns if self.columns is not None else names_of(rows)
        known = known_columns(rows, names, whole=True) if names else []
        check_group_count(known)
        biased = rows.classes <= _MOST_BIASES if self.bias is None else self.bias
        layout = ParameterLayout(sum(map(len, known)), max(len(known), 1), rows.classes, biased)
        if layout.parameters > _MOST_PARAMETERS:
            remedy = "leave out columns, or pass bias=False for a temperature a group alone"
            got = f"{layout.parameters:,} ({layout.groups} groups of {layout.block})"
            raise refuse(f"at most {_MOST_PARAMETERS} parameters", got, remedy)
        mass = rows.mass
        slope, bias, certificate = fit_everyone(rows, mass, biased=biased)
        theta = torch.zeros(0, dtype=torch.float64, device=rows.device)
        used = math.inf
        if known:
            inputs = rows.prepared(GroupChunk.of, slope, bias, tuple(known), self.folds)
            used, theta, worst = self._fit_groups(inputs, mass, layout)
            certificate = max(certificate, worst)
        table = theta.view(layout.groups, layout.block)
        self.slope, self.bias_ = slope, bias
        self.slopes = table[:, 0].clone()
        self.biases = table[:, 1:].clone() if biased else table.new_zeros(len(table), rows.classes)
        self.categories = to_buffer(known).to(rows.device)
        self.used = torch.tensor(used, dtype=torch.float64, device=rows.device)
        self._certify(certificate, rows.device)

    def _fit_groups(self, inputs: RowSource, mass: float, layout: ParameterLayout) -> tuple[float, Tensor, float]:
        """Return the strength, the groups' parameters (P,) and the certificate."""
        if self.strength is not None:
            return self.strength, *fit_groups(inputs, mass, layout, self.strength)
        weak, _ = fit_groups(inputs, mass, layout, 1.0)
        used = self._chosen(inputs, mass, layout, weak)
        if math.isinf(used):
            return used, torch.zeros_like(weak), 0.0
        return used, *fit_groups(inputs, mass, layout, used, weak)

    def _chosen(self, inputs: RowSource, mass: float, layout: ParameterLayout, weak: Tensor) -> float:
        """Return the strength with the least cross-fitted log-loss, or inf where it gains less than two standard errors.

        What the other folds alone would give is one step of Newton's method away from ``weak`` (P,), the fit on all rows; the gain
        on a fold's rows is that of the exact log-loss.
        """
        gradient, hessian = inputs.total(GroupChunk.fold_sums, weak, layout, self.folds)
        rest_gradient, rest_hessian = gradient.sum(dim=0) - gradient, hessian.sum(dim=0) - hessian
        eye = torch.eye(layout.parameters, dtype=torch.float64, device=weak.device)
        low = layout.lowest.to(weak.device)
        thetas = []
        for strength in STRENGTHS:
            step = torch.linalg.solve(rest_hessian + 2 * strength * eye, rest_gradient + 2 * strength * weak)
            thetas.append(torch.maximum(weak - step, low))
        sums, squares = inputs.total(GroupChunk.held_out, torch.stack(thetas), layout)
        best = int(sums.argmax())
        return STRENGTHS[best] if surely_gains(float(sums[best]), float(squares[best]), mass) else math.inf

    def _transform_with(self, logits: Tensor, features: Features | None) -> Tensor:
        x = lift_excluded(logits) * self.slope.to(logits.dtype) + self.bias_.to(logits.dtype)  # of the fit for all rows
        if features is not None and self._known:
            groups = codes_of(self._known, features, x.shape[0]).to(x.device)
            slopes, biases = (sum_over_groups(table, groups) for table in (self.slopes[:, None], self.biases))
            x = x * (1 + slopes).clamp_min(0).to(x.dtype) + biases.to(x.dtype)
        return keep_excluded(x, logits)
