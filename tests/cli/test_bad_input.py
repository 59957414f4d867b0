"""Whatever is wrong with a person's input: one sentence (expected, got, remedy), exit code 2, and nothing written."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from scipy.special import softmax
from tests.cli.conftest import Run, in_one_sentence

import calibrant
from calibrant.calibrators import TemperatureScaling
from calibrant.cli import main
from calibrant.errors import InputError

Arrays = dict[str, np.ndarray]


# What the arrays of a good file become.
SPOILED: dict[str, Callable[[Arrays], Arrays]] = {
    "truncated": lambda a: a,
    "pickled": lambda a: a | {"extra": np.array([{"a": 1}], dtype=object)},
    "nan": lambda a: a | {"val_logits": np.where(np.arange(400)[:, None] == 7, np.nan, a["val_logits"])},
    "label_of_no_class": lambda a: (
        a | {"val_logits": np.tile(a["val_logits"], 3)[:, :10], "val_labels": np.where(np.arange(400) == 3, 10, 1)}
    ),
    "empty": lambda a: a | {"val_logits": a["val_logits"][:0], "val_labels": a["val_labels"][:0]},
    "one_class": lambda a: a | {"val_logits": a["val_logits"][:, :1], "val_labels": a["val_labels"] * 0},
    "probs_as_logits": lambda a: a | {"val_logits": softmax(a["val_logits"], axis=1)},
    "logits_as_probs": lambda a: {"val_probs": a["val_logits"], "val_labels": a["val_labels"]},
    "unlabelled": lambda a: {name: values for name, values in a.items() if "labels" not in name},
    "unknown_names": lambda a: {"scores": a["val_logits"]},
}


def write_spoiled(path: Path, name: str, arrays: Arrays) -> None:
    if name != "missing":
        np.savez(path, **SPOILED[name](arrays))
    if name == "truncated":
        path.write_bytes(path.read_bytes()[:3000])


BAD = {
    "missing": r"expected a file, got no such file: .*bad\.npz; check the path",
    "truncated": r"expected a readable \.npz file, got a broken one: .*; write it again",
    "pickled": r"expected a readable \.npz file, got a broken one: .*Object arrays cannot be loaded",
    "nan": r"bad\.npz, row 7: the score in 'val_logits' is missing or NaN",
    "label_of_no_class": r"split 'val': expected labels in \[0, 10\), got 10 in row 3; ",
    "empty": r"split 'val': expected at least one row of logits, got an empty split; ",
    "one_class": r"split 'val': expected logits with K ≥ 2 classes, got K = 1; ",
    "probs_as_logits": r"split 'val': expected logits, got rows that .* are probabilities; use from_probs",
    "logits_as_probs": r"split 'val': expected probabilities in \[0, 1\], got .* in row 0; use from_logits",
    "unlabelled": r"(cannot tell which array holds the labels|expected labelled predictions, got unlabelled ones)",
    "unknown_names": r"bad.npz: cannot tell which array holds the scores. Arrays: scores. Say --columns",
}


OUTPUTS = {"fit": ".safetensors", "report": ".html", "apply": ".npz"}


def assert_refused(done: Any, match: str) -> None:
    """Check code 2, an empty stdout, and one matching sentence on stderr without traceback."""
    assert done.exit_code == 2, done.output
    assert in_one_sentence(done), done.output
    assert done.stderr.count("\n") == 1, done.stderr
    assert re.search(match, done.stderr), done.stderr


@pytest.mark.parametrize("fault", BAD)
@pytest.mark.parametrize("command", ["evaluate", "fit", "report", "apply"])
def test_bad_files_are_refused(
    command: str, fault: str, tmp_path: Path, arrays: Arrays, fitted: Path, run: Run
) -> None:
    path, output = tmp_path / "bad.npz", tmp_path / f"out{OUTPUTS.get(command, '')}"
    write_spoiled(path, fault, arrays)
    before = sorted(tmp_path.iterdir())
    if command != "apply" or "label" not in fault:  # which reads no labels
        words = [*([fitted] if command == "apply" else []), path, *(["-o", output] if command in OUTPUTS else [])]
        assert_refused(run(command, *words), BAD[fault])
    assert sorted(tmp_path.iterdir()) == before


def test_apply_refuses_other_classes_than_fitted(tmp_path: Path, arrays: Arrays, fitted: Path, run: Run) -> None:
    path, output = tmp_path / "wide.npz", tmp_path / "out.npz"
    np.savez(path, logits=np.tile(arrays["test_logits"], (1, 2)), labels=arrays["test_labels"])
    match = r"expected .*logits of shape \(N, 4\) as in fit, got .*\(400, 8\); "
    assert_refused(run("apply", fitted, path, "-o", output), match)
    assert_refused(run("evaluate", path, "--calibrator", fitted), match)
    assert not output.exists()


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("fit good.npz -o c.pickle", r"expected a name that ends in \.safetensors"),
        (
            "report --example cifar10 --example=sst -o page.html",
            "expected --example once, got it 2 times; keep one of them",
        ),
        (
            "fit good.npz --method temperaturescaling -o o.safetensors",
            "expected --method to be one of .*, got 'temperaturescaling'; did you mean TemperatureScaling",
        ),
        (
            "fit good.npz --method GroupScaling --features labels -o o.safetensors",
            "good.npz: 'labels' holds scores or labels, so it can be no feature",
        ),
        ("fit good.npz --method Chain -o o.safetensors", "a method that needs no arguments, got Chain; construct"),
        ("evaluate good.npz --metric ECE:bins=abc", "error: expected bins as an integer"),
        ("evalute", "expected arguments as in calibrant.* --help, got no such .*evaluate"),
        ("watch", r"missing argument '(state'; add state: the state \(.safetensors\)|STATE'; correct them)"),
    ],
)
def test_a_wrong_call_is_told_what_to_change(line: str, match: str, fitted: Path, home: Path, run: Run) -> None:
    before = sorted(home.iterdir())
    assert_refused(run(line), match)
    assert sorted(home.iterdir()) == before


def test_an_empty_stdin_is_refused(run: Run) -> None:
    assert_refused(run("evaluate", "-", input=b""), "expected predictions on stdin, got nothing; ")
    assert_refused(run("evaluate", "-", input=b"no such thing"), "stdin.csv has a header and no rows")


class OwnScaling(TemperatureScaling):
    """A calibrator that the command line does not know."""


def test_a_calibrator_of_a_class_of_ones_own_is_used_from_python(good: Path, tmp_path: Path, run: Run) -> None:
    path = tmp_path / "own.safetensors"
    OwnScaling().fit(torch.eye(3) * 2, [0, 1, 1]).save(path)
    refusal = r"expected a class of calibrant.calibrators, got 'OwnScaling' in .*own.safetensors; "
    done = run("evaluate", good, "--calibrator", path)
    assert_refused(done, refusal + r"load it in Python with calibrant.load\(path, classes=\[OwnScaling\]\)")
    with pytest.raises(InputError, match=refusal + r"load it in Python"):
        calibrant.load(path)
    assert isinstance(calibrant.load(path, classes=[OwnScaling]), OwnScaling)


@pytest.mark.parametrize(
    "fault", ["missing", *(pytest.param(fault, marks=pytest.mark.slow) for fault in ("nan", "probs_as_logits"))]
)
def test_the_installed_command_says_the_same(fault: str, tmp_path: Path, arrays: Arrays) -> None:
    write_spoiled(tmp_path / "bad.npz", fault, arrays)
    command = [sys.executable, "-m", "calibrant", "fit", "bad.npz", "-o", "c.safetensors"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ)
    done.exit_code = done.returncode
    assert_refused(done, BAD[fault])
    assert not (tmp_path / "c.safetensors").exists()


# A call of each command that reads or writes files, every input there; what each call lacks is made below.
CALLS = {
    "evaluate": "f.npz",
    "fit": "f.npz -o o.safetensors",
    "apply": "c.safetensors f.npz -o o.npz",
    "compare": "f.npz g.npz",
    "check": "f.npz --max ece=.2",
    "watch": "s.safetensors f.npz",
    "report": "f.npz -o o.html",
    "export": "c.safetensors -o o.onnx",
}

THERE = ("f.npz", "g.npz", "c.safetensors", "l.csv", "t.csv")

OF_INPUTS = ("--kind nope", "--labels nothere", "--logits g.npz")

MORE = """
fit f.npz -o o.safetensors --method Nope
fit f.npz -o o.npz
fit f.npz -o o.safetensors --multilabel --features a
fit f.npz -o o.safetensors --keep x
fit f.npz -o - --json
fit -o o.safetensors
fit f.npz --example cifar10 -o o.safetensors
fit f.npz
report f.npz --method Nope
report f.npz --method auto -c c.safetensors
report f.npz --format pdf
report f.npz --multilabel --by a
evaluate
evaluate --example nope
evaluate f.npz --metric Nope
evaluate f.npz --draws -1
evaluate f.npz --multilabel --by a
check f.npz
check f.npz --baseline nothere --no-worse nll=.1
apply c.safetensors f.npz -o o.npz --as probs
export c.safetensors -o o.txt
methods x
demo --workers 0
study list --nope
"""

BLOCKED = """
import contextlib, io, json, sys, time

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("torch is blocked")

