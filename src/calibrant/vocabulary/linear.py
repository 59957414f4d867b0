"""Logits given by hidden states and the last layer's weight, measured and calibrated in chunks of rows."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from calibrant._check import as_tensor, check_labels, refuse
from calibrant.calibrators import TemperatureScaling
from calibrant.metrics import Metric, SumMetric
from calibrant.predictions import Predictions
from calibrant.rows import Chunk, LazyRows
from calibrant.vocabulary._linear import check_chunk, check_linear, linear_chunks, linear_logits

__all__ = ["LinearLogits"]


class LinearLogits:
    """The logits hidden · weightᵀ + bias, never held in memory whole: each use recomputes them in chunks of rows.

    Args:
        hidden: (N, H) inputs of the last layer.
        weight: (K, H), its weight.
        bias: (K,), or None.
        chunk: Rows per chunk; None takes the rows whose float32 logits fill 64 MiB, on an accelerator 256 MiB.

    Raises:
        InputError: If shapes or dtypes do not match.

    Examples:
        >>> from calibrant.calibrators import TemperatureScaling
        >>> from calibrant.metrics import NLL, Accuracy
        >>> source = LinearLogits(2 * torch.eye(3), torch.eye(3))
        >>> [round(value, 4) for value in source.measure([Accuracy(), NLL()], [0, 1, 1])]
        [0.6667, 0.9062]
        >>> whole = TemperatureScaling().fit(2 * torch.eye(3), [0, 1, 1])
        >>> round(source.fit_temperature([0, 1, 1]).temperature / whole.temperature, 6)
        1.0
    """

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None = None, *, chunk: int | None = None) -> None:
        check_linear(hidden, weight, bias)
        if hidden.dim() != 2:
            raise refuse("hidden of shape (N, H)", f"shape {tuple(hidden.shape)}", "flatten it and the labels")
        if hidden.shape[0] == 0:
            raise refuse("at least one row of hidden", "an empty split", "check how the data were selected")
        self.hidden, self.weight = hidden.detach(), weight.detach()
        self.bias = None if bias is None else bias.detach()
        self.chunk = check_chunk(chunk)

    def __len__(self) -> int:
        return int(self.hidden.shape[0])

    def __repr__(self) -> str:
        return f"LinearLogits({len(self)} rows, {self.classes} classes, width {self.hidden.shape[1]})"

    @property
    def classes(self) -> int:
        """K."""
        return int(self.weight.shape[0])

    def predictions(self, labels: Any) -> Iterator[Predictions]:
        """Yield the predictions of each chunk with their part of ``labels`` (N,), checked."""
        y = check_labels(as_tensor(labels, name="labels").to(self.hidden.device), rows=len(self), classes=self.classes)
        for rows in linear_chunks(len(self), self.classes, self.chunk, self.hidden.device):
            with torch.no_grad():
                logits = linear_logits(self.hidden[rows], self.weight, self.bias)
            yield Predictions.from_logits(logits, y[rows], unchecked_kind=True)

    def measure(self, metrics: Sequence[Metric], labels: Any) -> list[float]:
        """Return the value of each of ``metrics``, from the sum of the chunks' states.

        Args:
            metrics: Metrics that are sums, such as accuracy, NLL, Brier, ECE.
            labels: (N,) integers in [0, K).

        Raises:
            InputError: If a metric is not a sum, or labels are not valid.
        """
        sums = [metric for metric in metrics if isinstance(metric, SumMetric)]
        if len(sums) < len(metrics):
            other = next(metric for metric in metrics if not isinstance(metric, SumMetric))
            raise refuse("metrics that are sums", f"{other!r}, which is not", "leave it out, or call it on Predictions")
        states: list[Any] = []
        for part in self.predictions(labels):
            found = [metric.state(part) for metric in sums]
            states = [a + b for a, b in zip(states, found, strict=True)] if states else found
        return [metric.value(state) for metric, state in zip(sums, states, strict=True)]

    def fit_temperature(self, labels: Any) -> TemperatureScaling:
        """Return temperature scaling fitted by log-loss, equal to ``TemperatureScaling().fit`` on the logits.

        Each of about ten Newton steps recomputes all logits.

        Args:
            labels: (N,) integers in [0, K).

        Raises:
            InputError: If data are not valid.
            FitError: If the fit does not converge.
        """

        def chunks() -> Iterator[Chunk]:
            start = 0
            for part in self.predictions(labels):
                yield Chunk(part.logits, part.need_labels(), start=start)
                start += len(part)

        rows = LazyRows(chunks, classes=self.classes, count=len(self), device=self.hidden.device)
        return TemperatureScaling().fit_from(rows)
