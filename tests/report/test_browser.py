"""The report in a real browser: no console messages, tables that sort, nothing wider than a screen."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.browser import digest, faults_of, probed

from calibrant import MultiLabel, Predictions
from calibrant.calibrators import TemperatureScaling
from calibrant.report import Model, write_report
from calibrant.report.model import Claims, Table
from calibrant.study.draw import pictures_of
from calibrant.study.panels import Bars, Drawing, Line, Plot

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
    """Pages whose layouts differ, with long names, on rows that are off."""
    folder, rng = tmp_path_factory.mktemp("pages"), np.random.default_rng(0)
    several = MultiLabel.from_logits(3 * rng.normal(size=(300, 4)), rng.integers(0, 2, (300, 4)))
    write_report([Model("labels", several, source="labels.npz")], folder / "labels.html", draws=20)

    true = rng.normal(size=(2, 900, 6))
    labels = (true + rng.gumbel(size=true.shape)).argmax(-1)
    scaling = TemperatureScaling().fit(3 * true[0], labels[0])
    test = Predictions.from_logits(3 * true[1], labels[1], groups=np.arange(900) // 90)
    names = [f"a class with quite a long name {k}" for k in range(6)]
    after = test.calibrated_by(scaling)
    models = [
        Model("a-model-with-a-rather-long-name-of-its-own", test, after, scaling, class_names=names),
        Model("plain_" + 9 * "underscored_" + "name", test),
    ]
    write_report(models, folder / "classes.html", draws=20)

    z, site = rng.normal(0, 1.5, (2, 900)), rng.choice(["a", "a site with quite a long name of its own"], (2, 900))
    y = (rng.random(z.shape) < 1 / (1 + np.exp(-z + 1.5 * (site == "a")))).astype(int)
    scaling = TemperatureScaling().fit(Predictions.from_binary_logits(z[0], y[0]))
    event = Predictions.from_binary_logits(z[1], y[1], features={"site": site[1]})
    x, rise = (1.0, 2.0, 3.0), (0.1, 0.2, 0.4)
    lines = tuple(Line(f"objective {k}", x, tuple(k + 1 - v for v in rise)) for k in range(9))
    bars = Bars("Cross-entropy", "largest logit", "samples", x, {"early": (3.0, 1.0), "late": (1.0, 2.0)})
    drawing = Drawing("name", "A title", "What it is.", (Plot("test", "epoch", "T", lines), bars), 3)
    wide = Table("All objectives", [f"a column {k}" for k in range(14)], [[f"{k}.00 ± 0.10" for k in range(14)]])
    tables = [Claims("In short", ["What is wrong: " + 40 * "words "]), wide, *pictures_of([drawing])]
    model = Model("event", event, event.calibrated_by(scaling), scaling)
    write_report([model], folder / "study.html", tables=tables, draws=20)
    return {path.stem: path.read_text() for path in folder.iterdir()}


def browse(pages: dict[str, str], folder: Path, *, script: str = "") -> tuple[dict[str, Any], str]:
    """Return what the page of two models says of itself in a browser, and the browser's log."""
    hashes = " ".join(digest(code) for code in (PROBE, script))
    allowed = pages["classes"].replace("script-src '", f"script-src {hashes} '", 1)
    scripts = f"<script>{PROBE}</script><script>{script}</script>"
    (folder / "r.html").write_text(allowed.replace("</body>", f"{scripts}</body>"))
    return probed(folder / "r.html", folder / "profile")


def test_a_page_on_a_desktop(pages: dict[str, str], tmp_path: Path) -> None:
    probe, log = browse(pages, tmp_path)
    assert "CONSOLE" not in log, [line for line in log.splitlines() if "CONSOLE" in line]
    assert probe["down"] == sorted(probe["before"], reverse=True)
    assert probe["up"] == sorted(probe["before"])
    assert probe["sort"] == "descending"
    assert (probe["unnamed"], probe["folded"]) == (0, 0)
    assert re.match(r"[\d,]+ rows: mean confidence", probe["said"]), "a touch beside a dot says its numbers"
    assert min(probe["figures"]) > 250
    assert probe["paper"] == "rgb(255, 255, 255)"


def test_a_fault_would_be_seen(pages: dict[str, str], tmp_path: Path) -> None:
    _, log = browse(pages, tmp_path, script="console.error('seen'); fetch('https://example.org/')")
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
