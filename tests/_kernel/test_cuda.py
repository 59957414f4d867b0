"""The CUDA kernels, run by Triton's interpreter on the CPU in a process of its own, and on a device where there is one."""

import importlib.util
import math
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from calibrant import _kernel, losses
from calibrant._kernel import cuda

LOSSES = """
import itertools, math, torch
from torch.nn import functional as F
from calibrant._kernel import cuda

cuda._BLOCK, cuda._LONG_ROW = 64, 200  # several steps a row, and a row that counts as long
generator = torch.Generator().manual_seed(0)
for classes, dtype in itertools.product((2, 63, 64, 65, 200), (torch.float32, torch.float16, torch.bfloat16)):
    z = (6 * torch.randn(7, classes, generator=generator)).to(dtype)
    z[0, 1:] = -math.inf              # all classes but one excluded
    z[1] = 0.0
    z[2, 0], z[2, 1:] = 1e4, 0.0      # saturated
    z[3, : classes - 1] = -math.inf   # the first steps of the row hold nothing
    y = torch.tensor([0, 1, 1, classes - 1, 0, 1, 0])
    scale = torch.linspace(-1, 2, 7)
    ours, plain = (z.clone().requires_grad_() for _ in range(2))
    nll = cuda.row_nll(ours, y)
    expected = F.cross_entropy(plain.float(), y, reduction="none")
    assert nll.dtype == torch.float32
    assert torch.allclose(nll, expected, rtol=1e-5, atol=1e-6), (classes, dtype, nll, expected)
    nll.backward(scale)
    expected.backward(scale)
    assert ours.grad.dtype == dtype  # the interpreter truncates to bfloat16, where a device rounds
    rtol = 1e-5 if dtype == torch.float32 else 8e-3
    assert torch.allclose(ours.grad, plain.grad, rtol=rtol, atol=1e-6), (classes, dtype)

wide = torch.randn(5, 300, generator=generator)[:, ::2].requires_grad_()      # no unit stride
rows = torch.randn(9, 150, generator=generator)[::2].requires_grad_()         # a stride between rows
y = torch.arange(5)
for z in (wide, rows):
    (ours,) = torch.autograd.grad(cuda.row_nll(z, y).sum(), z)
    (plain,) = torch.autograd.grad(F.cross_entropy(z, y, reduction="sum"), z)
    assert torch.allclose(ours, plain, atol=1e-6)
    (first,) = torch.autograd.grad(cuda.row_nll(z, y).square().sum(), z, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), z)
    (first,) = torch.autograd.grad(F.cross_entropy(z, y, reduction="none").square().sum(), z, create_graph=True)
    assert torch.allclose(second, torch.autograd.grad(first.square().sum(), z)[0], rtol=1e-4, atol=1e-5)
print("kernels agree")
"""


@pytest.mark.slow
def test_the_kernels_agree_with_pytorch_in_the_interpreter() -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("optional package 'triton' is not installed")
    done = subprocess.run(
        [sys.executable, "-c", LOSSES], capture_output=True, text=True, env={**os.environ, "TRITON_INTERPRET": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert "kernels agree" in done.stdout


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_outside_is_refused_before_its_address_is_read(label: int) -> None:
    with pytest.raises(RuntimeError, match=r"expected labels in \[0, K\)"):
        cuda.row_nll(torch.zeros(2, 3), torch.tensor([0, label]))


def test_kernels_are_chosen_for_many_logits_that_they_can_take(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_large(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cuda") -> bool:
        like = SimpleNamespace(is_cuda=device == "cuda", numel=lambda: math.prod(shape), shape=shape, dtype=dtype)
        return _kernel.is_large(cast(torch.Tensor, like))

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "triton")
    assert is_large(4096, 1024)
    assert is_large(4096, 1024, dtype=torch.bfloat16)
    assert not is_large(4095, 1024)
    assert not is_large(10**6, 1023)
    assert not is_large(4096, 1024, dtype=torch.float64)
    assert not is_large(4096, 1024, device="cpu")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not is_large(4096, 1024)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_on_a_device_the_kernels_give_what_the_processor_does(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    z = (4 * torch.randn(256, 32_003, generator=generator)).to(dtype)
    y = torch.randint(32_003, (256,), generator=generator)
    for loss in (losses.CrossEntropyLoss(), losses.FocalLoss(0.5), losses.AdaFocalLoss(), losses.DualFocalLoss()):
        here, there = z.clone().requires_grad_(), z.cuda().requires_grad_()
        assert _kernel.is_large(there)
        value = loss.cuda()(there, y.cuda())
        value.backward()
        expected = loss.cpu()(here, y)
        expected.backward()
        assert torch.allclose(value.cpu(), expected, rtol=1e-5)
        largest = here.grad.abs().max().item()
        assert torch.allclose(there.grad.cpu(), here.grad, rtol=1e-2, atol=1e-5 * largest)
