"""What objects show in notebooks."""

import functools
import html
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from calibrant import Predictions
from calibrant._core.notebook import TABLES
from calibrant.calibrators import AutoCalibrator, TemperatureScaling
from calibrant.evaluate import compare, panel, subgroups
from calibrant.metrics import ECE, Accuracy
from calibrant.operate import check

HOSTILE = "<script>x</script>"
GENERATOR = torch.Generator().manual_seed(0)
LOGITS = 3 * torch.randn(400, 3, generator=GENERATOR)
LABELS = torch.multinomial(torch.softmax(LOGITS / 2, dim=1), 1, generator=GENERATOR)[:, 0]
DATA = Predictions.from_logits(LOGITS, LABELS, features={HOSTILE: ["a", HOSTILE] * 200})


@functools.cache
def auto() -> AutoCalibrator:
    return AutoCalibrator().fit(LOGITS[:200], LABELS[:200])


@pytest.mark.parametrize(
    ("make", "expected", "lines"),
    [
        (lambda: DATA, "400 rows", 0),
        (lambda: TemperatureScaling().fit(LOGITS, LABELS), "temperature=", 0),
        (auto, "uses", None),  # a row a candidate
        (lambda: panel(DATA, metrics=[Accuracy(), ECE()]), "ECE(binning", 2),
        (lambda: compare(DATA, DATA.calibrated_by(auto(), allow_fit_rows=True)), "NLL", 4),
        (lambda: subgroups(DATA), "group", 2),
        (lambda: check(DATA, maximum={"ece": 0.5}), "pass", 1),
    ],
)
def test_an_object_shows_its_text_and_its_table_escaped(
    make: Callable[[], Any], expected: str, lines: int | None
) -> None:
    shown = make()
    lines = len(shown.evidence.trials) if lines is None else lines
    text = shown._repr_html_()
    assert expected in html.unescape(text)
    assert "<script" not in text
    assert len(re.findall("<tr>", text)) == (lines + 1 if lines else 0)
    assert not lines or type(shown).__name__ in TABLES


def test_a_long_table_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibrant._core.notebook._MOST", 1)
    assert "and 1 more" in subgroups(DATA)._repr_html_()
