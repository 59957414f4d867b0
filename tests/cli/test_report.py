"""``calibrant report``: what is fitted, what is judged, and in which form."""

import html
import json
import math
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cli.conftest import Run, some_logits

import calibrant
from calibrant.metrics import ECE


def test_it_fits_on_val_and_judges_on_test(good: Path, tmp_path: Path, run: Run) -> None:
    run("report", good, "--method", "TemperatureScaling", "-o", tmp_path / "r.json", code=0)
    shown = json.loads((tmp_path / "r.json").read_text())
    val, test = calibrant.read(good, split="val"), calibrant.read(good, split="test")
    calibrator = calibrant.calibrators.TemperatureScaling().fit(val.logits, val.labels)
    values = {row["calibrator"]: row["value"] for row in shown["rows"] if row["metric"] == repr(ECE())}
    assert values == {None: ECE()(test), repr(calibrator): ECE()(test.calibrated_by(calibrator))}


def test_many_models_in_one_page(good: Path, tmp_path: Path, run: Run) -> None:
    files = [tmp_path / folder / "preds.npz" for folder in ("one", "two")]
    for file in files:
        file.parent.mkdir()
        file.write_bytes(good.read_bytes())
    run("report", *files, "-m", "none", "-o", tmp_path / "r.html", "--title", "Both", code=0)
    text = (tmp_path / "r.html").read_text()
    assert "<h1>Both</h1>" in text
    assert [f'id="model-{i}"' in text for i in (1, 2, 3)] == [True, True, False]
    run("report", *files, "-m", "none", "-o", tmp_path / "r.json", code=0)
    names = [model["name"] for model in json.loads((tmp_path / "r.json").read_text())["models"]]
    assert names == [str(file) for file in files], "of one name they are called by their folders"


def test_what_is_not_fitted_here(good: Path, fitted: Path, tmp_path: Path, run: Run) -> None:
    one = tmp_path / "one.npz"
    calibrant.save_predictions(one, {"all": calibrant.read(good, split="test")})
    few = tmp_path / "few.npz"
    calibrant.save_predictions(few, {"all": calibrant.read(good, split="test")[:199]})
    for words, expected in (
        ([one, "--method", "none"], None),
        ([few], None),
        ([good, "--method", "none"], None),
        ([good, "-c", fitted], repr(calibrant.load(fitted))),
    ):
        run("report", *words, "-o", tmp_path / "r.json", code=0)
        assert json.loads((tmp_path / "r.json").read_text())["models"][0]["calibrator"] == expected


def test_a_file_without_splits_is_cut_into_halves(
    good: Path, arrays: dict[str, np.ndarray], tmp_path: Path, run: Run
) -> None:
    one, page = tmp_path / "one.npz", tmp_path / "r.json"
    test = calibrant.read(good, split="test")
    calibrant.save_predictions(one, {"all": test})
    run("report", one, "--method", "TemperatureScaling", "-o", page, code=0)
    shown = json.loads(page.read_text())
    said = "one.npz has no splits: the calibrator was fitted on a random half of it, 200 rows, and the figures are"
    assert shown["notes"][0].startswith(said)
    fit = torch.from_numpy(np.random.default_rng(0).permutation(400) % 2 == 0)
    calibrator = calibrant.calibrators.TemperatureScaling().fit(test.logits[fit], test.labels[fit])
    values = {row["calibrator"]: row["value"] for row in shown["rows"] if row["metric"] == repr(ECE())}
    assert values == {None: ECE()(test[~fit]), repr(calibrator): ECE()(test[~fit].calibrated_by(calibrator))}
    groups = np.arange(400) // 4
    np.savez(one, logits=arrays["test_logits"], labels=arrays["test_labels"], groups=groups)
    run("report", one, "--method", "TemperatureScaling", "-o", page, code=0)
    rest = torch.from_numpy(~(np.random.default_rng(0).permutation(100) % 2 == 0)[groups])
    values = [row["value"] for row in json.loads(page.read_text())["rows"] if row["metric"] == repr(ECE())]
    assert values[0] == ECE()(test[rest]), "a group is in one half"


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--split", "expected data that were not fitted on"),
        ("--fit-split", "got --fit-split for a saved TemperatureScaling"),
    ],
)
def test_a_saved_calibrator_is_not_judged_on_its_rows_nor_fitted_on_others(
    option: str, said: str, good: Path, fitted: Path, tmp_path: Path, run: Run
) -> None:
    run("report", good, "-c", fitted, option, "val", "-o", tmp_path / "r.html", code=2, says=said)
    assert not (tmp_path / "r.html").exists()


