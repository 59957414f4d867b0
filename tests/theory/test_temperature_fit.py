"""Fits of temperature scaling to the focal map: the table of published and measured lines."""

import pytest
import torch

from calibrant.errors import InputError
from calibrant.theory import fit_temperatures, focal_logit, focal_map, nearest_temperature

QUARTERS = [i / 4 for i in range(41)]


def check_temperatures(case: dict, classes: int) -> None:
    for gamma, temperature in case["expected"]["T_at"].items():
        assert nearest_temperature(classes, float(gamma)) == pytest.approx(temperature, abs=case["tolerance"]["T"])


def test_binary_temperatures_and_errors(vectors) -> None:
    case = vectors["fit_binary"]
    check_temperatures(case, 2)
    fit = fit_temperatures(2, [0.45, 1.0, 3.0])
    assert fit.errors == pytest.approx([0.001208, 0.00079, 6.6e-05], rel=0.01)


def test_binary_lines(vectors) -> None:
    expected = vectors["fit_binary"]["expected"]
    fit = fit_temperatures(2, QUARTERS[::2])
    assert fit.line() == pytest.approx((expected["slope"], expected["intercept"]), abs=0.01)
    first = fit_temperatures(2, [i / 2 for i in range(15)])
    assert first.line() == pytest.approx(expected["fit_range_0_7"], abs=0.012)  # half as many γ as there
    assert fit.inverse_temperatures[0] == pytest.approx(1.0, abs=1e-4)


def test_three_class_temperatures(vectors) -> None:
    check_temperatures(vectors["fit_3class"], 3)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [3, 4])
def test_lines_of_three_and_four_classes(vectors, classes: int) -> None:
    case = vectors[f"fit_{classes}class"]
    expected, tolerance = case["expected"], case["tolerance"]
    fit = fit_temperatures(classes, QUARTERS)
    slope, intercept = fit.line()
    assert slope == pytest.approx(expected["slope"], abs=tolerance["slope"])
    assert intercept == pytest.approx(expected["intercept"], abs=tolerance["intercept"])
    assert fit.errors[36] == pytest.approx(expected["max_err_at_9"], abs=tolerance["err"])
    check_temperatures(case, classes)
    if classes == 4:  # the printed line is not ours
        assert abs(intercept - expected["paper"][1]) > 0.1


@pytest.mark.parametrize("gamma", [0.5, 3.0])
def test_no_other_temperature_is_nearer(gamma: float) -> None:
    s = torch.arange(0, 20, 0.01, dtype=torch.float64)
    target = torch.sigmoid(focal_logit(s, gamma))
    inverse = torch.arange(0.5 * (gamma + 1), gamma + 1, 1e-3, dtype=torch.float64)
    errors = (torch.sigmoid(inverse[:, None] * s) - target).abs().amax(dim=1)
    assert 1 / nearest_temperature(2, gamma) == pytest.approx(float(inverse[errors.argmin()]), abs=2e-3)


def test_the_sorted_rows_lose_nothing() -> None:
    # the error over a full coarse cube is attained on a row with logits in falling order
    z = torch.linspace(-5, 5, 11, dtype=torch.float64)
    cube = torch.cartesian_prod(z, z, z)
    gap = (focal_map(cube, 3.0).exp() - torch.softmax(cube / 0.3563, dim=1)).abs().amax(dim=1)
    falling = (cube[:, 0] >= cube[:, 1]) & (cube[:, 1] >= cube[:, 2])
    assert float(gap[falling].max()) == pytest.approx(float(gap.max()), abs=1e-12)


def test_other_numbers_of_classes_are_refused() -> None:
    with pytest.raises(InputError, match="classes"):
        fit_temperatures(5, [1.0, 2.0])
    with pytest.raises(InputError, match="two gammas"):
        fit_temperatures(2, [1.0])
