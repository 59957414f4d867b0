"""A scikit-learn estimator that combines any classifier with any Calibrant calibrator."""

import copy
import math
from numbers import Integral
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from calibrant import calibrators
from calibrant._core.check import check_choice, check_groups
from calibrant._core.warn import warn_user
from calibrant.calibrators import SHORT_NAMES, AutoCalibrator, Calibrator, TemperatureScaling
from calibrant.errors import InputError, UsageWarning, optional
from calibrant.rows import MemoryRows

with optional("scikit-learn", extra="sklearn"):
    from sklearn import get_config
    from sklearn.base import BaseEstimator, ClassifierMixin, clone, is_classifier
    from sklearn.ensemble import BaggingClassifier
    from sklearn.ensemble._forest import ForestClassifier
    from sklearn.feature_selection import RFE
    from sklearn.frozen import FrozenEstimator
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedGroupKFold, check_cv
    from sklearn.model_selection._classification_threshold import BaseThresholdClassifier
    from sklearn.model_selection._search import BaseSearchCV
    from sklearn.neighbors import KNeighborsClassifier, RadiusNeighborsClassifier
    from sklearn.pipeline import Pipeline
    from sklearn.semi_supervised import SelfTrainingClassifier
    from sklearn.tree import BaseDecisionTree
    from sklearn.utils import get_tags, indexable
    from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, get_routing_for_object
    from sklearn.utils.metaestimators import _safe_split
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import (
        _check_sample_weight,
        _check_y,
        check_is_fitted,
        has_fit_parameter,
        validate_data,
    )

__all__ = ["CalibratedClassifier"]

Array = npt.NDArray[Any]
# Classifiers whose probabilities are frequencies (of votes, or of rows in a leaf), so that exactly 0 and 1 occur.
VOTERS = (BaggingClassifier, BaseDecisionTree, ForestClassifier, KNeighborsClassifier, RadiusNeighborsClassifier)
# Additive smoothing of their probabilities, p → (VOTES p + 1/K) / (VOTES + 1), so that no row has an infinite log-loss
# and exact zeros do not dominate the fit.
VOTES = 10
# Standard deviation of the normal prior on log T for these classifiers. Without it, out-of-fold rows that are all correct
# (75 rows of iris) give T near 0, and then one misclassified test row has a huge log-loss.
PRIOR = 1.0
# Estimators that return the scores of one classifier inside them.
DELEGATES = (BaseSearchCV, BaseThresholdClassifier, FrozenEstimator, RFE, SelfTrainingClassifier)
# Log-probabilities below this, the logarithm of float64's epsilon, are raised to it (naive Bayes returns exact zeros):
# smaller values carry no information, and a few such rows would otherwise dominate the fit of the temperature.
_LOWEST = -36.0


class CalibratedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier whose probabilities are calibrated on rows that it was not trained on.

    With ``cv`` folds, the classifier is fitted on all other folds and predicts each fold; the calibrator is fitted on
    these out-of-fold predictions, and the classifier is refitted on all data (see ``ensemble``). With ``cv="prefit"``
    the classifier is already fitted, and all data passed to ``fit`` are used for calibration. With
    ``estimator="logits"`` X holds logits or scores (n, K) of any model, and no classifier is fitted.

    Args:
        estimator: A scikit-learn classifier; None uses ``LogisticRegression()``, and ``"logits"`` is explained above.
        calibrator: A Calibrant calibrator, which is copied, or a name: a class of ``calibrant.calibrators``,
            ``"auto"``, ``"temperature"``, ``"isotonic"``, ``"sigmoid"`` or ``"beta"``. None depends on the
            classifier: for voting classifiers (forests, bagging, trees, neighbours), it is
            ``TemperatureScaling(prior=1.0)``, which has a normal prior with standard deviation 1 on log T, and for all
            others it is ``AutoCalibrator()``.
        cv: The number of folds ≥ 2, a scikit-learn splitter, ``"prefit"``, or None for 5 folds.
        ensemble: With folds, True keeps the classifier of every fold and averages their calibrated probabilities, and
            False fits one classifier on all rows. None means True for voting classifiers, which benefit from averaging,
            and False for all others.

    Attributes:
        classes_: The labels.
        estimators_: The fitted classifiers: one per fold with ``ensemble``, else one (none for ``estimator="logits"``).
        estimator_: The first fitted classifier, or None.
        calibrator_: The fitted calibrator.
        n_features_in_: Number of columns of X.

    Examples:
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
        calibrator: Calibrator | str | None = None,
        cv: Any = 5,
        ensemble: bool | None = None,
    ) -> None:
        self.estimator = estimator
        self.calibrator = calibrator
        self.cv = cv
        self.ensemble = ensemble

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Fit the classifier and the calibrator.

        If metadata routing is enabled, ``set_fit_request(sample_weight=True, groups=True)`` routes both arguments
        through pipelines and searches. The classifier receives the weights only if it requests them.

        Args:
            X: (n, d) features, or (n, K) logits with ``estimator="logits"``.
            y: (n,) labels of any type that scikit-learn accepts.
            sample_weight: (n,) weights ≥ 0, for the calibrator and, if it accepts them, the classifier.
            groups: (n,) names or numbers of clusters that must not be split across folds; ``cv`` must then be a number or a
                group splitter.

        Returns:
            The estimator itself.

        Raises:
            InputError: If y has fewer than two classes, shapes do not match, or ``cv`` does not suit the data.
        """
        if y is None:
            raise InputError("this estimator requires y to be passed, but the target y is None")
        if isinstance(self.estimator, str):
            X, y = validate_data(self, X, y, dtype="numeric", ensure_min_samples=2)
        else:  # the classifier checks data frames, text and NaN itself
            X, y = indexable(X, _check_y(y))
        check_classification_targets(y)
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, X, dtype=np.float64)
        clusters = None if groups is None else check_groups(groups, rows=len(y))
        self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            got = f"{len(self.classes_)} in {len(y)} samples"
            raise InputError("at least 2 classes in y", got, "add data of the other classes")
        rows = np.arange(len(y))  # rows that the calibrator is fitted on
        if isinstance(self.estimator, str):
            logits = self._given(X)
        elif isinstance(self.cv, str):
            logits = self._prefit(X)
        else:
            logits, rows = self._cross_fit(X, y, weight, clusters)
        for fact in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, fact):
                setattr(self, fact, getattr(self.estimator_, fact))
        usual = TemperatureScaling(prior=PRIOR) if isinstance(_last_step(self.estimator_), VOTERS) else AutoCalibrator()
        blueprint = usual if self.calibrator is None else calibrator_of(self.calibrator)
        fitting_rows = MemoryRows.of(
            logits,
            np.searchsorted(self.classes_, y[rows]),
            weights=None if weight is None else weight[rows],
            groups=None if clusters is None else clusters[rows],
        )
        self.calibrator_ = copy.deepcopy(blueprint).fit(fitting_rows)
        return self

    @property
    def estimator_(self) -> Any:
        """The first fitted classifier, or None for ``estimator="logits"``."""
        return self.estimators_[0] if self.estimators_ else None

    def predict_proba(self, X: Any) -> Array:
        """Return the calibrated probabilities (n, K), with columns in the order of ``classes_``."""
        return np.asarray(torch.softmax(self._calibrated(X), dim=1).numpy())

    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithms of ``predict_proba`` (n, K)."""
        return np.asarray(torch.log_softmax(self._calibrated(X), dim=1).numpy())

    def get_metadata_routing(self) -> Any:
        """Return the metadata routing of this estimator and of its classifier."""
        router = MetadataRouter(owner=self.__class__.__name__).add_self_request(self)
        if not isinstance(self.estimator, str):
            inner = LogisticRegression() if self.estimator is None else self.estimator
            router = router.add(estimator=inner, method_mapping=MethodMapping().add(caller="fit", callee="fit"))
        return router

    def predict(self, X: Any) -> Array:
        """Return the most probable class (n,)."""
        columns = self._calibrated(X).argmax(dim=1).numpy()  # first, because it raises if the estimator is not fitted
        return np.asarray(self.classes_[columns])

    def _calibrated(self, X: Any) -> torch.Tensor:
        check_is_fitted(self, "calibrator_")
        with torch.no_grad():
            if not self.estimators_:
                logits = validate_data(self, X, dtype="numeric", reset=False)
                return self.calibrator_(torch.from_numpy(logits).double())
            # the mean of the members' calibrated probabilities, computed from logarithms
            parts = [torch.log_softmax(self.calibrator_(_logits_of(model, X)), dim=1) for model in self.estimators_]
            return parts[0] if len(parts) == 1 else torch.logsumexp(torch.stack(parts), dim=0) - math.log(len(parts))

    def _given(self, X: Any) -> torch.Tensor:
        """Return X as logits, for ``estimator="logits"``."""
        if self.estimator != "logits":
            raise InputError("a classifier or 'logits'", f"{self.estimator!r}", "pass one of these")
        if X.shape[1] != len(self.classes_):
            raise InputError(f"one column of logits per class ({len(self.classes_)})", f"{X.shape[1]}", "check X and y")
        self.estimators_: list[Any] = []
        return torch.from_numpy(X).double()

    def _prefit(self, X: Any) -> torch.Tensor:
        """Return the logits of the classifier that was fitted before."""
        if self.cv != "prefit":
            raise InputError("cv as a number, a splitter or 'prefit'", f"{self.cv!r}", "choose one of these")
        check_is_fitted(self.estimator)
        if not np.isin(self.classes_, self.estimator.classes_).all():
            raise InputError("labels that the fitted classifier knows", "other labels", "calibrate on its own classes")
        self.estimators_, self.classes_ = [self.estimator], np.asarray(self.estimator.classes_)
        return _logits_of(self.estimator, X)

    def _cross_fit(
        self, X: Any, y: Array, weight: Array | None, groups: torch.Tensor | None
    ) -> tuple[torch.Tensor, Array]:
        """Return out-of-fold logits and their row numbers; with some splitters a row occurs never or repeatedly."""
        estimator = LogisticRegression() if self.estimator is None else self.estimator
        if not is_classifier(estimator):
            raise InputError(
                "a classifier", f"{type(estimator).__name__}", "only class probabilities can be calibrated"
            )
        argument = "" if weight is None else _weight_argument(estimator)
        if weight is not None and not argument:
            message = f"{type(estimator).__name__} takes no sample_weight, so the weights affect the calibration only"
            warn_user(message, UsageWarning)
        codes, everything = np.unique(y, return_inverse=True)[1], np.arange(len(y))

        def fitted(rows: Array) -> Any:
            part, labels = _safe_split(estimator, X, y, rows)
            beside = {argument: weight[rows]} if weight is not None and argument else {}
            try:
                return clone(estimator).fit(part, labels, **beside)
            except ValueError:
                if np.array_equal(codes, y):
                    raise
                # XGBoost accepts only classes 0 … K − 1; if something else is wrong, this second fit raises it again
                return clone(estimator).fit(part, codes[rows], **beside)

        folds = 5 if self.cv is None else self.cv  # as in scikit-learn
        if isinstance(folds, Integral):  # the calibrator needs a column for every class, so every fold must contain all
            folds = min(int(folds), max(2, int(np.bincount(codes).min())))
            folds = folds if groups is None else StratifiedGroupKFold(folds)
        logits, predicted, models = [], [], []
        for train, test in check_cv(folds, y, classifier=True).split(X, y, None if groups is None else groups.numpy()):
            train, test = everything[train], everything[test]
            model = fitted(train)
            if len(model.classes_) != len(self.classes_):
                raise InputError(
                    "every class in every fold", "folds that lack a class", "use fewer or stratified folds"
                )
            logits.append(_logits_of(model, _safe_split(estimator, X, y, test)[0]))
            predicted.append(test)
            models.append(model)
        averaged = isinstance(_last_step(models[0]), VOTERS) if self.ensemble is None else self.ensemble
        self.estimators_ = models if averaged else [fitted(everything)]
        return torch.cat(logits), np.concatenate(predicted)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if not isinstance(self.estimator, str):
            tags.input_tags = get_tags(LogisticRegression() if self.estimator is None else self.estimator).input_tags
        return tags


