"""The nearest probabilities that keep a model's decision, or its whole ranking.

The free answer p stands for the truth, so that the row's expected log-loss of an answer q is KL(p ‖ q) + H(p): of all q that keep
what must be kept, the one of least KL(p ‖ q) is to be taken. Where the constraints say that a set of classes is equal, q is their
arithmetic mean, for Σ_S p_k log q_k is largest there; the rest is which sets.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from calibrant._core.numerics import in_row_chunks, sort_down
from calibrant.calibrators.base.chunks import tie_margin

Keep = Literal["argmax", "order"]
# (K, K) means a row: from here on SciPy's pooling of adjacent violators, row by row, is faster, but cannot be traced
_PAIRS_OF_CLASSES = 48
_SINGLE = 1e-12  # relative distance at which a class was pooled with no other, so that its own logarithm is exact


def project(log_p: Tensor, logits: Tensor, keep: Keep) -> Tensor:
    """Return log q (N, K) float64 of least KL(p ‖ q) with the decision, or the ranking, of ``logits`` (N, K); without its ties broken.

    Args:
        log_p: (N, K) float64, normalised.
        logits: Of the model; of equal ones the first counts as larger.
        keep: What of them.
    """
    if keep == "argmax":
        return _lead(log_p, logits.argmax(dim=1, keepdim=True))
    order = sort_down(logits)[1]
    ranked = in_row_chunks(_descending, log_p.gather(1, order))
    # Strictly, in float32 too: each rank gives way by more than float32 rounds its own logarithm by. The step grows with |log q|,
    # so that it never falls from one rank to the next.
    steps = torch.arange(ranked.shape[1], dtype=ranked.dtype, device=ranked.device) * tie_margin(ranked)
    return torch.empty_like(ranked).scatter(1, order, torch.where(torch.isinf(ranked), ranked, ranked - steps))


def _lead(log_p: Tensor, decided: Tensor) -> Tensor:
    """Return log q with q_d ≥ q_j for the decision d (N, 1): d and the classes above get their mean, from the largest on.

    With s_1 ≥ s_2 ≥ … the other classes, class s_m joins while it is above the mean of p_d, s_1 … s_{m−1}; that the means rise up to
    there and no class left is above the last is the condition of Karush, Kuhn and Tucker.
    """
    p = log_p.exp()
    own = p.gather(1, decided)
    rivals = sort_down(p.scatter(1, decided, -1.0))[0][:, :-1]
    counts = torch.arange(1, rivals.shape[1] + 1, dtype=p.dtype, device=p.device)
    means = torch.cat([own, (own + rivals.cumsum(dim=1)) / (counts + 1)], dim=1)
    joined = (rivals > means[:, :-1]).sum(dim=1, keepdim=True)  # once one does not join, no later one does
    level = torch.where(joined > 0, means.gather(1, joined).log(), log_p.gather(1, decided))
    return torch.minimum(log_p, level).scatter(1, decided, level)


def _descending(log_p: Tensor) -> Tensor:
    """Return log q (n, K) of the nearest q that falls along the row: isotonic regression, by its min–max formula.

    q_r = min_{i ≤ r} max_{j ≥ r} mean(p_i … p_j). Sums run from the end, where a falling row is smallest, so that the means of its
    tail are differences of small numbers.
    """
    p, classes = log_p.exp(), log_p.shape[1]
    if classes > _PAIRS_OF_CLASSES and not torch.compiler.is_compiling():
        from scipy.optimize import isotonic_regression

        rows = [torch.from_numpy(isotonic_regression(row, increasing=False).x.copy()) for row in p.cpu().numpy()]
        q = torch.stack(rows).to(p.device) if rows else p
    else:
        tails = torch.nn.functional.pad(p.flip(1).cumsum(dim=1).flip(1), (0, 1))
        index = torch.arange(classes, device=p.device)
        first, last = index[:, None], index[None, :]
        means = (tails[:, :-1, None] - tails[:, None, 1:]) / (last - first + 1).clamp_min(1)
        largest = means.masked_fill(last < first, -math.inf)
        step = 1
        while step < classes:  # the maximum over j ≥ r, by doubling: ONNX has no running maximum
            ahead = torch.nn.functional.pad(largest[:, :, step:], (0, step), value=-math.inf)
            largest, step = torch.maximum(largest, ahead), 2 * step
        q = largest.masked_fill(first > last, math.inf).amin(dim=1)
    single = (q - p).abs() <= _SINGLE * p
    return torch.where(single | torch.isneginf(log_p), log_p, q.log())
