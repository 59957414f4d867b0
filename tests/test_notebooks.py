"""The notebooks are built from the pages, small, current, and run top to bottom."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

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
    def texts(notebook: dict[str, Any]) -> list[str]:
        outputs = [one for cell in notebook["cells"] for one in cell.get("outputs", [])]
        return ["".join(one["text"]) for one in outputs if one["output_type"] == "stream"]

    again = notebooks.built(name)
    assert len(texts(again)) == len(texts(kept(name)))


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
