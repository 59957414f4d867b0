"""The leakage guard: which overlap with the fitting data is refused, which only warns, and what is no leak."""

import warnings
from functools import reduce
from itertools import pairwise

import pytest
import torch

from calibrant import Predictions
from calibrant._kernels import cpu
from calibrant.calibrators import Identity
from calibrant.data.leakage import (
    RUN,
    WHOLE,
    LeakCheck,
    _odd_numbers,
    _windows,
    centred_marks,
    hash_rows,
    join_parts,
    part_of,
    rows_in_sketch,
    sketch_of_part,
)
from calibrant.errors import DuplicateRowsWarning, LeakError


def rows(count: int, *, seed: int, classes: int = 5) -> torch.Tensor:
    return torch.randn(count, classes, generator=torch.Generator().manual_seed(seed))


def fitted_on(logits: torch.Tensor) -> Identity:
    return Identity().fit(logits, torch.zeros(len(logits), dtype=torch.int64))


def test_a_run_of_32_fitting_rows_is_refused_wherever_it_lies() -> None:
    old, new = rows(100, seed=0), rows(60, seed=1)
    mixed = torch.cat([new[:20], old[40 : 40 + RUN], new[20:]])
    with pytest.raises(LeakError, match="from row 20; evaluate on other data, or pass allow_fit_rows=True"):
        Predictions.from_logits(mixed).calibrated_by(fitted_on(old))


def test_one_row_less_or_another_order_only_warns_with_the_share() -> None:
    old, new = rows(100, seed=0), rows(69, seed=1)
    calibrator = fitted_on(old)
    with pytest.warns(DuplicateRowsWarning, match=r"31 of 100 rows \(31.00%\)"):
        Predictions.from_logits(torch.cat([new, old[: RUN - 1]])).calibrated_by(calibrator)
    with pytest.warns(DuplicateRowsWarning, match="100 of 100"):
        Predictions.from_logits(old.flip(0)).calibrated_by(calibrator)


