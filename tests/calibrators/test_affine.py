"""Vector, matrix, Dirichlet, structured, bias and kernel scaling against scikit-learn, autograd and formulas minimised by SciPy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.draws import drawn
from torch import Tensor
from torch.nn.functional import cross_entropy

from calibrant.calibrators import (
    BiasScaling,
    DirichletCalibration,
    KernelScaling,
    MatrixScaling,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    TemperatureScaling,
    VectorScaling,
    affine,
    kernel,
)
from calibrant.calibrators.affine import AffineRows
from calibrant.errors import FitError, UsageWarning

F64 = torch.float64


def sample(rows: int = 400, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return logits and labels drawn from softmax(scaled, shifted and mixed logits)."""
    g = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(rows, classes, generator=g, dtype=F64)
    true = z * torch.linspace(0.4, 0.9, classes, dtype=F64) + torch.linspace(-0.5, 0.5, classes, dtype=F64)
    return z, torch.multinomial(torch.softmax(true + 0.2 * z.roll(1, dims=1), 1), 1, generator=g)[:, 0]


def tempered(z: np.ndarray, temperature: float, rows: int) -> np.ndarray:
    """Return log((1 − ε) softmax(z / T) + ε / K), ε = 1 / (N + 1), as the paper's code prepares its inputs."""
    p = np.exp(z / temperature)
    p /= p.sum(1, keepdims=True)
    return np.log((1 - 1 / (rows + 1)) * p + 1 / (rows + 1) / z.shape[1])


