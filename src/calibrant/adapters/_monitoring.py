"""Code shared by the adapters for training loops: it converts outputs to predictions and computes metrics per epoch."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.interpolate import CubicHermiteSpline

from calibrant._core.check import as_tensor, refuse
from calibrant._kernel import temperature_moments
from calibrant.calibrators.base import check_label_logits
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.losses.adafocal import of_all_processes
from calibrant.metrics import ECE, NLL, Accuracy, Brier, Metric, SumMetric
from calibrant.rows import Batch, added

DEFAULT_METRICS = (Accuracy(), NLL(), Brier(), ECE())

# log T from log 1/8 to log 8 in quarter octaves; cubic interpolation is accurate to about 1e-5 in temperature and log-loss
LOG_TEMPERATURES = np.linspace(-3, 3, 25) * math.log(2)


def as_predictions(
    logits: Any, labels: Any, *, class_dim: int = 1, binary: bool = False, ignore_index: int | None = None
) -> Predictions | None:
    """Return the labelled rows of a batch as predictions, or None if there are none.

    Args:
        logits: (N, K, …) with the class axis ``class_dim``; with ``binary``, one logit per event, with the labels'
            shape.
        labels: (N, …) class indices; with ``binary``, 0 or 1 for each event: one label or several labels per row.
        class_dim: The class axis of ``logits``.
        binary: Whether each number of ``logits`` is the input of a sigmoid.
        ignore_index: Positions with this label are left out; None keeps all positions.

    Raises:
        InputError: If shapes do not match or labels are invalid.
    """
    z, y = as_tensor(logits, name="logits"), as_tensor(labels, name="labels")
    if bool((y == ignore_index).all()) if ignore_index is not None else not len(y):
        return None
    if not binary:
        return Predictions.from_logits(z, y, class_dim=class_dim, ignore_index=ignore_index)
    z, y = z.reshape(-1), y.reshape(-1)
    if bool((y != y.long()).any()):
        raise refuse("labels 0 or 1 for binary outputs", "fractions", "round them, or leave these rows out")
    return Predictions.from_binary_logits(z, y.long(), ignore_index=ignore_index)


def state_template(metric: Metric) -> Any:
    """Return an example state of ``metric``, or None if the metric needs all rows at once."""
    if not isinstance(metric, SumMetric):
        return None
    try:
        return metric.state(Predictions.from_logits([[2.0, 0.0], [2.0, 0.0]], [0, 1]))
    except InputError:  # bins whose edges depend on all rows
        return None


class RunningFigures:
    """The metrics of an epoch, computed from sums over its batches, so that no logits need to be kept.

    In addition to the metrics there are "temperature", the temperature in [1/8, 8] with the lowest log-loss, and
    "refinement", the log-loss at that temperature. The temperature is fitted on the same rows on which it is evaluated,
    as the definition of refinement requires (the optimism is about 1/(2N) nats). A metric is named by its class, or by
    its configuration if there are several metrics of one class. Only metrics that cannot be computed from sums keep
    their rows.

    Args:
        metrics: The metrics; None uses accuracy, NLL, Brier score and ECE.
    """

    def __init__(self, metrics: Sequence[Metric] | None) -> None:
        chosen = DEFAULT_METRICS if metrics is None else metrics
        if bad := [one for one in chosen if not isinstance(one, Metric)]:
            raise InputError("metrics from calibrant.metrics", repr(bad[0]), "pass objects such as ECE()")
        kinds = [type(metric).__name__ for metric in chosen]
        names = [kind if kinds.count(kind) == 1 else repr(one) for kind, one in zip(kinds, chosen, strict=True)]
        self.metrics = dict(zip(names, chosen, strict=True))
        self._are_sums = [state_template(metric) is not None for metric in chosen]
        self.sums: Any = None

    def add(self, rows: Predictions) -> None:
        """Add a batch.

        Raises:
            InputError: If a label's logit is −inf, which makes the log-loss infinite at every temperature.
        """
        logits, labels = rows.logits, rows.require_labels()
        check_label_logits(Batch(logits, labels))
        states = [
            metric.state(rows) if is_sum else [rows]  # type: ignore[attr-defined]
            for metric, is_sum in zip(self.metrics.values(), self._are_sums, strict=True)
        ]
        moments = [temperature_moments(logits, labels, None, math.exp(-x)) for x in LOG_TEMPERATURES]
        batch = (*states, NLL().state(rows), torch.stack(moments), len(rows))
        self.sums = batch if self.sums is None else added([self.sums, batch])

    def values(self, *, everywhere: bool = False) -> dict[str, float]:
        """Return the values by name, for this process or for all processes; empty if there were no rows."""
        parts = of_all_processes(self.sums) if everywhere else [self.sums]
        sums = added(part for part in parts if part is not None)
        if sums is None:
            return {}
        *states, nll, moments, count = sums
        figures = {
            name: metric.value(state) if is_sum else metric(Predictions.cat(state))  # type: ignore[attr-defined]
            for (name, metric), is_sum, state in zip(self.metrics.items(), self._are_sums, states, strict=True)
        }
        # d/d log T of the mean log-loss log Σ e^{βd} − β d_y with β = 1/T and d = z − max z, and its slope
        mean, variance, margin = moments.numpy().T / count
        beta = np.exp(-LOG_TEMPERATURES)
        slope, curvature = beta * (margin - mean), beta * (mean - margin) + beta**2 * variance
        spline = CubicHermiteSpline(LOG_TEMPERATURES, slope, curvature)
        loss, roots = spline.antiderivative(), spline.roots(extrapolate=False)
        # T = 1 comes first, so it is chosen if all temperatures are equally good
        best = min([0.0, *LOG_TEMPERATURES[[0, -1]], *roots[np.isfinite(roots)]], key=loss)
        refinement = NLL().value(nll) + float(loss(best) - loss(0.0))
        return {**figures, "temperature": math.exp(best), "refinement": refinement}
