"""Small numerics against exact values, and against what a traced graph holds in their place."""

import math

import mpmath
import pytest
import torch

from calibrant._core.numerics import rank_in, softmax_into
from calibrant.scores import log1mexp


@pytest.mark.parametrize("x", [-1e-150, -1e-20, -1e-8, -0.5, -math.log(2), -0.7, -5.0, -40.0, -700.0])
def test_log1mexp_is_exact_to_rounding(x: float) -> None:
    with mpmath.workdps(400):
        exact = float(mpmath.log(1 - mpmath.exp(mpmath.mpf(x))))
    assert log1mexp(torch.tensor(x, dtype=torch.float64)).item() == pytest.approx(exact, rel=1e-14)


def test_log1mexp_has_finite_gradients_on_both_branches() -> None:
    x = torch.tensor([-1e-30, -1e-3, -1.0, -80.0, -1e4], requires_grad=True)
    log1mexp(x).sum().backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("right", [False, True])
def test_the_rank_of_a_traced_graph_is_that_of_the_search(right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    places, values = torch.tensor([[1.0, 2.0, 2.0, 3.0]]), torch.tensor([[0.0, 1.0, 2.0, 2.5, 3.0, 4.0]])
    searched = rank_in(places, values, right=right)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.equal(rank_in(places, values, right=right), searched)


@pytest.mark.parametrize("classes", [2, 15, 16, 40])
def test_softmax_into_is_the_softmax_whichever_way_it_goes(classes: int) -> None:
    logits = 50 * torch.randn(100, classes, generator=torch.Generator().manual_seed(classes))
    logits[3, 0] = -math.inf
    out = torch.empty_like(logits)
    assert softmax_into(out, logits) is out
    torch.testing.assert_close(out.double(), torch.softmax(logits.double(), dim=1), rtol=1e-5, atol=1e-30)
