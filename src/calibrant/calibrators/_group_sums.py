"""The convex problem under group scaling: log-loss of softmax((1 + Σ u_g) x + Σ v_g) over each row's groups, with a ridge.

A row belongs to C groups, one a column. Parameters are laid out by group, (u_g, v_g1 … v_gK) or u_g alone, so that the Hessian is
made of blocks of F = 1 + K (or 1), one for each pair of groups that share rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.calibrators._folds import fold_by_scores
from calibrant.calibrators._newton import Derivatives, newton
from calibrant.rows import Chunk, RowSource

_TOLERANCE, _ENOUGH = 1e-9, 1e-7  # of a gradient entry of the mean log-loss


@dataclass(frozen=True)
class GroupChunk:
    """Inputs (n, K) float64, groups (n, C) with G for none, labels (n,), weights (n,) and folds (n,)."""

    x: Tensor
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

    def outputs(self, theta: Tensor, x: Tensor, groups: Tensor) -> Tensor:
        """Return the logits (n, K) of inputs (n, K) in their groups (n, C)."""
        table = torch.cat([theta.view(self.groups, self.block), theta.new_zeros(1, self.block)])  # of no group: nothing
        moved = table[groups].sum(dim=1)
        z = (1 + moved[:, :1]) * x
        return z + moved[:, 1:] if self.bias else z


def fit_groups(
    rows: RowSource, mass: float, layout: Layout, strength: float, start: Tensor | None = None
) -> tuple[Tensor, float]:
    """Return the certified minimum (P,) of the mean log-loss plus strength / mass · Σ θ², and its gradient.

    Raises:
        FitError: If the gradient's certificate is not reached.
    """
    ridge = strength / mass

    def derivatives(theta: Tensor) -> Derivatives:
        at = theta[0]
        value, gradient, hessian = rows.total(loss_sums, at, layout)
        return Derivatives(
            (value / mass + ridge * at.square().sum())[None],
            (gradient / mass + 2 * ridge * at)[None],
            (hessian / mass + 2 * ridge * torch.eye(layout.parameters, dtype=torch.float64, device=at.device))[None],
        )

    first = torch.zeros(layout.parameters, dtype=torch.float64, device=rows.device) if start is None else start
    low = layout.lowest.to(rows.device)
    found = newton(
        derivatives,
        first[None],
        tolerance=_TOLERANCE,
        enough=_ENOUGH,
        bounds=(low, torch.full_like(low, torch.inf)),
        longest=4.0,
    )
    return found.x[0], float(found.gradient[0])


def loss_sums(chunk: GroupChunk, theta: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
    """Return Σ log-loss, its gradient (P,) and its Hessian (P, P)."""
    log_p = torch.log_softmax(layout.outputs(theta, chunk.x, chunk.groups), dim=1)
    loss = -(log_p.gather(1, chunk.labels[:, None])[:, 0] * chunk.weight).sum()
    gradient, blocks = _derivatives(chunk, log_p.exp(), layout)
    return loss, _by_group(gradient, chunk.groups, layout), _by_pair(blocks, chunk.groups, layout)


def fold_sums(chunk: GroupChunk, theta: Tensor, layout: Layout, folds: int) -> tuple[Tensor, Tensor]:
    """Return gradient (folds, P) and Hessian (folds, P, P) at θ (P,), by fold."""
    p = torch.softmax(layout.outputs(theta, chunk.x, chunk.groups), dim=1)
    gradient, blocks = _derivatives(chunk, p, layout)
    parts = [chunk.fold == fold for fold in range(folds)]
    return (
        torch.stack([_by_group(gradient[part], chunk.groups[part], layout) for part in parts]),
        torch.stack([_by_pair(blocks[part], chunk.groups[part], layout) for part in parts]),
    )


def held_out(chunk: GroupChunk, thetas: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Return Σ and Σ² (S,) of the gain in log-loss over θ = 0, of rows under the θ (S, folds, P) fitted on the other folds."""
    label = chunk.labels[:, None]
    plain = torch.log_softmax(chunk.x, dim=1).gather(1, label)[:, 0]
    sums, squares = torch.zeros(2, thetas.shape[0], dtype=torch.float64, device=chunk.x.device)
    for fold in range(thetas.shape[1]):
        rows = chunk.fold == fold
        for at in range(thetas.shape[0]):
            z = layout.outputs(thetas[at, fold], chunk.x[rows], chunk.groups[rows])
            gain = torch.log_softmax(z, dim=1).gather(1, label[rows])[:, 0] - plain[rows]
            weight = chunk.weight[rows]
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


def _by_group(gradient: Tensor, groups: Tensor, layout: Layout) -> Tensor:
    sums = gradient.new_zeros(layout.groups + 1, layout.block)
    for column in groups.unbind(dim=1):
        sums.index_add_(0, column, gradient)
    return sums[:-1].reshape(-1)


def _by_pair(blocks: Tensor, groups: Tensor, layout: Layout) -> Tensor:
    size, block = layout.groups + 1, layout.block
    sums = blocks.new_zeros(size * size, block, block)
    for one in groups.unbind(dim=1):
        for other in groups.unbind(dim=1):
            sums.index_add_(0, one * size + other, blocks)
    kept = sums.view(size, size, block, block)[:-1, :-1]
    return kept.permute(0, 2, 1, 3).reshape(layout.parameters, layout.parameters)


def group_chunk(chunk: Chunk, x: Tensor, groups: Tensor, folds: int) -> GroupChunk:
    """Return the rows as inputs of these sums."""
    return GroupChunk(x, groups.to(x.device), chunk.labels, chunk.weights, fold_by_scores(chunk, folds, groups))
