"""Recipes and studies: fingerprints, TOML, scales, and what a broken file says before anything is trained."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.study.samples import SMALL, write

from calibrant.errors import CalibrantError, InputError
from calibrant.losses import FocalLoss
from calibrant.study import Recipe, Store, Training, build, load_study
from calibrant.study.build import check_study, make_loss, make_model
from calibrant.study.load import SCALES, presets, read_tables
from calibrant.study.run import run_study

RECIPE = Recipe({"name": "digits"}, {"type": "MLP"}, {"type": "FocalLoss", "gamma": 3.0}, Training(1, 32))


def test_a_fingerprint_depends_on_what_changes_numbers_alone(tmp_path: Path) -> None:
    # Written down once: a change here would make every store forget its runs.
    assert RECIPE.fingerprint == "1ec443c4b2818cbc"
    same = [
        replace(RECIPE, loss=dict(reversed(RECIPE.loss.items()))),
        replace(RECIPE, data={"name": "digits", "folder": "/elsewhere"}),
        replace(RECIPE, training=replace(RECIPE.training, lr=0.1)),  # its default
    ]
    assert {one.fingerprint for one in same} == {RECIPE.fingerprint}
    files = [
        replace(RECIPE, data={"name": "sst", "glove": path}) for path in ("/a/glove.txt", "glove.txt", "other.txt")
    ]
    assert files[0].fingerprint == files[1].fingerprint != files[2].fingerprint
    clipped = replace(RECIPE.training, clip=2.0)
    others = [replace(RECIPE, seed=1), replace(RECIPE, fold=1), replace(RECIPE, training=clipped), files[0]]
    assert len({one.fingerprint for one in (RECIPE, *others)}) == 5
    study = load_study(write(tmp_path, SMALL))
    (tmp_path / "digits").mkdir()
    moved = study.with_data_from(tmp_path)
    assert next(moved.cells()).recipe.data["folder"] == str(tmp_path / "digits")
    assert next(moved.cells()).recipe.fingerprint == next(study.cells()).recipe.fingerprint
    assert study.with_data_from(tmp_path / "none") == study


def test_cells_are_settings_by_seeds_by_objectives_by_folds(tmp_path: Path) -> None:
    cells = list(load_study(write(tmp_path, SMALL)).cells())
    assert [(c.objective, c.recipe.seed, c.recipe.fold) for c in cells] == [
        (objective, seed, fold) for seed in (0, 1) for objective in ("CE", "F") for fold in (0, 1)
    ]
    assert {(c.objective, c.recipe.training.lr) for c in cells} == {("F", 0.5), ("CE", 0.1)}
    text = SMALL + '[[settings]]\nlabel = "strong"\nlosses = { F = { gamma = 5.0 } }\n'
    cells = list(load_study(write(tmp_path, text)).cells())
    assert {(c.objective, c.recipe.loss.get("gamma")) for c in cells} == {("F", 5.0), ("CE", None)}


def test_a_scale_is_laid_over_the_study(tmp_path: Path) -> None:
    text = SMALL + '[scales.cpu]\nkeep_objectives = ["F"]\ntraining = { epochs = 1 }\n[scales.paper]\nseeds = [5]\n'
    path = write(tmp_path, text)
    small, full = load_study(path), load_study(path, scale="paper")
    assert [o.label for o in small.objectives] == ["F"]
    assert {(c.recipe.training.epochs, c.recipe.training.batch) for c in small.cells()} == {(1, 10)}
    assert (full.seeds, len(full.objectives)) == ((5,), 2)
    with pytest.raises(InputError, match="expected scale to be one of cpu, paper"):
        load_study(path, scale="gpu")


def test_objectives_are_taken_from_the_table_of_the_papers(tmp_path: Path) -> None:
    text = SMALL.partition("[[")[0] + 'objectives = ["Cross-entropy", { label = "Focal 3", training = { lr = 0.5 } }]'
    first, *_, last = (cell.recipe for cell in load_study(write(tmp_path, text)).cells())
    assert (first.loss["type"], last.loss["type"], last.loss["gamma"]) == ("CrossEntropyLoss", "FocalLoss", 3.0)
    assert (first.training.lr, last.training.lr) == (0.1, 0.5)
    with pytest.raises(InputError, match="did you mean 'Focal 3'"):
        load_study(write(tmp_path, text.replace("Focal 3", "Focl 3")))


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
    found = [(p.objective, p.measure, p.value, p.setting) for p in study.published]
    assert found == [("CE", "ece", 0.0435, "small"), ("CE", "temperature", 2.5, "small")]


CLAIM = '[[claims]]\ntext = "x"\nsource = "y"\nmeasure = "ece"\nfalls = ["CE", "G"]\n'
BROKEN = [
    ("epochs = 3", "epoch = 3", "training of 'CE': expected a key of Training, got 'epoch'; did you mean epochs?"),
    ("batch = 10", 'batch = "10"', "training of 'CE': expected batch to be a valid integer, got '10'"),
    ("seeds = [0, 1]", "seeds = []", "expected at least one training run, got none"),
    ('label = "F"', 'label = "CE"', "expected objectives without repetition, got 'CE' twice"),
    ("data = {", "scales = { tiny = {} }\ndata = {", "expected scales to be one of .* got 'tiny'"),
    ("training = { lr = 0.5 }\n", CLAIM, "expected an objective .* got 'G'"),
    ("training = { lr = 0.5 }\n", PRINTED.replace(", []]", "]"), "expected 2 groups of 2 numbers in row 'small' of Table 9"),
    (SMALL, "x = " + "[" * 5000 + "]" * 5000, r"expected a TOML file, got .*study\.toml"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "said"), BROKEN)
def test_a_broken_study_names_file_and_key(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in SMALL
    with pytest.raises(CalibrantError, match=said) as caught:
        load_study(write(tmp_path, SMALL.replace(old, new, 1)))
    assert "study.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


# What is found when everything that a study names is built once.
TYPOS = [
    ("folds = 2", "folds = 2, noize = 1", "setting 'small': expected a key of Digits, got 'noize'; did you mean noise?"),
    ("folds = 2", "train = 1400, validation = 400", r"expected train \+ validation ≤ 1437, got 1800"),
    ("gamma = 1", "gama = 1", "objective 'F': expected .*got the argument gama; the argument is called gamma"),
    ("training = { lr = 0.5 }", "training = { rates = { no = 1.0 } }", "expected rates for parts among"),
    ('"digits", folds = 2', '"cifar10", splt = "wang"', "expected a key of Images, got 'splt'"),
    ('"digits", folds = 2', '"sst", folder = "nowhere"', "no such folder: nowhere"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "said"), TYPOS)
def test_a_mistake_is_found_before_anything_is_trained(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in SMALL
    text = SMALL.replace(old, new, 1)
    study = load_study(write(tmp_path, text.replace('"MLP"', '"TreeLSTM"') if "sst" in new else text))
    with pytest.raises(CalibrantError, match=said) as caught:
        next(run_study(study, Store(tmp_path / "runs")))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists()


@pytest.fixture(scope="module")
def built() -> set[str]:
    return set()


@pytest.mark.parametrize("name", presets())
def test_everything_of_every_preset_can_be_built(name: str, built: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    check = build._check_network

    def once(recipe: Recipe) -> None:  # presets share networks, each of which takes up to half a second
        data = {key: value for key, value in recipe.data.items() if key not in ("train", "validation", "test", "ood")}
        key = repr((data, recipe.model, recipe.training.optimizer, recipe.training.rates, recipe.training.plain))
        if key not in built:
            check(recipe)
        built.add(key)

    monkeypatch.setattr(build, "_check_network", once)
    for scale in read_tables(name)[1] or SCALES:
        study = load_study(name, scale=scale)
        study = replace(study, seeds=study.seeds[:2])
        check_study(study)
        fingerprints = [cell.recipe.fingerprint for cell in study.cells()]
        assert len(set(fingerprints)) == len(fingerprints) > 0


def test_classes_are_found_by_name_or_path_and_get_reduction_and_sizes() -> None:
    assert make_loss({"type": "FocalLoss", "gamma": 2}, reduction="sum").reduction == "sum"
    assert make_loss({"type": "FocalLoss", "gamma": 2, "reduction": "mean"}, reduction="sum").reduction == "mean"
    assert isinstance(make_loss({"type": "calibrant.losses.focal:FocalLoss", "gamma": 1}), FocalLoss)
    model = make_model({"type": "MLP", "hidden": [5]}, sizes={"classes": 3, "inputs": 4, "vocabulary": 9})
    assert sum(p.numel() for p in model.parameters()) == (4 + 1) * 5 + (5 + 1) * 3
    for table, said in (({"gamma": 1}, "got None"), ({"type": "nowhere.at.all:Loss"}, "to be importable")):
        with pytest.raises(InputError, match=said):
            make_loss(table)
