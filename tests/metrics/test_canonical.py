"""CanonicalError: known truths, that its lower end stays below them, its parts, weights and groups, and its limit."""

import pytest
import torch
from torch import Tensor

from calibrant import Predictions
from calibrant.metrics import CanonicalError
from calibrant.statistics import interval


def sample(
    rows: int, *, sharpness: float, seed: int = 0, classes: int = 6, bias: float = 0.0
) -> tuple[Predictions, Tensor]:
    """Return logits ``sharpness`` times too large and without the bias of class 0, and the true probabilities."""
    g = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(rows, classes, generator=g).double()
    true = torch.softmax(z + bias * torch.eye(classes)[0], 1)
    return Predictions.from_logits(sharpness * z, true.multinomial(1, generator=g)[:, 0]), true


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize(("sharpness", "bias"), [(1.0, 0.0), (2.5, 0.0), (0.5, 0.0), (1.0, 1.5)])
def test_it_is_near_the_truth_and_its_lower_end_below(norm: int, sharpness: float, bias: float) -> None:
    metric = CanonicalError(norm=norm)  # type: ignore[arg-type]
    large, true = sample(20_000, sharpness=sharpness, seed=99, bias=bias)
    truth = float((large.probs - true).norm(p=norm, dim=1).mean())
    found = [interval(metric, sample(1500, sharpness=sharpness, seed=seed, bias=bias)[0]) for seed in range(12)]
    assert sum(one.low <= truth for one in found) >= 11
    assert sum(one.estimate for one in found) / 12 == pytest.approx(truth, abs=0.03)
    if truth > 0.3:
        assert min(one.low for one in found) > 0.6 * truth


def test_by_hand_with_two_kinds_of_rows() -> None:
    # 80 % said and 50 % true: ‖(.5, .5) − (.8, .2)‖₁ = .6, over-confident; 60 % said and 90 % true: under-confident by as much
    probs = [[0.8, 0.2]] * 1000 + [[0.4, 0.6]] * 1000
    data = Predictions.from_probs(probs, [0, 1] * 500 + ([1] * 9 + [0]) * 100)
    parts = {part: CanonicalError(part=part)(data) for part in ("all", "over", "under")}  # type: ignore[arg-type]
    assert parts == {
        key: pytest.approx(value, abs=0.04) for key, value in (("all", 0.6), ("over", 0.3), ("under", 0.3))
    }
    assert parts["over"] + parts["under"] == pytest.approx(parts["all"], abs=1e-12)
    assert CanonicalError(norm=2)(data) == pytest.approx(parts["all"] / 2**0.5, abs=1e-9)


def test_a_calibrated_model_stays_within_its_limit() -> None:
    metric, beyond = CanonicalError(), 0
    for seed in range(60):
        data = sample(400, sharpness=1.0, seed=seed)[0]
        beyond += metric(data) > metric.limit(data)
    assert beyond <= 5  # 2.5 % of 60
    off = sample(400, sharpness=2.5)[0]
    assert metric(off) > metric.limit(off)
    weighted = Predictions.from_logits(off.logits, off.labels, weights=[4] * 400, weight_kind="frequency")
    shares = Predictions.from_logits(off.logits, off.labels, weights=[4.0] * 400, weight_kind="sampling")
    assert metric.limit(weighted) == pytest.approx(metric.limit(off) / 2, rel=0.1)
    assert metric.limit(shares) == pytest.approx(metric.limit(off))


def test_groups_are_the_units_and_share_a_fold() -> None:
    data = sample(1200, sharpness=2.0)[0]
    twice = Predictions.cat([data, data])
    grouped = Predictions.from_logits(twice.logits, twice.labels, groups=torch.arange(1200).repeat(2))
    alone, both = (interval(CanonicalError(), one) for one in (data, grouped))
    assert both.high - both.low == pytest.approx(alone.high - alone.low, rel=0.1)
