"""The exponents of the table of growth are slopes on logarithmic axes."""

import pytest
from benchmarks.growth import sample, slope


def test_a_slope_is_that_of_the_two_largest_sizes() -> None:
    assert slope([10, 100, 1000], [5.0, 1.0, 100.0], 0.1) == pytest.approx(2.0)
    assert slope([10, 100], [1.0, 0.05], 0.1) is None
    assert slope([10], [1.0], 0.1) is None


def test_the_sample_is_over_confident() -> None:
    data = sample(2000, 5)
    assert data.confidence.mean() > data.correct.double().mean() + 0.05
