"""Everything of a study is built once before the first training: each typo is found, in one sentence that names its place."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.study.samples import SMALL, scales, write

from calibrant.errors import CalibrantError, FileFormatError, InputError
from calibrant.study import Store, build, load_study
from calibrant.study.build import check_study
from calibrant.study.recipe import Recipe
from calibrant.study.run import run_study

DEEP = "x = " + "[" * 5000 + "]" * 5000

TYPOS = [
    (
        "folds = 2",
        "folds = 2, noize = 1",
        "setting 'small': expected a key of Digits, got 'noize'; did you mean noise?",
    ),
    ("folds = 2", "train = 1400, validation = 400", r"expected train \+ validation ≤ 1437, got 1800"),
    ('type = "MLP"', 'type = "MLP", hiden = []', "setting 'small': expected .*got the argument hiden"),
    ("gamma = 1", "gama = 1", "objective 'F': expected .*got the argument gama; the argument is called gamma"),
    ("gamma = 1", "gamma = -1", "objective 'F': expected gamma.* got -1"),
    ("training = { lr = 0.5 }", "training = { rates = { no = 1.0 } }", "expected rates for parts among"),
]

BROKEN = [
    ("epochs = 3", "epoch = 3", "training of 'CE': expected a key of Training, got 'epoch'; did you mean epochs?"),
    ("batch = 10", 'batch = "10"', "training of 'CE': expected batch to be a valid integer, got '10'"),
    ("training = { lr = 0.5 }", 'training = { plain = ["x"] }', "training of 'F': expected a rate for each prefix in plain"),
    ("seeds = [0, 1]", "seeds = []", "expected at least one training, got none"),
    ("seeds = [0, 1]", "seeds = [0, 0]", "expected each of seeds once, got 0 twice"),
    ("seeds = [0, 1]", "seeds = [-1]", r"expected seeds\[0\] to be greater than or equal to 0, got -1"),
    ('label = "F"', 'label = "CE"', "expected each of objectives once, got 'CE' twice"),
    ('label = "F"\n', "", r"expected objectives\[1\].label, got none"),
    ("folds = 2", "folds = -1", "expected at least one training, got none"),
    ("folds = 2", 'folds = "2"', "expected a study's tables as the presets have them"),
    ("data = {", "scales = { tiny = {} }\ndata = {", "expected scales to be one of .* got 'tiny'"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "said"), TYPOS)
def test_a_typo_is_found_before_anything_is_trained(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in SMALL
    study = load_study(write(tmp_path, SMALL.replace(old, new, 1)))
    for attempt in (lambda: check_study(study), lambda: next(run_study(study, Store(tmp_path / "runs")))):
        with pytest.raises(CalibrantError, match=said) as caught:
            attempt()
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("old", "new", "said"), BROKEN)
def test_a_broken_study_names_file_and_key(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in SMALL
    with pytest.raises(InputError, match=said) as caught:
        load_study(write(tmp_path, SMALL.replace(old, new, 1)))
    assert "study.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nested_values_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"expected a TOML file, got .*study\.toml"):
        load_study(write(tmp_path, DEEP))


def test_a_missing_folder_is_found_before_the_first_training(tmp_path: Path) -> None:
    text = SMALL.replace('{ name = "digits", folds = 2 }', '{ name = "sst", folder = "nowhere/sst" }')
    study = load_study(write(tmp_path, text.replace('"MLP"', '"TreeLSTM"')))
    check_study(study)
    with pytest.raises(FileFormatError, match="no such folder: nowhere/sst"):
        next(run_study(study, Store(tmp_path / "runs")))


@pytest.fixture(scope="module")
def built() -> set[str]:
    return set()


@pytest.mark.parametrize(("name", "scale"), scales())
def test_everything_of_every_preset_can_be_built(
    name: str, scale: str, built: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check = build._check_network

    def once(recipe: Recipe) -> None:  # presets share networks, each of which takes up to half a second
        data = {key: value for key, value in recipe.data.items() if key not in ("train", "validation", "test", "ood")}
        key = repr((data, recipe.model, recipe.training.optimizer, recipe.training.rates, recipe.training.plain))
        if key not in built:
            check(recipe)
        built.add(key)

    monkeypatch.setattr(build, "_check_network", once)
    study = load_study(name, scale=scale)
    study = replace(study, seeds=study.seeds[:2])
    check_study(study)
    fingerprints = [cell.recipe.fingerprint for cell in study.cells()]
    assert len(set(fingerprints)) == len(fingerprints) > 0


@pytest.mark.parametrize("data", [{"name": "cifar10", "splt": "wang"},
                                  {"name": "sst", "folder": ".", "classes": 4},
                                  {"name": "20news"},
])  # fmt: skip
def test_options_of_every_kind_of_data_are_checked_unread(tmp_path: Path, data: dict[str, Any]) -> None:
    study = load_study(write(tmp_path, SMALL))
    with pytest.raises(InputError, match="expected"):
        check_study(replace(study, settings=(replace(study.settings[0], data=data),)))
