"""The command line as a whole: help, errors as one sentence with an exit code, output that nobody reads, and methods."""

import inspect
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from tests.cli.conftest import Run, some_logits

import calibrant
from calibrant.cli import main
from calibrant.cli.terminal import put
from calibrant.operate import Monitor

HEAVY = {*["torch", "numpy", "scipy", "numba", "matplotlib", "pyarrow", "jinja2", "sklearn", "pandas", "safetensors"]}
EVERY_HELP = """
import sys, time
from calibrant.cli import main
for words in (["--help"], ["--version"], *([name, "--help"] for name in NAMES)):
    try:
        main(words, prog_name="calibrant")
    except SystemExit as end:
        assert end.code == 0, words
print(*{name.partition(".")[0] for name in sys.modules}, file=sys.stderr)
"""


def process(*words: str, **settings: Any) -> Any:
    """Run a Python process with this package."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **settings.pop("env", {})}
    return subprocess.run([sys.executable, *words], env=environment, capture_output=True, check=False, **settings)


def test_help_loads_no_library_of_numbers() -> None:
    done = process("-c", EVERY_HELP.replace("NAMES", repr([*main.commands])), text=True)
    assert done.returncode == 0, done.stderr
    assert set(done.stderr.split()) & HEAVY == set()
    assert f"calibrant {calibrant.__version__}\n" in done.stdout
    assert all(f"\n  {name} " in done.stdout for name in main.commands)
    assert "on handwritten digits; an interrupted demo resumes." in " ".join(done.stdout.split())


def test_a_crash_and_an_interrupt_are_one_sentence(good: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, code, said in (
        (ZeroDivisionError("by hand"), 70, "failed with ZeroDivisionError: by hand (mock.py, line "),
        (KeyboardInterrupt, 130, "stopped before the end; only what was finished is kept"),
    ):
        monkeypatch.setattr("calibrant.data.io.read_contents", Mock(side_effect=error))
        assert run("evaluate good.npz", code=code, says=said).stderr.strip().count("\n") == 0


SPOILED: dict[str, tuple[Any, str]] = {
    "pickled": (lambda a: a | {"x": np.array([{}], dtype=object)}, "no arrays of numbers or text"),
    "nan": (lambda a: a | {"val_logits": np.full((400, 4), np.nan)}, "bad.npz, row 0: the score in 'val_logits' is missing"),
    "label of no class": (lambda a: a | {"val_labels": np.full(400, 4)}, "the label is '4' in row 0; it must be an"),
    "unknown names": (lambda a: {"scores": a["val_logits"]}, "cannot tell which arrays are scores. Arrays: scores. Use --columns"),
}  # fmt: skip


@pytest.mark.parametrize("fault", SPOILED)
def test_bad_files_are_refused_and_nothing_is_written(fault: str, arrays: Any, fitted: Path, run: Run) -> None:
    spoil, said = SPOILED[fault]
    np.savez("bad.npz", **spoil(arrays))
    before = sorted(Path().iterdir())
    lines = ["evaluate bad.npz", "fit bad.npz -o o.safetensors", "report bad.npz -o o.html"]
    for line in [*lines, *["apply c.safetensors bad.npz -o o.npz"] * ("label" not in fault)]:
        run(line, code=2, says=said)
    assert sorted(Path().iterdir()) == before


WRONG = {
    "evaluate nothere.npz": "no such file: nothere.npz",
    "evaluate wide.npz --calibrator c.safetensors": "logits of shape (N, 4) as in fit",
    "evaluate good.npz --metric ece": "--metric 'ece' is unknown; did you mean ECE?",
    "evaluate good.npz --metric 'ECE:binning=EqualMass(x)'": "--metric 'ECE:binning=EqualMass(x)' has an unknown option or a wrong value",
    "evaluate": "name a FILE of predictions, or an example: --example cifar10",
    "evalute": "No such command 'evalute'",
    "fit good.npz": "Missing option '--output'",
    "fit good.npz -o nofolder/o.safetensors": "no such folder",
    "fit good.npz -m Chain -o o.safetensors": "--method Chain needs arguments or steps that the command line does not have",
    "fit good.npz -m MultiLabelCalibrator -o o.safetensors": "does not have; use --multilabel",
    "fit good.npz -m PriorShift -o o.safetensors": "does not have; fit and save it in Python",
    "fit good.npz -m GroupScaling -o o.safetensors": "GroupScaling needs features; name columns of good.npz with --features",
    "report good.npz -c c.safetensors --split val -o o.html": "expected data that were not used for fitting",
    "compare none c.safetensors": "'none' means no calibrator; name the FILE",
    "evaluate c.safetensors": "c.safetensors holds a calibrator or a monitor; name a file of predictions here",
    "evaluate good.npz --drws 5": "No such option",
    "watch none.safetensors": "start it with --reference FILE",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_call_is_told_what_to_change(line: str, fitted: Path, run: Run) -> None:
    np.savez("wide.npz", logits=np.ones((7, 8)), labels=np.zeros(7, int))
    before = sorted(Path().iterdir())
    run(line, code=2, says=WRONG[line])
    assert sorted(Path().iterdir()) == before


# Commands with the file that each writes last, and every file that is read.
OUTPUTS = {
    "fit good.npz -m TemperatureScaling -o": ("good.npz",),
    "apply c.safetensors good.npz -o": ("c.safetensors", "good.npz"),
    "report good.npz other.npz -c c.safetensors -o": ("good.npz", "other.npz", "c.safetensors"),
    "report z.npy --kind logits --labels y.npy -o": ("z.npy", "y.npy"),
    "export c.safetensors -o": ("c.safetensors",),
}


@pytest.mark.parametrize("line", OUTPUTS)
def test_no_output_destroys_what_is_read_by_whatever_link(line: str, fitted: Path, run: Run) -> None:
    logits, labels = some_logits(rows=60)
    np.save("z.npy", logits)
    np.save("y.npy", labels)
    Path("other.npz").write_bytes(Path("good.npz").read_bytes())
    for name in OUTPUTS[line]:
        os.link(name, "link")
        before = Path(name).read_bytes()
        run(f"{line} link", code=2, says="expected an output other than the input")
        assert Path(name).read_bytes() == before
        Path("link").unlink()


PLACES: dict[str, Any] = {
    "folder": Path.mkdir,
    "link to itself": lambda place: place.symlink_to(place.name),
    "empty": lambda place: place.write_bytes(b""),
}
if os.name == "posix":  # Windows has no pipes among its files
    PLACES["pipe"] = os.mkfifo


@pytest.mark.parametrize("kind", PLACES)
def test_whatever_lies_at_a_name_is_refused_without_waiting(kind: str, fitted: Path, run: Run) -> None:
    for name in ("x.npz", "x.safetensors", "x.npy", "x.csv"):
        PLACES[kind](Path(name))
    lines = ["check good.npz --baseline x.npz --no-worse nll=.1", "evaluate good.npz -c x.safetensors"]
    lines += ["evaluate good.npz --labels x.npy", "watch s.safetensors --reference x.npz"]
    for line in [*lines, *["evaluate x.csv", "apply c.safetensors x.csv -o o.csv"] * (kind != "folder")]:
        run(line, code=2)


def test_methods_lists_what_can_be_made(run: Run) -> None:
    listed = run("methods --json")
    for family in ("losses", "calibrators", "metrics"):
        found = [getattr(getattr(calibrant, family), entry["name"]) for entry in listed[family]]
        assert all(isinstance(one, type) and not inspect.isabstract(one) for one in found)
        assert all(entry["what"] for entry in listed[family])
    sources = {entry["name"]: entry["source"] for entry in listed["calibrators"]}
    assert sources["IsotonicCalibration"] == "Zadrozny & Elkan 2002"
    assert "FocalLoss" not in run("methods calibrators").stdout


def test_a_terminal_obeys_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    put("a\x1b[2J\u202eb\x9b\nc")
    assert capsys.readouterr().out == "a�[2J�b�\nc\n"


@pytest.mark.slow
def test_a_process_answers_whoever_reads(fitted: Path, home: Path) -> None:
    calibrant.operate.Monitor(calibrant.read("good.npz", split="val")).save("s.safetensors")
    for words, code in (
        ("check good.npz --max ece=.01", 1),
        ("check good.npz --max ece=.9 --json", 0),
        ("watch s.safetensors", 0),
    ):
        line = f"{sys.executable} -m calibrant {words} | true; exit ${{PIPESTATUS[0]}}"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        assert subprocess.run(["bash", "-c", line], env=environment).returncode == code, words
    odd = home / "größe.npz"
    odd.write_bytes(Path("good.npz").read_bytes())
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    shown = process("-m", "calibrant", "evaluate", odd.name, "--draws", "0", "--json", env=ascii_only).stdout
    assert json.loads(shown.decode("ascii"))["rows"][0]["file"] == odd.name
    done = process("-m", "calibrant", *shlex.split("fit nothere.npz -o o.safetensors"), text=True)
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (2, 1, "")
    assert isinstance(Monitor.load("s.safetensors"), Monitor)
