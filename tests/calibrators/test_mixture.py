"""Weights of mixtures and ensemble temperature scaling, against known answers and scipy's constrained optimiser."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from tests.draws import drawn

from calibrant.calibrators import (
    Calibrator,
    EnsembleTemperatureScaling,
    FocalTemperatureScaling,
)
from calibrant.calibrators.temperature import fit_mixture_weights


def test_ensemble_weights_are_at_least_as_good_as_scipys() -> None:
    z, y = drawn(500, sharp=1.7)
    y[::10] = torch.randint(4, (50,), generator=torch.Generator().manual_seed(1))
    fitted = EnsembleTemperatureScaling().fit(z, y)
    tempered, raw = (torch.softmax(z / t, 1).gather(1, y[:, None])[:, 0].numpy() for t in (fitted.temperature, 1.0))
    p = np.stack([tempered, raw, np.full(500, 0.25)], axis=1)

    def objective(w: np.ndarray) -> float:
        return float(-np.log(np.maximum(p @ w, 1e-12)).mean())

    on_simplex = {"type": "eq", "fun": lambda w: w.sum() - 1}
    brute = minimize(objective, np.full(3, 1 / 3), method="SLSQP", bounds=[(0, 1)] * 3, constraints=on_simplex)
    assert objective(fitted.weights.numpy()) <= brute.fun + 1e-7
    ours = fitted(z).gather(1, y[:, None])[:, 0].exp()
    np.testing.assert_allclose(ours.numpy(), p @ fitted.weights.numpy(), rtol=1e-10)


def test_mixture_weights_with_a_known_answer() -> None:
    # −(¾ log w + ¼ log(1 − w)): the best weight is the share of rows that only the first component can explain
    p = torch.tensor([[1.0, 0.0]] * 3 + [[0.0, 1.0]], dtype=torch.float64)
    assert fit_mixture_weights(p, torch.ones(4).double()).tolist() == pytest.approx([0.75, 0.25], abs=1e-6)
    assert fit_mixture_weights(p, torch.tensor([1.0, 1, 1, 6]).double()).tolist() == pytest.approx(
        [1 / 3, 2 / 3], abs=1e-6
    )


@pytest.mark.parametrize("seed", range(6))
def test_mixture_weights_are_certified_on_random_tables(seed: int) -> None:
    """No component could gain: mean p_m / (Σ w p) ≤ 1 for each m (Karush, Kuhn, Tucker)."""
    g = torch.Generator().manual_seed(seed)
    p = torch.rand(50, 2 + seed % 5, generator=g, dtype=torch.float64) ** (1 + seed)
    p[:, -1] = p[:, 0] if seed % 3 == 0 else p[:, -1]  # two components that are the same
    w = fit_mixture_weights(p, torch.ones(50).double())
    assert float(w.sum()) == pytest.approx(1)
    assert float((p / (p @ w)[:, None]).mean(dim=0).max()) <= 1 + 1e-6


@pytest.mark.parametrize("seed", [1, 11])
def test_weights_of_nearly_equal_components_are_found(seed: int) -> None:
    """Nine smooth curves that differ by a tenth: the search takes a hundred steps and more."""
    g = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(3000, generator=g, dtype=torch.float64)
    event = torch.rand(3000, generator=g, dtype=torch.float64) < torch.sigmoid(0.8 * z + 0.3)
    spread, middle = torch.tensor([0.1, 0.1, 2.0]), torch.tensor([0.8, 0.3, 1.0])
    a, b, c = (spread * torch.randn(9, 3, generator=g, dtype=torch.float64) + middle).T
    p = torch.sigmoid(a * z[:, None] + b + 0.05 * torch.sin(c * z[:, None]))
    p = torch.where(event[:, None], p, 1 - p)
    w = fit_mixture_weights(p, torch.ones(3000).double())
    assert float((p / (p @ w)[:, None]).mean(dim=0).max()) <= 1 + 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("keep", [EnsembleTemperatureScaling(), FocalTemperatureScaling(gammas=[1.0])])
def test_half_precision_of_many_classes_keeps_the_decision(keep: Calibrator, dtype: torch.dtype) -> None:
    z, y = drawn(500, 1000, spread=2, dtype=torch.float32)
    z = z.to(dtype)
    assert torch.equal(keep.fit(z, y)(z).argmax(dim=1), z.argmax(dim=1))
