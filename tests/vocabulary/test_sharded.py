"""Sharded logits against whole ones, in a process alone and in two that hold some columns each (gloo)."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from calibrant import Predictions, losses
from calibrant.calibrators import TemperatureScaling
from calibrant.errors import InputError
from calibrant.metrics import ECE, NLL
from calibrant.vocabulary import ShardedLogits

SCRIPT = """
import sys, torch
from torch import distributed
from calibrant import Predictions, losses
from calibrant.calibrators import TemperatureScaling
from calibrant.errors import InputError
from calibrant.metrics import ECE
from calibrant.vocabulary import ShardedLogits

rank, meeting = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
generator = torch.Generator().manual_seed(0)
z = 3 * torch.randn(40, 11, generator=generator, dtype=torch.float64)
y = (z / 1.5 - torch.log(-torch.log(torch.rand(z.shape, generator=generator, dtype=z.dtype)))).argmax(1)
z[0, 2], z[0, 8] = 9.0, 9.0      # a tie across the processes: the first index wins
z[1, 5], z[1, 1:5] = 40.0, -40.0  # a margin at which 1 - p is lost in p
y[1] = 5
z[2, :7] = -torch.inf            # one process has excluded classes only
y[2] = 9

def close(one, other, rtol=1e-12):
    assert torch.allclose(one, other, rtol=rtol, atol=1e-13), (one - other).abs().max()

FAMILY = (
    losses.CrossEntropyLoss(), losses.FocalLoss(0.5), losses.FocalLoss(3.0, detach_weight=True, reduction="sum"),
    losses.InverseFocalLoss(1.0), losses.AdaFocalLoss(),
    losses.FocalLoss(2.0, reduction="none", weight=torch.linspace(1, 2, 11, dtype=torch.float64)),
)
for start, stop in (((0, 7), (7, 11)), ((0, 11), (11, 11))):
    columns = slice(*(start, stop)[rank])
    own = z[:, columns].clone().requires_grad_()
    sharded, whole = ShardedLogits(own), Predictions.from_logits(z, y)
    assert sharded.classes == 11 and sharded.first == columns.start
    close(sharded.log_norm, whole.logits.logsumexp(dim=1))
    close(sharded.nll(y), whole.nll)
    close(sharded.confidence, whole.confidence)
    assert torch.equal(sharded.predicted, whole.predicted)
    assert abs(ECE()(sharded.top_label(y)) - ECE()(whole)) < 1e-12
    for loss in FAMILY:
        full, labels = z.clone().requires_grad_(), y.clone()
        labels[3] = -100
        ours, plain = sharded.loss(labels, loss), loss(full, labels)
        close(ours, plain)
        pull = torch.linspace(-1, 2, ours.numel(), dtype=torch.float64).reshape(ours.shape)
        (mine,) = torch.autograd.grad((ours * pull).sum(), own)
        (theirs,) = torch.autograd.grad((plain * pull).sum(), full)
        close(mine, theirs[:, columns])
        assert mine[3].abs().sum() == 0
    found, expected = sharded.fit_temperature(y), TemperatureScaling().fit(z, y)
    assert abs(found.log_temperature - expected.log_temperature) < 2e-7, (found, expected)  # a fit's promise
    close(sharded.tempered(2.0).nll(y), Predictions.from_logits(z / 2.0, y).nll)

half = z[:, columns].to(torch.bfloat16).requires_grad_()  # the second process has no columns here
ShardedLogits(half).loss(y, losses.FocalLoss(2.0)).backward()
assert half.grad.dtype == torch.bfloat16

for wrong, message in (
    (lambda: ShardedLogits(z[: 5 + rank, :3]), "the same rows and dtype"),
    (lambda: ShardedLogits(z[:, :3] if rank else z[0]), "in rank 0; pass one there"),
    (lambda: ShardedLogits(torch.full((2, 3), torch.nan if rank else 0.0)).row_max, "NaN or +inf in row 0"),
):
    try:
        wrong()
    except InputError as error:
        assert message in str(error), error
    else:
        raise SystemExit("not refused")
