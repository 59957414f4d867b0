"""The bridge to MAPIE against MAPIE itself and against the formula of the smallest sets."""

import numpy as np
import pytest
import torch
from tests.conftest import late, needs
from tests.draws import drawn

from calibrant import Predictions
from calibrant.errors import InputError

theirs, adapter, linear = late("mapie.classification"), late("calibrant.adapters.mapie"), late("sklearn.linear_model")
pytestmark = needs("mapie")


def rows(count: int, *, seed: int) -> Predictions:
    return Predictions.from_logits(*drawn(count, 4, seed=seed, spread=2))


@pytest.mark.parametrize("score", ["lac", "aps", "raps", "top_k"])
def test_sets_hold_the_true_class_as_often_as_asked(score: str) -> None:
    fresh = rows(4000, seed=1)
    sets = adapter.PredictionSets(rows(1000, seed=0), confidence=0.8, score=score)(fresh)  # type: ignore[arg-type]
    assert sets.shape == (4000, 4)
    held = float(sets.gather(1, fresh.need_labels()[:, None]).double().mean())
    assert 0.77 < held < (0.83 if score == "lac" else 0.95)


def test_the_smallest_sets_are_the_formulas() -> None:
    calibration, fresh = rows(500, seed=2), rows(300, seed=3)
    scores = np.sort(1 - calibration.probs.gather(1, calibration.need_labels()[:, None])[:, 0].numpy())
    quantile = scores[int(np.ceil(501 * 0.9)) - 1]
    sets = adapter.PredictionSets(calibration, confidence=0.9)(fresh)
    assert torch.equal(sets, torch.from_numpy(1 - fresh.probs.numpy() <= quantile))


def test_it_is_what_mapie_makes_of_a_classifier_with_these_probabilities() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(900, 3))
    y = (x @ rng.normal(size=(3, 3)) + rng.normal(size=(900, 3))).argmax(axis=1)
    model = linear.LogisticRegression().fit(x[:300], y[:300])
    sets = theirs.SplitConformalClassifier(model, confidence_level=0.9, prefit=True).conformalize(
        x[300:600], y[300:600]
    )
    ours = adapter.PredictionSets(Predictions.from_probs(model.predict_proba(x[300:600]), y[300:600]), confidence=0.9)
    found = ours(Predictions.from_probs(model.predict_proba(x[600:])))
    assert np.array_equal(found.numpy(), sets.predict_set(x[600:])[1][:, :, 0])


def test_what_it_cannot_use_is_refused() -> None:
    data = rows(50, seed=4)
    with pytest.raises(InputError, match="labelled"):
        adapter.PredictionSets(Predictions.from_logits(data.logits))
    with pytest.raises(InputError, match="confidence"):
        adapter.PredictionSets(data, confidence=1.0)
    with pytest.raises(InputError, match="score"):
        adapter.PredictionSets(data, score="best")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="predictions of 4 classes"):
        adapter.PredictionSets(data)(Predictions.from_logits(torch.randn(5, 3)))
