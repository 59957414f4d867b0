"""What makes fits and pages quick where a test is about what lies around them."""

import pytest

from calibrant.calibrators import EnsembleTemperatureScaling, VectorScaling


def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``AutoCalibrator`` try two candidates: what is done with its fit is the same as with ten."""

    two = lambda *_: [EnsembleTemperatureScaling(prior=0.5), VectorScaling(prior=0.5)]  # noqa: E731
    monkeypatch.setattr("calibrant.calibrators.auto.usual_candidates", two)


def pages_without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave pictures of models out of pages, of whose time they take most."""
    monkeypatch.setattr("calibrant.report.render.inline_svg", lambda *_, **__: "<svg></svg>")
