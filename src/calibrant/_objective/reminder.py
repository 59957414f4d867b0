"""A warning for adaptive losses that are trained without a call of ``update``."""

import itertools

import torch
from torch import nn

from calibrant._core.warn import warn_user
from calibrant.errors import InputError, UsageWarning


class _Process:
    """Counts training passes of all adaptive losses since the last update, to detect a loss created for every batch."""

    passes = itertools.count(1)


class UpdateReminder:
    """Counts the training-mode passes of one loss, and warns once after ``warn_after`` passes without an update.

    Args:
        warn_after: Passes ≥ 1, or None to never warn.
    """

    def __init__(self, warn_after: int | None) -> None:
        self.warn_after = warn_after
        self._passes = 0
        self._done = False

    def updated(self) -> None:
        """Record an update: no warning follows."""
        self._done = True
        _Process.passes = itertools.count(1)

    def count(self, loss: nn.Module) -> None:
        """Count a forward pass of ``loss``; not in a compiled graph, where counting would break the graph."""
        if torch.compiler.is_compiling() or self._done or self.warn_after is None or not loss.training:
            return
        self._passes += 1
        # a loss that is created for every batch never counts far itself, but its process does
        in_process = next(_Process.passes)
        if self._passes < self.warn_after and in_process != self.warn_after:
            return
        self._done = True
        if int(loss.updates):  # type: ignore[arg-type]  # resumed from a state with updates
            return
        name, count = type(loss).__name__, self.warn_after
        if self._passes >= count:
            message = (
                f"expected {name}.update(validation) once an epoch, got none in {count} training steps, so its γ have "
                "not changed; call update after each epoch, or set warn_after"
            )
        else:
            message = (
                f"expected one {name} for the whole training, got {count} training steps of several and no update, so "
                "their γ have not changed; create it once, and call update(validation) after each epoch"
            )
        warn_user(message, UsageWarning)


def need_update(loss: nn.Module, remedy: str) -> None:
    """Refuse the end of a training in which ``loss``, as far as it counts its updates, had none.

    Raises:
        InputError: Then.
    """
    if int(getattr(loss, "updates", 0)) == 0:
        raise InputError(f"{type(loss).__name__}.update once an epoch", "none in the whole training", remedy)
