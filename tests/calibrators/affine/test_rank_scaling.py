"""Slopes and biases by rank."""

import pytest
import torch
from tests.draws import drawn
from torch import Tensor
from torch.nn.functional import cross_entropy

from calibrant.calibrators import RankScaling
from calibrant.calibrators.affine.rank_scaling import _RankChunk
from calibrant.rows import MemoryRows


@pytest.mark.parametrize("classes", [2, 3, 9, 20])
def test_derivatives_are_those_of_the_loss_of_what_it_answers(classes: int) -> None:
    logits, labels = drawn(40, classes, dtype=torch.float64)
    gaps, generator = min(8, classes - 1), torch.Generator().manual_seed(classes)
    theta = torch.rand(2 * gaps, generator=generator, dtype=torch.float64)
    weight = torch.rand(40, generator=generator, dtype=torch.float64)

    def loss(theta: Tensor) -> Tensor:
        one = RankScaling()
        one.slopes, one.offsets = theta[:gaps] / 1.5, theta[gaps:]
        return weight @ cross_entropy(one._transform(logits), labels, reduction="none")

    chunk = _RankChunk.of(MemoryRows.of(logits, labels, weight=weight).gathered(), 1.5, gaps)
    right = (loss(theta), torch.func.grad(loss)(theta), torch.func.hessian(loss)(theta))
    for found, expected in zip(chunk.derivatives(theta), right, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
