"""What weights keep, in every metric: counts are repeated rows, a weight of 0 is a row left out, scale is nothing."""

import math
from typing import Any

import pytest
import torch

import calibrant.metrics as family
from calibrant import BinaryPairs, Predictions
from calibrant.binning import EqualMass, EqualWidth
from calibrant.errors import InputError
from calibrant.metrics import ECE, MCE, SKCE, ClasswiseECE, Entropy, KernelECE, Metric, SplitNLL, SumMetric, TopLabelECE

CLASSES = [getattr(family, name) for name in family.__all__]
METRICS: list[Metric] = [
    *(cls() for cls in CLASSES if isinstance(cls, type) and issubclass(cls, Metric) and not cls.__abstractmethods__),
    ECE(EqualMass(15)),
    ECE(EqualMass(10, ties="interpolated")),
    ECE(norm=2),
    MCE(EqualMass(15)),
    ClasswiseECE(EqualMass(15)),
    TopLabelECE(EqualMass(5)),
    SplitNLL("correct"),
    Entropy("wrong"),
    KernelECE(width=0.1),
    SKCE(width=0.5),
]
INTERPOLATED = ECE(EqualMass(10, ties="interpolated"))


def sample(rows: int = 120, classes: int = 3, *, ties: bool = False) -> Predictions:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(rows, classes, generator=generator, dtype=torch.float64) * 2
    return Predictions.from_logits(
        (logits * 2).round() / 2 if ties else logits, torch.randint(classes, (rows,), generator=generator)
    )


def counts(rows: int = 120) -> torch.Tensor:
    return torch.randint(0, 5, (rows,), generator=torch.Generator().manual_seed(4))


def shares(rows: int = 120) -> torch.Tensor:
    return torch.rand(rows, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 3 + 0.01


def weighted(data: Predictions, weights: Any, kind: Any) -> Predictions:
    return Predictions.from_logits(data.logits, data.labels, weights=weights, weight_kind=kind)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("metric", METRICS, ids=repr)
def test_counts_are_repeated_rows(metric: Metric, ties: bool) -> None:
    data, times = sample(ties=ties), counts()
    repeated = data[torch.repeat_interleave(torch.arange(len(data)), times)]
    assert metric(weighted(data, times, "frequency")) == pytest.approx(metric(repeated), rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("kind", ["frequency", "sampling"])
@pytest.mark.parametrize("metric", [m for m in METRICS if m != INTERPOLATED], ids=repr)
def test_a_weight_of_0_is_a_row_left_out(metric: Metric, kind: str) -> None:
    data, weights = sample(), counts() if kind == "frequency" else shares() * (counts() > 0)
    kept = weights > 0
    some = weighted(data, weights, kind)
    assert metric(some) == pytest.approx(metric(some[kept]), rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("metric", [m for m in METRICS if m != INTERPOLATED], ids=repr)
def test_the_scale_of_sampling_weights_is_nothing(metric: Metric) -> None:
    data, weights = sample(), shares()
    one = metric(weighted(data, weights, "sampling"))
    for scale in (1e-6, 1 / 3, 1e9):
        assert metric(weighted(data, weights * scale, "sampling")) == pytest.approx(one, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("metric", METRICS, ids=repr)
def test_equal_weights_are_none(metric: Metric, ties: bool) -> None:
    data = sample(ties=ties)
    for kind, weight in (("frequency", 1), ("sampling", 0.7)):
        if metric == INTERPOLATED and kind == "sampling":
            continue
        found = metric(weighted(data, torch.full((len(data),), weight), kind))
        assert found == pytest.approx(metric(data), rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("metric", METRICS, ids=repr)
def test_weights_count(metric: Metric) -> None:
    if metric == INTERPOLATED:
        with pytest.raises(InputError, match="use EqualMass\\(ties='together'\\)"):
            metric(weighted(sample(), shares(), "sampling"))
    else:
        assert metric(weighted(sample(), shares(), "sampling")) != pytest.approx(metric(sample()), rel=1e-3)


@pytest.mark.parametrize("kind", ["frequency", "sampling"])
@pytest.mark.parametrize("metric", [m for m in METRICS if isinstance(m, SumMetric) and m != INTERPOLATED], ids=repr)
def test_states_of_weighted_rows_add(metric: SumMetric[Any], kind: str) -> None:
    data = weighted(sample(), counts() if kind == "frequency" else shares(), kind)
    if isinstance(metric, TopLabelECE) and isinstance(metric.binning, EqualMass):
        with pytest.raises(InputError, match="equal-width"):
            metric.state(data)
        return
    total = metric.state(data[:50]) + metric.state(data[50:])
    assert metric.value(total) == pytest.approx(metric(data), rel=1e-12, abs=1e-13)


def test_states_of_rows_with_and_without_sampling_weights_do_not_add() -> None:
    data = sample()
    for binning in (EqualWidth(15), EqualMass(15)):
        with pytest.raises(InputError, match="measure all parts with weights"):
            ECE(binning).state(data) + ECE(binning).state(weighted(data, shares(), "sampling"))


@pytest.mark.parametrize("metric", [m for m in METRICS if not m.needs_classes], ids=repr)
def test_pairs_carry_weights(metric: Metric) -> None:
    data = weighted(sample(), shares(), "sampling")
    if metric != INTERPOLATED:
        assert metric(data.top_label()) == pytest.approx(metric(data), rel=1e-12, abs=1e-13)


def test_counts_beyond_what_could_be_repeated() -> None:
    pairs = BinaryPairs.from_probs([0.9, 0.6], [1, 0], weights=[10**9, 3 * 10**9], weight_kind="frequency")
    assert family.Accuracy()(pairs) == 0.25
    assert family.AURC()(pairs) == pytest.approx(0.25 * (math.log(4) * -1 + 3), rel=1e-8)
