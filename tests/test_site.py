"""The documentation site: names in tables lead to their reference, and the search works from a folder."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def hooks() -> Any:
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["choose-a-loss", "choose-a-calibrator", "choose-a-metric"])
def test_every_name_that_leads_a_row_is_linked(hooks: Any, name: str) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text()
    plain = [line for line in page.splitlines() if line.startswith("| `")]
    linked = [line for line in hooks.linked(page).splitlines() if line.startswith("| [`")]
    assert plain
    assert len(linked) == len(plain)


def test_code_links_and_other_words_stay_as_they_are(hooks: Any) -> None:
    text = "```\n| `ECE` |\n```\n| [`ECE`](x.md) | `other` |\n`ECE` in a sentence"
    assert hooks.linked(text) == text
    assert hooks.linked("| `ECE(norm=2)` |") == "| [`ECE(norm=2)`][calibrant.metrics.ECE] |"


def test_options_and_short_names_do_not_break(hooks: Any) -> None:
    mark = '<span class="whole">{}</span>'
    option, name = mark.format("--fit-split"), mark.format("CIFAR-10")
    assert hooks.whole("<p><code>report --fit-split val</code></p>") == f"<p><code>report {option} val</code></p>"
    assert (
        hooks.whole('<td id="a-b">CIFAR-10, <a href="x-y">z</a></td>')
        == f'<td id="a-b">{name}, <a href="x-y">z</a></td>'
    )
    for kept in (
        "<p>CIFAR-10</p>",
        "<pre><span></span><code>a --b</code></pre>",
        "<td>a-name-that-is-much-too-long-for-a-cell</td>",
    ):
        assert hooks.whole(kept) == kept


def test_the_search_needs_no_server_and_nothing_from_elsewhere() -> None:
    settings = (ROOT / "mkdocs.yml").read_text()
    assert "  - offline" in settings
    assert "polyfills: [assets/iframe-worker.js]" in settings
    assert (ROOT / "docs" / "assets" / "iframe-worker.js").exists()
