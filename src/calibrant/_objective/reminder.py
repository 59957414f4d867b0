"""A warning for adaptive losses that train on and on without an update."""

import itertools

import torch
from torch import nn

from calibrant._check import check_count
from calibrant._warn import warn_user
from calibrant.errors import UsageWarning


class _Process:
    """Training passes of all adaptive losses since any was updated: finds one that is made anew every batch."""

    passes = itertools.count(1)


class UpdateReminder:
    """Counts the training-mode passes of one loss, and warns once if ``warn_after`` of them bring no update.

    Args:
        warn_after: Passes ≥ 1, or None to never warn.
    """

    def __init__(self, warn_after: int | None) -> None:
        self.warn_after = None if warn_after is None else check_count(warn_after, name="warn_after")
        self._passes = 0
        self._done = False

    def updated(self) -> None:
        """Note an update: this loss is looked after."""
        self._done = True
        _Process.passes = itertools.count(1)

    def count(self, loss: nn.Module) -> None:
        """Count a forward pass of ``loss``; nothing inside a compiled graph, whose trace it would break."""
        if torch.compiler.is_compiling() or self._done or self.warn_after is None or not loss.training:
            return
        self._passes += 1
        in_process = next(_Process.passes)
        if self._passes < self.warn_after and in_process != self.warn_after:
            return
        self._done = True
        if int(loss.updates):  # type: ignore[arg-type]  # resumed from a state that was updated
            return
        name, count = type(loss).__name__, self.warn_after
        if self._passes >= count:
            message = (
                f"expected {name}.update(validation) once an epoch, got none in {count} training steps, so its γ are "
                "still the first; call update after each epoch, or set warn_after"
            )
        else:
            message = (
                f"expected one {name} for the whole training, got {count} training steps of several and no update, so "
                "their γ are still the first; make it once, and call update(validation) after each epoch"
            )
        warn_user(message, UsageWarning)


def number_of_updates(loss: nn.Module) -> int | None:
    """Return how often an adaptive loss says it was updated; None if it keeps no such count."""
    updates = getattr(loss, "updates", None)
    return None if updates is None else int(updates)


def never_updated(loss: nn.Module, remedy: str) -> str:
    """Return the message for a training that ended without an update of ``loss``."""
    return f"expected {type(loss).__name__}.update once an epoch, got none in the whole training; {remedy}"
