"""The options that losses take, and gradients that reach a base."""

import torch

from calibrant import losses


def test_assigning_gamma_takes_effect() -> None:
    z, y = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 4
    for make in (
        losses.FocalLoss,
        losses.InverseFocalLoss,
        losses.FocalCalibrationLoss,
        losses.DualFocalLoss,
        losses.BSCELoss,
    ):
        loss = make(2.0)
        loss.gamma = 3.0
        assert float(loss(z, y)) == float(make(3.0)(z, y)) != float(make(2.0)(z, y)), make


def test_an_expanded_gradient_is_not_written_to() -> None:
    class Sum(losses.RowLoss):
        def rows(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return logits.sum(dim=1)

    z, y = torch.randn(1000, 100, generator=torch.Generator().manual_seed(0)).requires_grad_(), torch.arange(1000) % 100
    loss = losses.EntropyRegularizedLoss(0.1, base=Sum())
    loss(z, y).backward()
    plain = z.detach().double().requires_grad_()
    loss(plain, y).backward()
    assert torch.allclose(z.grad.double(), plain.grad, atol=1e-7)
