"""MLflow: a panel as metrics and a report as an artifact of the active run."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from calibrant.calibrators._base import Calibrator
from calibrant.errors import MissingExtraError

try:
    import mlflow
except ImportError as error:
    raise MissingExtraError("mlflow", extra="mlflow") from error

__all__ = ["log_calibrator", "log_panel"]


def log_panel(
    figures: Mapping[str, float],
    *,
    prefix: str = "",
    step: int | None = None,
    report: str | os.PathLike[str] | None = None,
) -> None:
    """Log figures, and a report if there is one, to the active MLflow run (one is started if there is none).

    Args:
        figures: Name → value, such as ``{repr(metric): metric(data) for metric in …}``.
        prefix: Put before every name with a slash.
        step: The training step, or None.
        report: An HTML report to keep as an artifact, or None.
    """
    named = {_name(prefix, name): value for name, value in figures.items()}
    mlflow.log_metrics(named, step=step)
    if report is not None:
        mlflow.log_artifact(os.fspath(report))


def log_calibrator(calibrator: Calibrator, *, name: str = "calibrator.safetensors") -> None:
    """Keep a fitted calibrator as an artifact of the active run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        calibrator.save(path)
        mlflow.log_artifact(os.fspath(path))


def _name(prefix: str, name: str) -> str:
    # MLflow allows letters, digits and _-./ : space; a metric's repr has brackets, commas and equals signs
    plain = "".join(c if c.isalnum() or c in "_-./" else "_" for c in name).strip("_")
    return f"{prefix}/{plain}" if prefix else plain
