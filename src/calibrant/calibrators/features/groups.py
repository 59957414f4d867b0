"""The convex problem under group scaling: log-loss of softmax((1 + Σ u_g) x + Σ v_g) over each row's groups, with a ridge.

A row belongs to C groups, one a column. Parameters are laid out by group, (u_g, v_g1 … v_gK) or u_g alone, so that the Hessian is
made of blocks of F = 1 + K (or 1), one for each pair of groups that share rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant._core.minimise import Loss, minimise
from calibrant.calibrators.affine.fit import AffineChunk, Ridge, fit_affine, lift_excluded
from calibrant.calibrators.base.folds import fold_by_scores
from calibrant.calibrators.focal.log_temperature import fit_temperature
from calibrant.rows import Chunk, RowSource


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


@dataclass(frozen=True)
class Layout:
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
        table = torch.cat([theta.view(self.groups, self.block), theta.new_zeros(1, self.block)])  # of no group: nothing
        moved = table[groups].sum(dim=1)[cell]
        z = (1 + moved[:, :1]) * x
        return z + moved[:, 1:] if self.bias else z


def fit_groups(
    rows: RowSource, mass: float, layout: Layout, strength: float, start: Tensor | None = None
) -> tuple[Tensor, float]:
    """Return the certified minimum (P,) of the mean log-loss plus strength / mass · Σ θ², and its gradient.

    Raises:
        FitError: If the gradient's certificate is not reached.
    """
    first = torch.zeros(layout.parameters, dtype=torch.float64, device=rows.device) if start is None else start
    low = layout.lowest.to(rows.device)
    loss = Loss(
        mass,
        lambda theta: rows.total(loss_sums, theta, layout),
        ridge=strength / mass,
        bounds=(low, torch.full_like(low, torch.inf)),
    )
    # steps of at most 4 in a slope or a bias: from 0, where the curvature is that of equal groups, a few rows can ask for hundreds
    found = minimise(loss, first, longest=4.0)
    return found.theta, found.gradient


def loss_sums(chunk: GroupChunk, theta: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
    """Return Σ log-loss, its gradient (P,) and its Hessian (P, P)."""
    log_p = torch.log_softmax(layout.outputs(theta, chunk.x, chunk.cell, chunk.groups), dim=1)
    loss = -(log_p.gather(1, chunk.labels[:, None])[:, 0] * chunk.weight).sum()
    gradient, blocks = _derivatives(chunk, log_p.exp(), layout)
    return loss, *_by_groups(gradient, blocks, chunk.cell, chunk.groups, layout)


def fold_sums(chunk: GroupChunk, theta: Tensor, layout: Layout, folds: int) -> tuple[Tensor, Tensor]:
    """Return gradient (folds, P) and Hessian (folds, P, P) at θ (P,), by fold."""
    p = torch.softmax(layout.outputs(theta, chunk.x, chunk.cell, chunk.groups), dim=1)
    gradient, blocks = _derivatives(chunk, p, layout)
    parts = [torch.nonzero(chunk.fold == fold)[:, 0] for fold in range(folds)]
    found = [_by_groups(gradient[part], blocks[part], chunk.cell[part], chunk.groups, layout) for part in parts]
    return torch.stack([one for one, _ in found]), torch.stack([one for _, one in found])


def held_out(chunk: GroupChunk, thetas: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Return Σ and Σ² (S,) of the gain in log-loss over θ = 0, of rows under the θ (S, folds, P) fitted on the other folds."""
    label = chunk.labels[:, None]
    plain = torch.log_softmax(chunk.x, dim=1).gather(1, label)[:, 0]
    sums, squares = torch.zeros(2, thetas.shape[0], dtype=torch.float64, device=chunk.x.device)
    for fold in range(thetas.shape[1]):
        rows = torch.nonzero(chunk.fold == fold)[:, 0]
        x, cell, own, weight, before = (part[rows] for part in (chunk.x, chunk.cell, label, chunk.weight, plain))
        for at in range(thetas.shape[0]):
            z = layout.outputs(thetas[at, fold], x, cell, chunk.groups)
            gain = torch.log_softmax(z, dim=1).gather(1, own)[:, 0] - before
            sums[at] += (gain * weight).sum()
            squares[at] += (gain.square() * weight).sum()
    return sums, squares


