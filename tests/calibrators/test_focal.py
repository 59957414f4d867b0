"""Focal calibration and focal temperature scaling: the published values, derivatives, and searches against independent ones."""

import math
from typing import Any

import pytest
import torch
from tests.conftest import late
from tests.draws import drawn
from torch import Tensor

from calibrant.binning import EqualMass, EqualWidth
from calibrant.calibrators import FocalCalibration, FocalTemperatureScaling, TemperatureScaling
from calibrant.calibrators.focal import _focal_sums
from calibrant.calibrators.grids import GridSearch
from calibrant.rows import Batch, MemoryRows
from calibrant.theory import focal_map

optimize = late("scipy.optimize")

Vectors = dict[str, dict[str, Any]]


def log_loss(logits: Tensor, labels: Tensor, temperature: float, gamma: float) -> Tensor:
    return -focal_map(logits / temperature, gamma).gather(1, labels[:, None])[:, 0]


def with_state(gamma: float, temperature: float, classes: int) -> FocalTemperatureScaling:
    calibrator = FocalTemperatureScaling()
    values = {"log_temperature": math.log(temperature), "exponent": gamma, "reached": 0.0}
    state = {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}
    calibrator.load_state_dict(calibrator.state_dict() | state | {"classes": torch.tensor(classes)})
    return calibrator


def test_the_temperature_comes_before_the_map(vectors: Vectors) -> None:
    entry = vectors["fts_forward_gamma-0.5_T1.2"]
    logits = torch.tensor(entry["inputs"]["logits"], dtype=torch.float64)
    expected = torch.tensor(entry["expected"]["probs"], dtype=torch.float64)
    torch.testing.assert_close(with_state(-0.5, 1.2, 3)(logits).exp(), expected, rtol=0, atol=1e-9)
    entry = vectors["fts_wrong_order"]
    logits = torch.tensor(entry["inputs"]["logits"], dtype=torch.float64)
    expected = torch.tensor([entry["expected"]["correct"]], dtype=torch.float64)
    torch.testing.assert_close(with_state(3.0, 1.5, 3)(logits).exp(), expected, rtol=0, atol=1e-9)


def test_the_defaults_are_the_published_exponents_and_zero() -> None:
    assert list(FocalTemperatureScaling.published) == [-0.5, -0.25, 0.05, 0.25, 0.37, 0.5, 0.75, 1, 5]
    assert FocalTemperatureScaling().gammas == sorted([*FocalTemperatureScaling.published, 0])


@pytest.mark.parametrize("gamma", [-0.7, 0.0, 0.8, 4.0])
@pytest.mark.parametrize(("classes", "scale"), [(2, 1.0), (6, 0.02), (6, 30.0)])
def test_the_derivatives_of_the_log_loss_are_autograds(gamma: float, classes: int, scale: float) -> None:
    logits, labels = drawn(60, classes, sharp=scale, spread=3 * scale)
    if classes > 2:
        logits[3, 1:3], labels[3] = -math.inf, 0
    weights = torch.rand(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1

    def loss(x: Tensor) -> Tensor:
        log_p = focal_map(logits.clamp_min(-1e4) * torch.exp(-x[0]), x[1:])[0]  # autograd knows no −inf · 0
        return -(weights * log_p.gather(1, labels[:, None])[:, 0]).sum()

    at = torch.tensor([0.3, gamma], dtype=torch.float64)
    found = _focal_sums(Batch(logits, labels, weights), 0.3, gamma)
    size = max(1.0, float(found[0]))
    assert float(found[0]) == pytest.approx(float(loss(at)), rel=1e-9)
    by_autograd = torch.autograd.functional.jacobian(loss, at)
    torch.testing.assert_close(found[1:3], by_autograd, rtol=1e-8, atol=1e-8 * size)


def test_by_log_loss_it_finds_what_made_the_data() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 16 * torch.randn(6000, 5, generator=generator, dtype=torch.float64)
    truth = focal_map(logits / 14, 2.0).exp()
    labels = torch.multinomial(truth, 1, generator=generator)[:, 0]
    found, plain = (cls().fit(logits, labels) for cls in (FocalTemperatureScaling, TemperatureScaling))
    assert plain.temperature > 5  # beyond the published grid
    assert found.objective == pytest.approx(float(log_loss(logits, labels, found.temperature, found.gamma).mean()))
    assert found.objective <= float(log_loss(logits, labels, 14, 2.0).mean())
    assert found.objective <= float(torch.nn.functional.cross_entropy(plain(logits), labels))
    assert float((found(logits).exp() - truth).abs().max()) < 0.03
    assert FocalTemperatureScaling(gammas=[0.5]).fit(logits, labels).gamma == pytest.approx(0.5)


@pytest.mark.parametrize(("rows", "classes"), [(200, 4), (30, 4), (60, 2)])
def test_a_prior_ends_where_an_independent_search_does(rows: int, classes: int) -> None:
    logits, labels = drawn(rows, classes, seed=5)
    weights = torch.arange(1.0, rows + 1, dtype=torch.float64) / 10
    weights = weights / weights.mean()

    def summed(x: Any) -> float:
        losses = log_loss(logits, labels, math.exp(x[0]), math.expm1(x[1]))
        return float(weights @ losses) + (x[0] ** 2 + x[1] ** 2) / (2 * 0.3**2)

    found = FocalTemperatureScaling(gammas=(-0.9, 5.0), prior=0.3).fit(logits, labels, weights=weights)
    oracle = optimize.minimize(summed, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-10}).x
    assert math.log(found.temperature) == pytest.approx(oracle[0], abs=1e-4)
    assert math.log1p(found.gamma) == pytest.approx(oracle[1], abs=1e-4)


