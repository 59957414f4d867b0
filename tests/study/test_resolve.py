"""Recipes' tables become objects, by name in their family or by the user's own path."""

import pytest
from torch import nn

from calibrant.errors import InputError
from calibrant.losses import FocalLoss
from calibrant.study.resolve import make_loss, make_model


def test_a_loss_takes_the_training_s_reduction_unless_it_names_its_own() -> None:
    assert make_loss({"type": "FocalLoss", "gamma": 2}, reduction="sum").reduction == "sum"
    assert make_loss({"type": "FocalLoss", "gamma": 2, "reduction": "mean"}, reduction="sum").reduction == "mean"


def test_a_class_of_one_s_own_is_found_by_its_path() -> None:
    assert isinstance(make_loss({"type": "calibrant.losses.focal:FocalLoss", "gamma": 1}), FocalLoss)
    assert isinstance(make_model({"type": "torch.nn:Linear", "in_features": 2, "out_features": 2}, sizes={}), nn.Linear)


def test_a_network_is_given_of_the_sizes_only_those_it_asks_for() -> None:
    model = make_model({"type": "MLP", "hidden": [5]}, sizes={"classes": 3, "inputs": 4, "vocabulary": 9})
    assert sum(p.numel() for p in model.parameters()) == (4 + 1) * 5 + (5 + 1) * 3


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"type": "FocusLoss"}, "expected loss type to be one of .*FocalLoss.*got 'FocusLoss'"),
        ({"gamma": 1}, "got None"),
        ({"type": "FocalLoss", "alpha": 1}, "expected arguments of FocalLoss"),
        ({"type": "nowhere.at.all:Loss"}, "expected loss 'nowhere.at.all:Loss' to be importable"),
        ({"type": "torch.nn:NoSuch"}, "to be importable"),
    ],
)
def test_what_does_not_resolve_is_named(table: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make_loss(table)
