"""Small example data sets: predictions of networks that Calibrant trained, each with the recipe that reproduces it.

``NAME.npz`` holds the labels and logits of a finished run, rounded to float16, for the splits ``val`` and ``test``.
``NAME.toml`` holds the study, the seed, the recipe and the command of the training run.
"""

from pathlib import Path

from calibrant._core.check import check_choice
from calibrant.data.io import read_contents
from calibrant.data.predictions import Predictions

__all__ = ["load_example"]

_HOME = Path(__file__).parent


def load_example(name: str) -> dict[str, Predictions]:
    """Return the ``val`` and ``test`` splits of an example: logits and labels of a network that Calibrant trained.

    Args:
        name: "cifar10" (images, 10 classes), "sst" (sentences, 2 classes) or "20news" (posts, 20 classes).

    Returns:
        The predictions of each split by name, with float32 logits.

    Raises:
        InputError: If there is no such example.

    Examples:
        >>> splits = load_example("cifar10")
        >>> splits["test"]
        Predictions(10000 rows, 10 classes, labelled)
    """
    splits = read_contents(example_path(name)).splits
    return {split: Predictions.from_logits(data.logits.float(), data.labels) for split, data in splits.items()}


def example_path(name: str) -> Path:
    """Return the path of an example's file.

    Args:
        name: As in ``load_example``.

    Raises:
        InputError: If there is no such example.
    """
    known = sorted(path.stem for path in _HOME.glob("*.npz"))
    return _HOME / f"{check_choice(name, name='an example', choices=known)}.npz"
