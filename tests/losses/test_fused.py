"""The fused layer and loss against the two in turn: every loss by rows, every option, and the memory it saves."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from tests.makers import BY_ROW, WHOLE_BATCH, make
from torch import Tensor

from calibrant import losses
from calibrant.errors import InputError
from calibrant.losses import FusedLinearLoss


def layer(
    rows: int = 11, width: int = 4, classes: int = 6, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return hidden, weight, bias and labels."""
    generator = torch.Generator().manual_seed(3)
    sizes = ((rows, width), (classes, width), (classes,))
    parts = [torch.randn(size, generator=generator, dtype=dtype).requires_grad_() for size in sizes]
    return parts[0], parts[1], parts[2], torch.randint(classes, (rows,), generator=generator)


def gradients(value: Tensor, *parts: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(value, parts))


@pytest.mark.parametrize("name", BY_ROW)
def test_every_loss_by_rows_equals_the_layer_and_the_loss_in_turn(name: str) -> None:
    for reduction, chunk in [("mean", 3), ("sum", None), ("none", 4)]:
        hidden, weight, bias, labels = layer()
        labels[4] = -100
        common = {"reduction": reduction, "weight": torch.linspace(0.5, 2, 6, dtype=torch.float64)}
        fused = FusedLinearLoss(make(name, **common), chunk=chunk)
        value = fused(hidden, weight, labels, bias=bias)
        expected = make(name, **common)(hidden @ weight.t() + bias, labels)
        assert torch.allclose(value, expected, rtol=1e-12)
        pull = torch.linspace(-1, 2, 11, dtype=torch.float64) if reduction == "none" else torch.tensor(0.7)
        ours = gradients((value * pull).sum(), hidden, weight, bias)
        theirs = gradients((expected * pull).sum(), hidden, weight, bias)
        for one, other in zip(ours, theirs, strict=True):
            assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)


def test_sequences_keep_their_shape() -> None:
    hidden, weight, _, labels = layer(rows=12)
    fused = FusedLinearLoss(losses.FocalLoss(1.0, reduction="none"), chunk=5)
    flat = fused(hidden, weight, labels)
    shaped = fused(hidden.reshape(3, 4, 4), weight, labels.reshape(3, 4))
    assert torch.equal(shaped, flat.reshape(3, 4))


def test_sample_weights_multiply_the_terms_and_divide_the_mean() -> None:
    hidden, weight, _, labels = layer()
    labels[0] = -100
    share = torch.linspace(0, 1, 11, dtype=torch.float64)
    common = {"weight": torch.linspace(1, 2, 6, dtype=torch.float64)}
    mean = FusedLinearLoss(losses.FocalLoss(2.0, **common), chunk=4)(hidden, weight, labels, sample_weight=share)
    terms = losses.FocalLoss(2.0, reduction="none", **common)(hidden @ weight.t(), labels)
    kept = labels != -100
    expected = (share * terms).sum() / (share * common["weight"][labels.clamp_min(0)] * kept).sum()
    assert torch.allclose(mean, expected, rtol=1e-12)
    for one, other in zip(gradients(mean, hidden, weight), gradients(expected, hidden, weight), strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-13)


def test_all_ignored_is_nan_as_in_torch() -> None:
    hidden, weight, _, labels = layer()
    assert FusedLinearLoss(losses.FocalLoss(2.0))(hidden, weight, torch.full_like(labels, -100)).isnan()
    assert FusedLinearLoss(losses.FocalLoss(2.0))(hidden[:0], weight, labels[:0]).isnan()
    assert FusedLinearLoss(losses.FocalLoss(2.0, reduction="sum"))(hidden[:0], weight, labels[:0]) == 0


def test_a_frozen_layer_gets_no_gradient() -> None:
    hidden, weight, bias, labels = layer()
    value = FusedLinearLoss(losses.FocalLoss(2.0))(hidden, weight.detach(), labels, bias=bias.detach())
    value.backward()
    assert weight.grad is None
    assert hidden.grad is not None
    with torch.no_grad():
        assert not FusedLinearLoss(losses.FocalLoss(2.0))(hidden, weight, labels).requires_grad


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_autocast_computes_in_bfloat16_and_returns_gradients_of_the_parameters_dtype(reduction: str) -> None:
    hidden, weight, bias, labels = layer(rows=64, width=16, classes=40, dtype=torch.float32)
    loss = losses.FocalLoss(2.0, reduction=reduction)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fused = FusedLinearLoss(loss, chunk=20)(hidden, weight, labels, bias=bias)
        plain = loss(torch.nn.functional.linear(hidden, weight, bias), labels)
    assert fused.dtype == plain.dtype == torch.float32
    assert torch.allclose(fused, plain, rtol=1e-5)  # the logits are the same, in bfloat16
    exact = loss((hidden.double() @ weight.double().t() + bias.double()), labels)
    truth = gradients(exact.sum(), hidden, weight, bias)
    for one, best in zip(gradients(fused.sum(), hidden, weight, bias), truth, strict=True):
        assert one.dtype == torch.float32
        assert (one - best).norm() < 0.02 * best.norm()  # bfloat16 has 8 bits


