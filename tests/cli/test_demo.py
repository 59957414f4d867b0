"""``calibrant demo`` on a study of a moment: table, report, JSON, and that nothing is trained twice."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import needs
from typer.testing import CliRunner

from calibrant.cli import main
from calibrant.study import Study, load_study

pytestmark = needs("lightning")


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def small(name: str) -> Study:
        study = load_study(name)
        plan = {**study.training, "epochs": 2}
        setting = replace(study.settings[0], data={**study.settings[0].data, "folds": 2})
        return replace(study, seeds=(0, 1), training=plan, settings=(setting,))

    monkeypatch.setattr("calibrant.study.load_study", small)
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
    lines = [line for line in done.stderr.splitlines() if "  T " in line]
    assert [line.split("/")[0].strip() for line in lines] == [str(number) for number in range(1, 13)]
    assert max(map(len, done.stdout.splitlines())) <= 80 + len(str(tmp_path))
    assert "report.html" in done.stdout.replace("\n", "")  # a long path is wrapped
    text = (tmp_path / "report.html").read_text()
    assert "Cross-entropy" in text
    assert "used to fit the temperature (1×)" in text
    first = text.index("<figure")
    assert first < text.index("<table"), "the page opens on a picture"
    assert text.index("<table") < text.index("<details")
    assert "All models" not in text  # one table, whose figures agree


@pytest.mark.slow
def test_a_second_demo_trains_nothing_and_prints_json_alone(demo: Any, tmp_path: Path) -> None:
    demo()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("record.json")}
    done = demo("--json")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("record.json")} == before
    shown = json.loads(done.stdout)
    assert {(row["objective"], row["seed"]) for row in shown["rows"]} == {
        (objective, seed) for objective in ("Cross-entropy", "Label smoothing .05", "Focal 3") for seed in (0, 1)
    }
    assert all(row["value"] >= 0 and row["n"] == 1797 for row in shown["rows"])
    assert {"claim", "source", "setting", "seen", "verdict", "p", "p_unpaired"} == set(shown["claims"][0])


def test_a_store_that_is_a_file_is_one_sentence_and_code_2(demo: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = demo("--store", str(tmp_path / "file"))
    assert done.exit_code == 2
    assert "expected a writable store" in done.stderr
    assert done.stdout == ""
