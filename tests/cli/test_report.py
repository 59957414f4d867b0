"""``calibrant report``: what is fitted, what is shown, on which rows, and commands that run as they are printed."""

import html
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.conftest import Run, some_logits

import calibrant
from calibrant import MultiLabel, read, save_predictions
from calibrant.calibrators import TemperatureScaling
from calibrant.metrics import ECE


def shown() -> Any:
    return json.loads(Path("r.json").read_text())


def ece_of(found: Any) -> dict[str | None, float]:
    return {row["calibrator"]: row["value"] for row in found["rows"] if row["metric"] == repr(ECE())}


def test_it_fits_on_val_and_shows_test(good: Path, run: Run) -> None:
    printed = " ".join(run("report good.npz -m TemperatureScaling -o r.json").stdout.split())
    val, test = read(good, split="val"), read(good, split="test")
    calibrator = TemperatureScaling().fit(val)
    assert ece_of(shown()) == {None: ECE()(test), repr(calibrator): ECE()(test.calibrated_by(calibrator))}
    (model,) = shown()["models"]
    assert printed == f"good: {model['verdict_before']['headline']}. {model['advice']['headline']}"


def test_what_is_fitted_follows_from_rows_and_options(fitted: Path, run: Run) -> None:
    save_predictions("few.npz", read("good.npz", split="test")[:199])
    for words, expected in (
        ("few.npz", None),
        ("good.npz -m none", None),
        ("good.npz -c c.safetensors", repr(calibrant.load(fitted))),
    ):
        run(f"report {words} -o r.json")
        assert shown()["models"][0]["calibrator"] == expected
    run("report good.npz -o r.json")
    model = shown()["models"][0]
    assert model["calibrator"].startswith("AutoCalibrator(")
    assert model["evidence"]["trials"][0]["name"].startswith("Identity")
    run("report few.npz -m VectorScaling -o o.json", code=2, says="few.npz has no other rows to fit VectorScaling on")


def test_a_file_without_splits_is_cut_into_halves(good: Path, arrays: dict[str, np.ndarray], run: Run) -> None:
    test = read(good, split="test")
    save_predictions("one.npz", test)
    run("report one.npz -m TemperatureScaling -o r.json")
    said = "one.npz has no splits: the calibrator was fitted on a random half of it, 200 rows, and the figures are"
    assert shown()["notes"][0].startswith(said)
    fit = torch.from_numpy(np.random.default_rng(0).permutation(400) % 2 == 0)
    calibrator = TemperatureScaling().fit(test[fit])
    assert ece_of(shown()) == {None: ECE()(test[~fit]), repr(calibrator): ECE()(test[~fit].calibrated_by(calibrator))}
    groups = np.arange(400) // 4
    np.savez("one.npz", logits=arrays["test_logits"], labels=arrays["test_labels"], groups=groups)
    run("report one.npz -m TemperatureScaling -o r.json")
    rest = torch.from_numpy(~(np.random.default_rng(0).permutation(100) % 2 == 0)[groups])
    assert ece_of(shown())[None] == ECE()(test[rest]), "a group is in one half"


def test_many_models_of_one_name_are_called_by_their_folders(good: Path, run: Run) -> None:
    for folder in ("one", "two"):
        Path(folder).mkdir()
        Path(folder, "preds.npz").write_bytes(good.read_bytes())
    run("report one/preds.npz two/preds.npz -m none -o r.json")
    assert [model["name"] for model in shown()["models"]] == ["one/preds.npz", "two/preds.npz"]
    run("report one/preds.npz two/preds.npz -m none -o r.html")
    assert [f'id="model-{i}"' in Path("r.html").read_text() for i in (1, 2, 3)] == [True, True, False]


def test_columns_and_classes_have_the_names_of_the_file(arrays: dict[str, np.ndarray], home: Path, run: Run) -> None:
    region, age = np.array(["north", "south"])[np.arange(400) % 2], np.arange(400) % 60
    names = ["ant", "bee", "cat", "dog"]
    np.savez("g.npz", **arrays, test_region=region, val_region=region, test_age=age, val_age=age, class_names=names)
    run("report g.npz -m none --by region,age -o r.json")
    model = shown()["models"][0]
    expected = calibrant.evaluate.subgroups(read("g.npz", split="test"), {"region": region, "age": age})
    assert model["groups"]["columns"] == ["region", "age"]
    found = [row["p_adjusted"] for row in model["groups"]["before"]["rows"]]
    assert found == [row.p_adjusted for row in expected.rows]
    assert {part["name"] for part in model["classes"]} == {*names}
    run("report g.npz -m none --by town -o o.json", code=2, says="g.npz has no column 'town'")
    run("report g.npz -m none --by none -o r.json")
    assert shown()["models"][0].get("groups") is None


