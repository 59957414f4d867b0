"""One number a row of logits, whose gradient is written once, in blocks of rows that stay in the processor's cache.

Autograd would keep the softmax of all rows for the backward pass and make several matrices of its size on the way.
Here the forward pass keeps nothing of size N × K and the backward pass recomputes the softmax of a block straight
into the gradient. What a loss does with the numbers, of which there are N, is left to autograd.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from calibrant._numerics import row_chunks

SMALL = 1 << 16  # below this many logits the passes are dispatch only, and fewer operations win


class RowStatistic(ABC):
    """A number s(z, y) for each row of logits, with its gradient by hand."""

    @abstractmethod
    def plain(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return s (N,) by differentiable operations: the definition, used wherever the blocks would not pay."""

    @abstractmethod
    def measure(self, logits: Tensor, labels: Tensor, work: Tensor) -> Tensor:
        """Return s (n,) of a block; ``work`` (n, K) is scratch."""

    @abstractmethod
    def write_gradient(self, logits: Tensor, labels: Tensor, scale: Tensor, out: Tensor) -> None:
        """Write ``scale`` (n, 1) times the gradient of s by the logits of a block into ``out`` (n, K)."""

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return s (N,) of ``logits`` (N, K) and ``labels`` (N,), in float32 or, for float64 logits, float64."""
        if in_blocks(logits):
            value: Tensor = _Blocks.apply(logits, labels, self)
            return value
        return self.plain(promoted(logits), labels)


def in_blocks(logits: Tensor) -> bool:
    """Return whether blocks pay: many logits on a processor with caches, in eager mode, in float32 or below."""
    return (
        logits.numel() >= SMALL
        and logits.device.type == "cpu"
        and logits.dtype != torch.float64
        and not torch.compiler.is_compiling()
    )


def promoted(logits: Tensor) -> Tensor:
    """Return ``logits`` in float32, or as they are in float64."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def differentiate_again(statistic: Any, logits: Tensor, labels: Tensor, scale: Tensor) -> Tensor:
    """Return the gradient as a differentiable function of ``logits`` and ``scale``, for second derivatives."""
    value = statistic.plain(promoted(logits), labels)
    return torch.autograd.grad(value, logits, scale, create_graph=True)[0]


class _Blocks(torch.autograd.Function):
    """A ``RowStatistic`` over all rows, block by block."""

    @staticmethod
    def forward(logits: Tensor, labels: Tensor, statistic: RowStatistic) -> Tensor:
        blocks = list(row_chunks(*logits.shape, itemsize=4))
        work = logits.new_empty((blocks[0].stop, logits.shape[1]), dtype=torch.float32)
        value = logits.new_empty(labels.shape, dtype=torch.float32)
        for rows in blocks:
            value[rows] = statistic.measure(logits[rows].float(), labels[rows], work[: rows.stop - rows.start])
        return value

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        logits, labels, statistic = inputs
        ctx.save_for_backward(logits, labels)
        ctx.statistic = statistic

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        logits, labels = ctx.saved_tensors
        if torch.is_grad_enabled():
            return differentiate_again(ctx.statistic, logits, labels, grad), None, None
        gradient = torch.empty_like(logits, memory_format=torch.contiguous_format)
        narrow = logits.dtype != torch.float32
        blocks = list(row_chunks(*logits.shape, itemsize=4))
        work = gradient.new_empty((blocks[0].stop, logits.shape[1]), dtype=torch.float32) if narrow else gradient
        for rows in blocks:
            out = work[: rows.stop - rows.start] if narrow else gradient[rows]
            ctx.statistic.write_gradient(logits[rows].float(), labels[rows], grad[rows, None], out)
            if narrow:
                gradient[rows] = out
        return gradient, None, None
