"""A slope and a bias by features: an independent logistic regression, hand-made data, and what is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.calibrators import FeatureScaling, TemperatureScaling
from calibrant.errors import InputError
from calibrant.metrics import NLL


def answers(rows: int, seed: int) -> Predictions:
    """Return scores of answers whose probability of being right is σ(0.5 s − 0.8 (length − 5) / 3 + 0.2 s (length − 5) / 3)."""
    rng = np.random.default_rng(seed)
    s, length = rng.normal(size=rows) * 2, rng.integers(1, 11, rows)
    z = (length - 5) / 3
    right = rng.random(rows) < 1 / (1 + np.exp(-(0.5 * s - 0.8 * z + 0.2 * s * z)))
    kind = np.where(rng.random(rows) < 0.5, "a", "b")
    return Predictions.from_binary_logits(torch.tensor(s), right.astype(int), features={"length": length, "kind": kind})


def test_with_two_classes_it_is_the_logistic_regression_of_scores_features_and_products() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    data = answers(2000, 0)
    s, length = (data.logits[:, 1] - data.logits[:, 0]).numpy(), data.features["length"].double().numpy()
    z = (length - length.mean()) / length.std()
    columns = np.stack([s, s * z, z], axis=1)
    other = linear_model.LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(
        columns, data.need_labels().numpy()
    )
    fitted = FeatureScaling(["length"], ridge=1e-9).fit(data)
    ours = data.calibrated_by(fitted, allow_fit_rows=True).probs[:, 1]
    assert torch.allclose(
        ours, torch.tensor(other.predict_proba(columns)[:, 1]), atol=2e-5
    )  # its prior on a₀, b₀: 1e-3 rows
    assert fitted.gradient < 1e-7


def test_it_gains_on_rows_it_has_not_seen_and_finds_the_columns_of_numbers() -> None:
    fitted = FeatureScaling().fit(answers(1000, 1))
    test = answers(4000, 2)
    plain = TemperatureScaling().fit(answers(1000, 1))
    assert "features length)" in repr(fitted)
    moved = replace(test, features={"length": test.features["length"] + 1000})
    again, shifted = FeatureScaling(["length"]).fit(test), FeatureScaling(["length"]).fit(moved)
    torch.testing.assert_close(shifted.slopes, again.slopes)
    assert NLL()(test.calibrated_by(fitted)) < NLL()(test.calibrated_by(plain)) - 0.05


def test_with_more_classes_each_row_has_a_temperature_of_its_own() -> None:
    rng = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(6000, 5, generator=rng, dtype=torch.float64)
    length = torch.randint(0, 2, (6000,), generator=rng)
    temperature = torch.where(length > 0, 3.0, 1.0)
    y = torch.multinomial(torch.softmax(z / temperature[:, None], dim=1), 1, generator=rng)[:, 0]
    data = Predictions.from_logits(z, y, features={"length": length})
    fitted = FeatureScaling().fit(data)
    after = data.calibrated_by(fitted, allow_fit_rows=True)
    found = (z[:, 0] - z[:, 1]) / (after.logits[:, 0] - after.logits[:, 1])
    assert found[length == 0].mean().item() == pytest.approx(1.0, rel=0.05)
    assert found[length == 1].mean().item() == pytest.approx(3.0, rel=0.1)


def test_features_beyond_their_range_are_held_at_its_end() -> None:
    fitted = FeatureScaling(["length"]).fit(answers(500, 4))
    z = torch.tensor([[0.0, 1.0]])
    assert torch.equal(fitted(z, {"length": [10]}), fitted(z, {"length": [10_000]}))


def test_separable_features_have_a_finite_fit() -> None:
    length = torch.arange(200)
    data = Predictions.from_logits(
        torch.zeros(200, 2), (length >= 100).long(), features={"length": length}, unchecked_kind=True
    )
    after = data.calibrated_by(FeatureScaling().fit(data), allow_fit_rows=True)
    assert bool(torch.isfinite(after.logits).all())
    assert bool((after.predicted == data.labels).all())


def test_a_constant_feature_and_no_features_change_nothing() -> None:
    data = answers(400, 5)
    constant = Predictions.from_logits(data.logits, data.labels, features={"c": torch.full((400,), 1e9) / 3})
    with_it = constant.calibrated_by(FeatureScaling().fit(constant), allow_fit_rows=True)
    bare = FeatureScaling().fit(data.logits, data.labels)
    assert torch.allclose(with_it.logits, bare(data.logits), atol=1e-9)
    assert not bare.needs_features


def test_what_cannot_be_a_feature_is_refused() -> None:
    data = answers(100, 6)
    with pytest.raises(InputError, match="numbers in the feature 'kind', got names"):
        FeatureScaling(["kind"]).fit(data)
    holed = Predictions.from_logits(data.logits, data.labels, features={"x": [math.nan] * 100})
    with pytest.raises(InputError, match="finite numbers in the feature 'x'"):
        FeatureScaling().fit(holed)
    with pytest.raises(InputError, match="two classes for a bias"):
        FeatureScaling(bias=True).fit(torch.randn(50, 3), torch.arange(50) % 3)
