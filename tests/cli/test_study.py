"""``calibrant study`` and ``demo``: list, run, show, on a study of a moment."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.conftest import Run
from tests.conftest import needs
from tests.study.samples import FOLDS

from calibrant.study import load_study, theory

pytestmark = needs("lightning")

PAGE = Path(__file__).parents[2] / "docs" / "study-file.md"
TEMPLATE = re.findall(r"```toml title=[^\n]*\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)[0]
SMALL = f"""{FOLDS.replace('title = "t"', 'title = "A small study"')}
[[claims]]
text = "focal loss is less sure"
source = "a paper"
measure = "temperature"
falls = ["CE", "Focal"]
[[printed]]
source = "Table 9"
measures = ["ece"]
objectives = ["CE", "Focal"]
rows = {{ small = [[4.35], [2.0]] }}
[[figures]]
name = "epochs"
title = "ECE by epoch"
kind = "trajectory"
panels = [["test.ece"]]
"""


@pytest.fixture
def small(home: Path) -> Path:
    Path("small.toml").write_text(SMALL)
    return Path("small.toml")


@pytest.mark.slow
def test_a_study_is_run_and_shown_with_the_paper_beside_it(run: Run, small: Path) -> None:
    dry = run("study run small.toml --seeds 1 --dry-run").stdout
    assert dry.startswith("small at scale cpu: 4 training runs, 0 of them finished, 1 at a time, local")
    assert "data: digits (part of scikit-learn)" in dry
    assert not Path("calibrant-runs").exists()
    done = run("study run small.toml --seeds 1 --accelerator cpu")
    assert "4 of 4 training runs · Focal, seed 0, fold 1 · epoch" in done.stderr
    for shown in ("A small study", "Compared with Table 9", "4.35 /", "focal loss is less sure"):
        assert shown in done.stdout
    assert "After each calibrator" not in done.stdout
    places = "--figures figures --report r.html"
    whole = run(f"study show small.toml --seeds 1 --columns calibrators {places}").stdout
    assert "After each calibrator" in whole
    assert sorted(path.name for path in Path("figures").iterdir()) == ["epochs.png", "epochs.svg"]
    record, page = run("study show small.toml --seeds 1 --json"), Path("r.html").read_text()
    assert [entry["n"] for entry in record["figures"]] == [1797] * 2
    assert record["claims"][0]["text"] == "focal loss is less sure"
    assert "A small study" in page
    assert "data:image/svg+xml;base64," in page
    assert {(row["objective"], row["seed"]) for row in record["figures"]} == {("CE", 0), ("Focal", 0)}


def test_part_of_a_study_may_be_run(run: Run, small: Path) -> None:
    assert "2 training runs" in run("study run small.toml --seeds 1 --only Focal --dry-run").stdout
    plan = run("study run small.toml --seeds 5 --dry-run").stdout
    assert "20 training runs" in plan  # 2 objectives, 2 folds
    listed = [line.strip() for line in plan.splitlines() if line.startswith("  ")]
    assert sorted(listed) == sorted(
        f"{o}, seed {s}, fold {f}" for o in ("CE", "Focal") for s in range(5) for f in (0, 1)
    )
    run("study run small.toml --only Brier --dry-run", code=2, says="'Brier' is unknown; it must be one of CE, Focal")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run", "Missing argument 'STUDY...'"),
        ("run digits --accelerator cuda", "expected a CUDA device for accelerator 'cuda', got none"),
        ("run mine.toml", "no such file: mine.toml"),
        ("show digits --figures new --report nowhere/a.html", "no such folder"),
        ("show digits", "has no finished runs of 'digits'; run the study first"),
        ("claims nobody", "'nobody' is neither part of a paper's name nor the number of a claim"),
    ],
)
def test_mistakes_are_one_sentence(line: str, said: str, run: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run(f"study {line}", code=2, says=said)
    assert [path.name for path in home.iterdir()] in ([], ["calibrant-runs"])


def test_the_template_is_right_with_a_loss_of_ones_own(run: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])  # what is added to it goes again
    Path("beside").mkdir()
    text = TEMPLATE.replace('"FocalLoss", gamma = 3.0', '"loss_of_my_own:Doubled"')
    assert text != TEMPLATE
    Path("beside", "mine.toml").write_text(text)
    Path("beside", "loss_of_my_own.py").write_text("from torch import nn\nclass Doubled(nn.CrossEntropyLoss): pass\n")
    assert "30 training runs" in run("study run beside/mine.toml --dry-run").stdout


@pytest.mark.slow
def test_without_a_network_nothing_is_tried_twice_or_left(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", unreachable)
    said = (
        "the Hugging Face hub, got no access (Name or service not known); connect to it, or put the data into a folder"
    )
    run("study run cifar10 --accelerator cpu", code=2, says=f"{said} FOLDER/cifar10 and pass --data FOLDER")
    assert list(home.iterdir()) == []


def test_a_folder_without_the_data_is_named_before_the_hub_is_asked(run: Run, home: Path) -> None:
    Path("data").mkdir()
    said = run("study run vit --data data --dry-run").stderr
    assert "data has no folder 'cifar10', so this data set is read from the Hugging Face hub" in said
    Path("data", "cifar10").mkdir()
    assert "hub" not in run("study run vit --data data --dry-run").stderr
    assert "hub" not in run("study run digits --data data --dry-run").stderr  # which needs no folder


def test_presets_and_claims_are_listed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "digits: Handwritten digits" in run("study list").stdout
    every = run("study claims --json")["claims"]
    assert [claim["number"] for claim in every] == list(range(1, len(every) + 1))
    for paper in ("mukhoti", "komisarenko", "wang", "report"):  # some claims are mathematics, without a measure
        assert "paper: " in run(f"study claims {paper}").stdout
    assert "AdaFocal gives a lower ECE-EM than cross-entropy" in " ".join(run("study claims ghosh").stdout.split())
    monkeypatch.setattr(
        sys.modules["calibrant.cli.study"], "__file__", "/somewhere/site-packages/calibrant/cli/study.py"
    )
    run("study claims", code=2, says="in the papers/ folder of Calibrant's repository")


@pytest.mark.slow
def test_the_numbers_of_the_theory_are_printed_and_drawn(run: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theory, "FIGURES", {name: theory.FIGURES[name] for name in ("bounds", "minimisers")})
    found = {one["name"]: one["facts"] for one in run("study show theory --figures new/folder --json")["figures"]}
    assert found["bounds"]["proven_low_gamma_4"] == 0.2
    assert {path.name for path in Path("new/folder").iterdir()} == {
        f"{name}.{end}" for name in found for end in ("svg", "png")
    }


@pytest.mark.slow
def test_the_demo_shows_a_table_and_says_where_its_report_is(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = load_study("digits")
    setting = replace(study.settings[0], data={**study.settings[0].data, "folds": 2})
    quick = replace(study, seeds=(0, 1), training={**study.training, "epochs": 2}, settings=(setting,))
    monkeypatch.setattr("calibrant.study.load_study", lambda _: quick)
    done = run("demo --workers 1", says="12 small networks learn handwritten digits: 3 losses, 2 seeds, 2 folds")
    for shown in ("Cross-entropy", "Focal 3", "limit if", "1,797 test images", "seeds"):
        assert shown in done.stdout
    page = Path("calibrant-runs", "report.html").read_text()
    assert "used to fit the temperature (1×)" in page
    assert page.index("<figure") < page.index("<table") < page.index("<details"), "the page opens on a picture"
    assert "those of seed 0" in page, "figures of one seed stand beside means of all"
