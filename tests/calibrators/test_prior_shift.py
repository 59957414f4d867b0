"""Prior shift: the closed form, the certified maximum."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from calibrant import Predictions, load
from calibrant.calibrators import Chain, PriorShift, VectorScaling
from calibrant.errors import BoundWarning, InputError, NotFittedError

SOURCE, NEW = (
    torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64),
    torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64),
)


def draw(rows: int, priors: Tensor, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return the exact log-posteriors under ``SOURCE`` of normal clusters, and labels drawn with ``priors``."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.multinomial(priors, rows, True, generator=g)
    x = 1.6 * torch.eye(4, dtype=torch.float64)[labels] + torch.randn(rows, 4, generator=g, dtype=torch.float64)
    return 1.6 * x + SOURCE.log(), labels


def test_given_priors_are_the_closed_form() -> None:
    z = torch.tensor([[2.0, 0.5, -1.0]], dtype=torch.float64)
    labels = [0] * 5 + [1] * 3 + [2] * 2
    fitted = PriorShift(priors=[0.2, 0.2, 0.6]).fit(torch.randn(10, 3), labels)
    raw = z.softmax(dim=1) * torch.tensor([0.2 / 0.5, 0.2 / 0.3, 0.6 / 0.2], dtype=torch.float64)
    torch.testing.assert_close(fitted(z).softmax(dim=1), raw / raw.sum(), rtol=0, atol=1e-12)
    assert PriorShift().fit(torch.randn(10, 3), labels)(z).tolist() == z.tolist()


def test_sampling_rates_are_undone() -> None:
    z, y = draw(40_000, SOURCE, seed=1)
    rates = torch.tensor([0.1, 0.5, 1.0, 1.0], dtype=torch.float64)
    kept = torch.rand(len(y), generator=torch.Generator().manual_seed(2), dtype=torch.float64) < rates[y]
    resampled = z[kept] + rates.log()  # what a model of the kept rows would say
    shift = PriorShift.from_sampling_rates(rates)
    torch.testing.assert_close(shift(resampled), z[kept])  # without a fit
    assert float((shift.fit(resampled, y[kept]).new_priors - SOURCE).abs().max()) < 0.02
    torch.testing.assert_close(shift(resampled), z[kept])
    with pytest.raises(InputError, match=r"logits of shape \(N, 4\)"):
        shift(torch.zeros(1, 3))


def test_the_likelihood_is_at_its_maximum() -> None:
    z, y = draw(2000, SOURCE, seed=3)
    new, _ = draw(1000, NEW, seed=4)
    fitted = PriorShift().fit(z, y).adapt(new)
    assert fitted.gap < 1e-7
    ratio, q = new.softmax(dim=1) / fitted.source_priors, torch.full((4,), 0.25, dtype=torch.float64)
    for _ in range(3000):  # EM by its definition (Saerens et al. 2002, eq. 2.9)
        q = (ratio * q / (ratio @ q)[:, None]).mean(dim=0)
    torch.testing.assert_close(fitted.new_priors, q, rtol=0, atol=1e-6)


def test_a_prior_that_ends_at_zero_is_said_and_floored() -> None:
    z, y = draw(2000, SOURCE, seed=7)
    new, _ = draw(500, torch.tensor([0.0, 0.5, 0.5, 0.0], dtype=torch.float64), seed=8)
    with pytest.warns(BoundWarning, match=r"a prior of 0 for 3; 0\.001, half a row, is used instead"):
        fitted = PriorShift().fit(z, y).adapt(new)
    assert float(fitted.new_priors.min()) == pytest.approx(0.001, rel=0.02)


def test_a_chain_shares_its_member_and_is_saved_with_it(tmp_path: Path) -> None:
    z, y = draw(2000, SOURCE, seed=9)
    new, truth = draw(2000, NEW, seed=10)
    chain = Chain(VectorScaling(), PriorShift()).fit(2 * z, y)
    before = chain(2 * new)
    first, shift = chain.stages
    shift.adapt(Predictions.from_logits(first(2 * new), truth))
    loss = torch.nn.functional.cross_entropy
    assert float(loss(chain(2 * new), truth)) < float(loss(before, truth)) - 0.05
    chain.save(tmp_path / "c.safetensors")
    again = load(tmp_path / "c.safetensors")
    assert torch.equal(again(2 * new), chain(2 * new))
    assert again.stages[1].gap == shift.gap
    torch.testing.assert_close(chain.fit(2 * z, y)(2 * new), before)
    assert math.isnan(shift.gap)


def test_what_cannot_be_done_is_refused() -> None:
    z, y = draw(200, SOURCE, seed=12)
    for make, message in (
        (lambda: PriorShift([0.5, 0.6, 0, 0]), "priors ≥ 0 that sum to 1"),
        (lambda: PriorShift([0.25] * 4, rates=[1] * 4), "priors or rates, got both"),
        (lambda: PriorShift([0.5, 0.5]).fit(z, y), "4 priors or rates, one per class, got 2"),
        (lambda: PriorShift([0.25] * 4).fit(z, y).adapt(z), "a PriorShift that estimates its priors"),
        (lambda: PriorShift().fit(z, y.clamp_max(2)).adapt(z), "every class in fit, got none of class 3"),
    ):
        with pytest.raises((InputError, NotFittedError), match=message):
            make()
