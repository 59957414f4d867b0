"""The predictions that the package carries: what they are, where they come from, and how large they are."""

import tomllib

import pytest

import calibrant
from calibrant.data.examples import example_path
from calibrant.errors import InputError
from calibrant.metrics import ECE
from calibrant.study import load_study


def test_the_examples_are_few_and_small() -> None:
    home = example_path("sst").parent
    assert sum(path.stat().st_size for path in home.glob("*.[nt]*")) < 2_000_000
    with pytest.raises(InputError, match="one of '20news', 'cifar10', 'sst', got 'cifar'; did you mean 'cifar10'"):
        calibrant.load_example("cifar")


@pytest.mark.parametrize("name", ["20news", "cifar10", "sst"])
def test_a_temperature_helps_an_overconfident_example(name: str) -> None:
    splits = calibrant.load_example(name)
    assert list(splits) == ["val", "test"]
    val, test = (rows[:5000] for rows in splits.values())  # more would compile the loops
    after = test.calibrated_by(calibrant.calibrators.TemperatureScaling().fit(val.logits, val.labels))
    assert float(test.confidence.mean()) > float(test.correct.double().mean()) + 0.03
    assert ECE()(after) < 0.5 * ECE()(test)


@pytest.mark.parametrize("name", ["20news", "cifar10", "sst"])
def test_the_recipe_is_that_of_the_study_it_names(name: str) -> None:
    recipe = tomllib.loads(example_path(name).with_suffix(".toml").read_text(encoding="utf-8"))
    study = load_study(recipe["study"], scale=recipe["scale"])
    assert recipe["objective"] in {objective.label for objective in study.objectives}
    assert recipe["seed"] in study.seeds
    assert f"calibrant study run {recipe['study']} --only '{recipe['objective']}'" in recipe["command"]
    assert recipe["recipe"]["loss"] == {"type": "CrossEntropyLoss"}
