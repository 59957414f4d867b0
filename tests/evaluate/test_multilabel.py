"""Binary metrics over several labels per row: pooled, averaged, label by label, and the worst of them."""

import math

import numpy as np
import pytest
import torch

from calibrant import MultiLabel
from calibrant.errors import InputError, ZeroProbabilityWarning
from calibrant.evaluate import label_table, multilabel_panel, subgroups
from calibrant.evaluate.panel import Row
from calibrant.metrics import ECE
from calibrant.statistics import interval
from calibrant.statistics.means import mean_interval


def sample(rows: int = 400, seed: int = 0, *, slope: float = 1.5, missing: float = 0.1, **more: object) -> MultiLabel:
    """Return over-confident logits of three labels that depend on each other, some of which are missing."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(rows, 1, generator=generator, dtype=torch.float64)
    z = shared + torch.randn(rows, 3, generator=generator, dtype=torch.float64) + torch.tensor([0.0, -1.5, -3.0])
    y = (torch.rand(rows, 3, generator=generator, dtype=torch.float64) < torch.sigmoid(z)).long()
    y[torch.rand(rows, 3, generator=generator) < missing] = -1
    return MultiLabel.from_logits(slope * z, y, names=["often", "some", "rare"], **more)


def values(data: MultiLabel) -> dict[tuple[str, str], Row]:
    return {(row.metric, row.average): row for row in multilabel_panel(data)}


def beside(kind: str, rows: int) -> dict[str, object]:
    """Return weights, some of them 0, or groups, or both, as the words of ``kind`` say."""
    generator, found = torch.Generator().manual_seed(7), {}
    if "weights" in kind:
        weights = 5 * torch.rand(rows, generator=generator, dtype=torch.float64) ** 3
        weights[torch.rand(rows, generator=generator) < 0.1] = 0
        found = {"weights": weights}
    return found | ({"groups": torch.randint(0, 60, (rows,), generator=generator)} if "groups" in kind else {})


@pytest.mark.parametrize("kind", ["plain", "weights", "groups", "weights groups"])
def test_intervals_are_those_of_rows_and_of_pairs_in_groups(kind: str) -> None:
    """Oracles: means over rows of numbers made label by label, and ``interval`` of all pairs, of which the rows are groups."""
    data = sample(missing=0.5, **beside(kind, 400))
    found, data = values(data), data.counted
    w, known = data.row_weights.numpy(), data.known.numpy()
    p, y = data.probs.numpy(), data.labels.clamp_min(0).numpy()
    losses = {"NLL": -np.log(np.where(y == 1, p, 1 - p)), "Brier": (p - y) ** 2, "Bias": p - y}
    mass = w @ known
    for metric, loss in losses.items():
        means = np.array([np.average(loss[known[:, k], k], weights=w[known[:, k]]) for k in range(3)])
        pooled = (w @ np.where(known, loss, 0.0)).sum() / mass.sum()
        parts = {
            "pooled": pooled + np.where(known, loss - pooled, 0.0).sum(axis=1) * w.sum() / mass.sum(),
            "macro": means.mean() + np.where(known, loss - means, 0.0) @ (w.sum() / mass) / 3,
        }
        for average, rows in parts.items():
            ends = mean_interval(torch.from_numpy(rows), groups=data.groups, weight=data.weights)
            row = found[metric, average]
            expected = pytest.approx((ends.estimate, ends.low, ends.high), rel=1e-9, abs=1e-12)
            assert (row.value, row.low, row.high) == expected
    ends, row = interval(ECE(), data.pooled()), found["ECE", "pooled"]
    assert (row.value, row.low, row.high) == pytest.approx((ends.estimate, ends.low, ends.high), rel=1e-12)
    assert found["ECE", "macro"].value == pytest.approx(np.mean([ECE()(data.label(name)) for name in data.names]))


def test_an_interval_is_refused_with_few_events_and_for_the_macro_ece() -> None:
    few = sample(60, missing=0.0, slope=1.0)
    rare = MultiLabel.from_logits(few.logits[:, 2:], few.labels[:, 2:])
    for row in multilabel_panel(rare):
        assert row.low is None
        assert row.refused is not None
    assert "positive label" in str(values(rare)["NLL", "pooled"].refused)
    macro = values(sample())["ECE", "macro"]
    assert macro.low is None
    assert 0 < macro.null_mean < macro.value
    assert "10 groups with a positive label" in str(
        values(sample(groups=torch.arange(400) // 50))["NLL", "macro"].refused
    )
    assert {row.refused for row in multilabel_panel(sample(), uncertainty=False)} == {"left out"}


def test_the_table_of_labels_flags_the_one_that_is_off() -> None:
    data = sample(2000, seed=1, slope=1.0)
    calm = label_table(data)
    assert calm.p_value > 0.05
    assert calm.verdict.startswith("No label is significantly miscalibrated (worst: ")
    shifted = data.logits + torch.tensor([0.0, 0.8, 0.0])
    found = label_table(MultiLabel.from_logits(shifted, data.labels, names=data.names))
    assert found.rows[0].name == "some"
    assert found.rows[0].p_adjusted < 0.001
    row = next(row for row in found.rows if row.name == "rare")
    pairs = data.label("rare")
    assert (row.n, row.positives) == (len(pairs), int(pairs.y.sum()))
    assert row.gap == pytest.approx(float((pairs.p - pairs.y).mean()), rel=1e-9)
    alone = subgroups(pairs, {"all": ["x"] * len(pairs)}).rows[0]
    assert (row.low, row.high) == pytest.approx((alone.low, alone.high), rel=1e-9)
    p_values = sorted(
        subgroups(data.label(name), {"all": ["x"] * int(data.known[:, k].sum())}).rows[0].p_adjusted
        for k, name in enumerate(data.names)
    )
    assert calm.p_value == pytest.approx(min(3 * p_values[0], 1))  # Holm's adjustment of the smallest


def test_a_label_that_is_missing_in_all_rows_is_named() -> None:
    data = sample()
    labels = data.labels.clone()
    labels[:, 1] = -1
    broken = MultiLabel.from_logits(data.logits, labels, names=data.names)
    for call in (multilabel_panel, label_table):
        with pytest.raises(InputError, match=r"'some' missing .*leave its column out"):
            call(broken)
    kept = MultiLabel.from_logits(data.logits[:, [0, 2]], labels[:, [0, 2]])
    assert len(multilabel_panel(kept)) == 8
    with pytest.raises(InputError, match="MultiLabel"):
        multilabel_panel(data.label(0))


def test_a_certain_miss_is_infinite_with_a_warning() -> None:
    data = MultiLabel.from_probs([[0.0, 0.5]] * 20 + [[0.5, 1.0]] * 20, [[1, 1]] + [[0, 1]] * 39)
    with pytest.warns(ZeroProbabilityWarning, match="give both outcomes of every label a probability above 0"):
        found = values(data)
    assert math.isinf(found["NLL", "pooled"].value)
    assert found["NLL", "macro"].low is None


def test_a_label_with_few_events_is_shown_and_not_tested() -> None:
    data = sample(150, missing=0.0)
    z = data.logits.clone()
    z[:, 2] -= 4
    found = label_table(MultiLabel.from_logits(z, data.labels, names=data.names))
    assert len(found.rows) == 3
    assert found.rows[-1].name == "rare"
    assert found.rows[-1].p is None
    assert len(found.tested) == 2
