"""``calibrant study``: list, run, show, on a study of a moment."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.cli.conftest import Run
from tests.cli.test_study_files import TEXT as WHOLE
from tests.conftest import needs
from tests.report.kinds import small_study
from tests.study.test_run import TEXT as SMALL
from typer.testing import CliRunner

from calibrant.cli import main
from calibrant.study import Claim, load_study
from calibrant.study.load import presets
from calibrant.study.page import verdict_sentences
from calibrant.study.tables import verdict_on_claim

pytestmark = needs("lightning")

TEXT = SMALL.replace('title = "t"', 'title = "A small study"')

TEXT += """
[[claims]]
text = "focal loss is less sure"
source = "a paper"
measure = "temperature"
falls = ["CE", "Focal"]
[[published]]
objective = "CE"
measure = "ece"
value = 0.0435
[[published]]
objective = "Focal"
measure = "ece"
value = 0.02
[[figures]]
name = "epochs"
title = "ECE by epoch"
kind = "trajectory"
panels = [["test.ece"]]
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(TEXT)
    return path


def test_a_study_is_run_and_shown_with_the_paper_beside_it(run: Run, small: Path, tmp_path: Path) -> None:
    store = tmp_path / "runs"
    small.write_text(TEXT.replace("seeds = [0, 1]", "seeds = [3]"))
    dry = run("study", "run", small, "--store", store, "--dry-run")
    assert "4 trainings, 0 of them finished" in dry.stdout
    assert "data: digits (with scikit-learn)" in dry.stdout
    assert not store.exists()
    done = run("study", "run", small, "--store", store, "--accelerator", "cpu", code=0)
    for shown in ("A small study", "Beside the paper", "4.35 /", "focal loss is less sure"):
        assert shown in done.stdout
    assert "Orderings of the paper that agree in ECE [small]: " in " ".join(done.stdout.split())
    assert "After each calibrator" not in done.stdout
    record, report, figures = tmp_path / "record.json", tmp_path / "report.html", tmp_path / "figures"
    places = ("--figures", figures, "--record", record, "--report", report)
    whole = run("study", "show", small, "--store", store, "--columns", "all", *places)
    assert "After each calibrator" in whole.stdout
    assert "Other calibration errors" in whole.stdout
    assert sorted(path.name for path in figures.iterdir()) == ["epochs.png", "epochs.svg"]
    shown = json.loads(run("study", "show", small, "--store", store, "--json").stdout)
    assert {(row["objective"], row["seed"]) for row in shown["rows"]} == {("CE", 3), ("Focal", 3)}
    kept = json.loads(record.read_text())
    assert [f["n"] for f in kept["figures"]] == [1797] * 2
    assert kept["provenance"]["devices"] == ["cpu"]
    assert kept["claims"][0]["text"] == "focal loss is less sure"
    assert "A small study" in report.read_text()
    assert 'src="data:image/svg+xml;base64,' in report.read_text()


