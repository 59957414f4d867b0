"""A calibrator of NumPy arrays of probabilities, for benchmarks that call ``fit`` and ``predict_proba``, such as CalArena."""

from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray

from calibrant._core.check import as_array, as_tensor
from calibrant._core.config import renewed
from calibrant._core.constraints import Kind, checked
from calibrant.calibrators import AutoCalibrator, Calibrator
from calibrant.data.predictions import Predictions
from calibrant.errors import NotFittedError

__all__ = ["ArrayCalibrator"]

AnyCalibrator = Annotated[Calibrator, Kind(Calibrator, "pass one such as AutoCalibrator(), or nothing", "a calibrator")]


class ArrayCalibrator:
    """Calibrates NumPy arrays of probabilities, with the methods ``fit`` and ``predict_proba`` that CalArena calls.

    In CalArena's ``custom_calibrators.py`` write ``CUSTOM_CALIBRATORS = {"Calibrant": ArrayCalibrator}``. Unlike
    ``adapters.sklearn.CalibratedClassifier`` it has no classifier: its inputs and outputs are probabilities.

    Args:
        calibrator: Any calibrator, which is copied; None is ``AutoCalibrator()``.

    Attributes:
        fitted: The fitted calibrator; None before ``fit``.

    Raises:
        InputError: If ``calibrator`` is not a calibrator.

    Examples:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> truth = rng.dirichlet([1.0, 1.0, 1.0], size=600)
        >>> y = (truth.cumsum(axis=1) < rng.random((600, 1))).sum(axis=1)
        >>> p = truth**3 / (truth**3).sum(axis=1, keepdims=True)  # over-confident
        >>> calibrated = ArrayCalibrator().fit(p[:400], y[:400]).predict_proba(p[400:])
        >>> calibrated.shape, bool(calibrated.max(axis=1).mean() < p[400:].max(axis=1).mean())
        ((200, 3), True)

    References:
        Berta, Holzmüller, Bach, Jordan 2026, CalArena, arXiv 2605.30188 (the interface).
    """

    @checked
    def __init__(self, calibrator: AnyCalibrator | None = None) -> None:
        self.calibrator = calibrator
        self.fitted: Calibrator | None = None

    def fit(self, p_cal: Any, y_cal: Any) -> Self:
        """Fit on probabilities (n, K), or (n,) of class 1, and labels (n,) in [0, K).

        Raises:
            InputError: If they are not probabilities and labels of these shapes.
            FitError: If the optimum was not reached.
        """
        data = _predictions(p_cal, as_array(y_cal, name="labels"))
        made = AutoCalibrator() if self.calibrator is None else renewed(self.calibrator)
        self.fitted = made.fit(data)
        return self

    def predict_proba(self, p_test: Any) -> NDArray[np.float64]:
        """Return calibrated probabilities (n, K) of probabilities (n, K), or (n,) of class 1.

        Raises:
            NotFittedError: Before ``fit``.
            InputError: If they are not probabilities, or of another number of classes.
        """
        if self.fitted is None:
            raise NotFittedError("a fitted ArrayCalibrator", "one before fit", "call fit(p_cal, y_cal) first")
        after = _predictions(p_test, None).calibrated_by(self.fitted, allow_fit_rows=True)
        return np.asarray(after.log_probs.double().exp().cpu().numpy(), dtype=np.float64)


def _predictions(probs: Any, labels: Any) -> Predictions:
    values = as_tensor(probs, name="probabilities")
    if values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1):
        return Predictions.from_binary_probs(values.reshape(-1).double(), labels)
    return Predictions.from_probs(values, labels)
