"""Conformal prediction sets from calibrated logits, by MAPIE: sets of classes with a given coverage."""

from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant._core.check import refuse
from calibrant._core.constraints import Kind, Level, Seed, checked
from calibrant.data.checks import need_unweighted
from calibrant.data.predictions import Predictions
from calibrant.errors import optional

with optional("mapie", extra="mapie"):
    from mapie.classification import SplitConformalClassifier

__all__ = ["PredictionSets"]

Score = Literal["lac", "aps", "raps", "top_k"]


class PredictionSets:
    """Sets of classes that contain the true class with probability ≥ ``confidence``, on average over new rows.

    It calls ``mapie.classification.SplitConformalClassifier`` with the probabilities of calibrated predictions.

    Args:
        calibration: Labelled, calibrated predictions of rows on which neither the model nor a calibrator was fitted.
        confidence: Coverage, in (0, 1).
        score: MAPIE's conformity score. "lac" gives the smallest sets on average, "aps" and "raps" larger sets for uncertain
            rows, "top_k" sets of one size.
        seed: Seed of the random numbers that "aps" and "raps" use.

    Raises:
        InputError: For unlabelled or weighted rows, or an argument out of range.

    Examples:
        >>> from calibrant import Predictions
        >>> z = 3 * torch.eye(3).repeat(100, 1)
        >>> sets = PredictionSets(Predictions.from_logits(z, torch.arange(3).repeat(100)), confidence=0.9)
        >>> sets(Predictions.from_logits(z[:1])).tolist()
        [[True, False, False]]

    References:
        Sadinle, Lei, Wasserman 2019 (lac); Romano, Sesia, Candès 2020 (aps); Angelopoulos et al. 2021 (raps).
    """

    @checked
    def __init__(
        self,
        calibration: Annotated[Predictions, Kind(Predictions, "make them with Predictions.from_logits")],
        *,
        confidence: Level = 0.9,
        score: Score = "lac",
        seed: Seed = 0,
    ) -> None:
        self.confidence, self.score = confidence, score
        labels = np.asarray(calibration.need_labels().cpu().numpy())
        need_unweighted(calibration, what="prediction sets")
        self.classes = calibration.classes
        self._conformal = SplitConformalClassifier(
            estimator=_Softmax(calibration.classes),
            confidence_level=self.confidence,
            conformity_score=self.score,
            prefit=True,
            random_state=seed,
        )
        self._conformal.conformalize(_normalized_probs(calibration), labels)

    def __call__(self, predictions: Predictions) -> Tensor:
        """Return which classes (N, K) bool are in each row's set.

        Args:
            predictions: Predictions calibrated in the same way; labels are not needed.

        Raises:
            InputError: If the number of classes differs.
        """
        if not isinstance(predictions, Predictions) or predictions.classes != self.classes:
            raise refuse(f"predictions of {self.classes} classes", str(predictions), "pass outputs of the same model")
        # (N, K, levels), of one level
        _, sets = self._conformal.predict_set(_normalized_probs(predictions))
        return torch.from_numpy(np.ascontiguousarray(sets[:, :, 0]))

    def __repr__(self) -> str:
        return f"PredictionSets({self.classes} classes, confidence={self.confidence:g}, score={self.score!r})"


class _Softmax:
    """A fitted classifier for MAPIE whose input rows are already probabilities."""

    def __init__(self, classes: int) -> None:
        self.classes_ = np.arange(classes)

    def fit(self, x: Any, y: Any) -> "_Softmax":
        return self

    def predict_proba(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return x

    def predict(self, x: NDArray[np.float64]) -> NDArray[np.int64]:
        return x.argmax(axis=1)

    def __sklearn_is_fitted__(self) -> bool:
        return True


def _normalized_probs(predictions: Predictions) -> NDArray[np.float64]:
    p = np.asarray(predictions.probs.double().cpu().numpy())
    # MAPIE asks that rows sum to 1 in float64, which float32 probabilities do not
    return p / p.sum(axis=1, keepdims=True)
