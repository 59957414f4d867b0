"""What tests of a page's words have in common."""

import pytest
from tests.makers import pages_without_pictures


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the pictures out of pages."""
    pages_without_pictures(monkeypatch)
