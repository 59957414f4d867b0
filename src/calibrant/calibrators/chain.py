"""A calibrator that applies several calibrators one after the other."""

from typing import Any

from torch import Tensor, nn

from calibrant._core.check import refuse, shown
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.chunks import with_logits
from calibrant.rows import RowSource


class Chain(Calibrator):
    """Fits and applies calibrators in order, each on the output of the previous one.

    Args:
        stages: At least one calibrator that needs only logits.

    Raises:
        InputError: If a stage is something else.

    Examples:
        >>> import torch
        >>> from calibrant.calibrators import Identity, TemperatureScaling
        >>> z, y = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 1, 1])
        >>> Chain(Identity(), TemperatureScaling()).fit(z, y)(z).shape
        torch.Size([3, 2])
    """

    def __init__(self, *stages: Calibrator) -> None:
        super().__init__()
        if not stages or not all(isinstance(stage, Calibrator) and not stage.needs_features for stage in stages):
            got = shown(stages[0] if len(stages) == 1 else stages)
            raise refuse("at least one calibrator of the logits alone", got, "write Chain(first, second)")
        self.stages: Any = nn.ModuleList(stages)
        self.top_label = any(stage.top_label for stage in stages)
        self.decision_on_top = self.top_label and all(stage.decision_on_top for stage in stages if stage.top_label)
        self._update_facts()

    def _update_facts(self) -> None:
        self.preserves_argmax = all(stage.preserves_argmax for stage in self.stages)

    def _fit(self, rows: RowSource) -> None:
        *others, last = self.stages
        for stage in others:
            stage._learn(rows)
            rows = rows.map(with_logits, stage)
        last._learn(rows)

    def _transform(self, logits: Tensor) -> Tensor:
        for stage in self.stages:
            logits = stage(logits)
        return logits