def calibrator_of(given: Calibrator | str) -> Calibrator:
    """Return ``given`` if it is a calibrator, or a new calibrator if it is the name of one.

    Raises:
        InputError: If ``given`` is neither.
    """
    if isinstance(given, Calibrator):
        return given
    chosen = check_choice(given, name="calibrator", choices=[*SHORT_NAMES, *calibrators.__all__])
    made: Calibrator = getattr(calibrators, SHORT_NAMES.get(chosen, chosen))()
    return made


def _weight_argument(estimator: Any) -> str:
    """Return the name of the argument with which the classifier's ``fit`` accepts weights; "" if there is none.

    With metadata routing, the classifier or a part of it must request weights. Without it, a pipeline's weights carry the prefix of
    the pipeline's last step.
    """
    if get_config()["enable_metadata_routing"]:
        return "".join(get_routing_for_object(estimator).consumes("fit", ["sample_weight"]))
    if isinstance(estimator, BaseSearchCV):
        return _weight_argument(estimator.estimator)
    if isinstance(estimator, Pipeline):
        name, last = estimator.steps[-1]
        inner = _weight_argument(last)
        return f"{name}__{inner}" if inner else ""
    return "sample_weight" if has_fit_parameter(estimator, "sample_weight") else ""


def _last_step(model: Any) -> Any:
    """Return the classifier inside ``model`` (a pipeline, a search or the like) whose scores ``model`` returns."""
    if isinstance(model, Pipeline):
        return _last_step(model.steps[-1][1])
    if isinstance(model, DELEGATES):
        names = ("best_estimator_", "estimator_", "estimator")
        return _last_step(next(getattr(model, name) for name in names if hasattr(model, name)))
    return model


