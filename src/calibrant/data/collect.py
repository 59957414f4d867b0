"""A model's outputs over a loader, in evaluation mode."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from calibrant._core.check import refuse


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put ``model`` into evaluation mode, and afterwards each of its parts into its own mode, such as a frozen layer's."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def outputs_of(model: nn.Module, loader: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return logits and labels of all batches on the CPU, in evaluation mode; each part's own mode is put back.

    Args:
        model: Returns logits (N, K) for a batch of inputs.
        loader: Batches of inputs and labels.

    Raises:
        InputError: If there is no batch.
    """
    parameter = next(model.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    with evaluation_mode(model), torch.no_grad():
        batches = [(model(inputs.to(device)).cpu(), labels.cpu()) for inputs, labels in loader]
    if not batches:
        raise refuse("at least one batch", "an empty loader", "check the data set")
    logits, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return logits, labels
