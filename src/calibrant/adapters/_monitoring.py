"""Calibration metrics of validation data, as callbacks of training loops log them."""

from collections.abc import Sequence

from calibrant.calibrators import TemperatureScaling
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.metrics import ECE, NLL, Accuracy, Brier, Metric

__all__ = ["figures_while_training", "metrics_or_default"]


def metrics_or_default(metrics: Sequence[Metric] | None) -> list[Metric]:
    """Return the checked ``metrics``; None is accuracy, NLL, Brier and ECE."""
    if metrics is None:
        return [Accuracy(), NLL(), Brier(), ECE()]
    if not isinstance(metrics, Sequence) or not all(isinstance(metric, Metric) for metric in metrics):
        raise InputError("metrics must be a list of objects of calibrant.metrics, such as [ECE(), NLL()]")
    return list(metrics)


def figures_while_training(metrics: Sequence[Metric], data: Predictions) -> dict[str, float]:
    """Return each metric of ``data`` by its name, the fitted "temperature", and "refinement": the log-loss at it.

    The name is that of the class, or the configuration where several metrics are of one class.
    The temperature is fitted on the rows it is evaluated on, as the definition of refinement requires (with one parameter the
    optimism is about 1/(2N) nats).
    """
    kinds = [type(metric).__name__ for metric in metrics]
    names = [kind if kinds.count(kind) == 1 else repr(metric) for kind, metric in zip(kinds, metrics, strict=True)]
    scaling = TemperatureScaling().fit(data.logits, data.need_labels())
    return {
        **{name: metric(data) for name, metric in zip(names, metrics, strict=True)},
        "temperature": scaling.temperature,
        "refinement": NLL()(data.calibrated_by(scaling, allow_fit_rows=True)),
    }
