"""What each command prints and writes on good input."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cli.conftest import Run
from tests.contracts.test_calibrators import FAMILY, make
from tests.draws import drawn
from tests.stability import commands
from typer.core import TyperCommand

import calibrant
from calibrant.cli._calibrators import calibrator_facts
from calibrant.cli._options import Inputs
from calibrant.metrics import ECE, NLL, Accuracy


def with_features(name: str) -> calibrant.calibrators.Calibrator:
    """Return a fitted one, by a feature if it takes any."""
    calibrator = make(name)
    beside = {"features": {"region": torch.arange(240) % 2}} if calibrator.needs_features else {}
    return calibrator.fit(*drawn(240), **beside)


KEYS = {"file", "split", "calibrator", "metric", "value", "low", "high", "null_high", "n"}


def test_evaluate_prints_a_table_for_each_split(good: Path, run: Run) -> None:
    done = run("evaluate", good, code=0)
    assert [f"· {split} · n = 400" in done.stdout for split in ("val", "test")] == [True, True]
    shown = f"{100 * Accuracy()(calibrant.read(good, split='test')):.2f}"
    assert shown in done.stdout


def test_evaluate_json_holds_what_the_library_computes(good: Path, run: Run) -> None:
    rows = json.loads(run("evaluate", good, "--json").stdout)["rows"]
    assert all(set(row) == KEYS for row in rows)
    data = calibrant.read(good, split="test")
    for metric in (Accuracy(), NLL(), ECE()):
        row = next(row for row in rows if row["split"] == "test" and row["metric"] == repr(metric))
        assert row["value"] == metric(data)
        assert (row["calibrator"], row["n"], row["file"]) == (None, 400, str(good))
    ece = next(row for row in rows if row["metric"] == repr(ECE()))
    assert 0 <= ece["low"] <= ece["value"] <= ece["high"]
    assert 0 < ece["null_high"] < 0.1
    accuracy = next(row for row in rows if row["metric"] == repr(Accuracy()))
    assert accuracy["low"] < accuracy["value"] < accuracy["high"]
    rows = json.loads(run("evaluate", good, "--draws", 0, "--json").stdout)["rows"]
    assert {row[key] for row in rows for key in ("low", "high", "null_high")} == {None}


def test_evaluate_measures_after_a_calibrator_too(good: Path, fitted: Path, run: Run) -> None:
    rows = json.loads(run("evaluate", good, "--split", "test", "-c", fitted, "--json").stdout)
    by = {(row["calibrator"], row["metric"]): row["value"] for row in rows["rows"]}
    calibrator = calibrant.load(fitted)
    assert by[repr(calibrator), repr(ECE())] < by[None, repr(ECE())] / 2
    assert rows["fitted"]["learned"]["temperature"] == calibrator.temperature
    table = run("evaluate", good, "-c", fitted)
    assert "val: the calibrator was fitted on these rows" in " ".join(table.stdout.split())
    assert "test: the calibrator was fitted" not in table.stdout


def test_an_infinite_loss_is_null_in_json_and_warned_of(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "zeros.npz"
    np.savez(path, probs=np.array([[1.0, 0.0], [0.5, 0.5]]), labels=np.array([1, 0]))
    done = run("evaluate", path, "--json", "--draws", 0)
    rows = json.loads(done.stdout)["rows"]
    assert next(row for row in rows if row["metric"] == "NLL()")["value"] is None
    assert done.stderr.startswith("warning: ")
    assert "∞" in run("evaluate", path, "--draws", 0).stdout


@pytest.mark.parametrize("name", FAMILY)
def test_what_was_fitted_is_said_in_json_whatever_the_method(name: str) -> None:
    said = calibrator_facts(with_features(name))
    assert json.loads(json.dumps(said, allow_nan=False))["type"] == name


def test_fit_saves_what_the_library_fits_and_says_where_it_was_judged(good: Path, run: Run) -> None:
    line = "fit good.npz --method TemperatureScaling -o c.safetensors"
    text = " ".join(run(line).stdout.split())
    expected = calibrant.calibrators.TemperatureScaling().fit(calibrant.read(good, split="val"))
    assert calibrant.load("c.safetensors").temperature == expected.temperature
    assert [name for name in ("These are the 400 rows", "Accuracy", "NLL", "ECE") if name not in text] == []
    shown = json.loads(run(line, "--json").stdout)
    assert (shown["fitted"]["type"], shown["fitted"]["split"]) == ("TemperatureScaling", "val")
    assert 2 < shown["fitted"]["learned"]["temperature"] < 4
    assert {row["calibrator"] is None for row in shown["rows"]} == {True, False}


def test_methods_lists_every_exported_name(run: Run) -> None:
    listed = json.loads(run("methods", "--json").stdout)
    for family in ("losses", "calibrators", "metrics"):
        methods = getattr(calibrant, family)
        concrete = [name for name in methods.__all__ if not inspect.isabstract(getattr(methods, name))]
        assert [entry["name"] for entry in listed[family]] == concrete
        assert all(entry["what"] for entry in listed[family])
    sources = {entry["name"]: entry["source"] for entry in listed["calibrators"]}
    assert sources["BetaCalibration"] == "Kull et al. 2017"
    assert sources["IsotonicCalibration"] == "Zadrozny & Elkan 2002"
    assert sources["PlattScaling"] == "Platt 1999"
    table = run("methods", "calibrator").stdout
    assert "TemperatureScaling" in table
    assert "Guo et al. 2017" in table
    assert "FocalLoss" not in table
    run("methods", "metrcs", code=2, says="did you mean metrics?")


def test_version_and_help(run: Run) -> None:
    assert run("--version").stdout.strip() == f"calibrant {calibrant.__version__}"
    for command in ("evaluate", "fit", "apply", "methods"):
        text = run(command, "--help").stdout
        assert "Examples" in text
        assert f"calibrant {command}" in text


def test_an_interrupt_is_one_sentence(good: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Inputs, "contents", interrupted)
    assert run("evaluate", good, code=130).stderr == "error: stopped before the end; only what was finished is kept\n"


def test_fit_chooses_by_itself_and_says_why(good: Path, tmp_path: Path, run: Run) -> None:
    done = run("fit", good, "-o", tmp_path / "c.safetensors", code=0)
    assert "auto: " in done.stdout
    assert "TemperatureScaling" in done.stdout
    shown = json.loads(run("fit", good, "-m", "auto", "-o", tmp_path / "c.safetensors", "--json").stdout)["fitted"]
    assert shown["type"] == "AutoCalibrator"
    assert shown["evidence"]["rows"] == 400
    assert "\n" not in shown["repr"]
    rows = json.loads(run("evaluate", good, "-c", tmp_path / "c.safetensors", "--json").stdout)["rows"]
    assert {row["calibrator"] for row in rows} == {None, shown["repr"]}


@pytest.mark.parametrize(
    ("words", "answers"),
    [
        ("fit x.npz --method Temperature", ["TemperatureScaling"]),
        ("report --example ci", ["cifar10"]),
        ("study show sst --scale c", ["cpu"]),
    ],
)
def test_the_shell_completes(words: str, answers: list[str]) -> None:
    from typer.testing import CliRunner

    from calibrant.cli import main

    asked = {
        "_CALIBRANT_COMPLETE": "complete_bash",
        "COMP_WORDS": f"calibrant {words}",
        "COMP_CWORD": str(len(words.split())),
    }
    done = CliRunner().invoke(main, [], env=asked, prog_name="calibrant")
    assert done.stdout.splitlines() == answers


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_a_crash_of_ours_is_one_sentence_and_exit_code_70(name: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise ZeroDivisionError("by hand")

    monkeypatch.setattr(TyperCommand, "parse_args", lambda *_: [])
    monkeypatch.setattr(TyperCommand, "invoke", crash)
    done = run(*name.split(), code=70)  # not 1, which "check" and "watch" mean something by
    assert len(done.stderr.splitlines()) == 1
    assert "got ZeroDivisionError: by hand (test_commands.py, line " in done.stderr
    monkeypatch.setenv("CALIBRANT_TRACEBACK", "1")
    run(*name.split(), says="Traceback (most recent call last)")


IN_TURN = """
import json, sys
from calibrant.cli import main
for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit as end:
        assert not end.code, (words, end.code)
