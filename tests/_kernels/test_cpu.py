"""The CPU's compiled loops against PyTorch and NumPy in float64: hostile rows, every dtype, threads, forks, caches."""

import math
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrant import Predictions
from calibrant._kernels import cpu
from calibrant.binning import BinTable, EqualWidth
from calibrant.calibrators import TemperatureScaling
from calibrant.calibrators.one_vs_rest.maps import FeatureChunk, slope_and_one, sums_for_newton
from calibrant.errors import BoundWarning
from calibrant.metrics import ECE, Brier, ClasswiseECE, TopLabelECE

pytest.importorskip("numba", reason="optional package 'numba' is not installed")

SIZES = [(3, 2), (64, 2), (65, 3), (130, 10), (257, 100), (33, 159), (33, 160), (9, 192), (5, 1000), (2, 100_003)]


@pytest.fixture(autouse=True)
def _at_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "LEAST", 1)


def hostile(rows: int, classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return logits (rows, classes) that hold −inf, ties, subnormal numbers, ±88 and ±1e4 beside ordinary rows."""
    z = 4 * torch.randn(rows, classes, generator=torch.Generator().manual_seed(rows * classes), dtype=torch.float64)
    z[0, 1:] = -math.inf
    z[rows // 2] = 1.5  # all equal: the first class is decided
    z[rows - 1, : classes - 1] = -math.inf
    if rows > 8:
        z[1] = 1e-40
        z[2] = torch.linspace(-88, 88, classes, dtype=torch.float64)
        z[3, 0], z[3, 1:] = 1e4, -1e4
        z[4] = z[4].round()  # ties
        z[5, -1], z[5, :-1] = 30.0, 0.0
        z[6] = -88.0
        z[7, classes // 2] = z[7].max()
    return z.to(dtype)


def exact(z: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return e = exp(z − max z) (N, K) in float64, and the first index of the maximum."""
    values = z.double().numpy()
    return np.exp(values - values.max(axis=1, keepdims=True)), values.argmax(axis=1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "classes"), SIZES)
def test_row_statistics_are_those_of_float64(rows: int, classes: int, dtype: torch.dtype) -> None:
    z = hostile(rows, classes, dtype)
    y = torch.arange(rows) % classes
    e, best = exact(z)
    d = z.double().numpy() - z.double().numpy().max(axis=1, keepdims=True)
    e[np.arange(rows), best] = 0  # the others
    found = cpu.row_statistics(z, y)
    assert found.top.dtype == z.dtype
    assert torch.equal(found.top, z.amax(dim=1))
    assert found.best.tolist() == best.tolist()
    assert torch.equal(found.at_label, z.gather(1, y[:, None])[:, 0])
    # z − max z is rounded as well: an error of half a unit in its last place, relative to the exponential
    for power, sums in ((1, found.others), (2, found.square)):
        bound = power * (e**power * (4e-15 + np.finfo(float).eps * np.minimum(-d, 200))).sum(axis=1)
        assert np.all(np.abs(sums.numpy() - (e**power).sum(axis=1)) <= bound + classes * np.finfo(float).tiny)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("rows", "classes"), SIZES)
def test_moments_are_those_of_float64(rows: int, classes: int, weighted: bool) -> None:
    z = hostile(rows, classes)
    w = torch.linspace(0, 2, rows, dtype=torch.float64)
    d = np.maximum(z.double().numpy() - z.double().numpy().max(axis=1, keepdims=True), -1e30)
    for beta in (0.0, 0.01, 1.0, 30.0):
        p = np.exp(beta * d)
        p /= p.sum(axis=1, keepdims=True)
        if beta == 0:  # a class at −inf counts nothing, at any β > 0
            continue
        mean = (p * d).sum(axis=1)
        both = np.stack([mean, (p * d * d).sum(axis=1) - mean**2])
        expected = (both @ w.numpy()) if weighted else both.sum(axis=1)
        scale = 1 + np.abs((p * d * d).sum(axis=1)).sum()
        for dtype, rtol in ((torch.float64, 1e-13), (torch.float32, 2e-5)):
            found = cpu.temperature_moments(
                z, z.amax(dim=1) if cpu.walks_columns(z) else None, w if weighted else None, beta, dtype
            )
            assert np.allclose(found, expected, rtol=rtol, atol=rtol * scale)


