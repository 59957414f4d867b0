"""Small numerical functions that several families share, for ranks, sorting, the softmax, and chunks of rows."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

CHUNK_BYTES = 1 << 20  # a block of this size stays in the second-level cache of one core
_VECTOR = 16  # number of float32 entries in the widest register of a processor
DEVICE_CHUNK_BYTES = 1 << 28  # an accelerator is fastest with a few large kernels
# logarithms below which exp is exactly 0, a little less than the logarithm of the smallest subnormal number
LOG_OF_UNDERFLOW = {
    dtype: math.log(torch.finfo(dtype).tiny) + math.log(torch.finfo(dtype).eps) - 1
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}
# Returns whether torch.func is differentiating or batching a tensor, in which case only plain operations may be used
is_transformed = torch._C._functorch.is_functorch_wrapped_tensor

R = TypeVar("R")


def add_records(one: R, other: R, **others: Any) -> R:
    """Return a dataclass whose fields are the sums of the fields of ``one`` and ``other``.

    A field is None if it is None in either. The fields in ``others`` are set to the values given there.
    """
    sums = {}
    for field in fields(one):  # type: ignore[arg-type]
        if field.name not in others:
            mine, theirs = getattr(one, field.name), getattr(other, field.name)
            sums[field.name] = None if mine is None or theirs is None else mine + theirs
    return replace(one, **sums, **others)  # type: ignore[type-var]


def rank_in(places: Tensor, values: Tensor, *, right: bool = False) -> Tensor:
    """Return how many of the ascending ``places`` (…, P) lie below each of ``values`` (…, N); with ``right``, not above it.

    This is ``torch.searchsorted``, except that a traced graph uses comparisons, because ONNX has no such search.

    Examples:
        >>> rank_in(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 2.0])).tolist()
        [0, 1]
    """
    if torch.compiler.is_compiling():
        below = places[..., None, :] <= values[..., None] if right else places[..., None, :] < values[..., None]
        return below.sum(dim=-1)
    return torch.searchsorted(places.contiguous(), values.contiguous(), right=right)


def sort_down(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row of ``rows`` (N, K) in descending order, and the columns of its entries; equal entries keep their order.

    A traced graph uses the K largest entries, because ONNX has no stable sort, and its ``TopK`` keeps the order of equal entries.

    Examples:
        >>> sort_down(torch.tensor([[1.0, 2.0, 2.0]]))[1].tolist()
        [[1, 2, 0]]
    """
    if torch.compiler.is_compiling():
        values, columns = torch.topk(rows, rows.shape[1], dim=1)
    else:
        values, columns = torch.sort(rows, dim=1, descending=True, stable=True)
    return values, columns


def softmax_into(out: Tensor, logits: Tensor) -> Tensor:
    """Write the softmax of each row of ``logits`` (N, K) into ``out`` (N, K), which must not share its memory, and return it.

    Examples:
        >>> softmax_into(torch.empty(1, 2), torch.tensor([[0.0, 0.0]]))
        tensor([[0.5000, 0.5000]])
    """
    if logits.shape[1] >= _VECTOR or logits.device.type != "cpu":
        return torch.softmax(logits, dim=1, out=out)
    # torch processes rows shorter than a vector register entry by entry, which takes ten times as long
    torch.sub(logits, logits.amax(dim=1, keepdim=True), out=out).exp_()
    return out.div_(out.sum(dim=1, keepdim=True))


def row_chunks(rows: int, columns: int, *, itemsize: int = 8, device: torch.device | None = None) -> Iterator[slice]:
    """Return slices over ``rows`` rows, so that a block with ``columns`` columns takes about 1 MiB, or 256 MiB on an accelerator."""
    block = CHUNK_BYTES if device is None or device.type == "cpu" else DEVICE_CHUNK_BYTES
    return slices(rows, max(1, block // max(1, columns * itemsize)))


def slices(rows: int, step: int) -> Iterator[slice]:
    """Return slices of ``step`` rows each; the last slice has the remaining rows."""
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def in_row_chunks(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Return ``function(rows)``, computed on a CPU in chunks whose temporary arrays stay in the cache.

    On other devices, in traced graphs and if gradients are needed, the function is called once with all rows.

    Args:
        function: A function from rows (n, K) to (n, …) that treats each row independently.
        rows: The rows (N, K).

    Examples:
        >>> in_row_chunks(torch.exp, torch.zeros(2, 2))
        tensor([[1., 1.],
                [1., 1.]])
    """
    if torch.compiler.is_compiling() or rows.device.type != "cpu" or rows.requires_grad or type(rows) is not Tensor:
        return function(rows)
    if 8 * rows.numel() <= CHUNK_BYTES:
        return function(rows)
    first, *others = row_chunks(*rows.shape)
    answer = function(rows[first])
    # filled in place, because joining parts would need twice the memory
    found = answer.new_empty((len(rows), *answer.shape[1:]))
    found[first] = answer
    for some in others:
        found[some] = function(rows[some])
    return found


def apply_in_precision(module: nn.Module, apply: Callable[[], Any], *, but: str = "") -> None:
    """Call ``apply``, which moves and converts a module, and then restore the dtype of its buffers on their new device.

    Args:
        module: A module whose buffers hold learned state.
        apply: The conversion, as in half().
        but: The name of a buffer that is converted like the surrounding model.
    """
    kept = {name: buffer for name, buffer in module._buffers.items() if buffer is not None and name != but}
    apply()
    for name, before in kept.items():
        after = module._buffers[name]
        if after is not None and after.dtype != before.dtype:
            module._buffers[name] = before.to(after.device)


def computing_on(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which new tensors are created on ``device``, whatever the default device is.

    If no other default device is set, the context does nothing, because every operation takes longer inside a device context.
    """
    default = torch.empty(0).device  # torch.get_default_device() of PyTorch 2.7 misses ``with torch.device(…)``
    return nullcontext() if default.type in ("cpu", device.type) else device