def table(path: str, head: str, *columns: Any) -> None:
    """Write a table whose last column holds the labels, which new rows lack."""
    lines = [head, *(",".join(map(str, row)) for row in zip(*columns, strict=True))]
    Path(path).write_text("\n".join(line.rpartition(",")[0] if path == "new.csv" else line for line in lines) + "\n")


# What reads the first file of each kind.
READING = {
    "labels of their own": "mine.csv --columns score --kind probs --labels mine-labels.csv --on id",
    "splits": "mine.npz",
    "groups of a table": "mine.csv --columns score --label churned --kind probs --by region_code",
    "several labels": "mine.npz --multilabel",
}


def write_files(kind: str) -> None:
    """Write files of one shape: to report on, to fit on, and fresh rows."""
    for seed, path in enumerate(("mine.csv", "other.csv", "new.csv")):
        rng = np.random.default_rng(seed)
        score, site = rng.random(1500), rng.integers(0, 2, 1500)
        if kind == "labels of their own":
            happened = np.where(rng.random(1500) < score**2, "yes", "no")
            table(path.replace(".", "-labels."), "id,churned", range(1500), happened)
            Path(path).write_text("\n".join(["id,score", *(f"{k},{p:.9f}" for k, p in enumerate(score))]))
        elif kind == "groups of a table":  # of numbers, in a column that nothing marks as a feature
            happened = (rng.random(1500) < score * np.where(site, 0.5, 1.0)).astype(int)
            table(path, "score,region_code,churned", score.tolist(), site.tolist(), happened.tolist())
    if kind == "splits":
        (val, val_y), (test, test_y) = some_logits(seed=1), some_logits(seed=2)
        np.savez("mine.npz", val_logits=val, val_labels=val_y, test_logits=test, test_labels=test_y)
        np.savez("new.npz", logits=some_logits(seed=3)[0])
    elif kind == "several labels":
        rng = np.random.default_rng(0)
        z = rng.normal(size=(3, 400, 3))
        y = (rng.random(z.shape) < 1 / (1 + np.exp(-z))).astype(np.int64)
        parts = {name: MultiLabel.from_logits(2 * z[k], y[k]) for k, name in enumerate(("val", "test"))}
        save_predictions("mine.npz", parts)
        np.savez("new.npz", logits=2 * z[2])


@pytest.mark.parametrize("kind", READING)
def test_the_three_commands_run_as_printed(kind: str, home: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """From another folder than the file's, on other rows beside it; some kinds of file have no splits."""
    elsewhere, data = home / "elsewhere", home / "data of -- mine"
    elsewhere.mkdir()
    data.mkdir()
    monkeypatch.chdir(elsewhere)
    write_files(kind)
    for path in Path().glob("mine*"):
        path.rename(data / path)
    words = [f"../{data.name}/{word}" if word.startswith("mine") else word for word in READING[kind].split()]
    run("report", *words, "-o", "r.html")
    page = Path("r.html").read_text()
    assert page.index('class="advice"') < page.index("<table"), "the first screen says what to do"
    assert "script-src 'sha256-" in page
    assert ("robabilities of churned = 1 are" in page) is (kind == "groups of a table")
    assert ("After GroupScaling" in page) is kind.startswith("groups"), "what is recommended is fitted"
    printed = re.findall(r"<dd><code>(<span>calibrant<.*?)</code></dd>", page)
    commands = [html.unescape(re.sub(r"<[^>]+>", "", code)) for code in printed]
    assert len(commands) == 3
    assert ("--features" in commands[0]) is kind.startswith("groups")
    assert ("fit other" in commands[0]) is ("csv" in READING[kind]), "labelled rows other than these"
    for command in commands[:2]:
        run(*shlex.split(command)[1:])
    monkeypatch.setattr("calibrant.cli.operate.CODES", dict.fromkeys(("pass", "fail", "not enough evidence"), 0))
    run(*shlex.split(commands[2])[1:])
