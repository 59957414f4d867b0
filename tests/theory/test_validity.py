"""The range found from φ alone agrees with what is known of each score."""

import pytest
from tests.theory.scores_for_tests import IN_RANGE, InverseScore, LinearScore, QuadraticScore

from calibrant.scores import FocalScore, InverseFocalScore, LogScore
from calibrant.theory import validity


@pytest.mark.parametrize("score", IN_RANGE, ids=repr)
def test_what_is_in_range_is_found_so(score) -> None:
    assert validity(score).bijective


@pytest.mark.parametrize("gamma", [-0.99, -0.5, -0.01])
def test_focal_below_0_stands_by_its_own_argument(gamma: float) -> None:
    found = validity(FocalScore(gamma))
    assert not found.convex
    assert found.decreasing
    assert found.argument is not None
    assert found.bijective
    assert found.fails_at > 0.5  # the branch that only one class can lie on


@pytest.mark.parametrize(
    ("gamma", "convex", "decreasing"),
    [(0.0, True, True), (1.0, True, True), (1.001, False, True), (3.59, False, True), (3.592, False, False)],
)
def test_inverse_focal_is_convex_to_1_and_decreasing_to_3_591(gamma: float, convex: bool, decreasing: bool) -> None:
    found = validity(InverseFocalScore(gamma))
    assert (found.convex, found.decreasing) == (convex, decreasing)
    assert found.steep


def test_users_scores() -> None:
    assert validity(InverseScore()).convex_range
    assert validity(LogScore()).convex_range
    quadratic, linear = validity(QuadraticScore()), validity(LinearScore())
    assert (quadratic.decreasing, quadratic.convex, quadratic.steep) == (True, True, False)
    assert (linear.decreasing, linear.convex, linear.steep) == (True, False, False)
    assert "stays finite" in quadratic.reason()
    assert "not strictly convex" in linear.reason()
