"""``inspect`` says how a file is read, and the command it prints works."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from tests.cli.conftest import Run

CSV = "id,p_cat,p_dog,y\na,.9,.1,cat\nb,.25,.75,cat\n"
READ = ["--columns", "p_*", "--label", "y", "--kind", "probs"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("s.csv").write_text(CSV)
    return tmp_path


def test_the_reading_its_rows_and_its_command(home: Path, run: Run) -> None:
    done = run("inspect", "s.csv", *READ, code=0)
    assert "all: probs, 2 rows of 2 classes, labelled" in done.stdout
    assert "0.25, 0.75 → cat" in done.stdout
    command = done.stdout.strip().partition("run: calibrant ")[2]
    run(*shlex.split(command), "--draws", "0", code=0)


def test_json_holds_the_same(home: Path, run: Run) -> None:
    (one,) = json.loads(run("inspect", "s.csv", *READ, "--json").stdout)["files"]
    assert one["classes"] == ["cat", "dog"]
    assert one["splits"][0]["first"][1] == {"probs": [0.25, 0.75], "label": "cat"}


def test_top_label_pairs(home: Path, run: Run) -> None:
    Path("t.csv").write_text("confidence,prediction,label\n.9,1,1\n.4,0,2\n")
    done = run("inspect", "t.csv")
    assert "top-label pairs, 2 rows" in done.stdout
    assert "0.4 → False" in done.stdout
    Path("r.csv").write_text("label_1,score_1,label_2,score_2,y\ncat,.8,dog,.1,cat\ndog,.7,owl,.2,owl\n")
    assert "0.7 → False" in run("inspect", "r.csv").stdout


def test_a_reading_that_is_certain_is_followed_and_said(home: Path, run: Run) -> None:
    done = run("inspect", "s.csv", code=0, says="read p_cat, p_dog as probabilities, y as the label")
    assert done.stdout == run("inspect", "s.csv", *READ).stdout.replace(" --columns 'p_*' --label y --kind probs", "")


def several_labels() -> None:
    rng = np.random.default_rng(0)
    np.savez("s.npz", logits=rng.normal(size=(40, 3)), labels=rng.integers(0, 2, (40, 3)))


def parquet_parts() -> None:
    table = pa.table({"u": [0.9, 0.25, 0.3], "v": [0.1, 0.75, 0.7], "kind": ["cat", "dog", "cat"]})
    Path("parts").mkdir()
    for part in range(2):
        pyarrow.parquet.write_table(table, f"parts/{part}.parquet")


REFUSED = [  # what is read (text: of s.csv), and the commands whose refusal leads on by one command
    (CSV.replace("p_", ""), "inspect convert evaluate"),
    ("confidence,prediction,breed\n.9,cat,cat\n.8,dog,cat\n.7,cat,dog\n", "inspect convert evaluate"),
    ("score,churned\n.9,yes\n.2,no\n.6,yes\n", "inspect convert evaluate"),
    ("a,b,outcome\n.9,.1,cat\n.25,.75,dog\n.3,.7,cat\n", "inspect convert evaluate"),
    (several_labels, "inspect convert check"),
    (parquet_parts, "inspect evaluate"),
]


@pytest.mark.parametrize(("made", "command"), [(made, one) for made, names in REFUSED for one in names.split()])
def test_what_is_refused_is_read_by_the_command_that_is_printed(
    made: str | Callable[[], None], command: str, home: Path, run: Run
) -> None:
    name, folder = {several_labels: "s.npz", parquet_parts: "parts"}.get(made, "s.csv"), Path("in a folder")
    Path(name).write_text(made) if isinstance(made, str) else made()
    folder.mkdir()
    file = Path(name).rename(folder / name)
    more = {"convert": ["new.npz"], "check": ["--max", "ece=.9"]}.get(command, [])
    said = run(command, file, *more, code=2).stderr
    assert ("> names.txt" in said) is ("--class-names" in said)
    if names := re.search(
        r"printf '%s\\n' (\w+) (\w+) > names.txt &&", said
    ):  # where no column is called as the labels are
        Path("names.txt").write_text("\n".join(names.groups()))
    typed = re.findall(r"(?:run: |&& |`)calibrant ([^`&\n]*)", said)
    for line in typed:
        run(*shlex.split(line), code=0)
    assert len(typed) == 1 + said.count("&&") - (names is not None)


@pytest.mark.parametrize(
    ("column", "values", "names", "said"),
    [
        ("predict", ["cat", "dog"], "cat dog", ""),
        ("predict", ["cat", "dog"], "dog cat", "expected 'predict' as the class of the largest score"),
        ("acc", [1, 0], "cat dog", ""),
        ("acc", [0, 1], "cat dog", "expected 'acc' as whether the largest score is the label"),
        ("guess", ["x", "y"], "dog cat", ""),  # of other names: says nothing
    ],
)
def test_what_a_file_says_twice_must_agree(
    column: str, values: list[str], names: str, said: str, home: Path, run: Run
) -> None:
    Path("names.txt").write_text("\n".join(names.split()))
    Path("s.csv").write_text(f"a,b,y,{column}\n.9,.1,cat,{values[0]}\n.25,.75,cat,{values[1]}\n")
    done = run("inspect", "s.csv", "--columns", "a,b", "--kind", "probs", "--label", "y", "--class-names", "names.txt")
    assert (done.exit_code == 2) == bool(said), done.output
    assert said in done.stderr
    if not said:
        assert "labels: cat in 2 rows, dog in 0 rows" in done.stdout or names == "dog cat"


# Two classes, one score a row or several; what holds the labels is called as nothing that says so.
_P = "p_cat,p_dog", [".9,.1", ".2,.8", ".7,.3", ".4,.6"]
_ONE = "prob", [".9", ".2", ".7", ".4"]


@pytest.mark.parametrize(
    ("scores", "others", "cells", "options", "doubt"),
    [
        (_P, "breed", "cat dog cat dog", "--label breed", "if breed holds the labels"),
        (_P, "sex,breed", "m,cat f,dog m,dog f,cat", "--label breed", "if breed holds the labels"),
        (_P, "fold,n,breed", "0,0,cat 1,1,dog 0,1,dog 1,0,cat", "--label breed", "if breed holds the labels"),
        (_P, "id,breed", "0,cat 1,dog 0,cat 1,cat", "--label breed", "if breed holds the labels"),
        (_P, "label_id,breed", "71,cat 72,dog 73,cat 74,cat", "--label breed", "if breed holds the labels"),
        (_P, "target,breed", "1.5,cat 2.5,dog 1.5,cat 1,cat", "--label breed", "if breed holds the labels"),
        # what the scores decide in every row is their decision
        (_P, "first,second", "cat,cat dog,cat cat,cat dog,dog", "--label second", "if second and not first holds"),
        (_P, "breed", "cat cat cat cat", "--label breed", "if breed holds the labels"),
        (_P, "the breed", "cat dog cat dog", "--label 'the breed'", "if the breed holds"),
        (_P, "hit", "0 1 0 1", "--label hit", "if hit holds the labels"),
        (_P, "hit", "True False True False", "--label hit", "if hit holds the labels"),
        (_P, "breed,split", "cat,val dog,val cat,test dog,test", "--label breed", "if breed holds the labels"),
        (_ONE, "bought", "1 0 1 0", "--label bought", "if bought holds the labels"),
        (_ONE, "bought", "yes no yes no", "--label bought --positive yes", "the score is the probability of 'yes'"),
        (_ONE, "a,b", "yes,no no,no yes,yes no,yes", "--label a --positive yes", "if a and not b holds the labels"),
        (_ONE, "plan,bought", "x,yes x,no y,yes y,no", "--label bought --positive yes", "if bought and not plan holds"),
        # what cannot hold the labels is named by no command
        (_P, "id", "0 1 0 1", "", ""),
        (_P, "cv_fold", "0 1 0 1", "", ""),
        (_P, "sex", "m f m f", "", ""),
        (_P, "n", "0 1 2 3", "", ""),
        (_P, "flag", "0 0 0 0", "", ""),
        (_P, "breed", "cat wolf cat dog", "", ""),
        (_P, "prediction", "cat dog cat dog", "", ""),
    ],
)
@pytest.mark.parametrize("german", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_command_names_the_column_that_can_hold_the_labels(
    scores: tuple[str, list[str]], others: str, cells: str, options: str, doubt: str, german: bool, home: Path, run: Run
) -> None:
    names, values = scores
    rows = [f"{names},{others}", *(",".join(pair) for pair in zip(values, cells.split(), strict=True))]
    table = "\n".join(rows) + "\n"
    Path("t.csv").write_text(table.replace(",", ";").replace(".", "0,") if german else table)
    done = run("inspect", "t.csv", code=0, says=doubt)
    command = done.stdout.strip().partition("run: calibrant ")[2]
    assert command == (f"evaluate t.csv {options}" if options else "")
    if not options:
        assert "add its labels: --label COLUMN, or --labels FILE" in done.stdout
        run("evaluate", "t.csv", code=2, says="name their column by --label")
        return
    run(*shlex.split(command), "--draws", "0", code=0)
    run("evaluate", "t.csv", code=2, says=f"{doubt}")
    (one,) = json.loads(run("inspect", "t.csv", "--json", code=0).stdout)["files"]
    assert one["command"] == f"calibrant {command}"


NEWS = (("Sports", "Business", "World"), ((0.2, 0.7, 0.1), (0.1, 0.2, 0.7), (0.6, 0.3, 0.1)), (1, 2, 0))


def test_numbers_do_not_count_classes_that_each_row_names_in_an_order_of_its_own(home: Path, run: Run) -> None:
    names, probs, labels = NEWS
    rows = [
        {"label": y, "out": [{"label": n, "score": p} for n, p in sorted(zip(names, row, strict=True))]}
        for row, y in zip(probs, labels, strict=True)
    ]
    Path("r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("names.txt").write_text("\n".join(names))
    run("inspect", "r.jsonl", code=2, says="whose order is not in the file; write them to names.txt")
    score = ("--metric", "Accuracy", "--draws", "0", "--json")
    done = run("evaluate", "r.jsonl", "--class-names", "names.txt", *score, code=0)
    assert json.loads(done.stdout)["rows"][0]["value"] == 1.0
    text = [row | {"name": names[row["label"]]} for row in rows]
    Path("t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in text))
    assert json.loads(run("evaluate", "t.jsonl", *score, code=0).stdout)["rows"][0]["value"] == 1.0


def test_a_title_among_the_rows_is_refused_with_a_command_that_leaves_it_out(home: Path, run: Run) -> None:
    Path("glued.csv").write_text(CSV + CSV)
    done = run(
        "inspect glued.csv", code=2, says="expected one line of names, got it again at row 2 of glued.csv; run: "
    )
    command = done.stderr.partition("run: ")[2].partition(" && ")[0]
    subprocess.run(["sh", "-c", command], check=True)
    assert Path("glued-whole.csv").read_text() == CSV + CSV.partition("\n")[2]


def test_of_splits_that_are_not_all_labelled_one_that_is(home: Path, run: Run) -> None:
    np.savez("s.npz", test_logits=2 * np.eye(3), val_logits=2 * np.eye(3), val_labels=np.arange(3))
    command = run("inspect", "s.npz", code=0).stdout.strip().partition("run: calibrant ")[2]
    assert command == "evaluate s.npz --split val"
    run(*shlex.split(command), "--draws", "0", code=0)


def test_predictions_of_several_models_of_the_same_rows_are_parted(home: Path, run: Run) -> None:
    lines = ["learner_id,row_ids,truth,prob.no,prob.yes"]
    for learner, yes in (("forest", (0.9, 0.2, 0.8)), ("tree", (0.4, 0.6, 0.7))):
        for at, (p, truth) in enumerate(zip(yes, ("yes", "no", "yes"), strict=True)):
            lines.append(f"{learner},{at},{truth},{1 - p:.1f},{p}")
    Path("m.csv").write_text("\n".join(lines) + "\n")
    done = run(
        "evaluate m.csv --metric Accuracy --draws 0 --json",
        code=0,
        says="m.csv: rows parted by learner_id, since it names models of the same rows",
    )
    assert [(row["split"], row["n"]) for row in json.loads(done.stdout)["rows"]] == [("forest", 3), ("tree", 3)]
    melted = ["model,doc_id,class,prob,truth"]
    for line in lines[1:]:
        learner, key, truth, *probs = line.split(",")
        melted += [f"{learner},{key},{one},{p},{truth}" for one, p in zip(("no", "yes"), probs, strict=True)]
    Path("l.csv").write_text("\n".join(melted) + "\n")
    long = run("evaluate", "l.csv", "--metric", "Accuracy", "--draws", "0", "--json", code=0)
    assert [row["value"] for row in json.loads(long.stdout)["rows"]] == [
        row["value"] for row in json.loads(done.stdout)["rows"]
    ]
    Path("m.csv").write_text("\n".join(lines).replace("\ntree,0,yes", "\ntree,0,no") + "\n")  # rows of another kind
    done = run("evaluate", "m.csv", "--metric", "Accuracy", "--draws", "0", "--json", code=0)
    assert [row["n"] for row in json.loads(done.stdout)["rows"]] == [6]
    # side by side, called after the values of the last column, of which another has but one
    head = "source,net_cat,net_dog,tree_cat,tree_dog,animal\n"
    Path("w.csv").write_text(head + "dog,.9,.1,.8,.2,cat\nweb,.2,.8,.3,.7,dog\ndog,.6,.4,.7,.3,cat\n")
    run("inspect", "w.csv", code=2, says="if the columns net_cat, net_dog are meant and not tree_cat, tree_dog")


def test_a_probability_goes_before_its_bounds_and_beside_a_confidence_one_is_to_be_kept(home: Path, run: Run) -> None:
    p = [at / 40 for at in range(1, 40)]
    rows = "".join(f"{one},{one * 0.9:.4f},{min(one * 1.2, 1):.4f},{int(one > 0.4)}\n" for one in p)
    Path("b.csv").write_text("prob,prob_lower,prob_upper,label\n" + rows)
    run("evaluate", "b.csv", code=2, says="calibrant evaluate b.csv --columns prob --label label")
    rows = "".join(f"{max(one, 1 - one)},{one},{int(one > 0.4)}\n" for one in p)
    Path("c.csv").write_text("conf,p1,label\n" + rows)
    run("evaluate", "c.csv", code=2, says="got probs and conf in c.csv; keep the one that is meant")


def test_a_probability_that_is_larger_where_the_label_is_0_is_asked_about(home: Path, run: Run) -> None:
    p = np.linspace(0.01, 0.99, 60)
    rows = "".join(f"{one:.2f},{int(at % 7 > 5 or one < 0.5)}\n" for at, one in enumerate(p))
    Path("p.csv").write_text("prob,y\n" + rows)
    run("evaluate", "p.csv", code=2, says="if prob speaks of '0', run: calibrant evaluate p.csv --columns prob")
    for side in ("0", "1"):
        run("evaluate", "p.csv", "--positive", side, "--draws", "0", code=0)


@pytest.mark.parametrize("name", ["w.csv", "w.jsonl", "w.parquet"])
def test_weights_of_no_kind_are_given_a_name_by_the_printed_command(name: str, home: Path, run: Run) -> None:
    rows = [{"probs": [p, 1 - p], "label": int(p < 0.5), "weight": 1 + p} for p in (0.125, 0.25, 0.75)]
    table = pa.Table.from_pylist(rows)
    if name == "w.parquet":
        pa.parquet.write_table(table, name)
    elif name == "w.jsonl":
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        lines = [f'"[{p}, {1 - p}]",{int(p < 0.5)},{1 + p}' for p in (0.125, 0.25, 0.75)]
        Path(name).write_text("\n".join(["probs,label,weight", *lines]) + "\n")
    done = run("evaluate", name, "--draws", "0", code=2)
    make, _, then = done.stderr.partition("run: ")[2].strip().partition(" && calibrant ")
    own = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(["sh", "-c", make], check=True, env=os.environ | {"PATH": own})
    run(*shlex.split(then), code=0)


def test_a_weight_beside_features_is_one_of_them(home: Path, run: Run) -> None:
    file = home / "clinic.csv"
    lines = [f"{30 + i},{70 + i},{i % 10 / 10:.1f},{int(i % 10 > 6)}" for i in range(60)]
    file.write_text("age,weight,probability,y_true\n" + "\n".join(lines) + "\n")
    done = run("evaluate", str(file), code=2, says="if weight is a feature as age may be")
    assert r"\1feature:weight\2" in done.stderr
    assert f" {file} > " in done.stderr
    file.write_text("id,weight,probability,y_true\n" + "\n".join(lines) + "\n")
    said = run("evaluate", str(file), code=2).stderr
    assert r"\1sampling_weights\2" in said.rpartition("run: ")[2]
    assert "if rows count alike: sed" in said
    assert "clinic-unweighted.csv && calibrant evaluate" in said


def test_models_without_a_key_are_parted_where_their_labels_come_in_the_same_order(home: Path, run: Run) -> None:
    file = home / "m.csv"
    first = [f"gbm,{i % 10 / 10:.1f},{int(i % 10 > 6)}" for i in range(40)]
    second = [f"glm,{i % 7 / 7:.3f},{int(i % 10 > 6)}" for i in range(40)]
    file.write_text("model,probability,y_true\n" + "\n".join(first + second) + "\n")
    done = run("inspect", str(file), code=0, says="rows parted by model, since it names models of the same rows")
    assert "gbm: probs, 40 rows" in done.stdout
    file.write_text("model,probability,y_true\n" + "\n".join(first + second[1:]) + "\n")
    done = run(
        "inspect",
        str(file),
        code=0,
        says="rows of all values of model measured together; call that column split to part them",
    )
    assert "all: probs, 79 rows" in done.stdout
