"""Recipes: fingerprints, TOML, and what a broken file says."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.study.samples import SMALL, write

from calibrant.errors import FileFormatError, InputError
from calibrant.losses import FocalLoss
from calibrant.study import Training, load_study
from calibrant.study.build import make_loss, make_model
from calibrant.study.recipe import Recipe

RECIPE = Recipe({"name": "digits"}, {"type": "MLP"}, {"type": "FocalLoss", "gamma": 3.0}, Training(1, 32))


def test_a_fingerprint_depends_on_what_changes_numbers_and_not_on_the_order_of_keys() -> None:
    turned = replace(RECIPE, loss=dict(reversed(RECIPE.loss.items())))
    assert turned.fingerprint == RECIPE.fingerprint
    assert replace(RECIPE, seed=1).fingerprint != RECIPE.fingerprint
    assert replace(RECIPE, training=replace(RECIPE.training, clip=2.0)).fingerprint != RECIPE.fingerprint


def test_where_data_lie_and_fields_at_their_default_do_not_change_a_fingerprint(tmp_path: Path) -> None:
    assert replace(RECIPE, data={"name": "digits", "folder": "/elsewhere"}).fingerprint == RECIPE.fingerprint
    # Written down once: a change here would make every store forget its runs.
    assert RECIPE.fingerprint == "1ec443c4b2818cbc"
    study = load_study(write(tmp_path, SMALL))
    (tmp_path / "digits").mkdir()
    moved = study.with_data_from(tmp_path)
    assert next(moved.cells()).recipe.data["folder"] == str(tmp_path / "digits")
    assert next(moved.cells()).recipe.fingerprint == next(study.cells()).recipe.fingerprint
    assert study.with_data_from(tmp_path / "none") == study


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        ({"glove": "/a/glove.txt"}, {"glove": "glove.txt"}, {"glove": "other.txt"}),
        ({"folder": "/a"}, {"folder": "/b"}, {"size": 3}),
    ],
)
def test_of_files_the_name_counts_and_of_folders_nothing(one: Any, same: Any, other: Any) -> None:
    first, second, third = (replace(RECIPE, data={"name": "sst", **more}).fingerprint for more in (one, same, other))
    assert first == second != third


def test_cells_are_settings_by_seeds_by_objectives_by_folds(tmp_path: Path) -> None:
    cells = list(load_study(write(tmp_path, SMALL)).cells())
    assert [(c.objective, c.recipe.seed, c.recipe.fold) for c in cells] == [
        (objective, seed, fold) for seed in (0, 1) for objective in ("CE", "F") for fold in (0, 1)
    ]
    assert {c.recipe.training.lr for c in cells if c.objective == "F"} == {0.5}
    assert {c.recipe.training.lr for c in cells if c.objective == "CE"} == {0.1}


def test_a_scale_is_laid_over_the_study(tmp_path: Path) -> None:
    text = SMALL + '[scales.cpu]\nkeep_objectives = ["F"]\ntraining = { epochs = 1 }\n[scales.paper]\nseeds = [5]\n'
    path = write(tmp_path, text)
    small, full = load_study(path), load_study(path, scale="paper")
    assert [o.label for o in small.objectives] == ["F"]
    assert {c.recipe.training.epochs for c in small.cells()} == {1}
    assert {c.recipe.training.batch for c in small.cells()} == {10}
    assert (full.seeds, len(full.objectives)) == ((5,), 2)
    with pytest.raises(InputError, match="expected scale to be one of cpu, paper"):
        load_study(path, scale="gpu")


def test_a_claim_about_an_unknown_objective_is_refused(tmp_path: Path) -> None:
    claim = '[[claims]]\ntext = "x"\nsource = "y"\nmeasure = "ece"\nfalls = ["CE", "G"]\n'
    with pytest.raises(InputError, match=r"expected an objective .* got 'G'"):
        load_study(write(tmp_path, SMALL + claim))


def test_files_that_are_no_studies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="no such file"):
        load_study(tmp_path / "none.toml")
    with pytest.raises(FileFormatError, match="expected a TOML file"):
        load_study(write(tmp_path, "name = "))
    with pytest.raises(InputError, match=r"expected a study of .*digits"):
        load_study("digit")


def test_trainings_at_cpu_scale_are_shared_between_the_papers() -> None:
    """One study runs what five others show; a drift of one recipe would cost minutes a training."""
    shared = {cell.recipe.fingerprint for cell in load_study("cifar10").cells()}
    alone = []
    for name in ("mukhoti-table1", "komisarenko-table1", "wang-table1", "adafocal-table", "report-figure1"):
        cells = [cell for cell in load_study(name).cells() if cell.recipe.data["name"] == "cifar10"]
        assert cells
        alone += [f"{name} {cell.objective}" for cell in cells if cell.recipe.fingerprint not in shared]
    assert alone == ["report-figure1 Entropy .1"]
    sst = {cell.recipe.fingerprint for cell in load_study("sst").cells()}
    trees = [cell for cell in load_study("mukhoti-table1").cells() if cell.recipe.data["name"] == "sst"]
    assert {c.objective for c in trees if c.recipe.fingerprint in sst} == {
        "Cross-entropy", "Brier", "Label smoothing .05", "Focal 3", "Focal 1"
    }  # fmt: skip


PRINTED = """
[[printed]]
source = "Table 9"
measures = ["ece", "temperature"]
objectives = ["CE", "F"]
[printed.rows]
"small" = [[4.35, 2.5], []]
"""


def test_a_printed_table_becomes_figures_in_our_units(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, SMALL + PRINTED))
    assert [(p.objective, p.measure, p.value, p.setting) for p in study.published] == [
        ("CE", "ece", 0.0435, "small"), ("CE", "temperature", 2.5, "small")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (", []]", "]", "expected 2 groups of 2 numbers in row 'small' of Table 9"),
        ('"temperature"]', '"T"]', r"measures\[1\]: expected a measure to be one of"),
    ],
)
def test_a_printed_table_that_does_not_fit_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in PRINTED
    with pytest.raises(InputError, match=said):
        load_study(write(tmp_path, SMALL + PRINTED.replace(old, new, 1)))


def test_a_setting_may_have_coefficients_of_its_own(tmp_path: Path) -> None:
    text = SMALL + '[[settings]]\nlabel = "strong"\nlosses = { F = { gamma = 5.0 } }\n'
    cells = list(load_study(write(tmp_path, text)).cells())
    assert {c.recipe.loss.get("gamma") for c in cells if c.objective == "F"} == {5.0}
    assert {c.recipe.loss["type"] for c in cells if c.objective == "CE"} == {"CrossEntropyLoss"}


def test_tables_and_kinds_of_figures_are_checked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected columns\[0\] to be 'main', 'calibrators' or 'errors', got 'all'"):
        load_study(write(tmp_path, SMALL.replace("seeds", 'columns = ["all"]\nseeds', 1)))
    figure = '[[figures]]\nname = "f"\ntitle = "t"\nkind = "pie"\n'
    with pytest.raises(InputError, match=r"expected figures\[0\].kind to be 'trajectory'.*got 'pie'"):
        load_study(write(tmp_path, SMALL + figure))


def test_classes_are_found_by_name_or_path_and_get_reduction_and_sizes() -> None:
    assert make_loss({"type": "FocalLoss", "gamma": 2}, reduction="sum").reduction == "sum"
    assert make_loss({"type": "FocalLoss", "gamma": 2, "reduction": "mean"}, reduction="sum").reduction == "mean"
    assert isinstance(make_loss({"type": "calibrant.losses.focal:FocalLoss", "gamma": 1}), FocalLoss)
    model = make_model({"type": "MLP", "hidden": [5]}, sizes={"classes": 3, "inputs": 4, "vocabulary": 9})
    assert sum(p.numel() for p in model.parameters()) == (4 + 1) * 5 + (5 + 1) * 3


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"gamma": 1}, "got None"),
        ({"type": "nowhere.at.all:Loss"}, "expected 'nowhere.at.all:Loss' to be importable"),
    ],
)
def test_what_does_not_resolve_is_named(table: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make_loss(table)
