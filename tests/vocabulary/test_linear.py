"""Logits given by a layer against the logits themselves."""

import warnings

import pytest
import torch
from tests.vocabulary.test_fused import layer

from calibrant import Predictions
from calibrant.calibrators import AdaptiveTemperatureScaling, TemperatureScaling
from calibrant.errors import DuplicateRowsWarning, InputError, LeakError
from calibrant.metrics import ECE, NLL, Accuracy, Brier, CanonicalError, ClasswiseECE
from calibrant.vocabulary import LinearLogits


def drawn() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the layer with labels that are drawn from its logits at T = 1.5."""
    hidden, weight, bias, _ = layer(rows=50)
    p = torch.softmax((hidden @ weight.t() + bias) / 1.5, dim=1)
    return hidden, weight, bias, torch.multinomial(p, 1, generator=torch.Generator().manual_seed(4))[:, 0]


@pytest.mark.parametrize("chunk", [None, 1, 7, 50])
def test_measures_equal_those_of_the_logits(chunk: int | None) -> None:
    hidden, weight, bias, labels = layer(rows=50)
    source = LinearLogits(hidden, weight, bias, chunk=chunk)
    metrics = [Accuracy(), NLL(), Brier(), ECE(), ClasswiseECE()]
    whole = Predictions.from_logits(hidden @ weight.t() + bias, labels)
    expected = [metric(whole) for metric in metrics]
    assert source.measure(metrics, labels) == pytest.approx(expected, rel=1e-12)
    assert repr(source) == "LinearLogits(50 rows, 6 classes, width 4)"


def test_the_temperature_is_that_of_the_logits() -> None:
    hidden, weight, bias, _ = layer(rows=50)
    logits = hidden @ weight.t() + bias
    labels = torch.distributions.Categorical(logits=logits / 1.5).sample()
    found = LinearLogits(hidden, weight, bias, chunk=9).fit_temperature(labels)
    expected = TemperatureScaling().fit(logits, labels)
    assert found.temperature == pytest.approx(expected.temperature, rel=1e-7)
    assert torch.allclose(found(logits), expected(logits))
    folded = found.fold_into(torch.nn.Linear(4, 6, dtype=torch.float64))
    assert folded.out_features == 6


def test_what_does_not_fit_is_refused() -> None:
    hidden, weight, _, labels = layer(rows=50)
    with pytest.raises(InputError, match=r"a metric that is a sum, .*got CanonicalError"):
        LinearLogits(hidden, weight).measure([NLL(), CanonicalError()], labels)
    with pytest.raises(InputError, match=r"hidden of shape \(N, H\), got shape \(5, 10, 4\)"):
        LinearLogits(hidden.reshape(5, 10, 4), weight)
    with pytest.raises(InputError, match="at least one row of hidden"):
        LinearLogits(hidden[:0], weight)
    with pytest.raises(InputError, match=r"labels of shape \(50,\)"):
        LinearLogits(hidden, weight).fit_temperature(labels[:3])
    with pytest.raises(InputError, match="the feature 'x' of shape"):
        LinearLogits(hidden, weight).rows(labels, features={"x": [1.0]})
    with pytest.raises(InputError, match="labels in"):
        LinearLogits(hidden, weight).rows(labels + 6)
    with pytest.raises(InputError, match=r"finite logits .* got NaN"):
        LinearLogits(hidden * torch.nan, weight).measure([NLL()], labels)


def test_a_calibrator_is_fitted_and_measured_from_hidden_states() -> None:
    hidden, weight, bias, labels = drawn()
    features = {"position": torch.arange(50) % 7, "kind": ["word", "part"] * 25}
    source = LinearLogits(hidden, weight, bias, chunk=9)
    whole = Predictions.from_logits(hidden @ weight.t() + bias, labels, features=features)
    fitted = AdaptiveTemperatureScaling(["position", "kind"]).fit_from(source.rows(labels, features=features))
    expected = AdaptiveTemperatureScaling(["position", "kind"]).fit(whole)
    assert torch.allclose(fitted.slopes, expected.slopes)
    assert torch.allclose(fitted.biases, expected.biases)
    fresh = LinearLogits(
        hidden.flip(0), weight, bias, chunk=9
    )  # other rows than those of the fit, to the leakage guard
    turned = {"position": features["position"].flip(0), "kind": features["kind"][::-1]}  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DuplicateRowsWarning)
        after = whole.calibrated_by(fitted, allow_fit_rows=True)
        pairs = fresh.top_label(labels.flip(0), calibrator=fitted, features=turned)
        nll = fresh.nll(labels.flip(0), calibrator=fitted, features=turned)
        [loss] = fresh.measure([NLL()], labels.flip(0), calibrator=fitted, features=turned)
    assert torch.allclose(pairs.p.flip(0), after.confidence)
    assert torch.allclose(nll.flip(0), after.nll)
    assert loss == pytest.approx(NLL()(after))
    assert torch.equal(fresh.predicted.flip(0), whole.predicted)


def test_fits_on_one_source_share_the_pass_over_its_logits() -> None:
    hidden, weight, bias, labels = drawn()
    source = LinearLogits(hidden, weight, bias)
    passes: list[int] = []
    rows = source.rows(labels)
    whole = rows.chunks
    rows.chunks = lambda: passes.append(1) or whole()  # type: ignore[func-returns-value]
    first = AdaptiveTemperatureScaling(by=(), bias=False).fit_from(rows)
    assert len(passes) == 2  # its own, and that of the leakage guard
    AdaptiveTemperatureScaling().fit_from(rows)
    assert len(passes) == 2
    assert first.temperature == pytest.approx(source.fit_temperature(labels).temperature, rel=1e-4)


def test_the_leakage_check_looks_across_chunks_of_few_rows() -> None:
    hidden, weight, bias, labels = drawn()
    source = LinearLogits(hidden, weight, bias, chunk=10)
    fitted = source.fit_temperature(labels)
    with pytest.raises(LeakError, match="32 or more consecutive rows"):
        source.nll(labels, calibrator=fitted)
