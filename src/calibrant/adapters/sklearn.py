"""scikit-learn: any classifier, calibrated by any Calibrant calibrator, as one estimator."""

import copy
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from calibrant.calibrators import TemperatureScaling
from calibrant.calibrators._base import Calibrator
from calibrant.errors import InputError, MissingExtraError

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, clone, is_classifier
    from sklearn.exceptions import NotFittedError
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import check_cv
    from sklearn.utils import get_tags
    from sklearn.utils.metaestimators import _safe_split
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, has_fit_parameter, validate_data
except ImportError as error:
    raise MissingExtraError("scikit-learn", extra="sklearn") from error

__all__ = ["CalibratedClassifier"]

Array = npt.NDArray[Any]
# Log-probabilities of 0 (trees, naive Bayes) become this, the logarithm of float64's epsilon: a classifier that says
# "never" has not measured more than that, and deeper tails would let a few rows set the temperature.
_LOWEST = -36.0


class CalibratedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier whose probabilities are calibrated on predictions it did not train on.

    With ``cv`` folds the classifier is fitted on each fold's rest and predicts the fold; the calibrator learns from
    these out-of-fold predictions, and the classifier is fitted once more on all data. With ``cv="prefit"`` the given
    classifier is taken as it is, and all data passed to ``fit`` calibrate it. With ``estimator="logits"`` X holds
    logits or scores (n, K) of any model, and there is nothing to train.

    Args:
        estimator: A scikit-learn classifier; None is ``LogisticRegression()``; ``"logits"`` as above.
        calibrator: A Calibrant calibrator; None is ``TemperatureScaling()``. It is copied, never changed.
        cv: Folds, a scikit-learn splitter, or ``"prefit"``.

    Attributes:
        classes_: The labels.
        estimator_: The fitted classifier (None for ``estimator="logits"``).
        calibrator_: The fitted calibrator.
        n_features_in_: Columns of X.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from sklearn.naive_bayes import GaussianNB
        >>> X, y = load_digits(return_X_y=True)
        >>> model = CalibratedClassifier(GaussianNB()).fit(X[::2], y[::2])
        >>> model.predict_proba(X[1::2]).shape
        (898, 10)
    """

    def __init__(
        self,
        estimator: Any = None,
        calibrator: Calibrator | None = None,
        cv: Any = 5,
    ) -> None:
        self.estimator = estimator
        self.calibrator = calibrator
        self.cv = cv

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit classifier and calibrator.

        Args:
            X: (n, d) features, or (n, K) logits with ``estimator="logits"``.
            y: (n,) labels of any kind scikit-learn takes.
            sample_weight: (n,) weights ≥ 0, passed to both where the classifier takes them.
        """
        X, y = validate_data(self, X, y, **self._checks(), ensure_min_samples=2)
        check_classification_targets(y)
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, X)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(
                f"expected at least 2 classes in y, got 1 class ({self.classes_[0]!r}); add data of the others"
            )
        logits = self._logits_to_fit(X, y, codes, weight)
        blueprint = TemperatureScaling() if self.calibrator is None else self.calibrator
        self.calibrator_ = copy.deepcopy(blueprint).fit(
            logits, torch.from_numpy(codes.astype(np.int64)), sample_weight=weight
        )
        return self

    def predict_proba(self, X: Any) -> Array:
        """Return calibrated probabilities (n, K), columns in the order of ``classes_``."""
        probs: Array = torch.softmax(self._calibrated(X), dim=1).numpy()
        return probs

    def predict_log_proba(self, X: Any) -> Array:
        """Return their logarithms (n, K)."""
        log_probs: Array = torch.log_softmax(self._calibrated(X), dim=1).numpy()
        return log_probs

    def predict(self, X: Any) -> Array:
        """Return the most probable class (n,)."""
        columns = self._calibrated(X).argmax(dim=1).numpy()
        chosen: Array = self.classes_[columns]
        return chosen

    def _calibrated(self, X: Any) -> torch.Tensor:
        check_is_fitted(self, "calibrator_")
        X = validate_data(self, X, **self._checks(), reset=False)
        with torch.no_grad():
            logits = torch.from_numpy(X).double() if self.estimator_ is None else _logits_of(self.estimator_, X)
            return self.calibrator_(logits)

    def _logits_to_fit(self, X: Array, y: Array, codes: Array, weight: Array | None) -> torch.Tensor:
        if isinstance(self.estimator, str):
            if self.estimator != "logits":
                raise InputError(f"expected a classifier or 'logits', got {self.estimator!r}; pass one of these")
            self.estimator_ = None
            if X.shape[1] != len(self.classes_):
                raise InputError(
                    f"expected one column of logits a class ({len(self.classes_)}), got {X.shape[1]}; check X and y"
                )
            return torch.from_numpy(X).double()
        if isinstance(self.cv, str):
            return self._prefit(X)
        return self._cross_fit(X, y, weight)

    def _prefit(self, X: Array) -> torch.Tensor:
        if self.cv != "prefit":
            raise InputError(f"expected cv as a number, a splitter or 'prefit', got {self.cv!r}; choose one of these")
        try:
            check_is_fitted(self.estimator)
        except (NotFittedError, TypeError) as error:
            raise InputError("expected a fitted classifier with cv='prefit', got none; fit it first") from error
        if not np.isin(self.classes_, self.estimator.classes_).all():
            raise InputError(
                "expected labels that the fitted classifier knows, got others; calibrate on its own classes"
            )
        self.estimator_ = self.estimator
        self.classes_ = np.asarray(self.estimator.classes_)
        return _logits_of(self.estimator_, X)

    def _cross_fit(self, X: Array, y: Array, weight: Array | None) -> torch.Tensor:
        estimator = LogisticRegression() if self.estimator is None else self.estimator
        if not is_classifier(estimator):
            raise InputError(
                f"expected a classifier, got {type(estimator).__name__}; calibration is of class probabilities"
            )
        weighted = weight is not None and has_fit_parameter(estimator, "sample_weight")

        def fitted(rows: Array | None) -> Any:
            part, labels = (X, y) if rows is None else _safe_split(estimator, X, y, rows)
            if not weighted or weight is None:
                return clone(estimator).fit(part, labels)
            return clone(estimator).fit(part, labels, sample_weight=weight if rows is None else weight[rows])

        smallest = int(np.unique(y, return_counts=True)[1].min())
        folds = self.cv if not isinstance(self.cv, int) else max(2, min(self.cv, smallest))
        if smallest < 2:
            raise InputError(
                "expected at least 2 samples of every class, got 1 of some class; add data or drop the class"
            )
        logits = torch.empty(len(y), len(self.classes_), dtype=torch.float64)
        for train, test in check_cv(folds, y, classifier=True).split(X, y):
            model = fitted(train)
            if len(model.classes_) != len(self.classes_):
                raise InputError(
                    "expected every class in every fold, got folds without some; use fewer or stratified folds"
                )
            logits[test] = _logits_of(model, _safe_split(estimator, X, y, test)[0])
        self.estimator_ = fitted(None)
        return logits

    def _checks(self) -> dict[str, Any]:
        tags = self.__sklearn_tags__()
        return {"accept_sparse": ["csr", "csc"] if tags.input_tags.sparse else False, "dtype": "numeric"}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if self.estimator is None or not isinstance(self.estimator, str):
            inner = LogisticRegression() if self.estimator is None else self.estimator
            tags.input_tags.sparse = get_tags(inner).input_tags.sparse
        return tags


def _logits_of(model: Any, X: Array) -> torch.Tensor:
    """Return logits (n, K) in float64: the decision function of a linear or boosted model, else log probabilities."""
    if hasattr(model, "decision_function"):
        scores = np.asarray(model.decision_function(X), dtype=np.float64)
        if scores.ndim == 1:
            return torch.from_numpy(np.stack([np.zeros_like(scores), scores], axis=1))
        if scores.shape[1] == len(model.classes_):
            return torch.from_numpy(scores)
    with np.errstate(divide="ignore"):
        logs = np.log(np.asarray(model.predict_proba(X), dtype=np.float64))
    return torch.from_numpy(np.maximum(logs, _LOWEST))