def test_saturated_outputs_that_coincide_are_no_leak() -> None:
    """Half of the rows are a few outputs, over and over, in fitting and in new data alike."""
    generator = torch.Generator().manual_seed(0)

    def drawn(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        logits = torch.randn(count, 4, generator=generator)
        common = 20 * torch.eye(4)[torch.randint(0, 4, (count,), generator=generator)]
        saturated = torch.rand(count, generator=generator) < 0.5
        labels = torch.randint(0, 4, (count,), generator=generator)
        return torch.where(saturated[:, None], common, logits), labels

    fitted, (logits, labels) = Identity().fit(*drawn(3000)), drawn(3000)
    equal = torch.tensor([[2.0, 0.0]]).expand(50, 2)
    # sorted outputs of a saturated model: long stretches of equal rows, one after the other in both
    stretches = torch.eye(4).repeat_interleave(60, dim=0) * 20
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for data, calibrator in (
            (Predictions.from_logits(logits, labels), fitted),
            (Predictions.from_logits(logits), fitted),
            (Predictions.from_logits(equal), fitted_on(equal)),
            (Predictions.from_logits(stretches), fitted_on(stretches[10:-10])),
        ):
            assert torch.equal(data.calibrated_by(calibrator).logits, data.logits)


def test_a_row_under_another_label_is_another_example() -> None:
    logits = rows(40, seed=5)
    calibrator = Identity().fit(logits, torch.zeros(40, dtype=torch.int64))
    other = torch.cat([rows(200, seed=6), logits[:20].flip(0)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Predictions.from_logits(other, torch.ones(220, dtype=torch.int64)).calibrated_by(calibrator)
    with pytest.warns(DuplicateRowsWarning, match="20 of 220"):
        Predictions.from_logits(other, torch.zeros(220, dtype=torch.int64)).calibrated_by(calibrator)


def test_the_sketch_of_many_rows_is_bounded_joins_in_any_parts_and_finds_runs() -> None:
    old = rows(90_000, seed=7)
    labels = torch.arange(90_000) % 3
    marks = centred_marks(old, labels)
    sketch = sketch_of_part(part_of(marks, centred=True), centred=True)
    for cuts in ([7, 8, 40, 41, 60_000], range(1000, 90_000, 977)):
        parts = [part_of(marks[a:b], centred=True) for a, b in pairwise([0, *cuts, 90_000])]
        assert torch.equal(sketch_of_part(reduce(join_parts, parts), centred=True), sketch)
    calibrator = Identity().fit(old, labels)
    assert torch.equal(calibrator.fit_rows, sketch)
    assert rows_in_sketch(sketch) == 90_000 > WHOLE
    assert len(sketch) < 90_000
    for start in (0, 31, 59_990, 90_000 - RUN):
        mixed = torch.cat([rows(50, seed=8), old[start : start + RUN]])
        with pytest.raises(LeakError, match="16 or more consecutive rows"):
            Predictions.from_logits(mixed).calibrated_by(calibrator)
    with pytest.warns(DuplicateRowsWarning):
        Predictions.from_logits(old[torch.randperm(90_000)], None).calibrated_by(calibrator)
    assert len(Predictions.from_logits(rows(5000, seed=9)).calibrated_by(calibrator)) == 5000


def test_the_guard_survives_state_dicts_and_is_absent_without_an_error() -> None:
    old = rows(100, seed=0)
    calibrator = fitted_on(old)
    other = Identity()
    other.load_state_dict(calibrator.state_dict())
    with pytest.raises(LeakError):
        Predictions.from_logits(old).calibrated_by(other)
    bare = {name: value for name, value in calibrator.state_dict().items() if name != "fit_rows"}
    other.load_state_dict(bare)
    assert rows_in_sketch(other.fit_rows) == 0
    assert len(Predictions.from_logits(old).calibrated_by(other)) == 100


def test_the_hash_sees_every_column_up_to_64_and_neither_dtype_nor_sign_of_zero() -> None:
    logits = rows(1, seed=3, classes=64).half()
    for column in range(64):
        changed = logits.clone()
        changed[0, column] += 1
        assert hash_rows(changed) != hash_rows(logits)
    assert torch.equal(hash_rows(logits), hash_rows(logits.double()))
    assert torch.equal(hash_rows(torch.zeros(1, 2)), hash_rows(-torch.zeros(1, 2)))
    assert hash_rows(rows(2, seed=4, classes=5000)).unique().shape == (2,)


def test_a_few_texts_that_occur_twice_are_no_leak() -> None:
    """Identical inputs give identical outputs: twelve of a thousand rows, none of them twice among the fitting rows."""
    logits, new = rows(1000, seed=7), rows(1000, seed=8)
    labels = torch.zeros(1000, dtype=torch.int64)
    calibrator = Identity().fit(logits, labels)
    for coincide, warned in ((5, False), (12, False), (30, True)):
        mixed = torch.cat([new[coincide:], logits[: 30 * coincide : 30]])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            Predictions.from_logits(mixed, labels).calibrated_by(calibrator)
        assert any(issubclass(one.category, DuplicateRowsWarning) for one in caught) == warned


@pytest.mark.parametrize("repeats", [1, 3, 40])
def test_stretches_hash_as_one_after_another_and_count_with_eight_distinct_rows(repeats: int) -> None:
    generator = torch.Generator().manual_seed(repeats)
    kinds = hash_rows(rows(500 // repeats, seed=repeats))
    hashes = kinds[torch.randint(0, len(kinds), (500,), generator=generator)]
    found, at = _windows(hashes, 16)
    varied = [i for i in range(485) if len(set(hashes[i : i + 16].tolist())) >= 8]
    assert at.tolist() == varied
    odd = _odd_numbers(16).tolist()
    for place, value in zip(varied, found.tolist(), strict=True):
        mixed = sum(h * o for h, o in zip(hashes[place : place + 16].tolist(), odd, strict=True)) % (1 << 64)
        mixed -= (mixed >> 63) << 64
        assert value == mixed ^ (mixed >> 31)


def test_the_smallest_hashes_are_those_of_a_full_sort_where_few_rows_differ_too() -> None:
    for distinct in (100, 20_000, 300_000):
        kinds = hash_rows(torch.arange(distinct, dtype=torch.float32)[:, None].expand(-1, 2))
        hashes = kinds[torch.randint(0, distinct, (200_000,), generator=torch.Generator().manual_seed(1))]
        value, count = torch.unique(hashes, return_counts=True)
        single, times = part_of(hashes)[4:]
        assert torch.equal(single, value[: 1 << 14])
        assert torch.equal(times, count[: 1 << 14])


@pytest.mark.parametrize("count", [500, 90_000])
def test_rows_in_small_parts_are_checked_across_them(count: int) -> None:
    old, labels = rows(count, seed=1), torch.arange(count) % 3
    sketch = Identity().fit(old, labels).fit_rows
    mixed = torch.cat([rows(50, seed=2), old[100 : 100 + RUN], rows(20, seed=3)])
    for size in (1, 5, 31):
        check, fresh = LeakCheck(sketch), LeakCheck(sketch)
        with pytest.raises(LeakError, match=r"from row (50|5\d|6[0-6])"):
            for part in mixed.split(size):
                check.see(part)
        for part in rows(200, seed=4).split(size):
            fresh.see(part)
        fresh.end()


def test_parts_give_one_warning_with_the_figures_of_all_rows() -> None:
    old = rows(100, seed=0)
    check = LeakCheck(fitted_on(old).fit_rows)
    for part in torch.cat([rows(69, seed=1), old[: RUN - 1]]).split(7):
        check.see(part)
    with pytest.warns(DuplicateRowsWarning, match=r"31 of 100 rows \(31.00%\)"):
        check.end()


def test_compiled_hashes_are_those_of_pytorch() -> None:
    pytest.importorskip("numba", reason="optional package 'numba' is not installed")
    for shape in ((20_000, 10), (2000, 130), (70_000, 2)):
        logits = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
        logits[3, 0], logits[4, 1], logits[5, 0] = -0.0, -torch.inf, 0.0
        assert cpu.serves(logits)
        for kind in (torch.float32, torch.float64, torch.float16):
            some = logits.to(kind)
            for numbers in (hash_rows, centred_marks):
                assert torch.equal(numbers(some, None), torch.cat([numbers(part) for part in some.split(500)]))
