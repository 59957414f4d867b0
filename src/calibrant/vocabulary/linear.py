"""Logits given by hidden states and the last layer's weight, in chunks of rows: checked, measured and calibrated."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypedDict, Unpack

import torch
from torch import Tensor

from calibrant._core.check import as_tensor, check_floating, check_labels, check_scores, refuse
from calibrant._core.constraints import Count, Kind, checked
from calibrant._core.numerics import slices
from calibrant.calibrators import Calibrator, TemperatureScaling
from calibrant.data.checks import calibrated, states_of
from calibrant.data.predictions import Decisions, Predictions
from calibrant.data.record import check_features, taken
from calibrant.metrics import SumMetrics
from calibrant.rows import Chunk, LazyRows

CHUNK_BYTES = 1 << 26  # of float32 logits: 128 rows of 128k classes, enough for a matrix product to run at full speed
DEVICE_CHUNK_BYTES = 1 << 28


def check_last_layer(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raise unless the parts of a layer match: ``hidden`` (…, H), ``weight`` (K, H), ``bias`` (K,) or None.

    Raises:
        InputError: If they do not.
    """
    parts = {"hidden": hidden, "weight": weight, **({} if bias is None else {"bias": bias})}
    for name, value in parts.items():
        check_floating(value, name=name)
    if weight.dim() != 2 or weight.shape[0] < 2:
        remedy = "pass the last layer's weight, one row per class"
        raise refuse("weight of shape (K, H) with K ≥ 2", f"shape {tuple(weight.shape)}", remedy)
    if hidden.dim() < 2 or hidden.shape[-1] != weight.shape[1]:
        raise refuse(
            f"hidden of shape (N, {weight.shape[1]})",
            f"shape {tuple(hidden.shape)}",
            "pass the last layer's input; its weight is (K, H), one row per class",
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise refuse(f"bias of shape ({weight.shape[0]},)", f"shape {tuple(bias.shape)}", "pass one number per class")
    devices = {str(part.device) for part in parts.values()}
    if len(devices) > 1:
        raise refuse("hidden, weight and bias on one device", ", ".join(sorted(devices)), "move them with .to(device)")
    autocast = torch.is_autocast_enabled(hidden.device.type)
    if not autocast and any(part.dtype != hidden.dtype for part in parts.values()):
        kinds = ", ".join(str(part.dtype) for part in parts.values())
        raise refuse("hidden, weight and bias of one dtype", kinds, "convert them, or use torch.autocast")


def product_dtype(hidden: Tensor) -> torch.dtype:
    """Return the dtype of the product: autocast's where it is on, else that of ``hidden``."""
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and hidden.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return hidden.dtype


def linear_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return hidden · weightᵀ + bias (n, K)."""
    return hidden @ weight.t() if bias is None else torch.addmm(bias, hidden, weight.t())


def linear_chunks(rows: int, classes: int, chunk: int | None, device: torch.device) -> Iterator[slice]:
    """Return slices of ``chunk`` rows each; None is as many as have 64 MiB of float32 logits (256 MiB on an accelerator)."""
    block = CHUNK_BYTES if device.type == "cpu" else DEVICE_CHUNK_BYTES
    return slices(rows, max(1, block // (4 * classes)) if chunk is None else chunk)


class RowOptions(TypedDict, total=False):
    """What rows of logits go through, and what lies beside them."""

    calibrator: Annotated[Calibrator, Kind(Calibrator, "pass a fitted one, or leave it out")] | None
    features: Mapping[str, Any] | None


class LinearLogits:
    """The logits hidden · weightᵀ + bias, never stored: each use recomputes them in chunks of rows.

    Args:
        hidden: (N, H) inputs of the last layer.
        weight: (K, H), its weight.
        bias: (K,), or None.
        chunk: Rows per chunk; None is as many as have 64 MiB of float32 logits, on an accelerator 256 MiB.

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

    @checked
    def __init__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None = None, *, chunk: Count | None = None
    ) -> None:
        check_last_layer(hidden, weight, bias)
        check_scores(hidden, name="hidden", shape="(N, H)", remedy="flatten it and the labels")
        self.hidden, self.weight = hidden.detach(), weight.detach()
        self.bias = None if bias is None else bias.detach()
        self.chunk = chunk

    def __len__(self) -> int:
        return int(self.hidden.shape[0])

    def __repr__(self) -> str:
        return f"LinearLogits({len(self)} rows, {self.classes} classes, width {self.hidden.shape[1]})"

    @property
    def classes(self) -> int:
        """K."""
        return int(self.weight.shape[0])

    @checked
    def predictions(self, labels: Any, **through: Unpack[RowOptions]) -> Iterator[Predictions]:
        """Return an iterator over the predictions of each chunk with their part of ``labels`` (N,), checked.

        With a calibrator the leakage check looks across chunks, so that chunks of fewer than 32 rows are checked as well. It
        compares bits: a fit by other chunks, whose matrix products may be rounded otherwise, can escape it.

        Args:
            labels: (N,) integers in [0, K).
            calibrator: A fitted calibrator to apply, or None.
            features: Named columns (N,), or None.

        Raises:
            InputError: If labels or features are not valid, or the calibrator is for another number of classes.
            LeakError: If 32 or more consecutive rows are fitting rows in fitting order.
        """
        y = check_labels(as_tensor(labels, name="labels").to(self.hidden.device), rows=len(self), classes=self.classes)
        columns = check_features(through.get("features"), rows=len(self))

        def parts() -> Iterator[Predictions]:
            for rows in linear_chunks(len(self), self.classes, self.chunk, self.hidden.device):
                with torch.no_grad():
                    logits = linear_logits(self.hidden[rows], self.weight, self.bias)
                beside = None if columns is None else taken(columns, rows)
                yield Predictions.from_logits(logits, y[rows], unchecked_kind=True, features=beside)

        return calibrated(parts(), through.get("calibrator"))

    def rows(self, labels: Any, *, features: Mapping[str, Any] | None = None) -> LazyRows:
        """Return the rows as a source for ``fit_from`` of any calibrator; each pass of a fit recomputes the logits.

        Args:
            labels: (N,) integers in [0, K).
            features: Named columns (N,), or None.

        Raises:
            InputError: If labels or features are not valid.

        Examples:
            >>> from calibrant.calibrators import AdaptiveTemperatureScaling
            >>> rng = torch.Generator().manual_seed(0)
            >>> hidden, weight = torch.randn(500, 8, generator=rng), torch.randn(100, 8, generator=rng)
            >>> tokens = torch.multinomial(torch.softmax(hidden @ weight.T / 2, dim=1), 1, generator=rng)[:, 0]
            >>> fitted = AdaptiveTemperatureScaling(by=[], bias=False).fit_from(
            ...     LinearLogits(hidden, weight).rows(tokens)
            ... )
            >>> 1.8 < fitted.temperature < 2.2
            True
        """
        self.predictions(labels, features=features)  # bad data are refused here, not at the first pass

        def chunks() -> Iterator[Chunk]:
            start = 0
            for part in self.predictions(labels, features=features):
                yield Chunk(part.logits, labels=part.need_labels(), features=part.features or {}, start=start)
                start += len(part)

        return LazyRows(chunks, classes=self.classes, count=len(self), device=self.hidden.device)

    @property
    def predicted(self) -> Tensor:
        """(N,) int64: the first index of each row's largest logit, computed anew."""
        chunks = linear_chunks(len(self), self.classes, self.chunk, self.hidden.device)
        with torch.no_grad():
            parts = [linear_logits(self.hidden[rows], self.weight, self.bias).argmax(dim=1) for rows in chunks]
        return torch.cat(parts)

    @checked
    def nll(self, labels: Any, **through: Unpack[RowOptions]) -> Tensor:
        """Return −log p (N,) of the labels in float64; arguments as for ``predictions``."""
        return torch.cat([part.nll for part in self.predictions(labels, **through)])

    @checked
    def top_label(self, labels: Any, **through: Unpack[RowOptions]) -> Decisions:
        """Return pairs of confidence and correctness, which every metric of the top label accepts.

        Arguments as for ``predictions``.
        """
        return Decisions.cat([part.top_label() for part in self.predictions(labels, **through)])

    @checked
    def measure(self, metrics: SumMetrics, labels: Any, **through: Unpack[RowOptions]) -> list[float]:
        """Return the value of each of ``metrics``, from the sum of the chunks' states.

        Args:
            metrics: Metrics that are sums, such as accuracy, NLL, Brier, ECE.
            labels: (N,) integers in [0, K).
            calibrator: A fitted calibrator to apply, or None.
            features: Named columns (N,), or None.

        Raises:
            InputError: If a metric is not a sum, or labels or features are not valid.
        """

        def parts() -> Iterator[Predictions]:
            return self.predictions(labels, **through)

        rows = LazyRows(parts, classes=self.classes, count=len(self), device=self.hidden.device)
        states = rows.total(states_of, metrics)
        return [metric.value(state) for metric, state in zip(metrics, states, strict=True)]

    def fit_temperature(self, labels: Any) -> TemperatureScaling:
        """Return temperature scaling fitted by log-loss, equal to ``TemperatureScaling().fit`` on the logits.

        Each of about ten Newton steps recomputes all logits.

        Args:
            labels: (N,) integers in [0, K).

        Raises:
            InputError: If data are not valid.
            FitError: If the fit does not converge.
        """
        return TemperatureScaling().fit_from(self.rows(labels))
