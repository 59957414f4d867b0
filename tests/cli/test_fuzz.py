"""Hostile tables through the command line: refused in one sentence, never a traceback; by the thousand: benchmarks/fuzz.py."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Run

HEAD = "p_cat,p_dog,truth\n"


def test_what_a_small_file_unpacks_to_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("calibrant._core.files.memory_limit", lambda: 8 << 20)
    Path("t.csv.gz").write_bytes(gzip.compress(HEAD.encode() + b".9,.1,cat\n" * 200_000))
    assert Path("t.csv.gz").stat().st_size < 1 << 16
    run("evaluate", "t.csv.gz", code=2, says="half of the memory")
    assert list(Path().iterdir()) == [Path("t.csv.gz")]


def test_a_file_whose_statistics_end_arrow_is_refused() -> None:
    """PyArrow's C++ ends the process where a column of it is asked for, and no test would be left to tell."""
    file = Path(__file__).parents[1] / "fixtures" / "broken-statistics.parquet"
    done = subprocess.run([sys.executable, "-m", "calibrant", "evaluate", file], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "broken-statistics.parquet" in done.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"p_cat,p_cat,truth\n.5,.5,cat\n", "distinct column names, got 'p_cat' twice"),
        (
            b"p_cat,p_dog,truth\n.5,.5,cat\n.5,.5\n.4,.6,dog\n.4,.6,dog\n",
            "3 cells in each line of t.csv, got 2 in line 3",
        ),
        (HEAD.encode() + b".4,.6,dog\n" * 300 + b".4,.6\n", "3 cells in each line of t.csv, got 2 in"),
        (b"p_cat,,truth\n.5,.5,cat\n", "columns that say what they hold"),
        (HEAD.encode() + b".5,,cat\n.4,.6,dog\n", "an empty cell in the column 'p_dog' at row 0 (line 2)"),
        ((HEAD + ".5,.5,dög\n").encode("latin-1").replace(b"cat", b"c\0t"), "text in UTF-8"),
        ((HEAD + ".5,.5,cat\n").encode("utf-32"), "a readable .csv file"),
        (HEAD.encode() + b"x" * (1 << 20) + b",.5,cat\n", "cells of at most 128 KiB"),
        (HEAD.encode() + b"=1/2,.5,cat\n", "numbers in the class columns"),
        (HEAD.encode(), "at least one row"),
        (b"", "a readable .csv file"),
    ],
    ids=[
        "repeated",
        "cut off",
        "cut off later",
        "nameless",
        "null",
        "latin",
        "utf-32",
        "long",
        "formula",
        "no rows",
        "empty",
    ],
)
@pytest.mark.parametrize("command", [["evaluate"], ["convert"]], ids=" ".join)
def test_a_hostile_table_is_one_sentence(content: bytes, said: str, command: list[str], home: Path, run: Run) -> None:
    Path("t.csv").write_bytes(content)
    reading = ["--columns", "p_*", "--kind", "probs", "--label", "truth"] if "numbers" in said else []
    run(*command, "t.csv", *(["o.npz"] if command == ["convert"] else []), *reading, code=2, says=said)
    assert list(Path().iterdir()) == [Path("t.csv")]
