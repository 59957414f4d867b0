"""Pages of reports whose layouts differ, on rows that are off: what a browser is shown."""

from pathlib import Path

import numpy as np

from calibrant import MultiLabel, Predictions
from calibrant.binning import EqualWidth
from calibrant.calibrators import TemperatureScaling
from calibrant.report import Model, write_report
from calibrant.report.model import Claims, Table
from calibrant.study.draw import pictures_of
from calibrant.study.panels import Bars, Drawing, Line, Plot, Reliability

KINDS = ("event", "classes", "labels", "study")


def write_page(kind: str, folder: Path) -> Path:
    """Write the page of a kind into ``folder``."""
    rng, path = np.random.default_rng(0), folder / f"{kind}.html"
    if kind == "labels":
        several = MultiLabel.from_logits(3 * rng.normal(size=(300, 4)), rng.integers(0, 2, (300, 4)))
        return write_report([Model("labels", several, source="labels.npz")], path, title="Labels", draws=20)
    if kind == "classes":
        true = rng.normal(size=(2, 900, 6))
        labels = (true + rng.gumbel(size=true.shape)).argmax(-1)
        fit = Predictions.from_logits(3 * true[0], labels[0])
        test = Predictions.from_logits(3 * true[1], labels[1], groups=np.arange(900) // 90)
        calibrator = TemperatureScaling().fit(fit)
        names = [f"a class with quite a long name {k}" for k in range(6)]
        name = "a-model-with-a-rather-long-name-of-its-own"
        model = Model(name, test, test.calibrated_by(calibrator), calibrator, class_names=names)
        return write_report([model, Model("plain_" + 9 * "underscored_" + "name", test)], path, draws=20)
    z, site = rng.normal(0, 1.5, (2, 900)), rng.choice(["a", "a site with quite a long name of its own"], (2, 900))
    y = (rng.random(z.shape) < 1 / (1 + np.exp(-z + 1.5 * (site == "a")))).astype(int)
    fit = Predictions.from_binary_logits(z[0], y[0])
    test = Predictions.from_binary_logits(z[1], y[1], features={"site": site[1]})
    calibrator = TemperatureScaling().fit(fit)
    model = Model(kind, test, test.calibrated_by(calibrator), calibrator)
    if kind == "event":
        return write_report([model], path, draws=20)
    x, rise = (1.0, 2.0, 3.0), (0.1, 0.2, 0.4)
    lines = tuple(Line(f"objective {k}", x, tuple(k + 1 - v for v in rise)) for k in range(9))
    pairs = test.top_label().p, test.top_label().y
    bars = Bars("Cross-entropy", "largest logit", "samples", x, {"early": (3.0, 1.0), "late": (1.0, 2.0)})
    panels = (Plot("test", "epoch", "T", lines), bars, Reliability("before", EqualWidth(15).table(*pairs)))
    wide = Table("All objectives", [f"a column {k}" for k in range(14)], [[f"{k}.00 ± 0.10" for k in range(14)]])
    first = [Claims("In short", ["What is wrong: " + 40 * "words "]), wide]
    drawn = pictures_of([Drawing("name", "A title", "What it is.", panels, 3)])
    return write_report([model], path, tables=[*first, *drawn], draws=20)
