"""What tests of a page's words and pictures have in common."""

from typing import Any

import pytest
from tests.conftest import late
from tests.quick import pages_without_pictures
from tests.report.kinds import KINDS, write_page

figures = late("matplotlib.figure")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the pictures out of pages."""
    pages_without_pictures(monkeypatch)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, list[Any]]]:
    """The page of every kind of report, and its figures as they are when they are saved."""
    found: dict[str, tuple[str, list[Any]]] = {}
    with pytest.MonkeyPatch.context() as patch:
        save = figures.Figure.savefig
        for kind in KINDS:
            drawn: list[Any] = []
            patch.setattr(
                figures.Figure, "savefig", lambda own, *a, to=drawn, **k: to.append(own) or save(own, *a, **k)
            )
            found[kind] = write_page(kind, tmp_path_factory.mktemp(kind)).read_text(), drawn
    return found
