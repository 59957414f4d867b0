"""Binary metrics over several labels a row: pooled, averaged, label by label, and the worst of them."""

import math
from dataclasses import asdict
from itertools import product

import numpy as np
import pytest
import torch
from tests.conftest import late

from calibrant import MultiLabel, Pairs
from calibrant.errors import InputError, ZeroProbabilityWarning
from calibrant.evaluate import label_table, multilabel_panel, subgroups
from calibrant.evaluate._label_sums import AVERAGES, METRICS
from calibrant.evaluate.multilabel import MultiLabelRow, panel_of
from calibrant.metrics import ECE
from calibrant.statistics import interval
from calibrant.statistics.means import mean_interval

metrics = late("sklearn.metrics")


def sample(rows: int = 400, seed: int = 0, *, slope: float = 1.5, missing: float = 0.1, **more: object) -> MultiLabel:
    """Return over-confident logits of three labels that depend on each other, some of which are missing."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(rows, 1, generator=generator, dtype=torch.float64)
    z = shared + torch.randn(rows, 3, generator=generator, dtype=torch.float64) + torch.tensor([0.0, -1.5, -3.0])
    y = (torch.rand(rows, 3, generator=generator, dtype=torch.float64) < torch.sigmoid(z)).long()
    y[torch.rand(rows, 3, generator=generator) < missing] = -1
    return MultiLabel.from_logits(slope * z, y, names=["often", "some", "rare"], **more)


def values(data: MultiLabel) -> dict[tuple[str, str], MultiLabelRow]:
    return {(row.metric, row.average): row for row in multilabel_panel(data, draws=50)}


def test_values_are_those_of_scikit_learn_and_of_binary_pairs() -> None:
    data = sample()
    found = values(data)
    parts = [data.label(name) for name in data.names]
    p, y = torch.cat([one.p for one in parts]).numpy(), torch.cat([one.y for one in parts]).numpy()
    assert found["NLL", "pooled"].value == pytest.approx(metrics.log_loss(y, p), rel=1e-12)
    assert found["Brier", "pooled"].value == pytest.approx(metrics.brier_score_loss(y, p), rel=1e-12)
    assert found["NLL", "macro"].value == pytest.approx(
        np.mean([metrics.log_loss(one.y, one.p) for one in parts]), rel=1e-12
    )
    assert found["Bias", "macro"].value == pytest.approx(
        np.mean([float((one.p - one.y).mean()) for one in parts]), rel=1e-9
    )
    assert found["ECE", "pooled"].value == pytest.approx(ECE()(Pairs.from_probs(p, y.astype(int))), rel=1e-12)
    assert found["ECE", "macro"].value == pytest.approx(np.mean([ECE()(one) for one in parts]), rel=1e-12)


def assert_alike(found: list[MultiLabelRow], expected: list[MultiLabelRow]) -> None:
    """Assert that two panels are one, to 1e-9."""
    for one, other in zip(found, expected, strict=True):
        mine, theirs = asdict(one), asdict(other)
        for name, number in theirs.items():
            wanted = pytest.approx(number, rel=1e-9, abs=1e-12) if isinstance(number, float) else number
            assert mine[name] == wanted, name


def beside(kind: str, rows: int) -> dict[str, object]:
    """Return weights, some of them 0, or groups, or both, as the words of ``kind`` say."""
    generator, found = torch.Generator().manual_seed(7), {}
    if "weights" in kind:
        weights = 5 * torch.rand(rows, generator=generator, dtype=torch.float64) ** 3
        weights[torch.rand(rows, generator=generator) < 0.1] = 0
        found = {"weights": weights}
    return found | ({"groups": torch.randint(0, 60, (rows,), generator=generator)} if "groups" in kind else {})


KINDS = ["plain", "weights", "groups", "weights groups"]


@pytest.mark.parametrize("missing", [0.0, 0.5])
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_are_those_of_rows_and_of_pairs_in_groups(kind: str, missing: float) -> None:
    """Oracles: means over rows of numbers made label by label, and ``interval`` of all pairs, of which the rows are groups."""
    data = sample(missing=missing, **beside(kind, 400)).counted
    found, w, known = values(data), data.row_weights.numpy(), data.known.numpy()
    p, y = data.probs.numpy(), data.labels.clamp_min(0).numpy()
    losses = {"NLL": -np.log(np.where(y == 1, p, 1 - p)), "Brier": (p - y) ** 2, "Bias": p - y}
    for metric in METRICS:
        loss, mass = losses[metric], w @ known
        means = [np.average(loss[known[:, at], at], weights=w[known[:, at]]) for at in range(3)]
        pooled = np.average(loss[known], weights=np.repeat(w, 3).reshape(-1, 3)[known])
        centres = {
            "pooled": (np.full(3, pooled), w.sum() / mass.sum() * np.ones(3)),
            "macro": (np.array(means), w.sum() / mass / 3),
        }
        for average in AVERAGES:
            centre, factor = centres[average]
            rows = (np.where(known, loss - centre, 0.0) * factor).sum(axis=1) + (
                pooled if average == "pooled" else np.mean(means)
            )
            ends = mean_interval(torch.from_numpy(rows), groups=data.groups, weight=data.weights)
            row = found[metric, average]
            assert (row.value, row.low, row.high) == pytest.approx(
                (ends.estimate, ends.low, ends.high), rel=1e-9, abs=1e-12
            )
    assert found["ECE", "macro"].value == pytest.approx(
        np.mean([ECE()(data.label(name)) for name in data.names]), rel=1e-9
    )
    ends = interval(ECE(), data.pooled(), draws=50)
    row = found["ECE", "pooled"]
    assert (row.value, row.low, row.high) == pytest.approx((ends.estimate, ends.low, ends.high), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("kind", "size"), [*product(KINDS, [7, 150]), ("weights", 1)])
def test_pieces_of_any_size_have_the_intervals_of_all_rows(kind: str, size: int) -> None:
    rows = 400 if size > 1 else 150
    data = sample(rows, missing=0.5, **beside(kind, rows))
    data = MultiLabel.from_logits(data.logits.half(), data.labels, names=data.names, **beside(kind, rows))
    whole = multilabel_panel(data, draws=50)
    parts = panel_of(lambda: (data[at : at + size] for at in range(0, rows, size)), draws=50)
    assert sum(row.low is not None for row in whole) == 7
    assert_alike(parts, whole)


def test_pieces_without_an_interval_say_why() -> None:
    def reasons(*pieces: MultiLabel) -> set[str | None]:
        return {row.refused for row in panel_of(lambda: pieces, draws=50)[:7]}

    data = sample(groups=torch.arange(400) // 50)
    (few,) = reasons(data[:100], data[100:])
    assert few == values(data)["NLL", "pooled"].refused
    assert "at least 10 groups" in str(few)
    (mixed,) = reasons(sample(), sample(groups=torch.arange(400)))
    assert "groups in all rows or in none" in str(mixed)
    calls = iter([[sample()], [sample()[:399]]])
    with pytest.raises(InputError, match="the same rows in two passes, got 400 the first time and 399"):
        panel_of(lambda: next(calls), draws=50)


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


def test_the_table_of_labels_flags_the_one_that_is_off() -> None:
    data = sample(2000, slope=1.0)
    calm = label_table(data, draws=500)
    assert calm.p_value > 0.05
    assert calm.verdict.startswith("No label's gap or calibration error is larger")
    shifted = data.logits + torch.tensor([0.0, 0.8, 0.0])
    found = label_table(MultiLabel.from_logits(shifted, data.labels, names=data.names), draws=500)
    assert found.rows[0].label == "some"
    assert found.rows[0].p_adjusted < 0.001
    assert "too high by" in str(found)
    row = next(row for row in found.rows if row.label == "rare")
    pairs = data.label("rare")
    assert (row.n, row.positives) == (len(pairs), int(pairs.y.sum()))
    assert row.gap == pytest.approx(float((pairs.p - pairs.y).mean()), rel=1e-9)
    alone = subgroups(pairs, {"all": ["x"] * len(pairs)}, draws=500).rows[0]
    assert (row.low, row.high) == pytest.approx((alone.low, alone.high), rel=1e-9)


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
    with pytest.warns(ZeroProbabilityWarning, match="floor"):
        found = values(data)
    assert math.isinf(found["NLL", "pooled"].value)
    assert found["NLL", "macro"].low is None


def test_a_label_with_few_events_is_shown_and_not_tested() -> None:
    data = sample(150, missing=0.0)
    z = data.logits.clone()
    z[:, 2] -= 4
    found = label_table(MultiLabel.from_logits(z, data.labels, names=data.names), draws=500)
    assert len(found.rows) == 3
    assert found.rows[-1].label == "rare"
    assert found.rows[-1].p is None
    assert len(found.tested) == 2