# Inputs, and the ridges of Σ D_kk², Σ_{j≠k} D_jk² and Σ b_k² in the mean log-loss of A x + b, A = I + D, for 400 rows of three classes.
FORMULAS: dict[str, tuple[Callable[[], Any], Callable[..., np.ndarray], tuple[float, float, float]]] = {
    "vector": (lambda: VectorScaling(ridge=2.0), lambda z, t: z / t, (2 / 400, 0.0, 2 / 400)),
    "matrix": (lambda: MatrixScaling(ridge=2.0), lambda z, t: z / t, (2 / 400, 2 / 400, 2 / 400)),
    "vector without ridge": (lambda: VectorScaling(ridge=0.0), lambda z, t: z / t, (0.0, 0.0, 0.0)),
    "matrix without ridge": (lambda: MatrixScaling(ridge=0.0), lambda z, t: z / t, (0.0, 0.0, 0.0)),
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
    x, eye = torch.from_numpy(inputs(z.numpy(), temperature)), torch.eye(3, dtype=F64)
    unit = temperature if name.startswith(("vector", "matrix")) else 1.0
    scale, diagonal = fitted.scale * unit, fitted.scale.dim() == 1

    def objective(theta: Tensor) -> Tensor:
        a, b = theta[:-3] if diagonal else theta[:-3].view(3, 3), theta[-3:]
        whole = torch.diag(a) if diagonal else a
        d = whole - eye
        ridge = on * (d * eye).square().sum() + off * (d * (1 - eye)).square().sum() + beside * b.square().sum()
        return cross_entropy(x @ whole.T + b, y) + ridge

    found = torch.cat([scale.reshape(-1), fitted.bias])
    assert float(torch.func.grad(objective)(found).abs().max()) < 1e-10
    assert fitted.gradient < 1e-10
    torch.testing.assert_close(
        fitted(z).softmax(1), (x @ (torch.diag(scale) if diagonal else scale).T + fitted.bias).softmax(1)
    )


@pytest.mark.parametrize("structure", ["diagonal", "slope", "full"])
def test_gradient_and_hessian_are_those_of_autograd(structure: str) -> None:
    z, y = sample(50)
    g = torch.Generator().manual_seed(3)
    weight, offset = torch.rand(50, dtype=F64, generator=g), torch.randn(3, 50, dtype=F64, generator=g)
    sums, count = {
        "diagonal": (affine.diagonal_sums, 6),
        "slope": (affine.slope_sums, 4),
        "full": (affine.full_sums, 9),
    }[structure]
    theta = torch.linspace(-0.5, 0.5, count, dtype=F64)
    rows = AffineRows(z.T.contiguous(), y, weight, offset if structure == "full" else 0.0)

    def value(t: Tensor) -> Tensor:
        logits = {
            "diagonal": lambda: z * t[::2] + t[1::2],
            "slope": lambda: z * t[0] + t[1:],
            "full": lambda: z @ t.view(3, 3).T + offset.T,
        }[structure]()
        return weight @ cross_entropy(logits, y, reduction="none")

    loss, gradient, hessian = sums(rows, theta, "hessian")
    *same, blocks = sums(rows, theta, "blocks")
    torch.testing.assert_close((*sums(rows, theta, ""), *same), (loss, gradient) * 2, rtol=0, atol=0)
    assert float(loss) == pytest.approx(float(value(theta)), abs=1e-11)
    torch.testing.assert_close(gradient, torch.func.grad(value)(theta), rtol=0, atol=1e-11)
    torch.testing.assert_close(hessian, torch.func.hessian(value)(theta), rtol=0, atol=1e-11)
    size = blocks.shape[1]  # the rows of a block: one, or all inputs of a class
    expected = torch.stack([hessian[at : at + size, at : at + size] for at in range(0, count, size)])
    torch.testing.assert_close(blocks, expected, rtol=0, atol=1e-11)


METHODS = [VectorScaling, MatrixScaling, DirichletCalibration, StructuredMatrixScaling, BiasScaling]


@pytest.mark.parametrize("make", METHODS)
@pytest.mark.parametrize("classes", [6, 200])  # beyond 150 classes L-BFGS is scaled by the diagonal alone
def test_lbfgs_ends_where_newtons_method_does(make: Any, classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = sample(500, 6)
    exact = make().fit(z, y)
    monkeypatch.setattr(affine, "_NEWTON", 0)
    if classes > affine._BLOCK_CLASSES:
        monkeypatch.setattr(affine, "_BLOCK_CLASSES", 0)
    found = make().fit(z, y)
    torch.testing.assert_close(found(z).softmax(1), exact(z).softmax(1), rtol=0, atol=1e-5)  # 3e-9 over the curvature
    assert 0 < found.gradient <= 1e-8


def test_separable_rows_without_a_ridge_have_no_answer() -> None:
    z = torch.randn(60, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    y = (z * torch.tensor([1.0, 0.5, 2.0])).argmax(dim=1)
    for make in (VectorScaling, MatrixScaling):
        with pytest.raises(FitError, match="the classes may be separable"):
            make(ridge=0.0, prior=0.5).fit(z, y)
        assert bool(torch.isfinite(make(prior=0.5).fit(z, y)(z)).all())


@pytest.mark.parametrize("make", [MatrixScaling, DirichletCalibration, StructuredMatrixScaling])
def test_a_class_at_0_does_not_move_the_others(make: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(5, (600,), generator=generator)
    logits = torch.randn(600, 5, generator=generator, dtype=F64)
    logits[torch.arange(600), labels] += 3
    logits = 3 * logits.log_softmax(dim=1)
    rounded = logits.softmax(dim=1).round(decimals=4)
    fitted = make().fit(logits, labels)
    answer = fitted(rounded.log())
    assert torch.equal(answer.isneginf(), rounded == 0)
    assert (answer.argmax(dim=1) != fitted(logits).argmax(dim=1)).double().mean() < 0.02


# Bias scaling.


@pytest.mark.parametrize("prior_rows", [0.5, 50.0])
def test_biases_are_the_optimum_over_real_and_imagined_rows(prior_rows: float) -> None:
    z, y = drawn(300, 4, spread=2, sharp=1)
    z = 2 * (z + torch.tensor([1.0, 0, 0, 0]))
    fitted = BiasScaling(prior_rows=prior_rows).fit(z, y)
    slope, bias = fitted.slope, fitted.bias

    def loss(theta: Tensor) -> Tensor:
        q, p = torch.log_softmax(z * theta[0] + theta[1:], 1), torch.softmax(z, 1)
        return (cross_entropy(q, y, reduction="sum") - prior_rows / 300 * (p * q).sum()) / 300

    assert (
        float(torch.func.grad(loss)(torch.cat([slope[None], bias])).abs().max()) < 1e-7
    )  # a ridge of 1e-6 rows is left out
    assert float(bias.sum()) == pytest.approx(0, abs=1e-9)
    assert fitted.temperature == pytest.approx(1 / float(slope))


def test_a_class_never_right_loses_by_how_often_it_was_expected() -> None:
    p = torch.tensor([[0.45, 0.45, 0.1 - 1e-4, 1e-4]], dtype=F64).repeat(200, 1)
    y = torch.arange(200) % 2  # classes 2 and 3 are never right: expected 20 times, and .02 times
    after = torch.softmax(BiasScaling(prior_rows=5).fit(p.log(), y)(p[:1].log()), 1)[0]
    assert float(after[2]) == pytest.approx(0.1 * 5 / 205, rel=0.02)
    assert float(after[3]) == pytest.approx(1e-4 * 5 / 205, rel=0.1)


def test_equal_logits_and_a_single_class_have_an_answer() -> None:
    with pytest.warns(UsageWarning, match="got only class 0"):
        flat = BiasScaling().fit(torch.zeros(20, 3), torch.zeros(20, dtype=torch.int64))
    expected = torch.tensor([[20 + 5 / 3, 5 / 3, 5 / 3]]) / 25
    torch.testing.assert_close(torch.softmax(flat(torch.zeros(1, 3)), 1), expected, rtol=0, atol=1e-3)


# Kernel scaling.


def test_a_kernel_is_the_optimum_of_the_penalised_log_loss() -> None:
    z, y = sample(200)
    fitted = KernelScaling(waves=2, ridge=1.5).fit(z, y)
    log_p = torch.log_softmax(z, 1)
    angle = log_p.clamp_min(-12) @ fitted.frequencies - fitted.phases
    phi = torch.cat([angle.cos(), angle.sin()], dim=1) / 2**0.5

    def objective(b: Tensor) -> Tensor:
        return cross_entropy(log_p + phi @ b.T, y) + 1.5 / 200 * b.square().sum()

    assert float(torch.func.grad(objective)(fitted.coefficients).abs().max()) < 3e-9
    x = log_p.clamp_min(-12)
    scale = (
        0.6 * (torch.cdist(x, x) ** 2).mean().sqrt()
    )  # h: the width times the root mean squared distance of two rows
    directions = fitted.frequencies * scale
    torch.testing.assert_close(directions, kernel._directions(3, 2), rtol=1e-6, atol=1e-6)


def test_its_waves_approximate_the_gaussian_kernel() -> None:
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(1), dtype=F64) / 2
    angle = x @ kernel._directions(5, 4000)
    phi = torch.cat([angle.cos(), angle.sin()], dim=1) / 4000**0.5
    torch.testing.assert_close(phi @ phi.T, torch.exp(-(torch.cdist(x, x) ** 2) / 2), rtol=0, atol=0.03)
