"""KeepDecision and ConfidenceBinning: what they keep, by hand and in every precision, and what they correct."""

import math

import pytest
import torch
from tests.draws import drawn

from calibrant import Predictions
from calibrant.calibrators import (
    AutoCalibrator,
    Chain,
    ConfidenceBinning,
    HistogramBinning,
    Identity,
    KeepDecision,
    TemperatureScaling,
)
from calibrant.calibrators.wrappers import lead, with_confidence
from calibrant.errors import InputError

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def test_the_nearest_answers_that_keep_a_decision_by_hand() -> None:
    p, decided = torch.tensor([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]]).double(), torch.tensor([[0], [0]])
    # {.2, .5, .3}: with .5 the mean is .35, above .3; {.6, .1, .3}: the decision is the largest already
    expected = torch.tensor([[0.35, 0.35, 0.3], [0.6, 0.1, 0.3]]).double()
    torch.testing.assert_close(lead(p.log(), decided).exp(), expected)


@pytest.mark.parametrize("classes", [3, 20, 60])
def test_no_answer_that_keeps_the_decision_is_nearer(classes: int) -> None:
    g = torch.Generator().manual_seed(classes)
    p, z = torch.softmax(3 * torch.randn(40, classes, generator=g).double(), 1), torch.randn(40, classes, generator=g)
    best = lead(p.log(), z.argmax(dim=1, keepdim=True))
    assert float((best.exp().sum(1) - 1).abs().max()) < 1e-12
    order = z.argsort(dim=1, descending=True)
    for share in (0.5, 0.05, 0.005):  # towards other answers that keep the ranking, and so the decision
        other = torch.softmax(torch.randn(40, classes, generator=g).double(), 1).sort(dim=1, descending=True).values
        mixed = (1 - share) * best.exp() + share * torch.empty_like(other).scatter(1, order, other)
        assert bool(((p * mixed.log()).sum(1) <= (p * best).sum(1) + 1e-12).all())


def test_bins_of_equal_mass_get_the_mean_of_the_curve() -> None:
    z, y = drawn(1000, 3)
    fitted = ConfidenceBinning(Identity()).fit(z, y)
    p = z.softmax(dim=1).amax(dim=1)
    index = torch.searchsorted(fitted.edges, torch.logit(p))
    assert torch.bincount(index).tolist() == pytest.approx([100] * 10, abs=1)
    for bin_ in range(10):
        # the means of a curve that was fitted to these rows, near the share of right decisions
        share = float((z.argmax(1) == y)[index == bin_].double().mean())
        assert float(torch.sigmoid(fitted.values[bin_])) == pytest.approx(share, abs=0.15)
    assert bool((fitted.values.diff() >= 0).all())


@pytest.mark.parametrize("largest", [6.0, 200.0])  # in log-odds, which are cut at 100
def test_no_bin_is_empty_where_the_largest_confidences_tie(largest: float) -> None:
    z = torch.tensor([[1.0, 0, 0], [2.0, 0, 0], [largest, 0, 0]]).repeat_interleave(100, dim=0)
    y = torch.cat([(torch.arange(100) >= right).long() for right in (45, 60, 75)])
    fitted = ConfidenceBinning(Identity()).fit(z, y)
    assert len(fitted.values) == 3
    assert torch.sigmoid(fitted.values).tolist() == pytest.approx([0.45, 0.6, 0.75], abs=0.05)
    assert bool(fitted(z).isfinite().all())


def test_the_decision_gets_its_bins_value() -> None:
    log_p = torch.tensor([[0.6, 0.3, 0.1], [0.1, 0.8, 0.1]]).double().log()
    edge = math.log(0.7 / 0.3)
    answer = with_confidence(log_p, torch.tensor([edge]).double(), torch.logit(torch.tensor([0.52, 0.9]).double()))
    assert answer.exp().tolist() == [pytest.approx([0.52, 0.36, 0.12]), pytest.approx([0.05, 0.9, 0.05])]


def test_the_decision_stays_above_a_larger_runner_up() -> None:
    log_p = torch.tensor([[0.3, 0.5, 0.2], [0.5, 0.5, 0.0]]).double().log()
    answer = with_confidence(log_p, torch.empty(0).double(), torch.logit(torch.tensor([0.1]).double()))
    assert answer.argmax(dim=1).tolist() == [1, 0]
    # the runner-up has 3/5 of the rest: equal shares are 3/8 each
    assert answer[0].exp().tolist() == pytest.approx([0.375, 0.375, 0.25], abs=1e-6)
    assert answer[1].exp().tolist() == pytest.approx([0.5, 0.5, 0.0], abs=1e-6)


def test_with_few_wrong_rows_nothing_is_corrected() -> None:
    z, _ = drawn(100, 6)
    fitted = ConfidenceBinning(Identity()).fit(z, z.argmax(1))
    assert torch.equal(fitted(z), z)
    assert fitted.learned() == "confidence unchanged"


def test_in_a_chain_the_decision_is_its_own() -> None:
    chain = Chain(TemperatureScaling(), ConfidenceBinning(TemperatureScaling(prior=0.02))).fit(*drawn(240, 6))
    new = Predictions.from_logits(*drawn(300, 6, seed=1)).calibrated_by(chain)
    assert new.decision is None
    assert torch.equal(new.predicted, new.logits.argmax(dim=1))


@pytest.mark.parametrize("wrap", [KeepDecision, ConfidenceBinning])
def test_what_cannot_be_wrapped_is_refused(wrap: type[KeepDecision]) -> None:
    for wrong in (HistogramBinning(), ConfidenceBinning(AutoCalibrator()), TemperatureScaling, None):
        with pytest.raises(InputError, match="a calibrator that calibrates all classes and needs only logits"):
            wrap(wrong)
