"""A temperature and a top bias by features: the dense objective's gradient, one temperature, made errors, and what is refused."""

import pytest
import torch
from tests.draws import drawn

from calibrant import Predictions
from calibrant.calibrators import AdaptiveTemperatureScaling, TemperatureScaling
from calibrant.calibrators.features.adaptive_temperature import (
    Hinges,
    _weighted_quantiles,
    interpolated,
    profiles_of,
    slopes_around,
    tops_of,
)
from calibrant.errors import InputError
from calibrant.metrics import ECE, NLL
from calibrant.rows import Chunk
from calibrant.testing import check_calibrator


def tokens(rows: int, seed: int, classes: int = 40) -> Predictions:
    """Return logits that are over-confident late in a text, and whose top class is right less often where it is a "part"."""
    rng = torch.Generator().manual_seed(seed)
    z = 6 * torch.randn(rows, classes, generator=rng, dtype=torch.float64)
    position = torch.randint(0, 100, (rows,), generator=rng)
    part = torch.rand(rows, generator=rng) < 0.4
    honest = z / (1 + position / 50)[:, None]
    honest[torch.arange(rows), z.argmax(dim=1)] -= 1.5 * part
    y = torch.multinomial(torch.softmax(honest, dim=1), 1, generator=rng)[:, 0]
    kind = ["part" if one else "word" for one in part.tolist()]
    return Predictions.from_logits(z, y, features={"position": position, "kind": kind})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_between_slopes_the_table_is_the_log_sum(dtype: torch.dtype) -> None:
    z = 4 * torch.randn(200, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    slopes = slopes_around(1.0)
    parts = profiles_of(Chunk(z.to(dtype), labels=z.argmin(dim=1)), slopes)
    table = torch.cat([one.table for one in parts])
    s = torch.linspace(0.125, 4, 200, dtype=torch.float64).requires_grad_()
    found = interpolated(table, slopes, s.detach())
    exact = torch.logsumexp(tops_of(z).below * s[:, None], dim=1)
    (first,) = torch.autograd.grad(exact.sum(), s, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), s)
    exact, first = exact.detach(), first.detach()
    assert float((found.value - exact).abs().max()) < 3e-6
    assert float((found.value - exact).abs().mean()) < 1e-6
    assert float((found.slope - first).abs().max()) < 2e-5
    assert float((found.curvature - second).abs().max()) < 2e-3


def test_the_gradient_of_the_whole_log_loss_is_zero_at_the_fit() -> None:
    data = tokens(900, 1)
    fitted = AdaptiveTemperatureScaling(["position", "kind"]).fit(data)
    tops = tops_of(data.logits)
    hinges = Hinges(fitted.owner, fitted.knot, fitted.highest, fitted.center, fitted.spread)
    design = hinges.design(fitted._known.values(tops.features, data.features))  # type: ignore[arg-type]
    a, b = fitted.slopes.clone().requires_grad_(), fitted.biases.clone().requires_grad_()
    top = torch.zeros_like(data.logits).scatter(1, tops.at[:, None], 1.0)
    logits = data.logits * (design @ a)[:, None] + top * (design @ b)[:, None]
    prior = (a[1:].square().sum() + b[1:].square().sum()) / len(data)
    (torch.nn.functional.cross_entropy(logits, data.need_labels()) + prior).backward()
    assert len(a) > 10
    for one in (a.grad, b.grad):
        assert float(one.abs().max()) < 2e-5  # beside interpolation, a prior of a thousandth of a row on the first
    assert fitted.gradient < 1e-7


def test_without_features_it_is_one_temperature() -> None:
    data = tokens(600, 2)
    plain = TemperatureScaling().fit(data.logits, data.labels)
    fitted = AdaptiveTemperatureScaling(by=(), bias=False).fit(data.logits, data.labels)
    assert fitted.temperature == pytest.approx(plain.temperature, rel=1e-5)
    far = AdaptiveTemperatureScaling(by=(), bias=False).fit(data.logits * 100, data.labels)
    assert far.temperature == pytest.approx(100 * plain.temperature, rel=1e-5)


def test_errors_that_depend_on_features_are_found_and_corrected() -> None:
    val, test = tokens(3000, 3), tokens(3000, 4)
    plain = test.calibrated_by(TemperatureScaling().fit(val.logits, val.labels))
    slopes = test.calibrated_by(AdaptiveTemperatureScaling(["position"], by=(), bias=False).fit(val))
    both = AdaptiveTemperatureScaling(["position", "kind"]).fit(val)
    whole = test.calibrated_by(both)
    assert NLL()(slopes) < NLL()(plain) - 0.02
    assert NLL()(whole) < NLL()(slopes) - 0.01
    part = torch.tensor([one == "part" for one in test.features["kind"]])  # type: ignore[index]
    errors = [[ECE()(after[rows]) for rows in (part, ~part)] for after in (plain, whole)]
    assert max(errors[0]) > 0.15
    assert max(errors[1]) < 0.08  # what is left are rows whose decision is held
    assert torch.equal(whole.predicted, test.predicted)
    assert repr(both).endswith("by confidence, entropy, position, kind)")


def test_a_bias_never_changes_the_decision() -> None:
    rng = torch.Generator().manual_seed(5)
    z = torch.randn(2000, 3, generator=rng, dtype=torch.float64)
    second = torch.rand(2000, generator=rng) < 0.8
    y = torch.where(second, torch.topk(z, 2, dim=1).indices[:, 1], z.argmax(dim=1))
    fitted = AdaptiveTemperatureScaling().fit(z, y)
    after = fitted(z)
    assert float(fitted.biases[0]) < -0.5
    assert torch.equal(after.gather(1, z.argmax(dim=1, keepdim=True))[:, 0], after.amax(dim=1))


def test_what_cannot_be_fitted_is_refused_and_a_name_of_every_row_is_shrunk_to_nothing() -> None:
    data = tokens(300, 8)
    with pytest.raises(InputError, match="finite numbers"):
        AdaptiveTemperatureScaling(["x"]).fit(data.logits, data.labels, features={"x": [float("nan")] * 300})
    with pytest.raises(InputError, match="columns as a list of names, got None"):
        AdaptiveTemperatureScaling(None)  # type: ignore[arg-type]
    names = {"x": [str(i) for i in range(300)], "y": [0] * 300}
    assert AdaptiveTemperatureScaling(["x"]).fit(data.logits, data.labels, features=names).fitted


def test_quantiles_of_weighted_rows_are_those_of_repeated_rows() -> None:
    x, ranks = torch.tensor([3.0, 1.0, 2.0]).double(), torch.tensor([0.25, 0.5, 0.75, 1.0]).double()
    assert _weighted_quantiles(x, torch.tensor([1.0, 2.0, 1.0]).double(), ranks).tolist() == [1, 1, 2, 3]


def test_it_keeps_the_contract() -> None:
    check_calibrator(AdaptiveTemperatureScaling(by=("entropy",), knots=2, bias=False))


@pytest.mark.filterwarnings("ignore:expected a finite best temperature")
def test_the_temperature_of_logits_in_the_wrong_order_is_the_one_that_is_used() -> None:
    z, y = drawn(2000, 5, spread=2, sharp=-1, dtype=torch.float32)
    fitted = AdaptiveTemperatureScaling(by=[], bias=False).fit(z, y)
    assert fitted.temperature > 0
    torch.testing.assert_close(
        torch.log_softmax(fitted(z), dim=1), torch.log_softmax(z / fitted.temperature, dim=1), atol=1e-4, rtol=0
    )