@pytest.mark.parametrize(("rows", "classes"), [size for size in SIZES if size[1] < 160])
def test_margins_are_those_of_float64(rows: int, classes: int) -> None:
    w = torch.linspace(0, 2, rows, dtype=torch.float64)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        z = hostile(rows, classes, dtype)
        y = labels_of(z)
        margin = (z.gather(1, y[:, None])[:, 0].double() - z.amax(dim=1).double()).clamp_min(-1e300)
        assert cpu.margin_sum(z, y, None) == pytest.approx(float(margin.sum()), rel=1e-12, abs=1e-12)
        assert cpu.margin_sum(z, y, w) == pytest.approx(float(margin @ w), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("bins", [1, 2, 7, 15, 64, 100])
def test_pairs_fall_into_the_bins_of_a_search_among_the_edges(bins: int) -> None:
    edges = torch.arange(bins + 1, dtype=torch.float64) / bins
    around = torch.cat([edges, torch.nextafter(edges, edges + 1), torch.nextafter(edges, edges - 1)]).clamp(0, 1)
    p = torch.cat([around, torch.rand(70_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)])
    index = torch.bucketize(p, edges, right=False).sub(1).clamp(0, bins - 1)
    for y in (p > 0.3, (p > 0.3).double(), (p > 0.3).long()):
        columns = (torch.ones_like(p), p, y.double(), p * p, p * y.double())
        exact = torch.stack([torch.bincount(index, weights=one, minlength=bins) for one in columns])
        found = cpu.pair_bins(p, y, edges)
        assert torch.equal(found[[0, 2]], exact[[0, 2]])
        assert torch.allclose(found, exact, rtol=1e-12)


def labels_of(z: Tensor) -> Tensor:
    """Return labels (N,): the decided class for most rows, else any with a finite logit."""
    rows, classes = z.shape
    best = z.float().argmax(dim=1)
    y = torch.where(torch.arange(rows) % 3 > 0, best, torch.arange(rows) % classes)
    return torch.where(z.gather(1, y[:, None])[:, 0].isinf(), best, y)


@pytest.mark.parametrize("bins", [1, 2, 15, 1000])
@pytest.mark.parametrize(("rows", "classes"), SIZES)
def test_tables_leave_out_what_lies_at_an_edge(rows: int, classes: int, bins: int) -> None:
    for dtype in (torch.float64, torch.float32, torch.float16):
        z = hostile(rows, classes, dtype)
        y, edges = labels_of(z), EqualWidth(bins).edges(z)
        e, best = exact(z)
        p = torch.from_numpy(1 / e.sum(axis=1))
        found, near = cpu.top_bins(z, y, len(edges) - 1, margin=1e-4)
        wanted = ((p[:, None] - edges[1:-1]).abs() <= 1e-4 * p[:, None]).any(dim=1)
        assert torch.equal(near, torch.nonzero(wanted)[:, 0])
        hit = torch.from_numpy(best) == y
        table = BinTable.from_pairs(EqualWidth(bins).assign(p), p, hit.double(), bins=bins)
        rest = BinTable.from_pairs(EqualWidth(bins).assign(p[wanted]), p[wanted], hit[wanted].double(), bins=bins)
        assert torch.equal(found[0].long(), table.count - rest.count)
        assert torch.equal(found[2], table.sum_y - rest.sum_y)
        torch.testing.assert_close(found[1:], table.second - rest.second, rtol=1e-6, atol=1e-9)
        every = cpu.class_bins(z, y, edges)
        assert every[:, ::bins].shape == (5, classes)
        assert (float(every[0].sum()), float(every[2].sum())) == (rows * classes, rows)
        q = torch.softmax(z.double(), dim=1)
        assert float(every[3].sum()) == pytest.approx(float(q.square().sum()), rel=1e-9)
        assert float(every[4].sum()) == pytest.approx(float(q.gather(1, y[:, None]).sum()), rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "classes"), [*SIZES, (5000, 7), (4096, 3), (300, 161)])
