"""The fused layer and loss against the two in turn: every loss by rows, every option, and the memory it saves."""

import subprocess
import sys

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


def assert_same(value: Tensor, expected: Tensor, parts: tuple[Tensor, ...]) -> None:
    """Hold a value and its gradients to those of the layer and the loss in turn."""
    assert torch.allclose(value, expected, rtol=1e-12)
    pull = torch.linspace(-1, 2, value.numel(), dtype=torch.float64).reshape(value.shape)
    ours, theirs = (torch.autograd.grad((one * pull).sum(), parts) for one in (value, expected))
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", BY_ROW)
def test_every_loss_by_rows_is_the_layer_and_the_loss_in_turn(name: str) -> None:
    for reduction, chunk in [("mean", 3), ("sum", None), ("none", 4)]:
        hidden, weight, bias, labels = layer()
        labels[4] = -100
        loss = make(name, reduction=reduction, weight=torch.linspace(0.5, 2, 6, dtype=torch.float64))
        value = FusedLinearLoss(loss, chunk=chunk)(hidden, weight, labels, bias=bias)
        assert_same(value, loss(hidden @ weight.t() + bias, labels), (hidden, weight, bias))


def test_sequences_keep_their_shape() -> None:
    hidden, weight, _, labels = layer(rows=12)
    fused = FusedLinearLoss(losses.FocalLoss(1.0, reduction="none"), chunk=5)
    shaped = fused(hidden.reshape(3, 4, 4), weight, labels.reshape(3, 4))
    assert torch.equal(shaped, fused(hidden, weight, labels).reshape(3, 4))


def test_all_ignored_is_nan_as_in_torch() -> None:
    hidden, weight, _, labels = layer()
    assert FusedLinearLoss(losses.FocalLoss(2.0))(hidden, weight, torch.full_like(labels, -100)).isnan()
    assert FusedLinearLoss(losses.FocalLoss(2.0))(hidden[:0], weight, labels[:0]).isnan()
    assert FusedLinearLoss(losses.FocalLoss(2.0, reduction="sum"))(hidden[:0], weight, labels[:0]) == 0


def test_a_frozen_layer_gets_no_gradient() -> None:
    hidden, weight, bias, labels = layer()
    fused = FusedLinearLoss(losses.FocalLoss(2.0))
    fused(hidden, weight.detach(), labels, bias=bias.detach()).backward()
    assert weight.grad is None
    assert hidden.grad is not None
    with torch.no_grad():
        assert not fused(hidden, weight, labels).requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, None], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_half_precision_and_autocast_keep_sums_in_float32(reduction: str, dtype: torch.dtype | None) -> None:
    hidden, weight, bias, labels = layer(rows=64, width=16, classes=40, dtype=torch.float32)
    loss = losses.FocalLoss(2.0, reduction=reduction)
    exact = loss((hidden.double() @ weight.double().t() + bias.double()), labels)
    truth = torch.autograd.grad(exact.sum(), (hidden, weight, bias))
    parts = tuple(part.detach().to(dtype or torch.float32).requires_grad_() for part in (hidden, weight, bias))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is None):
        value = FusedLinearLoss(loss, chunk=20)(parts[0], parts[1], labels, bias=parts[2])
    assert value.dtype == torch.float32
    for one, best, part in zip(torch.autograd.grad(value.sum(), parts), truth, parts, strict=True):
        assert one.dtype == part.dtype
        assert (one - best).norm() < 0.03 * best.norm()  # bfloat16 has 8 bits


def test_a_second_derivative_is_refused() -> None:
    hidden, weight, _, labels = layer()
    value = FusedLinearLoss(losses.FocalLoss(2.0))(hidden, weight, labels)
    with pytest.raises(InputError, match="only first derivatives of FusedLinearLoss, got create_graph=True"):
        torch.autograd.grad(value, hidden, create_graph=True)


def test_what_is_no_sum_over_samples_is_refused() -> None:
    batch_loss = losses.LpNormLoss(0.1, base=losses.MDCALoss())
    for loss in (*(make(name) for name in WHOLE_BATCH), batch_loss, torch.nn.CrossEntropyLoss()):
        with pytest.raises(InputError, match=f"sum over samples, got {type(loss).__name__}"):
            FusedLinearLoss(loss)
    with pytest.raises(InputError, match="got the class FocalLoss; pass a loss such as"):
        FusedLinearLoss(losses.FocalLoss)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo looks at it
def test_a_compiled_step_breaks_its_graph_here_and_agrees() -> None:
    hidden, weight, _, labels = layer(dtype=torch.float32)
    fused = FusedLinearLoss(losses.FocalLoss(2.0), chunk=4)

    def step(h: Tensor, w: Tensor) -> Tensor:
        return 2 * fused(torch.tanh(h), w, labels)

    ours, plain = torch.compile(step, backend="aot_eager")(hidden, weight), step(hidden, weight)
    assert torch.allclose(ours, plain)
    assert torch.allclose(*(torch.autograd.grad(value, weight)[0] for value in (ours, plain)))


MEMORY = """
import sys, torch
from calibrant import losses
from calibrant.losses import FusedLinearLoss
rows, classes, width = 2048, 128_256, 16
hidden, weight = torch.randn(rows, width, requires_grad=True), torch.randn(classes, width, requires_grad=True)
labels = torch.randint(classes, (rows,))
fused = FusedLinearLoss(losses.FocalLoss(3.0, reduction=sys.argv[1]))
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
