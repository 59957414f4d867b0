"""What tests of a page's words and pictures have in common."""

import pytest
from matplotlib.figure import Figure
from tests.quick import pages_without_pictures
from tests.report.kinds import KINDS, write_page


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the pictures out of pages."""
    pages_without_pictures(monkeypatch)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, list[Figure]]]:
    """The page of every kind of report, and its figures as they are when they are saved."""
    found: dict[str, tuple[str, list[Figure]]] = {}
    with pytest.MonkeyPatch.context() as patch:
        save = Figure.savefig
        for kind in KINDS:
            drawn: list[Figure] = []
            patch.setattr(Figure, "savefig", lambda own, *a, to=drawn, **k: to.append(own) or save(own, *a, **k))
            found[kind] = write_page(kind, tmp_path_factory.mktemp(kind)).read_text(), drawn
    return found
