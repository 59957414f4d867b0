"""What is promised to stay is what the code has."""

from tests import stability


def test_the_page_is_written_from_the_code() -> None:
    assert stability.PAGE.read_text() == stability.page(), "write it again: python -m tests.stability"
