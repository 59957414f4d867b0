"""``calibrant theory``."""

import json
from pathlib import Path

from tests.cli.conftest import Run


def test_the_numbers_behind_a_figure(run: Run, tmp_path: Path) -> None:
    done = run("theory", "--figure", "bounds", "--json", code=0)
    printed = json.loads(done.stdout)
    assert printed["name"] == "bounds"
    assert printed["facts"]["proven_low_gamma_4"] == 0.2
    assert [panel["kind"] for panel in printed["panels"]] == ["plot", "plot"]
    run("theory", "--figure", "bounds", "--json", "-o", tmp_path / "none", code=2, says="got --output for --json")
    assert not (tmp_path / "none").exists()


def test_a_figure_is_written_with_its_page(run: Run, tmp_path: Path) -> None:
    run("theory", "--figure", "minimisers", "-o", tmp_path / "new" / "folder", code=0)
    written = sorted(path.name for path in (tmp_path / "new" / "folder").iterdir())
    assert written == ["index.md", "minimisers.png", "minimisers.svg"]


def test_an_unknown_figure_is_one_sentence(run: Run, tmp_path: Path) -> None:
    done = run("theory", "--figure", "nothing", "-o", tmp_path / "none", code=2, says="'bounds'")
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "none").exists()
