"""Temperature scaling: exact values, brute force on random problems, bounds, grids."""

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.draws import drawn
from torch import Tensor

from calibrant.calibrators import TemperatureScaling
from calibrant.calibrators.temperature import fit_log_temperature
from calibrant.errors import BoundWarning, CalibrantWarning, InputError
from calibrant.rows import MemoryRows

Vectors = dict[str, dict[str, Any]]


def mean_log_loss(logits: Tensor, labels: Tensor, weight: Tensor | None, log_temperature: float) -> float:
    """Return the weighted mean of −log softmax(z / T) at the label."""
    losses = torch.nn.functional.cross_entropy(logits.double() * math.exp(-log_temperature), labels, reduction="none")
    return float(losses.mean() if weight is None else losses @ weight.double() / weight.sum())


def exact_binary() -> tuple[Tensor, Tensor]:
    return torch.tensor([[2 * math.log(4), 0.0]] * 100), torch.tensor([0] * 80 + [1] * 20)


def test_the_exact_values(vectors: Vectors) -> None:
    logits, labels = exact_binary()
    expected = vectors["ts_nll_exact_binary"]["expected"]
    fitted = TemperatureScaling().fit(logits, labels)
    assert fitted.temperature == pytest.approx(expected["T"], abs=1e-6)
    assert mean_log_loss(logits, labels, None, math.log(fitted.temperature)) == pytest.approx(expected["nll"], abs=1e-6)
    assert abs(fitted.gradient) < 1e-6
    expected = vectors["ts_nll_exact_3class"]["expected"]
    logits, labels = torch.tensor([[4.0, 0.0, 0.0]] * 100), torch.tensor([0] * 70 + [1] * 15 + [2] * 15)
    fitted = TemperatureScaling().fit(logits, labels)
    assert fitted.temperature == pytest.approx(expected["T"], rel=1e-6)
    probs = torch.tensor(expected["probs"])
    torch.testing.assert_close(fitted(logits)[0].softmax(dim=0), probs, rtol=0, atol=1e-6)