def test_left_to_itself_it_chooses_and_says_why(arrays: dict[str, np.ndarray], run: Run, whole: None) -> None:
    np.savez("few.npz", **{name: values[:150] for name, values in arrays.items()})
    run("report few.npz -o r.html", code=0)
    text = Path("r.html").read_text()
    assert "candidates in use" in text
    assert "Candidates: cross-validated log-loss" in text
    run("report few.npz -o r.json", code=0)
    model = json.loads(Path("r.json").read_text())["models"][0]
    assert model["calibrator"].startswith("AutoCalibrator(")
    trials = model["evidence"]["trials"]
    assert trials[0]["name"].startswith("Identity")
    tried = sum(isinstance(trial["loss"], float) and math.isfinite(trial["loss"]) for trial in trials)
    assert f" of {tried} candidates in use" in text  # as many as its table has lines
    assert tried < len(trials)


def test_classes_have_the_names_of_the_file(arrays: dict[str, np.ndarray], tmp_path: Path, run: Run) -> None:
    np.savez(tmp_path / "named.npz", **arrays, class_names=["ant", "bee", "cat", "dog"])
    run("report", tmp_path / "named.npz", "-m", "none", "-o", tmp_path / "r.json", code=0)
    classes = json.loads((tmp_path / "r.json").read_text())["models"][0]["classes"]
    assert {part["name"] for part in classes} == {"ant", "bee", "cat", "dog"}
    run("report", tmp_path / "named.npz", "-m", "none", "-o", tmp_path / "r.html", code=0)
    text = (tmp_path / "r.html").read_text()
    assert {*re.findall(r'<th scope="row">(\w+)</th>', text)} >= {"ant", "bee", "cat", "dog"}


def test_columns_of_the_file_name_the_groups(arrays: dict[str, np.ndarray], tmp_path: Path, run: Run) -> None:
    path, place = tmp_path / "g.npz", tmp_path / "r.json"
    region = np.array(["north", "south"])[np.arange(400) % 2]
    np.savez(path, **arrays, test_region=region, val_region=region, test_age=np.arange(400) % 60)
    run("report", path, "--method", "none", "--by", "region,age", "-o", place, code=0)
    audit = json.loads(place.read_text())["models"][0]["for_whom"]
    measured = json.loads(run("evaluate", path, "--split", "test", "--by", "region,age", "--draws", 0, "--json").stdout)
    assert {"region=north", "age=59"} <= {row.get("group") for row in measured["rows"]}
    data = calibrant.read(path, split="test")
    found = calibrant.evaluate.subgroups(data, {"region": region, "age": np.arange(400) % 60})
    assert audit["columns"] == ["region", "age"]
    assert [row["p_adjusted"] for row in audit["before"]["rows"]] == [row.p_adjusted for row in found.rows]
    place.unlink()
    for by, words in (
        ("town", "g.npz has no column 'town'"),
        ("region,", "--by names columns once each, as in --by age,region; got 'region,'"),
    ):
        run("report", path, "--method", "none", "--by", by, "-o", place, code=2, says=words)
        assert not place.exists()


def table(place: str, head: str, scores: np.ndarray, labels: list[str]) -> None:
    """Write a table whose last column, the labels, new rows lack."""
    lines = [",".join([*(f"{v:.9f}" for v in row), label]) for row, label in zip(scores, labels, strict=True)]
    if place == "new.csv":
        head, lines = head.rpartition(",")[0], [line.rpartition(",")[0] for line in lines]
    Path(place).write_text("\n".join([head, *lines]) + "\n")


# What reads the first file of each kind.
READING = {
    "many classes": "mine.csv --columns p_* --label state --kind probs",
    "two classes": "mine.csv --columns score --label churned --kind probs",
    "labels of their own": "mine.csv --columns score --kind probs --labels mine-labels.csv --on id",
    "splits": "mine.npz",
    "groups": "mine.npz",
    "groups of a table": "mine.csv --columns score --label churned --kind probs --by region_code",
    "example": "--example cifar10 --method TemperatureScaling",
    "several labels": "mine.npz --multilabel",
}


