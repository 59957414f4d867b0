"""The panel: which metrics, their rows, and the level a calibrated model would show."""

from typing import Any

import pytest
import torch

from calibrant import Pairs, Predictions
from calibrant.errors import InputError
from calibrant.evaluate import compare, panel
from calibrant.metrics import ECE, NLL, Accuracy


def sample(rows: int = 400, classes: int = 3) -> Predictions:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, classes, generator=generator) * 2
    return Predictions.from_logits(logits, torch.randint(classes, (rows,), generator=generator))


def test_rows_enclose_their_values_and_calibration_errors_have_a_limit() -> None:
    rows = {row.metric: row for row in panel(sample(), draws=100)}
    assert list(rows)[:3] == ["Accuracy()", "NLL()", "Brier()"]
    for row in rows.values():
        assert row.n == 400
        assert row.low is None or row.low <= row.value <= row.high
    assert rows[repr(Accuracy())].null_high is None
    assert rows[repr(ECE())].value > rows[repr(ECE())].null_high


def test_top_label_pairs_get_the_metrics_that_apply() -> None:
    pairs = Pairs.from_top_label([0.9, 0.6, 0.8], [1, 0, 2], [1, 1, 2])
    names = [row.metric for row in panel(pairs, draws=20)]
    assert repr(ECE()) in names
    assert repr(NLL()) not in names
    with pytest.raises(InputError, match="over all classes"):
        panel(pairs, metrics=[NLL()])
    with pytest.raises(InputError, match="labelled"):
        panel(Predictions.from_logits([[2.0, 0.0]]))


def test_without_uncertainty_there_are_values_only() -> None:
    assert all(
        row.low is None and row.high is None and row.null_high is None for row in panel(sample(), uncertainty=False)
    )


@pytest.mark.parametrize("metrics", [["ECE"], [ECE]])
def test_names_and_classes_of_metrics_are_refused(metrics: Any) -> None:
    for call in (lambda: panel(sample(), metrics=metrics), lambda: compare(sample(), sample(), metrics=metrics)):
        with pytest.raises(InputError, match=r"expected metrics as a list such as \[ECE\(\), NLL\(\)\], got "):
            call()
