"""Ensemble temperature, against brute force and scipy's constrained optimiser."""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from tests.draws import drawn
from torch import Tensor

from calibrant.calibrators import (
    AutoCalibrator,
    Calibrator,
    EnsembleTemperatureScaling,
    FocalTemperatureScaling,
    KeepDecision,
    TemperatureScaling,
)
from calibrant.calibrators.simplex import MixtureChunk, fit_mixture_weights
from calibrant.errors import BoundWarning
from calibrant.rows import MemoryRows


def sample(rows: int = 500, classes: int = 4, *, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    """Return logits and labels from softmax(z / 1.7), a share ``noise`` of them replaced by random classes."""
    g = torch.Generator().manual_seed(0)
    z = 4 * torch.randn(rows, classes, generator=g, dtype=torch.float64)
    y = torch.multinomial(torch.softmax(z / 1.7, 1), 1, generator=g)[:, 0]
    lost = torch.rand(rows, generator=g) < noise
    return z, torch.where(lost, torch.randint(classes, (rows,), generator=g), y)


def true_class_probs(z: Tensor, y: Tensor, temperature: float) -> np.ndarray:
    return torch.softmax(z / temperature, 1).gather(1, y[:, None])[:, 0].numpy()


def test_a_prior_pulls_log_t_as_its_formula_says() -> None:
    z, y = sample(50)
    fitted = TemperatureScaling(prior=0.5).fit(z, y).temperature

    def objective(u: np.ndarray) -> float:
        return float(-np.log(true_class_probs(z, y, math.exp(u[0]))).sum() + u[0] ** 2 / (2 * 0.25))

    brute = minimize(objective, [0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12})
    assert math.log(fitted) == pytest.approx(brute.x[0], abs=1e-5)


def test_ensemble_weights_are_at_least_as_good_as_scipys() -> None:
    z, y = sample()
    fitted = EnsembleTemperatureScaling().fit(z, y)
    p = np.stack([true_class_probs(z, y, fitted.temperature), true_class_probs(z, y, 1.0), np.full(500, 0.25)], axis=1)

    def objective(w: np.ndarray) -> float:
        return float(-np.log(np.maximum(p @ w, 1e-12)).mean())

    brute = minimize(
        objective, np.full(3, 1 / 3), method="SLSQP", bounds=[(0, 1)] * 3, constraints={"type": "eq", "fun": lambda w: w.sum() - 1}
    )  # fmt: skip
    assert objective(fitted.weights.numpy()) <= brute.fun + 1e-7
    expected = p @ fitted.weights.numpy()
    ours = fitted(z).gather(1, y[:, None])[:, 0].exp()
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-10)


def weights_of(p: Tensor) -> Tensor:
    rows = MemoryRows(
        [MixtureChunk.of(p, torch.ones(len(p), dtype=torch.float64))],
        classes=p.shape[1],
        count=len(p),
        mass=None,
        device=p.device,
    )
    return fit_mixture_weights(rows, members=p.shape[1], mass=float(len(p)))


def test_mixture_weights_with_a_known_answer() -> None:
    # −(¾ log w + ¼ log(1 − w)): the best weight is the share of rows that only the first component can explain
    assert float(weights_of(torch.tensor([[1.0, 0.0]] * 3 + [[0.0, 1.0]], dtype=torch.float64))[0]) == pytest.approx(
        0.75, abs=1e-6
    )


@pytest.mark.parametrize("seed", range(6))
def test_mixture_weights_are_certified_on_random_tables(seed: int) -> None:
    """No component could gain: Σ s p_m / (Σ w p) ≤ 1 for each m (Karush, Kuhn, Tucker)."""
    g = torch.Generator().manual_seed(seed)
    p = torch.rand(50, 2 + seed % 5, generator=g, dtype=torch.float64) ** (1 + seed)
    p[:, -1] = p[:, 0] if seed % 3 == 0 else p[:, -1]  # two components that are the same
    w = weights_of(p)
    assert float(w.sum()) == pytest.approx(1)
    assert float((p / (p @ w)[:, None]).mean(dim=0).max()) <= 1 + 1e-6


@pytest.mark.parametrize("keep", [EnsembleTemperatureScaling(), KeepDecision(AutoCalibrator())])
def test_logits_worse_than_chance_keep_their_decision(keep: Calibrator) -> None:
    # the uniform part takes nearly all weight, and in float32 the rest would vanish beside it
    g = torch.Generator().manual_seed(0)
    z = torch.randn(200, 4, generator=g)
    y = torch.multinomial(torch.softmax(-3 * z, dim=1), 1, generator=g)[:, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BoundWarning)
        keep.fit(z, y)
    assert torch.equal(keep(z).argmax(dim=1), z.argmax(dim=1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("keep", [EnsembleTemperatureScaling(), FocalTemperatureScaling(grid=[1.0, 2.0, 4.0])])
def test_half_precision_of_many_classes_keeps_the_decision(keep: Calibrator, dtype: torch.dtype) -> None:
    z, y = drawn(500, 1000, spread=2, dtype=torch.float32)
    z = z.to(dtype)
    assert torch.equal(keep.fit(z, y)(z).argmax(dim=1), z.argmax(dim=1))
