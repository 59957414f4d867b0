"""Calibrators one after the other."""

import json
from typing import Any

from torch import Tensor, nn

from calibrant._config import build
from calibrant.calibrators._base import Calibrator
from calibrant.errors import InputError

__all__ = ["Chain"]


class Chain(Calibrator):
    """Fit and apply calibrators in order, each on what the one before returns.

    Args:
        stages: Calibrators, at least one; or, as saved files have them, their configurations.

    Example:
        >>> import torch
        >>> from calibrant.calibrators import Identity, TemperatureScaling
        >>> z, y = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 1, 1])
        >>> Chain(Identity(), TemperatureScaling()).fit(z, y)(z).shape
        torch.Size([3, 2])
    """

    def __init__(self, *stages: Calibrator, configs: str | None = None) -> None:
        super().__init__()
        if configs is not None:
            from calibrant import calibrators as family

            stages = tuple(build(config, family=family) for config in json.loads(configs))
        if not stages or not all(isinstance(stage, Calibrator) for stage in stages):
            raise InputError(f"expected at least one calibrator, got {stages}; pass them in order")
        self.stages = nn.ModuleList(stages)
        self.top_label = any(stage.top_label for stage in stages)

    @property
    def preserves_argmax(self) -> bool:  # type: ignore[override]
        """Whether every stage keeps the decision."""
        return all(stage.preserves_argmax for stage in self._calibrators())

    def config(self) -> dict[str, Any]:
        """Return the stages' configurations as one JSON text."""
        plain = [{"type": type(stage).__name__, **stage.config()} for stage in self._calibrators()]
        return {"configs": json.dumps(plain, sort_keys=True)}

    def _calibrators(self) -> list[Calibrator]:
        return [stage for stage in self.stages if isinstance(stage, Calibrator)]

    def _fit(self, logits: Tensor, labels: Tensor, weight: Tensor | None, groups: Tensor | None) -> None:
        for stage in self._calibrators():
            logits = stage.fit(logits, labels, sample_weight=weight, groups=groups)(logits)

    def _transform(self, logits: Tensor) -> Tensor:
        for stage in self._calibrators():
            logits = stage(logits)
        return logits

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return the stages' affine maps as one."""
        scale, shift = self._calibrators()[0].affine()
        for stage in self._calibrators()[1:]:
            outer, offset = stage.affine()
            shift = (outer * shift if outer.dim() == 1 else outer @ shift) + offset
            if outer.dim() == 1:
                scale = outer * scale if scale.dim() == 1 else outer[:, None] * scale
            else:
                scale = outer * scale if scale.dim() == 1 else outer @ scale
        return scale, shift

    def extra_repr(self) -> str:
        """Show nothing of its own: the stages show themselves."""
        return ""
