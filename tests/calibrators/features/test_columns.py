"""What every calibrator by features says of columns that are not those of its fit."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.draws import drawn
from torch import Tensor

from calibrant import Predictions, load
from calibrant.calibrators import (
    Calibrator,
    FeatureScaling,
    GroupScaling,
)
from calibrant.errors import InputError

MAKE: dict[str, Any] = {
    "groups": lambda columns=["site"]: GroupScaling(columns, strength=1.0),
    "numbers": lambda columns=["age"]: FeatureScaling(columns),
}


@cache
def fitting() -> Predictions:
    """Return rows of which half are always right and half are right by chance, as either column says."""
    z, _ = drawn(400, 3)
    site = torch.arange(400) % 2
    y = torch.where(site == 0, z.argmax(dim=1), torch.arange(400) % 3)
    age = 5 * site + torch.arange(400) % 7 / 7
    return Predictions.from_logits(z, y, features={"site": ["a", "b"] * 200, "age": age})


@cache
def fitted(name: str) -> Calibrator:
    return MAKE[name]().fit(fitting())


@pytest.mark.parametrize("name", MAKE)
def test_other_columns_than_those_of_the_fit_are_refused(name: str) -> None:
    one, z = fitted(name), torch.zeros(2, 3)
    wrong: dict[str, Any] = {
        "expected the feature '(site|age)', got 'other'; pass it by this name": {"other": [1, 2]},
        "expected features of 2 rows, got 1": {"site": ["a"], "age": [1.0]},
        "expected features as a dict of name → column": ["a", "b"],
        "give missing entries a name of their own": {"site": ["a", None], "age": ["x", None]},
        f"expected the features that {type(one).__name__} was fitted on, got none": None,
    }
    if name != "numbers":
        wrong["expected names in the feature 'site', got numbers"] = {"site": [1, 2], "age": [1.0, 2.0]}
    if name != "groups":
        wrong["expected numbers in the feature 'age', got names"] = {"site": ["a", "b"], "age": ["x", "y"]}
    for words, features in wrong.items():
        with pytest.raises(InputError, match=words):
            one(z, features)
    with pytest.raises(InputError, match="expected predictions with features for this calibrator, got none"):
        Predictions.from_logits(z, [0, 1]).calibrated_by(one)


@pytest.mark.parametrize("name", MAKE)
def test_columns_that_cannot_be_fitted_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="expected the feature 'absent', got 'age', 'site'; pass"):
        MAKE[name](["absent"]).fit(fitting())
    with pytest.raises(InputError, match=r'as a list of names, got \'x\'; write \["region", "sex"\]'):
        MAKE[name]("x")


@pytest.mark.parametrize("name", [name for name in MAKE if name != "numbers"])
def test_names_that_the_fit_has_not_seen_get_the_answer_for_all_in_a_file_too(name: str, tmp_path: Path) -> None:
    fitted(name).save(tmp_path / "c.safetensors")
    z, ages = torch.tensor([[0.3, -0.2, 0.1]]).double(), [2.0]
    for one in (fitted(name), load(tmp_path / "c.safetensors")):
        seen, new, other = (one(z, {"site": [site], "age": ages}) for site in ("b", "new", "?"))
        assert torch.equal(new, other)
        assert not torch.allclose(seen, new)
        assert torch.equal(seen, fitted(name)(z, {"site": ["b"], "age": ages}))
        if isinstance(one, GroupScaling):
            assert torch.allclose(new, z * one.slope + one.bias_)


@pytest.mark.parametrize("name", ["groups", "numbers"])
def test_the_scale_of_weights_is_nothing(name: str) -> None:
    data, times = fitting(), 1 + torch.arange(400) % 3

    def answer(rows: Predictions) -> Tensor:
        return torch.softmax(MAKE[name]().fit(rows)(data.logits, data.features), dim=1)

    def weighted(weights: Tensor) -> Tensor:
        return answer(replace(data, weights=weights))

    shares = [weighted(times.double() * scale) for scale in (0.1, 30.0)]
    torch.testing.assert_close(shares[0], shares[1], rtol=0, atol=1e-6)
