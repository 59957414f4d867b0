"""KernelScaling: its optimum, what it approximates, and where the order of rows or many classes could matter."""

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from calibrant.calibrators import KernelScaling
from calibrant.calibrators.affine.kernel_scaling import _directions


def kinds(count: int = 600, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return logits that are right where the first is positive, and the wrong way round elsewhere."""
    g = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(count, 3, generator=g, dtype=torch.float64)
    z = z - z.mean(dim=1, keepdim=True)
    y = torch.multinomial(torch.softmax(torch.where(z[:, :1] > 0, z, -z), 1), 1, generator=g)[:, 0]
    return z, y


def loss(logits: Tensor, labels: Tensor) -> float:
    return float(torch.nn.functional.cross_entropy(logits, labels))


def test_it_is_the_optimum_of_the_penalised_log_loss() -> None:
    z, y = kinds(200)
    fitted = KernelScaling(waves=2, ridge=1.5).fit(z, y)
    x = torch.log_softmax(z, 1).clamp_min(-12).numpy()
    angle = x @ fitted.frequencies.numpy() - fitted.phases.numpy()
    phi = np.concatenate([np.cos(angle), np.sin(angle)], axis=1) / np.sqrt(2)

    def objective(theta: np.ndarray) -> float:
        matrix = theta.reshape(3, 4)
        a = torch.from_numpy(torch.log_softmax(z, 1).numpy() + phi @ matrix.T)
        return loss(a, y) + 1.5 / 200 * float((theta**2).sum())

    best = minimize(objective, np.zeros(12), method="BFGS", options={"gtol": 1e-7})
    assert objective(fitted.coefficients.numpy().reshape(-1)) <= best.fun + 1e-7
    np.testing.assert_allclose(fitted.coefficients.numpy().reshape(-1), best.x, atol=1e-3)  # difference quotients there
    assert fitted.gradient < 1e-7


def test_its_waves_approximate_the_gaussian_kernel() -> None:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(40, 5, generator=g, dtype=torch.float64) / 2
    angle = x @ _directions(5, 4000)
    phi = torch.cat([angle.cos(), angle.sin()], dim=1) / 4000**0.5
    torch.testing.assert_close(phi @ phi.T, torch.exp(-(torch.cdist(x, x) ** 2) / 2), rtol=0, atol=0.03)
