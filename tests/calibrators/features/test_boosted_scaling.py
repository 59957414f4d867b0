"""Boosted scaling: trees as scikit-learn has them, what they find, when there are none, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import late

from calibrant import Predictions, load
from calibrant.calibrators import BoostedScaling, TemperatureScaling
from calibrant.calibrators.features import boosted_scaling
from calibrant.calibrators.features.boosted_scaling import CodedColumn, Grower, coded_by_part, part_edges
from calibrant.calibrators.features.group_scaling import fit_everyone
from calibrant.errors import InputError
from calibrant.metrics import NLL
from calibrant.rows import MemoryRows

ensemble = late("sklearn.ensemble")


def sample(rows: int = 1500, classes: int = 2, *, effect: float = 2.0, seed: int = 0) -> Predictions:
    """Return logits that are off in one intersection, old and of site b, which no single column shows so clearly."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(rows, classes)) * 1.5
    age, site = rng.uniform(20, 80, rows), rng.choice(["a", "b", "c"], rows)
    true = z + effect * ((age > 50) & (site == "b"))[:, None] * np.eye(classes)[-1]
    p = np.exp(true - true.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    y = (p.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1).clip(max=classes - 1)
    return Predictions.from_logits(z, y, features={"age": age, "site": site})


@pytest.fixture(scope="module")
def fitted() -> BoostedScaling:
    return BoostedScaling(folds=2).fit(sample())


def grown_on(columns: list[CodedColumn], y: Any, depth: int = 4) -> tuple[Any, Any]:
    """Return the tree of least squares and what it says of every row."""
    made, step = Grower(columns, np.ones((1, len(y)), dtype=bool)).grow(-y[None], np.ones((1, len(y))), depth=depth)
    return made.tree(0, columns), step[0]


@pytest.mark.parametrize("seed", range(3))
def test_trees_say_what_scikit_learn_says(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boosted_scaling, "FEWEST", 20.0)
    rng = np.random.default_rng(seed)
    columns = [CodedColumn(rng.integers(0, size, 900), size, names=False) for size in (9, 3, 40, 200)]
    columns.append(CodedColumn(np.where(rng.random(900) < 0.15, 12, rng.integers(0, 12, 900)), 13, False, missing=True))
    x = np.stack([one.code for one in columns], axis=1).astype(float)
    x[x[:, 4] == 12, 4] = np.nan
    y = x[:, 0] + np.nan_to_num(2 * x[:, 4], nan=7.0) + 3 * (x[:, 2] > 20) + rng.normal(size=900)
    y -= y.mean()
    model = ensemble.HistGradientBoostingRegressor(
        max_iter=1,
        learning_rate=1.0,
        max_depth=4,
        max_leaf_nodes=16,
        l2_regularization=boosted_scaling.RIDGE,
        early_stopping=False,
    ).fit(x, y)
    tree, step = grown_on(columns, y)
    assert step == pytest.approx(model.predict(x), abs=1e-5)  # scikit-learn's gradients are float32
    assert tree.values(torch.from_numpy(x), tree.depth())[:, 0].numpy() == pytest.approx(step, abs=1e-12)


def test_categories_are_parted_as_no_other_two_halves_are_better() -> None:
    rng = np.random.default_rng(1)
    code = rng.integers(0, 7, 400)
    y = rng.normal(size=7)[code] + rng.normal(size=400)
    y -= y.mean()
    tree, step = grown_on([CodedColumn(code, 7, names=True)], y, depth=1)
    part = len({*step.tolist()})
    assert part == 2
    assert torch.equal(tree.values(torch.from_numpy(code).double()[:, None], 1)[:, 0], torch.from_numpy(step))

    def gain(inside: Any) -> float:
        return float(sum(y[half].sum() ** 2 / (half.sum() + boosted_scaling.RIDGE) for half in (inside, ~inside)))

    best = max(gain(np.isin(code, [at for at in range(7) if half >> at & 1])) for half in range(1, 64))
    assert gain(step == step[0]) == pytest.approx(best)


def test_fits_side_by_side_are_fits_of_their_own() -> None:
    rng = np.random.default_rng(4)
    columns = [CodedColumn(rng.integers(0, size, 500), size, names=size == 6) for size in (6, 30)]
    inside = rng.random((3, 500)) < 0.7
    g, h = rng.normal(size=(3, 500)), rng.uniform(0.1, 1, size=(3, 500))
    _, steps = Grower(columns, inside).grow(g, h, depth=3)
    for at in range(3):
        own = np.flatnonzero(inside[at])
        part = [CodedColumn(one.code[own], one.size, one.names) for one in columns]
        _, step = Grower(part, np.ones((1, len(own)), dtype=bool)).grow(g[at, own][None], h[at, own][None], depth=3)
        assert steps[at, own] == pytest.approx(step[0], abs=1e-12)


@pytest.mark.parametrize("distinct", [40, 5000])
@pytest.mark.parametrize("gaps", [False, True])
def test_trees_over_codes_are_trees_over_numbers(distinct: int, gaps: bool) -> None:
    rng = np.random.default_rng(2)
    values = torch.from_numpy(rng.choice(rng.normal(size=distinct), 2000))
    if gaps:
        values[::7] = torch.nan
    edges = part_edges(values)
    column = coded_by_part(values, edges)
    assert column.size <= 256
    y = np.sin(3 * np.nan_to_num(values.numpy(), nan=1.0))
    tree, step = grown_on([column], y - y.mean())
    assert len(tree.left) > 9
    assert tree.decoded([edges]).values(values[:, None], 4)[:, 0].numpy() == pytest.approx(step, abs=1e-12)


@pytest.mark.parametrize("slopes", [(1.0, 1.0), (0.5, 0.5), (0.2, 0.9)])
def test_the_global_map_is_as_free_as_it_pays_for(slopes: tuple[float, float]) -> None:
    rng = np.random.default_rng(3)
    z = rng.normal(size=(2000, 2)) * 2
    true = z * np.array(slopes)
    y = (rng.random(2000) < 1 / (1 + np.exp(true[:, 0] - true[:, 1]))).astype(int)
    slope, bias, certificate = fit_everyone(MemoryRows.of(torch.from_numpy(z), y), 2000.0, biased=True)
    assert (slope[0] == slope[1]) == (slopes[0] == slopes[1])
    assert slope.tolist() == pytest.approx(slopes, abs=0.0 if slopes == (1.0, 1.0) else 0.1)
    assert bool((bias == 0).all()) == (slopes[0] == slopes[1])
    assert certificate < 1e-7


def test_an_intersection_that_nobody_named_is_found(fitted: BoostedScaling) -> None:
    fresh = sample(seed=1)
    whole = fresh.calibrated_by(TemperatureScaling().fit(sample()))
    after = fresh.calibrated_by(fitted)
    assert fitted.trees > 5
    assert fitted.gain > 0.01
    assert NLL()(after) < NLL()(whole) - 0.02
    off = torch.from_numpy((fresh.features["age"].numpy() > 50) & (fresh.features["site"] == "b"))  # type: ignore[union-attr]
    pairs = after[off].one_vs_rest(1)
    before = fresh[off].one_vs_rest(1)
    assert abs(float((pairs.p - pairs.y).mean())) < 0.4 * abs(float((before.p - before.y).mean()))


def test_three_classes() -> None:
    data, fresh = sample(1200, 3, effect=2.5), sample(1200, 3, effect=2.5, seed=1)
    fitted = BoostedScaling(folds=2, most_trees=30).fit(data)
    assert NLL()(fresh.calibrated_by(fitted)) < NLL()(fresh.calibrated_by(TemperatureScaling().fit(data))) - 0.01


def test_without_a_gain_there_are_no_trees_and_no_features_are_needed(tmp_path: Path) -> None:
    fitted = [BoostedScaling(folds=2, depth=2).fit(sample(400, effect=0.0, seed=seed)) for seed in range(6)]
    assert sum(one.trees == 0 for one in fitted) >= 4
    none = next(one for one in fitted if one.trees == 0)
    bare = sample(50).logits
    none.save(tmp_path / "c.safetensors")
    assert torch.equal(load(tmp_path / "c.safetensors")(bare), none(bare))
    assert torch.allclose(none(bare), bare * none.slope + none.bias)
    assert not none.needs_features


def test_broken_trees_are_refused(fitted: BoostedScaling) -> None:
    for name, entry in (("left", 10**6), ("left", 0), ("roots", -1), ("members", 10**6), ("feature", 9)):
        state = {key: value.clone() for key, value in fitted.state_dict().items()}
        state[f"tree_{name}"][1] = entry
        with pytest.raises(ValueError, match="tree"):
            BoostedScaling(folds=2).load_state_dict(state)


def test_what_is_refused() -> None:
    data = sample(300)
    for column, text in (
        ([f"n{at}" for at in range(300)], "at most 255 names in the feature 'x', got 300; merge"),
        ([float("inf")] * 300, "finite numbers or NaN in the feature 'x'"),
    ):
        with pytest.raises(InputError, match=text):
            BoostedScaling().fit(data.logits, data.labels, features={"x": column})
    with pytest.raises(InputError, match="at most 50 classes"):
        BoostedScaling().fit(torch.randn(60, 51), torch.zeros(60).long())
