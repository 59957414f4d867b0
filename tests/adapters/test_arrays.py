"""ArrayCalibrator: what a harness that calls ``fit`` and ``predict_proba`` gets."""

import numpy as np
import pytest
import torch

from calibrant.adapters.arrays import ArrayCalibrator
from calibrant.calibrators import HistogramBinning, TemperatureScaling
from calibrant.errors import InputError, NotFittedError

Arrays = tuple[np.ndarray, np.ndarray]


def too_sure(rows: int = 400, classes: int = 3, *, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    truth = rng.dirichlet(np.ones(classes), size=rows)
    labels = (truth.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1)
    return truth**3 / (truth**3).sum(axis=1, keepdims=True), labels


def test_it_gives_what_the_calibrator_gives_on_log_probabilities() -> None:
    p, y = too_sure()
    new, _ = too_sure(seed=1)
    given = TemperatureScaling()
    answer = ArrayCalibrator(given).fit(p, y).predict_proba(new)
    alone = TemperatureScaling().fit(torch.from_numpy(p).log(), torch.from_numpy(y))
    expected = torch.softmax(alone(torch.from_numpy(new).log()), dim=1).numpy()
    np.testing.assert_allclose(answer, expected, atol=1e-12)
    assert answer.dtype == np.float64
    assert not given.fitted  # the harness may use one object for many sets


def test_one_column_is_the_probability_of_class_one() -> None:
    p, y = too_sure(classes=2)
    one, two = (ArrayCalibrator(TemperatureScaling()).fit(part, y).predict_proba(part) for part in (p[:, 1], p))
    assert one.shape == (400, 2)
    np.testing.assert_allclose(one, two, atol=1e-9)
    np.testing.assert_array_equal(ArrayCalibrator(TemperatureScaling()).fit(p[:, 1:], y).predict_proba(p[:, 1]), one)


def test_exact_zeros_at_the_label_are_served() -> None:
    p, y = too_sure(150)
    p = np.where(p < 0.02, 0.0, p)
    p = p / p.sum(axis=1, keepdims=True)
    assert (p[np.arange(len(y)), y] == 0).any()
    answer = ArrayCalibrator().fit(p, y).predict_proba(p)
    assert (answer > 0).all()
    np.testing.assert_allclose(answer.sum(axis=1), 1, atol=1e-12)


def test_a_method_of_the_top_label_is_served() -> None:
    p, y = too_sure()
    answer = ArrayCalibrator(HistogramBinning()).fit(p, y).predict_proba(p)
    np.testing.assert_allclose(answer.sum(axis=1), 1, atol=1e-9)
    assert np.abs(answer - p).max() > 0.05


def test_what_is_wrong_is_told_in_a_sentence() -> None:
    p, y = too_sure()
    with pytest.raises(NotFittedError, match=r"call fit\(p_cal, y_cal\) first"):
        ArrayCalibrator().predict_proba(p)
    with pytest.raises(InputError, match="expected calibrator as a calibrator, got"):
        ArrayCalibrator("auto")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="use from_logits"):
        ArrayCalibrator().fit(np.log(p), y)
    with pytest.raises(InputError, match=r"shape \(N, 3\) as in fit, got \(400, 2\)"):
        ArrayCalibrator(TemperatureScaling()).fit(p, y).predict_proba(p[:, :2] / p[:, :2].sum(axis=1, keepdims=True))


@pytest.mark.parametrize("probs", [np.array(["a"] * 4), np.array([object()] * 4), np.array([None] * 4)])
def test_an_array_of_no_numbers_is_refused(probs: object) -> None:
    with pytest.raises(InputError, match="expected probabilities as a numeric tensor or array"):
        ArrayCalibrator(TemperatureScaling()).fit(probs, [0, 1, 1, 0])
