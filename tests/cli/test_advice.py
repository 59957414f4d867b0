"""Advice that can be followed: a refusal names options with their dashes, and only those that the command, or one it names, has.

The fixture ``run`` of all tests here holds every refusal to the second half; this page brings the refusals about.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import Run, options_of, unknown_advice, write_good_files
from tests.cli.test_options import LINES, answer, commands, write_judged

from calibrant.cli._application import owners_of

ONE_FILE = {
    "evaluate": ["FILE"],
    "fit": ["FILE", "-o", "new.safetensors"],
    "apply": ["c.safetensors", "FILE", "-o", "new.npz"],
    "report": ["FILE", "-o", "new.html"],
    "compare": ["FILE", "FILE"],
    "check": ["FILE", "--max", "ece=.2"],
    "plan": ["FILE", "--ece", ".1"],
    "decide": ["FILE", "--coverage", ".8"],
    "sample": ["FILE", "--budget", "20", "-o", "new.csv"],
    "audit": ["FILE", "labelled.csv"],
    "estimate": ["FILE", "--reference", "FILE"],
    "watch": ["new.safetensors", "--reference", "FILE"],
    "convert": ["FILE", "new.csv"],
    "inspect": ["FILE"],
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good file, a saved calibrator and state, a log, and files that are of another kind than they seem."""
    place = tmp_path_factory.mktemp("advice")
    write_good_files(place)
    (place / "log.jsonl").write_text("\n".join(map(answer, range(8))))
    write_judged(place)
    rng = np.random.default_rng(0)
    p, several = rng.random((40, 4)), rng.integers(0, 2, (40, 4))
    one = rng.integers(0, 4, 40)
    whole = p / p.sum(axis=1, keepdims=True)
    np.savez(place / "several.npz", probs=p, labels=several)
    np.savez(place / "sums.npz", probs=p, labels=one)
    np.savez(place / "rounded.npz", probs=whole.round(2), labels=one)
    np.savez(place / "matrix.npz", logits=3 * rng.standard_normal((40, 4)), labels=several)
    np.savez(place / "as-logits.npz", logits=whole, labels=one)
    np.savez(place / "as-probs.npz", probs=5 * p, labels=one)
    np.savez(place / "unlabelled.npz", probs=whole)
    np.savez(place / "unknown.npz", scores=whole)
    np.savez(place / "outside.npz", probs=whole, labels=one + 4)
    np.save(place / "bare.npy", whole)
    header, rows = "p0,p1,p2,p3,y,z", np.column_stack([whole.round(6), one, one])
    np.savetxt(place / "table.csv", rows, delimiter=",", header=header, comments="")
    return place


FAULTY = sorted(["several", "sums", "rounded", "matrix", "as-logits", "as-probs", "unlabelled", "unknown", "outside"])
FILES = [*(f"{name}.npz" for name in FAULTY), "bare.npy", "table.csv", "missing.npz", "."]


@pytest.mark.parametrize("command", ONE_FILE)
@pytest.mark.parametrize(
    "file", [f if f in {"several.npz", "sums.npz", "."} else pytest.param(f, marks=pytest.mark.slow) for f in FILES]
)
def test_a_file_of_another_kind_is_refused_with_what_this_command_has(
    command: str, file: str, home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    done = run(command, *[file if word == "FILE" else word for word in ONE_FILE[command]])
    assert done.exit_code in (0, 2, 3), done.output
    if file in {"several.npz", "sums.npz"}:
        advice = "add --multilabel" if "--multilabel" in options_of(command) else "a command with --multilabel ("
        assert advice in done.stderr, done.stderr
    for new in home.glob("new.*"):
        new.unlink()


def test_the_commands_that_have_an_option_are_those_that_are_named() -> None:
    assert owners_of("--multilabel") == ["evaluate", "fit", "apply", "report"]


@pytest.mark.parametrize(
    ("words", "said", "wrong"),
    [
        (["check", "x"], "error: expected a, got b; add --multilabel", ["--multilabel"]),
        (["check", "x"], "error: expected a, got --multilabel; leave it out", []),
        (["fit", "x"], "error: expected a, got b; add --multilabel", []),
        (
            ["check", "x"],
            "error: expected a, got b; use a command with --multilabel (evaluate, plan)",
            ["--multilabel"],
        ),
        (["plan"], "error: expected a, got b; run: calibrant evaluate x --metric ECE", []),
        (["plan"], "error: expected a, got b; run: calibrant compare x --metric ECE", ["--metric"]),
        (["study", "run", "x"], "error: expected a, got b; name one by --split", ["--split"]),
    ],
)
def test_advice_that_cannot_be_followed_is_found(words: list[str], said: str, wrong: list[str]) -> None:
    assert unknown_advice(words, said) == wrong


def numbers() -> Iterator[Any]:
    """Yield (command, option) of every number that a command takes."""
    for name, command in commands():
        for parameter in command.params:
            # Typer below 0.20 has the types of click
            kind = parameter.bare_type() if hasattr(parameter, "bare_type") else parameter.type.name
            if parameter.param_type_name == "option" and kind.startswith(("int", "float")):
                yield pytest.param(name, max(parameter.opts, key=len), id=f"{name} {parameter.name}")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "option"), list(numbers()))
def test_a_number_out_of_range_is_refused_by_its_options_name(
    name: str, option: str, home: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    base = LINES["plan"][1].split() if name == "plan" else ONE_FILE.get(name) or LINES[name][0].split()
    more = {"--scale": ["--as", "verbalized"], "--low": ["--as", "rating"], "--high": ["--as", "rating"]}
    words = [{"FILE": "a.npz", "STATE": "state.safetensors"}.get(w, w).replace("OUT", str(tmp_path)) for w in base]
    if name == "ingest" and option in more:
        words = ["log.jsonl", str(tmp_path / "out.npz"), "--from", "openai", *more[option]]
    said = []
    for value in ("-1", "0", "99999999999999999999", "nan"):
        done = run(*name.split(), *words, f"{option}={value}")
        assert done.exit_code in (0, 1, 2, 3), done.output
        if done.exit_code == 2:
            said.append(done.stderr)
            bare = re.search(r"expected (\w+) (?:as an? |in [\[(]|or )", done.stderr)
            assert bare is None or f"--{bare[1]}" not in options_of(name), (value, done.stderr)
    assert any(re.search(rf"{option}\b", one) for one in said), said
    for new in home.glob("new.*"):
        new.unlink()


@pytest.mark.parametrize("by", [["region,region"], ["region", "region"], ["region, age,region"]])
@pytest.mark.parametrize("command", ["evaluate", "report", "check", "watch"])
def test_a_column_that_is_named_twice_is_refused(
    command: str, by: list[str], home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    words = ["a.npz" if word == "FILE" else word for word in ONE_FILE[command]]
    done = run(command, *words, *(word for one in by for word in ("--by", one)))
    assert (done.exit_code, done.stderr) == (
        2,
        "error: expected each column once for --by, got 'region' twice; name it once\n",
    )


def test_labels_that_are_all_missing_are_said_as_what_a_file_holds(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    np.savez("no-label.npz", probs=np.full((4, 3), 0.3), labels=np.full((4, 3), -1))
    done = run("evaluate", "no-label.npz", "--multilabel", code=2)
    assert done.stderr.endswith("got -1 (missing) everywhere; evaluate rows with known labels, 1 or 0\n"), done.stderr
