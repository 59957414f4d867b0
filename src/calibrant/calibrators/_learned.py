"""What everything that is fitted on validation data shares: configuration, learned state in buffers, one-file saving."""

import os
from abc import ABC
from typing import Any, Self

import torch
from torch import Tensor, nn

from calibrant._core import config as _plain
from calibrant.errors import InputError, NotFittedError


class Learned(nn.Module, ABC):
    """A module whose arguments are attributes of their names, whose learned state lies in buffers, and which saves as one file."""

    classes: Tensor
    fit_rows: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("classes", torch.tensor(0, dtype=torch.int64))
        self._columns = 0  # the same as a plain number, so that a traced forward pass does not depend on a value
        # a sketch of the fitting rows (calibrant.data.leakage); plain, not a buffer, since no forward pass needs it
        self.fit_rows = torch.empty(0, dtype=torch.int64)
        self.register_load_state_dict_post_hook(_update_facts)

    def _update_facts(self) -> None:
        """Set the class facts of an instance that depend on what it holds: after ``fit`` and after loading."""

    def _declare(self, *names: str) -> None:
        for name in names:
            self.register_buffer(name, torch.empty(0, dtype=torch.float64))

    def config(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain JSON values, read from its signature."""
        return _plain.config_of(self)

    def loaded_parts(self) -> list[Any]:
        """Return the calibrators of one class a row to try after loading; by default this one.

        Raises:
            ValueError: If what was loaded does not hold together.
        """
        return [self]

    def learned(self) -> str:
        """Return what was learned, for the repr."""
        return ""

    @property
    def fitted(self) -> bool:
        """Whether ``fit`` has been called."""
        return self._columns > 0

    def _need_fit(self) -> None:
        if not self.fitted:
            raise NotFittedError(f"expected a fitted {type(self).__name__}, got an unfitted one; call fit first")

    def extra_repr(self) -> str:
        """Show the configuration and what was learned."""
        learned = self.learned() if self.fitted else ""
        return ", ".join(part for part in (_plain.shown(self), learned) if part)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save class, configuration, learned state and a sketch of the fitting rows as one safetensors file, atomically.

        Raises:
            NotFittedError: Before ``fit``.
            InputError: If ``path`` does not end in .safetensors.
        """
        from calibrant.calibrators._saved import save_calibrator

        self._need_fit()
        save_calibrator(self, path)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.fit_rows.numel() and not torch.compiler.is_exporting():
            destination[prefix + "fit_rows"] = self.fit_rows

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # learned buffers take their shape from what is loaded: an unfitted calibrator does not know K
        for name, buffer in self._buffers.items():
            incoming = state_dict.get(prefix + name)
            if incoming is not None and buffer is not None and incoming.shape != buffer.shape:
                self._buffers[name] = torch.empty_like(incoming, device=buffer.device)
        rows = state_dict.pop(prefix + "fit_rows", torch.empty(0, dtype=torch.int64))
        if rows.dtype != torch.int64 or rows.dim() != 1:
            raise InputError(f"expected fit_rows of int64 (N,), got {rows.dtype} {tuple(rows.shape)}; save it again")
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.fit_rows = rows.cpu()
        self._columns = int(self.classes)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        # half() and the like are for the model around it: what was learned keeps its precision, and moves with the device
        learned = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        super()._apply(fn, recurse)
        for name, before in learned.items():
            after = self._buffers[name]
            if after is not None and after.dtype != before.dtype:
                self._buffers[name] = before.to(after.device)
        return self


def _update_facts(module: nn.Module, _: Any) -> None:
    if isinstance(module, Learned):
        module._update_facts()
