"""The scikit-learn adapter: its own estimator checks, and honest probabilities from dishonest classifiers."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import late

from calibrant.calibrators import AutoCalibrator, Identity, TemperatureScaling
from calibrant.errors import InputError, UsageWarning

sklearn = late("sklearn")
base = late("sklearn.base")
compose = late("sklearn.compose")
datasets = late("sklearn.datasets")
ensemble = late("sklearn.ensemble")
feature_selection = late("sklearn.feature_selection")
frozen_estimators = late("sklearn.frozen")
linear_model = late("sklearn.linear_model")
metrics = late("sklearn.metrics")
model_selection = late("sklearn.model_selection")
multiclass = late("sklearn.multiclass")
naive_bayes = late("sklearn.naive_bayes")
pipeline = late("sklearn.pipeline")
preprocessing = late("sklearn.preprocessing")
svm = late("sklearn.svm")
estimator_checks = late("sklearn.utils.estimator_checks")
adapter = late("calibrant.adapters.sklearn")
pd = late("pandas")

pytestmark = pytest.mark.filterwarnings(
    "ignore::calibrant.errors.BoundWarning",  # the checks hold separable toy data
    "ignore::calibrant.errors.UsageWarning",  # and labels of one class
    "ignore::sklearn.exceptions.ConvergenceWarning",
)


@pytest.mark.parametrize("own", [pytest.param(False, marks=pytest.mark.slow), True])
def test_scikit_learns_own_checks(own: bool) -> None:
    model = of_bayes() if own else adapter.CalibratedClassifier(calibrator="temperature", cv=2)
    done = estimator_checks.check_estimator(model, on_skip=None, on_fail=None)
    assert [(one["check_name"], one["exception"]) for one in done if one["status"] not in ("passed", "skipped")] == []
    assert len(done) > 40


def logits_of(model: Any, X: Any) -> torch.Tensor:
    return torch.from_numpy(np.maximum(model.predict_log_proba(X), -36))


def of_bayes(**options: Any) -> Any:
    """Return naive Bayes, which is over-confident, with the temperature of three folds."""
    return adapter.CalibratedClassifier(naive_bayes.GaussianNB(), **{"calibrator": "temperature", "cv": 3, **options})


def split(data: str = "breast_cancer") -> list[Any]:
    X, y = getattr(datasets, f"load_{data}")(return_X_y=True)
    return model_selection.train_test_split(X, y, test_size=0.4, random_state=0)


@pytest.mark.parametrize("data", ["digits", "breast_cancer"])
def test_an_overconfident_classifier_becomes_honest_and_keeps_its_decisions(data: str) -> None:
    X, X_test, y, y_test = split(data)
    plain, calibrated = naive_bayes.GaussianNB().fit(X, y), of_bayes(cv=5).fit(X, y)
    before, after = (metrics.log_loss(y_test, model.predict_proba(X_test)) for model in (plain, calibrated))
    assert after < 0.6 * before
    np.testing.assert_array_equal(calibrated.predict(X_test), plain.predict(X_test))


def test_prefit_and_logits_learn_the_temperature_of_the_library() -> None:
    X, X_val, y, y_val = split("digits")
    fitted = linear_model.LogisticRegression(C=100, max_iter=200).fit(X, y)
    logits = fitted.decision_function(X_val)
    expected = TemperatureScaling().fit(torch.from_numpy(logits), torch.from_numpy(y_val)).temperature
    prefit = adapter.CalibratedClassifier(fitted, "temperature", cv="prefit").fit(X_val, y_val)
    direct = adapter.CalibratedClassifier("logits", "temperature").fit(logits, y_val)
    assert prefit.estimator_ is fitted
    assert prefit.calibrator_.temperature == pytest.approx(expected, rel=1e-9)
    assert direct.calibrator_.temperature == pytest.approx(expected, rel=1e-9)


def test_it_searches_over_calibrators_and_never_changes_the_one_given() -> None:
    X, _, y, _ = split()
    given = TemperatureScaling()
    choices = {"calibrator": [given, Identity()]}
    search = model_selection.GridSearchCV(of_bayes(), choices, scoring="neg_log_loss", cv=3).fit(X, y)
    assert isinstance(search.best_params_["calibrator"], TemperatureScaling)
    assert not given.fitted
    assert not base.clone(search.best_estimator_).calibrator.fitted


@pytest.mark.parametrize(
    ("estimator", "options", "text"),
    [
        ("scores", {}, "a classifier or 'logits', got 'scores'"),
        (None, {"cv": "prefitted"}, "cv as a number, a splitter or 'prefit'"),
        (None, {"calibrator": "isotonc"}, "did you mean 'isotonic'"),
    ],
)
def test_misuse_gets_one_sentence(estimator: Any, options: dict[str, Any], text: str) -> None:
    model = adapter.CalibratedClassifier(estimator, **options)
    with pytest.raises(InputError, match=text):
        model.fit(np.random.default_rng(0).normal(size=(20, 4)), np.arange(20) % 2)


def test_a_calibrator_may_be_named_and_a_forest_may_say_0_and_1() -> None:
    X, X_test, y, y_test = split()
    forest = ensemble.RandomForestClassifier(20, random_state=0)
    assert {0.0, 1.0} & set(forest.fit(X, y).predict_proba(X_test).ravel().tolist())
    probs = adapter.CalibratedClassifier(forest, "isotonic").fit(X, y).predict_proba(X_test)
    assert np.isfinite(np.log(probs[np.arange(len(y_test)), y_test])).all()


def test_left_to_itself_it_chooses_by_the_classifier_wherever_a_forest_stands() -> None:
    X, X_val, y, y_val = split()
    forest = ensemble.RandomForestClassifier(5, random_state=0)
    voting = (
        pipeline.make_pipeline(preprocessing.StandardScaler(), forest),
        frozen_estimators.FrozenEstimator(base.clone(forest).fit(X, y)),
        model_selection.GridSearchCV(forest, {"max_depth": [2, 4]}, cv=2),
        model_selection.GridSearchCV(pipeline.Pipeline([("last", naive_bayes.GaussianNB())]), {"last": [forest]}, cv=2),
    )
    for model in voting:
        assert isinstance(adapter.CalibratedClassifier(model, cv=2).fit(X_val, y_val).calibrator_, TemperatureScaling)
    assert isinstance(of_bayes(calibrator=None).fit(X, y).calibrator_, AutoCalibrator)


def test_groups_and_weights_travel_by_metadata_routing() -> None:
    X, _, y, _ = split()
    groups, weight = np.arange(len(y)) // 5, np.linspace(0.5, 2, len(y))
    with sklearn.config_context(enable_metadata_routing=True):
        inner = naive_bayes.GaussianNB().set_fit_request(sample_weight=True)
        model = adapter.CalibratedClassifier(inner, "temperature", cv=3).set_fit_request(
            sample_weight=True, groups=True
        )
        scaler = preprocessing.StandardScaler().set_fit_request(sample_weight=False)
        routed = pipeline.make_pipeline(scaler, model).fit(X, y, sample_weight=weight, groups=groups)
    scaled = preprocessing.StandardScaler().fit(X).transform(X)
    direct = of_bayes().fit(scaled, y, sample_weight=weight, groups=groups)
    expected = float(direct.calibrator_.temperature)
    assert float(routed[-1].calibrator_.temperature) == pytest.approx(expected, rel=1e-6)
    with sklearn.config_context(enable_metadata_routing=True):  # and on, into the steps of a pipeline
        inside = adapter.CalibratedClassifier(pipeline.make_pipeline(scaler, inner), "temperature", cv=3)
        inside.fit(X, y, sample_weight=weight, groups=groups)
        with pytest.warns(UsageWarning, match="takes no sample_weight"):
            of_bayes(cv=2).fit(X, y, sample_weight=weight)  # which requests none
    np.testing.assert_allclose(inside.estimator_[-1].class_prior_, direct.estimator_.class_prior_)
    plain = of_bayes().fit(scaled, y)
    assert float(plain.calibrator_.temperature) != pytest.approx(expected, rel=1e-6)
    with pytest.raises(InputError, match="one group per row"):
        of_bayes(cv=5).fit(X, y, groups=groups[:5])


def test_an_ensemble_averages_the_calibrated_probabilities_of_its_folds() -> None:
    X, X_test, y, _ = split()
    model = of_bayes(ensemble=True).fit(X, y)
    assert len(model.estimators_) == 3
    with torch.no_grad():
        each = [torch.softmax(model.calibrator_(logits_of(one, X_test)), dim=1).numpy() for one in model.estimators_]
    np.testing.assert_allclose(model.predict_proba(X_test), np.mean(each, axis=0), rtol=1e-9, atol=1e-15)
    for averaged, count in ((None, 3), (False, 1)):
        forest = adapter.CalibratedClassifier(ensemble.RandomForestClassifier(5), cv=3, ensemble=averaged)
        assert len(forest.fit(X, y).estimators_) == count


def test_out_of_fold_rows_that_are_all_right_do_not_drive_a_forests_temperature_to_its_bound() -> None:
    X = np.random.default_rng(0).normal(size=(60, 2)) + np.repeat([[-9.0], [9.0]], 30, axis=0)
    model = adapter.CalibratedClassifier(ensemble.RandomForestClassifier(10, random_state=0), cv=3).fit(
        X, np.repeat([0, 1], 30)
    )
    assert 0.05 < model.calibrator_.temperature < 1


def test_the_classifier_gets_the_data_as_they_are() -> None:
    X, _, y, _ = split()
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])
    frame["kind"] = np.where(frame["x0"] > 14, "large", "small")
    steps = (preprocessing.OneHotEncoder(), ["kind"])
    coded = compose.make_column_transformer(steps, remainder=preprocessing.StandardScaler())
    model = pipeline.make_pipeline(coded, linear_model.LogisticRegression())
    model = adapter.CalibratedClassifier(model, "temperature", cv=3).fit(frame, y)
    assert list(model.feature_names_in_) == list(frame.columns)
    assert model.predict_proba(frame).shape == (len(y), 2)
    gaps = np.where(np.arange(X.size).reshape(X.shape) % 7 == 0, np.nan, X)
    trees = ensemble.HistGradientBoostingClassifier(max_iter=5)
    boosted = adapter.CalibratedClassifier(trees, "temperature", cv=2).fit(gaps, y)
    assert np.isfinite(boosted.predict_proba(gaps)).all()


def test_a_splitter_that_is_no_partition_fits_on_the_rows_it_predicts_as_often_as_it_does() -> None:
    X, _, y, _ = split()
    once = of_bayes(cv=model_selection.ShuffleSplit(1, test_size=0.3, random_state=0))
    fits = [base.clone(once).fit(X, y).calibrator_.temperature for _ in range(3)]
    train, test = next(once.cv.split(X, y))
    scores = logits_of(naive_bayes.GaussianNB().fit(X[train], y[train]), X[test])
    assert fits == [pytest.approx(TemperatureScaling().fit(scores, y[test]).temperature)] * 3
    repeated = model_selection.RepeatedStratifiedKFold(n_splits=3, n_repeats=2, random_state=0)
    parts = list(repeated.split(X, y))
    scores = torch.cat([logits_of(naive_bayes.GaussianNB().fit(X[a], y[a]), X[b]) for a, b in parts])
    expected = TemperatureScaling().fit(scores, np.concatenate([y[b] for _, b in parts])).temperature
    assert of_bayes(cv=repeated).fit(X, y).calibrator_.temperature == pytest.approx(expected)


def test_scores_that_are_not_of_classes_are_refused() -> None:
    X, y = datasets.load_iris(return_X_y=True)
    hard = ensemble.VotingClassifier([("a", naive_bayes.GaussianNB()), ("b", linear_model.LogisticRegression())])
    for model, text in (
        (feature_selection.RFE(svm.SVC(kernel="linear", decision_function_shape="ovo")), "'ovr'"),
        (hard, "soft instead of hard voting"),
        (multiclass.OutputCodeClassifier(svm.LinearSVC()), "a score for each class"),
    ):
        with pytest.raises(InputError, match=text):
            adapter.CalibratedClassifier(model, "temperature", cv=3).fit(X, y)
