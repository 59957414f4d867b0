"""A last linear layer fused with a loss: logits and their gradient are computed one chunk of rows at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from calibrant._core.check import check_count, check_floating, kind_of, refuse
from calibrant._core.numerics import slices
from calibrant.errors import InputError
from calibrant.losses.loss import (
    Loss,
    RowLoss,
    Weighted,
    check_loss_weights,
    check_range,
    check_tensors,
    check_weight_fits,
)
from calibrant.losses.penalty import RowPenalty

_CHUNK_BYTES = 1 << 26  # of float32 logits: 128 rows of 128k classes, enough for a matrix product to run at full speed
_DEVICE_CHUNK_BYTES = 1 << 28


class FusedLinearLoss(nn.Module):
    """loss(hidden · weightᵀ + bias, labels) without holding the N × K logits in memory.

    For each chunk of rows it computes the logits, the loss terms, their gradient, and the contribution to the gradients of
    ``hidden``, ``weight`` and ``bias``, summed in at least float32. For a mean or a sum this happens in the forward pass,
    so that each product is computed once; with ``reduction="none"`` the upstream gradient is not known then, and the
    backward pass recomputes the logits. Under autocast the products have its dtype. Second derivatives are not supported,
    and ``torch.compile`` breaks its graph here (with ``fullgraph=True`` it raises).

    Args:
        loss: A loss that is a sum over samples; its reduction, class weights and ignored label apply. Losses of the whole
            batch (MMCE, MDCA, soft-binned ECE) are refused.
        chunk: Rows per chunk; None is as many as have 64 MiB of float32 logits, on an accelerator 256 MiB.

    Examples:
        >>> from calibrant.losses import FocalLoss
        >>> hidden, weight = torch.ones(2, 3, requires_grad=True), torch.eye(3)
        >>> criterion = FusedLinearLoss(FocalLoss(3.0))
        >>> criterion(hidden, weight, torch.tensor([0, 2]))
        tensor(0.3255, grad_fn=<_FusedBackward>)
    """

    def __init__(self, loss: Loss, *, chunk: int | None = None) -> None:
        super().__init__()
        _Summand.all_of(loss)
        self.loss = loss
        self.chunk = None if chunk is None else check_count(chunk, name="chunk")

    def extra_repr(self) -> str:
        """Show the chunk, if one was given."""
        return "" if self.chunk is None else f"chunk={self.chunk}"

    @_disable_dynamo  # torch.compiler.disable, but torch._dynamo loads at the first call
    def forward(
        self,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        *,
        bias: Tensor | None = None,
        sample_weight: Tensor | None = None,
    ) -> Tensor:
        """Return the reduced loss.

        Args:
            hidden: (N, H) or (…, H), the input of the last layer.
            weight: (K, H), its weight.
            labels: Class indices (N,) or (…,).
            bias: (K,), or None.
            sample_weight: (N,) or (…,) weights ≥ 0 that multiply the terms, or None; a mean is divided by the sum of sample
                weight times class weight.

        Returns:
            A scalar, or with ``reduction="none"`` a tensor of the labels' shape (0 at ignored places).

        Raises:
            InputError: If shapes or dtypes do not match, or labels are target probabilities.
        """
        _check_last_layer(hidden, weight, bias)
        _check_class_indices(hidden, labels, sample_weight)
        flat, rows = labels.reshape(-1).long(), hidden.reshape(-1, hidden.shape[-1])
        weights = None if sample_weight is None else sample_weight.reshape(-1)
        scales = _scales(self.loss, flat, weights, classes=weight.shape[0], dtype=_product_dtype(hidden))
        job = _ChunkedPass(self.loss, flat, scales, self.chunk, _product_dtype(hidden))
        eager = self.loss.reduction != "none" and torch.is_grad_enabled()
        value: Tensor = _Fused.apply(rows, weight, bias, job, eager)
        if self.loss.reduction == "none":
            return value.reshape(labels.shape)
        return value


def _check_last_layer(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raise unless the parts of a layer match: ``hidden`` (…, H), ``weight`` (K, H), ``bias`` (K,) or None.

    Raises:
        InputError: If they do not.
    """
    parts = {"hidden": hidden, "weight": weight, **({} if bias is None else {"bias": bias})}
    for name, value in parts.items():
        check_floating(value, name=name)
    if weight.dim() != 2 or weight.shape[0] < 2:
        remedy = "pass the last layer's weight, one row per class"
        raise refuse("weight of shape (K, H) with K ≥ 2", f"shape {tuple(weight.shape)}", remedy)
    if hidden.dim() < 2 or hidden.shape[-1] != weight.shape[1]:
        raise refuse(
            f"hidden of shape (N, {weight.shape[1]})",
            f"shape {tuple(hidden.shape)}",
            "pass the last layer's input; its weight is (K, H), one row per class",
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise refuse(f"bias of shape ({weight.shape[0]},)", f"shape {tuple(bias.shape)}", "pass one number per class")
    devices = {str(part.device) for part in parts.values()}
    if len(devices) > 1:
        raise refuse("hidden, weight and bias on one device", ", ".join(sorted(devices)), "move them with .to(device)")
    autocast = torch.is_autocast_enabled(hidden.device.type)
    if not autocast and any(part.dtype != hidden.dtype for part in parts.values()):
        kinds = ", ".join(str(part.dtype) for part in parts.values())
        raise refuse("hidden, weight and bias of one dtype", kinds, "convert them, or use torch.autocast")


def _product_dtype(hidden: Tensor) -> torch.dtype:
    """Return the dtype of the product: autocast's where it is on, else that of ``hidden``."""
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and hidden.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return hidden.dtype


def _linear_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return hidden · weightᵀ + bias (n, K)."""
    return hidden @ weight.t() if bias is None else torch.addmm(bias, hidden, weight.t())


def _linear_chunks(rows: int, classes: int, chunk: int | None, device: torch.device) -> Iterator[slice]:
    """Return slices of ``chunk`` rows each; None is as many as have 64 MiB of float32 logits (256 MiB on an accelerator)."""
    block = _CHUNK_BYTES if device.type == "cpu" else _DEVICE_CHUNK_BYTES
    return slices(rows, max(1, block // (4 * classes)) if chunk is None else chunk)


def _check_class_indices(hidden: Tensor, labels: Tensor, sample_weight: Tensor | None) -> None:
    check_tensors(hidden, labels, name="hidden")
    shape = tuple(hidden.shape[:-1])
    integers = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    if not integers or tuple(labels.shape) != shape:
        remedy = "pass one class index per row of hidden"
        raise refuse(f"integer labels of shape {shape}", kind_of(labels), remedy)
    if sample_weight is None:
        return
    check_loss_weights(sample_weight, name="sample_weight", per="sample", shape=shape)
    if sample_weight.device != labels.device:
        got = f"sample_weight on {sample_weight.device} and labels on {labels.device}"
        raise refuse("sample weights on the labels' device", got, "move them with .to(labels.device)")


@dataclass(frozen=True)
class _Summand:
    """A summand of a loss, itself a sum over samples, with its factor; its mean is divided by the sum of its own class weights."""

    scale: float
    loss: RowLoss | RowPenalty

    @classmethod
    def all_of(cls, loss: Loss) -> "list[_Summand]":
        """Return the summands of ``loss``.

        Raises:
            InputError: If ``loss`` is not a ``Loss``, or depends on the whole batch at once.
        """
        if not isinstance(loss, Loss):
            raise refuse("a loss of calibrant.losses", called(loss), "pass one such as losses.FocalLoss(3.0)")
        if isinstance(loss, Weighted):
            return [cls(scale * part.scale, part.loss) for scale, term in loss.pairs for part in cls.all_of(term)]
        if isinstance(loss, RowPenalty) and len(cls.all_of(loss.base)) > 1:
            raise refuse("a penalty on one loss", "a penalty on a sum", "put the penalty into Weighted as a term")
        if isinstance(loss, RowLoss | RowPenalty):
            return [cls(1.0, loss)]
        raise refuse(
            "a loss that is a sum over samples",
            f"{type(loss).__name__}, which depends on the whole batch at once",
            "call it on logits, or choose a loss such as FocalLoss",
        )


def called(value: object) -> str:
    """Return the type of ``value`` for a message, distinguishing classes from objects and torch's losses from ours."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    kind = type(value)
    return kind.__name__ if isinstance(value, Loss) else f"{kind.__module__}.{kind.__name__}".removeprefix("builtins.")


def _scales(
    loss: Loss, labels: Tensor, weights: Tensor | None, *, classes: int, dtype: torch.dtype
) -> list[tuple[_Summand, Tensor]]:
    """Return each summand of ``loss`` with the factor (N,) of its terms: sample weight, scale, and a mean's divisor."""
    found = []
    for part in _Summand.all_of(loss):
        kept, weight = labels != part.loss.ignore_index, part.loss.weight
        check_range(labels, classes=classes, ignore_index=part.loss.ignore_index)
        own = kept.to(torch.promote_types(dtype, torch.float32))  # Σ of the class weights, 0 where ignored
        if weight is not None:
            check_weight_fits(weight, classes=classes, device=labels.device)
            own = own * weight.to(own.dtype)[torch.where(kept, labels, 0)]
        factor = torch.ones_like(own) if weights is None else weights.detach().to(own.dtype)
        divisor = (own * factor).sum() if loss.reduction == "mean" else 1.0
        found.append((part, part.scale * factor / divisor))
    return found


@dataclass(frozen=True)
class _Gradients:
    """Sums of the gradients of hidden (N, H), weight (K, H) and bias (K,); None where none is requested."""

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None

    @classmethod
    def zeros(cls, parts: Sequence[Tensor | None], requested: Sequence[bool], dtype: torch.dtype) -> "_Gradients":
        wide = torch.promote_types(dtype, torch.float32)
        hidden, weight, bias = (
            torch.zeros_like(part, dtype=wide if place else dtype) if needed and part is not None else None
            for place, (part, needed) in enumerate(zip(parts, requested, strict=True))
        )
        return cls(hidden, weight, bias)

    @property
    def requested(self) -> bool:
        return any(part is not None for part in (self.hidden, self.weight, self.bias))

    def add(self, rows: slice, gradient: Tensor, hidden: Tensor, weight: Tensor) -> None:
        """Add the contribution of ``gradient`` (n, K), that of the logits of ``rows``."""
        if self.hidden is not None:
            self.hidden[rows] = gradient @ weight
        if self.weight is not None:
            if self.weight.dtype == gradient.dtype:
                self.weight.addmm_(gradient.t(), hidden)
            else:
                self.weight.add_(gradient.t() @ hidden)
        if self.bias is not None:
            self.bias.add_(gradient.sum(dim=0, dtype=self.bias.dtype))

    def like(self, parts: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return them in the dtypes of ``parts``."""
        found = (self.hidden, self.weight, self.bias)
        pairs = zip(found, parts, strict=True)
        return [None if sum_ is None or part is None else sum_.to(part.dtype) for sum_, part in pairs]


@dataclass(frozen=True)
class _ChunkedPass:
    """The inputs of a pass over the chunks, apart from the layer."""

    loss: Loss
    labels: Tensor
    scales: list[tuple[_Summand, Tensor]]
    chunk: int | None
    dtype: torch.dtype

    def run(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, upstream: Tensor | None, requested: Sequence[bool]
    ) -> tuple[Tensor, _Gradients]:
        """Return the scaled terms (N,) and the gradients of their sum, weighted by ``upstream`` (N,) if it is not None."""
        h, w = hidden.to(self.dtype), weight.to(self.dtype)
        b = None if bias is None else bias.to(self.dtype)
        gradients = _Gradients.zeros((h, w, b), requested, self.dtype)
        terms = torch.zeros(h.shape[0], dtype=torch.promote_types(self.dtype, torch.float32), device=h.device)
        with torch.autocast(h.device.type, enabled=False):
            for rows in _linear_chunks(h.shape[0], w.shape[0], self.chunk, h.device):
                z = _linear_logits(h[rows], w, b).requires_grad_(gradients.requested)
                with torch.set_grad_enabled(gradients.requested):
                    part = self._terms(z, rows)
                terms[rows] = part.detach()
                if gradients.requested:
                    factor = torch.ones_like(part) if upstream is None else upstream[rows].to(part.dtype)
                    (gradient,) = torch.autograd.grad(part, z, factor)
                    del z, part
                    gradients.add(rows, gradient, h[rows], w)
        return terms, gradients

    def _terms(self, logits: Tensor, rows: slice) -> Tensor:
        labels = self.labels[rows]
        terms = [factor[rows] * part.loss.terms(logits, labels) for part, factor in self.scales]
        return torch.stack(terms).sum(dim=0) if len(terms) > 1 else terms[0]


class _Fused(torch.autograd.Function):
    """The terms (N,), or their sum, whose gradients are computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, job: _ChunkedPass, eager: bool
    ) -> Tensor:
        parts, reduced = (hidden, weight, bias), job.loss.reduction != "none"
        requested = ctx.needs_input_grad[:3] if eager else (False, False, False)
        terms, gradients = job.run(*parts, None, requested)
        ctx.job, ctx.reduced = job, reduced
        ctx.save_for_backward(*(gradients.like(parts) if reduced else parts))
        if job.loss.reduction == "mean" and not terms.shape[0]:
            return terms.new_tensor(torch.nan)  # 0 / 0, as in torch
        return terms.double().sum().to(terms.dtype) if reduced else terms

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise InputError(
                "first derivatives of FusedLinearLoss only",
                "create_graph=True",
                "for second ones call the loss on the logits",
            )
        saved = ctx.saved_tensors
        if ctx.reduced:
            return *(None if part is None else part * grad.to(part.dtype) for part in saved), None, None
        _, gradients = ctx.job.run(*saved, grad, ctx.needs_input_grad[:3])
        return *gradients.like(saved), None, None