"""


def test_a_terminal_of_ascii_gets_all_but_the_letters_it_lacks_and_a_pipe_its_bytes(
    good: Path, fitted: Path, tmp_path: Path
) -> None:
    odd = tmp_path / "größe.npz"
    odd.write_bytes(good.read_bytes())
    plain = ["evaluate", str(odd), "--draws", "0"]
    calls = [["evaluate", "--help"], plain, [*plain, "--json"], ["apply", str(fitted), "-", "-o", "-"]]
    command = [sys.executable, "-c", IN_TURN, json.dumps(calls)]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, input=good.read_bytes(), env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    written, magic, rest = done.stdout.partition(b"PK\x03\x04")
    said = written.decode("ascii")
    assert json.loads(said[said.rindex("\n{") :])["rows"][0]["file"] == str(odd)
    (tmp_path / "out.npz").write_bytes(magic + rest)
    assert len(calibrant.read(tmp_path / "out.npz", split="val")) == 400


@pytest.mark.slow
def test_the_numbers_of_the_theory_are_printed_and_its_figures_drawn(run: Run, tmp_path: Path) -> None:
    done = run("study", "show", "theory", "--figures", tmp_path / "new" / "folder", "--json", code=0)
    found = {one["name"]: one["facts"] for one in json.loads(done.stdout)["figures"]}
    assert found["bounds"]["proven_low_gamma_4"] == 0.2
    written = {path.name for path in (tmp_path / "new" / "folder").iterdir()}
    assert written == {f"{name}.{ending}" for name in found for ending in ("svg", "png")}


def test_two_files(good: Path, tmp_path: Path, arrays: dict[str, np.ndarray], run: Run) -> None:
    better = tmp_path / "better.npz"
    np.savez(better, test_logits=arrays["test_logits"] / 3, test_labels=arrays["test_labels"])
    done = run("compare", good, better, code=0)
    assert "B is better than A" in done.stdout
    shown = json.loads(run("compare", good, better, "--json").stdout)
    assert [row["winner"] for row in shown["rows"]][1] == "b"
    assert shown["verdict"] in " ".join(done.stdout.split()) or shown["verdict"].startswith("B is better")


def test_two_calibrators_on_one_file(good: Path, fitted: Path, run: Run) -> None:
    run("compare none", fitted, good, "--split", "val", code=2)  # the calibrator was fitted on val
    assert "B is better than A" in run("compare", "none", fitted, good, code=0).stdout


def test_other_rows_and_other_classes_are_refused(good: Path, tmp_path: Path, run: Run) -> None:
    other, arrays = tmp_path / "other.npz", dict(np.load(good))
    np.savez(other, logits=np.random.default_rng(0).normal(size=(7, 4)), labels=np.zeros(7, int))
    run("compare", good, other, code=2, says="same rows")
    wider = np.concatenate([arrays["test_logits"], arrays["test_logits"][:, :1]], axis=1)
    np.savez(other, test_logits=wider, test_labels=arrays["test_labels"])
    run("compare", good, other, code=2, says="expected A and B over the same classes, got K = ")


def test_a_calibrator_without_data_says_how_to_name_them(fitted: Path, run: Run) -> None:
    said = "error: 'none' stands for no calibrator; name the FILE that the other is applied to"
    run("compare", "none", fitted, code=2, says=said)
