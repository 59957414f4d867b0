"""The documentation site, built strictly: no page is wider than its screen, and none lacks a picture."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.browser import CHROMIUM, faults_of

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_no_page_is_wider_than_its_screen_or_lacks_a_picture(tmp_path: Path) -> None:
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
