"""Vector, matrix, Dirichlet and structured scaling against scikit-learn, autograd and plain formulas minimised by scipy."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from tests.conftest import late
from torch import Tensor

from calibrant._core import minimise
from calibrant.calibrators import (
    DirichletCalibration,
    MatrixScaling,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    TemperatureScaling,
    VectorScaling,
)
from calibrant.calibrators.affine.fit import AffineChunk, RidgeAffine

linear_model = late("sklearn.linear_model")

F64 = torch.float64


def sample(rows: int = 400, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return logits and labels drawn from softmax(scaled, shifted and mixed logits)."""
    g = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(rows, classes, generator=g, dtype=F64)
    true = z * torch.linspace(0.4, 0.9, classes, dtype=F64) + torch.linspace(-0.5, 0.5, classes, dtype=F64)
    true = true + 0.2 * z.roll(1, dims=1)
    return z, torch.multinomial(torch.softmax(true, 1), 1, generator=g)[:, 0]


def mean_loss(logits: np.ndarray, labels: np.ndarray) -> float:
    shifted = logits - logits.max(1, keepdims=True)
    return float(np.mean(np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(labels)), labels]))


def tempered(z: np.ndarray, temperature: float, rows: int) -> np.ndarray:
    """Return log((1 − ε) softmax(z / T) + ε / K), ε = 1 / (N + 1), as the paper's code prepares its inputs."""
    p = np.exp(z / temperature - (z / temperature).max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return np.log((1 - 1 / (rows + 1)) * p + 1 / (rows + 1) / z.shape[1])


def test_matrix_scaling_without_ridge_is_scikit_learns_logistic_regression() -> None:
    z, y = sample()
    peer = linear_model.LogisticRegression(C=np.inf, tol=1e-10, max_iter=5000).fit(z.numpy(), y.numpy())
    # W and b are determined up to a common row: a tiny ridge fixes it, the probabilities hardly know
    ours = torch.softmax(MatrixScaling(ridge=1e-6).fit(z, y)(z), 1)
    np.testing.assert_allclose(ours.numpy(), peer.predict_proba(z.numpy()), atol=1e-5)


# Inputs, the ridges of Σ D_kk², Σ_{j≠k} D_jk² and Σ b_k² in the mean log-loss of A x + b, A = I + D, for 400 rows of three classes.
FORMULAS: dict[
    str, tuple[Callable[[], RidgeAffine], Callable[[np.ndarray, float], np.ndarray], tuple[float, float, float]]
] = {
    "vector": (lambda: VectorScaling(ridge=2.0), lambda z, t: z / t, (2.0 / 400, 0.0, 2.0 / 400)),
    "structured vector": (StructuredVectorScaling, lambda z, t: tempered(z, t, 400), (3 / 400, 0.0, 3 / 400)),
    "structured matrix": (StructuredMatrixScaling, lambda z, t: tempered(z, t, 400), (3 / 400, 6 / 400, 3 / 400)),
    "Dirichlet": (
        lambda: DirichletCalibration(off_diagonal=0.3, intercept=0.1),
        lambda z, t: np.log(np.exp(z) / np.exp(z).sum(1, keepdims=True)),
        (1 / 400, 0.3 / 6, 0.1 / 3),
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_it_is_at_the_minimum_of_its_formula(name: str) -> None:
    z, y = sample()
    make, inputs, (on, off, beside) = FORMULAS[name]
    fitted, temperature = make().fit(z, y), TemperatureScaling().fit(z, y).temperature
    x, eye = inputs(z.numpy(), temperature), np.eye(3)
    diagonal = fitted.scale.dim() == 1

    def objective(theta: np.ndarray) -> float:
        d, b = np.diag(theta[:3]) if diagonal else theta[:-3].reshape(3, 3), theta[-3:]
        ridge = on * (d[eye == 1] ** 2).sum() + off * (d[eye == 0] ** 2).sum() + beside * (b**2).sum()
        return mean_loss(x @ (eye + d).T + b, y.numpy()) + float(ridge)

    scale = fitted.scale.numpy() * (temperature if name == "vector" else 1.0)
    ours = np.r_[scale - 1 if diagonal else (scale - eye).ravel(), fitted.bias.numpy()]
    brute = minimize(objective, np.zeros_like(ours), method="BFGS", options={"gtol": 1e-7})
    assert objective(ours) <= brute.fun + 1e-12
    np.testing.assert_allclose(ours, brute.x, atol=1e-4)  # scipy's finite differences
    assert fitted.gradient <= minimise.LBFGS_TOLERANCE


@pytest.mark.parametrize("diagonal", [True, False])
def test_gradient_and_hessian_are_those_of_autograd(diagonal: bool) -> None:
    z, y = sample(50)
    weight = torch.rand(50, dtype=F64, generator=torch.Generator().manual_seed(3))
    theta = torch.linspace(-0.5, 0.5, 6 if diagonal else 12, dtype=F64)

    def value(t: Tensor) -> Tensor:
        logits = z * (1 + t[:3]) + t[3:] if diagonal else z + z @ t.view(3, 4)[:, :3].T + t.view(3, 4)[:, 3]
        return (weight * torch.nn.functional.cross_entropy(logits, y, reduction="none")).sum()

    chunk = AffineChunk(z, y, weight)
    loss, gradient = (chunk.diagonal_loss if diagonal else chunk.matrix_loss)(theta)
    same, also, hessian = (chunk.diagonal_derivatives if diagonal else chunk.matrix_derivatives)(theta)
    torch.testing.assert_close((same, also), (loss, gradient), rtol=1e-12, atol=1e-12)
    assert float(loss) == pytest.approx(float(value(theta)), abs=1e-11)
    torch.testing.assert_close(gradient, torch.func.grad(value)(theta), rtol=0, atol=1e-11)
    torch.testing.assert_close(hessian, torch.func.hessian(value)(theta), rtol=0, atol=1e-11)


@pytest.mark.parametrize("make", [MatrixScaling, DirichletCalibration, StructuredMatrixScaling])
def test_a_class_at_0_that_no_row_of_the_fit_had_does_not_move_the_others(make: Callable[[], MatrixScaling]) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(5, (600,), generator=generator)
    logits = torch.randn(600, 5, generator=generator, dtype=torch.float64)
    logits[torch.arange(600), labels] += 3
    logits = 3 * logits.log_softmax(dim=1)
    rounded = logits.softmax(dim=1).round(decimals=4)
    answer = make().fit(logits, labels)(rounded.log())
    assert torch.equal(answer.isneginf(), rounded == 0)
    plain = make().fit(logits, labels)(logits)
    assert (answer.argmax(dim=1) != plain.argmax(dim=1)).double().mean() < 0.02
