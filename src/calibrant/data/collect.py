"""Collects a model's outputs over a loader, in evaluation mode."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from calibrant._core.check import refuse


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put ``model`` into evaluation mode inside the block, and restore the mode of each of its modules afterwards."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def outputs_of(model: nn.Module, loader: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return logits and labels of all batches on the CPU, computed in evaluation mode; all modes are restored afterwards.

    Args:
        model: A module that returns logits (N, K) for a batch of inputs.
        loader: Batches (inputs, labels).

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
