"""Triton kernels for CUDA that compute the cross-entropy for the losses, and its gradient.

The kernels read the logits twice and write the gradient once. Eager PyTorch moves about six matrices of the size of the logits and
saves one for the backward pass, whereas the kernels move three and save two numbers per row.
Loop lengths are compile-time constants, which help the compiler, and which the interpreter of older Triton releases requires with
newer NumPy versions. The kernels are defined inside a function because Triton is imported only if it is used.
"""

from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

triton: Any
tl: Any

_BLOCK = 4096  # number of classes per step of a loss
_LONG_ROW = 1 << 16  # from this number of classes on, twice the block size and warps keep more loads in flight
_LOWEST = -3e38  # replaces −∞, so that differences to it are not NaN


def row_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """Return −log p_y (N,), float32, for ``logits`` (N, K) in float32 or narrower and ``labels`` (N,) in [0, K)."""
    # as in PyTorch's own kernel, without waiting for the device, and before a label is used as an address
    torch._assert_async(((labels >= 0) & (labels < logits.shape[1])).all(), "expected labels in [0, K)")
    nll: Tensor = _RowNLL.apply(logits, labels)[0]
    return nll


class _RowNLL(torch.autograd.Function):
    """The nll and log Σ exp of each row; the latter is saved so that the backward pass need not recompute it."""

    @staticmethod
    def forward(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = logits if logits.stride(1) == 1 else logits.contiguous()
        nll, total = (logits.new_empty(labels.shape, dtype=torch.float32) for _ in range(2))
        rows, classes = logits.shape
        with torch.cuda.device_of(logits):
            block, warps = _classes_and_warps(classes)
            constants = {"CLASSES": classes, "BLOCK": block, "LOWEST": _LOWEST, "num_warps": warps}
            _kernels().forward[(rows,)](logits, labels, nll, total, logits.stride(0), **constants)
        return nll, total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
        logits, labels, total = ctx.saved_tensors
        if torch.is_grad_enabled():
            nll = F.cross_entropy(logits.float(), labels, reduction="none")
            return torch.autograd.grad(nll, logits, grad, create_graph=True)[0], None
        logits = logits if logits.stride(1) == 1 else logits.contiguous()
        rows, classes = logits.shape
        block, warps = _classes_and_warps(classes)
        gradient = torch.empty((rows, classes), dtype=logits.dtype, device=logits.device)
        grid = (rows, -(-classes // block))
        arguments = (logits, labels, total, grad.contiguous(), gradient, logits.stride(0), classes)
        with torch.cuda.device_of(logits):
            _kernels().backward[grid](*arguments, BLOCK=block, num_warps=warps)
        return gradient, None


def _classes_and_warps(classes: int) -> tuple[int, int]:
    """Return the number of classes per step, a power of 2, and of the warps that share them, with 16 classes per thread."""
    block = min(2 * _BLOCK if classes >= _LONG_ROW else _BLOCK, 1 << (classes - 1).bit_length())
    return block, min(16, max(4, block // 512))


@cache
def _kernels() -> SimpleNamespace:
    global triton, tl
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def forward(logits, labels, nll, total, stride, CLASSES: tl.constexpr, BLOCK: tl.constexpr, LOWEST: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        start = logits + row * stride
        lane = tl.arange(0, BLOCK)
        # Each lane keeps its own running maximum and sum, with one exponential per logit. Lanes are combined once, at the end.
        top = tl.full((BLOCK,), LOWEST, tl.float32)
        mass = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, CLASSES, BLOCK):
            at = first + lane
            z = tl.load(start + at, mask=at < CLASSES, other=-float("inf")).to(tl.float32)
            apart = tl.exp(-tl.abs(z - top))
            mass = tl.where(z > top, mass * apart + 1.0, mass + apart)
            top = tl.maximum(top, z)
        largest = tl.max(top, axis=0)
        log_total = largest + tl.log(tl.sum(mass * tl.exp(top - largest), axis=0))
        own = tl.load(start + tl.load(labels + row)).to(tl.float32)
        tl.store(total + row, log_total)
        tl.store(nll + row, log_total - own)

    @triton.jit  # type: ignore[untyped-decorator]
    def backward(logits, labels, total, grad, out, stride, classes, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = at < classes
        z = tl.load(logits + row * stride + at, mask=inside, other=-float("inf")).to(tl.float32)
        p = tl.exp(z - tl.load(total + row))
        slope = tl.load(grad + row) * (p - tl.where(at == tl.load(labels + row), 1.0, 0.0))
        tl.store(out + row * classes + at, slope, mask=inside)

    return SimpleNamespace(forward=forward, backward=backward)
