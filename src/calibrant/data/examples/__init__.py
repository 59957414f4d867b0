"""Small sets of predictions that the package carries: its own trainings, each with the recipe that made it.

``NAME.npz`` holds a finished run's labels and logits, rounded to float16, in the splits val and test. ``NAME.toml`` holds the
study, the seed, the recipe and the command of the training.
"""

from pathlib import Path

from calibrant._core.check import check_choice
from calibrant.data.io import read_contents
from calibrant.data.predictions import Predictions

__all__ = ["load_example"]

_HOME = Path(__file__).parent


def load_example(name: str) -> dict[str, Predictions]:
    """Return the splits ``val`` and ``test`` of an example: logits and labels of a network that Calibrant trained.

    Args:
        name: "cifar10" (images, 10 classes), "sst" (sentences, 2) or "20news" (posts, 20).

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
    """Return the file of an example.

    Args:
        name: As in ``load_example``.

    Raises:
        InputError: If there is no such example.
    """
    known = sorted(path.stem for path in _HOME.glob("*.npz"))
    return _HOME / f"{check_choice(name, name='an example', choices=known)}.npz"
