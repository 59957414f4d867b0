"""The cross-entropy pass of the losses on CUDA: logits are read twice, the gradient is written once.

Eager PyTorch moves about six matrices of the size of the logits and keeps one; these kernels move three and keep two
numbers a row. They are written inside a function, since Triton is imported only where it is used.
"""

import importlib.util
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

triton: Any
tl: Any

LARGE = 1 << 22  # logits; below, launches and not memory decide, and PyTorch's kernels launch faster
_BLOCK = 4096


@cache
def available() -> bool:
    """Return whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def pays(logits: Tensor) -> bool:
    """Return whether the kernels are faster than PyTorch's on these CUDA logits, and can run."""
    return logits.numel() >= LARGE and logits.shape[1] >= 1024 and logits.dtype != torch.float64 and available()


def row_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """Return −log p_y (N,) float32 of ``logits`` (N, K) in float32 or below and ``labels`` (N,) in [0, K)."""
    nll: Tensor = _RowNLL.apply(logits, labels)[0]
    return nll


class _RowNLL(torch.autograd.Function):
    """(nll, log Σ exp) a row; the second only saves a pass in the backward direction."""

    @staticmethod
    def forward(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = logits if logits.stride(1) == 1 else logits.contiguous()
        nll, total = (logits.new_empty(labels.shape, dtype=torch.float32) for _ in range(2))
        rows, classes = logits.shape
        with torch.cuda.device_of(logits):
            _kernels()[0][(rows,)](logits, labels, nll, total, logits.stride(0), classes, BLOCK=_block(classes))
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
        block = _block(classes)
        gradient = torch.empty((rows, classes), dtype=logits.dtype, device=logits.device)
        grid = (rows, -(-classes // block))
        with torch.cuda.device_of(logits):
            _kernels()[1][grid](
                logits, labels, total, grad.contiguous(), gradient, logits.stride(0), classes, BLOCK=block
            )
        return gradient, None


def _block(classes: int) -> int:
    """Return the classes that one step handles: a power of 2."""
    return min(_BLOCK, 1 << (classes - 1).bit_length())


@cache
def _kernels() -> tuple[Any, Any]:
    """Return the forward and the backward kernel."""
    global triton, tl
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def forward(logits, labels, nll, total, stride, classes, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        start = logits + row * stride
        lane = tl.arange(0, BLOCK)
        top = -float("inf")
        mass = 0.0
        for first in range(0, classes, BLOCK):
            at = first + lane
            z = tl.load(start + at, mask=at < classes, other=-float("inf")).to(tl.float32)
            new = tl.maximum(top, tl.max(z, axis=0))
            safe = tl.where(new == -float("inf"), 0.0, new)  # −inf − −inf is NaN
            mass = mass * tl.exp(top - safe) + tl.sum(tl.exp(z - safe), axis=0)
            top = new
        log_total = tl.where(top == -float("inf"), 0.0, top) + tl.log(mass)
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
        pulled = tl.load(grad + row) * (p - tl.where(at == tl.load(labels + row), 1.0, 0.0))
        tl.store(out + row * classes + at, pulled, mask=inside)

    return forward, backward
