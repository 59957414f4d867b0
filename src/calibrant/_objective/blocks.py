"""Per-row statistics of logits, with gradients written by hand in blocks of rows that stay in the processor's cache.

Autograd would save the softmax of all rows for the backward pass and allocate several temporary N × K matrices.
Here the forward pass saves nothing of size N × K, and the backward pass recomputes the softmax of a block directly
in the gradient's memory. Autograd handles what a loss computes from the N statistics.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from calibrant._core.numerics import row_chunks

SMALL = 1 << 16  # below this many logits, dispatch dominates the cost, and fewer operations are faster


class RowStatistic(ABC):
    """A statistic s(z, y) of each row of logits, with a hand-written gradient."""

    @abstractmethod
    def plain(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return s (N,) by differentiable operations: the definition, used where blocks would not be faster."""

    @abstractmethod
    def measure(self, logits: Tensor, labels: Tensor, work: Tensor) -> Tensor:
        """Return s (n,) of a block; ``work`` (n, K) is scratch memory."""

    @abstractmethod
    def write_gradient(self, logits: Tensor, labels: Tensor, scale: Tensor, out: Tensor) -> None:
        """Write ``scale`` (n, 1) times the gradient of s with respect to the block's logits into ``out`` (n, K)."""

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
        value = logits.new_empty(labels.shape, dtype=torch.float32)
        for rows in blocks:
            value[rows] = statistic.measure(logits[rows].float(), labels[rows], work[: rows.stop - rows.start])
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
            ctx.statistic.write_gradient(logits[rows].float(), labels[rows], grad[rows, None], out)

        return gradient_in_blocks(logits, through, write), None, None


def gradient_in_blocks(logits: Tensor, through: Tensor | None, write: Callable[[slice, Tensor], None]) -> Tensor:
    """Return the gradient (N, K) that ``write(rows, out)`` writes block by block, added in place to ``through`` if not None."""
    gradient = torch.empty_like(logits, memory_format=torch.contiguous_format) if through is None else through
    direct = through is None and logits.dtype == torch.float32
    blocks = list(row_chunks(*logits.shape, itemsize=4, device=logits.device))
    work = gradient if direct else gradient.new_empty((blocks[0].stop, logits.shape[1]), dtype=torch.float32)
    for rows in blocks:
        out = gradient[rows] if direct else work[: rows.stop - rows.start]
        write(rows, out)
        if through is not None:
            gradient[rows] += out
        elif not direct:
            gradient[rows] = out
    return gradient
