"""The page that chooses a calibrator is short; the constants of ``benchmarks.use`` are tried."""

import json
from pathlib import Path

import pytest
import torch
from tests.quick import few_candidates

from benchmarks import use
from calibrant import Predictions
from calibrant.calibrators import AutoCalibrator, Calibrator

ROOT = Path(__file__).parent.parent
RECORD = json.loads((ROOT / "docs" / "results" / "use.json").read_text())


def test_the_page_is_short_and_shows_its_picture() -> None:
    page = (ROOT / "docs" / "choose-a-calibrator.md").read_text()
    assert len(page.split()) <= 1500
    assert page.count("![") == 1


def test_every_constant_that_decides_quality_has_its_sensitivity() -> None:
    assert set(RECORD["sensitivity"]["constants"]) == set(use.QUALITY)
    for moved in RECORD["sensitivity"]["constants"].values():
        assert max(abs(moved["halved"]), abs(moved["doubled"])) < 0.01  # of the mean log-loss


def test_exact_ones_leave_one_hot_rows_and_the_others_as_they_are() -> None:
    p = use.with_ones(torch.tensor([[20.0, 0.0, 0.0], [1.0, 0.0, 0.0]]))
    assert p[0].tolist() == [1.0, 0.0, 0.0]
    torch.testing.assert_close(p[1], torch.softmax(torch.tensor([1.0, 0.0, 0.0]).double(), 0))


def test_settings_that_share_a_fit_answer_as_those_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    few_candidates(monkeypatch)
    data = use.calibrated("four classes", 80, 3)
    data = Predictions.from_logits(2 * data.logits, data.labels, features=data.features)
    own: dict[str, Calibrator] = {"plain": AutoCalibrator(), "keep order": AutoCalibrator(keep="order")}
    seen = set()
    for name, fitted in use.fitted_settings(data):
        seen.add(name)
        if name in own:
            # the fits of held-out rows for the top label leave the searches at other starting points
            torch.testing.assert_close(
                fitted(data.logits), own[name].fit(data)(data.logits), rtol=0, atol=1e-6 * (name == "plain")
            )
    assert seen == {*own, *use.SETTINGS}
