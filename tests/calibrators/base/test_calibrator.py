"""What every calibrator answers: probabilities of arrays and lists."""

import numpy as np
import pytest
import torch
from tests.draws import drawn

from calibrant.calibrators import Identity, MatrixScaling, TemperatureScaling
from calibrant.errors import InputError, NotFittedError


def test_predict_proba_takes_arrays_lists_tensors_and_one_row() -> None:
    z, y = drawn(300, spread=2, dtype=torch.float32)
    fitted = MatrixScaling().fit(z, y)
    expected = torch.softmax(fitted(z.double()), dim=1).numpy()
    for given in (z, z.numpy(), z.tolist(), z.double().numpy()):
        found = fitted.predict_proba(given)
        assert isinstance(found, np.ndarray)
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-15)
    for row in (z[0], z[0].numpy(), z[0].tolist()):
        np.testing.assert_allclose(fitted.predict_proba(row), expected[:1], rtol=0, atol=1e-15)


def test_predict_proba_refuses_what_are_no_logits() -> None:
    z, y = drawn(300, spread=2, dtype=torch.float32)
    with pytest.raises(NotFittedError):
        TemperatureScaling().predict_proba(z)
    fitted = TemperatureScaling().fit(z, y)
    for wrong, message in ((["a"] * 4, "a numeric tensor"), ([0.0, 1.0], "shape"), ([0.0, np.nan, 1.0, 2.0], "NaN")):
        with pytest.raises(InputError, match=message):
            fitted.predict_proba(wrong)


def test_what_cannot_be_folded_is_refused() -> None:
    with pytest.raises(NotFittedError):
        TemperatureScaling().fold_into(torch.nn.Linear(8, 3))
    fitted = Identity().fit(torch.randn(20, 3), torch.zeros(20, dtype=torch.int64))
    with pytest.raises(InputError, match="3 outputs as in fit, got 4"):
        fitted.fold_into(torch.nn.Linear(8, 4))
