"""A calibrator a label, rare labels shrunk towards the pool."""

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.draws import of_log_odds
from torch import Tensor

import calibrant
from calibrant import MultiLabel
from calibrant.calibrators import (
    BetaCalibration,
    Calibrator,
    CentredIsotonic,
    HistogramBinning,
    IsotonicCalibration,
    MultiLabelCalibrator,
    PlattScaling,
    SplineCalibration,
    TemperatureScaling,
)
from calibrant.errors import InputError, LeakError, NotFittedError
from calibrant.rows import MemoryRows

NAMES = ["often", "some", "rare", "three", "none"]
BASES = [PlattScaling, BetaCalibration, IsotonicCalibration, CentredIsotonic, TemperatureScaling, SplineCalibration]


def sample(rows: int = 600, seed: int = 0, *, slope: float = 2.0) -> tuple[Tensor, Tensor]:
    """Return over-confident logits of five labels, the fourth with three positives and the last with none."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(rows, 5, generator=generator, dtype=torch.float64) * 1.5 + torch.tensor(
        [0.0, -1.0, -3.0, -5.0, -5.0]
    )
    y = (torch.rand(rows, 5, generator=generator, dtype=torch.float64) < torch.sigmoid(z)).long()
    y[:, 3:] = 0
    y[:3, 3] = 1
    y[torch.rand(rows, 5, generator=generator) < 0.1] = -1
    y[:3, 3] = 1
    return slope * z, y


def data(**more: object) -> MultiLabel:
    return MultiLabel.from_logits(*sample(), names=NAMES, **more)


def pool_of(found: MultiLabel, base: Calibrator) -> Calibrator:
    rows = found.known
    return base.fit(of_log_odds(found.logits[rows]), found.labels[rows])


@pytest.mark.parametrize("base", BASES)
def test_a_label_without_events_keeps_the_pools_answer(base: type[Calibrator]) -> None:
    found = data()
    fitted = MultiLabelCalibrator(base(), strength=10.0).fit(found)
    pool, alone = pool_of(found, base()), MultiLabelCalibrator(base(), strength=0.0).fit(found)
    fresh = sample(50, seed=5)[0]
    expected = pool(of_log_odds(fresh[:, 4]))
    assert torch.allclose(torch.sigmoid(fitted(fresh)[:, 4]), torch.softmax(expected, dim=1)[:, 1], atol=1e-9)
    facts = {fact.label: fact for fact in fitted.labels_fitted}
    assert facts["none"].pooled == 1
    assert facts["none"].positives == 0
    assert facts["three"].positives == 3
    assert facts["often"].pooled < 0.2 < facts["three"].pooled
    # of the label with three positives the pool's answer is nearer than of its own fit alone
    own, mixed, shared = (
        torch.sigmoid(c(fresh))[:, 3] for c in (alone, fitted, MultiLabelCalibrator(base(), strength=None).fit(found))
    )
    assert float((mixed - shared).abs().mean()) <= float((own - shared).abs().mean()) + 1e-12


@pytest.mark.parametrize("strength", [0.0, 7.0])
def test_imagined_rows_are_those_of_the_formula(strength: float) -> None:
    found = data()
    fitted = MultiLabelCalibrator(PlattScaling(), strength=strength).fit(found)
    pool = pool_of(found, PlattScaling())
    rows = found.known[:, 2]
    z, y = found.logits[rows, 2], found.labels[rows, 2]
    q = torch.softmax(pool(of_log_odds(z)), dim=1)[:, 1]
    factor = strength / float((q * (1 - q)).sum())
    both, outcome = of_log_odds(z.repeat(2)), torch.cat([torch.ones_like(y), torch.zeros_like(y)])
    weight = torch.cat([y + factor * q, 1 - y + factor * (1 - q)])
    expected = PlattScaling().fit(MemoryRows.of(both, outcome, weights=weight))
    answer = expected(of_log_odds(z))
    assert torch.allclose(fitted(found.logits[rows])[:, 2], answer[:, 1] - answer[:, 0], atol=1e-9)
    assert fitted.labels_fitted[2].pooled == pytest.approx(factor / (1 + factor))


@pytest.mark.parametrize(
    "base", [IsotonicCalibration(), calibrant.calibrators.Chain(TemperatureScaling(), PlattScaling())]
)
def test_a_saved_one_answers_the_same(base: Calibrator, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    fitted = MultiLabelCalibrator(base, strength=3.0).fit(data())
    fitted.save(path)
    again = calibrant.load(path)
    fresh = sample(50, seed=6)[0]
    assert torch.equal(again(fresh), fitted(fresh))
    assert again.names == again.class_names == tuple(NAMES)
    assert again.labels_fitted == fitted.labels_fitted
    assert repr(again) == repr(fitted)
    assert torch.equal(copy.deepcopy(fitted)(fresh), fitted(fresh))
    assert fitted.half()(fresh).dtype == torch.float64


def test_infinite_logits_and_other_dtypes_pass_through() -> None:
    fitted = MultiLabelCalibrator().fit(data())
    z = torch.tensor([[-math.inf, math.inf, 0.0, 88.0, -88.0]])
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        answer = fitted(z.to(dtype))
        assert answer.dtype == dtype
        assert not bool(torch.isnan(answer).any())
        assert answer[0, 0] < -20
        assert answer[0, 1] > 20


def test_what_does_not_fit_is_refused_with_the_remedy() -> None:
    found, fitted = data(), MultiLabelCalibrator().fit(data())
    none = MultiLabel.from_logits(found.logits, torch.zeros_like(found.labels))
    sure = MultiLabel.from_probs([[0.0, 0.5], [0.5, 0.5]], [[1, 0], [0, 1]], unchecked_kind=True)
    cases = [
        (lambda: MultiLabelCalibrator(HistogramBinning()), "a calibrator for two classes that needs only logits"),
        (lambda: MultiLabelCalibrator().fit(none), "no|none in any column"),
        (lambda: MultiLabelCalibrator().fit(sure), "-inf for a label 1 in row 0"),
        (lambda: replace(found, names=(*NAMES[1:], NAMES[0])).calibrated_by(fitted, allow_fit_rows=True), "used for fitting, in order"),
        (lambda: PlattScaling().fit(found), "got MultiLabel"),
    ]  # fmt: skip
    for call, text in cases:
        with pytest.raises(InputError, match=text):
            call()
    with pytest.raises(NotFittedError):
        MultiLabelCalibrator()(found.logits)
    with pytest.raises(LeakError):
        found[100:200].calibrated_by(fitted)
    assert found.calibrated_by(fitted, allow_fit_rows=True).given_probs is None
