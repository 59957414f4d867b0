"""Focal calibration and focal temperature scaling: the published values, the exactness of the pruned search."""

import math
from typing import Any

import pytest
import torch
from tests.draws import drawn
from torch import Tensor

from calibrant.binning import Binning, EqualMass, EqualWidth
from calibrant.calibrators import FocalCalibration, FocalTemperatureScaling, TemperatureScaling
from calibrant.calibrators.focal import focal_sums
from calibrant.calibrators.focal_search import Best, FocalGrid, Search, _bracket, binned_error, confidences
from calibrant.errors import InputError
from calibrant.rows import Batch, MemoryRows
from calibrant.theory import focal_map

Vectors = dict[str, dict[str, Any]]


def with_state(gamma: float, temperature: float, classes: int) -> FocalTemperatureScaling:
    calibrator = FocalTemperatureScaling()
    values = {"log_temperature": math.log(temperature), "exponent": gamma, "reached": 0.0}
    state = {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}
    calibrator.load_state_dict({**state, "classes": torch.tensor(classes)})
    return calibrator


def test_saturated_rows_stay_ordered_in_float32() -> None:
    logits = torch.tensor([[margin, 0.0, 0.0] for margin in (14.0, 17.0, 20.0, 30.0, 80.0)])
    for gamma in (-0.5, 0.25, 1.0, 5.0):
        answer = FocalCalibration(gamma).fit(logits, torch.zeros(5, dtype=torch.int64))(logits)
        margins = answer[:, 0] - answer[:, 1]
        assert bool((margins.diff() > 0).all())
        assert bool((answer[:, 1] < 0).all())


def test_the_temperature_comes_before_the_map(vectors: Vectors) -> None:
    entry = vectors["fts_forward_gamma-0.5_T1.2"]
    logits = torch.tensor(entry["inputs"]["logits"], dtype=torch.float64)
    expected = torch.tensor(entry["expected"]["probs"], dtype=torch.float64)
    torch.testing.assert_close(with_state(-0.5, 1.2, 3)(logits).exp(), expected, rtol=0, atol=1e-9)
    entry = vectors["fts_wrong_order"]
    logits = torch.tensor(entry["inputs"]["logits"], dtype=torch.float64)
    expected = torch.tensor([entry["expected"]["correct"]], dtype=torch.float64)
    torch.testing.assert_close(with_state(3.0, 1.5, 3)(logits).exp(), expected, rtol=0, atol=1e-9)


def test_the_defaults_are_the_published_grid_and_zero() -> None:
    assert list(FocalTemperatureScaling.published) == [-0.5, -0.25, 0.05, 0.25, 0.37, 0.5, 0.75, 1, 5]
    assert FocalTemperatureScaling().gammas == sorted([*FocalTemperatureScaling.published, 0])
    assert FocalTemperatureScaling(gammas=[1.0, 0.5]).gammas == [0.5, 1.0]


@pytest.mark.parametrize("gamma", [-0.9, -0.5, 0.0, 0.37, 5.0])
@pytest.mark.parametrize("temperature", [0.01, 0.4, 1.0, 6.0])
def test_the_grid_has_the_figures_of_the_map(gamma: float, temperature: float) -> None:
    logits, labels = drawn(200, 30)
    logits[::3] *= 20
    logits[5, 2:9] = -math.inf
    labels[5] = 0
    grid = FocalGrid(MemoryRows.of(logits, labels), None)
    figures = grid.at([(gamma, temperature)])[0]
    log_p = focal_map(logits / temperature, gamma)
    tolerance = 1e-12
    assert figures.log_loss == pytest.approx(
        float(-log_p.gather(1, labels[:, None]).mean()), rel=tolerance, abs=tolerance
    )
    assert figures.mean == pytest.approx(float(log_p.amax(dim=1).exp().mean()), abs=tolerance)
    assert grid.accuracy == pytest.approx(float((logits.argmax(dim=1) == labels).double().mean()))


