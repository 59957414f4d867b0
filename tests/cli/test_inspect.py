"""``inspect`` says how a file is read, and the command it prints works."""

import json
import shlex
from pathlib import Path

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
    assert run(*shlex.split(command), "--draws", "0").exit_code == 0


def test_json_holds_the_same(home: Path, run: Run) -> None:
    (one,) = json.loads(run("inspect", "s.csv", *READ, "--json").stdout)["files"]
    assert one["classes"] == ["cat", "dog"]
    assert one["splits"][0]["first"][1] == {"probs": [0.25, 0.75], "label": "cat"}


def test_top_label_pairs(home: Path, run: Run) -> None:
    Path("t.csv").write_text("confidence,prediction,label\n.9,1,1\n.4,0,2\n")
    done = run("inspect", "t.csv")
    assert "top-label pairs, 2 rows" in done.stdout
    assert "0.4 → False" in done.stdout


def test_a_reading_that_is_certain_is_followed_and_said(home: Path, run: Run) -> None:
    done = run("inspect", "s.csv", code=0, says="read p_cat, p_dog as probabilities, y as the label")
    assert done.stdout == run("inspect", "s.csv", *READ).stdout.replace(" --columns 'p_*' --label y --kind probs", "")


def test_what_cannot_be_read_is_refused_with_the_command_that_reads_it(home: Path, run: Run) -> None:
    Path("s.csv").write_text(CSV.replace("p_", ""))
    done = run("inspect", "s.csv", code=2)
    command = done.stderr.strip().partition("run: calibrant ")[2]
    assert run(*shlex.split(command)).exit_code == 0


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