sys.meta_path.insert(0, Blocked())
from calibrant.cli import main

for words in json.load(sys.stdin):
    said, start, code = io.StringIO(), time.process_time(), 0
    with contextlib.redirect_stderr(said):
        try:
            main(words)
        except SystemExit as left:
            code = left.code
    print(json.dumps([words, code, said.getvalue(), time.process_time() - start]))
"""


def faults() -> list[list[str]]:
    """Return calls that are to be refused: a file that is missing, a place that cannot be written, an input overwritten …"""
    found = [shlex.split(line) for line in MORE.strip().splitlines()]
    for command, text in CALLS.items():
        words = shlex.split(text)
        changed = {word: ("nothere" + Path(word).suffix,) for word in words if word in THERE}
        inputs = next(word for word in words if word in THERE)
        changed |= {word: ("nofolder/" + word, inputs) for word in words if word.startswith("o.")}
        for old, others in changed.items():
            found += [[command, *(other if word == old else word for word in words)] for other in others]
        found.append([command, *words, "--nope"])
        if command not in ("export",):
            found += [[command, *words, *shlex.split(option)] for option in OF_INPUTS]
    return found


def test_every_command_refuses_before_pytorch_loads(tmp_path: Path) -> None:
    calls = faults()
    commands = typer.main.get_command(main).commands
    assert {words[0] for words in calls} == set(commands)
    for name in THERE:
        (tmp_path / name).write_text("id,label\n1,a\n")
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(outcomes) == len(calls)
    for words, code, said, seconds in outcomes:
        assert code == 2, (words, said)
        assert said.startswith("error: "), (words, said)
        assert said.count("\n") == 1, (words, said)
        assert seconds < 1, (words, seconds)  # of CPU
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(THERE)
