"""A calibrator folded into the model's last layer."""

import pytest
import torch

from calibrant.calibrators import Chain, Identity, TemperatureScaling
from calibrant.errors import InputError, NotFittedError


def test_a_folded_temperature_gives_the_calibrated_logits() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = torch.nn.Linear(8, 3)
    features = torch.randn(200, 8, generator=generator)
    with torch.no_grad():
        logits = layer(features)
        labels = torch.multinomial((logits / 2).softmax(dim=1), 1, generator=generator)[:, 0]
        labels[:100] = logits[:100].argmax(dim=1)
        calibrator = TemperatureScaling().fit(logits, labels)
        folded = calibrator.fold_into(layer)
        torch.testing.assert_close(folded(features), calibrator(logits))
        bare = torch.nn.Linear(8, 3, bias=False)
        torch.testing.assert_close(calibrator.fold_into(bare)(features), calibrator(bare(features)))
        torch.testing.assert_close(layer(features), logits)
        chain = Chain(Identity(), TemperatureScaling()).fit(logits, labels)
        torch.testing.assert_close(chain.fold_into(layer)(features), chain(logits))


def test_what_cannot_be_folded_is_refused() -> None:
    with pytest.raises(NotFittedError):
        TemperatureScaling().fold_into(torch.nn.Linear(8, 3))
    fitted = Identity().fit(torch.randn(20, 3), torch.zeros(20, dtype=torch.int64))
    with pytest.raises(InputError, match="3 outputs as in fit, got 4"):
        fitted.fold_into(torch.nn.Linear(8, 4))
