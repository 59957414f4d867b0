"""``--multilabel``: fit, apply, evaluate and report on predictions of several labels a row."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.csv
import pytest
import torch
from tests.cli.conftest import Run

from calibrant import MultiLabelPredictions, Predictions, read_multilabel, save_multilabel, save_predictions
from calibrant.calibrators import load
from calibrant.data.formats.tables import read_table
from calibrant.data.formats.writing import write_table
from calibrant.evaluate import multilabel_panel


def made(rows: int, seed: int) -> MultiLabelPredictions:
    generator = torch.Generator().manual_seed(seed)
    z = 1.5 * torch.randn(rows, 3, generator=generator) - torch.tensor([0.0, 1.0, 3.0])
    y = (torch.rand(rows, 3, generator=generator) < torch.sigmoid(z)).long()
    y[torch.rand(rows, 3, generator=generator) < 0.05] = -1
    return MultiLabelPredictions.from_logits(2 * z, y, names=["cat", "dog", "owl <b>"])


@pytest.fixture
def saved(home: Path, run: Run) -> Path:
    """A calibrator of several labels that is fitted on ``labels.npz``."""
    save_multilabel("labels.npz", {"val": made(300, 1), "test": made(250, 2)})
    done = run("fit labels.npz --multilabel -o several.safetensors", code=0)
    assert "3 labels through PlattScaling" in done.output
    return home / "several.safetensors"


def test_fit_evaluate_apply_and_report(saved: Path, run: Run) -> None:
    line = "evaluate labels.npz --multilabel --split test -c several.safetensors --draws 50"
    assert "owl <b>" in run(line, code=0).stdout
    shown = json.loads(run(line, "--json", code=0).stdout)
    before = [(row["metric"], row["average"], row["value"]) for row in shown["rows"] if row["calibrator"] is None]
    assert before == [(one.metric, one.average, one.value) for one in multilabel_panel(made(250, 2), draws=50)]
    assert {row["label"] for row in shown["labels"]} == {"cat", "dog", "owl <b>"}
    assert shown["fitted"]["type"] == "MultiLabelCalibrator"

    save_multilabel("test.npz", {"all": made(250, 2)})
    run("apply several.safetensors test.npz --multilabel -o after.csv", code=0)
    after, found = made(250, 2).calibrated_by(load(saved)), read_multilabel("after.csv")
    assert torch.allclose(found.logits, after.logits.double(), rtol=1e-4, atol=1e-5)
    assert torch.equal(found.labels, after.labels)  # type: ignore[arg-type]

    for suffix in ("json", "html"):
        run(f"report labels.npz --multilabel -o report.{suffix} --title Owls", code=0)
        page = Path(f"report.{suffix}").read_text()
        assert "owl <b>" not in page or suffix == "json"
        for text in ("Owls", "PlattScaling a label", "which the calibrator was not fitted on"):
            assert text in page
    captions = re.findall(r"<figcaption>([^:<]+)", page)
    assert [caption.partition(", ")[2] for caption in captions[:2]] == ["before calibration", "after calibration"]
    assert captions[0].partition(",")[0] == captions[1].partition(",")[0] in ("cat", "dog", "owl &lt;b&gt;")
    assert sum(caption.startswith("All labels pooled") for caption in captions) == 2


def test_both_averages_are_one_line_where_every_label_is_known(run: Run) -> None:
    data = made(250, 2)
    options = write_with_splits(Path("whole.csv"), test=replace(data, labels=data.labels.clamp(0)))  # type: ignore[union-attr]
    run("report whole.csv", *options, "-o", "r.html", code=0)
    text = re.sub("<wbr>|</?span>", "", Path("r.html").read_text())
    assert "NLL, all labels<" in text
    assert "NLL, mean over labels" not in text
    assert "ECE, mean over labels" in text
    (ship,) = re.findall(r"calibrant apply [^<]*", text)
    assert "--label " not in ship, "new rows have none"


def test_a_folder_of_tables_is_read_whole(run: Run, saved: Path) -> None:
    Path("folder").mkdir()
    whole = made(400, 7)
    for part in range(4):
        save_multilabel(f"folder/{part}.parquet", {"all": whole[100 * part : 100 * part + 100]})
    line = "evaluate folder --multilabel --json"
    rows = json.loads(run(line, "-c", saved, "--draws", 50, code=0).stdout)["rows"]
    whole = read_multilabel("folder")
    after = whole.calibrated_by(load(saved))
    expected = [*multilabel_panel(whole, draws=50), *multilabel_panel(after, draws=50)]
    for row, found in zip(rows, expected, strict=True):
        assert (row["metric"], row["average"], row["n"]) == (found.metric, found.average, found.n)
        for name in ("value", "low", "high"):
            number = getattr(found, name)
            assert row[name] == (number if number is None else pytest.approx(number, rel=1e-9, abs=1e-12))
    assert [row["low"] is None for row in rows] == 2 * [*7 * [False], True]
    assert {row["low"] for row in json.loads(run(line, "--draws", 0).stdout)["rows"]} == {None}


def test_tables_of_one_class_a_row_say_so(run: Run, tmp_path: Path) -> None:
    save_predictions(tmp_path / "a.parquet", {"all": Predictions.from_logits(3 * torch.eye(3), [0, 1, 2])})
    for name in (tmp_path, tmp_path / "a.parquet"):
        run("evaluate", name, "--multilabel", code=2, says="in the shell leave --multilabel out")


@pytest.mark.parametrize(("score", "label"), [("p_{}", "{}"), ("{}_prob", "y_{}"), ("pred_{}", "{}_true")])
@pytest.mark.parametrize("asked", [["--multilabel"], []])
def test_one_command_reads_labels_that_names_pair_with_scores(
    score: str, label: str, asked: list[str], run: Run, tmp_path: Path
) -> None:
    data, names = made(200, 4), ["toxic", "severe_toxic", "threat"]
    path = tmp_path / "s.csv"
    columns = [[f"{k / 200}" for k in range(200)], ["0", "1"] * 100]  # neither a score nor a label
    columns += [[str(p) for p in column] for column in torch.sigmoid(data.logits).T.tolist()]
    columns += [[str(y) for y in column] for column in data.labels.clamp(0).T.tolist()]  # type: ignore[union-attr]
    head = ["share", "is_reply", *map(score.format, names), *map(label.format, names)]
    path.write_text("\n".join(",".join(row) for row in [head, *zip(*columns, strict=True)]))
    said = " ".join(run("evaluate", path, *asked, "--draws", 0, code=2).output.split())
    options = said.partition("--multilabel --columns" if not asked else "--columns")[2].split("--kind")[0]
    found = [part.strip("'") for part in options.replace("--label", "").split()]
    assert found == [score.format("*"), label.format("*")]
    command = ["evaluate", path, "--multilabel", "--columns", found[0], "--label", found[1], "--kind", "probs"]
    run(*command, "--draws", 0, code=0)


def write_with_splits(file: Path, **parts: MultiLabelPredictions) -> tuple[str, ...]:
    """Write the rows of each split to one table with a column ``split``; return the options that read it."""
    lines = [
        ",".join(map(str, [*p, *y, name]))
        for name, data in parts.items()
        for p, y in zip(data.probs.tolist(), data.labels.tolist(), strict=True)  # type: ignore[union-attr]
    ]
    file.write_text("\n".join(["p_cat,p_dog,p_owl,y_cat,y_dog,y_owl,split", *lines]) + "\n")
    return ("--multilabel", "--columns", "p_*", "--label", "y_*", "--kind", "probs")


def test_a_table_has_the_splits_of_its_column(run: Run, tmp_path: Path) -> None:
    file, parts = tmp_path / "tags.csv", {"val": made(300, 1), "test": made(250, 2)}
    options = write_with_splits(file, **parts)
    command = ["evaluate", file, *options, "--draws", 0, "--json"]
    expected = {name: multilabel_panel(data, draws=0)[0].value for name, data in parts.items()}
    for asked in (["val"], ["test"], []):
        rows = json.loads(run(*command, *(word for one in asked for word in ("--split", one)), code=0).stdout)["rows"]
        assert dict.fromkeys(row["split"] for row in rows) == dict.fromkeys(asked or parts)
        for name in asked or parts:
            first = next(row for row in rows if row["split"] == name)
            assert first["n"] == len(parts[name])
            assert first["value"] == pytest.approx(expected[name], abs=1e-6)
    run(*command, "--split", "nope", code=2, says="'nope'")
    run("fit", file, *options, "-o", tmp_path / "c.safetensors", code=0)
    for number, more in enumerate([(), ("--calibrator", tmp_path / "c.safetensors"), ("--split", "val")]):
        page = tmp_path / f"{number}.html"
        run("report", file, *options, *more, "-o", page, code=0)
        text = page.read_text()
        assert ("300" if "val" in more else "250") in text
        assert "550" not in text
        assert ("After calibration" in text) == ("val" not in more), (
            "fitted on val, never on the rows that are evaluated"
        )


def test_two_spellings_of_a_split_are_refused(run: Run, tmp_path: Path) -> None:
    options = write_with_splits(tmp_path / "tags.csv", val=made(30, 1), validation=made(20, 2))
    run("evaluate", tmp_path / "tags.csv", *options, code=2, says="keep one spelling")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("evaluate labels.npz", "in the shell --multilabel"),
        ("fit labels.npz -o out.safetensors", "in the shell --multilabel"),
        ("evaluate good.npz --multilabel", "leave --multilabel out"),
        ("evaluate labels.npz --multilabel --metric ECE", "--metric"),
        ("evaluate labels.npz --multilabel -c c.safetensors", "leave --multilabel out"),
        ("evaluate good.npz -c several.safetensors", "add --multilabel"),
        ("apply several.safetensors good.npz -o out.npz", "add --multilabel"),
        ("fit labels.npz --multilabel --method HistogramBinning -o out.safetensors", "top label"),
        ("evaluate a.csv --multilabel", "add --columns 'p_*' --label 'y_*' --kind probs"),
        ("evaluate labels.npz --multilabel --split train", "train"),
        ("report labels.npz --multilabel --margin 0.1 -o out.html", "--margin"),
    ],
)
def test_wrong_use_is_one_sentence_and_writes_nothing(
    line: str, said: str, saved: Path, fitted: Path, run: Run
) -> None:
    Path("a.csv").write_text("p_a,y_a\n0.5,1\n0.2,0\n")
    assert run(line, code=2, says=said).stderr.count("\n") == 1
    assert not list(Path().glob("out*"))


def test_messages_on_folders_name_what_works_here(run: Run) -> None:
    for part in ("val", "test"):
        Path("parts", part).mkdir(parents=True)
        save_multilabel(f"parts/{part}/a.parquet", {"all": made(60, 7)})
    for words, text in (
        ("parts --multilabel", "there are some in its folders (test, val): name one of these"),
        ("parts/val", "expected scores in"),
    ):
        run(f"evaluate {words}", code=2, says=text)
    run("evaluate parts/val --multilabel", code=0)


def test_records_of_several_labels_are_read_by_the_printed_command(run: Run, tmp_path: Path) -> None:
    path, rng = tmp_path / "cats.jsonl", np.random.default_rng(0)
    scores = rng.random((60, 3))
    rows = zip(scores.tolist(), (rng.random((60, 3)) < scores).astype(float).tolist(), strict=True)
    names = ("toxic", "rude", "threat")
    lines = [
        {"gold": dict(zip(names, true, strict=True)), "cats": dict(zip(names, p, strict=True))} for p, true in rows
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = " ".join(run("evaluate", path, "--draws", 0, code=2).output.split())
    words = shlex.split(said.partition("run: calibrant ")[2])
    assert words[4:] == ["--multilabel", "--columns", "cats.*", "--label", "gold.*", "--kind", "probs"]
    found = json.loads(run(*words, "--json").stdout)
    assert "toxic" in str(found)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".xlsx", ".parquet", ".jsonl", ".feather"])
def test_a_table_comes_back_with_calibrated_columns(suffix: str, run: Run, saved: Path, tmp_path: Path) -> None:
    options = write_with_splits(tmp_path / "plain.csv", val=made(30, 1), test=made(20, 2))
    whole = pyarrow.csv.read_csv(tmp_path / "plain.csv").append_column("price", [["1.10"] * 50])
    whole = whole.add_column(0, "id", [[f"{at:04d}" for at in range(50)]])
    names = [name.replace("owl", "owl <b>") for name in whole.column_names]
    path, out = tmp_path / f"t{suffix}", tmp_path / f"out{suffix}"
    write_table(path, whole.rename_columns(names))
    run("apply", saved, path, *options, "-o", out, code=0)
    before, after = read_table(path), read_table(out)
    assert after.column_names == [*names, "p_cat_calibrated", "p_dog_calibrated", "p_owl <b>_calibrated"]
    assert after.select(names).equals(before)
    calibrator = load(saved)
    said = {"columns": "p_*", "label": "y_*", "kind": "probs"}
    data = [read_multilabel(path, split=split, **said) for split in ("val", "test")]  # type: ignore[arg-type]
    expected = torch.cat([one.calibrated_by(calibrator, allow_fit_rows=True).probs for one in data])
    found = np.stack([after[name].to_numpy() for name in after.column_names[-3:]], axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    run("apply", saved, path, *options, "--as", "top", "-o", out, code=2, says="expected probs or logits")


def test_own_columns_and_arrays_hold_calibrated_scores_instead(run: Run, saved: Path, tmp_path: Path) -> None:
    data, calibrator = made(40, 3), load(saved)
    expected = data.calibrated_by(calibrator, allow_fit_rows=True).logits
    for suffix in (".csv", ".parquet", ".npz"):
        path, out = tmp_path / f"p{suffix}", tmp_path / f"out{suffix}"
        save_multilabel(path, {"all": data})
        if suffix == ".npz":
            with np.load(path) as held:
                np.savez(path, ids=np.arange(40), **held)
        run("apply", saved, path, "--multilabel", "-o", out, code=0)
        assert torch.allclose(read_multilabel(out).logits.float(), expected, atol=1e-5)
        assert torch.equal(read_multilabel(out).labels, data.labels)  # type: ignore[arg-type]
    with np.load(out) as held:
        assert held["ids"].tolist() == list(range(40))
