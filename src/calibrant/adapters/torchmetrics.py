"""torchmetrics: any Calibrant metric as a ``torchmetrics.Metric``."""

from typing import Any

import torch
from torch import Tensor

from calibrant.errors import InputError, MissingExtraError
from calibrant.metrics._base import Metric
from calibrant.predictions import Predictions

try:
    from torchmetrics import Metric as TorchMetric
    from torchmetrics.utilities import dim_zero_cat
except ImportError as error:
    raise MissingExtraError("torchmetrics", extra="torchmetrics") from error

__all__ = ["StreamedMetric"]


class StreamedMetric(TorchMetric):  # type: ignore[misc]
    """A Calibrant metric that is updated batch by batch, in a ``MetricCollection``, in Lightning, under DDP.

    The rows are kept (as lists that torchmetrics gathers from all processes) and judged together, so the value is
    exactly the metric's value on the whole data set, whatever the batches were: never a mean of batch values.

    Args:
        metric: Any member of ``calibrant.metrics``.
        ignore_index: Labels that count nothing, or None.
        **arguments: For ``torchmetrics.Metric`` (``sync_on_compute``, ``dist_sync_on_step`` …).

    Example:
        >>> import torch
        >>> from calibrant.metrics import ECE
        >>> streamed = StreamedMetric(ECE())
        >>> streamed.update(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        >>> streamed.update(torch.tensor([[0.0, 1.0]]), torch.tensor([0]))
        >>> round(streamed.compute().item(), 4)
        0.4251
    """

    is_differentiable = False
    full_state_update = False

    logits: list[Tensor]
    labels: list[Tensor]

    def __init__(self, metric: Metric, *, ignore_index: int | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        if not isinstance(metric, Metric):
            raise InputError(f"expected a metric of calibrant.metrics, got {metric!r}; pass an instance such as ECE()")
        self.metric = metric
        self.ignore_index = ignore_index
        self.add_state("logits", default=[], dist_reduce_fx="cat")
        self.add_state("labels", default=[], dist_reduce_fx="cat")

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        """Whether a larger value is better."""
        return self.metric.better == "higher"

    @property
    def plot_lower_bound(self) -> float:  # type: ignore[override]
        """The metric's smallest value."""
        return self.metric.bounds[0]

    @property
    def plot_upper_bound(self) -> float:  # type: ignore[override]
        """The metric's largest value."""
        return self.metric.bounds[1]

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Take a batch of logits (N, K, …), never probabilities, and labels (N, …)."""
        classes = logits.shape[1]
        matrix = logits.detach().movedim(1, -1).reshape(-1, classes)
        flat = labels.detach().reshape(-1)
        if self.ignore_index is not None:
            kept = flat != self.ignore_index
            matrix, flat = matrix[kept], flat[kept]
        self.logits.append(matrix)
        self.labels.append(flat)

    def compute(self) -> Tensor:
        """Return the metric's value on all rows seen, as a float64 scalar."""
        if isinstance(self.logits, list) and not self.logits:  # a list until processes are gathered, then a tensor
            raise InputError("expected at least one batch before compute, got none; call update first")
        logits, labels = dim_zero_cat(self.logits), dim_zero_cat(self.labels)
        value = self.metric(Predictions.from_logits(logits, labels))
        return torch.tensor(value, dtype=torch.float64, device=logits.device)

    def __repr__(self) -> str:
        return f"StreamedMetric({self.metric!r})"
