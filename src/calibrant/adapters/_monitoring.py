"""What the adapters of training loops share: their outputs as predictions, and the metrics they log."""

from collections.abc import Sequence
from typing import Any

import torch

from calibrant._core.check import as_tensor, refuse
from calibrant.calibrators import TemperatureScaling
from calibrant.data.predictions import Predictions
from calibrant.metrics import ECE, NLL, Accuracy, Brier, Metric

DEFAULT_METRICS = (Accuracy(), NLL(), Brier(), ECE())


def as_predictions(
    logits: Any, labels: Any, *, class_dim: int = 1, binary: bool = False, ignore_index: int | None = None
) -> Predictions:
    """Return the labelled rows of a batch as predictions.

    Args:
        logits: (N, K, …) with the class axis ``class_dim``; ``binary``: of the events, of the labels' shape.
        labels: (N, …) class indices; ``binary``: 0 or 1 for each event, as one label or several a row.
        class_dim: The class axis.
        binary: Whether each number of ``logits`` is the input of a sigmoid.
        ignore_index: The label of places to leave out, or None.

    Raises:
        InputError: If shapes or labels do not match.
    """
    if not binary:
        return Predictions.from_logits(logits, labels, class_dim=class_dim, ignore_index=ignore_index)
    z, y = as_tensor(logits, name="logits").reshape(-1), as_tensor(labels, name="labels").reshape(-1)
    if len(z) != len(y):
        remedy = "pass one logit for each label"
        raise refuse(f"as many labels as the {len(z):,} logits of binary outputs", f"{len(y):,}", remedy)
    counted = torch.ones_like(y, dtype=torch.bool) if ignore_index is None else y != ignore_index
    z, y = z[counted], y[counted]
    if bool(((y != 0) & (y != 1)).any()):
        raise refuse("labels 0 or 1 of binary outputs", "others", "name the label of ignored places by ignore_index")
    return Predictions.from_binary_logits(z, y.long())


def figures_while_training(metrics: Sequence[Metric], data: Predictions) -> dict[str, float]:
    """Return each metric of ``data`` by its name, the fitted "temperature", and "refinement": the log-loss at it.

    The name is that of the class, or the configuration where several metrics are of one class. The temperature is fitted
    on the rows it is evaluated on, as the definition of refinement requires (the optimism is about 1/(2N) nats).
    """
    kinds = [type(metric).__name__ for metric in metrics]
    names = [kind if kinds.count(kind) == 1 else repr(metric) for kind, metric in zip(kinds, metrics, strict=True)]
    scaling = TemperatureScaling().fit(data.logits, data.require_labels())
    return {
        **{name: metric(data) for name, metric in zip(names, metrics, strict=True)},
        "temperature": scaling.temperature,
        "refinement": NLL()(data.calibrated_by(scaling, allow_fit_rows=True)),
    }
