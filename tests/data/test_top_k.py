"""Truncated log-probabilities: the error that truncation leaves is stated and holds."""

import math

import pytest
import torch
from tests.draws import drawn
from torch import Tensor

from calibrant import TopK
from calibrant.calibrators import AutoCalibrator, TemperatureScaling
from calibrant.errors import InputError


def truncated(logits: Tensor, labels: Tensor, k: int) -> tuple[TopK, Tensor]:
    values, classes = logits.log_softmax(dim=1).topk(k)
    hit = classes == labels[:, None]
    return TopK(values), torch.where(hit.any(dim=1), hit.double().argmax(dim=1), k)


@pytest.mark.parametrize("k", [5, 20, 100])
def test_the_stated_error_holds_and_shrinks_with_k(k: int) -> None:
    logits, labels = drawn(800, 500, spread=2.5, sharp=1.6)
    rows, columns = truncated(logits, labels, k)
    found = rows.temperature(columns, vocabulary=500)
    tempered = (logits / found.temperature).log_softmax(dim=1)
    order = logits.topk(k).indices
    seen = tempered.gather(1, order)
    events = torch.cat([seen, torch.log1p(-seen.exp().sum(dim=1, keepdim=True))], dim=1)
    truth = float(-events.gather(1, columns[:, None]).mean())
    even = rows._scaled(1 / found.temperature, torch.full((800,), 500.0 - k, dtype=torch.float64))
    stated = float(-even.log_softmax(dim=1).gather(1, columns[:, None]).mean())
    assert abs(stated - truth) <= found.log_loss_error + 1e-9
    assert found.low <= found.temperature <= found.high
    wide = truncated(logits, labels, 300)
    assert wide[0].temperature(wide[1], vocabulary=500).log_loss_error < found.log_loss_error


def test_nearly_complete_rows_give_the_temperature_of_all_classes() -> None:
    logits, labels = drawn(300, 60, spread=2.5, sharp=1.6)
    rows, columns = truncated(logits, labels, 59)
    found = rows.temperature(columns, vocabulary=60)
    assert found.temperature == pytest.approx(TemperatureScaling().fit(logits, labels).temperature, rel=1e-4)
    assert found.log_loss_error < 1e-6


def test_a_tail_hidden_by_rounding_keeps_the_loss_finite() -> None:
    """Two classes that seem to be all, and sometimes the true one is another: no −inf, no refusal, a finite answer."""
    for dtype in (torch.float16, torch.float32, torch.float64):  # the last leaves the smallest tail
        rows = TopK(torch.tensor([[0.75, 0.25], [0.5, 0.5]], dtype=dtype).log().repeat(40, 1))
        assert torch.finfo(dtype).eps <= float(rows.tail.min()) <= 4 * torch.finfo(dtype).eps
    columns = torch.arange(80) % 3
    data = rows.predictions(columns)
    fitted = AutoCalibrator().fit(data.logits, data.labels)
    assert fitted.evidence.verdict.startswith("calibrated")
    assert float(torch.nn.functional.cross_entropy(fitted(data.logits), columns)) < 1.2


def test_every_calibrator_takes_the_events() -> None:
    rows, columns = truncated(*drawn(800, 500, spread=2.5, sharp=1.6), 10)
    data = rows.predictions(columns)
    assert data.classes == 11
    torch.testing.assert_close(data.log_probs[:, -1].exp(), rows.tail)
    # the tail as one class is too light at T > 1, which a plain temperature makes up for by a smaller T
    plain = TemperatureScaling().fit(data.logits, data.labels).temperature
    assert plain < rows.temperature(columns, vocabulary=500).temperature


@pytest.mark.parametrize(
    ("log_probs", "tail", "message"),
    [
        (torch.tensor([[2.0, 0.0]]), None, "not logits"),
        (torch.tensor([[0.5, 0.4]]).log(), [0.5], "completes each row"),
        (torch.tensor([[math.nan, -1.0]]), None, "add up to at most 1"),
        (torch.tensor([-1.0, -2.0]), None, "shape"),
    ],
)
def test_bad_rows_are_refused(log_probs: Tensor, tail: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TopK(log_probs, tail)


def test_a_vocabulary_not_larger_than_k_is_refused() -> None:
    with pytest.raises(InputError, match="vocabulary"):
        TopK(torch.tensor([[0.5, 0.4]]).log()).temperature([0], vocabulary=2)