def _derivatives(chunk: GroupChunk, p: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Return each row's gradient (n, F) and Hessian (n, F, F) by the parameters of any of its groups."""
    error = p.clone()
    error.scatter_add_(1, chunk.labels[:, None], error.new_full((len(chunk), 1), -1.0))
    mean = (p * chunk.x).sum(dim=1, keepdim=True)
    slope = (error * chunk.x).sum(dim=1, keepdim=True)
    gradient = torch.cat([slope, error], dim=1) if layout.bias else slope
    curved = p * (chunk.x - mean)
    blocks = p.new_empty(len(chunk), layout.block, layout.block)
    blocks[:, 0, 0] = (curved * chunk.x).sum(dim=1)
    if layout.bias:
        blocks[:, 0, 1:] = curved
        blocks[:, 1:, 0] = curved
        blocks[:, 1:, 1:] = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    return gradient * chunk.weight[:, None], blocks * chunk.weight[:, None, None]


def _by_groups(gradient: Tensor, blocks: Tensor, cell: Tensor, groups: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Return the gradient (P,) and the Hessian (P, P) of rows with gradients (n, F) and blocks (n, F, F): first by combination."""
    size, block = layout.groups + 1, layout.block
    row, column = torch.triu_indices(block, block, device=blocks.device)
    parts = torch.cat([gradient, blocks[:, row, column]], dim=1)
    sums = _binned([cell], parts, len(groups))
    columns = groups.unbind(dim=1)
    own = _binned(columns, sums, size)
    pairs = [one * size + other for at, one in enumerate(columns) for other in columns[at + 1 :]]
    upper = _squares(_binned(pairs, sums[:, block:], size * size), block).view(size, size, block, block)
    hessian = upper + upper.transpose(0, 1)  # blocks are symmetric
    every = torch.arange(size, device=sums.device)
    hessian[every, every] += _squares(own[:, block:], block)
    kept = hessian[:-1, :-1].permute(0, 2, 1, 3)
    return own[:-1, :block].reshape(-1), kept.reshape(layout.parameters, layout.parameters)


def _squares(parts: Tensor, block: int) -> Tensor:
    """Return symmetric matrices (n, F, F) of their upper halves (n, F (F + 1) / 2)."""
    row, column = torch.triu_indices(block, block, device=parts.device)
    found = parts.new_empty(len(parts), block, block)
    found[:, row, column] = parts
    found[:, column, row] = parts
    return found


def _binned(codes: Sequence[Tensor], parts: Tensor, size: int) -> Tensor:
    """Return Σ parts (size, F) of the rows (n, F) by each of their codes (n,)."""
    sums = parts.new_zeros(parts.shape[1], size)
    for at, part in enumerate(parts.T.contiguous()):
        for code in codes:
            sums[at] += torch.bincount(code, weights=part, minlength=size)
    return sums.T


def group_chunk(chunk: Chunk, x: Tensor, groups: Tensor, folds: int) -> GroupChunk:
    """Return the rows as inputs of these sums."""
    groups = groups.to(x.device)
    cell = torch.zeros(len(groups), dtype=torch.int64, device=x.device)
    for column in groups.unbind(dim=1):
        cell = torch.unique(cell * (int(column.max()) + 1) + column, return_inverse=True)[1]
    held = groups.new_empty(int(cell.max()) + 1, groups.shape[1])
    held[cell] = groups
    fold = fold_by_scores(chunk, folds, groups) if folds > 1 else torch.zeros_like(cell)
    return GroupChunk(x, cell, held, chunk.labels, chunk.weights, fold)


# One map for all rows, as free as they pay for: what methods by features start from and fall back to.

EVIDENCE = 2.0  # standard errors of its gain on rows held out, from which what goes by features is used
PRIOR = 0.5  # standard deviation of log T of the fit for all rows
PENALTY = 4.0  # nats a parameter


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
        theta, worst = fit_groups(rows.prepared(_input_of_all, slope), mass, Layout(1, 1, classes, bias=True), 1.0)
        tried.append((classes, slope * (1 + theta[0]) * ones, theta[1:], worst))
        free = fit_affine(rows.prepared(_affine_of, slope), mass, Ridge(1 / mass, 0.0, 1 / mass), diagonal=True)
        if bool((free.scale > 0).all()):
            tried.append((2 * classes - 1, slope * free.scale, free.bias, free.gradient))
    slopes, biases = torch.stack([one[1] for one in tried]), torch.stack([one[2] for one in tried])
    penalty = PENALTY * torch.tensor([float(one[0]) for one in tried], dtype=torch.float64, device=rows.device)
    best = int((rows.total(_losses, slopes, biases) + penalty).argmin())
    return tried[best][1], tried[best][2], tried[best][3]


def _input_of_all(chunk: Chunk, slope: float) -> GroupChunk:
    everyone = torch.zeros(len(chunk), 1, dtype=torch.int64)
    return group_chunk(chunk, lift_excluded(chunk.logits.double()) * slope, everyone, 1)


def _affine_of(chunk: Chunk, slope: float) -> AffineChunk:
    return AffineChunk(lift_excluded(chunk.logits.double()) * slope, chunk.labels, chunk.weights)


def _losses(chunk: Chunk, slopes: Tensor, biases: Tensor) -> Tensor:
    """Return Σ log-loss (M,) of each of the maps (M, K)."""
    x, label = lift_excluded(chunk.logits.double()), chunk.labels[:, None]
    maps = zip(slopes, biases, strict=True)
    return torch.stack([-(chunk.weights @ torch.log_softmax(x * a + b, dim=1).gather(1, label)[:, 0]) for a, b in maps])
