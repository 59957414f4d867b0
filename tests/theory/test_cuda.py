"""The maps where the data are: on a GPU they give what they give on the CPU."""

import pytest
import torch
from tests.theory.scores_for_tests import InverseScore

from calibrant.scores import FocalScore, InverseFocalScore, LogScore, TrueClassScore
from calibrant.theory import calibration_map, inverse_calibration_map, minimiser, proper_part

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def log_probs() -> torch.Tensor:
    logits = torch.randn(64, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 4
    logits[:8, 3] += 100
    return torch.log_softmax(logits, dim=1)


@pytest.mark.parametrize("score", [LogScore(), FocalScore(2.0), FocalScore(-0.5), InverseScore()], ids=repr)
@pytest.mark.parametrize("function", [calibration_map, inverse_calibration_map, proper_part])
def test_maps(function, score: TrueClassScore) -> None:
    on_device = function(score, log_probs().cuda())
    assert on_device.is_cuda
    torch.testing.assert_close(on_device.cpu(), function(score, log_probs()), rtol=1e-10, atol=1e-10)


def test_the_minimiser_returns_to_the_device() -> None:
    found = minimiser(InverseFocalScore(2.0), log_probs()[:4].cuda())
    assert found.log_probs.is_cuda
    assert found.unique.is_cuda
    on_cpu = minimiser(InverseFocalScore(2.0), log_probs()[:4])
    torch.testing.assert_close(found.log_probs.cpu(), on_cpu.log_probs)
