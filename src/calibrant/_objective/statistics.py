"""Row statistics that losses are computed from, with gradients written by hand in blocks of rows that stay in the cache.

Autograd would save the softmax of all rows for the backward pass and allocate several temporary N × K matrices.
Here the forward pass saves nothing of size N × K, and the backward pass recomputes the softmax of a block directly
in the gradient's memory. Autograd handles what a loss computes from the N statistics.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.numerics import LOG_OF_UNDERFLOW, row_chunks, softmax_into

SMALL = 1 << 16  # below this many logits, dispatch dominates the cost, and fewer operations are faster


class RowStatistic(ABC):
    """A statistic s(z, y) of each row of logits, with a hand-written gradient."""

    summed: ClassVar[bool] = False  # over the rows: one number a class, (K,) in place of (N,)

    @abstractmethod
    def plain(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return s (N,) by differentiable operations: the definition, used where blocks would not be faster."""

    def measure(self, logits: Tensor, labels: Tensor, work: Tensor) -> Tensor:
        """Return s (n,) of a block; ``work`` (n, K) is scratch memory."""
        return self.plain(logits, labels)

    @abstractmethod
    def write_gradient(self, logits: Tensor, labels: Tensor, scale: Tensor, out: Tensor) -> None:
        """Write ``scale`` (n, 1), or (K,) of sums, times the gradient of s by the block's logits into ``out`` (n, K)."""

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return s (N,) of ``logits`` (N, K) and ``labels`` (N,), in float32 or, for float64 logits, float64."""
        return self.with_logits(logits, labels)[1]

    def with_logits(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``logits`` for further use, and s (N,).

        Use the returned logits for the other terms of a loss: the gradient of s is then added in place to the gradient of
        those terms, so that several terms share one gradient matrix.
        """
        if in_blocks(logits):
            pair: tuple[Tensor, Tensor] = _Blocks.apply(logits, labels, self)
            return pair
        return logits, self.plain(promoted(logits), labels)


def in_blocks(logits: Tensor) -> bool:
    """Return whether blocks are faster: many logits on the CPU, in eager mode, in float32 or below."""
    return (
        logits.numel() >= SMALL
        and logits.device.type == "cpu"
        and logits.dtype != torch.float64
        and not torch.compiler.is_compiling()
    )


