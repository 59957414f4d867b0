"""Configurations read from signatures: to plain JSON and back, in every family, and names that resolve nowhere else."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from calibrant import binning, calibrators, losses, metrics
from calibrant._core.config import build, config_of, renewed, shown, to_plain
from calibrant.binning import EqualMass, EqualWidth
from calibrant.calibrators import Calibrator, Chain, TemperatureScaling, VectorScaling
from calibrant.errors import InputError


def test_nested_records_survive_json() -> None:
    metric = metrics.ECE(EqualMass(10), norm=2)
    plain = json.loads(json.dumps(to_plain(metric)))
    assert plain == {"type": "ECE", "binning": {"type": "EqualMass", "bins": 10, "ties": "together"}, "norm": 2}
    assert build(plain, families=[metrics, binning]) == metric


def test_names_resolve_in_their_families_only() -> None:
    assert repr(build({"type": "FocalLoss", "gamma": 3.0}, families=[losses])) == "FocalLoss(gamma=3.0)"
    for name in ("os", "nn", "_base", "calibrant._core.config:build", None, [], 3):
        with pytest.raises(InputError, match="expected type to be one of"):
            build({"type": name}, families=[losses])
    with pytest.raises(InputError, match=r"expected EqualWidth\(bins\), got the argument colour"):
        build({"type": "EqualWidth", "colour": 3}, families=[binning])
    made = build({"type": "calibrant.binning:EqualWidth", "bins": 3}, families=[losses], importable=True)
    assert made == EqualWidth(3)
    with pytest.raises(InputError, match="to be importable"):
        build({"type": "calibrant.binning:Nothing"}, families=[], importable=True)


def test_what_is_not_plain_is_refused() -> None:
    with pytest.raises(InputError, match="configuration with plain values, got object"):
        to_plain({"a": object()})


class Shift(Calibrator):
    """A method of somebody else's, which writes nothing about its configuration."""

    amount: Tensor

    def __init__(self, start: float = 0.0, *, binning: binning.Binning | None = None, inner: Any = None) -> None:
        super().__init__()
        self.start, self.binning, self.inner = start, binning, inner

    def _fit(self, *data: Any) -> None:
        self.amount = torch.tensor(self.start, dtype=torch.float64)

    def _transform(self, logits: Tensor) -> Tensor:
        return logits + self.amount.to(logits.dtype)


def test_a_class_of_ones_own_needs_its_signature_only() -> None:
    one = Shift(1.5, binning=EqualWidth(3), inner=Chain(TemperatureScaling(grid=[1.0, 2.0]), VectorScaling()))
    plain = json.loads(json.dumps(to_plain(one)))
    again = build(plain, families=[calibrators, binning], classes=[Shift])
    assert config_of(one) == config_of(again) == config_of(renewed(one))
    assert renewed(one).inner is not one.inner
    assert config_of(one) != config_of(Shift(1.5))
    assert shown(one) == "start=1.5, binning=EqualWidth(bins=3)"
