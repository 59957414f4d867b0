"""States as JSON: every bit comes back, and a state of another metric is refused."""

import json

import pytest
import torch

from calibrant import Predictions
from calibrant.errors import FileFormatError
from calibrant.metrics import ECE, NLL
from calibrant.scale import sum_metrics
from calibrant.scale.state import add_states, state_from_plain, state_to_plain


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


def test_states_of_shards_add_and_nothing_is_neutral() -> None:
    metric = NLL()
    parts = [{metric: metric.state(data(n))} for n in (10, 20)]
    assert add_states({}, parts[0]) == parts[0]
    assert metric.value(add_states(*parts)[metric]) == pytest.approx(metric(Predictions.cat([data(10), data(20)])))


def test_another_metrics_state_is_refused() -> None:
    with pytest.raises(FileFormatError, match="state of the same metrics"):
        state_from_plain(state_to_plain(NLL().state(data(5))), ECE().state(data(5)))
