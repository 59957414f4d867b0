"""The report in a real browser: no console messages, tables that sort, nothing wider than a phone, colours that adapt."""

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = [
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
]
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
probe.still = [...document.querySelectorAll("input[type=range]")].filter((input) => {
  const out = input.closest(".live").querySelector("output"), first = out.textContent;
  input.value = input.max;
  input.dispatchEvent(new Event("input"));
  return out.textContent === first;
}).length;
const touched = (svg, said) => {
  // a finger beside the dot
  const box = svg.querySelector("title").parentNode.getBoundingClientRect();
  svg.dispatchEvent(new PointerEvent("pointerdown", {pointerType: "touch", clientX: box.right + 6, clientY: box.bottom + 6}));
  return said.textContent;
};
const dotted = document.querySelector("figure:has(g > title)"), bins = document.querySelector(".live svg");
probe.said = touched(dotted.querySelector("svg"), dotted.querySelector("output"));
probe.binned = touched(bins, bins.parentNode.querySelector("svg + output"));
const free = [...document.querySelectorAll("body *")].filter((e) => !e.closest(".scroll, .skip, details, svg"));
probe.wider = free.filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 80));
probe.page = document.documentElement.scrollWidth - innerWidth;
const words = [...document.querySelectorAll("summary, .commands span")];
probe.cut = words.filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.textContent);
probe.paper = getComputedStyle(document.body).backgroundColor;
probe.unnamed = [...document.querySelectorAll("figure")].filter((f) => !f.getAttribute("aria-label")).length;
probe.figures = [...document.querySelectorAll(".figures:not(.panels) svg")].map((s) => s.getBoundingClientRect().width);
dispatchEvent(new Event("beforeprint"));
probe.folded = document.querySelectorAll("details:not([open])").length;
document.body.dataset.probe = JSON.stringify(probe);
"""


def digest(code: str) -> str:
    """Return what a policy calls a script it allows."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"


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
    assert probe["still"] == 0, "every slider moves what it says"
    assert re.match(r"[\d,]+ rows: mean confidence", probe["said"]), "a touch beside a dot says its numbers"
    assert re.match(r"\d+ rows: .* predicted", probe["binned"])
    assert min(probe["figures"]) > 250
    assert probe["paper"] == "rgb(255, 255, 255)"


def test_a_fault_would_be_seen(browse: Browse) -> None:
    _, log = browse(script="console.error('seen'); fetch('https://example.org/')")
    assert "seen" in log
    assert "violates" in log, "the page's own policy stops it from asking the network"


