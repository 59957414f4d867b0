"""Small sets of predictions that the package carries: its own trainings, each with the recipe that made it.

``NAME.npz`` holds a finished run's labels and logits, rounded to float16, in the splits val and test. ``NAME.toml`` holds the
study, the seed, the recipe and the command of the training.
"""

import tomllib
from pathlib import Path
from typing import Any

from calibrant._core.check import check_choice
from calibrant._core.constraints import checked
from calibrant.data.formats.reading import read_named
from calibrant.data.predictions import Predictions
from calibrant.data.splits import splits_of

__all__ = ["example_path", "example_recipe", "examples", "load_example"]

_HOME = Path(__file__).parent


@checked
def examples() -> list[str]:
    """Return the names of the example predictions that the package carries.

    Examples:
        >>> examples()
        ['20news', 'cifar10', 'sst']
    """
    return sorted(path.stem for path in _HOME.glob("*.npz"))


@checked
def load_example(name: str) -> dict[str, Predictions]:
    """Return the splits ``val`` and ``test`` of an example: logits and labels of a network that Calibrant trained.

    Args:
        name: One of ``examples()``: "cifar10" (images, 10 classes), "sst" (sentences, 2), "20news" (posts, 20).

    Raises:
        InputError: If there is no such example.

    Examples:
        >>> splits = load_example("cifar10")
        >>> splits["test"]
        Predictions(10000 rows, 10 classes, labelled)
    """
    path = example_path(name)
    splits = splits_of(read_named(path).arrays, path)
    return {split: Predictions.from_logits(data.logits.float(), data.labels) for split, data in splits.items()}


def example_recipe(name: str) -> dict[str, Any]:
    """Return how an example was made: study, objective, seed, command, recipe and versions.

    Args:
        name: As in ``load_example``.

    Raises:
        InputError: If there is no such example.
    """
    return tomllib.loads(example_path(name).with_suffix(".toml").read_text(encoding="utf-8"))


def example_path(name: str) -> Path:
    """Return the file of an example.

    Args:
        name: As in ``load_example``.

    Raises:
        InputError: If there is no such example.
    """
    return _HOME / f"{check_choice(name, name='an example', choices=examples())}.npz"
