"""Damaged files of every format: read, or refused in one sentence; never a traceback."""

import gzip
import io
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save
from tests.cli.conftest import Run


def whole_file(suffix: str) -> bytes:
    logits = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    labels = np.arange(30) % 3
    file = io.BytesIO()
    if suffix == ".npz":
        np.savez(file, val_logits=logits, val_labels=labels, test_logits=logits + 1, test_labels=labels)
    elif suffix == ".safetensors":
        return save({"logits": logits, "labels": labels})
    else:
        column = pa.FixedSizeListArray.from_arrays(pa.array(logits.reshape(-1)), 3)
        pq.write_table(pa.table({"logits": column, "label": pa.array(labels)}), file)
    return file.getvalue()


def damage(content: bytes, rng: random.Random) -> bytes:
    """Return ``content`` with bytes overwritten, cut off or pushed in."""
    changed, where = bytearray(content), rng.randrange(len(content))
    kind = rng.choice(["overwrite", "cut", "insert"])
    if kind == "cut":
        return bytes(changed[:where])
    if kind == "insert":
        changed[where:where] = rng.randbytes(rng.choice([1, 100]))
        return bytes(changed)
    for _ in range(rng.choice([1, 2, 8])):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet"])
def test_damaged_files_are_refused_in_one_sentence(suffix: str, tmp_path: Path, run: Run) -> None:
    content, rng, refused = whole_file(suffix), random.Random(0), 0
    for turn in range(120):
        path = tmp_path / f"{turn}{suffix}"
        path.write_bytes(damage(content, rng))
        done = run("evaluate", path, "--draws", 0)
        assert done.exit_code in (0, 2), (turn, done.exception)
        if done.exit_code == 2:
            refused += 1
            assert done.stdout == "", turn
            last = done.stderr.splitlines()[-1]
            assert last.startswith("error: "), turn
            assert "expected" in last, (turn, last)
    assert refused > 60


HEAD = "p_cat,p_dog,truth\n"


def test_what_a_small_file_unpacks_to_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("calibrant.data.formats.tensors.memory_limit", lambda: 8 << 20)
    Path("t.csv.gz").write_bytes(gzip.compress(HEAD.encode() + b".9,.1,cat\n" * 200_000))
    assert Path("t.csv.gz").stat().st_size < 1 << 16
    assert "half of the memory" in run("evaluate", "t.csv.gz", code=2).stderr
    assert list(Path().iterdir()) == [Path("t.csv.gz")]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"p_cat,p_cat,truth\n.5,.5,cat\n", "distinct column names, got 'p_cat' twice"),
        (b"p_cat,,truth\n.5,.5,cat\n", "columns that say what they hold"),
        (HEAD.encode() + b".5,,cat\n.4,.6,dog\n", "an empty cell in the column 'p_dog' at row 0 (line 2)"),
        (HEAD.replace("dog", "dög").encode("latin-1") + b".5,.5,cat\n", "text in UTF-8"),
        ((HEAD + ".5,.5,cat\n").encode("utf-32"), "a readable .csv file"),
        (HEAD.encode() + b"x" * (1 << 20) + b",.5,cat\n", "columns that say what they hold"),
        (HEAD.encode() + b"=1/2,.5,cat\n", "numbers in the class columns"),
        (HEAD.encode(), "at least one row"),
        (b"", "a readable .csv file"),
    ],
    ids=["repeated", "nameless", "null", "latin", "utf-32", "long", "formula", "no rows", "empty"],
)
@pytest.mark.parametrize("command", [["evaluate"], ["convert"]], ids=" ".join)
def test_a_hostile_table_is_one_sentence(
    content: bytes, said: str, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_bytes(content)
    reading = ["--columns", "p_*", "--kind", "probs", "--label", "truth"] if "numbers" in said else []
    done = run(*command, "t.csv", *(["o.npz"] if command == ["convert"] else []), *reading, code=2, says=said)
    assert done.stderr.count("\n") == 1
    assert list(Path().iterdir()) == [Path("t.csv")]
