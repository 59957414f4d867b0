"""The CPU's sums: PyTorch's against NumPy, the compiled loops against PyTorch's, and when which of them runs."""

import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrant import _kernel
from calibrant._kernel import EDGE

SIZES = [(1, 2), (63, 3), (64, 10), (130, 23), (129, 24), (65, 63), (66, 64), (200, 65), (7, 300)]


def drawn(rows: int, classes: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Return logits with ties, excluded classes and saturated rows, and labels of finite logits."""
    generator = torch.Generator().manual_seed(rows * classes)
    z = 4 * torch.randn(rows, classes, generator=generator)
    labels = torch.softmax(z / 2, dim=1).multinomial(1, generator=generator)[:, 0]
    z[::5, 0] = -torch.inf
    labels[::5] = classes - 1
    z[1::7] = z[1::7].round() + 0.0  # ties
    z[2::11], z[3::11] = 0.0, 1e4  # all tied
    z[4::11, 1] = 60.0  # saturated: 1 − p is 1e-24
    return z.to(dtype), labels


def in_both(monkeypatch: pytest.MonkeyPatch, call: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """Return the result of PyTorch's operations and of the compiled loops."""
    pytest.importorskip("numba", reason="optional package 'numba' is not installed")
    monkeypatch.setattr(_kernel, "LEAST", 1 << 62)
    reference = call()
    monkeypatch.setattr(_kernel, "LEAST", 1)
    return reference, call()


def softmax(z: Tensor) -> np.ndarray:
    e = np.exp(z.double().numpy() - z.double().numpy().max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(("rows", "classes"), SIZES)
def test_row_statistics(rows: int, classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype in (torch.float64, torch.float32, torch.float16):
        z, labels = drawn(rows, classes, dtype)
        p = softmax(z)
        own, others = p[np.arange(rows), labels], np.where(np.arange(classes) == labels[:, None].numpy(), 0.0, p)
        rest = others.sum(axis=1)
        exact = np.where(own > 0.5, -np.log1p(-rest.clip(max=0.5)), -np.log(own))
        for found in in_both(monkeypatch, lambda z=z, labels=labels: _kernel.row_statistics(z, labels)):
            confidence, decision, nll, brier = (one.numpy() for one in found)
            np.testing.assert_allclose(confidence, p.max(axis=1), rtol=1e-14)
            np.testing.assert_array_equal(decision, p.argmax(axis=1))  # the first of equal ones
            np.testing.assert_allclose(nll, exact, rtol=1e-13, atol=1e-300)
            np.testing.assert_allclose(brier, rest**2 + (others**2).sum(axis=1), rtol=1e-13)


def test_an_excluded_label_has_infinite_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    z, labels = torch.tensor([[0.0, -torch.inf, -800.0]]).expand(70, 3), torch.tensor([1, 2] * 35)
    for found in in_both(monkeypatch, lambda: _kernel.row_statistics(z, labels).nll):
        assert found[:2].tolist() == [torch.inf, 800.0]


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize(("rows", "classes"), SIZES)
def test_excess_of_the_labels(rows: int, classes: int, squared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    z, _ = drawn(rows, classes)
    p = softmax(z)
    with np.errstate(divide="ignore", invalid="ignore"):
        losses = (p**2).sum(axis=1, keepdims=True) + 1 - 2 * p if squared else -np.log(p)
        excess = losses - losses.min(axis=1, keepdims=True)
        means = [np.where(p > 0, p * excess**power, 0.0).sum(axis=1) for power in (1, 2)]
    expected = np.stack([losses.min(axis=1), *means, excess.max(axis=1)])
    for found in in_both(monkeypatch, lambda: _kernel.label_excess(z, squared=squared)):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize(("rows", "classes"), SIZES)
def test_signed_sums_of_the_classes(rows: int, classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    z, labels = drawn(rows, classes)
    p, y = softmax(z), labels.numpy()
    signs = torch.linspace(-1, 1, classes * 7, dtype=torch.float64).view(classes, 7)
    cell = np.clip(np.searchsorted(np.arange(8) / 7 + EDGE, p) - 1, 0, 6)
    chosen = np.take_along_axis(np.broadcast_to(signs.numpy(), (rows, classes, 7)), cell[..., None], axis=2)[..., 0]
    expected = (chosen * (p - (np.arange(classes) == y[:, None]))).sum(axis=1)
    for found in in_both(monkeypatch, lambda: _kernel.class_signs(z, labels, signs)):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize(("rows", "classes"), SIZES)
def test_moments(rows: int, classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    z, labels = drawn(rows, classes)
    weights = torch.rand(rows, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for beta, w in ((1e-3, None), (0.7, weights), (3.0, None), (3.0, weights)):
        d = (z.double() - z.double().amax(dim=1, keepdim=True)).numpy()
        p, finite, by = softmax(beta * z.double()), np.where(np.isinf(d), 0.0, d), 1.0 if w is None else w.numpy()
        mean = (p * finite).sum(axis=1)
        expected = mean, (p * finite**2).sum(axis=1) - mean**2, d[np.arange(rows), labels]
        for found in in_both(monkeypatch, lambda b=beta, w=w: _kernel.temperature_moments(z, labels, w, b)):
            np.testing.assert_allclose(found.numpy(), [(by * one).sum() for one in expected], rtol=1e-11, atol=1e-11)


def edges_and_neighbours(bins: int) -> Tensor:
    edges = torch.arange(bins + 1, dtype=torch.float64) / bins
    p = torch.cat([edges, edges - 1e-13, edges + 1e-13, edges - 1e-7, edges + 1e-7, torch.linspace(0, 1, 997).double()])
    return p.clamp(0, 1)


def binned(p: np.ndarray, y: np.ndarray, bins: int) -> np.ndarray:
    """Return the sums in bins (lo, hi], found by a search among the edges."""
    cell = np.clip(np.searchsorted(np.arange(bins + 1) / bins + EDGE, p) - 1, 0, bins - 1)
    columns = (np.ones_like(p), p, y, p * p, p * y)
    return np.stack([np.bincount(cell, column, bins) for column in columns])


@pytest.mark.parametrize("bins", [1, 2, 7, 15, 100, 1000])
def test_pairs_in_bins(bins: int, monkeypatch: pytest.MonkeyPatch) -> None:
    p = edges_and_neighbours(bins)
    for y in (torch.arange(len(p)) % 3 == 0, (torch.arange(len(p)) % 3 == 0).double()):
        for found in in_both(monkeypatch, lambda y=y: _kernel.pair_bins(p, y, bins)):
            np.testing.assert_allclose(found.numpy(), binned(p.numpy(), y.double().numpy(), bins), rtol=1e-12)
    half, y = p.half()[::2], torch.arange(len(p))[::2] % 2 == 0  # converted, and not contiguous
    for found in in_both(monkeypatch, lambda: _kernel.pair_bins(half, y, bins)):
        np.testing.assert_allclose(found.numpy(), binned(half.double().numpy(), y.double().numpy(), bins), rtol=1e-12)


@pytest.mark.parametrize(("rows", "classes"), SIZES)
def test_top_and_class_bins(rows: int, classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (z, labels), bins = drawn(rows, classes), 1 if rows == 64 else 15
    p, y = softmax(z), labels.numpy()
    hit = (p.argmax(axis=1) == y).astype(float)
    for found in in_both(monkeypatch, lambda: _kernel.top_bins(z, labels, bins)):
        np.testing.assert_allclose(found.numpy(), binned(p.max(axis=1), hit, bins), rtol=1e-12, atol=1e-12)
    each = [binned(p[:, k], (y == k).astype(float), bins) for k in range(classes)]
    for found in in_both(monkeypatch, lambda: _kernel.class_bins(z, labels, bins)):
        np.testing.assert_allclose(found.numpy(), np.concatenate(each, axis=1), rtol=1e-12, atol=1e-12)


def test_parts_and_threads_do_not_change_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    z, labels = drawn(700, 7)
    monkeypatch.setattr(_kernel, "SEGMENT", 7 * 90)  # no multiple of the lanes
    found = []
    for workers in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda workers=workers: workers)
        monkeypatch.setattr(_kernel, "LEAST", 1)
        calls = (
            _kernel.top_bins(z, labels, 9),
            _kernel.class_bins(z, labels, 9),
            _kernel.row_statistics(z, labels).nll,
        )
        found.append(torch.cat([one.reshape(-1) for one in calls]))
        for call in (
            lambda: _kernel.top_bins(z, labels, 9),
            lambda: _kernel.class_bins(z, labels, 9),
            lambda: _kernel.row_statistics(z, labels).nll,
            lambda: _kernel.temperature_moments(z, labels, None, 0.5),
        ):
            torch.testing.assert_close(*in_both(monkeypatch, call), rtol=1e-12, atol=1e-12)
    assert torch.equal(*found)


@pytest.mark.parametrize("logits", ["small", "gradient", "integers"])
def test_the_loops_are_not_loaded_for(logits: str) -> None:
    z = {
        "small": torch.zeros(10, 10),
        "gradient": torch.zeros(1 << 18, 2, requires_grad=True),
        "integers": torch.zeros(1 << 18, 2, dtype=torch.int64),
    }[logits]
    assert _kernel._loops_for(z) is None


def test_without_numba_pytorch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "calibrant._kernel.loops", None)
    monkeypatch.delattr(_kernel, "loops", raising=False)
    _kernel._loops.cache_clear()
    monkeypatch.setattr(_kernel, "LEAST", 1)
    z, labels = drawn(64, 10)
    assert _kernel._loops_for(z) is None
    assert int(_kernel.top_bins(z, labels, 15)[0].sum()) == 64
    _kernel._loops.cache_clear()


@pytest.mark.slow
def test_the_loops_run_where_no_cache_can_be_written(tmp_path: object) -> None:
    pytest.importorskip("numba", reason="optional package 'numba' is not installed")
    script = """
import torch
from calibrant import _kernel
from numba.core import caching
caching.CacheImpl._locator_classes = []
_kernel.LEAST = 1
print(int(_kernel.top_bins(torch.eye(3), torch.arange(3), 5)[0].sum()))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=dict(os.environ))
    assert done.stdout.strip() == "3", done.stderr


def test_threads_are_set_and_restored() -> None:
    before = torch.get_num_threads()
    with _kernel.threads(1):
        assert torch.get_num_threads() == 1
    with _kernel.one_thread_if_small((1 << 18) - 1):
        assert torch.get_num_threads() == 1
    with _kernel.one_thread_if_small(1 << 18):
        assert torch.get_num_threads() == before
    assert torch.get_num_threads() == before