def promoted(logits: Tensor) -> Tensor:
    """Return ``logits`` in float32, or as they are in float64."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


class _Blocks(torch.autograd.Function):
    """A ``RowStatistic`` over all rows, block by block; passes the logits through."""

    @staticmethod
    def forward(logits: Tensor, labels: Tensor, statistic: RowStatistic) -> tuple[Tensor, Tensor]:
        blocks = list(row_chunks(*logits.shape, itemsize=4, device=logits.device))
        work = logits.new_empty((blocks[0].stop, logits.shape[1]), dtype=torch.float32)
        value = logits.new_zeros(logits.shape[1:] if statistic.summed else labels.shape, dtype=torch.float32)
        for rows in blocks:
            part = value if statistic.summed else value[rows]
            part += statistic.measure(logits[rows].float(), labels[rows], work[: rows.stop - rows.start])
        return logits.view_as(logits), value

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        logits, labels, statistic = inputs
        ctx.save_for_backward(logits, labels)
        ctx.statistic = statistic
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, through: Tensor | None, grad: Tensor | None) -> tuple[Tensor | None, None, None]:
        logits, labels = ctx.saved_tensors
        if grad is None:
            return through, None, None
        if torch.is_grad_enabled():  # create_graph=True: repeat the forward pass with differentiable operations
            value = ctx.statistic.plain(promoted(logits), labels)
            own = torch.autograd.grad(value, logits, grad, create_graph=True)[0]
            return own if through is None else through + own, None, None

        def write(rows: slice, out: Tensor) -> None:
            scale = grad if ctx.statistic.summed else grad[rows, None]
            ctx.statistic.write_gradient(logits[rows].float(), labels[rows], scale, out)

        return gradient_in_blocks(logits, through, write), None, None


def gradient_in_blocks(logits: Tensor, through: Tensor | None, write: Callable[[slice, Tensor], None]) -> Tensor:
    """Return the gradient (N, K) that ``write(rows, out)`` writes block by block, plus ``through`` if not None."""
    # a gradient that autograd passes may be shared or expanded, so that nothing may be added to it in place
    gradient = torch.empty_like(logits, memory_format=torch.contiguous_format)
    direct = logits.dtype == torch.float32
    blocks = list(row_chunks(*logits.shape, itemsize=4, device=logits.device))
    work = gradient if direct else gradient.new_empty((blocks[0].stop, logits.shape[1]), dtype=torch.float32)
    for rows in blocks:
        out = gradient[rows] if direct else work[: rows.stop - rows.start]
        write(rows, out)
        if not direct:
            gradient[rows] = out
    return gradient if through is None else gradient.add_(through)


_LEAST_P = 1e-30  # below it a float32 probability is subnormal or 0, so −log p is computed from the logits
_LOG_OF_ZERO = -1e4  # its exponential is 0 in float32, and 0 times it is 0, where 0 times −inf is NaN


@dataclass(frozen=True)
class CrossEntropy(RowStatistic):
    """−Σ_k t_k log p_k with t = (1 − u) e_y + u/K: the true class's nll, or, for u ≠ 0, label smoothing.

    Args:
        uniform: u, the weight of the uniform distribution in the target.
    """

    uniform: float = 0.0

    def plain(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy (N,)."""
        clamped = min(max(self.uniform, 0.0), 1.0)  # torch raises for u > 1 and ignores u < 0
        nll = F.cross_entropy(logits, labels, reduction="none", label_smoothing=clamped)
        if clamped == self.uniform:
            return nll
        # the loss is linear in u, with slope z_y − mean_k z_k
        slope = logits.gather(1, labels[:, None])[:, 0] - logits.mean(dim=1)
        return nll + (self.uniform - clamped) * slope

    def measure(self, logits: Tensor, labels: Tensor, work: Tensor) -> Tensor:
        """Return the cross-entropy (n,) from the softmax."""
        softmax_into(work, logits)
        p = work.gather(1, labels[:, None])[:, 0]
        nll = -torch.log(p)
        low = p < _LEAST_P
        if bool(low.any()):
            nll[low] = F.cross_entropy(logits[low], labels[low], reduction="none")
        if self.uniform:
            nll += self.uniform * (logits.gather(1, labels[:, None])[:, 0] - logits.mean(dim=1))
        return nll

    def write_gradient(self, logits: Tensor, labels: Tensor, scale: Tensor, out: Tensor) -> None:
        """Write p − t."""
        softmax_into(out, logits)
        out.mul_(scale)
        if self.uniform:
            out.sub_(scale * (self.uniform / logits.shape[1]))
        out.scatter_add_(1, labels[:, None], scale * (self.uniform - 1))


