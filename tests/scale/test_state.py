"""States as JSON: every bit comes back, and a state of another metric is refused."""

import json

import pytest
import torch

from calibrant import Predictions
from calibrant.errors import FileFormatError
from calibrant.metrics import ECE, NLL
from calibrant.scale.passes import has_fields, is_plain, state_from_plain, state_to_plain
from calibrant.scale.stream import sum_metrics


def data(n: int) -> Predictions:
    generator = torch.Generator().manual_seed(n)
    return Predictions.from_logits(
        3 * torch.randn(n, 4, generator=generator), torch.randint(4, (n,), generator=generator)
    )


@pytest.mark.parametrize("metric", sum_metrics(), ids=repr)
def test_every_bit_survives(metric: ECE) -> None:
    state = metric.state(data(500))
    back = state_from_plain(json.loads(json.dumps(state_to_plain(state))), metric.state(data(3)))
    assert metric.value(back) == metric.value(state)
    assert state_to_plain(back) == state_to_plain(state)


def test_tensors_and_tuples_need_no_other_state_to_be_read() -> None:
    state = (torch.tensor([0.1, torch.inf]), (torch.tensor(3), 2.5, "a", None))
    plain = json.loads(json.dumps(state_to_plain(state)))
    assert is_plain(state)
    assert not is_plain(({1: 2},))
    assert not has_fields(plain)
    assert has_fields(state_to_plain((NLL().state(data(3)),)))
    back = state_from_plain(plain)
    assert torch.equal(back[0], state[0])
    assert back[1] == state[1]


def test_another_metrics_state_is_refused() -> None:
    with pytest.raises(FileFormatError, match="a saved sum of the same kind, got another"):
        state_from_plain(state_to_plain(NLL().state(data(5))), ECE().state(data(5)))
