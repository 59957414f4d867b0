"""Every warning points at the user's line: no stack level is written down anywhere."""

from pathlib import Path

import pytest
import torch

import calibrant
from calibrant import Predictions, losses
from calibrant._core.warn import PROGRESS
from calibrant.calibrators import AutoCalibrator, Chain, TemperatureScaling
from calibrant.errors import BoundWarning, CalibrantWarning, UsageWarning, ZeroProbabilityWarning
from calibrant.metrics import NLL

SOURCE = Path(calibrant.__file__).parent
EASY = [[2.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, 1.0]], [0, 1, 0, 1]


def test_no_stack_level_is_hard_coded() -> None:
    files = [path for path in SOURCE.rglob("*.py") if path.name != "warn.py"]
    found = [str(path) for path in files if "stacklevel" in path.read_text() or "warnings.warn(" in path.read_text()]
    assert found == [], "warn with calibrant._core.warn.warn_user, which finds the user's line"


def zero() -> object:
    return NLL()(Predictions.from_logits([[0.0, -float("inf")], [0.0, 1.0]], [1, 1]))


CASES = {
    "a constructor": (UsageWarning, lambda: losses.InverseFocalLoss(30.0)),
    "a metric": (ZeroProbabilityWarning, zero),
    "a fit": (BoundWarning, lambda: TemperatureScaling().fit(*EASY)),
    "a fit inside another": (BoundWarning, lambda: Chain(TemperatureScaling(), TemperatureScaling()).fit(*EASY)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_warning_points_at_the_users_line(case: str) -> None:
    category, call = CASES[case]
    with pytest.warns(CalibrantWarning) as caught:
        call()
    ours = [warning for warning in caught if issubclass(warning.category, category)]
    assert ours
    assert {warning.filename for warning in ours} == {__file__}


def test_an_automatic_choice_says_how_far_it_has_come() -> None:
    heard: list[str] = []
    token = PROGRESS.set(heard.append)
    try:
        labels = torch.arange(300) % 3
        AutoCalibrator().fit(
            torch.randn(300, 3, generator=torch.Generator().manual_seed(0)) + torch.eye(3)[labels], labels
        )
    finally:
        PROGRESS.reset(token)
    assert heard[0].endswith("candidates, fold 1 of 5")
    assert heard[-1].endswith("fold 5 of 5")