distributed.destroy_process_group()
print("agree")
"""


@pytest.mark.slow
def test_two_processes_equal_whole_logits(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    running = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "meeting")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for rank in range(2)
    ]  # fmt: skip
    told = [process.communicate(timeout=400) for process in running]
    assert all("agree" in out for out, _ in told), "\n".join(error for _, error in told)


def sample(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return 2 * torch.randn(30, 5, generator=generator, dtype=dtype), torch.arange(30) % 5


def test_alone_it_holds_all_columns() -> None:
    logits, _ = sample()
    labels = torch.where(torch.arange(30) < 20, logits.argmax(dim=1), 0)
    sharded, whole = ShardedLogits(logits), Predictions.from_logits(logits, labels)
    assert repr(sharded) == "ShardedLogits(30 rows, classes 0 to 5 of 5)"
    assert sharded.nll(labels).mean().item() == pytest.approx(NLL()(whole), rel=1e-14)
    assert ECE()(sharded.top_label(labels)) == pytest.approx(ECE()(whole), rel=1e-12)
    assert torch.equal(logits, sample()[0])  # nothing was computed in place
    fitted = sharded.fit_temperature(labels)
    assert fitted.temperature == pytest.approx(TemperatureScaling().fit(logits, labels).temperature, rel=2e-7)
    assert torch.allclose(fitted(logits), sharded.tempered(fitted.temperature).logits)


def test_the_loss_passes_gradcheck() -> None:
    logits, labels = sample()
    logits = logits[:6].requires_grad_()
    assert torch.autograd.gradcheck(lambda z: ShardedLogits(z).loss(labels[:6], losses.FocalLoss(1.5)), logits)


@pytest.mark.parametrize("margin", [0.0, 20.0, 100.0, -100.0, 700.0])
def test_float32_stays_finite_and_right_at_every_margin(margin: float) -> None:
    z = torch.tensor([[margin, 0.0, -1.0]], requires_grad=True)
    value = ShardedLogits(z).loss([0], losses.FocalLoss(0.5))
    value.backward()
    exact = losses.FocalLoss(0.5)(torch.tensor([[margin, 0.0, -1.0]], dtype=torch.float64), torch.tensor([0]))
    assert value.item() == pytest.approx(exact.item(), rel=1e-5, abs=1e-30)
    assert bool(torch.isfinite(z.grad).all())


def test_what_cannot_be_sharded_is_refused() -> None:
    logits, labels = sample()
    with pytest.raises(InputError, match="true class's probability, got BrierLoss"):
        ShardedLogits(logits).loss(labels, losses.BrierLoss())
    with pytest.raises(InputError, match="got DualFocalLoss"):
        ShardedLogits(logits).loss(labels, losses.DualFocalLoss())
    with pytest.raises(InputError, match=r"logits as a floating tensor \(N, K_own\)"):
        ShardedLogits(logits.long())
    with pytest.raises(InputError, match="K ≥ 2 classes, got"):
        ShardedLogits(logits[:, :1])
    with pytest.raises(InputError, match=r"labels in \[0, 5\), got 5 in row 29"):
        ShardedLogits(logits).nll([0] * 29 + [5])
    with pytest.raises(InputError, match=r"labels in \[0, 5\), got 9"):
        ShardedLogits(logits).loss(torch.full((30,), 9), losses.FocalLoss(1.0))
    with pytest.raises(InputError, match="NaN or \\+inf in row 2"):
        ShardedLogits(logits.index_fill(0, torch.tensor([2]), math.nan)).nll(labels)
    with pytest.raises(InputError, match="only −inf in row 0"):
        ShardedLogits(logits.index_fill(0, torch.tensor([0]), -math.inf)).nll(labels)
    with pytest.raises(InputError, match="finite logit for every label, got −inf in row 0"):
        masked = logits.clone()
        masked[0, int(labels[0])] = -math.inf
        ShardedLogits(masked).fit_temperature(labels)
    with pytest.raises(InputError, match="temperature in"):
        ShardedLogits(logits).tempered(0.0)
    z = logits.clone().requires_grad_()
    with pytest.raises(InputError, match="first derivatives of sharded losses only"):
        torch.autograd.grad(ShardedLogits(z).loss(labels, losses.FocalLoss(1.0)), z, create_graph=True)
