"""Scaling by columns: an independent logistic regression, autograd, groups by hand, the choice of strength, and what is refused."""

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import late
from tests.draws import drawn
from torch import Tensor

from calibrant import Predictions, load
from calibrant.calibrators import Calibrator, FeatureScaling, GroupScaling, TemperatureScaling
from calibrant.errors import InputError
from calibrant.metrics import NLL

linear_model = late("sklearn.linear_model")

F64 = torch.float64
MAKE: dict[str, Any] = {
    "groups": lambda: GroupScaling(["site"], strength=1.0),
    "numbers": lambda: FeatureScaling(["age"]),
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


@pytest.mark.parametrize(("name", "column"), [("groups", {"site": ["a", "b"]}), ("numbers", {"age": [1.0, 5.0]})])
def test_features_hold_for_every_position_of_a_row(name: str, column: dict[str, Any]) -> None:
    z = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    answer = fitted(name)(z, column)
    for at in ((0, 0), (3, 4)):
        assert torch.equal(answer[:, :, at[0], at[1]], fitted(name)(z[:, :, at[0], at[1]], column))


def answers(rows: int, seed: int) -> Predictions:
    """Return scores of answers whose probability of being right is σ(0.5 s − 0.8 (length − 5) / 3 + 0.2 s (length − 5) / 3)."""
    rng = np.random.default_rng(seed)
    s, length = rng.normal(size=rows) * 2, rng.integers(1, 11, rows)
    z = (length - 5) / 3
    right = rng.random(rows) < 1 / (1 + np.exp(-(0.5 * s - 0.8 * z + 0.2 * s * z)))
    kind = np.where(rng.random(rows) < 0.5, "a", "b")
    return Predictions.from_binary_logits(torch.tensor(s), right.astype(int), features={"length": length, "kind": kind})


def grouped(rows: int = 3000, *, effect: float = 1.0, seed: int = 0, columns: int = 1) -> Predictions:
    """Return logits whose groups are over-confident, biased and calibrated, more so with ``effect``."""
    rng = np.random.default_rng(seed)
    z, codes = rng.normal(size=(rows, 3)) * 2, rng.integers(0, 3, size=(rows, columns))
    slope = np.exp(-0.5 * effect * (codes == 0)).prod(axis=1)
    true = z * slope[:, None] + effect * (codes == 1).sum(axis=1)[:, None] * np.eye(3)[0]
    y = (true + rng.gumbel(size=true.shape)).argmax(axis=1)  # drawn from softmax(true)
    names = np.array(["low", "mid", "high"])
    return Predictions.from_logits(z, y, features={f"c{at}": names[codes[:, at]] for at in range(columns)})


# By numbers.


def test_two_classes_are_a_logistic_regression_with_products() -> None:
    data = answers(2000, 0)
    s, length = (data.logits[:, 1] - data.logits[:, 0]).numpy(), data.features["length"].double().numpy()
    z = (length - length.mean()) / length.std()
    columns = np.stack([s, s * z, z], axis=1)
    peer = linear_model.LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(
        columns, data.require_labels().numpy()
    )
    ours = FeatureScaling(["length"], ridge=1e-9).fit(data)
    p = data.calibrated_by(ours, allow_fit_rows=True).probs[:, 1]
    np.testing.assert_allclose(p, peer.predict_proba(columns)[:, 1], atol=2e-5)  # its prior on a₀, b₀: 1e-3 rows
    assert ours.gradient < 1e-7


def test_features_beyond_their_range_are_held_at_its_end() -> None:
    ours, z = FeatureScaling(["length"]).fit(answers(500, 4)), torch.tensor([[0.0, 1.0]])
    assert torch.equal(ours(z, {"length": [10]}), ours(z, {"length": [10_000]}))
    assert torch.equal(ours(z, {"length": [1]}), ours(z, {"length": [-3]}))


def test_separable_and_constant_features_have_a_finite_fit() -> None:
    length = torch.arange(200)
    data = Predictions.from_logits(
        torch.zeros(200, 2), (length >= 100).long(), features={"x": length}, unchecked_kind=True
    )
    after = data.calibrated_by(FeatureScaling().fit(data), allow_fit_rows=True)
    assert bool(torch.isfinite(after.logits).all())
    assert bool((after.predicted == data.labels).all())
    rows = answers(400, 5)
    constant = Predictions.from_logits(rows.logits, rows.labels, features={"c": torch.full((400,), 1e9) / 3})
    with_it = constant.calibrated_by(FeatureScaling().fit(constant), allow_fit_rows=True)
    bare = FeatureScaling().fit(rows.logits, rows.labels)
    torch.testing.assert_close(with_it.logits, bare(rows.logits), rtol=0, atol=1e-9)
    assert not bare.needs_features


# By groups.


@pytest.mark.parametrize("columns", [1, 2])
def test_groups_are_at_the_optimum_of_their_definition(columns: int) -> None:
    data = grouped(600, columns=columns)
    ours = GroupScaling(strength=2.0).fit(data)
    codes = ours._codes(data.features, 600) + 3 * torch.arange(columns)
    unit = TemperatureScaling(prior=0.5).fit(data).temperature

    def objective(theta: Tensor) -> Tensor:  # slopes and biases of all rows, then of each group
        own = theta[0] + theta[1:][codes].sum(dim=1)
        ridge = theta[1:].square().sum() + theta[0, 1:].square().sum()
        logits = own[:, :1] * data.logits / unit + own[:, 1:]
        return torch.nn.functional.cross_entropy(logits, data.require_labels()) + 2.0 / 600 * ridge

    theta = torch.cat([ours.slopes[:, None] * unit, ours.biases], dim=1)
    assert float(torch.func.grad(objective)(theta).abs().max()) < 1e-5  # a ridge of 1e-3 rows on the slope is left out
    assert ours.gradient < 1e-8


def test_two_groups_by_hand() -> None:
    z, y = torch.tensor([[2.0, 0.0]]).repeat(400, 1), [0] * 180 + [1] * 20 + [0] * 120 + [1] * 80
    data = Predictions.from_logits(z, y, features={"site": [-7] * 200 + [3] * 200})
    free = data.calibrated_by(GroupScaling(strength=1e-6).fit(data), allow_fit_rows=True).probs[[0, -1], 0]
    assert free.tolist() == pytest.approx([0.9, 0.6], abs=1e-4)
    held = GroupScaling(strength=1e9).fit(data)
    p = data.calibrated_by(held, allow_fit_rows=True).probs[[0, -1], 0]
    assert p.tolist() == pytest.approx([0.75, 0.75], abs=0.01)  # the temperature has a prior
    assert held.groups == [("site", "-7"), ("site", "3")]


def test_groups_gain_only_where_there_are_any() -> None:
    data, fresh = grouped(1500), grouped(seed=1)
    ours, whole = GroupScaling().fit(data), TemperatureScaling().fit(data)
    assert ours.strength_used < 100
    assert NLL()(fresh.calibrated_by(ours)) < NLL()(fresh.calibrated_by(whole)) - 0.01
    assert [value for _, value in ours.groups] == ["high", "low", "mid"]
    high, low, _ = 1 / (ours.slopes[0] + ours.slopes[1:])
    assert float(low) == pytest.approx(np.exp(0.5), rel=0.15)
    assert float(high) == pytest.approx(1.0, rel=0.15)
    mid = (ours.biases[0] + ours.biases[3]).tolist()
    assert mid[0] - (mid[1] + mid[2]) / 2 == pytest.approx(0.9, abs=0.25)  # of 1: shrunk, and its logits are steeper
    none = [GroupScaling().fit(grouped(200, effect=0.0, seed=seed)) for seed in range(2)]
    apart = [one for one in none if math.isfinite(one.strength_used)]
    assert len(apart) <= 1
    one = next(one for one in none if one not in apart)
    plain = TemperatureScaling(prior=0.5).fit(grouped(200, effect=0.0, seed=none.index(one)))
    assert one.temperature == pytest.approx(plain.temperature)


def test_columns_add_up_and_a_new_category_is_none(tmp_path: Path) -> None:
    data = grouped(4000, columns=2)
    ours, z = GroupScaling(strength=0.1).fit(data), data.logits[:1]
    ours.save(tmp_path / "c.safetensors")
    for calibrator in (ours, load(tmp_path / "c.safetensors")):
        one, other, both, none = (
            calibrator(z, {"c0": [a], "c1": [b]}) for a, b in (("low", "?"), ("?", "mid"), ("low", "mid"), ("new", "?"))
        )
        torch.testing.assert_close(both - none, (one - none) + (other - none))
        assert not torch.allclose(one, none)
        torch.testing.assert_close(none, z * ours.slopes[0] + ours.biases[0])


def test_columns_that_do_not_fit_are_refused() -> None:
    data, z = fitting(), torch.randn(60, 20, generator=torch.Generator().manual_seed(0))
    refused: list[tuple[Any, str]] = [
        (lambda: fitted("groups")(z[:2, :3], {"other": [1, 2]}), "expected the feature 'site', got 'other'"),
        (lambda: fitted("numbers")(z[:2, :3], {"age": [1.0]}), r"the feature 'age' of shape \(2,\)"),
        (lambda: fitted("groups")(z[:2, :3], {"site": ["a", None]}), "give missing entries a name of their own"),
        (lambda: fitted("groups")(z[:2, :3]), "the features that GroupScaling was fitted on, got none"),
        (lambda: Predictions.from_logits(z[:, :3]).calibrated_by(fitted("groups")), "the feature 'site', got none"),
        (lambda: GroupScaling(["absent"]).fit(data), "expected the feature 'absent', got 'age', 'site'"),
        (lambda: GroupScaling(["x", "x"]), "a list of distinct names"),
        (lambda: FeatureScaling(["site"]).fit(data), "numbers in the feature 'site', got names"),
        (lambda: FeatureScaling().fit(with_column(z, torch.full((60,), math.nan))), "finite numbers in the feature 'x'"),
        (lambda: GroupScaling().fit(with_column(z, np.linspace(0, 1, 60))), "numpy.digitize"),
        (lambda: GroupScaling().fit(with_column(z, np.arange(60))), "at most 1024 parameters, got 60 groups"),
    ]  # fmt: skip
    for call, message in refused:
        with pytest.raises(InputError, match=message):
            call()


def with_column(z: Tensor, column: Any) -> Predictions:
    return Predictions.from_logits(z, torch.arange(60) % 20, features={"x": column})