WIDTHS = (360, 390, 480, 600, 768, 900, 1024, 1280, 1440, 1920)
FRAMES = """
const pages = JSON.parse(document.getElementById("pages").textContent), found = {};
const wanted = Object.entries(pages).flatMap(([name, page]) => WIDTHS.map((width) => [name, page, width]));
Promise.all(wanted.map(([name, page, width]) => new Promise((done) => {
  const frame = Object.assign(document.createElement("iframe"), {srcdoc: page, width, height: 900});
  frame.onload = () => {
    for (const one of frame.contentDocument.querySelectorAll("details")) one.open = true;
    found[`${name} ${width}`] = look(frame.contentDocument, frame.contentWindow, width);
    done();
  };
  document.body.append(frame);
}))).then(() => { document.body.dataset.probe = JSON.stringify(found); });
"""
WIDER = """
const look = (at, own, width) => {
  const free = [...at.querySelectorAll("body *")].filter((e) => !e.closest(".scroll, .skip, svg"));
  const wider = free.filter((e) => e.getBoundingClientRect().right > width + 1).map((e) => e.outerHTML.slice(0, 80));
  const out = [...at.querySelectorAll("svg")].filter((s) => s.getBoundingClientRect().width > width);
  return at.documentElement.scrollWidth > width || wider.length + out.length ? [wider.slice(0, 3), out.length] : [];
};
"""
# WCAG 2.2: 4.5 for text, 3 for large text and for marks. A mark counts by the stronger of fill and stroke. Left out are what only
# decorates (grid), the grey of what is expected, whose outline is tested beside the pictures, and an image, which is white on its own.
PALE = """
const channels = (colour) => (colour.match(/[\\d.]+/g) ?? []).map(Number);
const light = (c) => c.slice(0, 3).map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const over = (c, ground) => (c.length > 3 ? c.slice(0, 3).map((v, i) => c[3] * v + (1 - c[3]) * ground[i]) : c);
const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
const look = (at, own) => {
  const style = (e) => own.getComputedStyle(e), root = style(at.documentElement), pale = new Set(), seen = {text: 0, marks: 0};
  const role = (name) => {
    at.body.append(Object.assign(at.createElement("i"), {style: `color: var(--${name})`}));
    return channels(style(at.body.lastChild).color).join();
  };
  const left = ["grid", "band", "paper"].map(role);
  const ground = (e) => {
    const found = channels(style(e).backgroundColor);
    if (found.length && !(found[3] < 1)) return found;
    return e === at.body ? [255, 255, 255] : over(found, ground(e.parentElement ?? at.body));
  };
  const walk = at.createTreeWalker(at.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement, own = style(e);
    if (!walk.currentNode.data.trim() || !e.getClientRects().length) continue;
    if (e.closest("script, style, title, .skip, .md-search, .headerlink")) continue;
    const colour = channels(e.closest("svg") ? own.fill : own.color), size = parseFloat(own.fontSize);
    const large = size >= 24 || (size >= 18.66 && own.fontWeight >= 700);
    seen.text += 1;
    if (ratio(over(colour, ground(e)), ground(e)) < (large ? 3 : 4.5)) pale.add(`${walk.currentNode.data.trim().slice(0, 30)} ${colour}`);
  }
  for (const e of at.querySelectorAll("svg :is(path, use, circle, rect, line, polyline, polygon)")) {
    if (e.closest("defs, clipPath, .md-search")) continue;
    const own = style(e), colours = [own.fill, own.stroke].filter((c) => c.startsWith("rgb") && channels(c)[3] !== 0).map(channels);
    const drawn = colours.filter((c) => !left.includes(c.slice(0, 3).join()));
    if (!drawn.length) continue;
    seen.marks += 1;
    if (Math.max(...drawn.map((c) => ratio(over(c, ground(e)), ground(e)))) < 3) pale.add(`${e.outerHTML.slice(0, 60)} ${drawn.join(" ")}`);
  }
  return [[...pale].slice(0, 5), seen.text, seen.marks];
};
"""


def framed(pages: dict[str, str], look: str, widths: Sequence[int], folder: Path, *flags: str) -> dict[str, Any]:
    """Return what ``look`` finds in each page at each width, everything unfolded."""
    if CHROMIUM is None:
        pytest.skip("no Chromium")
    path, held = folder / "frames.html", json.dumps(pages).replace("</", "<\\/")
    script = look + FRAMES.replace("WIDTHS", json.dumps(widths))
    path.write_text(f'<body><script type="application/json" id="pages">{held}</script><script>{script}</script></body>')
    wait = [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=20000", "--dump-dom"]
    done = subprocess.run([CHROMIUM, *QUIET, *wait, *flags, path.as_uri()], capture_output=True, text=True, timeout=300)
    probe = re.search(r'data-probe="([^"]*)"', done.stdout)
    assert probe, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(html.unescape(probe[1]))
    assert set(found) == {f"{name} {width}" for name in pages for width in widths}
    return found


def test_a_page_is_small_and_asks_for_nothing(pages: dict[str, str]) -> None:
    for text in pages.values():
        assert len(text.encode()) <= 600_000
        code = sum(len(code.encode()) for code in re.findall(r"<script>(.*?)</script>", text, re.DOTALL))
        assert 5_000 <= code <= 15_000
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
    faulty = {
        "pale": pages["event"].replace("--ink: #1b1f24", "--ink: #a3adb8").replace("--ink: #e6eaee", "--ink: #45515e")
    }
    ((pale, _, _),) = framed(faulty, PALE, [1280], tmp_path, *flags).values()
    assert pale, "a page that is too pale is found"


def test_a_page_on_a_dark_screen(browse: Browse) -> None:
    probe, _ = browse("--window-size=1200,900", "--blink-settings=preferredColorScheme=0")
    assert probe["paper"] == "rgb(20, 24, 29)"