def test_a_second_derivative_is_refused() -> None:
    hidden, weight, _, labels = layer()
    value = FusedLinearLoss(losses.FocalLoss(2.0))(hidden, weight, labels)
    with pytest.raises(InputError, match="first derivatives of FusedLinearLoss only, got create_graph=True"):
        torch.autograd.grad(value, hidden, create_graph=True)


@pytest.mark.parametrize("make_loss", [*(getattr(losses, name) for name in WHOLE_BATCH), torch.nn.CrossEntropyLoss])
def test_what_is_no_sum_over_samples_is_refused(make_loss: Callable[[], losses.Loss]) -> None:
    with pytest.raises(InputError, match=f"sum over samples, got {make_loss.__name__}"):
        FusedLinearLoss(make_loss())
    with pytest.raises(InputError, match="got the class FocalLoss; pass one such as"):
        FusedLinearLoss(losses.FocalLoss)


def test_labels_and_weights_that_do_not_fit_are_refused() -> None:
    hidden, weight, _, labels = layer()
    fused = FusedLinearLoss(losses.FocalLoss(2.0))
    with pytest.raises(InputError, match=r"integer labels of shape \(11,\), got torch.float32 \(11,\)"):
        fused(hidden, weight, labels.float())
    with pytest.raises(InputError, match=r"sample_weight of shape \(11,\)"):
        fused(hidden, weight, labels, sample_weight=torch.ones(2))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo looks at it
def test_a_compiled_step_breaks_its_graph_here_and_agrees() -> None:
    hidden, weight, _, labels = layer(dtype=torch.float32)
    fused = FusedLinearLoss(losses.FocalLoss(2.0), chunk=4)

    def step(h: Tensor, w: Tensor) -> Tensor:
        return 2 * fused(torch.tanh(h), w, labels)

    compiled = torch.compile(step, backend="aot_eager")
    ours, plain = compiled(hidden, weight), step(hidden, weight)
    assert torch.allclose(ours, plain)
    assert torch.allclose(*(gradients(value, hidden, weight)[1] for value in (ours, plain)))


MEMORY = """
import sys, torch
from calibrant import losses
from calibrant.losses import FusedLinearLoss
reduction = sys.argv[1]
rows, classes, width = 2048, 128_256, 16
hidden, weight = torch.randn(rows, width, requires_grad=True), torch.randn(classes, width, requires_grad=True)
labels = torch.randint(classes, (rows,))
fused = FusedLinearLoss(losses.FocalLoss(3.0, reduction=reduction))
fused(hidden[:4], weight, labels[:4]).sum().backward()
def peak():  # KiB; ru_maxrss would begin at what the parent held
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])

before = peak()
fused(hidden, weight, labels).sum().backward()
print((peak() - before) // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_the_logits_are_never_held(reduction: str) -> None:
    done = subprocess.run([sys.executable, "-c", MEMORY, reduction], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 300  # MiB; the logits are 1,002, and with their gradient 2,004


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_excluded_classes_and_ignored_rows_leave_finite_gradients(dtype: torch.dtype) -> None:
    hidden, weight, bias, labels = layer(dtype=torch.float32)
    bias = torch.where(torch.arange(6) < 2, -torch.inf, bias.detach())
    labels = torch.where(torch.arange(11) % 3 == 1, -100, labels.clamp_min(2))
    parts = [part.detach().to(dtype).requires_grad_() for part in (hidden, weight, bias)]
    wide = [part.detach().double().requires_grad_() for part in parts]
    loss = losses.FocalLoss(0.5, reduction="sum")
    value = FusedLinearLoss(loss, chunk=3)(parts[0], parts[1], labels, bias=parts[2])
    ours = torch.autograd.grad(value, parts, torch.full_like(value, 65536.0))
    expected = gradients(65536.0 * loss(wide[0] @ wide[1].t() + wide[2], labels), *wide)
    for one, other in zip(ours, expected, strict=True):
        assert (one.double() - other).abs().max() <= 12 * torch.finfo(dtype).eps * other.abs().max()