@pytest.mark.parametrize("binning", [EqualMass(15), EqualWidth(10)], ids=str)
def test_the_whole_grid_is_compared_by_the_figures_of_the_map(binning: Any) -> None:
    logits, labels = drawn(150, 4, seed=1)
    logits[5, 2:] = -math.inf
    labels[5] = 0
    correct = (logits.argmax(dim=1) == labels).double()
    gammas, temperatures = [-0.5, 0.0, 2.0], [i / 10 for i in range(1, 101)]

    def error(gamma: float, t: float) -> float:
        return binning.table(focal_map(logits / t, gamma).amax(dim=1).exp(), correct).error()

    pairs = [(g, t) for g in gammas for t in temperatures]
    by_ece = min(pairs, key=lambda one: (round(error(*one), 12), abs(one[0]), one[1]))
    found = FocalTemperatureScaling("ece", binning=binning, gammas=gammas, grid=temperatures).fit(logits, labels)
    assert (found.gamma, found.temperature) == pytest.approx(by_ece)
    assert found.objective == pytest.approx(error(*by_ece), abs=1e-12)
    by_loss = min(pairs, key=lambda one: float(log_loss(logits, labels, one[1], one[0]).mean()))
    found = FocalTemperatureScaling("nll", gammas=gammas, grid=temperatures).fit(logits, labels)
    assert (found.gamma, found.temperature) == pytest.approx(by_loss)


def test_the_line_joins_the_outermost_best_temperatures() -> None:
    logits, labels = drawn(300, 4, seed=1)
    temperatures = [i / 10 for i in range(5, 46)]
    search = GridSearch(MemoryRows.of(logits, labels), "nll", None, temperatures, otherwise="wang")
    low, high = search.full([-0.5]).temperature, search.full([2.0]).temperature
    line = [(-0.5 + 2.5 * i / 40, low + (high - low) * i / 40) for i in range(41)]
    expected = min(line, key=lambda one: float(log_loss(logits, labels, one[1], one[0]).mean()))
    found = FocalTemperatureScaling("nll", gammas=[-0.5, 0.0, 2.0], grid=temperatures, search="line")
    found.fit(logits, labels)
    assert (found.gamma, found.temperature) == pytest.approx(expected)


def test_saturated_rows_do_not_score_a_false_zero() -> None:
    """With the papers' interpolated edges tied rows belong to no bin, so that T = .01 scores 0 and wins."""
    logits, labels = drawn(500, 4, sharp=3.0)
    rows, accuracy = MemoryRows.of(logits * 100, labels), float((logits.argmax(dim=1) == labels).double().mean())
    errors = {
        ties: GridSearch(rows, "ece", EqualMass(15, ties=ties), None, otherwise="komisarenko").at(1.0, 0.01)[0].value
        for ties in ("together", "interpolated")
    }
    assert errors["together"] == pytest.approx(1 - accuracy)
    assert errors["interpolated"] < 0.05


def test_tied_largest_logits_stay_tied() -> None:
    g = torch.Generator().manual_seed(0)
    z = torch.randn(500, 1000, generator=g, dtype=torch.float64)
    first, second = torch.randint(0, 500, (500,), generator=g), torch.randint(500, 1000, (500,), generator=g)
    rows = torch.arange(500)
    z[rows, first] = z[rows, second] = 3 + torch.rand(500, generator=g, dtype=torch.float64)
    for gamma in (-0.5, 0.37, 5.0):
        calibrated = FocalCalibration(gamma).fit(z[:2], first[:2])(z)
        assert torch.equal(calibrated.argmax(dim=1), z.argmax(dim=1))
        assert torch.equal(calibrated[rows, first], calibrated[rows, second])
