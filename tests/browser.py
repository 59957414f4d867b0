"""Pages in a real browser: what a script finds in a page, and what is wider than the screen on any of many pages."""

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--v=0",
    "--allow-file-access-from-files",
    "--virtual-time-budget=600000",
]
# What scrolls by itself, and the bars of the site's theme, may be wider than the screen.
WALK = """
const own = "pre, svg, [hidden], .scroll, .skip, .md-typeset__scrollwrap, .md-sidebar, .md-header, .md-search, .md-skip, " +
  ".md-dialog, .md-overlay, .md-nav, .md-source";
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


def digest(code: str) -> str:
    """Return what a policy calls a script it allows."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"


def probed(page: Path, profile: Path) -> tuple[Any, str]:
    """Return what a script of the page left in ``data-probe`` of its body, and the browser's log."""
    if CHROMIUM is None:
        pytest.skip("no Chromium")
    command = [CHROMIUM, *FLAGS, "--window-size=1200,900", f"--user-data-dir={profile}", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    found = re.search(r'data-probe="([^"]*)"', done.stdout)
    assert found, done.stderr[-2000:]
    return json.loads(html.unescape(found[1])), done.stderr


def faults_of(folder: Path, pages: Sequence[str], profile: Path) -> dict[str, list[str]]:
    """Return what is wider than the screen, and which pictures are missing, by page and width."""
    fault = '<body style="margin: 0"><p style="width: 1000px">wide</p><img src="none.png"></body>'
    (folder / "fault.html").write_text(fault)
    script = WALK.replace("PAGES", json.dumps([*pages, "fault.html"])).replace("WIDTHS", "[360, 768, 1280, 1920]")
    (folder / "walk.htm").write_text(f"<!DOCTYPE html><body><script>{script}</script></body>")
    found, _ = probed(folder / "walk.htm", profile)
    assert len(found) == 4 * (len(pages) + 1)
    assert len(found["fault.html 360"]) == 3, "a page, a paragraph and a picture with a fault are found"
    return {place: faults for place, faults in found.items() if faults and not place.startswith("fault.html")}
