"""A last linear layer fused with a loss, which computes logits and their gradient for one chunk of rows at a time.

The loss must be a sum over samples. If it is reduced to a mean or a sum, its gradients are computed in the forward pass.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.nn import functional as F

from calibrant._core.check import kind_of, refuse
from calibrant._core.numerics import slices
from calibrant.errors import InputError
from calibrant.losses.loss import Loss, check_tensors

_CHUNK_BYTES = 1 << 26  # 128 rows with 128k float32 logits, enough for a matrix product to run at full speed
_DEVICE_CHUNK_BYTES = 1 << 28

Gradients = list[Tensor | None]  # gradients for hidden (N, H), weight (K, H) and bias (K,)


class FusedLinearLoss(nn.Module):
    """loss(hidden · weightᵀ + bias, labels) without holding the N × K logits in memory.

    For each chunk of rows it computes the logits, the loss terms, their gradient, and the contribution to the gradients of
    ``hidden``, ``weight`` and ``bias``, summed in at least float32. For a mean or a sum this happens in the forward pass,
    so that each product is computed once; with ``reduction="none"`` the upstream gradient is not known then, and the
    backward pass recomputes the logits. Under autocast the products have its dtype. Second derivatives are not supported,
    and ``torch.compile`` breaks its graph here (with ``fullgraph=True`` it raises).

    Args:
        loss: A loss that is a sum over samples; its reduction, class weights and ignored label apply. Losses that depend on
            the whole batch (MMCE, MDCA, soft-binned ECE) are refused.
        chunk: Rows per chunk; None is as many as have 64 MiB of float32 logits, on an accelerator 256 MiB.

    Raises:
        InputError: If ``loss`` is not a ``Loss``, or depends on the whole batch at once.

    Examples:
        >>> from calibrant.losses import FocalLoss
        >>> hidden, weight = torch.ones(2, 3, requires_grad=True), torch.eye(3)
        >>> criterion = FusedLinearLoss(FocalLoss(3.0))
        >>> criterion(hidden, weight, torch.tensor([0, 2]))
        tensor(0.3255, grad_fn=<_FusedBackward>)
    """

    def __init__(self, loss: Loss, *, chunk: int | None = None) -> None:
        super().__init__()
        if not isinstance(loss, Loss) or not loss.has_row_terms:
            name = f"the class {loss.__name__}" if isinstance(loss, type) else type(loss).__name__
            remedy = (
                "pass a loss such as losses.FocalLoss(3.0), or call a loss that depends on the whole batch on logits"
            )
            raise refuse("a loss from calibrant.losses that is a sum over samples", name, remedy)
        self.loss = loss
        self.chunk = chunk

    def extra_repr(self) -> str:
        """Return the chunk size as text, if one was given."""
        return "" if self.chunk is None else f"chunk={self.chunk}"

    @_disable_dynamo  # like torch.compiler.disable, but torch._dynamo is loaded at the first call
    def forward(
        self,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        *,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Return the reduced loss.

        Args:
            hidden: The input (N, H) or (…, H) of the last layer.
            weight: The weight (K, H) of the last layer.
            labels: Class indices (N,) or (…,).
            bias: The bias (K,) of the last layer, or None.

        Returns:
            A scalar, or with ``reduction="none"``, a tensor with the shape of the labels (0 at ignored positions).

        Raises:
            InputError: If these are not tensors, there is not one label per row of ``hidden``, or the labels are target
                probabilities.
        """
        check_tensors(hidden, labels, name="hidden")
        shape = hidden.shape[:-1]
        if labels.shape != shape or labels.is_floating_point():
            raise refuse(f"integer labels of shape {tuple(shape)}", kind_of(labels), "pass one label per row of hidden")
        rows, flat, loss = hidden.reshape(-1, hidden.shape[-1]), labels.reshape(-1).long(), self.loss
        wide = torch.promote_types(_product_dtype(rows), torch.float32)
        factor = torch.ones((), dtype=wide, device=rows.device)
        if loss.reduction == "mean":
            kept = flat != loss.ignore_index
            own = kept if loss.weight is None else kept * loss.weight.to(wide)[torch.where(kept, flat, 0)]
            factor = factor / own.sum()
        chunk_bytes = _CHUNK_BYTES if rows.device.type == "cpu" else _DEVICE_CHUNK_BYTES
        chunk = self.chunk or max(1, chunk_bytes // (4 * len(weight)))
        run = partial(_run_chunks, loss, flat, factor, chunk)
        terms: Tensor = _Fused.apply(rows, weight, bias, run, loss.reduction != "none", torch.is_grad_enabled())
        if loss.reduction == "mean" and not len(rows):
            return terms * torch.nan  # 0 / 0, as in torch
        return terms.reshape(shape) if loss.reduction == "none" else terms


class _Fused(torch.autograd.Function):
    """The loss terms (N,), or their sum, whose gradients are computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        run: Callable[..., tuple[Tensor, Gradients]],
        reduced: bool,
        with_gradient: bool,
    ) -> Tensor:
        parts = [hidden, weight, bias]
        needed = ctx.needs_input_grad[:3] if reduced and with_gradient else [False] * 3
        terms, gradients = run(parts, needed, None)
        ctx.run, ctx.reduced = run, reduced
        ctx.save_for_backward(*(gradients if reduced else parts))
        wide = torch.float32 if terms.device.type == "mps" else torch.float64
        return terms.sum(dtype=wide).to(terms.dtype) if reduced else terms

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # with create_graph=True, the gradients would be treated as constants
            remedy = "for second derivatives, call the loss on the logits"
            raise InputError("only first derivatives of FusedLinearLoss", "create_graph=True", remedy)
        saved = ctx.saved_tensors
        if ctx.reduced:
            gradients = [None if part is None else part * grad.to(part.dtype) for part in saved]
        else:
            _, gradients = ctx.run(saved, ctx.needs_input_grad[:3], grad)
        return *gradients, None, None, None


def _run_chunks(
    loss: Loss,
    labels: Tensor,
    factor: Tensor,
    chunk: int,
    parts: Sequence[Tensor | None],
    needed: Sequence[bool],
    upstream: Tensor | None,
) -> tuple[Tensor, Gradients]:
    """Return the loss terms (N,) times ``factor``, and the needed gradients of their sum, weighted by ``upstream`` (N,)."""
    hidden, weight, bias = (None if part is None else part.to(_product_dtype(part)) for part in parts)
    assert hidden is not None
    assert weight is not None
    wide = torch.promote_types(hidden.dtype, torch.float32)
    # a row of hidden belongs to only one chunk, whereas the other gradients are sums over all chunks
    kinds = (hidden.dtype, wide, wide)
    sums: Gradients = [
        torch.zeros_like(part, dtype=kind) if part is not None and need else None
        for part, kind, need in zip((hidden, weight, bias), kinds, needed, strict=True)
    ]
    terms = torch.zeros(len(hidden), dtype=wide, device=hidden.device)
    for rows in slices(len(hidden), chunk):
        with torch.autocast(hidden.device.type, enabled=False), torch.set_grad_enabled(any(needed)):
            z = F.linear(hidden[rows].detach(), weight.detach(), bias if bias is None else bias.detach())
            z.requires_grad_(any(needed))
            part = factor * loss.reduced(loss.batch(z, labels[rows]), "none")
            terms[rows] = part.detach()
            if not any(needed):
                continue
            pull = torch.ones_like(part) if upstream is None else upstream[rows].to(part.dtype)
            (gradient,) = torch.autograd.grad(part, z, pull)
            del z, part  # frees the logits of the chunk before the products are computed
        _add_products(sums, gradient, rows, hidden, weight)
    return terms, [
        None if one is None or part is None else one.to(part.dtype) for one, part in zip(sums, parts, strict=True)
    ]


def _add_products(sums: Gradients, gradient: Tensor, rows: slice, hidden: Tensor, weight: Tensor) -> None:
    """Add the contribution of ``rows``, whose logits have the ``gradient`` (n, K), to the gradients of hidden, weight and bias."""
    to_hidden, to_weight, to_bias = sums
    with torch.autocast(hidden.device.type, enabled=False), torch.no_grad():
        if to_hidden is not None:
            to_hidden[rows] = gradient @ weight
        if to_weight is not None and to_weight.dtype == gradient.dtype:
            to_weight.addmm_(gradient.t(), hidden[rows])  # needs no K × H product in addition to the sum
        elif to_weight is not None:
            to_weight.add_(gradient.t() @ hidden[rows])
        if to_bias is not None:
            to_bias.add_(gradient.sum(dim=0, dtype=to_bias.dtype))


def _product_dtype(part: Tensor) -> torch.dtype:
    """Return the dtype of ``part`` in products: that of autocast if it is enabled, else its own."""
    device = part.device.type
    autocast = torch.is_autocast_enabled(device) and part.dtype != torch.float64
    return torch.get_autocast_dtype(device) if autocast else part.dtype
