"""The notebooks are built from the pages, small, current, and run top to bottom."""

import base64
import importlib.util
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread, imsave
from tests.test_docs import agree

ROOT = Path(__file__).parent.parent
SPEC = importlib.util.spec_from_file_location("notebooks", ROOT / "docs" / "figures" / "notebooks.py")
notebooks = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(notebooks)


def kept(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "docs" / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", notebooks.NOTEBOOKS)
def test_a_notebook_is_that_of_its_pages_and_small(name: str) -> None:
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in kept(name)["cells"]]
    assert cells == notebooks.sources(name), "python docs/figures/notebooks.py"
    assert (ROOT / "docs" / "notebooks" / f"{name}.ipynb").stat().st_size <= 300_000
    assert any(cell.get("outputs") for cell in kept(name)["cells"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", notebooks.NOTEBOOKS)
def test_a_notebook_runs_top_to_bottom_with_the_outputs_it_keeps(name: str) -> None:
    for now, before in zip(notebooks.built(name)["cells"], kept(name)["cells"], strict=True):
        outputs = [shown(cell) for cell in (now, before)]
        where = f"{before['id']} of {name}; python docs/figures/notebooks.py\n{outputs[0]}\n{outputs[1]}"
        assert [kind for kind, _ in outputs[0]] == [kind for kind, _ in outputs[1]], where
        for (kind, value), (_, old) in zip(*outputs, strict=True):
            assert same_picture(value, old) if kind == "image/png" else agree(value, old), where


def shown(cell: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what a cell shows: the kind of each of its outputs, and the text or the picture."""
    parts = [one.get("data") or {one["name"]: one["text"]} for one in cell.get("outputs", [])]
    return [(kind, "".join(text)) for part in parts for kind, text in part.items()]


def same_picture(now: str, kept: str) -> bool:
    """Whether two PNG files in base64 have one size, and pixels that differ by less than a dot's move does."""
    pixels = [imread(io.BytesIO(base64.b64decode(one))) for one in (now, kept)]
    return pixels[0].shape == pixels[1].shape and float(abs(pixels[0] - pixels[1]).mean()) < 1e-3


def test_another_picture_is_found() -> None:
    def png(pixels: np.ndarray) -> str:
        imsave(file := io.BytesIO(), pixels, format="png")
        return base64.b64encode(file.getvalue()).decode()

    white = np.ones((300, 300, 3))
    moved = white.copy()
    moved[100:112, 100:112] = 0
    assert same_picture(png(white), png(white))
    assert not same_picture(png(moved), png(white))
    assert not same_picture(png(white[1:]), png(white))


def test_a_session_loses_its_prompts_and_an_error_is_caught() -> None:
    first, second = notebooks.console(
        ">>> 1 + 1\n2\n>>> int('x')\nTraceback (most recent call last):\n...\nValueError: x\n"
    )
    assert first == "1 + 1"
    [shown] = notebooks.run(second, {})
    assert "invalid literal" in "".join(shown["text"])


def test_a_cell_that_fails_is_no_notebook() -> None:
    with pytest.raises(RuntimeError, match="calibrant evaluate nothing"):
        notebooks.run("!calibrant evaluate nothing.npz", {})
