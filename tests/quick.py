"""What makes fits and pages quick where a test is about what lies around them."""

import pytest

from calibrant.calibrators import EnsembleTemperatureScaling, VectorScaling
from calibrant.report import figures


def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``AutoCalibrator`` try two candidates: what is done with its fit is the same as with ten."""

    two = lambda *_: [EnsembleTemperatureScaling(prior=0.5), VectorScaling(prior=0.5)]  # noqa: E731
    monkeypatch.setattr("calibrant.calibrators.auto.usual_candidates", two)


def pages_without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave most drawings of models out of pages, of whose time they take nine tenths."""
    for name in ("reliability_figure", "panel_figure"):
        monkeypatch.setattr(f"calibrant.report.figures.{name}", lambda *_, **__: None)
    drawn = figures.inline_svg
    monkeypatch.setattr(figures, "inline_svg", lambda one, **more: "<svg></svg>" if one is None else drawn(one, **more))
