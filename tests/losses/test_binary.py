"""Losses of several labels per row: the values of the two-class losses, missing labels, extreme logits, compilation."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from tests.makers import gradient
from torch import Tensor
from torch.nn import functional as F

from calibrant import losses
from calibrant._core.config import build, config_of
from calibrant.errors import InputError
from calibrant.losses import BinaryCrossEntropyLoss, BinaryFocalLoss, BinaryLabelSmoothingLoss, BinaryLoss

Pair = tuple[Callable[..., BinaryLoss], Callable[..., losses.Loss]]
PAIRS: dict[str, Pair] = {
    "cross-entropy": (BinaryCrossEntropyLoss, losses.CrossEntropyLoss),
    "focal": (lambda **more: BinaryFocalLoss(2.5, **more), lambda **more: losses.FocalLoss(2.5, **more)),
    "focal below 1": (lambda **more: BinaryFocalLoss(0.5, **more), lambda **more: losses.FocalLoss(0.5, **more)),
    "detached": (
        lambda **more: BinaryFocalLoss(2.0, detach_weight=True, **more),
        lambda **more: losses.FocalLoss(2.0, True, **more),
    ),
    "smoothing": (lambda **more: BinaryLabelSmoothingLoss(0.1, **more), lambda **more: losses.LabelSmoothingLoss(0.1, **more)),
    "smoothing others": (
        lambda **more: BinaryLabelSmoothingLoss(0.1, "others", **more),
        lambda **more: losses.LabelSmoothingLoss(0.1, "others", **more),
    ),
}  # fmt: skip


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest) -> Pair:
    return PAIRS[request.param]


def sample(rows: int = 12, columns: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return 3 * torch.randn(rows, columns, generator=generator), torch.randint(
        0, 2, (rows, columns), generator=generator
    )


def test_values_and_gradients_are_those_of_two_classes(pair: Pair) -> None:
    ours, two = pair
    for logits, labels in (sample(), (sample()[0].double(), sample()[1])):
        flat = logits.reshape(-1)
        wide = torch.stack([torch.zeros_like(flat), flat], dim=1)
        expected = two(reduction="none")(wide, labels.reshape(-1)).view_as(labels)
        assert torch.allclose(ours(reduction="none")(logits, labels), expected, rtol=1e-5, atol=1e-7)
        assert torch.allclose(ours()(logits, labels), expected.mean(), rtol=1e-5)
        assert torch.allclose(ours(reduction="sum")(logits, labels), expected.sum(), rtol=1e-5)
        right = gradient(two(), wide, labels.reshape(-1))[:, 1].view_as(labels)
        assert torch.allclose(gradient(ours(), logits, labels), right, rtol=1e-4, atol=1e-7)
        assert torch.allclose(gradient(ours(), logits, labels.to(logits.dtype)), right, rtol=1e-4, atol=1e-7)


def test_a_positive_weight_is_that_of_the_second_class(pair: Pair) -> None:
    ours, two = pair
    logits, labels = sample(columns=1)
    wide = torch.cat([torch.zeros_like(logits), logits], dim=1)
    expected = two(reduction="sum", weight=torch.tensor([1.0, 3.0]))(wide, labels[:, 0])
    for weight in (3.0, torch.tensor(3.0), torch.tensor([3.0])):
        assert torch.allclose(ours(reduction="sum", pos_weight=weight)(logits, labels), expected, rtol=1e-5)
        assert torch.allclose(ours(pos_weight=weight)(logits, labels.float()), expected / 12, rtol=1e-5)


def test_infinite_logits_of_the_right_sign_cost_nothing() -> None:
    logits, labels = torch.tensor([[math.inf, -math.inf]]), torch.tensor([[1, 0]])
    assert BinaryLabelSmoothingLoss(0.0, reduction="none")(logits, labels).tolist() == [[0.0, 0.0]]


def test_alpha_weighs_positive_terms_and_the_others() -> None:
    # Lin et al. 2017 Eq. 5: −α (1 − p)^γ log p where y = 1, −(1 − α) p^γ log(1 − p) where y = 0
    loss = losses.BinaryFocalLoss(2.0, alpha=0.25, reduction="none")
    p, labels = torch.tensor([[0.9, 0.9, 0.5]]), torch.tensor([[1, 0, -1]])
    expected = [0.25 * 0.1**2 * -math.log(0.9), 0.75 * 0.9**2 * -math.log(0.1), 0.0]
    for given in (labels, labels.float()):
        assert torch.allclose(loss(torch.logit(p), given), torch.tensor([expected]), rtol=1e-5)
    weighted = losses.BinaryFocalLoss(2.0, pos_weight=torch.tensor(3.0), alpha=0.25, reduction="none")
    assert torch.allclose(weighted(torch.logit(p), labels), torch.tensor([[3 * expected[0], *expected[1:]]]), rtol=1e-5)


def test_cross_entropy_of_soft_targets_and_weights_is_torchs() -> None:
    logits, _ = sample()
    targets, weight = torch.rand(12, 3, generator=torch.Generator().manual_seed(1)), torch.tensor([0.5, 2.0, 7.0])
    ours = BinaryCrossEntropyLoss(pos_weight=weight)(logits, targets)
    assert torch.allclose(ours, F.binary_cross_entropy_with_logits(logits, targets, pos_weight=weight), rtol=1e-5)
    expected = F.binary_cross_entropy_with_logits(logits, 0.9 * targets + 0.05)
    assert torch.allclose(BinaryLabelSmoothingLoss(0.1)(logits, targets), expected, rtol=1e-5)


def test_missing_labels_count_nothing(pair: Pair) -> None:
    logits, labels = sample()
    labels[::2, 1] = -1
    logits[0, 1] = math.nan  # under a missing label
    known = labels >= 0
    for given in (labels, labels.float()):
        terms = pair[0](reduction="none")(logits, given)
        assert terms[~known].abs().sum() == 0
        assert torch.allclose(pair[0]()(logits, given), terms[known].mean(), rtol=1e-6)
        slope = gradient(pair[0](), logits, given)
        assert slope.isfinite().all()
        assert slope[~known].abs().sum() == 0
        for reduction in ("mean", "sum", "none"):  # a batch without a known label changes no model
            loss = pair[0](reduction=reduction, pos_weight=torch.tensor([1.0, 0.0, 3.0]))
            assert loss(logits, torch.full_like(given, -1)).sum() == 0
            assert torch.equal(gradient(loss, logits, torch.full_like(given, -1)), torch.zeros_like(logits))
    assert pair[0]()(logits[:0], labels[:0]) == 0


@pytest.mark.parametrize("weight", [None, torch.tensor([3.0, 0.0, 1.0])], ids=["plain", "weighted"])
def test_gradients_are_finite_at_every_margin(pair: Pair, weight: Tensor | None) -> None:
    for dtype, large in ((torch.float16, 3e4), (torch.float32, 1e38), (torch.float64, 1e308)):
        margins = torch.tensor([0.0, 1e-3, 1, 17, 40, 88, 104, 745, 1e4, large, math.inf], dtype=torch.float64)
        logits = torch.cat([margins, -margins])[:, None].expand(-1, 3).to(dtype)
        labels = torch.tensor([0, 1, -1]).expand(len(logits), 3)
        for given in (labels, labels.to(dtype)):
            loss = pair[0](reduction="none", pos_weight=weight)
            value, found = loss(logits, given), gradient(loss, logits, given, upstream=512.0)
            assert value.dtype == torch.promote_types(dtype, torch.float32)
            if weight is None:  # 0 times an infinite term is NaN
                assert value[logits.isfinite()].isfinite().all()
                assert not value.isnan().any()
            assert found[value.isfinite()].isfinite().all()


def test_configurations_copies_and_states_come_back(pair: Pair) -> None:
    logits, labels = sample()
    loss = pair[0](reduction="sum")
    again = build({"type": type(loss).__name__, **config_of(loss)}, families=[losses])
    assert torch.equal(again(logits, labels), loss(logits, labels))
    assert "reduction='sum'" in repr(loss)
    weighted, fresh = pair[0](pos_weight=torch.tensor([1.0, 2.0, 3.0])), pair[0](pos_weight=torch.ones(3))
    fresh.load_state_dict(weighted.state_dict())
    assert torch.equal(fresh(logits, labels), copy.deepcopy(weighted)(logits, labels))


def test_bool_labels_and_further_axes() -> None:
    logits, labels = sample()
    assert torch.equal(BinaryFocalLoss(2.0)(logits, labels > 0), BinaryFocalLoss(2.0)(logits, labels))
    deep = BinaryFocalLoss(2.0, reduction="none")(logits.view(4, 3, 3), labels.view(4, 3, 3))
    assert torch.equal(deep.view(12, 3), BinaryFocalLoss(2.0, reduction="none")(logits, labels))


def test_what_does_not_fit_is_refused() -> None:
    logits, labels = sample()
    loss = BinaryFocalLoss(2.0, pos_weight=torch.ones(3))
    cases = [
        (lambda: loss(logits, labels[:, 0]), "for one class per row"),
        (lambda: loss(logits, labels + 1), "got 2"),
        (lambda: loss(logits, labels - 3.5), "with -1 for missing labels"),
        (lambda: loss(logits[:, :2], labels[:, :2]), r"pos_weight of shape \(2,\)"),
        (lambda: losses.FocalLoss(2.0)(logits, labels), "Binary"),
    ]
    for call, text in cases:
        with pytest.raises(InputError, match=text) as caught:
            call()
        assert "\n" not in str(caught.value)
