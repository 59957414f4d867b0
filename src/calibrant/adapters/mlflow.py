"""MLflow: log values as metrics, and reports and calibrators as artifacts of the active run."""

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from calibrant._core.check import check_number, refuse, shown
from calibrant._core.constraints import Kind, Natural, Text, checked
from calibrant._core.paths import check_source
from calibrant.calibrators import Calibrator
from calibrant.errors import optional

with optional("mlflow", extra="mlflow"):
    import mlflow

__all__ = ["log_calibrator", "log_panel"]


@checked
def log_panel(
    figures: Annotated[Mapping[str, float], Kind(Mapping, "pass a dictionary", "name → value")],
    *,
    prefix: Text = "",
    step: Natural | None = None,
    report: str | os.PathLike[str] | None = None,
) -> None:
    """Log metric values, and optionally a report, to the active MLflow run, which is started if there is none.

    Args:
        figures: Name → value, such as ``{repr(metric): metric(data) for metric in …}``.
        prefix: Prepended to every name with a slash.
        step: The training step, or None.
        report: An HTML report to log as an artifact, or None.
    """
    named = {_prefixed_name(prefix, str(name)): check_number(value, name=str(name)) for name, value in figures.items()}
    if report is not None:
        check_source(report)
    mlflow.log_metrics(named, step=step)
    if report is not None:
        mlflow.log_artifact(os.fspath(report))


@checked
def log_calibrator(
    calibrator: Annotated[Calibrator, Kind(Calibrator, "fit one of calibrant.calibrators or load one")],
    *,
    name: Text = "calibrator.safetensors",
) -> None:
    """Log a fitted calibrator as an artifact of the active run."""
    if Path(name).name != name or not name.endswith(".safetensors"):
        raise refuse("a file name that ends in .safetensors", shown(name), "rename it, without a folder")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        calibrator.save(path)
        mlflow.log_artifact(os.fspath(path))


def _prefixed_name(prefix: str, name: str) -> str:
    # MLflow allows letters, digits and _-./ : space; a metric's repr has brackets, commas and equals signs
    named, before = (re.sub(r"[^A-Za-z0-9_./-]", "_", text).strip("_/") for text in (name, prefix))
    return f"{before}/{named}" if before else named
