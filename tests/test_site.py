"""The documentation site: names in tables lead to their reference, and the search works from a folder."""

import html
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.browser import CHROMIUM, QUIET

import calibrant

ROOT = Path(__file__).parent.parent
WIDTHS = (360, 768, 1280, 1920)
# What scrolls by itself, and the theme's own bars, may be wider than the screen.
WALK = """
const own = "pre, svg, [hidden], .scroll, .md-typeset__scrollwrap, .md-sidebar, .md-header, .md-search, .md-skip, .md-dialog, " +
  ".md-overlay, .md-nav, .md-source";
const look = (at, width) => {
  const free = [...at.querySelectorAll("body *")].filter((e) => !e.closest(own) && e.getBoundingClientRect().width);
  const wide = free.filter((e) => e.getBoundingClientRect().right > width + 1).map((e) => e.outerHTML.slice(0, 80));
  const empty = [...at.images].filter((image) => !image.naturalWidth).map((image) => image.src);
  return [...(at.documentElement.scrollWidth > width ? ["page"] : []), ...wide.slice(0, 3), ...empty];
};
(async () => {
  const found = {};
  for (const page of PAGES) for (const width of WIDTHS) {
    const frame = Object.assign(document.createElement("iframe"), { src: page, width, height: 900 });
    await new Promise((done) => { frame.onload = done; document.body.append(frame); });
    await new Promise((done) => setTimeout(done, 300));
    for (const one of frame.contentDocument.querySelectorAll("details")) one.open = true;
    found[`${page} ${width}`] = look(frame.contentDocument, width);
    frame.remove();
  }
  document.body.dataset.probe = JSON.stringify(found);
})();
"""


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
    fault = '<body style="margin: 0"><p style="width: 1000px">wide</p><img src="none.png"></body>'
    (site / "fault.html").write_text(fault)
    script = WALK.replace("PAGES", json.dumps([*pages, "fault.html"])).replace("WIDTHS", json.dumps(WIDTHS))
    walk = site / "walk.htm"
    walk.write_text(f"<!DOCTYPE html><body><script>{script}</script></body>")
    flags = [
        "--allow-file-access-from-files",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--virtual-time-budget=600000",
    ]
    command = [CHROMIUM, *QUIET, *flags, "--dump-dom", walk.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    probe = re.search(r'data-probe="([^"]*)"', done.stdout)
    assert probe, done.stderr[-2000:]
    found = json.loads(html.unescape(probe[1]))
    assert len(found) == len(WIDTHS) * (len(pages) + 1)
    assert len(found.pop("fault.html 360")) == 3, "what is wide and what lacks is found"
    assert {place: seen for place, seen in found.items() if seen and not place.startswith("fault.html")} == {}
