"""Maps of rows with excluded classes (−inf) are those of the rows without these classes."""

import math

import pytest
import torch

from calibrant.scores import FocalScore, LogScore
from calibrant.theory import calibration_map, inverse_calibration_map


@pytest.mark.parametrize("score", [FocalScore(0.5), FocalScore(3.0), FocalScore(-0.5), LogScore()], ids=repr)
@pytest.mark.parametrize("mapping", [calibration_map, inverse_calibration_map])
def test_excluded_classes_change_nothing(mapping, score) -> None:  # type: ignore[no-untyped-def]
    generator = torch.Generator().manual_seed(0)
    rows = torch.log_softmax(torch.randn(20, 4, generator=generator, dtype=torch.float64), dim=1)
    wider = torch.cat([torch.full((20, 2), -math.inf, dtype=torch.float64), rows], dim=1)
    found = mapping(score, wider)
    assert torch.isneginf(found[:, :2]).all()
    assert torch.allclose(found[:, 2:], mapping(score, rows), rtol=1e-12)