def test_sums_of_scores_are_those_of_float64(rows: int, classes: int, dtype: torch.dtype) -> None:
    z = hostile(rows, classes, dtype)
    y = labels_of(z)
    nll, brier, hits = cpu.score_sums(z, y)
    log_p = torch.log_softmax(z.double(), dim=1)
    wanted = -log_p.gather(1, y[:, None]).sum()
    assert nll == pytest.approx(float(wanted), rel=1e-13)
    p = log_p.exp()
    p[torch.arange(rows), y] -= 1
    assert brier == pytest.approx(float(p.square().sum()), rel=1e-12, abs=1e-13)
    assert hits == int((z.float().argmax(dim=1) == y).sum() if dtype != torch.float64 else (z.argmax(dim=1) == y).sum())


def test_sums_of_scores_keep_the_digits_of_nearly_certain_rows() -> None:
    z = torch.zeros(5000, 3)
    z[:, 0] = 40.0
    nll, brier, hits = cpu.score_sums(z, torch.zeros(5000, dtype=torch.int64))
    data = Predictions.from_logits(z, torch.zeros(5000, dtype=torch.int64))
    assert data.nll[0].item() == pytest.approx(2 * math.exp(-40), rel=1e-12)
    assert Brier()(data) == pytest.approx(6 * math.exp(-80), rel=1e-12)
    assert nll == pytest.approx(5000 * 2 * math.exp(-40), rel=1e-12)
    assert brier == pytest.approx(5000 * 6 * math.exp(-80), rel=1e-12)
    assert hits == 5000
    z[7, 1] = -math.inf
    assert cpu.score_sums(z, torch.tensor([0] * 7 + [1] + [0] * 4992))[0] == math.inf


def on_edges(classes: int, dtype: torch.dtype) -> Tensor:
    """Return logits (N, K) whose probabilities are multiples of 1/60, by classes that tie or by logarithms."""
    ties = torch.full((classes, classes), -math.inf, dtype=torch.float64)
    for row in range(classes):
        ties[row, : row + 1] = 1.5
    parts = torch.rand(60, classes, generator=torch.Generator().manual_seed(classes), dtype=torch.float64)
    parts = (60 * parts / parts.sum(dim=1, keepdim=True)).floor()
    parts[:, 0] += 60 - parts.sum(dim=1)
    return torch.cat([ties, (parts / 60).log(), (parts / 60).log() + 3.7]).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("classes", [2, 3, 5, 6, 10, 30])
