"""The range found from φ alone agrees with what is known of each score."""

import pytest
from tests.theory.scores_for_tests import IN_RANGE, InverseScore, LinearScore, QuadraticScore

from calibrant.scores import FocalScore, InverseFocalScore
from calibrant.theory import validity


def test_scores_in_range_have_a_bijective_map() -> None:
    assert all(validity(score).bijective for score in IN_RANGE)
    assert validity(InverseScore()).convex_range


@pytest.mark.parametrize("gamma", [-0.99, -0.01])
def test_focal_below_0_is_bijective_by_its_own_argument(gamma: float) -> None:
    found = validity(FocalScore(gamma))
    assert (found.decreasing, found.convex, found.steep, found.bijective) == (True, False, True, True)
    assert found.argument is not None
    assert found.fails_at > 0.5  # the branch that only one class can lie on


@pytest.mark.parametrize(
    ("gamma", "convex", "decreasing"),
    [(1.0, True, True), (1.001, False, True), (3.59, False, True), (3.592, False, False)],
)
def test_inverse_focal_is_convex_to_1_and_decreasing_to_3_591(gamma: float, convex: bool, decreasing: bool) -> None:
    found = validity(InverseFocalScore(gamma))
    assert (found.convex, found.decreasing, found.steep) == (convex, decreasing, True)


def test_scores_that_stay_finite_or_linear_are_not_in_range() -> None:
    quadratic, linear = validity(QuadraticScore()), validity(LinearScore())
    assert (quadratic.decreasing, quadratic.convex, quadratic.steep) == (True, True, False)
    assert (linear.decreasing, linear.convex, linear.steep) == (True, False, False)
    assert "stays finite" in quadratic.reason()
    assert "not strictly convex" in linear.reason()
