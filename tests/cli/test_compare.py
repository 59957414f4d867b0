"""``calibrant compare``: two files, and two calibrators on one file."""

import json
from pathlib import Path
from typing import Any

import numpy as np


def test_two_files(good: Path, tmp_path: Path, arrays: dict[str, np.ndarray], run: Any) -> None:
    better = tmp_path / "better.npz"
    np.savez(better, test_logits=arrays["test_logits"] / 3, test_labels=arrays["test_labels"])
    done = run("compare", good, better, code=0)
    assert "B is better than A" in done.stdout
    shown = json.loads(run("compare", good, better, "--json").stdout)
    assert [row["winner"] for row in shown["rows"]][1] == "b"
    assert shown["verdict"] in " ".join(done.stdout.split()) or shown["verdict"].startswith("B is better")


def test_two_calibrators_on_one_file(good: Path, fitted: Path, run: Any) -> None:
    done = run("compare", "none", fitted, "--on", good, "--split", "val", code=2)  # the calibrator was fitted on val
    done = run("compare", "none", fitted, "--on", good, code=0)
    assert "B is better than A" in done.stdout


def test_other_rows_are_one_sentence_and_exit_code_2(good: Path, tmp_path: Path, run: Any) -> None:
    other = tmp_path / "other.npz"
    np.savez(other, logits=np.random.default_rng(0).normal(size=(7, 4)), labels=np.zeros(7, int))
    run("compare", good, other, code=2, says="same rows")


def test_other_classes_are_one_sentence_that_names_their_numbers(good: Path, tmp_path: Path, run: Any) -> None:
    arrays = dict(np.load(good))
    wider = np.concatenate([arrays["test_logits"], arrays["test_logits"][:, :1]], axis=1)
    np.savez(tmp_path / "wider.npz", test_logits=wider, test_labels=arrays["test_labels"])
    run("compare", good, tmp_path / "wider.npz", code=2, says="expected A and B over the same classes, got K = ")


def test_a_calibrator_without_data_says_how_to_name_them(fitted: Path, run: Any) -> None:
    done = run("compare", "none", fitted, code=2)
    assert done.stderr == "error: expected two files of predictions, got 'none' without --on; add --on PREDICTIONS\n"
