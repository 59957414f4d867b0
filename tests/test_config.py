"""Configurations: to plain JSON and back, and names that resolve nowhere else."""

import json

import pytest

from calibrant import binning, losses, metrics
from calibrant._config import binning_from_plain, build, to_plain
from calibrant.binning import EqualMass
from calibrant.errors import InputError


def test_nested_records_survive_json() -> None:
    metric = metrics.ECE(EqualMass(10), norm=2)
    plain = json.loads(json.dumps(to_plain(metric)))
    assert plain == {"type": "ECE", "binning": {"type": "EqualMass", "bins": 10, "ties": "together"}, "norm": 2}
    assert build(plain, family=metrics) == metric
    assert binning_from_plain(plain["binning"]) == EqualMass(10)


def test_names_resolve_in_their_family_only() -> None:
    assert repr(build({"type": "FocalLoss", "gamma": 3.0}, family=losses)) == "FocalLoss(3)"
    for name in ("os", "nn", "_base", "Loss", None):
        with pytest.raises(InputError, match="expected type to be one of"):
            build({"type": name}, family=losses)
    with pytest.raises(InputError, match="expected arguments of EqualWidth"):
        build({"type": "EqualWidth", "colour": 3}, family=binning)


def test_what_is_not_plain_is_refused() -> None:
    with pytest.raises(InputError, match="configuration of plain values, got object"):
        to_plain({"a": object()})
