"""Logits given by a layer against the logits themselves."""

import pytest
import torch

from calibrant import Predictions
from calibrant.calibrators import TemperatureScaling
from calibrant.errors import InputError
from calibrant.metrics import ECE, NLL, Accuracy, Brier, ClasswiseECE, SpiegelhalterZ
from calibrant.vocabulary import LinearLogits


def layer() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    hidden, weight, bias = (
        torch.randn(size, generator=generator, dtype=torch.float64) for size in ((50, 4), (6, 4), (6,))
    )
    return hidden, weight, bias, torch.randint(6, (50,), generator=generator)


@pytest.mark.parametrize("chunk", [None, 1, 7, 50])
def test_measures_equal_those_of_the_logits(chunk: int | None) -> None:
    hidden, weight, bias, labels = layer()
    source = LinearLogits(hidden, weight, bias, chunk=chunk)
    metrics = [Accuracy(), NLL(), Brier(), ECE(), ClasswiseECE()]
    whole = Predictions.from_logits(hidden @ weight.t() + bias, labels)
    expected = [metric(whole) for metric in metrics]
    assert source.measure(metrics, labels) == pytest.approx(expected, rel=1e-12)
    assert repr(source) == "LinearLogits(50 rows, 6 classes, width 4)"


def test_the_temperature_is_that_of_the_logits() -> None:
    hidden, weight, bias, _ = layer()
    logits = hidden @ weight.t() + bias
    labels = torch.distributions.Categorical(logits=logits / 1.5).sample()
    found = LinearLogits(hidden, weight, bias, chunk=9).fit_temperature(labels)
    expected = TemperatureScaling().fit(logits, labels)
    assert found.temperature == pytest.approx(expected.temperature, rel=1e-7)
    assert torch.allclose(found(logits), expected(logits))
    folded = found.fold_into(torch.nn.Linear(4, 6, dtype=torch.float64))
    assert folded.out_features == 6


def test_what_does_not_fit_is_refused() -> None:
    hidden, weight, bias, labels = layer()
    with pytest.raises(InputError, match="metrics that are sums, got SpiegelhalterZ"):
        LinearLogits(hidden, weight).measure([NLL(), SpiegelhalterZ()], labels)
    with pytest.raises(InputError, match=r"hidden of shape \(N, H\), got shape \(5, 10, 4\)"):
        LinearLogits(hidden.reshape(5, 10, 4), weight)
    with pytest.raises(InputError, match="at least one row of hidden"):
        LinearLogits(hidden[:0], weight)
    with pytest.raises(InputError, match=r"labels of shape \(50,\)"):
        LinearLogits(hidden, weight).fit_temperature(labels[:3])
    with pytest.raises(InputError, match="bias of shape"):
        LinearLogits(hidden, weight, bias[:2])
    with pytest.raises(InputError, match=r"finite logits .* got NaN"):
        LinearLogits(hidden * torch.nan, weight).measure([NLL()], labels)
