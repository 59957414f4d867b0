"""Every stored value about losses, to its own tolerance."""

from typing import Any

import pytest
import torch
from torch import Tensor

from calibrant import losses
from calibrant.errors import UsageWarning

Vectors = dict[str, dict[str, Any]]


def value_and_gradient(loss: losses.FocalLoss, logits: Any, labels: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    leaf = torch.tensor(logits, dtype=dtype, requires_grad=True)
    terms = loss(leaf, torch.tensor(labels))
    (grad,) = torch.autograd.grad(terms.sum(), leaf)
    return terms.detach(), grad


def close(got: Tensor, expected: Any, tolerance: dict[str, float]) -> bool:
    wanted = torch.tensor(expected, dtype=torch.float64)
    return torch.allclose(got.double(), wanted, rtol=tolerance.get("rel", 0), atol=tolerance.get("abs", 0))


VALUES = [
    "focal_gamma_0", "focal_gamma_1", "focal_gamma_2", "focal_gamma_3", "inverse_focal_gamma_1",
    "focal_near_saturation_z17_gamma_1", "focal_near_saturation_z20_gamma_0.5", "focal_near_saturation_z30_gamma_2",
    "focal_saturated_wrong_gamma_3",
]  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_focal_values_and_gradients(vectors: Vectors, name: str) -> None:
    entry = vectors[name]
    given, expected = entry["inputs"], entry["expected"]
    make = losses.InverseFocalLoss if name.startswith("inverse") else losses.FocalLoss
    dtype = getattr(torch, given.get("dtype", "float64"))
    terms, grad = value_and_gradient(make(given["gamma"], reduction="none"), given["logits"], given["target"], dtype)
    assert close(terms, expected["loss"], entry["tolerance"])
    assert close(grad, expected["grad_logits"], entry["tolerance"])


@pytest.mark.parametrize("gamma", ["0.25", "0.5", "1", "2", "3"])
def test_focal_loss_of_a_saturated_right_sample_is_flat_at_0(vectors: Vectors, gamma: str) -> None:
    given = vectors[f"focal_saturated_correct_gamma_{gamma}"]["inputs"]
    loss = losses.FocalLoss(given["gamma"], reduction="none")
    terms, grad = value_and_gradient(loss, given["logits"], given["target"], torch.float32)
    assert terms.abs().max() <= 1e-30
    assert grad.abs().max() == 0


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("flsd53_gamma_selection", losses.SampleDependentFocalLoss()),
        ("flsd52_gamma_selection", losses.SampleDependentFocalLoss((5, 3, 2), (0.2, 0.5))),
    ],
)
def test_sample_dependent_gammas(vectors: Vectors, name: str, loss: losses.SampleDependentFocalLoss) -> None:
    entry = vectors[name]
    for dtype in (torch.float32, torch.float64):
        gammas = loss.gamma_of(torch.tensor(entry["inputs"]["p_true"], dtype=dtype))
        assert gammas.tolist() == entry["expected"]["gamma"]


@pytest.mark.parametrize("name", ["label_smoothing_0.05", "label_smoothing_0.1"])
def test_label_smoothing_in_both_forms(vectors: Vectors, name: str) -> None:
    entry = vectors[name]
    given = entry["inputs"]
    logits, labels = torch.tensor(given["logits"], dtype=torch.float64), torch.tensor(given["target"])
    others = losses.LabelSmoothingLoss(given["smoothing"], spread="others")(logits, labels)
    everything = losses.LabelSmoothingLoss(given["smoothing"])(logits, labels)
    assert close(others, entry["expected"]["mukhoti_K_minus_1"], entry["tolerance"])
    assert close(everything, entry["expected"]["wang_K"], entry["tolerance"])


def test_brier(vectors: Vectors) -> None:
    entry = vectors["brier_values"]
    logits = torch.tensor(entry["inputs"]["probs"], dtype=torch.float64).log()
    value = losses.BrierLoss()(logits, torch.tensor(entry["inputs"]["target"]))
    assert close(value, entry["expected"]["sum_over_classes"], entry["tolerance"])
    assert losses.BrierLoss()(torch.tensor([[0.0, 100.0]]), torch.tensor([0])) == 2


@pytest.mark.parametrize("normalisation", ["kumar", "torrvision"])
@pytest.mark.parametrize("labels", [[0, 1], [1, 0]], ids=["all right", "all wrong"])
def test_weighted_mmce_of_one_kind_only_is_0(normalisation: Any, labels: list[int]) -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]], requires_grad=True)
    penalised = losses.MMCELoss(1.0, normalisation=normalisation)(logits, torch.tensor(labels))
    base = losses.CrossEntropyLoss()(logits, torch.tensor(labels))
    assert penalised == base
    (grad,) = torch.autograd.grad(penalised - base, logits)
    assert grad.abs().max() <= 1e-7


@pytest.mark.parametrize("y", [1, 0])
def test_proper_part(vectors: Vectors, y: int) -> None:
    entry = vectors["proper_part_p0.95_gamma3"]
    logits = torch.tensor([[0.05, 0.95]], dtype=torch.float64).log()
    value = losses.ProperFocalLoss(entry["inputs"]["gamma"])(logits, torch.tensor([y]))
    assert close(value, entry["expected"][f"L_star_y{y}"], entry["tolerance"])


def test_inverse_focal_warns_where_it_stops_decreasing(vectors: Vectors) -> None:
    limit = vectors["inverse_focal_monotone_limit"]["expected"]["gamma_max"]
    losses.InverseFocalLoss(limit - 1e-6)
    with pytest.warns(UsageWarning, match="lowers p_y"):
        losses.InverseFocalLoss(limit + 1e-6)
    losses.InverseFocalLoss(8.0, detach_weight=True)  # the weight alone never turns the gradient
