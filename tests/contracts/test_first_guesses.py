"""What people write before they have read a page: it works where its meaning is one, else one sentence has the call that does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tests.conftest import late
from torch import nn

import calibrant
from calibrant import Predictions, functional, plot
from calibrant.binning import EqualWidth
from calibrant.calibrators import PlattScaling, TemperatureScaling
from calibrant.cli import main
from calibrant.errors import CalibrantError
from calibrant.losses import FocalLoss
from calibrant.metrics import ECE

adapter = late("calibrant.adapters.sklearn")
datasets = late("sklearn.datasets")
linear_model = late("sklearn.linear_model")

Y = torch.arange(120) % 4
Z = 2 * torch.randn(120, 4, generator=torch.Generator().manual_seed(0)) + 2 * torch.eye(4)[Y]
P, TEXT = torch.softmax(Z, dim=1), np.array(["ant", "bee", "cat", "dog"])[Y]
ONE, YES = Z[:, :1], (Y % 2).float()  # one output a row, as of a sigmoid
IMAGES = Z.reshape(6, 4, 4, 5).movedim(3, 1)[:, :4]  # (N, K, H, W) = (6, 4, 4, 4)
SCALING = TemperatureScaling().fit(Z, Y)


def of_classes(shown: Callable[[Any], Any]) -> Any:
    """Return what a classifier predicts for two classes shown to it as ``shown`` makes them of 0 and 1.

    It takes the classes as 0 … K − 1 alone, as XGBoost's does, and refuses others in its words.
    """

    class Numbered(linear_model.LogisticRegression):
        def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
            if not np.array_equal(np.unique(y), np.arange(len(np.unique(y)))):
                raise ValueError(
                    f"Invalid classes inferred from unique values of `y`. Expected: [0 1], got {np.unique(y)}"
                )
            return super().fit(X, y, sample_weight)

    X, classes = datasets.make_classification(120, random_state=0)
    return adapter.CalibratedClassifier(Numbered(), "temperature", cv=3).fit(X, shown(classes)).predict(X)


WORK: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {  # a guess, and the call that the pages have for it
    "ECE(10)": (lambda: ECE(10), lambda: ECE(EqualWidth(10))),
    "ECE()(z, y)": (lambda: ECE()(Z, Y), lambda: ECE()(Predictions.from_logits(Z, Y))),
    "a chain of images": (
        lambda: nn.Sequential(nn.Identity(), SCALING)(IMAGES),
        lambda: SCALING(IMAGES.movedim(1, 3).reshape(-1, 4)).reshape(6, 4, 4, 4).movedim(3, 1),
    ),
    "probabilities of images": (
        lambda: SCALING.predict_proba(IMAGES)[:, :, 1, 2],
        lambda: SCALING.predict_proba(IMAGES[:, :, 1, 2]),
    ),
    "one row": (lambda: SCALING.predict_proba(Z[0].tolist())[0], lambda: SCALING.predict_proba(Z)[0]),
    "classes by text where a library numbers them": (
        lambda: of_classes(lambda y: np.array(["no", "yes"])[y]) == "yes",
        lambda: of_classes(lambda y: y) == 1,
    ),
}

MAKE = "create them with Predictions.from_logits(logits, labels) or from_probs(probs, labels)"
BINARY = "use from_binary_logits or from_binary_probs"
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {  # a guess, and what its sentence says to do
    "ece(p, y)": (lambda: functional.ece(P, Y), "from_probs in Python"),
    "reliability(z, y)": (lambda: plot.reliability(Z, Y), MAKE),
    "FocalLoss(weight=)": (lambda: FocalLoss(2.0, weight=0.25), "one finite number ≥ 0 per class"),
    "one output, FocalLoss": (lambda: FocalLoss(2.0)(ONE, YES), "a Binary… loss"),
    "scores of an event": (lambda: PlattScaling().fit(ONE[:, 0], YES.long()), BINARY),
    "from_probs of an event": (lambda: Predictions.from_probs(P[:, 0], Y % 2), BINARY),
    "images to fit": (lambda: TemperatureScaling().fit(IMAGES, Y[:96].reshape(6, 4, 4)), "Predictions.from_logits"),
    "calibrator(array)": (lambda: SCALING(Z.numpy()), "predict_proba takes arrays"),
    "calibrator(row)": (lambda: SCALING(Z[0]), "logits[None] for one row"),
    "fit(z, text)": (lambda: TemperatureScaling().fit(Z, TEXT), "class_names=[…]"),
    "from_logits(p)": (lambda: Predictions.from_logits(P, Y), "from_probs in Python"),
    "one-hot labels": (lambda: Predictions.from_logits(Z, torch.eye(4, dtype=torch.int64)[Y]), "their argmax(1)"),
}


@pytest.mark.parametrize("guess", WORK)
def test_a_guess_of_one_meaning_works(guess: str) -> None:
    guessed, right = (call() for call in WORK[guess])
    if not isinstance(right, torch.Tensor | np.ndarray):
        assert guessed == right
    else:
        np.testing.assert_allclose(np.asarray(guessed), np.asarray(right), rtol=1e-6)


@pytest.mark.parametrize("guess", REFUSED)
def test_any_other_is_told_the_right_call_in_one_sentence(guess: str) -> None:
    call, told = REFUSED[guess]
    with pytest.raises(CalibrantError) as caught:
        call()
    message = str(caught.value)
    assert message.startswith("expected ")
    assert told in message
    assert "\n" not in message


def test_fit_takes_a_method_by_its_short_name(tmp_path: Path) -> None:
    calibrant.save_predictions(tmp_path / "val.npz", {"val": Predictions.from_logits(Z, Y)})
    out = tmp_path / "c.safetensors"
    result = CliRunner().invoke(main, ["fit", str(tmp_path / "val.npz"), "--method", "sigmoid", "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert isinstance(calibrant.load(out), PlattScaling)
