"""Group scaling: partial pooling, its choice of strength, its codes, and what it refuses."""

from typing import Any

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.calibrators import GroupScaling, TemperatureScaling
from calibrant.errors import InputError
from calibrant.metrics import NLL


def sample(
    rows: int = 3000, classes: int = 3, *, effect: float = 1.0, seed: int = 0, columns: int = 1, kind: str = "names"
) -> Predictions:
    """Return logits whose groups are over-confident, biased and calibrated, more so with ``effect``."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(rows, classes)) * 2
    codes = rng.integers(0, 3, size=(rows, columns))
    slope = np.exp(-0.5 * effect * (codes == 0)).prod(axis=1)
    bias = effect * ((codes == 1).sum(axis=1))[:, None] * np.eye(classes)[0]
    true = z * slope[:, None] + bias
    p = np.exp(true - true.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    y = (p.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1).clip(max=classes - 1)
    words = np.array(["low", "mid", "high"])
    features = {f"c{at}": words[codes[:, at]] if kind == "names" else codes[:, at] - 7 for at in range(columns)}
    return Predictions.from_logits(z, y, features=features)


def pooled_loss(fitted: GroupScaling, data: Predictions, mass: float) -> torch.Tensor:
    """Return the objective at what was learned, made anew from its definition, with a graph."""
    assert data.features is not None
    codes = torch.stack([one.codes(data.features) for one in fitted._known], dim=1)
    starts = np.cumsum([0, *(len(one) for one in fitted._known)])[:-1]
    codes = codes + torch.from_numpy(starts)
    x = data.logits * fitted.slope + fitted.bias_
    z = (1 + fitted.slopes[codes].sum(dim=1, keepdim=True)) * x + fitted.biases[codes].sum(dim=1)
    loss = torch.nn.functional.cross_entropy(z, data.need_labels())
    return loss + fitted.strength_used / mass * (fitted.slopes.square().sum() + fitted.biases.square().sum())


@pytest.mark.parametrize("columns", [1, 2])
def test_the_gradient_is_0_by_automatic_differentiation(columns: int) -> None:
    data = sample(600, columns=columns)
    fitted = GroupScaling(strength=2.0).fit(data)
    for name in ("slopes", "biases"):
        getattr(fitted, name).requires_grad_(True)
    pooled_loss(fitted, data, 600.0).backward()
    for name in ("slopes", "biases"):
        assert float(getattr(fitted, name).grad.abs().max()) < 1e-8
    assert fitted.gradient < 1e-8


def test_two_groups_by_hand() -> None:
    z = torch.tensor([[2.0, 0.0]]).repeat(400, 1)
    data = Predictions.from_logits(
        z, [0] * 180 + [1] * 20 + [0] * 120 + [1] * 80, features={"site": ["a"] * 200 + ["b"] * 200}
    )
    free = data.calibrated_by(GroupScaling(strength=1e-6).fit(data), allow_fit_rows=True).probs[:, 0]
    assert (float(free[0]), float(free[-1])) == pytest.approx((0.9, 0.6), abs=1e-4)
    held = data.calibrated_by(GroupScaling(strength=1e9).fit(data), allow_fit_rows=True).probs[:, 0]
    assert (float(held[0]), float(held[-1])) == pytest.approx(
        (0.75, 0.75), abs=0.01
    )  # the fit for all rows has a prior


def test_the_groups_gain_where_there_are_any() -> None:
    data, fresh = sample(), sample(seed=1)
    grouped, whole = GroupScaling().fit(data), TemperatureScaling().fit(data)
    assert grouped.strength_used < 100
    assert NLL()(fresh.calibrated_by(grouped)) < NLL()(fresh.calibrated_by(whole)) - 0.01
    temperatures = {one.value: one.temperature for one in grouped.groups}
    assert grouped.temperature == pytest.approx(whole.temperature, rel=0.1)
    assert temperatures["low"] == pytest.approx(np.exp(0.5), rel=0.15)
    assert temperatures["high"] == pytest.approx(1.0, rel=0.15)
    # the best fit of these rows has .75 and .93 between the first class and the others
    assert {one.value: one.bias[0] - (one.bias[1] + one.bias[2]) / 2 for one in grouped.groups}["mid"] == pytest.approx(
        0.9, abs=0.25
    )


def test_it_abstains_where_there_are_none() -> None:
    abstained = sum(
        not np.isfinite(GroupScaling().fit(sample(400, effect=0.0, seed=seed)).strength_used) for seed in range(5)
    )
    assert abstained >= 4


def test_columns_add_up_and_no_slope_is_negative() -> None:
    data = sample(4000, columns=2)
    fitted = GroupScaling(strength=0.1).fit(data)
    z = data.logits[:1]
    one, other, both, none = (
        fitted(z, {"c0": [a], "c1": [b]}) for a, b in (("low", "?"), ("?", "mid"), ("low", "mid"), ("?", "?"))
    )
    assert torch.allclose(both - none, (one - none) + (other - none), atol=1e-12)
    rng = np.random.default_rng(0)
    backwards = Predictions.from_logits(  # in group 0 the logits say the opposite of the truth
        logits := rng.normal(size=(900, 2)) * 2,
        np.where(np.arange(900) % 3 == 0, logits.argmin(axis=1), logits.argmax(axis=1)),
        features={"a": np.arange(900) % 3, "b": np.arange(900) % 3},
    )
    fitted = GroupScaling(strength=0.01).fit(backwards)
    answer = fitted(torch.tensor([[3.0, 0.0], [0.0, 3.0]]), {"a": [0, 0], "b": [0, 0]})
    assert torch.allclose(answer[0], answer[1])  # a slope of 0: the logits say nothing


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ({"x": np.linspace(0, 1, 60)}, "numpy.digitize"),
        ({"x": np.arange(60) * 10**6, "y": np.arange(60)}, "expected at most 1024 parameters|leave out"),
    ],
)
def test_what_cannot_be_fitted_is_refused(features: dict[str, Any], words: str) -> None:
    z = torch.randn(60, 20, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match=words):
        GroupScaling().fit(Predictions.from_logits(z, torch.arange(60) % 20, features=features))
