"""``calibrant check``: exit codes, JSON, and the action that puts it into a pipeline."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import Run

from calibrant import Predictions, save_predictions

ROOT = Path(__file__).parents[2]


def test_exit_codes_say_the_verdict(good: Path, run: Run) -> None:
    run("check", good, "--max", "ece=.9", code=0)
    run("check", good, "--max", "ece=.01", code=1)
    undecided = run("check", good, "--min", "accuracy=.6", "--max", "error=.4")
    assert (undecided.exit_code, undecided.stdout.split()[-3:]) == (3, ["not", "enough", "evidence"])
    run("check", good, "--max", "nll=.4", code=2)


def test_features_of_the_rows_are_columns(tmp_path: Path, run: Run) -> None:
    rng = np.random.default_rng(0)
    labels, region = rng.integers(0, 2, 400), np.array(["a", "b"] * 200)
    data = Predictions.from_probs(np.full((400, 2), 0.5), labels, features={"region": region})
    save_predictions(tmp_path / "p.npz", {"val": data, "test": data})
    done = run("check", tmp_path / "p.npz", "--by", "region", "--max", "worst-group-ece=.4", code=0)
    assert "region = " in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--max ece", "--max 'ece' is not METRIC=NUMBER"),
        ("--max ece=.5 --max 'ece = .1'", "--max limits ece twice; keep one of them"),
        ("--max worst-group-ece=.1 --by region", "has no column 'region'. Columns:"),
    ],
)
def test_a_mistake_is_one_sentence(good: Path, run: Run, arguments: str, message: str) -> None:
    run(f"check {good} {arguments}", code=2, says=message)


def test_a_calibrator_is_not_checked_on_the_rows_it_was_fitted_on(good: Path, fitted: Path, run: Run) -> None:
    run("check", good, "-c", fitted, "--max", "ece=.2", code=0)
    run("check", good, "-c", fitted, "--split", "val", "--max", "ece=.2", code=2)


def test_the_action_installs_its_own_checkout() -> None:
    yaml = pytest.importorskip("yaml", reason="optional package 'yaml' is not installed")
    install = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"][0]
    script = install["run"].replace("python -m pip install --quiet", "printf %s")
    for given, installed in (("", "/checkout"), ("calibrant==1.0", "calibrant==1.0")):
        environment = {"INSTALL": given, "GITHUB_ACTION_PATH": "/checkout", "PATH": os.environ["PATH"]}
        assert (
            subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True).stdout == installed
        )


def test_json_holds_each_limit_and_groups_and_a_baseline_are_checked(
    good: Path, arrays: dict[str, np.ndarray], tmp_path: Path, run: Run
) -> None:
    path = tmp_path / "with.npz"
    np.savez(path, **arrays, test_region=np.array(["a", "b"] * 200))
    words = ["--by", "region", "--max", "worst-group-error=.9", "--no-worse", "brier=.05", "--baseline", good, "--json"]
    shown = json.loads(run("check", path, *words, code=0).stdout)
    assert [line["verdict"] for line in shown["lines"]] == ["pass", "pass"]
    assert [line["name"] for line in shown["lines"]] == [
        "worst-group-error ≤ 0.9", "brier no worse than the baseline + 0.05"
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "printed"),
    [
        ("--max ece=.9\n--min accuracy=.999\n--split test\n", 1, "| accuracy ≥ 0.999 | fail |"),  # of the second line,
        ('--max "ece=.9" --split "test"', 0, "| ece ≤ 0.9 | pass |"),
        ("--max ece=.9 --split 'test", 1, ""),  # an open quote: nothing is checked with a limit left out,
        ("$(touch made) `touch made` ; touch made", 2, ""),
    ],
)
def test_the_action_runs_its_own_script(arguments: str, code: int, printed: str, good: Path, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="optional package 'yaml' is not installed")
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    step = action["runs"]["steps"][-1]
    assert (set(action["inputs"]), set(step["env"])) == ({"arguments", "install"}, {"ARGUMENTS"})
    file, summary, script = tmp_path / "$(touch made);\n '.npz", tmp_path / "summary.md", tmp_path / "step.py"
    shutil.copy(good, file)
    script.write_text(step["run"])
    environment = {
        **os.environ,
        "ARGUMENTS": f"{shlex.quote(str(file))} {arguments}",
        "GITHUB_STEP_SUMMARY": str(summary),
        "PYTHONPATH": str(ROOT / "src"),
    }
    command = [sys.executable, *step["shell"].replace("{0}", str(script)).split()[1:]]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert summary.exists() == bool(printed)
    assert not printed or printed in summary.read_text()
    assert list(tmp_path.glob("made")) == []


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", "--json"])
def test_the_verdict_stays_where_the_reader_of_the_output_has_left(more: str, good: Path) -> None:
    line = f"{sys.executable} -m calibrant check {shlex.quote(str(good))} --max ece=.01 {more} | true; exit ${{PIPESTATUS[0]}}"
    assert subprocess.run(["bash", "-c", line], env={**os.environ, "PYTHONPATH": str(ROOT / "src")}).returncode == 1
