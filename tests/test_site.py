"""The documentation site: names in tables lead to their reference, and the search works from a folder."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.browser import CHROMIUM, faults_of

import calibrant

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def hooks() -> Any:
    pytest.importorskip("mkdocs", reason="optional package 'mkdocs' is not installed")
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_name_of_a_module_has_a_page_with_links(hooks: Any) -> None:
    guides = {"guide.md": "# A guide\n\nMeasure `ECE(10)` first."}
    pages = hooks.module_pages("metrics", calibrant.metrics, guides)
    assert set(pages) == {
        "reference/metrics.md",
        *(f"reference/metrics/{name}.md" for name in calibrant.metrics.__all__),
    }
    assert "[A guide](../../guide.md)" in pages["reference/metrics/ECE.md"]
    assert "[`MCE`](MCE.md)" in pages["reference/metrics/ECE.md"]
    assert "A guide" not in pages["reference/metrics/ACE.md"]


def test_code_links_and_other_words_stay_as_they_are(hooks: Any) -> None:
    text = "```\n| `ECE` |\n```\n| [`ECE`](x.md) | `other` |\n`ECE` in a sentence"
    assert hooks.linked(text) == text
    assert hooks.linked("| `ECE(norm=2)` |") == "| [`ECE(norm=2)`][calibrant.metrics.ECE] |"


@pytest.mark.slow
def test_no_page_of_the_site_is_wider_than_its_screen_or_lacks_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="optional package 'mkdocs' is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium")
    site = tmp_path / "site"
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(site)]
    subprocess.run(build, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True, timeout=300)
    named = [path.relative_to(site).as_posix() for path in sorted(site.rglob("*.html"))]
    pages = [name for name in named if not name.startswith(("reference", "404"))]
    assert {"index.html", "gallery.html", "evidence.html", "papers.html"} <= set(pages)
    assert faults_of(site, pages, tmp_path / "profile") == {}
