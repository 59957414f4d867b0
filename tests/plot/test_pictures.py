"""Every picture: one call, an axis in, a figure with its numbers out, and nothing global changed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import late
from tests.draws import drawn

from calibrant import Pairs, Predictions, plot
from calibrant.binning import EqualWidth
from calibrant.errors import InputError
from calibrant.plot import CalibrationDisplay
from calibrant.plot.diagrams import Diagram, IsotonicDiagram, diagram_of
from calibrant.plot.drawing import draw_diagram
from calibrant.plot.pictures import Picture

matplotlib, plt, figures = late("matplotlib"), late("matplotlib.pyplot"), late("matplotlib.figure")
linear_model = late("sklearn.linear_model")


def data(*, classes: int = 3) -> Predictions:
    z, labels = drawn(300, classes, seed=classes, spread=1, sharp=1, dtype=torch.float32)
    return Predictions.from_logits(2 * z, labels)


CALLS: dict[str, Callable[..., Picture]] = {
    "reliability": lambda ax=None: plot.reliability(data(), ax),
    "isotonic": lambda ax=None: plot.reliability(data(classes=2), ax),
    "compare": lambda ax=None: plot.compare({"before": data(), "after": data()}, ax),
    "risk_coverage": lambda ax=None: plot.risk_coverage(data(), ax),
    "classwise": lambda ax=None: plot.classwise(data(), ax),
    "confidence_histogram": lambda ax=None: plot.confidence_histogram(data(), ax),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_picture_takes_an_axis_and_leaves_no_trace(name: str) -> None:
    before = dict(matplotlib.rcParams)
    ax = figures.Figure().add_subplot()
    picture = CALLS[name](ax)
    assert picture.ax is ax
    assert picture.figure is ax.figure
    assert CALLS[name]().figure is not ax.figure
    for label in (ax.get_xlabel(), ax.get_ylabel()):
        assert label, "axes are labelled"
    picture.figure.canvas.draw()
    assert dict(matplotlib.rcParams) == before
    assert plt.get_fignums() == []


@pytest.mark.parametrize("name", ["reliability", "isotonic", "compare"])
def test_both_axes_have_one_scale(name: str) -> None:
    picture = CALLS[name]()
    picture.figure.canvas.draw()
    ax = picture.ax
    assert ax.get_xlim() == ax.get_ylim()
    numbers = picture.numbers.values() if isinstance(picture.numbers, dict) else [picture.numbers]
    lowest = min(one.lowest for one in numbers if isinstance(one, Diagram)) if name != "isotonic" else 0
    assert 0 <= ax.get_xlim()[0] <= lowest
    labels = [[tick.get_text() for tick in axis.get_ticklabels()] for axis in (ax.xaxis, ax.yaxis)]
    assert labels[0] == labels[1]
    assert all(text.endswith("%") for text in labels[0])


def test_two_classes_are_isotonic_and_more_are_binned() -> None:
    assert isinstance(plot.reliability(data(classes=2)).numbers, IsotonicDiagram)
    assert isinstance(plot.reliability(data(classes=3)).numbers, Diagram)
    assert isinstance(plot.reliability(data(classes=2), kind="bins").numbers, Diagram)
    assert isinstance(plot.reliability(data(classes=3).top_label()).numbers, Diagram)
    assert isinstance(plot.reliability(Pairs.from_probs([0.2, 0.9], [0, 1])).numbers, IsotonicDiagram)


def test_the_area_of_a_dot_is_its_mass_and_its_shape_says_whether_it_is_off() -> None:
    pairs = Pairs.from_probs([0.5] * 100 + [0.9] * 50, [1, 0] * 50 + [1, 0] * 25)
    ax = figures.Figure().add_subplot()
    draw_diagram(diagram_of(pairs), ax)
    _, dots = ax.collections
    inside, off = dots.get_sizes()
    assert inside == pytest.approx(off / 0.7 * 2)
    inside, off = dots.get_paths()
    assert len(inside.vertices) != len(off.vertices)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: plot.reliability(torch.eye(3)), "expected Predictions or .* a picture or a report, got a Tensor"),
        (lambda: plot.classwise(data(), class_names=["a"]), "expected 3 class names, got 1"),
        (lambda: plot.classwise(data().top_label()), "predictions over all classes for classwise"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        call()


@pytest.fixture
def event() -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of an event, and whether it happened."""
    rng = np.random.default_rng(0)
    p = rng.beta(5, 1, 400)
    return p, (rng.random(400) < p).astype(int)


