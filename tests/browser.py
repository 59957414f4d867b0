"""Pages in a real browser: a headless Chromium, a script for each page at each width, and the contrast of what is drawn."""

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


def digest(code: str) -> str:
    """Return what a policy calls a script it allows."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"


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
