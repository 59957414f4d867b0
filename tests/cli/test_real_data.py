"""Every logit set gives, through the command line, the figures that were published with the data."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import Run

from calibrant import Pairs
from calibrant.metrics import ECE, NLL, Accuracy

FIGURES = Path(__file__).parent.parent / "fixtures" / "published_figures.json"
EXPECTED: dict[str, dict[str, list[str]]] = json.loads(FIGURES.read_text())


def published(readme: str) -> dict[str, dict[str, list[str]]]:
    """Return the cells after name and K (logit sets) or after the name (top-label sets) of a README's two tables."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in readme.splitlines() if line[:2] == "| "]
    numbers = [line for line in lines if re.fullmatch(r"\d+", line[1])]
    logits = {line[0]: line[2:-1] for line in numbers if len(line) == 10}
    return {"logits": logits, "toplabel": {line[0]: line[1:] for line in numbers if len(line) == 4}}


def test_the_committed_figures_are_those_beside_the_data(data: Path) -> None:
    assert published((data / "README.md").read_text()) == EXPECTED
    for folder, figures in EXPECTED.items():
        assert {path.stem for path in (data / folder).glob("*.npz")} == set(figures)


@pytest.mark.parametrize("name", EXPECTED["logits"])
@pytest.mark.slow
def test_figures_to_the_printed_digits(name: str, data: Path, tmp_path: Path, run: Run) -> None:
    file, calibrator = data / "logits" / f"{name}.npz", tmp_path / "c.safetensors"
    fitted = json.loads(run("fit", file, "--method", "TemperatureScaling", "-o", calibrator, "--json").stdout)["fitted"]
    rows = json.loads(run("evaluate", file, "-c", calibrator, "--draws", 0, "--json").stdout)["rows"]
    by = {(row["split"], row["calibrator"] is not None, row["metric"]): row["value"] for row in rows}
    n = {row["split"]: row["n"] for row in rows}
    accuracy, ece, nll = repr(Accuracy()), repr(ECE()), repr(NLL())
    got = [
        f"{n['val']} / {n['test']}",
        f"{100 * by['val', False, accuracy]:.2f} / {100 * by['test', False, accuracy]:.2f}",
        f"{100 * by['test', False, ece]:.2f}",
        f"{by['test', False, nll]:.4f}",
        f"{fitted['learned']['temperature']:.3f}",
        f"{100 * by['test', True, ece]:.2f}",
        f"{by['test', True, nll]:.4f}",
    ]
    assert got == EXPECTED["logits"][name]


@pytest.mark.parametrize("name", EXPECTED["toplabel"])
def test_top_label_figures_to_the_printed_digits(name: str, data: Path) -> None:
    held = np.load(data / "toplabel" / f"{name}.npz")
    pairs = Pairs.from_top_label(held["conf"], held["pred"], held["label"])
    got = [str(len(pairs)), f"{100 * Accuracy()(pairs):.2f}", f"{100 * ECE()(pairs):.2f}"]
    assert got == EXPECTED["toplabel"][name]