def test_a_display_from_predictions(event: tuple[np.ndarray, np.ndarray]) -> None:
    p, y = event
    ax = figures.Figure().add_subplot()
    display = CalibrationDisplay.from_predictions(y, p, name="mine", ax=ax)
    assert display.ax_ is ax
    assert ax.get_title() == "mine"
    assert isinstance(display.numbers_, IsotonicDiagram)
    named = CalibrationDisplay.from_predictions(np.where(y, "yes", "no"), p, pos_label="yes")
    assert named.numbers_ == display.numbers_
    assert named.ax_.get_ylabel() == "frequency of class yes"
    many = CalibrationDisplay.from_predictions(np.array(["a", "b", "c"] * 20), np.full((60, 3), 1 / 3))
    assert (type(many.numbers_), many.numbers_.n) == (Diagram, 60)
    with pytest.raises(InputError, match="pos_label"):
        CalibrationDisplay.from_predictions(np.where(y, "yes", "no"), p)


@pytest.mark.parametrize("n_bins", [None, 4])
def test_displays_in_one_axes_get_a_legend(n_bins: int | None, event: tuple[np.ndarray, np.ndarray]) -> None:
    p, y = event
    ax = figures.Figure().add_subplot()
    first = CalibrationDisplay.from_predictions(y, p, name="one", n_bins=n_bins, ax=ax)
    assert ax.get_legend() is None
    for name, power in (("two", 2), ("three", 3)):
        shown = CalibrationDisplay.from_predictions(y, p**power, name=name, n_bins=n_bins, ax=ax)
        assert shown.ax_ is ax
        assert shown.numbers_ != first.numbers_
    legend = ax.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["one", "two", "three"]
    curves = [line for line in ax.get_lines() if line.get_label() in ("one", "two", "three")]
    assert len({(line.get_color(), line.get_linestyle()) for line in curves}) == 3
    assert (ax.get_title(), len(ax.texts), len(ax.collections)) == ("", 0, 0)
    if n_bins is not None:
        assert isinstance(first.numbers_, Diagram)
        assert len(first.numbers_.bins) == n_bins


def test_a_display_from_an_estimator() -> None:
    rng = np.random.default_rng(2)
    X = rng.normal(size=(200, 2))
    y = np.where(X[:, 0] + rng.normal(size=200) > 0, "up", "down")
    model = linear_model.LogisticRegression().fit(X, y)
    display = CalibrationDisplay.from_estimator(model, X, y)
    assert display.name == "LogisticRegression"
    assert display.ax_.get_xlabel() == "predicted probability of class up"
    assert CalibrationDisplay.from_estimator(model, X, y, pos_label="down").event == "class down"


def test_a_display_takes_scikit_learns_strategy(event: tuple[np.ndarray, np.ndarray]) -> None:
    p, y = event
    uniform = CalibrationDisplay.from_predictions(y, p, n_bins=5, strategy="uniform").numbers_
    quantile = CalibrationDisplay.from_predictions(y, p, n_bins=5, strategy="quantile").numbers_
    assert {one.count for one in quantile.bins} == {80}
    assert max(one.count for one in uniform.bins) > 160
    data = CalibrationDisplay.from_predictions(y, p, strategy="uniform").data
    assert plot.reliability(data, kind="bins", bins=EqualWidth(5)).numbers == uniform