@pytest.mark.parametrize(
    "binning", [EqualMass(15), EqualMass(7), EqualWidth(15), EqualMass(5, ties="interpolated")], ids=str
)
@pytest.mark.parametrize("temperature", [0.001, 0.05, 1.0])
def test_the_quick_ece_is_the_metric_also_with_ties(binning: Binning, temperature: float) -> None:
    logits, labels = drawn(101, 4)
    logits[::4] = logits[0]
    grid = FocalGrid(MemoryRows.of(logits, labels), binning)
    p = grid.blocks.total(confidences, ((0.5, temperature),))[1][0]
    correct = torch.cat([block.correct for block in grid.blocks.batches[0]]).double()
    expected = binning.table(p, correct).error()
    assert binned_error(binning, p, correct) == pytest.approx(expected, abs=1e-12)
    assert grid.at([(0.5, temperature)])[0].error == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("binning", [None, EqualMass(15), EqualWidth(10)], ids=str)
def test_the_pruned_search_finds_what_the_whole_grid_holds(seed: int, binning: Binning | None) -> None:
    logits, labels = drawn(150 + 50 * seed, 3 + 2 * seed, seed=seed, sharp=[0.5, 1.0, 2.0, 4.0][seed])
    rows = MemoryRows.of(logits, labels)
    grid = FocalGrid(rows, binning)
    gammas, temps = [-0.5, 0.0, 0.37, 5.0], [i / 20 for i in range(1, 100)]
    pruned = Search(grid, Best.least_change).best(gammas, temps)
    assert grid.passes <= 12
    assert grid.evaluations < len(gammas) * len(temps)
    assert pruned == Search(FocalGrid(rows, binning), Best.least_change).every(gammas, temps)


@pytest.mark.parametrize("gamma", [-0.7, 0.0, 0.8, 4.0])
@pytest.mark.parametrize("scale", [0.5, 3.0, 30.0])
def test_the_derivatives_of_the_log_loss_are_differences(gamma: float, scale: float) -> None:
    logits, labels = drawn(60, 6, sharp=scale)
    logits[3, 1:3] = -math.inf
    labels[3] = 0
    chunk = Batch(logits, labels)

    def loss(t: float, g: float) -> float:
        return float(-focal_map(logits * math.exp(-t), g).gather(1, labels[:, None]).sum())

    h = 1e-4
    found = focal_sums(chunk, 0.3, gamma).tolist()
    size = max(1.0, abs(found[0]))
    assert found[0] == pytest.approx(loss(0.3, gamma), rel=1e-9)
    assert found[1] == pytest.approx((loss(0.3 + h, gamma) - loss(0.3 - h, gamma)) / (2 * h), abs=1e-5 * size)
    assert found[2] == pytest.approx((loss(0.3, gamma + h) - loss(0.3, gamma - h)) / (2 * h), abs=1e-5 * size)
    first = [focal_sums(chunk, 0.3 + d, gamma + e) for d, e in ((h, 0), (-h, 0), (0, h), (0, -h))]
    by_t, by_g = (first[0] - first[1]) / (2 * h), (first[2] - first[3]) / (2 * h)
    for index, difference in ((3, by_t[1]), (4, by_t[2]), (5, by_g[2])):
        assert found[index] == pytest.approx(float(difference), rel=1e-3, abs=1e-4 * size)


def test_the_continuous_search_recovers_what_made_the_data() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(6000, 5, generator=generator, dtype=torch.float64)
    truth = focal_map(logits / 1.7, 2.0).exp()
    labels = torch.multinomial(truth, 1, generator=generator)[:, 0]
    found = FocalTemperatureScaling(search="continuous").fit(logits, labels)
    assert found.objective <= FocalTemperatureScaling().fit(logits, labels).objective
    assert found.objective <= float(-focal_map(logits / 1.7, 2.0).gather(1, labels[:, None]).mean())
    assert float((found(logits).exp() - truth).abs().max()) < 0.03


