"""A model's outputs over a loader."""

from collections.abc import Iterable
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from calibrant._core.check import refuse
from calibrant._core.constraints import Kind, checked
from calibrant._files import error_boundary
from calibrant.errors import InputError

Model = Annotated[nn.Module, Kind(nn.Module, "pass logits you have to from_logits", "a torch.nn.Module")]


@checked
def outputs_of(model: Model, loader: Any) -> tuple[Tensor, Tensor]:
    """Return logits (N, K) and labels (N,) on the CPU, in evaluation mode; the training mode is put back.

    Args:
        model: Returns logits (N, K) for a batch of inputs.
        loader: Batches of inputs and labels (N,).

    Raises:
        InputError: If they do not fit together, or there is no batch.
    """
    if not isinstance(loader, Iterable) or isinstance(loader, str | bytes | Tensor):
        raise refuse("a loader of (inputs, labels) batches", type(loader).__name__, "pass a DataLoader")
    training = model.training
    parameter = next(model.parameters(), None)
    device = parameter.device if parameter is not None else torch.device("cpu")
    model.eval()
    try:
        with torch.no_grad():
            pairs = [_of_batch(model, batch, device) for batch in loader]
    finally:
        model.train(training)
    if not pairs:
        raise refuse("at least one batch", "an empty loader", "check the data set")
    return torch.cat([z for z, _ in pairs]), torch.cat([y for _, y in pairs])


def _of_batch(model: nn.Module, batch: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return logits and labels of one batch, on the CPU."""
    if not isinstance(batch, list | tuple) or len(batch) != 2 or not all(isinstance(part, Tensor) for part in batch):
        raise refuse("batches of two tensors (inputs, labels)", type(batch).__name__, "pass a DataLoader of pairs")
    expected, got = "a model that accepts the loader's inputs", f"{type(model).__name__} on {tuple(batch[0].shape)}"
    # RuntimeError is PyTorch's word for shapes that do not fit
    with error_boundary(expected, got, "pass the loader it was made for", kind=InputError, caught=RuntimeError):
        logits = model(batch[0].to(device))
    if not isinstance(logits, Tensor):
        raise refuse("a model that returns logits", type(logits).__name__, "wrap it so that it returns its logits")
    return logits.cpu(), batch[1].cpu()
