"""Names from outside stay text: every place of every kind of page that prints one, with the page's script on."""

from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.browser import CHROMIUM, digest, probed

from calibrant import MultiLabel, Predictions
from calibrant.report import Model, write_report
from calibrant.report.model import Claims, Table

RUN = "document.body.dataset.evil=1"
NAMES = (
    f"<script>{RUN}</script>", f"</script><script>{RUN}</script>", f"<img src=x onerror={RUN}>", f'" onmouseover="{RUN}',
    f"' onfocus='{RUN}' autofocus='", f"<svg onload={RUN}>", f"</title><script>{RUN}</script>", f"</style><script>{RUN}</script>",
    f"--><script>{RUN}</script>", f"]]><script>{RUN}</script>", "<iframe src=https://example.org></iframe>",
    "<link rel=stylesheet href=https://example.org/a.css>", f"<a href=javascript:{RUN}>x</a>", "<base href=https://example.org>",
    "<meta http-equiv=refresh content=0;url=https://example.org>", "{{ cycler.__init__ }}<b id=evil>{% raw %}",
    "&lt;b id=evil&gt;<b id=evil>", "$\\frac{<b id=evil>}{2}$", f"<details open ontoggle={RUN}>", "\u202e<b id=evil>",
)  # fmt: skip
PROBE = """
for (const one of document.querySelectorAll("details")) one.open = true;
for (const one of document.querySelectorAll("body *")) for (const kind of ["pointerenter", "mouseover", "focus", "input"])
  one.dispatchEvent(new Event(kind));
for (const one of document.querySelectorAll("button")) one.click();
const foreign = document.querySelectorAll("#evil, iframe, link[rel=stylesheet], base, a[href^=javascript], img[src=x]").length;
document.body.dataset.probe = JSON.stringify([document.body.dataset.evil ?? 0, foreign]);
"""


def pages(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Return a page of each kind with ``names`` in all its places: classes, features, groups, labels, models, files, titles, tables."""
    rng, text = np.random.default_rng(0), " ".join(names)
    z = rng.normal(0, 1.5, (2000, len(names)))
    y = (1.5 * z + rng.gumbel(size=z.shape)).argmax(1)
    sites = {text: np.array(names)[np.arange(2000) % len(names)]}
    data = Predictions.from_logits(z, y, features=sites, groups=np.arange(2000) // 100)
    event = Predictions.from_binary_logits(z[:, 0], (y == 0).astype(int), features=sites)
    model = Model(text, data, class_names=names, source=f"{text}.npz", split=text, options={"columns": text})
    tables = [Table(text, list(names), [list(names)], text), Claims(text, names)]
    look: dict[str, Any] = {"title": text, "notes": names, "tables": tables, "draws": 20}
    write_report([model, Model(text, event, class_names=["a", text])], folder / "models.html", **look)
    several = MultiLabel.from_logits(z, rng.integers(0, 2, z.shape), names=names)
    write_report([Model(text, several, source=f"{text}.npz", split=text)], folder / "labels.html", title=text, draws=20)
    return {path.stem: path.read_text() for path in folder.glob("*.html")}


class Tags(HTMLParser):
    """The elements of a page with the names of their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: set[tuple[str, str]] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {(tag, name) for name, _ in attrs} | {(tag, "")}


@pytest.mark.slow
def test_hostile_names_add_no_element_and_run_nothing(tmp_path: Path) -> None:
    (tmp_path / "tame").mkdir()
    tame = {kind: Tags(page).found for kind, page in pages(tmp_path / "tame", [f"n{k}" for k in range(20)]).items()}
    for kind, page in pages(tmp_path, NAMES).items():
        assert Tags(page).found - {("wbr", "")} <= tame[kind], "an element or attribute that no ordinary name makes"
        if CHROMIUM is None:
            continue
        path = tmp_path / f"{kind}-probe.html"
        allowed = page.replace("script-src '", f"script-src {digest(PROBE)} '", 1)
        path.write_text(f"{allowed}<script>{PROBE}</script>")
        found, log = probed(path, tmp_path / "profile")
        assert found == [0, 0]
        assert "violates" not in log, "nothing was even tried"