def test_a_probability_on_an_edge_falls_into_the_same_bin_with_and_without_compiled_loops(
    classes: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    z = on_edges(classes, dtype)
    y = z.argmax(dim=1)
    metrics = [kind(EqualWidth(bins)) for kind in (ECE, TopLabelECE, ClasswiseECE) for bins in (2, 5, 10, 15, 20, 30)]
    ours = [metric.state(Predictions.from_logits(z, y)) for metric in metrics]
    monkeypatch.setattr(cpu, "LEAST", 1 << 62)
    for metric, state in zip(metrics, ours, strict=True):
        plain = metric.state(Predictions.from_logits(z, y))
        mine, theirs = (one if isinstance(one, BinTable) else one.table for one in (state, plain))
        assert torch.equal(mine.count, theirs.count), metric
        assert torch.equal(mine.sum_y, theirs.sum_y), metric
        assert mine.total == theirs.total == len(z)


@pytest.mark.parametrize("classes", [3, 160, 192, 300])
def test_rows_of_equal_logits_leave_the_temperature_at_1(classes: int) -> None:
    z = torch.zeros(200, classes)
    for excluded in (False, True):
        if excluded:
            z[:, 1:] = -math.inf
        with pytest.warns(BoundWarning, match="every temperature is the same"):
            assert TemperatureScaling().fit(z, torch.zeros(200, dtype=torch.int64)).temperature == 1


def everything(z: Tensor) -> list[Tensor]:
    """Return what the loops give of logits and ``labels_of`` them: bins of all classes and of the top one, statistics, and sums."""
    y, top = labels_of(z), z.amax(dim=1) if cpu.walks_columns(z) else None
    bins = [cpu.class_bins(z, y, torch.arange(16, dtype=torch.float64) / 15), *cpu.top_bins(z, y, 15, margin=1e-6)]
    rows = cpu.row_statistics(z, y)
    numbers = [*cpu.score_sums(z, y), *cpu.temperature_moments(z, top, None, 0.7, torch.float64)]
    numbers += [cpu.margin_sum(z, y, None)] if top is None else []
    return [*bins, rows.top, rows.best, rows.others, torch.tensor(numbers, dtype=torch.float64)]


def test_threads_do_not_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    z = hostile(20_000, 10)
    alone = everything(z)
    monkeypatch.setattr(cpu, "worker_count", lambda entries: 3)
    assert all(torch.equal(a, b) for a, b in zip(alone, everything(z), strict=True))


@pytest.mark.parametrize("classes", [3, 159, 200])
def test_segments_of_any_length_count_every_row_once(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    z = hostile(1000, classes)
    whole = everything(z)
    assert int(whole[1][0].sum()) == 1000 - len(whole[2])
    for name in ("_SEGMENT", "_PAIR_SEGMENT"):
        monkeypatch.setattr(cpu, name, 100)  # no multiple of the lanes
    for one, other in zip(everything(z), whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_a_small_task_runs_on_one_thread_and_restores_the_setting() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with cpu.one_thread_if_small(1422 * 6):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
        with pytest.raises(InterruptedError), cpu.one_thread_if_small(10):
            raise InterruptedError
        assert torch.get_num_threads() == 3
        with cpu.one_thread_if_small(1 << 20):
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def _in_a_child(results: "multiprocessing.Queue[float]") -> None:
    results.put(ECE()(Predictions.from_logits(hostile(500, 10), torch.arange(500) % 10)))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_loops_run_after_a_fork_and_from_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "worker_count", lambda entries: 2)
    data = hostile(500, 10), torch.arange(500) % 10
    here = ECE()(Predictions.from_logits(*data))
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_in_a_child, args=(results,))
    child.start()
    assert results.get(timeout=60) == here
    child.join()
    found: list[float] = []
    several = [threading.Thread(target=lambda: found.append(ECE()(Predictions.from_logits(*data)))) for _ in range(4)]
    for one in several:
        one.start()
    for one in several:
        one.join()
    assert found == [here] * 4


ELSEWHERE = """
import torch
from calibrant._kernels import cpu
z = torch.randn(20, 3)
cpu.LEAST = 1
assert cpu.serves(z)
assert torch.equal(cpu.row_statistics(z).best, z.argmax(dim=1))
"""


@pytest.mark.slow
def test_the_loops_run_where_no_cache_can_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "a file, not a folder"
    blocked.write_text("")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(blocked / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_without_numba_pytorch_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu._loops.cache_clear()
    monkeypatch.setitem(sys.modules, "calibrant._kernels.loops", None)
    monkeypatch.delattr("calibrant._kernels.loops", raising=False)
    try:
        assert not cpu.serves(torch.zeros(10, 2))
        assert Predictions.from_logits(torch.randn(10, 2)).confidence.shape == (10,)
    finally:
        cpu._loops.cache_clear()


@pytest.mark.parametrize(("rows", "classes", "size"), [(1, 1, 1), (130, 1, 2), (9000, 3, 3), (70, 2, 5)])
def test_logistic_sums_are_those_of_pytorch(
    rows: int, classes: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(rows)
    features = 3 * torch.randn(rows, classes, size, generator=generator, dtype=torch.float64)
    features[0] = 100.0  # far beyond where the logistic function is 1 in float64
    chunk = FeatureChunk(
        features,
        torch.rand(rows, classes, generator=generator) < 0.4,
        torch.rand(rows, generator=generator, dtype=torch.float64) + 0.1,
    )
    theta = torch.randn(classes, size, generator=generator, dtype=torch.float64)
    high, low = torch.full((classes,), 0.99, dtype=torch.float64), torch.full((classes,), 0.02, dtype=torch.float64)
    for scale in (1.0, 20.0, 0.0):
        found = sums_for_newton(chunk, scale * theta, slope_and_one, (), high, low)
        with monkeypatch.context() as patch:
            patch.setattr(cpu, "serves", lambda values, work=1: False)
            expected = sums_for_newton(chunk, scale * theta, slope_and_one, (), high, low)
        for one, other in zip(found, expected, strict=True):
            largest = max(float(other.abs().max()), 100 * scale * rows * size)  # softplus(s) − target · s cancels
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14 * largest)


def test_compiled_loops_are_kept_in_a_folder_of_the_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loops = pytest.importorskip("calibrant._kernels.loops", reason="optional package 'numba' is not installed")
    assert loops.owned(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    assert not loops.owned(tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert loops.owned(tmp_path)
