"""``calibrant check`` and ``calibrant plan``: exit codes, outputs, and the files that put them into pipelines."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cli.conftest import Run, some_logits

from calibrant import Predictions, save_predictions
from calibrant.calibrators import TemperatureScaling

ROOT = Path(__file__).parents[2]


def test_exit_codes_say_the_verdict(good: Path, run: Run) -> None:
    run("check", good, "--max", "ece=.9", code=0)
    run("check", good, "--max", "ece=.01", code=1)
    undecided = run("check", good, "--min", "accuracy=.6", "--max", "error=.4")
    assert (undecided.exit_code, undecided.stdout.split()[-3:]) == (3, ["not", "enough", "evidence"])
    for choice, code in (("pass", 0), ("fail", 1)):
        run("check", good, "--max", "error=.4", "--inconclusive", choice, code=code)
    run("check", good, "--max", "nll=.4", code=2)


def test_policy_groups_and_all_outputs(good: Path, arrays: dict[str, np.ndarray], tmp_path: Path, run: Run) -> None:
    path, policy = tmp_path / "with.npz", tmp_path / "policy.toml"
    np.savez(path, **arrays, test_region=np.array(["a", "b"] * 200))
    policy.write_text('by = ["region"]\n[maximum]\n"worst-group-error" = 0.9\n[no_worse]\nbrier = 0.05\n')
    junit, markdown = tmp_path / "gate.xml", tmp_path / "gate.md"
    arguments = ["check", path, "--policy", policy, "--baseline", good, "--junit", junit, "--markdown", markdown]
    shown = json.loads(run(*arguments, "--json", code=0).stdout)
    assert [line["verdict"] for line in shown["lines"]] == ["pass", "pass"]
    assert junit.read_text().startswith("<?xml")
    assert "✅ pass" in markdown.read_text()


def test_features_of_the_rows_are_columns(tmp_path: Path, run: Run) -> None:
    rng = np.random.default_rng(0)
    labels, region = rng.integers(0, 2, 400), np.array(["a", "b"] * 200)
    data = Predictions.from_probs(np.full((400, 2), 0.5), labels, features={"region": region})
    save_predictions(tmp_path / "p.npz", {"val": data, "test": data})
    done = run("check", tmp_path / "p.npz", "--by", "region", "--max", "worst-group-ece=.4", code=0)
    assert "region = " in " ".join(done.stdout.split())


def test_github_gets_a_summary_and_annotations(
    good: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    run("check", good, "--max", "ece=.01", says="::error title=ece ≤ 0.01::")
    assert "❌ fail" in (tmp_path / "summary.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--max ece", "expected --max METRIC=NUMBER, got 'ece'"),
        ("--max ece=.5 --max 'ece = .1'", "expected one --max of ece, got two; keep one of them"),
        ("--max worst-group-ece=.1", "--by"),
        ("--max worst-group-ece=.1 --by region", "expected the column 'region' in"),
        ("--no-worse nll=.1", "add --baseline, the predictions of the model before"),
        ("--policy nowhere.toml --max ece=.1", "got no such file: nowhere.toml"),
        ("", "add --max ece=.03"),
        ("--max ece=.1 --junit no/such/folder.xml", "no such folder"),
    ],
)
def test_a_mistake_is_one_sentence(good: Path, run: Run, arguments: str, message: str) -> None:
    run(f"check {good} {arguments}", code=2, says=message)


def test_a_calibrator_is_not_checked_on_the_rows_it_was_fitted_on(good: Path, fitted: Path, run: Run) -> None:
    run("check", good, "-c", fitted, "--max", "ece=.2", code=0)
    run("check", good, "-c", fitted, "--split", "val", "--max", "ece=.2", code=2)


def test_plan_prints_a_curve(good: Path, run: Run) -> None:
    done = run("plan", "--ece", ".1", "--accuracy", ".9", "--draws", "40", code=0)
    assert "labelled rows: a model with ECE 0 then passes ece ≤ 0.1" in " ".join(done.stdout.split())
    shown = json.loads(run("plan", good, "--ece", ".2", "--draws", "40", "--json").stdout)
    assert shown["curve"][-1]["rows"] == shown["rows"]
    run("plan", "--ece", ".03", "--true-ece", ".03", code=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "printed"),
    [
        ("--max ece=.01 --split test", 1, "ece ≤ 0.01"),
        (
            "--max ece=.9\n--min accuracy=.999\n--split test\n",
            1,
            "accuracy ≥ 0.999",
        ),  # a limit on the second line counts
        ('--max "ece=.9" --split "test"', 0, "ece ≤ 0.9"),
        ("--max ece=.9 --split 'test", 2, ""),  # an open quote: nothing is checked with a limit left out
        ("'' --max ece=.01 --split test", 2, ""),  # nor behind an empty word
        ("$(touch made) `touch made` ; touch made", 2, ""),
    ],
)
def test_the_action_runs_its_own_script(arguments: str, code: int, printed: str, good: Path, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="optional package 'yaml' is not installed")
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    step = action["runs"]["steps"][-1]
    assert set(action["inputs"]) >= {"file", "policy", "baseline", "arguments", "inconclusive"}
    file = tmp_path / "$(touch made);\n--max '.npz"
    shutil.copy(good, file)
    inputs = {"FILE": file, "POLICY": "", "BASELINE": "", "ARGUMENTS": arguments, "INCONCLUSIVE": "fail"}
    assert set(step["env"]) == set(inputs)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {
        **{name: str(value) for name, value in inputs.items()},
        "PATH": path,
        "PYTHONPATH": str(ROOT / "src"),
    }
    command = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert printed in done.stdout
    assert list(tmp_path.glob("made")) == []


def test_the_action_installs_its_own_checkout() -> None:
    yaml = pytest.importorskip("yaml", reason="optional package 'yaml' is not installed")
    install = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"][0]
    script = install["run"].replace("python -m pip install --quiet", "printf %s")
    for given, installed in (("", "/checkout"), ("calibrant==1.0", "calibrant==1.0")):
        environment = {"INSTALL": given, "GITHUB_ACTION_PATH": "/checkout", "PATH": os.environ["PATH"]}
        assert (
            subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True).stdout == installed
        )


def test_the_pre_commit_hook_names_a_command_that_exists(run: Run) -> None:
    yaml = pytest.importorskip("yaml", reason="optional package 'yaml' is not installed")
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["entry"] == "calibrant check"
    run(*hook["entry"].split()[1:], "--help", code=0)


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "code", "verdict"), [("0.9", 0, "Passed"), ("0.001", 1, "fail")])
def test_pre_commit_runs_the_hook_in_a_repository(
    good: Path, tmp_path: Path, limit: str, code: int, verdict: str
) -> None:
    """By pre-commit itself; only the environment is this one, where it would build one with the package in it."""
    yaml = pytest.importorskip("yaml", reason="optional package 'yaml' is not installed")
    pytest.importorskip("pre_commit", reason="optional package 'pre_commit' is not installed")
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    hook.update(language="system", args=[good.name, "--max", f"ece={limit}"])
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / good.name).write_bytes(good.read_bytes())
    (scratch / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": [{"repo": "local", "hooks": [hook]}]}))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {"PATH": path, "PYTHONPATH": str(ROOT / "src"), "HOME": str(tmp_path), "NO_COLOR": "1"}
    for command in (
        ["git", "init", "-q"],
        ["git", "add", "."],
        [sys.executable, "-m", "pre_commit", "run", "--all-files"],
    ):
        done = subprocess.run(command, cwd=scratch, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    assert verdict in done.stdout


@pytest.mark.parametrize("calibrated", [False, True])
def test_a_folder_of_chunks_is_checked_as_the_rows_in_memory(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calibrated: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("calibrant.scale.rows.PIECE_BYTES", 4 * 3 * 70)  # several pieces a file
    logits, labels = some_logits(rows=900, classes=3, seed=5)
    region = np.random.default_rng(0).choice(["north", "south"], 900)
    data = Predictions.from_logits(logits, labels, features={"region": region, "age": np.arange(900) % 3})
    Path("chunks").mkdir()
    for part, rows in enumerate(np.split(np.arange(900), [100, 500])):  # the first rows alone hold no south
        save_predictions(f"chunks/{part}.parquet", {"all": data[torch.from_numpy(rows)]})
    save_predictions("whole.parquet", {"all": data})
    Path("costs.csv").write_text("class,a,b\n0,0,1\n1,2,0\n2,5,1\n")
    other = some_logits(rows=400, classes=3, seed=9)
    TemperatureScaling().fit(*other).save("c.safetensors")
    limits = "--max ece=.05 --max brier=.6 --max error=.3 --min accuracy=.5 --by region,age --max worst-group-ece=.2"
    limits += " --min worst-group-accuracy=.4 --max cost-gap=.2 --costs costs.csv" + calibrated * " -c c.safetensors"
    chunks, whole = (run(f"check {name} {limits} --json") for name in ("chunks", "whole.parquet"))
    assert chunks.exit_code == whole.exit_code, chunks.output
    found, expected = (json.loads(done.stdout) for done in (chunks, whole))
    assert len(found["lines"]) == len(expected["lines"]) == 7
    for line, other_line in zip(found["lines"], expected["lines"], strict=True):
        assert line.keys() == other_line.keys()
        for key, value in other_line.items():
            assert line[key] == (pytest.approx(value, rel=1e-9, abs=1e-12) if isinstance(value, float) else value), key


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ("--no-worse brier=.1 --baseline chunks", "got --baseline and --no-worse for chunks, which is streamed"),
        ("--max ece=.1 --split val", "got --split for chunks, a folder without folders of splits"),
        ("--max worst-group-ece=.1 --by site", "expected a feature 'site' beside the rows"),
        ("--max ece=.1 --ignore-index 0", "got --ignore-index for chunks, which is streamed"),
        ("--max cost-gap=.1", "expected costs with a limit of cost-gap"),
    ],
)
def test_what_a_folder_of_chunks_cannot_be_checked_by_is_said(run: Run, home: Path, more: str, text: str) -> None:
    Path("chunks").mkdir()
    save_predictions("chunks/a.parquet", {"all": Predictions.from_logits(*some_logits(rows=50))})
    run(f"check chunks {more}", code=2, says=text)


def test_a_folder_of_rows_in_groups_is_checked_as_in_memory(run: Run, tmp_path: Path) -> None:
    logits, labels = some_logits(rows=600)
    limits = ["--max", "ece=.2", "--min", "accuracy=.5", "--json"]
    for name, groups in (("own", np.arange(600)[::-1].copy()), ("pairs", np.arange(600) % 300)):
        data = Predictions.from_logits(logits, labels, groups=groups)
        whole, folder = tmp_path / f"{name}.npz", tmp_path / name
        folder.mkdir()
        save_predictions(whole, {"test": data})
        for at in range(0, 600, 200):  # both rows of a pair lie in different files
            save_predictions(folder / f"{at}.parquet", {"all": data[at : at + 200]})
        done = [run("check", source, *limits, code=2 if name == "pairs" else None) for source in (whole, folder)]
        assert done[0].exit_code == done[1].exit_code
        if name == "pairs":
            for one in done:
                text = " ".join(one.stderr.split())
                assert "expected independent rows in predictions, got 600 rows of 300 groups" in text
        else:
            lines = [json.loads(one.stdout)["lines"] for one in done]
            assert [line["verdict"] for line in lines[0]] == [line["verdict"] for line in lines[1]]
            for one, other in zip(*lines, strict=True):
                assert one["low"] == pytest.approx(other["low"], rel=1e-9)
                assert one["high"] == pytest.approx(other["high"], rel=1e-9)


def test_a_folder_where_some_files_have_groups_is_refused(run: Run, tmp_path: Path) -> None:
    logits, labels = some_logits(rows=50)
    save_predictions(tmp_path / "a.parquet", {"all": Predictions.from_logits(logits, labels, groups=np.arange(50))})
    save_predictions(tmp_path / "b.parquet", {"all": Predictions.from_logits(logits, labels)})
    said = "expected groups in every file or in none, got them beside 50 of 100 rows"
    run("check", tmp_path, "--max", "ece=.1", code=2, says=said)
