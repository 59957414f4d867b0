"""``calibrant check`` and ``watch``: exit codes, JSON, the state of a monitor, and the action that puts a check into a pipeline."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import Run
from tests.conftest import posix

from calibrant import load, read
from calibrant.calibrators import TemperatureScaling
from calibrant.operate import Monitor

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("limits", "code", "verdict"),
    [
        ("--max ece=.9", 0, "pass"),
        ("--max ece=.01 --min accuracy=.1", 1, "fail"),
        ("--min accuracy=.6 --max error=.4", 3, "not enough evidence"),
    ],
)
def test_the_exit_code_is_the_verdict(limits: str, code: int, verdict: str, good: Path, run: Run) -> None:
    assert run(f"check good.npz {limits}", code=code).stdout.splitlines()[-1] == verdict


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ("", "check needs at least one limit"),
        ("--max ece", "--max 'ece' is not METRIC=NUMBER; write for example --max ece=0.03"),
        ("--max ece=.03 --max ece=.05", "--max gives ece two limits, 0.03 and 0.05; leave one out"),
        ("--no-worse nll=.1", "predictions (`baseline=`, or `--baseline` on the command line)"),
        ("--max worst-group-ece=.1 --by region", "has no column 'region'. Columns:"),
        ("-c c.safetensors --split val --max ece=.2", "expected data that were not used for fitting"),
    ],
)
def test_a_wrong_limit_is_one_sentence(limits: str, said: str, fitted: Path, run: Run) -> None:
    run(f"check good.npz {limits}", code=2, says=said)


def test_groups_and_a_baseline_are_checked(good: Path, arrays: dict[str, np.ndarray], run: Run) -> None:
    region = np.array(["a", "b"] * 200)
    np.savez("with.npz", **arrays, test_region=region, val_region=region)
    line = "check with.npz --by region --max worst-group-error=.9 --no-worse brier=.05 --baseline good.npz"
    lines = run(f"{line} --json")["lines"]
    assert {line["name"]: line["verdict"] for line in lines} == {
        "worst-group-error ≤ 0.9": "pass", "brier no worse than the baseline + 0.05": "pass"
    }  # fmt: skip
    assert "region = " in " ".join(run(line).stdout.split())


def test_a_calibrator_comes_first(fitted: Path, run: Run) -> None:
    found = [run(f"check good.npz {more} --max ece=.9 --json") for more in ("", "-c c.safetensors")]
    before, after = (one["lines"][0]["value"] for one in found)
    assert after < before / 2


def save(name: str, *, rows: int, seed: int, sharp: float = 1.0) -> None:
    """Write labelled rows, calibrated where ``sharp`` is 1."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(rows, 3)) * 2
    np.savez(name, logits=(true * sharp).astype(np.float32), labels=(true + rng.gumbel(size=true.shape)).argmax(1))


@pytest.fixture
def state(home: Path, run: Run) -> Path:
    """The state of a monitor that was started on 1,500 calibrated rows."""
    save("reference.npz", rows=1500, seed=1)
    assert run("watch s.safetensors --reference reference.npz").stdout.startswith("quiet:")
    return Path("s.safetensors")


def test_quiet_then_alarm(state: Path, run: Run) -> None:
    save("good.npz", rows=500, seed=2)
    save("bad.npz", rows=800, seed=3, sharp=2.5)
    run("watch s.safetensors good.npz")
    shown = run("watch s.safetensors bad.npz --json", code=1)
    assert (shown["verdict"], shown["direction"], shown["rows"]) == ("alarm", "overconfident", 1300)
    assert 400 <= shown["since"] <= 600
    assert run("watch s.safetensors", code=1).stdout.startswith("alarm: overconfident since label ")
    before = state.read_bytes()
    run("watch s.safetensors bad.npz", code=2, says="this batch has already been added to the state")
    save("three.npz", rows=60, seed=8)
    run("watch s.safetensors --reference three.npz", code=2, says="from another reference")
    assert state.read_bytes() == before


def test_rows_of_the_fit_start_a_state_out_of_fold(home: Path, run: Run) -> None:
    save("fit.npz", rows=1000, seed=77)
    rows = read("fit.npz")
    TemperatureScaling().fit(rows).save("c.safetensors")
    for _ in range(2):  # the second time the state has this reference
        run("watch s.safetensors --reference fit.npz -c c.safetensors")
    assert Monitor.load("s.safetensors").watches(Monitor.from_fit(load("c.safetensors"), rows))
    assert not Monitor.load("s.safetensors").watches(Monitor(rows))
    save("new.npz", rows=600, seed=6, sharp=3.0)
    assert run("watch s.safetensors new.npz -c c.safetensors", code=1).stdout.startswith("alarm:")


