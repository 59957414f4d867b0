"""A model's outputs over a loader."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from calibrant._core.check import refuse


def outputs_of(model: nn.Module, loader: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return logits and labels of all batches on the CPU, in evaluation mode; the training mode is put back.

    Args:
        model: Returns logits (N, K) for a batch of inputs.
        loader: Batches of inputs and labels.

    Raises:
        InputError: If there is no batch.
    """
    training, parameter = model.training, next(model.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    model.eval()
    try:
        with torch.no_grad():
            batches = [(model(inputs.to(device)).cpu(), labels.cpu()) for inputs, labels in loader]
    finally:
        model.train(training)
    if not batches:
        raise refuse("at least one batch", "an empty loader", "check the data set")
    logits, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return logits, labels
