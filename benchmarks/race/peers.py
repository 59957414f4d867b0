"""Calls of other libraries on the same logits, with their own defaults. A library is imported only if it is used."""

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

OWN = ("calibrant", "torch", "by", "softmax")  # first words of what needs no other library
LIBRARIES = {
    "torchmetrics": "torchmetrics",
    "torch-uncertainty": "torch_uncertainty",
    "scikit-learn": "sklearn",
}


def optional(name: str) -> Any:
    """Import ``name``, or return None if its package is not installed."""
    return importlib.import_module(name) if find_spec(name.split(".")[0]) else None


def present(calls: dict[str, Callable[[], Any]]) -> dict[str, Callable[[], Any]]:
    """Return ``calls`` without those whose library (the first word of the name) is not installed."""

    def there(name: str) -> bool:
        library = name.split()[0].rstrip(",")
        package = LIBRARIES.get(library, library)
        return library in OWN or package in sys.modules or find_spec(package) is not None

    return {name: call for name, call in calls.items() if there(name)}


def torch_uncertainty(module: str) -> Any:
    """Import a module of torch-uncertainty without its package, which needs torchvision; None if it is not installed."""
    spec = None if "torch_uncertainty" in sys.modules else find_spec("torch_uncertainty")
    if spec is not None and spec.submodule_search_locations:
        root = Path(next(iter(spec.submodule_search_locations)))
        _stub("torch_uncertainty", root)
    if "torch_uncertainty" not in sys.modules:
        return None
    root = Path(sys.modules["torch_uncertainty"].__path__[0])
    parts = module.split(".")
    for end in range(1, len(parts)):
        _stub(".".join(["torch_uncertainty", *parts[:end]]), root.joinpath(*parts[:end]))
    if parts[0] == "post_processing":
        base = importlib.import_module("torch_uncertainty.post_processing.abstract")
        sys.modules["torch_uncertainty.post_processing"].PostProcessing = base.PostProcessing  # type: ignore[attr-defined]
    return importlib.import_module(f"torch_uncertainty.{module}")


def _stub(name: str, folder: Path) -> None:
    if name not in sys.modules:
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package


def updated(metric: Any, p: Tensor, y: Tensor) -> float:
    """Return a metric with the interface of torchmetrics after an update with one batch."""
    metric.update(p, y)
    return float(metric.compute())


class Batch:
    """A data loader with one batch, which torch-uncertainty's fits require."""

    def __init__(self, logits: Tensor, labels: Tensor) -> None:
        self.data = (logits, labels)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield self.data

    def __len__(self) -> int:
        return 1


def torch_uncertainty_fit(module: str, name: str, logits: Tensor, labels: Tensor, **options: Any) -> Any:
    """Return the fitted scaler ``name`` from torch-uncertainty's ``module``."""
    scaler = getattr(torch_uncertainty(f"post_processing.calibration.{module}"), name)(model=None, **options)
    scaler.fit(Batch(logits, labels), progress=False)
    return scaler


def probmetrics_fit(calibrator: Any, logits: Tensor, labels: Tensor) -> Any:
    """Return the ``calibrator`` from probmetrics, fitted on logits."""
    from probmetrics.distributions import CategoricalLogits

    calibrator.fit_torch(CategoricalLogits(logits), labels)
    return calibrator


def probmetrics_probs(calibrator: Any, logits: Tensor) -> Tensor:
    """Return the probabilities that a fitted calibrator from probmetrics computes from logits."""
    from probmetrics.distributions import CategoricalLogits

    return calibrator.predict_proba_torch(CategoricalLogits(logits)).get_probs()  # type: ignore[no-any-return]


def sklearn_temperature(logits: Tensor, labels: Tensor) -> Any:
    """Return scikit-learn's classifier with a fitted temperature, whose features are logits."""
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    class Stored(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
        """A classifier whose features are its logits."""

        def fit(self, x: np.ndarray, y: np.ndarray) -> "Stored":
            self.classes_ = np.arange(x.shape[1])
            return self

        def predict(self, x: np.ndarray) -> np.ndarray:
            return x.argmax(axis=1)  # type: ignore[no-any-return]

        def decision_function(self, x: np.ndarray) -> np.ndarray:
            return x[:, 1] - x[:, 0] if x.shape[1] == 2 else x  # what scikit-learn asks of two classes

    x, y = logits.numpy(), labels.numpy()
    return CalibratedClassifierCV(FrozenEstimator(Stored().fit(x, y)), method="temperature").fit(x, y)