def files_of(kind: str) -> list[str]:
    """Write files of one shape, to report on and fresh ones, and return what reads the first."""
    rng = np.random.default_rng(0)
    for place, seed in (("mine.csv", 1), ("other.csv", 2), ("new.csv", 3)):
        z, y = some_logits(seed=seed, rows=300)
        p = np.exp(z - z.max(1, keepdims=True)).astype(float)
        if kind == "many classes":
            table(place, "p_w,p_x,p_y,p_z,state", p / p.sum(1, keepdims=True), ["wxyz"[k] for k in y])
        elif kind == "two classes":
            score = 1 / (1 + np.exp(-z[:, :1].astype(float)))
            table(place, "score,churned", score, [str(int(x)) for x in rng.random(300) < score[:, 0] ** 2])
        elif kind == "labels of their own":
            score = rng.random(1500)
            happened = ["yes" if x else "no" for x in rng.random(1500) < score**2]
            Path(place).write_text("\n".join(["id,score", *(f"{k},{p:.9f}" for k, p in enumerate(score))]))
            lines = ["id,churned", *(f"{k},{word}" for k, word in enumerate(happened))]
            place == "new.csv" or Path(place.replace(".", "-labels.")).write_text("\n".join(lines))
        elif kind == "groups of a table":  # of numbers, in a column that nothing marks as a feature
            score, site = rng.random((1500, 1)), rng.integers(0, 2, (1500, 1))
            happened = rng.random(1500) < (score * np.where(site, 0.5, 1.0))[:, 0]
            table(place, "score,region_code,churned", np.hstack([score, site]), [str(int(x)) for x in happened])
    if kind == "splits":
        (val, val_y), (test, test_y) = some_logits(seed=1), some_logits(seed=2)
        np.savez("mine.npz", val_logits=val, val_labels=val_y, test_logits=test, test_labels=test_y)
        np.savez("new.npz", logits=some_logits(seed=3)[0])
    elif kind == "groups":
        z, site = rng.normal(size=(3, 1500)), rng.choice(["a", "b"], (3, 1500))
        y = (rng.random(z.shape) < 1 / (1 + np.exp(-z - np.where(site == "b", -1.0, 0.6)))).astype(np.int64)
        z = np.stack([0 * z, z], axis=-1)
        parts = {
            f"{part}_{what}": of[k]
            for k, part in enumerate(("val", "test"))
            for what, of in (("logits", z), ("labels", y), ("feature:site", site))
        }
        np.savez("mine.npz", **parts)
        np.savez("new.npz", **{"logits": z[2], "feature:site": site[2]})
    elif kind == "several labels":
        z = rng.normal(size=(3, 400, 3))
        y = (rng.random(z.shape) < 1 / (1 + np.exp(-z))).astype(np.int64)
        np.savez("mine.npz", val_logits=2 * z[0], val_labels=y[0], test_logits=2 * z[1], test_labels=y[1])
        np.savez("new.npz", logits=2 * z[2])
    elif kind == "example":
        np.savez("new.npz", logits=rng.normal(size=(9, 10)))
    return READING[kind].split()


def commands_of(page: str) -> list[str]:
    """Return the command lines that a page shows."""
    shown = re.findall(r"<dd><code>(<span>calibrant<.*?)</code></dd>", page)
    return [html.unescape(re.sub(r"<[^>]+>", "", code)) for code in shown]


# a page of each takes a second: the others are slow
QUICK = ("many classes", "labels of their own", "splits", "groups of a table")


@pytest.mark.parametrize("kind", [k if k in QUICK else pytest.param(k, marks=pytest.mark.slow) for k in READING])
def test_the_three_commands_can_be_run(kind: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """From another folder than the file's, on other rows beside it; two kinds of file have no splits."""
    elsewhere, data = (tmp_path / name for name in ("elsewhere", "data of -- mine"))
    elsewhere.mkdir()
    data.mkdir()
    monkeypatch.chdir(elsewhere)
    file, *options = files_of(kind)
    if file.startswith("mine"):
        for place in Path().glob("mine*"):
            place.rename(data / place)
        options = [f"../{data.name}/{word}" if word.startswith("mine") else word for word in options]
        file = str(data / file) if kind == "splits" else f"../{data.name}/{file}"
    run("report", file, *options, "-o", "r.html", code=0)
    page = Path("r.html").read_text()
    assert page.index('class="advice"') < page.index("<table")
    assert "script-src 'sha256-" in page
    assert ("robabilities of churned = 1 are" in page) is (kind in ("two classes", "groups of a table"))
    assert ("After GroupScaling" in page) is (kind in ("groups", "groups of a table")), (
        "what is recommended is fitted where rows allow it"
    )
    commands = commands_of(page)
    assert len(commands) == 3
    assert ("--features" in commands[0]) is kind.startswith("groups")
    assert ("fit other" in commands[0]) is file.endswith(".csv")  # "labelled rows other than these"
    for command, codes in zip(commands, ([0], [0], [0, 1, 3]), strict=True):
        done = run(*shlex.split(command)[1:])
        assert done.exit_code in codes, (command, done.stderr)
