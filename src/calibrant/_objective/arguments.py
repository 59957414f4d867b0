"""Checks of the arguments other than logits and labels: reduction, weights, ignored label."""

from typing import Annotated, Any

import torch
from torch import Tensor

from calibrant._core.check import refuse
from calibrant._core.constraints import Fits, Integer
from calibrant._objective.batch import FLOATING, kind_of, readable


def check_class_weight(weight: Any, *, name: str = "weight") -> Tensor:
    """Return ``weight`` if it is a floating tensor (K,) of finite numbers ≥ 0."""
    if not isinstance(weight, Tensor) or weight.layout != torch.strided:
        raise refuse("weight as a tensor of shape (K,)", kind_of(weight), "pass one weight a class as a tensor")
    if weight.dim() != 1 or weight.dtype not in FLOATING:
        raise refuse(
            "weight as a tensor of shape (K,) and a floating dtype",
            f"{weight.dtype} {tuple(weight.shape)}",
            "pass one weight a class",
        )
    if readable(weight):
        bad = ~(weight.isfinite() & (weight >= 0))
        if bool(bad.any()):
            k = int(bad.nonzero()[0, 0])
            raise refuse("finite class weights ≥ 0", f"{weight[k].item():g} for class {k}", "choose such weights")
    return weight


ClassWeight = Annotated[
    Tensor,
    Fits(check_class_weight, "of shape (K,), finite and ≥ 0", (3, "abc", torch.tensor([-1.0]), torch.ones(2, 2))),
]
IgnoredLabel = Annotated[int, Integer(1 - (1 << 63))]


def check_sample_weight(weight: Any, shape: tuple[int, ...]) -> Tensor:
    """Return ``weight`` if it is a floating tensor of ``shape`` that holds finite numbers ≥ 0."""
    if not isinstance(weight, Tensor) or weight.layout != torch.strided or weight.dtype not in FLOATING:
        got = kind_of(weight)
        raise refuse("sample_weight as a tensor of a floating dtype", got, "convert with torch.as_tensor(…).float()")
    if tuple(weight.shape) != shape:
        raise refuse(f"sample_weight of shape {shape}", f"shape {tuple(weight.shape)}", "pass one a sample")
    if readable(weight):
        bad = ~(weight.isfinite() & (weight >= 0)).reshape(-1)
        if bool(bad.any()):
            row = int(bad.nonzero()[0, 0])
            got = f"{weight.reshape(-1)[row].item():g} in row {row}"
            raise refuse("finite sample weights ≥ 0", got, "choose such weights")
    return weight


def check_rows(values: Any, *, name: str, like: Tensor | None = None) -> Tensor:
    """Return ``values`` if it is a floating tensor (N,), and has the shape and device of ``like`` if you pass one."""
    if not isinstance(values, Tensor) or values.layout != torch.strided or values.dtype not in FLOATING:
        raise refuse(f"{name} as a floating tensor of shape (N,)", kind_of(values), "pass one number a row")
    if values.dim() != 1 or (like is not None and values.shape != like.shape):
        expected = "(N,)" if like is None else str(tuple(like.shape))
        raise refuse(f"{name} of shape {expected}", f"shape {tuple(values.shape)}", "pass one number a row")
    if like is not None and values.device != like.device:
        raise refuse(f"{name} on {like.device}", str(values.device), f"move it with {name}.to({str(like.device)!r})")
    return values
