"""Each penalty and each objective from beyond the papers against its formula written plainly in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant import Predictions, losses
from calibrant.errors import InputError, UsageWarning
from calibrant.losses.mmce import laplacian_sums


def sample(rows: int = 40, classes: int = 5, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(11)
    logits = scale * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(classes, (rows,), generator=generator)


def test_norms_entropy_and_margins() -> None:
    z, y = sample()
    nll, p = F.cross_entropy(z, y), torch.softmax(z, 1)
    lag = z.amax(1, keepdim=True) - z
    expected = {
        losses.LpNormLoss(0.1): nll + 0.1 * z.abs().sum(1).mean(),
        losses.LpNormLoss(0.1, 3.0): nll + 0.1 * (z.abs() ** 3).sum(1).pow(1 / 3).mean(),
        losses.EntropyRegularizedLoss(0.3): nll + 0.3 * (p * p.log()).sum(1).mean(),
        losses.MarginLabelSmoothingLoss(0.3, 1.0): nll + 0.3 * torch.relu(lag - 1).mean(),
        losses.ACLSLoss(0.3, 1.0, 0.5, 0.2): nll
        + 0.3 * (0.5 * torch.relu(z.amax(1) - 1).square().mean() + 0.2 * torch.relu(lag - 1).square().sum() / (40 * 4)),
    }
    for loss, value in expected.items():
        assert torch.allclose(loss(z, y), value, rtol=1e-12), loss


def test_negative_smoothing_and_norms_follow_formula_and_warn() -> None:
    z, y = sample()
    log_p = torch.log_softmax(z, 1)
    with pytest.warns(UsageWarning, match=r"expected smoothing ≥ 0, got -0\.2"):
        smoothed = losses.LabelSmoothingLoss(-0.2)
    assert torch.allclose(smoothed(z, y), 1.2 * F.cross_entropy(z, y) + 0.2 * log_p.mean(), rtol=1e-12)
    with pytest.warns(UsageWarning, match=r"expected strength ≥ 0, got -0\.1"):
        rewarded = losses.LpNormLoss(-0.1)
    assert torch.allclose(rewarded(z, y), F.cross_entropy(z, y) - 0.1 * z.abs().sum(1).mean(), rtol=1e-12)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 7.0])
def test_norms_have_gradient_0_at_0(p: float) -> None:
    z = torch.zeros(1, 3, requires_grad=True)
    penalty = losses.LpNormLoss(1.0, p)(z, torch.tensor([0])) - losses.CrossEntropyLoss()(z, torch.tensor([0]))
    assert penalty == 0
    assert torch.autograd.grad(penalty, z)[0].abs().max() <= 1e-7


def test_weights_by_distance_and_by_the_class_below() -> None:
    z, y = sample()
    nll, p = F.cross_entropy(z, y, reduction="none"), torch.softmax(z, 1)
    off = p - F.one_hot(y, 5)
    own = p.gather(1, y[:, None])
    below = torch.where(p < own, p, 0).amax(1)
    assert torch.allclose(losses.BSCELoss()(z, y), (off.square().sum(1) * nll).mean(), rtol=1e-12)
    assert torch.allclose(losses.BSCELoss(3.0, 1.0)(z, y), (off.abs().sum(1) ** 3 * nll).mean(), rtol=1e-12)
    dual = ((1 - own[:, 0] + below) ** 2.3 * nll).mean()
    assert torch.allclose(losses.DualFocalLoss(2.3)(z, y), dual, rtol=1e-12)
    focal_and_brier = ((1 - own[:, 0]) ** 2 * nll + 0.7 * off.square().sum(1)).mean()
    assert torch.allclose(losses.FocalCalibrationLoss(2.0, 0.7)(z, y), focal_and_brier, rtol=1e-12)


def test_weights_by_the_distribution_of_confidences() -> None:
    z, y = sample()
    c = torch.softmax(z, 1).amax(1)
    loss = losses.AURCLoss(quantile=0.6, bins=8, width=0.1)
    loss.update(Predictions.from_logits(z, y))
    below = torch.zeros(40, dtype=torch.float64)
    for b in range(8):
        share = ((c > b / 8) & (c <= (b + 1) / 8)).double().mean()
        below += share / (1 + torch.exp(-(c - (b + 0.5) / 8) / 0.1))
    assert (below > 0.6).any()
    assert (below < 0.6).any()
    weight = -torch.log(1 - below.clamp(1 / 16, 0.6))
    assert torch.allclose(loss(z, y), (weight * F.cross_entropy(z, y, reduction="none")).mean(), rtol=1e-12)


def test_a_narrow_step_gives_the_area_under_the_curve() -> None:
    # G is then the rank: the mean over k of the loss of the k most confident rows, to the width of a bin of 10 rows
    p = (torch.arange(4000, dtype=torch.float64) + 4000.5) / 8000.5
    z, y = torch.stack([p.log(), torch.log1p(-p)], 1), torch.arange(4000) % 2
    loss = losses.AURCLoss(quantile=1 - 1e-4, bins=800, width=1e-5)
    loss.update(Predictions.from_logits(z, y))
    nll = F.cross_entropy(z, y, reduction="none")
    curve = (nll.flip(0).cumsum(0) / torch.arange(1, 4001)).mean()
    assert torch.allclose(loss(z, y), curve, rtol=1e-2)


def test_penalties_of_the_batch() -> None:
    z, y = sample()
    nll, p = F.cross_entropy(z, y), torch.softmax(z, 1)
    mdca = (p.mean(0) - F.one_hot(y, 5).double().mean(0)).abs().mean()
    assert torch.allclose(losses.MDCALoss(0.7)(z, y), nll + 0.7 * mdca, rtol=1e-12)
    assert torch.allclose(losses.MDCALoss(0.7, reduction="sum")(z, y), 40 * (nll + 0.7 * mdca), rtol=1e-12)
    c, a = p.amax(1), (p.argmax(1) == y).double()
    member = torch.softmax(-((c[:, None] - (torch.arange(7) + 0.5) / 7) ** 2) / 0.02, dim=1)
    gap = (member * (a - c)[:, None]).sum(0) / member.sum(0)
    soft = (member.sum(0) / 40 * gap.abs() ** 3).sum() ** (1 / 3)
    assert torch.allclose(losses.SoftBinnedECELoss(0.7, 7, 0.02, 3.0)(z, y), nll + 0.7 * soft, rtol=1e-12)


def naive_mmce(z: Tensor, y: Tensor, *, weighted: bool, reference: bool, width: float) -> Tensor:
    """Return the penalty from all pairs; ``reference`` normalises as the code of Mukhoti et al. does."""
    r = torch.softmax(z, 1).amax(1)
    c = (z.argmax(1) == y).double()
    kernel = torch.exp(-(r[:, None] - r).abs() / width)
    if not weighted:
        square = ((c - r)[:, None] * (c - r) * kernel).sum() / len(z) ** 2
        return square if reference else square.sqrt()
    n, m = c.sum(), (1 - c).sum()
    right, wrong = c * (1 - r), (1 - c) * r
    terms = [(right, right, n * n), (wrong, wrong, m * m), (right, wrong, n * m)]
    sums = [(u[:, None] * v * kernel).sum() / pairs ** (2 if reference else 1) for u, v, pairs in terms]
    square = sums[0] + sums[1] - 2 * sums[2]
    return (square + 1e-10).sqrt() if reference else square.sqrt()


@pytest.mark.parametrize("width", [0.05, 0.4])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("normalisation", ["kumar", "torrvision"])
def test_mmce_in_sorted_order_is_mmce_over_all_pairs(normalisation: Any, weighted: bool, width: float) -> None:
    z, y = sample(60)
    z[10] = z[20]  # equal confidences, whose distance has no slope
    z.requires_grad_()
    loss = losses.MMCELoss(1.5, width, weighted, normalisation, base=losses.FocalLoss(2.0))
    expected = losses.FocalLoss(2.0)(z, y) + 1.5 * naive_mmce(
        z, y, weighted=weighted, reference=normalisation == "torrvision", width=width
    )
    assert torch.allclose(loss(z, y), expected, rtol=1e-10)
    grads = [torch.autograd.grad(value, z)[0] for value in (loss(z, y), expected)]
    assert torch.allclose(*grads, rtol=1e-9, atol=1e-12)


def test_laplacian_sums_over_many_points_keep_memory_and_digits() -> None:
    generator = torch.Generator().manual_seed(3)
    r = torch.rand(100_000, generator=generator, dtype=torch.float64)
    a = torch.randn(100_000, generator=generator, dtype=torch.float64)
    sums = laplacian_sums(r, a, width=0.4)  # all pairs would take 80 GB
    some = torch.arange(0, 100_000, 10_007)
    expected = (a * torch.exp(-(r[some, None] - r).abs() / 0.4)).sum(1)
    assert torch.allclose(sums[some], expected, rtol=1e-9, atol=1e-9)


def test_cross_entropies_of_rows_made_elsewhere() -> None:
    # a fused linear cross-entropy gives −log p_y a row without ever holding the logits
    z, y = sample()
    nll = F.cross_entropy(z.requires_grad_(), y, reduction="none")
    for loss in (
        losses.FocalLoss(0.5),
        losses.FocalLoss(3.0, True),
        losses.InverseFocalLoss(1.0),
        losses.AdaFocalLoss(),
    ):
        assert torch.allclose(loss.from_nll(nll), loss(z, y), rtol=1e-12)
        slopes = [torch.autograd.grad(one, z, retain_graph=True)[0] for one in (loss.from_nll(nll), loss(z, y))]
        torch.testing.assert_close(*slopes, rtol=1e-9, atol=1e-12)


def test_nested_penalties_share_one_gradient() -> None:
    z, y = sample(70, 1000)
    loss = losses.MDCALoss(
        50.0,
        base=losses.EntropyRegularizedLoss(
            0.1, base=losses.Weighted((0.5, losses.LpNormLoss(0.01)), (2.0, losses.DualFocalLoss()))
        ),
    )
    (expected,) = torch.autograd.grad(loss(z.requires_grad_(), y), z)
    many = z.detach().float().requires_grad_()
    value = loss(many, y)
    for _ in range(2):
        (grad,) = torch.autograd.grad(value, many, retain_graph=True)
        assert (grad - expected).abs().max() <= 2e-6 * expected.abs().max()
    inner = many.detach().requires_grad_()
    doubled = 2 * inner  # not a leaf: its gradient goes on
    (grad,) = torch.autograd.grad(loss(doubled / 2, y), inner)
    assert (grad - expected).abs().max() <= 2e-6 * expected.abs().max()
    # terms of logits that no loss has prepared, as in a loss of one's own
    (grad,) = torch.autograd.grad(losses.CrossEntropyLoss().rows(2 * inner, y).mean(), inner)
    (right,) = torch.autograd.grad(F.cross_entropy(2 * inner, y), inner)
    assert torch.allclose(grad, right, atol=1e-7)


def test_weighted_refuses_terms_that_do_not_fit() -> None:
    ce = losses.CrossEntropyLoss()
    for pairs in ([ce], [(1.0, torch.nn.CrossEntropyLoss())], [(ce, 1.0)]):
        with pytest.raises(InputError, match=r"pairs \(w, loss\)"):
            losses.Weighted(*pairs)
    for other in (losses.BrierLoss(reduction="sum"), losses.BrierLoss(weight=torch.ones(3))):
        with pytest.raises(InputError, match="the same reduction, weight and ignore_index"):
            losses.Weighted((1.0, ce), (1.0, other))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: losses.ScheduledFocalLoss((5.0, 3.0), ()), "one more of gammas than milestones, got 2 and 0 of them"),
        (lambda: losses.ScheduledFocalLoss((5.0, 3.0, 1.0), (9, 5)), "increasing milestones"),
        (lambda: losses.SampleDependentFocalLoss((5.0,), (0.2,)), "one more of gammas than thresholds"),
        (lambda: losses.SampleDependentFocalLoss((5, 3, 2), (0.5, 0.2)), "increasing thresholds"),
        (lambda: losses.AdaFocalLoss(switch=3.0), r"switch in \[0, 2\]"),
        (
            lambda: losses.FocalLoss(3.0)(torch.zeros(4), torch.tensor([0, 1, 2, 3])),
            r"logits of shape \(N, K\) for labels of shape \(N,\), got shape \(4,\)",
        ),
    ],
)
def test_arguments_that_do_not_fit_each_other_are_refused(make: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        make()


def test_the_schedule_is_followed_and_stored() -> None:
    loss = losses.ScheduledFocalLoss((5.0, 3.0, 1.0), (100, 250))
    seen = []
    for epoch in (0, 99, 100, 249, 250, 400):
        loss.set_epoch(epoch)
        seen.append(loss.gamma.item())
    assert seen == [5, 5, 3, 3, 1, 1]
    fresh = losses.ScheduledFocalLoss((5.0, 3.0, 1.0), (100, 250))
    fresh.load_state_dict(loss.state_dict())
    z, y = sample()
    assert fresh(z, y) == losses.FocalLoss(1.0)(z, y)


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
