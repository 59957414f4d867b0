"""The report in a real browser: no console messages, tables that sort, nothing wider than a screen."""

import re
from pathlib import Path
from typing import Any

import pytest
from tests.browser import digest, faults_of, probed
from tests.report.kinds import KINDS, write_page

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
probe.paper = getComputedStyle(document.body).backgroundColor;
probe.unnamed = [...document.querySelectorAll("figure")].filter((f) => !f.getAttribute("aria-label")).length;
probe.figures = [...document.querySelectorAll(".pictures svg")].map((s) => s.getBoundingClientRect().width);
dispatchEvent(new Event("beforeprint"));
probe.folded = document.querySelectorAll("details:not([open])").length;
document.body.dataset.probe = JSON.stringify(probe);
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The page of every kind of report."""
    return {kind: write_page(kind, tmp_path_factory.mktemp(kind)).read_text() for kind in KINDS}


@pytest.fixture(scope="module")
def page(pages: dict[str, str]) -> str:
    """A report on two models, with groups and long names."""
    return pages["classes"]


def browse(page: str, folder: Path, *, script: str = "") -> tuple[dict[str, Any], str]:
    """Return what a page says of itself in a browser, and the browser's log."""
    hashes = " ".join(digest(code) for code in (PROBE, script))
    allowed = page.replace("script-src '", f"script-src {hashes} '", 1)
    scripts = f"<script>{PROBE}</script><script>{script}</script>"
    (folder / "r.html").write_text(allowed.replace("</body>", f"{scripts}</body>"))
    return probed(folder / "r.html", folder / "profile")


def test_a_page_on_a_desktop(page: str, tmp_path: Path) -> None:
    probe, log = browse(page, tmp_path)
    assert "CONSOLE" not in log, [line for line in log.splitlines() if "CONSOLE" in line]
    assert probe["down"] == sorted(probe["before"], reverse=True)
    assert probe["up"] == sorted(probe["before"])
    assert probe["sort"] == "descending"
    assert (probe["unnamed"], probe["folded"]) == (0, 0)
    assert re.match(r"[\d,]+ rows: mean confidence", probe["said"]), "a touch beside a dot says its numbers"
    assert min(probe["figures"]) > 250
    assert probe["paper"] == "rgb(255, 255, 255)"


def test_a_fault_would_be_seen(page: str, tmp_path: Path) -> None:
    _, log = browse(page, tmp_path, script="console.error('seen'); fetch('https://example.org/')")
    assert "seen" in log
    assert "violates" in log, "the page's own policy stops it from asking the network"


def test_a_page_is_small_and_asks_for_nothing(pages: dict[str, str]) -> None:
    for text in pages.values():
        assert len(text.encode()) <= 600_000
        code = sum(len(code.encode()) for code in re.findall(r"<script>(.*?)</script>", text, re.DOTALL))
        assert 2_000 <= code <= 10_000
        assert set(re.findall(r"""(?:src|href)=["'](\w+):""", text)) <= {"data"}
        assert "default-src 'none'" in text


def test_no_page_is_wider_than_its_screen(pages: dict[str, str], tmp_path: Path) -> None:
    for name, text in pages.items():
        (tmp_path / f"{name}.html").write_text(text)
    assert faults_of(tmp_path, [f"{name}.html" for name in pages], tmp_path / "profile") == {}
