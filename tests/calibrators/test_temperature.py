"""Temperature scaling: exact values, brute force on random problems, bounds, grids; mixtures against SciPy's optimiser."""

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import late
from tests.draws import drawn
from torch import Tensor

from calibrant.calibrators import EnsembleTemperatureScaling, FocalTemperatureScaling, TemperatureScaling
from calibrant.calibrators.grids import PRESETS, GridSearch
from calibrant.calibrators.temperature import fit_log_temperature, fit_mixture_weights
from calibrant.errors import BoundWarning, CalibrantWarning, FitError, InputError
from calibrant.rows import MemoryRows

optimize = late("scipy.optimize")

Vectors = dict[str, dict[str, Any]]


def mean_log_loss(logits: Tensor, labels: Tensor, log_t: float, weights: Tensor | None = None) -> float:
    losses = torch.nn.functional.cross_entropy(logits.double() * math.exp(-log_t), labels, reduction="none")
    return float(losses.mean() if weights is None else losses @ weights / weights.sum())


def exact_binary() -> tuple[Tensor, Tensor]:
    return torch.tensor([[2 * math.log(4), 0.0]] * 100), torch.tensor([0] * 80 + [1] * 20)


def test_the_exact_values(vectors: Vectors) -> None:
    logits, labels = exact_binary()
    expected = vectors["ts_nll_exact_binary"]["expected"]
    fitted = TemperatureScaling().fit(logits, labels)
    assert fitted.temperature == pytest.approx(expected["T"], abs=1e-6)
    assert mean_log_loss(logits, labels, math.log(fitted.temperature)) == pytest.approx(expected["nll"], abs=1e-6)
    assert abs(fitted.gradient) < 1e-6
    expected = vectors["ts_nll_exact_3class"]["expected"]
    logits, labels = torch.tensor([[4.0, 0.0, 0.0]] * 100), torch.tensor([0] * 70 + [1] * 15 + [2] * 15)
    fitted = TemperatureScaling().fit(logits, labels)
    assert fitted.temperature == pytest.approx(expected["T"], rel=1e-6)
    assert fitted(logits)[0].softmax(dim=0).tolist() == pytest.approx(expected["probs"], abs=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_random_problems_end_at_the_minimum_or_at_a_bound(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows, classes, truth = draw.integers(50, 300), int(draw.integers(2, 40)), float(np.exp(draw.uniform(-3, 3)))
    clean, labels = drawn(int(rows), classes, seed=seed, spread=draw.uniform(0.5, 4), sharp=1)
    logits = (clean * truth).to((torch.float16, torch.bfloat16, torch.float32, torch.float64)[seed % 4])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CalibrantWarning)
        log_t, gradient = fit_log_temperature(MemoryRows.of(logits, labels))
    if caught:
        assert issubclass(caught[0].category, BoundWarning)
        assert log_t in (math.log(1e-3), math.log(1e3))
        assert mean_log_loss(logits, labels, log_t) <= mean_log_loss(logits, labels, 0.0)
    else:
        ends = (math.log(1e-3), math.log(1e3))
        brute = optimize.minimize_scalar(
            lambda u: mean_log_loss(logits, labels, u), bounds=ends, options={"xatol": 1e-9}
        ).x
        # without derivatives the argument is known to the square root of the loss's rounding only
        assert log_t == pytest.approx(brute, abs=1e-4)
        assert abs(gradient) < 1e-6


@pytest.mark.parametrize(("labels", "bound"), [("argmax", 1e-3), ("argmin", 1e3)])
def test_without_an_optimum_the_bound_comes_back_with_a_warning(labels: str, bound: float) -> None:
    logits = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    with pytest.warns(BoundWarning, match="the bound"):
        fitted = TemperatureScaling().fit(logits, getattr(logits, labels)(dim=1))
    assert fitted.temperature == pytest.approx(bound)
    with pytest.warns(BoundWarning, match="every row is classified correctly"):
        fitted = TemperatureScaling().fit([[0.002, 0.0], [0.0, 0.002]] * 10, [0, 1] * 10)
    # at T = 0.001 the gap is 2, and the certificate is the derivative there, 2 / (1 + e²)
    assert fitted.gradient == pytest.approx(2 / (1 + math.exp(2)))


@pytest.mark.parametrize(("start", "best"), [(1e-3, 0.002), (1e3, 500.0)])
def test_a_search_that_starts_at_a_bound_leaves_it(start: float, best: float) -> None:
    logits, labels = exact_binary()  # best at T = 1
    rows = MemoryRows.of(best / 2 * logits.double(), labels)
    assert fit_log_temperature(rows, start=math.log(start))[0] == pytest.approx(math.log(best), abs=1e-6)


@pytest.mark.parametrize("excluded", [0.0, -math.inf])
@pytest.mark.parametrize("rows", [20, 100_000])  # by PyTorch, and by the compiled loops
def test_rows_of_equal_logits_leave_the_temperature_at_one(rows: int, excluded: float) -> None:
    with pytest.warns(BoundWarning, match="a temperature has no effect"):
        fitted = TemperatureScaling().fit(torch.tensor([[0.0, 0.0, excluded]]).repeat(rows, 1), torch.arange(rows) % 2)
    assert fitted.temperature == 1.0


def test_a_loss_that_is_no_number_ends_in_an_error() -> None:
    logits = torch.full((10, 3), 1e308, dtype=torch.float64) * torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    with pytest.raises(FitError, match="the temperature search to converge"):
        TemperatureScaling().fit(logits, torch.arange(10) % 3)


def test_temperature_is_equivariant_and_starts_warm() -> None:
    logits, labels = drawn(500, 5)
    fitted = TemperatureScaling().fit(logits, labels)
    once = fitted.temperature
    assert TemperatureScaling().fit(logits * 3, labels).temperature == pytest.approx(3 * once, rel=1e-6)
    assert TemperatureScaling().fit(logits + torch.ones(500, 1), labels).temperature == pytest.approx(once)
    assert fitted.fit(logits, labels).temperature == pytest.approx(once, rel=1e-7)


def test_large_data_start_from_a_sample_and_end_at_the_optimum() -> None:
    logits, labels = drawn(40_000, 5, dtype=torch.float32)
    weights = torch.rand(40_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for w in (None, weights):
        log_t, gradient = fit_log_temperature(MemoryRows.of(logits, labels, weights=w))
        assert abs(gradient) < 1e-7
        at = mean_log_loss(logits, labels, log_t, w)
        assert at <= min(mean_log_loss(logits, labels, log_t + d, w) for d in (1e-4, -1e-4))
    late = torch.zeros(40_000, dtype=torch.float64)
    late[1] = 1.0  # no row of the sample has weight
    with pytest.warns(BoundWarning):
        fit_log_temperature(MemoryRows.of(logits, logits.argmax(dim=1), weights=late))


def test_a_prior_shrinks_log_t_as_its_formula_says() -> None:
    logits, labels = drawn(50, 4)
    fitted = TemperatureScaling(prior=0.3).fit(logits, labels).temperature
    brute = optimize.minimize_scalar(
        lambda u: 50 * mean_log_loss(logits, labels, u) + u**2 / (2 * 0.3**2), bounds=(-3, 3)
    ).x
    assert math.log(fitted) == pytest.approx(brute, abs=1e-5)


def test_the_presets_are_the_papers_grids(vectors: Vectors) -> None:
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


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_takes_the_best_of_its_grid(preset: str) -> None:
    logits, labels = drawn(300, 5, seed=2, sharp=1.6)
    correct = (logits.argmax(dim=1) == labels).double()

    def error(t: float) -> float:
        return PRESETS[preset].binning.table((logits / t).softmax(dim=1).amax(dim=1), correct).error()

    by_hand = min(PRESETS[preset].temperatures, key=lambda t: (round(error(t), 12), t))
    assert TemperatureScaling(grid=preset).fit(logits, labels).temperature == pytest.approx(by_hand, rel=1e-12)
    flat = MemoryRows.of(torch.zeros(10, 2), torch.arange(10) % 2)  # with an ECE of 0, which Wang's program passes over
    assert GridSearch(flat, None, None, preset, otherwise="wang").at(0.0, 1.0)[0].value == (
        math.inf if preset == "wang-code" else 0
    )
    by_loss = min(PRESETS[preset].temperatures, key=lambda t: mean_log_loss(logits, labels, math.log(t)))
    assert TemperatureScaling("nll", grid=preset).fit(logits, labels).temperature == pytest.approx(by_loss, rel=1e-12)


def test_the_ends_of_a_grid_warn() -> None:
    logits, labels = exact_binary()
    with pytest.warns(BoundWarning, match="its end 1"):
        TemperatureScaling("nll", grid=[0.5, 1.0]).fit(logits, labels)


def test_weights_count_as_repeated_rows_in_the_ece_of_fixed_bins() -> None:
    logits, labels = drawn(60, 4, seed=7)
    times = torch.arange(60) % 3  # rows of weight 0, 1 and 2
    again = torch.repeat_interleave(torch.arange(60), times)
    for criterion in ("ece", "nll"):
        weighted, repeated = (TemperatureScaling(criterion, grid="mukhoti") for _ in range(2))
        weighted.fit(logits, labels, weights=times)
        assert weighted.temperature == repeated.fit(logits[again], labels[again]).temperature
    for calibrator in (FocalTemperatureScaling("ece"), TemperatureScaling(grid="komisarenko")):
        with pytest.raises(InputError, match=r"no weights with bins of equal mass.*EqualWidth\(15\)"):
            calibrator.fit(logits, labels, weights=torch.ones(60))


def test_settings_that_make_no_search_are_refused() -> None:
    for settings, message in (
        ({"criterion": "brier"}, "criterion to be one of 'nll', 'ece', got 'brier'"),
        ({"grid": [1.0, 0.0]}, r"grid in \(0, inf\), got 0.0"),
        ({"grid": []}, "at least one temperature"),
        ({"criterion": "ece", "prior": 0.5}, "prior only with the continuous log-loss fit"),
    ):
        with pytest.raises(InputError, match=message):
            TemperatureScaling(**settings)


@pytest.mark.parametrize("name", ["cifar10-resnet110", "oodcv-monkey", "cifar100-lenet5"])
def test_real_logits_have_the_known_temperature(name: str, data: Path) -> None:
    known = {"cifar10-resnet110": 2.395, "oodcv-monkey": 7.198, "cifar100-lenet5": 1.130}
    file = np.load(data / "logits" / f"{name}.npz")
    fitted = TemperatureScaling().fit(file["val_logits"], file["val_labels"])
    assert round(fitted.temperature, 3) == known[name]


# Mixtures of probabilities.


def test_ensemble_weights_are_at_least_as_good_as_scipys() -> None:
    z, y = drawn(500, sharp=1.7)
    y[::10] = torch.randint(4, (50,), generator=torch.Generator().manual_seed(1))
    fitted = EnsembleTemperatureScaling().fit(z, y)
    tempered, raw = (torch.softmax(z / t, 1).gather(1, y[:, None])[:, 0].numpy() for t in (fitted.temperature, 1.0))
    p = np.stack([tempered, raw, np.full(500, 0.25)], axis=1)

    def objective(w: np.ndarray) -> float:
        return float(-np.log(np.maximum(p @ w, 1e-12)).mean())

    on_simplex = {"type": "eq", "fun": lambda w: w.sum() - 1}
    brute = optimize.minimize(objective, np.full(3, 1 / 3), method="SLSQP", bounds=[(0, 1)] * 3, constraints=on_simplex)
    assert objective(fitted.weights.numpy()) <= brute.fun + 1e-7
    ours = fitted(z).gather(1, y[:, None])[:, 0].exp()
    np.testing.assert_allclose(ours.numpy(), p @ fitted.weights.numpy(), rtol=1e-10)


def test_mixture_weights_with_a_known_answer() -> None:
    # −(¾ log w + ¼ log(1 − w)): the best weight is the share of rows that only the first component can explain
    p = torch.tensor([[1.0, 0.0]] * 3 + [[0.0, 1.0]], dtype=torch.float64)
    assert fit_mixture_weights(p, torch.ones(4).double()).tolist() == pytest.approx([0.75, 0.25], abs=1e-6)
    assert fit_mixture_weights(p, torch.tensor([1.0, 1, 1, 6]).double()).tolist() == pytest.approx(
        [1 / 3, 2 / 3], abs=1e-6
    )


@pytest.mark.parametrize("seed", range(4))
def test_mixture_weights_are_certified_on_random_tables(seed: int) -> None:
    """No component could gain: mean p_m / (Σ w p) ≤ 1 for each m (Karush, Kuhn, Tucker)."""
    g = torch.Generator().manual_seed(seed)
    p = torch.rand(50, 2 + seed % 5, generator=g, dtype=torch.float64) ** (1 + seed)
    p[:, -1] = p[:, 0] if seed % 3 == 0 else p[:, -1]  # two components that are the same
    w = fit_mixture_weights(p, torch.ones(50).double())
    assert float(w.sum()) == pytest.approx(1)
    assert float((p / (p @ w)[:, None]).mean(dim=0).max()) <= 1 + 1e-6


def test_weights_of_nearly_equal_components_are_found() -> None:
    """Nine smooth curves that differ by a tenth: the search takes a hundred steps and more."""
    g = torch.Generator().manual_seed(1)
    z = 2 * torch.randn(3000, generator=g, dtype=torch.float64)
    event = torch.rand(3000, generator=g, dtype=torch.float64) < torch.sigmoid(0.8 * z + 0.3)
    spread, middle = torch.tensor([0.1, 0.1, 2.0]), torch.tensor([0.8, 0.3, 1.0])
    a, b, c = (spread * torch.randn(9, 3, generator=g, dtype=torch.float64) + middle).T
    p = torch.sigmoid(a * z[:, None] + b + 0.05 * torch.sin(c * z[:, None]))
    p = torch.where(event[:, None], p, 1 - p)
    w = fit_mixture_weights(p, torch.ones(3000).double())
    assert float((p / (p @ w)[:, None]).mean(dim=0).max()) <= 1 + 1e-6
