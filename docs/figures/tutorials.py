"""Draws the pictures of pages by running the code on each page, and keeps the pictures that it saves.

Run ``python docs/figures/tutorials.py`` in the root of a checkout. It writes into ``docs/images``.
"""

import os
import re
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl

ROOT = Path(__file__).parents[2]
PAGES = ("README", "tutorials/binary", "tutorials/sklearn", "tutorials/subgroups", "gallery")


def draw(page: str) -> None:
    """Run the Python blocks of a page in a temporary folder, and keep its pictures."""
    text = (ROOT / f"docs/{page}.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        names: dict[str, object] = {"__name__": "__main__"}
        for code in blocks:
            if ">>> " not in code:
                exec(compile(code, page, "exec"), names)
        for picture in Path(folder).glob("*.svg"):
            if f"images/{picture.name}" not in text:  # saved for the reader alone
                continue
            shutil.copy(picture, ROOT / "docs" / "images" / picture.name)
        os.chdir(ROOT)


def first_picture() -> None:
    """Draw the picture of README and home, titled by the ECE of their text (bins of equal width; the dots are of equal mass)."""
    import calibrant
    from calibrant.calibrators import TemperatureScaling
    from calibrant.metrics import ECE
    from calibrant.plot.diagrams import diagram_of
    from calibrant.plot.drawing import draw_diagram, lower_limit
    from calibrant.plot.style import new_figure

    splits = calibrant.load_example("cifar10")
    after = splits["test"].calibrated_by(TemperatureScaling().fit(splits["val"]))
    states = [replace(diagram_of(data), ece=ECE()(data)) for data in (splits["test"], after)]
    figure, start = new_figure(width=8.0, height=4.2), lower_limit(*states)
    for ax, title, state in zip(figure.subplots(1, 2), ("before", "after"), states, strict=True):
        draw_diagram(state, ax, start=start)
        ax.set_title(f"{title}: ECE {100 * state.ece:.2f} %", fontsize=10)
    figure.savefig(ROOT / "docs" / "images" / "before-after.png", dpi=150)


if __name__ == "__main__":
    mpl.rcParams["svg.hashsalt"] = "calibrant"
    os.environ["SOURCE_DATE_EPOCH"] = "0"  # no date in a picture: the same numbers give the same file
    for name in sys.argv[1:] or PAGES:
        first_picture() if name == "README" else draw(name)
