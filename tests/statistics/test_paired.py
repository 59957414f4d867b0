"""Two models' squared gaps on the same rows: the estimate by hand, what the test keeps, its size and its power."""

import pytest
import torch
from tests.conftest import late

from calibrant import Pairs
from calibrant.errors import NoIntervalError
from calibrant.evaluate import compare
from calibrant.statistics.paired import paired_square_test, paired_test

stats = late("scipy.stats")


def rows_of(seed: int, *, rows: int = 300, gap: float = 0.0, bins: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Return bin and residual of rows in ``bins`` bins whose confidence is ``gap`` too high."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(bins, (rows,), generator=torch.Generator().manual_seed(0))
    p = 0.5 + index.double() / (2 * bins)
    y = torch.rand(rows, generator=generator, dtype=torch.float64) < p - gap
    return index, p - y.double()


def by_pairs(index: torch.Tensor, residual: torch.Tensor) -> float:
    """Return Σ_{i ≠ j in one bin} ε_i ε_j / (N (N − 1))."""
    products = torch.outer(residual, residual) * (index[:, None] == index[None]).double()
    count = len(residual)
    return float(products.sum() - products.diagonal().sum()) / (count * (count - 1))


def test_the_difference_is_a_mean_over_pairs_of_rows() -> None:
    a, b = rows_of(1, rows=80), rows_of(2, rows=80, gap=0.2, bins=3)  # each model has its own bins
    assert paired_square_test(a, b).difference == pytest.approx(by_pairs(*b) - by_pairs(*a), abs=1e-15)


def test_swapped_models_swap_the_test() -> None:
    a, b = rows_of(1), rows_of(2, gap=0.1)
    there, back = paired_square_test(a, b), paired_square_test(b, a)
    assert there.difference == pytest.approx(-back.difference, abs=1e-15)
    assert there.p_value == pytest.approx(back.p_value, rel=1e-9)


def test_rows_that_are_all_the_same_leave_no_doubt() -> None:
    a, b = ((torch.zeros(50, dtype=torch.int64), torch.full((50,), p - 1)) for p in (0.9, 0.6))
    found = paired_square_test(a, b)
    assert (found.difference, found.p_value) == (pytest.approx(0.4**2 - 0.1**2, rel=1e-6), 0.0)


def test_groups_of_one_row_are_rows_and_repeats_count_once() -> None:
    a, b = rows_of(1), rows_of(2, gap=0.2)
    alone = paired_square_test(a, b)
    assert paired_square_test(a, b, groups=torch.arange(300)).p_value == pytest.approx(alone.p_value, rel=1e-6)
    thrice = [tuple(part.repeat(3) for part in rows) for rows in (a, b)]
    assert paired_square_test(*thrice).p_value < alone.p_value / 3
    tied = paired_square_test(*thrice, groups=torch.arange(300).repeat(3))
    assert tied.p_value == pytest.approx(alone.p_value, rel=1e-6)


def test_few_groups_and_rows_are_refused() -> None:
    with pytest.raises(NoIntervalError, match="at least 100 groups of rows"):
        paired_square_test(rows_of(1), rows_of(2), groups=torch.arange(300) % 99)
    with pytest.raises(NoIntervalError, match="at least two rows"):
        paired_square_test(rows_of(1, rows=1), rows_of(2, rows=1))


def test_few_rows_that_decide_a_mean_count_as_few() -> None:
    few = torch.cat([torch.ones(4, dtype=torch.float64), torch.zeros(296, dtype=torch.float64)])
    assert paired_test(few).p_value > 0.05  # by chance all four of four have one sign in one of eight samples
    assert stats.ttest_1samp(few.numpy(), 0.0).pvalue < 0.05
    a, b = (Pairs.from_top_label([0.9] * 300, [1] * n + [0] * (300 - n), [1] * 300) for n in (296, 300))
    assert compare(a, b).rows[0].winner is None


def test_the_tail_beyond_the_draws_is_normal() -> None:
    a, b = rows_of(1, rows=1000), rows_of(2, rows=1000, gap=0.15)
    found = [paired_square_test(*(tuple(part.repeat(k) for part in one) for one in (a, b))).p_value for k in (1, 4)]
    once, four_times = stats.norm.isf([p / 2 for p in found])
    assert once > 3  # beyond what 1,000 draws show
    assert four_times / once == pytest.approx(2, rel=0.1)


def test_another_seed_hardly_moves_the_p_value() -> None:
    a, b = rows_of(1), rows_of(2, gap=0.1)
    assert paired_square_test(a, b, seed=3).p_value == paired_square_test(a, b, seed=3).p_value
    assert paired_square_test(a, b, seed=4).p_value == pytest.approx(paired_square_test(a, b).p_value, abs=0.02)
