"""FLSD's solver."""

import pytest

from calibrant.errors import InputError
from calibrant.theory import gamma_from_threshold


@pytest.mark.parametrize(
    "name", ["flsd_threshold_g_equals_1_p0.2", "flsd_threshold_g_equals_1_p0.25", "flsd_threshold_g_equals_1_p0.1"]
)
def test_vectors(vectors, name: str) -> None:
    case = vectors[name]
    assert gamma_from_threshold(case["inputs"]["p"]) == pytest.approx(case["expected"]["gamma"], abs=1e-6)


@pytest.mark.parametrize("p0", [1e-6, 0.01, 0.3, 0.49, 0.4999])
def test_the_gradients_are_equal_there(p0: float) -> None:
    from math import log

    gamma = gamma_from_threshold(p0)
    assert gamma > 0
    factor = (1 - p0) ** gamma - gamma * p0 * (1 - p0) ** (gamma - 1) * log(p0)
    assert factor == pytest.approx(1, abs=1e-9)  # (1 − p)^γ at γ near 1e7 keeps nine digits


@pytest.mark.parametrize("p0", [0.0, 0.5, 0.7, -0.1])
def test_no_solution_outside(p0: float) -> None:
    with pytest.raises(InputError, match=r"p0 in \(0, 0.5\)"):
        gamma_from_threshold(p0)
