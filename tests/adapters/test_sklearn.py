"""The scikit-learn adapter: its own estimator checks, and honest probabilities from dishonest classifiers."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from calibrant.adapters.sklearn import CalibratedClassifier
from calibrant.calibrators import Identity, TemperatureScaling
from calibrant.errors import InputError

pytestmark = pytest.mark.filterwarnings(
    "ignore::calibrant.errors.BoundWarning",  # the checks hold separable toy data
    "ignore::sklearn.exceptions.ConvergenceWarning",
)


@parametrize_with_checks([CalibratedClassifier(cv=2), CalibratedClassifier(GaussianNB(), cv=3)])
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def split(load: Any) -> list[Any]:
    X, y = load(return_X_y=True)
    return train_test_split(X, y, test_size=0.4, random_state=0)


@pytest.mark.parametrize("load", [load_digits, load_breast_cancer])
def test_an_overconfident_classifier_becomes_honest_and_keeps_its_decisions(load: Any) -> None:
    X, X_test, y, y_test = split(load)
    plain = GaussianNB().fit(X, y)
    calibrated = CalibratedClassifier(GaussianNB()).fit(X, y)
    assert log_loss(y_test, calibrated.predict_proba(X_test)) < 0.6 * log_loss(y_test, plain.predict_proba(X_test))
    np.testing.assert_array_equal(calibrated.predict(X_test), plain.predict(X_test))
    assert calibrated.calibrator_.temperature > 2


def test_named_labels_weights_and_a_margin_classifier() -> None:
    X, y = make_classification(300, n_classes=3, n_informative=6, random_state=1)
    names = np.array(["ant", "bee", "cat"])[y]
    model = CalibratedClassifier(LinearSVC(), cv=3).fit(X, names, sample_weight=np.ones(300))
    assert set(model.predict(X)) <= set(names)
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X))


def test_prefit_and_logits_learn_the_temperature_of_the_library() -> None:
    X, X_val, y, y_val = split(load_digits)
    fitted = LogisticRegression(C=100, max_iter=200).fit(X, y)
    logits = fitted.decision_function(X_val)
    expected = TemperatureScaling().fit(torch.from_numpy(logits), torch.from_numpy(y_val)).temperature
    prefit = CalibratedClassifier(fitted, cv="prefit").fit(X_val, y_val)
    direct = CalibratedClassifier("logits").fit(logits, y_val)
    assert prefit.estimator_ is fitted
    assert prefit.calibrator_.temperature == pytest.approx(expected, rel=1e-9)
    assert direct.calibrator_.temperature == pytest.approx(expected, rel=1e-9)


def test_it_searches_over_calibrators_and_never_changes_the_one_given() -> None:
    X, _, y, _ = split(load_breast_cancer)
    given = TemperatureScaling()
    search = GridSearchCV(
        CalibratedClassifier(GaussianNB(), cv=3), {"calibrator": [given, Identity()]}, scoring="neg_log_loss", cv=3
    ).fit(X, y)
    assert isinstance(search.best_params_["calibrator"], TemperatureScaling)
    assert not given.fitted
    assert not clone(search.best_estimator_).calibrator.fitted


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (CalibratedClassifier("scores"), "a classifier or 'logits', got 'scores'"),
        (CalibratedClassifier("logits"), "one column of logits a class"),
        (CalibratedClassifier(GaussianNB(), cv="prefit"), "a fitted classifier with cv='prefit'"),
        (CalibratedClassifier(GaussianNB(), cv="prefitted"), "cv as a number, a splitter or 'prefit'"),
    ],
)
def test_misuse_gets_one_sentence(model: CalibratedClassifier, text: str) -> None:
    with pytest.raises(InputError, match=text):
        model.fit(np.random.default_rng(0).normal(size=(20, 4)), np.arange(20) % 2)
