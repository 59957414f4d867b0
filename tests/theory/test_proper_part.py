"""The proper part is proper: its vectors, and its expected value is least at the truth."""

import pytest
import torch
from tests.theory.scores_for_tests import IN_RANGE

from calibrant.scores import FocalScore, LogScore, TrueClassScore
from calibrant.theory import focal_map, proper_part


def test_binary_vector(vectors) -> None:
    case = vectors["proper_part_p0.95_gamma3"]
    p = torch.tensor([[0.95, 0.05]], dtype=torch.float64)
    expected = torch.tensor([[case["expected"]["L_star_y1"], case["expected"]["L_star_y0"]]], dtype=torch.float64)
    torch.testing.assert_close(proper_part(FocalScore(3.0), p.log()), expected, atol=1e-8, rtol=0)


@pytest.mark.parametrize("name", ["focal_map_inverse_K3_gamma1", "focal_map_inverse_K3_gamma3"])
def test_risk_at_the_truth(vectors, name: str) -> None:
    case = vectors[name]
    p = torch.tensor([case["inputs"]["p"]], dtype=torch.float64)
    losses = proper_part(FocalScore(case["inputs"]["gamma"]), p.log())
    assert float((p * losses).sum()) == pytest.approx(case["expected"]["risk"], abs=1e-8)


def test_it_is_the_log_score_for_the_log_score() -> None:
    log_p = torch.log_softmax(torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), dim=1)
    torch.testing.assert_close(proper_part(LogScore(), log_p), -log_p)


def test_after_the_map_it_is_the_score_again() -> None:
    log_q = torch.log_softmax(torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), dim=1)
    value = FocalScore(2.0).value(log_q, torch.log1p(-log_q.exp()))
    torch.testing.assert_close(proper_part(FocalScore(2.0), focal_map(log_q, 2.0)), value, atol=1e-12, rtol=0)


@pytest.mark.parametrize("score", IN_RANGE, ids=repr)
@pytest.mark.parametrize("classes", [2, 7, 50])
def test_the_expected_loss_is_stationary_and_least_at_the_truth(score: TrueClassScore, classes: int) -> None:
    generator = torch.Generator().manual_seed(classes)
    eta = torch.distributions.Dirichlet(torch.ones(classes, dtype=torch.float64))
    torch.manual_seed(classes)
    truth = eta.sample((20,))
    logits = truth.log().requires_grad_(True)
    risk = (truth * proper_part(score, torch.log_softmax(logits, dim=1))).sum(dim=1)
    (grad,) = torch.autograd.grad(risk.sum(), logits)
    assert float(grad.abs().max()) < 1e-12 * (1 + float(risk.detach().abs().max()))
    for scale in (1e-2, 1.0):
        moved = torch.log_softmax(
            truth.log() + scale * torch.randn(20, classes, dtype=torch.float64, generator=generator), dim=1
        )
        assert bool(((truth * proper_part(score, moved)).sum(dim=1) > risk.detach()).all())
