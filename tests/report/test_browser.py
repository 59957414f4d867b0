"""The report in a real browser: no console messages, tables that sort, nothing wider than a phone, colours that adapt."""

import html
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.browser import CHROMIUM, PALE, QUIET, digest, framed

pytestmark = pytest.mark.slow
PROBE = """
const probe = {};
const table = [...document.querySelectorAll("table.sortable")].find((t) => t.caption.textContent.includes("classes"));
const column = (n) => [...table.tBodies[0].rows].map((row) => parseFloat(row.cells[n].textContent));
probe.before = column(4);
const button = table.tHead.rows[0].cells[4].querySelector("button");
button.click();
probe.down = column(4);
probe.sort = table.tHead.rows[0].cells[4].getAttribute("aria-sort");
button.click();
probe.up = column(4);
for (const one of document.querySelectorAll("details")) one.open = true;
const touched = (svg, said) => {
  // a finger beside the dot
  const box = svg.querySelector("title").parentNode.getBoundingClientRect();
  svg.dispatchEvent(new PointerEvent("pointerdown", {pointerType: "touch", clientX: box.right + 6, clientY: box.bottom + 6}));
  return said.textContent;
};
const dotted = document.querySelector("figure:has(g > title)");
probe.said = touched(dotted.querySelector("svg"), dotted.querySelector("output"));
const free = [...document.querySelectorAll("body *")].filter((e) => !e.closest(".scroll, .skip, details, svg"));
probe.wider = free.filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 80));
probe.page = document.documentElement.scrollWidth - innerWidth;
const words = [...document.querySelectorAll("summary, .commands span")];
probe.cut = words.filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.textContent);
probe.paper = getComputedStyle(document.body).backgroundColor;
probe.unnamed = [...document.querySelectorAll("figure")].filter((f) => !f.getAttribute("aria-label")).length;
probe.figures = [...document.querySelectorAll(".pictures svg")].map((s) => s.getBoundingClientRect().width);
dispatchEvent(new Event("beforeprint"));
probe.folded = document.querySelectorAll("details:not([open])").length;
document.body.dataset.probe = JSON.stringify(probe);
"""


Browse = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture(scope="module")
def pages(written: dict[str, tuple[str, list[Any]]]) -> dict[str, str]:
    """The page of every kind of report."""
    return {kind: text for kind, (text, _) in written.items()}


@pytest.fixture(scope="module")
def page(pages: dict[str, str]) -> str:
    """A report on two models, with groups and long names."""
    return pages["classes"]


@pytest.fixture
def browse(page: str, tmp_path: Path) -> Browse:
    """Open the page and return what it says of itself, and the browser's log."""
    if CHROMIUM is None:
        pytest.skip("no Chromium")

    def look(*flags: str, script: str = "") -> tuple[dict[str, Any], str]:
        path = tmp_path / "r.html"
        hashes = " ".join(digest(code) for code in (PROBE, script))
        allowed = page.replace("script-src '", f"script-src {hashes} '", 1)
        path.write_text(allowed.replace("</body>", f"<script>{PROBE}</script><script>{script}</script></body>"))
        command = [CHROMIUM, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", *flags, "--dump-dom", path.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        found = re.search(r'data-probe="([^"]*)"', done.stdout)
        assert found, done.stderr[-2000:]
        return json.loads(html.unescape(found[1])), done.stderr

    return look


def test_a_page_on_a_desktop(browse: Browse) -> None:
    probe, log = browse("--window-size=1200,900")
    assert "CONSOLE" not in log, [line for line in log.splitlines() if "CONSOLE" in line]
    assert probe["down"] == sorted(probe["before"], reverse=True)
    assert probe["up"] == sorted(probe["before"])
    assert probe["sort"] == "descending"
    assert (probe["unnamed"], probe["folded"]) == (0, 0)
    assert re.match(r"[\d,]+ rows: mean confidence", probe["said"]), "a touch beside a dot says its numbers"
    assert min(probe["figures"]) > 250
    assert probe["paper"] == "rgb(255, 255, 255)"


def test_a_fault_would_be_seen(browse: Browse) -> None:
    _, log = browse(script="console.error('seen'); fetch('https://example.org/')")
    assert "seen" in log
    assert "violates" in log, "the page's own policy stops it from asking the network"


WIDTHS = (360, 390, 480, 600, 768, 900, 1024, 1280, 1440, 1920)
WIDER = """
const look = (at, own, width) => {
  const free = [...at.querySelectorAll("body *")].filter((e) => !e.closest(".scroll, .skip, svg"));
  const wider = free.filter((e) => e.getBoundingClientRect().right > width + 1).map((e) => e.outerHTML.slice(0, 80));
  const out = [...at.querySelectorAll("svg")].filter((s) => s.getBoundingClientRect().width > width);
  return at.documentElement.scrollWidth > width || wider.length + out.length ? [wider.slice(0, 3), out.length] : [];
};
"""


def test_a_page_is_small_and_asks_for_nothing(pages: dict[str, str]) -> None:
    for text in pages.values():
        assert len(text.encode()) <= 600_000
        code = sum(len(code.encode()) for code in re.findall(r"<script>(.*?)</script>", text, re.DOTALL))
        assert 2_000 <= code <= 10_000
        assert set(re.findall(r"""(?:src|href)=["'](\w+):""", text)) <= {"data"}
        assert "default-src 'none'" in text


def test_no_page_is_wider_than_its_screen(pages: dict[str, str], tmp_path: Path) -> None:
    for name, text in pages.items():
        found = framed({name: text}, WIDER, WIDTHS, tmp_path)
        assert {place: seen for place, seen in found.items() if seen} == {}


@pytest.mark.parametrize("flags", [[], ["--blink-settings=preferredColorScheme=0"]], ids=["light", "dark"])
def test_text_and_marks_of_every_page_stand_out(flags: list[str], pages: dict[str, str], tmp_path: Path) -> None:
    for place, (pale, text, marks) in framed(pages, PALE, [1280], tmp_path, *flags).items():
        assert pale == [], place
        assert text > 20
        assert marks >= 4
    faulty = pages["event"].replace("--ink: #1b1f24", "--ink: #a3adb8").replace("--ink: #e6eaee", "--ink: #45515e")
    ((pale, _, _),) = framed({"pale": faulty}, PALE, [1280], tmp_path, *flags).values()
    assert pale, "a page that is too pale is found"