def test_a_prior_ends_where_an_independent_search_does_and_holds_back_few_rows() -> None:
    from scipy.optimize import minimize

    for rows, weighted in ((200, False), (30, True)):
        logits, labels = drawn(rows, 4, seed=5)
        weight = torch.arange(1.0, rows + 1, dtype=torch.float64) / 10 if weighted else None
        mass = torch.ones(rows, dtype=torch.float64) if weight is None else weight

        def summed(x: Any, z: Tensor = logits, y: Tensor = labels, w: Tensor = mass) -> float:
            log_p = focal_map(z * math.exp(-x[0]), math.expm1(x[1])).gather(1, y[:, None])[:, 0]
            return -float(w @ log_p) + (x[0] ** 2 + x[1] ** 2) / (2 * 0.3**2)

        found = FocalTemperatureScaling(gammas=(-0.9, 5.0), search="continuous", prior=0.3)
        found.fit(logits, labels, sample_weight=weight)
        oracle = minimize(summed, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-10}).x
        assert math.log(found.temperature) == pytest.approx(oracle[0], abs=1e-4)
        assert math.log1p(found.gamma) == pytest.approx(oracle[1], abs=1e-4)
    logits, _ = drawn(50, 4)
    held = FocalTemperatureScaling(search="continuous", prior=0.5).fit(logits, logits.argmax(1))
    assert 0.2 < held.temperature < 1


def test_a_prior_needs_the_continuous_search_by_log_loss() -> None:
    for settings in ({}, {"search": "line"}, {"search": "continuous", "grid": "komisarenko"}):
        with pytest.raises(InputError, match="'nll' and search 'continuous' with a prior"):
            FocalTemperatureScaling(**settings, prior=0.5)


def test_weights_count_as_repeated_rows_in_the_ece_of_fixed_bins() -> None:
    logits, labels = drawn(60, 4, seed=7)
    times = torch.arange(60) % 3  # rows of weight 0, 1 and 2
    again = torch.repeat_interleave(torch.arange(60), times)
    for make in (
        lambda: TemperatureScaling("ece"),
        lambda: FocalTemperatureScaling("ece", binning=EqualWidth(7), gammas=[-0.5, 0.0, 1.0]),
    ):
        weighted = make().fit(logits, labels, sample_weight=times)
        repeated = make().fit(logits[again], labels[again])
        assert weighted.temperature == repeated.temperature
        assert float(weighted(logits).sum()) == pytest.approx(float(repeated(logits).sum()))


def test_weights_are_refused_by_bins_of_equal_mass() -> None:
    logits, labels = drawn(50, 5)
    for calibrator in (FocalTemperatureScaling("ece"), TemperatureScaling(grid="komisarenko")):
        with pytest.raises(InputError, match=r"no sample_weight with bins of equal mass.*EqualWidth\(15\)"):
            calibrator.fit(logits, labels, sample_weight=torch.ones(50))


def test_saturated_rows_do_not_score_a_false_zero() -> None:
    """With the papers' interpolated edges tied rows belong to no bin, so T = .01 scores 0 and wins."""
    logits, labels = drawn(500, 4, sharp=3.0)
    rows = MemoryRows.of(logits * 100, labels)
    together = FocalGrid(rows, EqualMass(15)).at([(1.0, 0.01)])[0].error
    dropped = FocalGrid(rows, EqualMass(15, ties="interpolated")).at([(1.0, 0.01)])[0].error
    assert together == pytest.approx(1 - FocalGrid(rows, None).accuracy)
    assert dropped < 0.05


def test_it_is_never_worse_than_temperature_scaling_also_where_the_grid_ends() -> None:
    logits, labels = drawn(400, 6, seed=3)
    logits = logits * 8  # the best temperature is about 8 times larger: beyond the grid's 5
    focal = FocalTemperatureScaling().fit(logits, labels)
    plain = TemperatureScaling().fit(logits, labels)
    assert plain.temperature > 5
    assert focal.objective <= float(torch.nn.functional.cross_entropy(plain(logits).double(), labels)) + 1e-12


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


def test_a_log_loss_of_two_valleys_falls_back_to_the_whole_grid() -> None:
    assert _bracket([3.0, 1.0, 2.0, 0.5, 4.0], [0, 5, 10, 15, 19]) is None
    assert _bracket([3.0, 1.0, 2.0, 2.5, 4.0], [0, 5, 10, 15, 19]) == (0, 10)