def test_part_of_a_study_may_be_run(run: Run, small: Path, tmp_path: Path) -> None:
    options = ("--store", tmp_path / "runs", "--dry-run")
    assert "2 trainings" in run("study", "run", small, "--seeds", 1, "--only", "Focal", *options).stdout
    assert "20 trainings" in run("study", "run", small, "--seeds", 5, *options).stdout  # 2 objectives, 2 folds
    run("study", "run", small, "--only", "Brier", *options, code=2, says="expected objectives of")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "nothing"), "expected a study of"),
        (("run", "digits", "--address", "auto"), "got --address for a call without --executor ray"),
        (
            ("show", "digits", "--figures", "new", "--report", "nowhere/a.html"),
            "expected a writable place, got no such folder",
        ),
        (("show", "digits", "--figures", __file__), "expected a folder to write into"),
        (("show", "digits"), "expected finished runs of 'digits'"),
    ],
)
def test_mistakes_are_one_sentence_and_code_2(run: Run, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    assert run("study", *arguments, "--store", tmp_path / "runs", code=2, says=said).stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_of_all_studies_counts_a_shared_training_once(
    run: Run, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calibrant.study.presets", lambda: [str(small), str(small)])
    dry = run("study", "run", "--all", "--dry-run", "--store", tmp_path / "runs")
    assert dry.stdout.splitlines()[-1] == "all studies: 8 different trainings; shared ones are counted once"


def test_all_studies_run_and_a_broken_one_does_not_stop_the_others(
    run: Run, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = tmp_path / "lost.toml"
    lost.write_text(
        TEXT.replace('"small"', '"lost"', 1).replace(
            'name = "digits"', f'name = "cifar10", folder = "{tmp_path / "no"}"'
        )
    )
    monkeypatch.setattr("calibrant.study.presets", lambda: [str(lost), str(small)])
    options = ("--all", "--store", tmp_path / "runs", "--accelerator", "cpu")
    dry = run("study", "run", *options, "--dry-run", "--seeds", 1)
    assert dry.stdout.count("trainings, 0 of them finished") == 2
    assert "data missing" in dry.stderr
    done = run(
        "study", "run", *options, code=2, says="lost was not run: setting 'lost': expected fold in 0 … 0 of data set"
    )
    assert done.stdout == "small is finished: calibrant study show small\n"
    monkeypatch.setattr("calibrant.study.presets", lambda: [str(small)])
    again = run("study", "run", *options)
    assert (again.exit_code, again.stdout) == (0, done.stdout)
    for wrong in (("digits", "--all"), ("--all", "--only", "CE"), ()):
        refused = run("study", "run", *wrong, "--dry-run")
        assert (refused.exit_code, refused.stderr.count("expected")) == (2, 1)


def test_a_missing_device_is_named(run: Run, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = "expected a CUDA device for accelerator 'cuda', got none"
    run("study", "run", small, "--store", tmp_path / "runs", "--accelerator", "cuda", code=2, says=said)


PAPERS = [n for n in presets() if n.startswith(("wang-", "komisarenko-", "mukhoti-", "adafocal-", "report-"))]

SCALES = ["cpu", "gpu", "paper"]  # each table at one of them: tests/study/test_preflight.py builds it at all


@pytest.mark.parametrize(("name", "scale"), [(name, SCALES[-place % 3]) for place, name in enumerate(PAPERS)])
def test_a_table_of_a_paper_is_ready(run: Run, name: str, scale: str, tmp_path: Path) -> None:
    done = run("study", "run", name, "--scale", scale, "--seeds", 1, "--dry-run", "--store", tmp_path / "runs")
    cells = list(replace(load_study(name, scale=scale), seeds=(0,)).cells())
    assert done.stdout.startswith(f"{name} at scale {scale}: {len(cells)} trainings, 0 of them finished, 1 at a time")
    whole = load_study(name, scale="paper")
    places = {setting.label for setting in whole.settings} | {""}
    assert {figure.setting for figure in whole.published} <= places
    assert {figure.objective for figure in whole.published} <= {objective.label for objective in whole.objectives}


def test_the_verdicts_on_claims_are_counted_and_those_of_a_paper_printed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = json.loads(run("study", "claims", "--json", code=0).stdout)["claims"]
    assert [claim["number"] for claim in every] == list(range(1, len(every) + 1))
    mine = run("study", "claims", "--paper", "ghosh", code=0).stdout
    assert "AdaFocal leaves a lower ECE-EM than cross-entropy" in " ".join(mine.split())
    assert "paper: AdaFocal performs best for most data sets" in " ".join(mine.split())
    run("study", "claims", "--paper", "nobody", code=2, says="got 'nobody'")
    monkeypatch.setattr("calibrant.study.page.__file__", "/somewhere/site-packages/calibrant/study/page.py")
    run("study", "claims", code=2, says="in the folder papers/ of Calibrant's repository")


def test_the_presets_are_listed(run: Run) -> None:
    shown = json.loads(run("study", "list", "--json").stdout)
    assert shown["digits"].startswith("Handwritten digits")


def test_a_loss_beside_the_file_is_found(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])  # what a test adds to it goes again
    file = tmp_path / "beside" / "mine.toml"
    file.parent.mkdir()
    monkeypatch.chdir(tmp_path)
    file.write_text(WHOLE.replace('"FocalLoss", gamma = 3.0', '"loss_of_my_own:Doubled"'))
    lines = [
        "from torch import nn",
        "",
        "class Doubled(nn.CrossEntropyLoss):",
        "    def forward(self, logits, labels):",
    ]
    (file.parent / "loss_of_my_own.py").write_text(
        "\n".join([*lines, "        return 2 * super().forward(logits, labels)"])
    )
    assert "30 trainings" in run("study", "run", file, "--dry-run", "--store", tmp_path / "store", code=0).stdout


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("calibrant.study.load_study", small_study)
    store = ("--store", str(tmp_path))
    return lambda *options: CliRunner().invoke(
        main, ["demo", "--workers", "1", *(() if "--store" in options else store), *options]
    )


@pytest.mark.slow
def test_the_demo_shows_a_table_and_says_where_its_report_is(demo: Any, tmp_path: Path) -> None:
    done = demo()
    assert done.exit_code == 0, done.output
    for shown in ("Cross-entropy", "Focal 3", "by chance", "1,797 test images", "seeds"):
        assert shown in done.stdout
    assert "12 small networks learn handwritten digits: 3 losses, 2 seeds, 2 folds" in done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80 + len(str(tmp_path))
    assert "report.html" in done.stdout.replace("\n", "")  # a long path is wrapped
    text = (tmp_path / "report.html").read_text()
    assert "Cross-entropy" in text
    assert "used to fit the temperature (1×)" in text
    first = text.index("<figure")
    assert first < text.index("<table"), "the page opens on a picture"
    assert text.index("<table") < text.index("<details")
    assert "All models" not in text  # one table, whose figures agree


@pytest.mark.parametrize(
    ("ece", "temperature", "said"),
    [(0.084, 0.7, True), (0.084, 1.3, False), (0.02, 0.7, False)],
    ids=["the other way", "the same way", "within chance"],
)
def test_a_claim_says_if_the_lower_error_is_of_the_other_side(ece: float, temperature: float, said: bool) -> None:
    lines: list[Any] = [
        SimpleNamespace(setting="here", objective=name, mean={"ece": e, "temperature": t}, calibrated_high=0.028)
        for name, e, t in (("CE", 0.092, 2.4), ("LS", ece, temperature))
    ]
    values = [{0: e, 1: e + 0.001 * k} for k, e in enumerate((0.092, ece), start=1)]
    verdicts = [
        verdict_on_claim(Claim("LS is lower", "a paper", measure, ("CE", "LS")), "here", values)
        for measure in ("ece", "ece_at_t")
    ]
    first, at_t = verdict_sentences(verdicts, lines)
    assert ("; LS errs the other way, under-confident" in first) is said
    assert "errs" not in at_t
