"""A wrapper that turns any Calibrant metric into a ``torchmetrics.Metric``."""

import zlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from calibrant.adapters._monitoring import as_predictions, state_template
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError, optional
from calibrant.losses.adafocal import of_all_processes
from calibrant.metrics import Metric

with optional("torchmetrics", extra="torchmetrics"):
    from torchmetrics import Metric as TorchMetric

__all__ = ["StreamedMetric"]


class StreamedMetric(TorchMetric):  # type: ignore[misc]
    """A Calibrant metric that is updated batch by batch, for use in a ``MetricCollection``, Lightning or DDP.

    A metric that can be computed from sums (``metrics.SumMetric``) keeps only these sums; any other metric keeps logits
    and labels. The value is that of the whole data set, however it is divided into batches, and not a mean over
    batches.

    Args:
        metric: A metric from ``calibrant.metrics``.
        binary: Whether each logit is the input of a sigmoid, with labels 0 or 1 of the same shape: one label or several
            labels per row, which are evaluated together.
        ignore_index: Positions with this label are left out; None keeps all positions.
        **arguments: Passed to ``torchmetrics.Metric`` (``sync_on_compute``, ``dist_sync_on_step`` …).

    Examples:
        >>> import torch
        >>> from calibrant.metrics import ECE
        >>> streamed = StreamedMetric(ECE())
        >>> streamed.update(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        >>> streamed.update(torch.tensor([[0.0, 2.0]]), torch.tensor([0]))
        >>> round(streamed.compute().item(), 4)
        0.3808
    """

    is_differentiable = False
    full_state_update = False

    parts: list[Tensor]

    def __init__(
        self, metric: Metric, *, binary: bool = False, ignore_index: int | None = None, **arguments: Any
    ) -> None:
        if not isinstance(metric, Metric):
            raise InputError("a metric from calibrant.metrics", repr(metric), "pass an object such as ECE()")
        super().__init__(**arguments)
        self.metric: Any = metric
        self.binary, self.ignore_index = binary, ignore_index
        # torchmetrics declares it on the class; here it depends on the object
        object.__setattr__(self, "higher_is_better", metric.better == "higher")
        self._template = state_template(metric)
        # the tensors of the summed state, or the logits and labels of each batch
        self.add_state("parts", default=[], dist_reduce_fx=None)
        # An empty state whose name depends on the configuration. Otherwise, a MetricCollection would let two metrics
        # share their states from then on if these are equal after the first batch, which can happen by chance.
        key = zlib.crc32(repr((metric, binary, ignore_index)).encode())
        self.add_state(f"configuration_{key:08x}", default=[], dist_reduce_fx=None)

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Add a batch.

        Args:
            logits: Logits (N, K, …), not probabilities; with ``binary``, logits of any shape.
            labels: Class indices (N, …); with ``binary``, labels 0 or 1 with the shape of ``logits``.

        Raises:
            InputError: If shapes do not match or labels are invalid.
        """
        rows = as_predictions(logits, labels, binary=self.binary, ignore_index=self.ignore_index)
        if rows is None:
            return
        if self._template is None:
            self.parts += [rows.logits, rows.require_labels()]
        else:
            self.parts = _tensors_of(self._total([*self.parts, *_tensors_of(self.metric.state(rows))]))

    def compute(self) -> Tensor:
        """Return the metric over all rows added so far, as a float64 scalar (float32 on the device ``mps``).

        Raises:
            InputError: If no rows were added.
        """
        if not self.parts:
            raise InputError("at least one row before compute", "none", "call update first")
        if self._template is None:
            logits, labels = torch.cat(self.parts[::2]), torch.cat(self.parts[1::2])
            value = self.metric(Predictions.from_logits(logits, labels, unchecked_kind=True))
        else:
            value = self.metric.value(self._total(self.parts))
        dtype = torch.float32 if self.device.type == "mps" else torch.float64
        return torch.tensor(value, dtype=dtype, device=self.device)

    def reset(self) -> None:
        """Remove all rows."""
        self.parts = []  # torchmetrics would empty the old list, which its wrapper ``Running`` still needs
        super().reset()

    def _total(self, parts: list[Tensor]) -> Any:
        """Return the sum of the states whose tensors are stored consecutively in ``parts``."""
        size = len(_tensors_of(self._template))
        states = [_rebuild_state(self._template, iter(parts[at : at + size])) for at in range(0, len(parts), size)]
        return sum(states[1:], states[0])

    def _sync_dist(self, dist_sync_fn: Any = None, process_group: Any = None) -> None:
        # gathered as objects, because a process without a batch has no tensors that torchmetrics could gather
        everywhere = of_all_processes(self.parts, process_group or self.process_group)
        self.parts = [part.to(self.device) for parts in everywhere for part in parts]

    def __repr__(self) -> str:
        return f"StreamedMetric({self.metric!r})"


def _tensors_of(state: Any) -> list[Tensor]:
    """Return the tensors and numbers of a state as CPU tensors, so that torchmetrics can move and save them."""
    if isinstance(state, Tensor):
        return [state.cpu()]
    if is_dataclass(state):
        return [tensor for field in fields(state) for tensor in _tensors_of(getattr(state, field.name))]
    return [] if state is None else [torch.tensor(state, dtype=torch.float64)]


def _rebuild_state(template: Any, tensors: Iterator[Tensor]) -> Any:
    """Return a state with the structure of ``template`` and the values of ``tensors``."""
    if isinstance(template, Tensor):
        return next(tensors).cpu()
    if is_dataclass(template) and not isinstance(template, type):
        held = {field.name: _rebuild_state(getattr(template, field.name), tensors) for field in fields(template)}
        return replace(template, **held)
    return None if template is None else type(template)(next(tensors).item())
