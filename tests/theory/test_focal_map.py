"""The focal calibration map: stored values, mpmath at every margin, endpoints, gradients, many γ at once."""

import math

import mpmath
import pytest
import torch

from calibrant.theory import focal_logit, focal_map, gamma_from_threshold

BINARY = ["q0.9_gamma3", "q0.62_gamma2", "q0.3_gamma0.5", "logit_s5_gamma0.5", "logit_s10_gamma1"]


def exact_map(logits: list[float], gamma: float) -> list[mpmath.mpf]:
    """Proposition 4 in so many digits that nothing is lost, straight from the formula."""
    with mpmath.workdps(1500):
        g = mpmath.mpf(gamma)
        e = [mpmath.exp(mpmath.mpf(z)) for z in logits]
        q = [x / sum(e) for x in e]
        rest = [sum(q[:j] + q[j + 1 :]) for j in range(len(q))]
        h = [1 / (r**g * (1 / x - g * mpmath.log(x) / r)) for x, r in zip(q, rest, strict=True)]
        return [mpmath.log(x / sum(h)) for x in h]


@pytest.mark.parametrize("name", BINARY)
def test_stored_binary_values_by_both_propositions(vectors, name: str) -> None:
    given, expected = (vectors[f"focal_map_binary_{name}"][part] for part in ("inputs", "expected"))
    q, gamma = torch.tensor(given.get("q", 0.5), dtype=torch.float64), given["gamma"]
    s = torch.tensor(given["s"], dtype=torch.float64) if "s" in given else torch.logit(q)
    log_p = focal_map(torch.stack([s, torch.zeros_like(s)])[None], gamma)[0]
    right = expected["logit"] if "logit" in expected else math.log(expected["p"] / (1 - expected["p"]))
    assert float(log_p[0] - log_p[1]) == pytest.approx(right, abs=1e-7)
    assert float(focal_logit(s, gamma)) == pytest.approx(right, abs=1e-7)


@pytest.mark.parametrize("margin", [0.0, 10.0, 37.0, 60.0, 100.0])
def test_accuracy_against_mpmath(margin: float) -> None:
    for gamma in [-0.99, -0.5, 0.3, 1.0, 3.0, 10.0]:
        generator = torch.Generator().manual_seed(int(margin))
        logits = torch.randn(1, 5, generator=generator) * 2
        logits[:, 1] = logits.amax(dim=1) + margin
        exact = torch.tensor(
            [[float(x) for x in exact_map(row, gamma)] for row in logits.tolist()], dtype=torch.float64
        )
        torch.testing.assert_close(focal_map(logits.double(), gamma), exact, atol=1e-12, rtol=0)
        # float32: a few roundings of numbers as large as (1 + |γ|)·margin
        single = focal_map(logits, gamma)
        assert single.dtype == torch.float32
        torch.testing.assert_close(single.double(), exact, atol=2e-6, rtol=2e-6)


def test_identity_symmetry_and_ranks() -> None:
    logits = torch.randn(20, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(focal_map(logits, 0.0), torch.log_softmax(logits, dim=1), atol=1e-15, rtol=1e-14)
    s = torch.linspace(-9, 9, 7, dtype=torch.float64)
    for gamma in (-0.7, 0.5, 4.0):
        torch.testing.assert_close(focal_logit(s, gamma), -focal_logit(-s, gamma), atol=1e-14, rtol=0)
        assert torch.equal(focal_map(logits, gamma).argsort(dim=1), logits.argsort(dim=1))


@pytest.mark.parametrize("gamma", [-0.9, 0.0, 0.5, 20.0])
def test_one_hot_rows_stay_exactly_one_hot(gamma: float) -> None:
    q = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    assert torch.equal(focal_map(q.log(), gamma).exp(), q)


def test_excluded_classes_stay_excluded() -> None:
    logits = torch.tensor([[2.0, -math.inf, 1.0]], dtype=torch.float64, requires_grad=True)
    log_p = focal_map(logits, 1.5)
    assert log_p[0, 1].item() == -math.inf
    torch.testing.assert_close(log_p[:, [0, 2]], focal_map(logits[:, [0, 2]], 1.5), atol=1e-15, rtol=0)
    log_p[0, 0].backward()
    assert bool(torch.isfinite(logits.grad).all())


def test_many_gammas_at_once() -> None:
    logits = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gammas = torch.tensor([[-0.5, 0.0], [1.0, 7.0]], dtype=torch.float64)
    together = focal_map(logits, gammas)
    assert together.shape == (2, 2, 4, 3)
    for i in range(2):
        for j in range(2):
            torch.testing.assert_close(together[i, j], focal_map(logits, gammas[i, j].item()), atol=1e-14, rtol=0)


def test_gradients_by_logits_and_gamma() -> None:
    logits = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2), requires_grad=True)
    gamma = torch.tensor([-0.5, 0.0, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(focal_map, (logits, gamma))
    saturated = torch.tensor([[100.0, 0.0, 0.0]], requires_grad=True)
    for exponent in (-0.5, 0.5, 3.0):
        (grad,) = torch.autograd.grad(focal_map(saturated, exponent).exp().sum(), saturated)
        assert bool(torch.isfinite(grad).all())


@pytest.mark.parametrize("p0", [1e-6, 0.3, 0.4999])
def test_the_gradients_are_equal_there(p0: float) -> None:
    gamma = gamma_from_threshold(p0)
    assert gamma > 0
    factor = (1 - p0) ** gamma - gamma * p0 * (1 - p0) ** (gamma - 1) * math.log(p0)
    assert factor == pytest.approx(1, abs=1e-9)  # (1 − p)^γ at γ near 1e7 keeps nine digits
