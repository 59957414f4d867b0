"""The report as a file: self-contained, escaped, the same bytes each time, in two formats."""

import html
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.draws import drawn

from calibrant import Predictions
from calibrant.calibrators import TemperatureScaling
from calibrant.errors import InputError
from calibrant.report import Model, write_report
from calibrant.report.model import Table

VOID = {"meta", "link", "br", "wbr", "path", "use", "rect"}


def over_confident(*, seed: int = 0, groups: bool = False) -> Predictions:
    logits, labels = drawn(600, 3, seed=seed, sharp=3)
    return Predictions.from_logits(logits, labels, groups=np.arange(600) // 50 if groups else None)


def a_model(*, name: str = "net", groups: bool = False) -> Model:
    fit, judge = over_confident(seed=1), over_confident(seed=2, groups=groups)
    calibrator = TemperatureScaling().fit(fit.logits, fit.labels)
    return Model(name, judge, judge.calibrated_by(calibrator), calibrator, "file.npz", "test")


class Page(HTMLParser):
    """Checks nesting, and gathers ids, links, headings and figures of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def values(self, *names: str) -> list[str]:
        return [found[name] or "" for _, found in self.found for name in names if name in found]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def written(path: Path, models: list[Model], **options: object) -> str:
    return write_report(models, path, draws=20, **options).read_text()


def test_the_page_is_well_formed_and_asks_nothing_of_the_network(tmp_path: Path) -> None:
    text = written(tmp_path / "r.html", [a_model(name="one", groups=True), a_model(name="two")])
    page = Page(text)
    ids, links = page.values("id"), page.values("href", "src", "xlink:href")
    assert len(set(ids)) == len(ids)
    assert [link for link in links if not link.startswith(("#", "data:"))] == []
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert "url(http" not in text
    assert "default-src 'none'" in text
    headings = [int(tag[1]) for tag, _ in page.found if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1
    assert all(b - a <= 1 for a, b in pairwise(headings))
    assert all(found.get("aria-label") for tag, found in page.found if tag == "figure")


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (written(tmp_path / f"{n}.html", [a_model()]) for n in "ab")
    assert first == second


def test_tables_computed_elsewhere_stand_in_both_formats(tmp_path: Path, undrawn: None) -> None:
    table = Table("T & co", ["a", "b"], [["1", "2"]])
    found = json.loads(written(tmp_path / "report.json", [a_model()], tables=[table]))
    assert (found["title"], found["tables"][0]["rows"]) == ("Calibration report", [["1", "2"]])
    assert "T &amp; co" in written(tmp_path / "r.html", [a_model()], tables=[table])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (list, "expected at least one model"),
        (lambda: Model("m", over_confident(), over_confident()[:5]), "same rows and weights .* for m, got 600 and 5"),
        (
            lambda: Model("m", over_confident(), replace(over_confident(), weights=torch.arange(600.0).double())),
            "expected the same rows and weights before and after calibration for m",
        ),
        (lambda: Model("m", over_confident(), class_names=["a", "b"]), "expected 3 class names, got 2"),
        (lambda: Model("m", Predictions.from_logits(torch.randn(3, 2))), "labelled"),
    ],
)
def test_wrong_input_is_refused_and_nothing_written(make: Callable[[], Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        write_report(make(), tmp_path / "r.html")
    assert list(tmp_path.iterdir()) == []


def test_of_several_models_the_page_says_which_is_better(tmp_path: Path, undrawn: None) -> None:
    data = over_confident(seed=2)
    noise = torch.randn(data.logits.shape, generator=torch.Generator().manual_seed(3))
    worse, other = Predictions.from_logits(data.logits + 3 * noise, data.labels), over_confident(seed=4)
    pair = [Model("kept", data), Model("noisy", worse)]
    text = html.unescape(write_report(pair, tmp_path / "r.html", draws=20).read_text())
    first, second = re.findall("<li>(.*)</li>", text)[:2]
    assert "<h2>Which model</h2>" in text
    assert "The p-values are adjusted for all metrics and pairs of models (Holm); the intervals are not." in text
    assert first.startswith("What to do: use kept, which has the better log-loss. Calibrate ")
    assert second.startswith("kept is better calibrated than noisy: its ECE is lower by")
    (found,) = json.loads(write_report(pair, tmp_path / "r.json", draws=20).read_text())["comparisons"]
    assert found["verdict"].replace(" %", "\u00a0%") in text
    assert (found["a"], found["b"], found["calibrated"], found["rows"][0]["winner"]) == ("kept", "noisy", False, "a")
    # models of other rows are not compared
    assert "Which" not in write_report([pair[0], Model("elsewhere", other)], tmp_path / "r.html", draws=20).read_text()


@pytest.mark.parametrize(
    "data",
    [
        Predictions.from_logits([[1.0, 2.0]], [0]),
        Predictions.from_logits(torch.eye(3)[torch.tensor([0, 1, 2, 0])] * 30, [0, 1, 2, 1]),
        Predictions.from_logits([[0.0, -np.inf, 1.0]] * 5, [2, 0, 2, 0, 0]),
        Predictions.from_logits(torch.ones(50, 4).bfloat16().cumsum(1), [0, 1] * 25),
    ],
    ids=["one row", "saturated", "excluded class", "bfloat16"],
)
def test_odd_data_are_reported(data: Predictions, tmp_path: Path) -> None:
    model = Model("odd", data, data, "the same")
    pages = [write_report([model], tmp_path / f"r.{suffix}", draws=20).read_text() for suffix in ("html", "json")]
    assert all("odd" in text for text in pages)
    Page(pages[0])
