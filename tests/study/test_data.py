"""Data sets: every sample where it belongs, splits apart, the papers' index lists."""

import pytest
import torch

from calibrant.errors import InputError
from calibrant.study.data import load_fold


def test_every_digit_is_tested_once_and_the_splits_are_apart() -> None:
    pytest.importorskip("sklearn", reason="optional package 'sklearn' is not installed")
    folds = [load_fold({"name": "digits"}, seed=3, fold=fold) for fold in range(5)]
    tested = torch.cat([fold.test.inputs for fold in folds])  # type: ignore[attr-defined]
    assert torch.unique(tested, dim=0).shape == (1797, 64)
    for fold in folds:
        parts = [part.inputs for part in (fold.train, fold.validation, fold.test)]  # type: ignore[attr-defined]
        assert [len(part) for part in parts][:2] == [400, 400]
        assert len(torch.unique(torch.cat(parts), dim=0)) == sum(len(part) for part in parts)


def test_a_seed_draws_other_training_images_and_the_same_test_images() -> None:
    pytest.importorskip("sklearn", reason="optional package 'sklearn' is not installed")
    first, second = (load_fold({"name": "digits"}, seed=seed) for seed in (0, 1))
    assert torch.equal(first.test.inputs, second.test.inputs)  # type: ignore[attr-defined]
    assert not torch.equal(first.train.inputs, second.train.inputs)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"name": "digit"}, "expected a data set of .*digits.*got 'digit'"),
        ({"name": "digits", "nois": 1}, "expected options of data set 'digits'"),
        ({"name": "digits", "train": 1400, "validation": 400}, "expected train \\+ validation ≤ 1437, got 1800"),
    ],
)
def test_what_cannot_be_loaded_is_named(data: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        load_fold(data)