def random_problem(seed: int, *, most: int) -> tuple[Tensor, Tensor, float]:
    """Return logits of a random dtype, size and true temperature (.05 … 20), and labels."""
    draw = np.random.default_rng(seed)
    truth = float(np.exp(draw.uniform(np.log(0.05), np.log(20))))
    classes = int(np.exp(draw.uniform(np.log(2), np.log(min(10_000, most // 50)))))
    rows = int(np.exp(draw.uniform(np.log(50), np.log(max(51, min(20_000, most // classes))))))
    generator = torch.Generator().manual_seed(seed)
    spread = float(draw.uniform(0.5, 4))
    clean = spread * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(clean.softmax(dim=1), 1, generator=generator)[:, 0]
    dtype = (torch.float16, torch.bfloat16, torch.float32, torch.float64)[seed % 4]
    return (clean * truth).to(dtype), labels, truth


def brute_force(logits: Tensor, labels: Tensor) -> float:
    """Return the log T of least log-loss by a grid over [1e-3, 1e3] and golden section: no derivative is used."""
    z = logits.double()
    z = z - z.gather(1, labels[:, None])

    def loss(log_t: float) -> float:
        return float(torch.logsumexp(z * math.exp(-log_t), dim=1).mean())

    grid = np.linspace(math.log(1e-3), math.log(1e3), 57)
    best = int(np.argmin([loss(u) for u in grid]))
    low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, 56)])
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(28):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if loss(left) < loss(right) else (left, high)
    return (low + high) / 2


def check(seed: int, *, most: int) -> bool:
    """Check one random problem; say whether it was separable or without information."""
    logits, labels, _ = random_problem(seed, most=most)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CalibrantWarning)
        root = fit_log_temperature(MemoryRows.of(logits, labels))
    expected = brute_force(logits, labels)
    at_bound = any(issubclass(warning.category, BoundWarning) for warning in caught)
    if at_bound:
        assert root.x in (math.log(1e-3), math.log(1e3))
        assert mean_log_loss(logits, labels, None, root.x) <= mean_log_loss(logits, labels, None, expected) + 1e-12
    else:
        # golden section knows the argument to the square root of the loss's rounding only: 1e-4 where it is curved
        excess = mean_log_loss(logits, labels, None, root.x) - mean_log_loss(logits, labels, None, expected)
        assert excess <= 1e-14 * max(1.0, mean_log_loss(logits, labels, None, root.x))
        flat = root.slope < 1e-5
        assert flat or abs(root.x - expected) <= 1e-4, (seed, math.exp(root.x), math.exp(expected))
        assert abs(root.value) <= 1e-6 * max(root.slope, 1e-9)
    return at_bound


def test_random_problems_agree_with_brute_force() -> None:
    bounds = [check(seed, most=4_000) for seed in range(160)]
    assert sum(bounds) < 30


@pytest.mark.parametrize(("labels", "bound"), [("argmax", 1e-3), ("argmin", 1e3)])
def test_without_an_optimum_the_bound_comes_back_with_a_warning(labels: str, bound: float) -> None:
    logits = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    with pytest.warns(BoundWarning, match="the bound"):
        fitted = TemperatureScaling().fit(logits, getattr(logits, labels)(dim=1))
    assert fitted.temperature == pytest.approx(bound)


def test_rows_of_equal_logits_leave_the_temperature_at_one() -> None:
    with pytest.warns(BoundWarning, match="every temperature is the same"):
        fitted = TemperatureScaling().fit(torch.full((20, 3), 2.0), torch.arange(20) % 3)
    assert fitted.temperature == 1.0


def test_temperature_is_equivariant_and_starts_warm() -> None:
    logits, labels, _ = random_problem(3, most=20_000)
    fitted = TemperatureScaling().fit(logits, labels)
    once = fitted.temperature
    assert TemperatureScaling().fit(logits * 3, labels).temperature == pytest.approx(3 * once, rel=1e-6)
    assert TemperatureScaling().fit(logits + logits.new_ones(len(labels), 1), labels).temperature == pytest.approx(once)
    assert fitted.fit(logits, labels).temperature == pytest.approx(once, rel=1e-7)


def test_large_data_start_from_a_sample_and_end_at_the_same_answer() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(40_000, 5, generator=generator)
    labels = torch.multinomial((logits / 2).softmax(dim=1), 1, generator=generator)[:, 0]
    weight = torch.rand(40_000, generator=generator, dtype=torch.float64)
    for w in (None, weight):
        root = fit_log_temperature(MemoryRows.of(logits, labels, weights=w))
        assert abs(root.value) < 1e-7
        assert mean_log_loss(logits, labels, w, root.x) <= mean_log_loss(logits, labels, w, root.x + 1e-4)
        assert mean_log_loss(logits, labels, w, root.x) <= mean_log_loss(logits, labels, w, root.x - 1e-4)
    late = torch.zeros(40_000, dtype=torch.float64)
    late[1] = 1.0  # no sampled row has weight
    with pytest.warns(BoundWarning):
        fit_log_temperature(MemoryRows.of(logits, logits.argmax(dim=1), weights=late))


def test_the_presets_are_the_papers_grids(vectors: Vectors) -> None:
    from calibrant.calibrators.focal_search import PRESETS

    expected = vectors["ts_grids"]["expected"]
    mukhoti = PRESETS["mukhoti"].temperatures
    assert (mukhoti[0], mukhoti[-1], len(mukhoti)) == (0.1, 10.0, expected["mukhoti"]["n"])
    assert 1.0 in mukhoti  # adding up .1 gives .9999999999999999
    for name, source in (("wang", "wang_paper"), ("komisarenko", "komisarenko_paper"), ("komisarenko-code",) * 2):
        given = expected[source.replace("-", "_")]
        temperatures = PRESETS[name].temperatures
        assert (temperatures[0], temperatures[-1]) == (given["start"], given["stop"])
        assert len(temperatures) == round(given["stop"] / given["step"])
    assert PRESETS["wang-code"].temperatures[-1] == expected["wang_code"]["stop"]


@pytest.mark.parametrize("preset", ["mukhoti", "wang", "wang-code", "komisarenko", "komisarenko-code"])
def test_a_preset_takes_the_best_of_its_grid(preset: str) -> None:
    from calibrant.calibrators.focal_search import PRESETS

    logits, labels = drawn(300, 5, seed=2, sharp=1.6)
    correct = (logits.argmax(dim=1) == labels).double()

    def error(t: float) -> float:
        return PRESETS[preset].binning.table((logits / t).softmax(dim=1).amax(dim=1), correct).error()

    by_hand = min(PRESETS[preset].temperatures, key=lambda t: (round(error(t), 12), t))
    assert TemperatureScaling(grid=preset).fit(logits, labels).temperature == pytest.approx(by_hand, rel=1e-12)
    by_loss = min(PRESETS[preset].temperatures, key=lambda t: mean_log_loss(logits, labels, None, math.log(t)))
    assert TemperatureScaling("nll", grid=preset).fit(logits, labels).temperature == pytest.approx(by_loss, rel=1e-12)


def test_an_ece_of_exactly_zero_is_passed_over_by_wangs_program_only() -> None:
    logits, labels = torch.tensor([[math.log(4), 0.0]] * 10, dtype=torch.float64), torch.tensor([0] * 8 + [1] * 2)
    assert TemperatureScaling(grid="wang").fit(logits, labels).temperature == pytest.approx(1.0)
    assert TemperatureScaling("ece", grid=[0.5, 1.0, 2.0]).fit(logits, labels).temperature == pytest.approx(1.0)


def test_the_ends_of_a_grid_warn() -> None:
    logits, labels = exact_binary()
    with pytest.warns(BoundWarning, match="its end 1"):
        TemperatureScaling("nll", grid=[0.5, 1.0]).fit(logits, labels)


def test_a_prior_needs_the_continuous_fit_by_log_loss() -> None:
    with pytest.raises(InputError, match="prior with the continuous fit by log-loss"):
        TemperatureScaling("ece", prior=0.5)


@pytest.mark.parametrize("name", ["cifar10-resnet110", "oodcv-monkey", "cifar100-lenet5"])
def test_real_logits_have_the_known_temperature(name: str, data: Path) -> None:
    known = {"cifar10-resnet110": 2.395, "oodcv-monkey": 7.198, "cifar100-lenet5": 1.130}
    file = np.load(data / "logits" / f"{name}.npz")
    fitted = TemperatureScaling().fit(file["val_logits"], file["val_labels"])
    assert round(fitted.temperature, 3) == known[name]