def _logits_of(model: Any, X: Any) -> torch.Tensor:
    """Return float64 logits (n, K): the decision function if it has one score per class, else log-probabilities."""
    last = _last_step(model)
    # with three classes, the three columns of "ovo" belong to pairs of classes; stacks and bags return those of their
    # parts
    parts = map(_last_step, (last, getattr(last, "final_estimator_", None), getattr(last, "estimator_", None)))
    shapes = [getattr(part, "decision_function_shape", None) for part in parts]
    of_pairs = "ovo" in shapes and len(model.classes_) > 2
    if hasattr(model, "decision_function") and not of_pairs:
        scores = np.asarray(model.decision_function(X), dtype=np.float64)
        if scores.ndim == 1:
            return torch.from_numpy(np.stack([np.zeros_like(scores), scores], axis=1))
        if scores.shape[1] == len(model.classes_):
            return torch.from_numpy(scores)
    if not hasattr(model, "predict_proba"):
        remedy = "use a classifier that gives one of them, such as soft instead of hard voting"
        if of_pairs:
            remedy = "set decision_function_shape='ovr', because 'ovo' gives a score for each pair of classes"
        raise InputError("a score for each class or predict_proba", type(last).__name__, remedy)
    with np.errstate(divide="ignore"):
        probs = np.asarray(model.predict_proba(X), dtype=np.float64)
        if isinstance(last, VOTERS):
            # treat these as frequencies of ten votes, and add one vote that is divided among all classes
            probs = (VOTES * probs + 1 / probs.shape[1]) / (VOTES + 1)
        logs = np.log(probs)
    return torch.from_numpy(np.maximum(logs, _LOWEST))
