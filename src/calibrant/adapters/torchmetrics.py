"""torchmetrics: a wrapper of any Calibrant metric as a ``torchmetrics.Metric``."""

from typing import Any

import torch
from torch import Tensor

from calibrant._core.check import check_count, check_dense, refuse, shown
from calibrant._core.constraints import checked
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError, optional
from calibrant.metrics import Metric
from calibrant.plot.pictures import draw_values

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

    @checked
    def __init__(self, metric: Metric, *, ignore_index: int | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        if not isinstance(metric, Metric):
            raise refuse("a metric of calibrant.metrics", shown(metric), "pass an instance such as ECE()")
        self.metric = metric
        low, high = metric.bounds
        facts = {"higher_is_better": metric.better == "higher", "plot_lower_bound": low, "plot_upper_bound": high}
        for name, value in facts.items():  # torchmetrics declares them on the class; here they depend on the object
            object.__setattr__(self, name, value)
        self.ignore_index = (
            None if ignore_index is None else check_count(ignore_index, name="ignore_index", low=-(1 << 63))
        )
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
        for name, tensor in (("logits", logits), ("labels", labels)):
            if isinstance(tensor, Tensor):
                check_dense(tensor, name=name)
        if not isinstance(logits, Tensor) or logits.dim() < 2:
            raise refuse("logits as a tensor (N, K, …)", shown(logits), "pass the model's output")
        if not isinstance(labels, Tensor) or labels.shape != logits.movedim(1, -1).shape[:-1]:
            raise refuse(
                f"labels as a tensor {tuple(logits.movedim(1, -1).shape[:-1])}", shown(labels), "pass one label per row"
            )
        classes = logits.shape[1]
        # (N, K, …) → (N · …, K): inner dimensions are rows
        matrix = logits.detach().movedim(1, -1).reshape(-1, classes)
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

    def plot(self, val: Any = None, ax: Any = None) -> tuple[Any, Any]:
        """Draw one value, or several in the order of their epochs, in the style of ``calibrant.plot``.

        Args:
            val: A value of ``compute`` or ``forward``, or a list of them; None computes it.
            ax: Where to draw; None makes a figure.

        Returns:
            The figure and the axes, as torchmetrics' own ``plot``.

        Raises:
            InputError: If ``val`` is empty.

        Examples:
            >>> from calibrant.metrics import ECE
            >>> streamed = StreamedMetric(ECE())
            >>> figure, ax = streamed.plot([torch.tensor(0.3), torch.tensor(0.1)])
            >>> ax.get_ylabel()
            'ECE(binning=EqualWidth(bins=15), norm=1)'
        """
        given = self.compute() if val is None else val
        values = [float(one) for one in (given if isinstance(given, list | tuple) else [given])]
        if not values:
            raise refuse("at least one value to draw", "none", "pass what compute() returned")
        return draw_values(values, ax, name=repr(self.metric), bounds=self.metric.bounds)

    def __repr__(self) -> str:
        return f"StreamedMetric({self.metric!r})"
