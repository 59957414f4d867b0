"""The fence: which overlap with the fitting data is refused, which only warns."""

import pytest
import torch

from calibrant import Predictions
from calibrant._fence import RUN, hash_rows
from calibrant.calibrators import Identity
from calibrant.errors import DuplicateRowsWarning, LeakError


def rows(count: int, *, seed: int, classes: int = 5) -> torch.Tensor:
    return torch.randn(count, classes, generator=torch.Generator().manual_seed(seed))


def fitted_on(logits: torch.Tensor) -> Identity:
    return Identity().fit(logits, torch.zeros(len(logits), dtype=torch.int64))


def test_a_run_of_32_fitting_rows_is_refused_wherever_it_lies() -> None:
    old, new = rows(100, seed=0), rows(60, seed=1)
    mixed = torch.cat([new[:20], old[40 : 40 + RUN], new[20:]])
    with pytest.raises(LeakError, match="from row 20; judge on other data, or pass allow_fit_rows=True"):
        Predictions.from_logits(mixed).calibrated_by(fitted_on(old))


def test_one_row_less_or_another_order_only_warns_with_the_share() -> None:
    old, new = rows(100, seed=0), rows(69, seed=1)
    calibrator = fitted_on(old)
    with pytest.warns(DuplicateRowsWarning, match=r"31 of 100 rows \(31.00%\)"):
        Predictions.from_logits(torch.cat([new, old[: RUN - 1]])).calibrated_by(calibrator)
    with pytest.warns(DuplicateRowsWarning, match="100 of 100"):
        Predictions.from_logits(old.flip(0)).calibrated_by(calibrator)


def test_the_fence_opens_on_demand_and_for_other_data() -> None:
    old = rows(100, seed=0)
    assert len(Predictions.from_logits(old).calibrated_by(fitted_on(old), allow_fit_rows=True)) == 100
    assert len(Predictions.from_logits(rows(100, seed=2)).calibrated_by(fitted_on(old))) == 100


def test_equal_rows_have_no_order() -> None:
    same = torch.tensor([[2.0, 0.0]]).expand(50, 2)
    with pytest.warns(DuplicateRowsWarning):
        Predictions.from_logits(same).calibrated_by(fitted_on(same))


def test_the_hash_sees_every_column_up_to_64_and_neither_dtype_nor_sign_of_zero() -> None:
    logits = rows(1, seed=3, classes=64).half()
    for column in range(64):
        changed = logits.clone()
        changed[0, column] += 1
        assert hash_rows(changed) != hash_rows(logits)
    assert torch.equal(hash_rows(logits), hash_rows(logits.double()))
    assert torch.equal(hash_rows(torch.zeros(1, 2)), hash_rows(-torch.zeros(1, 2)))
    assert hash_rows(rows(2, seed=4, classes=5000)).unique().shape == (2,)
