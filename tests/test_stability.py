"""What is promised to stay is what the code has, and what commands answer is what the published schemas say."""

import json

import jsonschema
import pytest
from tests import stability


def test_the_page_is_written_from_the_code() -> None:
    assert stability.PAGE.read_text() == stability.page(), "write it again: python -m tests.stability"


@pytest.mark.slow
def test_every_answer_fits_its_published_schema() -> None:
    index = json.loads((stability.SCHEMAS / "index.json").read_text())
    checked = set()
    for line, answer in stability.answers():
        name = "-".join(line.split()[: 2 if line.startswith("study") else 1])
        jsonschema.validate(answer, json.loads((stability.SCHEMAS / index[name]).read_text()))
        checked.add(name)
    assert checked == set(index)
