"""torchmetrics: a wrapper of any Calibrant metric as a ``torchmetrics.Metric``."""

from typing import Any

import torch
from torch import Tensor

from calibrant._core.check import refuse, shown
from calibrant._objective.batch import check_pair
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError, optional
from calibrant.metrics import Metric

with optional("torchmetrics", extra="torchmetrics"):
    from torchmetrics import Metric as TorchMetric
    from torchmetrics.utilities import dim_zero_cat

__all__ = ["StreamedMetric"]


class StreamedMetric(TorchMetric):  # type: ignore[misc]
    """A Calibrant metric updated batch by batch, for a ``MetricCollection``, Lightning or DDP.

    It stores all rows (as lists that torchmetrics gathers from all processes) and evaluates them together, so its value is
    the metric's value on the whole data set for any batches, not a mean of batch values.

    Args:
        metric: A metric of ``calibrant.metrics``.
        ignore_index: Rows with this label are ignored; None ignores none.
        **arguments: For ``torchmetrics.Metric`` (``sync_on_compute``, ``dist_sync_on_step`` …).

    Examples:
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
        if not isinstance(metric, Metric):
            raise InputError(f"metric must be an object of calibrant.metrics such as ECE(), not {shown(metric)}")
        super().__init__(**arguments)
        self.metric = metric
        low, high = metric.bounds
        facts = {"higher_is_better": metric.better == "higher", "plot_lower_bound": low, "plot_upper_bound": high}
        for name, value in facts.items():  # torchmetrics declares them on the class; here they depend on the object
            object.__setattr__(self, name, value)
        self.ignore_index = ignore_index
        self.add_state("logits", default=[], dist_reduce_fx="cat")
        self.add_state("labels", default=[], dist_reduce_fx="cat")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Add a batch of logits (N, K, …), not probabilities, and labels (N, …).

        Args:
            logits: (N, K, …) of a batch.
            labels: (N, …) class indices.

        Raises:
            InputError: If they are not tensors of these shapes.
        """
        axis, _ = check_pair(logits, labels)
        if labels.is_floating_point():
            raise refuse("integer labels", f"dtype {labels.dtype}", "pass class indices")
        # (N, K, …) → (N · …, K): inner dimensions are rows
        matrix = logits.detach().movedim(axis, -1).reshape(-1, logits.shape[axis])
        flat = labels.detach().reshape(-1)
        if self.ignore_index is not None:
            kept = flat != self.ignore_index
            matrix, flat = matrix[kept], flat[kept]
        self.logits.append(matrix)
        self.labels.append(flat)

    def compute(self) -> Tensor:
        """Return the metric's value on all rows added, as a float64 scalar."""
        if (
            isinstance(self.logits, list) and not self.logits
        ):  # a list before torchmetrics gathers the processes, then a tensor
            raise InputError("at least one batch before compute", "none", "call update first")
        logits, labels = dim_zero_cat(self.logits), dim_zero_cat(self.labels)
        value = self.metric(Predictions.from_logits(logits, labels))
        return torch.tensor(value, dtype=torch.float64, device=logits.device)

    def __repr__(self) -> str:
        return f"StreamedMetric({self.metric!r})"