def test_a_state_keeps_its_calibrator(home: Path, run: Run) -> None:
    for name, rows, seed in (("fit", 1000, 77), ("other", 1000, 78), ("new", 600, 6)):
        save(f"{name}.npz", rows=rows, seed=seed, sharp=3.0)
    for name in ("fit", "other"):
        TemperatureScaling().fit(read(f"{name}.npz")).save(f"{name}.safetensors")
    run("watch with.safetensors --reference fit.npz -c fit.safetensors")
    run("watch without.safetensors --reference fit.npz")
    before = {path: path.read_bytes() for path in home.glob("*.safetensors")}
    for line, said in (
        ("with.safetensors new.npz", "was started with a calibrator; apply it to the rows (--calibrator)"),
        ("with.safetensors new.npz -c other.safetensors", "was started with another calibrator"),
        ("without.safetensors new.npz -c fit.safetensors", "without a calibrator; apply none to the rows"),
    ):
        run(f"watch {line}", code=2, says=said)
    assert {path: path.read_bytes() for path in home.glob("*.safetensors")} == before
    for line in ("with.safetensors new.npz -c fit.safetensors", "without.safetensors new.npz", "with.safetensors"):
        assert run(f"watch {line}").stdout.startswith("quiet:")


@pytest.mark.slow
def test_writers_at_once_lose_no_batch_also_through_a_link(home: Path, state: Path) -> None:
    Path("other").mkdir()
    Path("other", "link.safetensors").symlink_to(home / state)
    watch = [sys.executable, "-m", "calibrant", "watch"]
    writers = []
    for seed, place in enumerate((state, Path("other", "link.safetensors")) * 2):
        save(f"{seed}.npz", rows=20, seed=seed)
        writers.append(subprocess.Popen([*watch, str(place), f"{seed}.npz"], stdout=subprocess.DEVNULL))
    while any(writer.poll() is None for writer in writers):
        assert (Monitor.load(state).status.rows or 0) % 20 == 0, "a reader sees whole states"
    assert all(writer.returncode in (0, 1) for writer in writers)
    assert Monitor.load(state).status.rows == 80


def action() -> Any:
    yaml = pytest.importorskip("yaml", reason="optional package 'yaml' is not installed")
    return yaml.safe_load((ROOT / "action.yml").read_text())


@posix
def test_the_action_installs_its_own_checkout() -> None:
    script = action()["runs"]["steps"][0]["run"].replace("python -m pip install --quiet", "printf %s")
    for given, installed in (("", "/checkout"), ("calibrant==1.0", "calibrant==1.0")):
        environment = {"INSTALL": given, "GITHUB_ACTION_PATH": "/checkout", "PATH": os.environ["PATH"]}
        done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True)
        assert done.stdout == installed


def test_the_workflow_on_the_page_uses_the_action() -> None:
    yaml = pytest.importorskip("yaml", reason="optional package 'yaml' is not installed")
    page = (ROOT / "docs" / "operate.md").read_text()
    workflow = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])
    steps = workflow["jobs"]["gate"]["steps"]
    assert steps[-1]["uses"] == f"./{steps[-2]['with']['path']}"
    assert steps[-1]["with"].keys() <= action()["inputs"].keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "printed"),
    [
        ("--max ece=.9\n--min accuracy=.999\n--split test\n", 1, "| accuracy ≥ 0.999 | fail |"),
        ("--min accuracy=.6 --split test", 3, "**not enough evidence** (exit code 3): the rows show neither"),
        ("--max ece=.9 --split 'test", 2, ""),  # an open quote: nothing is checked with a limit left out
        ("$(touch made) `touch made` ; touch made", 2, ""),
    ],
)
def test_the_action_runs_its_own_script(arguments: str, code: int, printed: str, good: Path, home: Path) -> None:
    step = action()["runs"]["steps"][-1]
    file, summary, script = home / "$(touch made);\n '.npz", home / "summary.md", home / "step.py"
    shutil.copy(good, file)
    script.write_text(step["run"])
    told = {"ARGUMENTS": f"{shlex.quote(str(file))} {arguments}", "GITHUB_STEP_SUMMARY": str(summary)}
    command = [sys.executable, *step["shell"].replace("{0}", str(script)).split()[1:]]
    environment = {**os.environ, **told, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert (printed in summary.read_text(encoding="utf-8")) if printed else not summary.exists()
    assert list(home.glob("made")) == []