@dataclass(frozen=True)
class Distance(RowStatistic):
    """Σ_k |p_k − [k = y]|^power: the Brier score for power 2.

    Args:
        power: ≥ 1.
    """

    power: float = 2.0

    def plain(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the distance (N,)."""
        index = labels[:, None]
        p = torch.softmax(logits, dim=1)
        error = p.scatter_add(1, index, -torch.ones_like(p[:, :1]))  # p − e_y
        return (error.square() if self.power == 2 else positive_power(error.abs(), self.power)).sum(dim=1)

    def measure(self, logits: Tensor, labels: Tensor, work: Tensor) -> Tensor:
        """Return the distance (n,)."""
        softmax_into(work, logits)
        work.scatter_add_(1, labels[:, None], work.new_full((work.shape[0], 1), -1.0))
        return (work.square_() if self.power == 2 else work.abs_().pow_(self.power)).sum(dim=1)

    def write_gradient(self, logits: Tensor, labels: Tensor, scale: Tensor, out: Tensor) -> None:
        """Write p_k (g_k − Σ_j p_j g_j), g = power·|d|^(power − 1)·sign(d), d = p − e_y."""
        p = softmax_into(torch.empty_like(out), logits)
        out.copy_(p)
        out.scatter_add_(1, labels[:, None], out.new_full((out.shape[0], 1), -1.0))
        if self.power != 2:
            out.copy_(torch.sign(out) * out.abs().pow_(self.power - 1))
        out.sub_((out * p).sum(dim=1, keepdim=True)).mul_(p).mul_(self.power * scale)


@dataclass(frozen=True)
class Entropy(RowStatistic):
    """−Σ_k p_k log p_k; a class with p = 0 adds 0."""

    def plain(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the entropy (N,)."""
        log_p = F.log_softmax(logits, dim=1)
        # p = 0 times −∞, or times an upstream gradient that overflows, is NaN: such classes are masked in both factors
        excluded = log_p < LOG_OF_UNDERFLOW[log_p.dtype]
        finite = torch.where(excluded, 0, log_p)
        return -(torch.where(excluded, 0, torch.exp(finite)) * finite).sum(dim=1)

    def measure(self, logits: Tensor, labels: Tensor, work: Tensor) -> Tensor:
        """Return the entropy (n,)."""
        p, mean = self._relative(logits, work)
        return -mean[:, 0] - torch.log(p.amax(dim=1))

    def write_gradient(self, logits: Tensor, labels: Tensor, scale: Tensor, out: Tensor) -> None:
        """Write −p_k (log p_k + H)."""
        p, mean = self._relative(logits, out)
        out.sub_(mean).mul_(p).mul_(-scale)

    def _relative(self, logits: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        """Write log(p_k / p_top) into ``out``; return p and Σ_k p_k log(p_k / p_top) (n, 1). One exponential a logit."""
        torch.sub(logits, logits.amax(dim=1, keepdim=True), out=out)
        p = softmax_into(torch.empty_like(out), out)
        mean = (p * out).sum(dim=1, keepdim=True)
        if bool(mean.isnan().any()):  # 0 · −∞: a class is excluded
            mean = (p * out.clamp_min_(_LOG_OF_ZERO)).sum(dim=1, keepdim=True)
        return p, mean


@dataclass(frozen=True)
class ClassSums(RowStatistic):
    """Σ_i w_i p_ik of each class, with the rows' weights in place of labels."""

    summed = True

    def plain(self, logits: Tensor, weights: Tensor) -> Tensor:
        """Return the sums (K,)."""
        return (torch.softmax(logits, dim=1) * weights[:, None]).sum(dim=0)

    def measure(self, logits: Tensor, weights: Tensor, work: Tensor) -> Tensor:
        """Return the sums (K,) of a block."""
        return torch.softmax(logits, dim=1, out=work).mul_(weights[:, None]).sum(dim=0)

    def write_gradient(self, logits: Tensor, weights: Tensor, scale: Tensor, out: Tensor) -> None:
        """Write w_i p_ij (g_j − Σ_k p_ik g_k), g = ``scale`` (K,)."""
        p = torch.softmax(logits, dim=1)
        torch.mul(p, scale, out=out)
        out.sub_(out.sum(dim=1, keepdim=True) * p).mul_(weights[:, None])


@dataclass(frozen=True)
class Norm(RowStatistic):
    """(Σ_k |z_k|^p)^(1/p) of the logits themselves; a class excluded by −inf adds 0.

    Args:
        p: Order, ≥ 1.
    """

    p: float

    def plain(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the norm (N,), with gradient 0 at 0."""
        size = without_excluded(logits).abs()
        if self.p == 1:
            return size.sum(dim=1)
        norm: Tensor = _norm(size, self.p) if torch.compiler.is_compiling() else _Norm.apply(size, self.p)
        return norm

    def measure(self, logits: Tensor, labels: Tensor, work: Tensor) -> Tensor:
        """Return the norm (n,)."""
        torch.abs(without_excluded(logits), out=work)
        if self.p == 1:
            return work.sum(dim=1)
        top = work.amax(dim=1, keepdim=True).clamp_min_(torch.finfo(work.dtype).tiny)
        return work.div_(top).pow_(self.p).sum(dim=1).pow_(1 / self.p).mul_(top[:, 0])

    def write_gradient(self, logits: Tensor, labels: Tensor, scale: Tensor, out: Tensor) -> None:
        """Write sign(z_k) (|z_k| / ‖z‖)^(p − 1)."""
        finite = without_excluded(logits)
        if self.p == 1:
            torch.sign(finite, out=out)
        else:
            size = self.measure(logits, labels, out)[:, None].clamp_min(torch.finfo(out.dtype).tiny)
            torch.abs(finite, out=out)
            out.div_(size).pow_(self.p - 1).mul_(torch.sign(finite))
        out.mul_(scale)


def _norm(size: Tensor, p: float) -> Tensor:
    """Return (Σ_k s_k^p)^(1/p) (N,) of s ≥ 0 (N, K), with gradient 0 at 0."""
    # relative to the largest, so that neither large numbers nor small ones leave the range of the dtype
    top = size.detach().amax(dim=1).clamp_min(torch.finfo(size.dtype).tiny)
    total = positive_power(size / top[:, None], p).sum(dim=1)
    return positive_power(total, 1 / p) * top


class _Norm(torch.autograd.Function):
    """``_norm`` for p > 1, with its slope (s_k/‖s‖)^(p − 1) written out: by the chain rule it overflows."""

    generate_vmap_rule = True

    @staticmethod
    def forward(size: Tensor, p: float) -> Tensor:
        return _norm(size, p)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.p = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (size,) = ctx.saved_tensors
        norm = _Norm.apply(size, ctx.p)[:, None].clamp_min(torch.finfo(size.dtype).tiny)
        return grad[:, None] * positive_power(size / norm, ctx.p - 1), None


@dataclass(frozen=True)
class Margin(RowStatistic):
    """Σ_k max(0, max_j z_j − z_k − m)^power: by how much differences to the largest logit exceed a margin.

    Args:
        margin: m ≥ 0.
        power: 1 or 2.
        attached: Whether the largest logit has a gradient.
    """

    margin: float
    power: int
    attached: bool

    def plain(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the summed excess (N,); equal largest logits share its gradient."""
        top = logits.amax(dim=1, keepdim=True)
        excess = F.relu(without_excluded((top if self.attached else top.detach()) - logits - self.margin))
        return (excess if self.power == 1 else excess.square()).sum(dim=1)

    def measure(self, logits: Tensor, labels: Tensor, work: Tensor) -> Tensor:
        """Return the summed excess (n,)."""
        self._excess(logits, work)
        return (work if self.power == 1 else work.square_()).sum(dim=1)

    def write_gradient(self, logits: Tensor, labels: Tensor, scale: Tensor, out: Tensor) -> None:
        """Write −power·excess^(power − 1) at each class beyond the margin, and minus their sum at the largest."""
        top = self._excess(logits, out)
        if self.power == 1:
            out.sign_()
        total = out.sum(dim=1, keepdim=True)
        out.mul_(-self.power * scale)
        if self.attached:
            largest = (logits == top).float()
            out.add_(largest.mul_(self.power * scale * total / largest.sum(dim=1, keepdim=True)))

    def _excess(self, logits: Tensor, out: Tensor) -> Tensor:
        top = logits.amax(dim=1, keepdim=True)
        torch.sub(top - self.margin, logits, out=out)
        without_excluded(out, out=out).relu_()
        return top


@dataclass(frozen=True)
class Largest(RowStatistic):
    """max_k z_k; equal largest logits share its gradient."""

    def plain(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the largest logit (N,)."""
        return logits.amax(dim=1)

    def write_gradient(self, logits: Tensor, labels: Tensor, scale: Tensor, out: Tensor) -> None:
        """Write 1 at the largest."""
        out.copy_(logits == logits.amax(dim=1, keepdim=True))
        out.mul_(scale / out.sum(dim=1, keepdim=True))


class _Bounded(torch.autograd.Function):
    """Its argument, with an upstream gradient that overflowed as a finite number: times a slope of 0 it is 0 and not NaN."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor) -> Tensor:
        return values.view_as(values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        most = torch.finfo(grad.dtype).max / (1 << 20)  # leaves room for the factors and differences that follow
        return grad.clamp(-most, most)


def with_bounded_gradient(values: Tensor) -> Tensor:
    """Return ``values``, for a factor whose slope is 0 where the other factor is so large that a gradient overflows."""
    if torch.compiler.is_compiling():
        return values
    same: Tensor = _Bounded.apply(values)
    return same


def without_excluded(values: Tensor, out: Tensor | None = None) -> Tensor:
    """Return ``values`` with 0 where a class is excluded (its logit is −inf, its excess +inf); NaN stays."""
    return torch.nan_to_num(values, nan=torch.nan, posinf=0.0, neginf=0.0, out=out)


def positive_power(base: Tensor, exponent: float) -> Tensor:
    """Return base^exponent for base ≥ 0, with gradient 0 instead of infinity or NaN at 0."""
    zero = base == 0
    return torch.where(zero, 0, torch.where(zero, 1, base).pow(exponent))
