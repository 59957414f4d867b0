"""The report in a real browser: no console messages, tables that sort, nothing wider than a phone, colours that adapt."""

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant import MultiLabelPredictions, Predictions
from calibrant.calibrators import TemperatureScaling
from calibrant.report import Claims, Model, Table, write_report
from calibrant.report.labels import LabelReport, write_label_report

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
const column = (n) => [...table.tBodies[0].rows].map((row) => Number(row.cells[n].dataset.value));
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
const dot = document.querySelector("figure g > title").parentNode;
dot.dispatchEvent(new Event("pointerenter"));
probe.said = dot.closest("figure").querySelector("output").textContent;
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
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report on two models, with groups and long names, that probes itself."""
    rng = np.random.default_rng(0)
    true = rng.normal(size=(2, 900, 6))
    labels = (true + rng.gumbel(size=true.shape)).argmax(-1)
    fit = Predictions.from_logits(3 * true[0], labels[0])
    judge = Predictions.from_logits(3 * true[1], labels[1], groups=np.arange(900) // 90)
    calibrator = TemperatureScaling().fit(fit.logits, fit.labels)
    names = [f"a class with quite a long name {k}" for k in range(6)]
    name = "a-model-with-a-rather-long-name-of-its-own"
    model = Model(name, judge, judge.calibrated_by(calibrator), calibrator, class_names=names)
    path = tmp_path_factory.mktemp("page") / "r.html"
    return write_report([model, Model("plain_" + 9 * "underscored_" + "name", judge)], path, draws=20).read_text()


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
    assert re.match(r"[\d,]+ rows: mean confidence", probe["said"])
    assert min(probe["figures"]) > 250
    assert probe["paper"] == "rgb(255, 255, 255)"


def test_a_fault_would_be_seen(browse: Browse) -> None:
    _, log = browse(script="console.error('seen'); fetch('https://example.org/')")
    assert "seen" in log
    assert "violates" in log, "the page's own policy stops it from asking the network"


def test_a_script_that_is_not_the_pages_own_does_not_run(page: str, tmp_path: Path) -> None:
    if CHROMIUM is None:
        pytest.skip("no Chromium")
    path = tmp_path / "r.html"
    path.write_text(page.replace("</body>", '<script>document.body.dataset.evil = "1"</script></body>'))
    command = [CHROMIUM, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()]
    assert "data-evil" not in subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


def test_a_page_on_a_phone_is_no_wider_than_it(browse: Browse) -> None:
    probe, _ = browse("--window-size=390,844")
    assert probe["wider"] == []
    assert probe["cut"] == []
    assert probe["page"] <= 0
    assert min(probe["figures"]) > 250


WIDTHS = (360, 390, 480, 600, 768, 900, 1024, 1280, 1440, 1920)
FRAMES = """
const page = document.getElementById("page").textContent;
const found = {};
Promise.all(WIDTHS.map((width) => new Promise((done) => {
  const frame = Object.assign(document.createElement("iframe"), {srcdoc: JSON.parse(page), width, height: 900});
  frame.onload = () => {
    const at = frame.contentDocument;
    for (const one of at.querySelectorAll("details")) one.open = true;
    const free = [...at.querySelectorAll("body *")].filter((e) => !e.closest(".scroll, .skip, svg"));
    const wider = free.filter((e) => e.getBoundingClientRect().right > width + 1).map((e) => e.outerHTML.slice(0, 80));
    const out = [...at.querySelectorAll("svg")].filter((s) => s.getBoundingClientRect().width > width).length;
    found[width] = [at.documentElement.scrollWidth - frame.clientWidth, wider.slice(0, 3), out];
    done();
  };
  document.body.append(frame);
}))).then(() => { document.body.dataset.probe = JSON.stringify(found); });
""".replace("WIDTHS", json.dumps(WIDTHS))


def kinds_of_pages(folder: Path) -> dict[str, str]:
    """Return a page on an event with groups, on several labels, and one that opens with sentences and a wide table, as a study's does."""
    rng = np.random.default_rng(0)
    z, site = rng.normal(0, 1.5, 900), rng.choice(["a", "a site with a long name of its own"], 900)
    y = (rng.random(900) < 1 / (1 + np.exp(-z - 1.5 * (site == "a")))).astype(int)
    event = Model("event", Predictions.from_binary_logits(z, y, features={"site": site}))
    several = MultiLabelPredictions.from_logits(rng.normal(size=(300, 4)), rng.integers(0, 2, (300, 4)))
    labels = LabelReport("labels", several, None, None, "labels.npz", "all", "labels.npz", True, draws=20)
    write_label_report(labels, folder / "labels.html", title="Labels", format=None)
    wide = Table("All objectives", [f"a column {k}" for k in range(14)], [[f"{k}.00 ± 0.10" for k in range(14)]])
    first = [Claims("In short", ["What is wrong: " + 40 * "words "]), wide]
    made = {
        "event": write_report([event], folder / "e.html", draws=20),
        "study": write_report([event], folder / "s.html", tables=first, draws=20),
    }
    return {name: path.read_text() for name, path in made.items()} | {"labels": (folder / "labels.html").read_text()}


def test_no_page_is_wider_than_its_screen(page: str, tmp_path: Path) -> None:
    if CHROMIUM is None:
        pytest.skip("no Chromium")
    for name, text in (kinds_of_pages(tmp_path) | {"classes": page}).items():
        path = tmp_path / f"frames-{name}.html"
        held = json.dumps(text).replace("</", "<\\/")
        path.write_text(
            f'<body><script type="application/json" id="page">{held}</script><script>{FRAMES}</script></body>'
        )
        command = [
            CHROMIUM,
            *QUIET,
            f"--user-data-dir={tmp_path / 'profile'}",
            "--virtual-time-budget=20000",
            "--dump-dom",
            path.as_uri(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        probe = re.search(r'data-probe="([^"]*)"', done.stdout)
        assert probe, done.stderr[-2000:]
        found = json.loads(html.unescape(probe[1]))
        assert list(map(int, found)) == list(WIDTHS)
        assert {width: seen for width, seen in found.items() if seen[0] > 0 or seen[1] or seen[2]} == {}, name


def test_a_page_on_a_dark_screen(browse: Browse) -> None:
    probe, _ = browse("--window-size=1200,900", "--blink-settings=preferredColorScheme=0")
    assert probe["paper"] == "rgb(20, 24, 29)"


def test_a_page_prints_on_sheets(page: str, tmp_path: Path) -> None:
    if CHROMIUM is None:
        pytest.skip("no Chromium")
    path, sheets = tmp_path / "r.html", tmp_path / "r.pdf"
    path.write_text(page)
    flags = ["--no-pdf-header-footer", f"--print-to-pdf={sheets}", f"--user-data-dir={tmp_path / 'profile'}"]
    subprocess.run([CHROMIUM, *QUIET, *flags, path.as_uri()], capture_output=True, timeout=120, check=True)
    count = len(re.findall(rb"/Type\s*/Page\b(?!s)", sheets.read_bytes()))
    assert 4 <= count <= 16, "two models with all that is folded on screen"
