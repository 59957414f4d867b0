"""``calibrant convert``: any format into any other, and tables of any size in pieces."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from tests.cli.conftest import Run, some_logits

import calibrant
from calibrant import BinaryPairs, Predictions

FORMATS = ["a.npz", "a.safetensors", "a.pt", "a.parquet", "a.arrow", "a.feather", "a.csv", "a.tsv", "a.jsonl", "folder"]


def one_split(path: Path) -> Predictions:
    logits, labels = some_logits(rows=60, classes=3)
    data = Predictions.from_logits(logits, labels, groups=np.arange(60) // 2)
    calibrant.save_predictions(path, {"all": data})
    return data


@pytest.mark.parametrize("first", FORMATS)
@pytest.mark.parametrize("second", ["b.npz", "b.csv", "b.parquet", "b"])
def test_from_any_format_into_any_other(first: str, second: str, home: Path, run: Run) -> None:
    data = one_split(home / "start.npz")
    for source, target in (("start.npz", first), (first, second)):
        run("convert", source, target, code=0)
    back = calibrant.load_predictions(second)
    assert isinstance(back, Predictions)
    torch.testing.assert_close(back.logits.double(), data.logits.double(), rtol=0, atol=1e-6)
    assert torch.equal(back.need_labels(), data.need_labels())
    assert back.groups is not None
    run("evaluate", second, "--draws", "0", code=0)


@pytest.mark.parametrize("target", ["b.npz", "b.pt", "b.arrow", "b.csv", "b.jsonl", "b"])
def test_splits_are_kept(target: str, good: Path, home: Path, run: Run) -> None:
    run("convert", good, target, code=0)
    assert {name: len(data) for name, data in calibrant.load_splits(target).items()} == {"val": 400, "test": 400}
    run("convert", good, "one.parquet", "--split", "holdout", code=0)
    assert list(calibrant.load_splits("one.parquet")) == ["all"]


@pytest.mark.parametrize("target", ["b.arrow", "b.csv", "b.npz"])
def test_a_split_whose_name_begins_as_another_keeps_its_rows(target: str, home: Path, run: Run) -> None:
    splits = {name: one_split(home / "start.npz")[:rows] for name, rows in (("test", 20), ("test_late", 30))}
    calibrant.save_predictions("two.npz", splits)
    run("convert", "two.npz", target, code=0)
    assert {name: len(data) for name, data in calibrant.load_splits(target).items()} == {"test": 20, "test_late": 30}
    for name, rows in (("test", 20), ("test_late", 30)):
        run("convert", "two.npz", f"one-{target}", "--split", name, code=0)
        assert {key: len(data) for key, data in calibrant.load_splits(f"one-{target}").items()} == {"all": rows}


def test_top_labels_text_and_columns_beside(home: Path, run: Run) -> None:
    (home / "t.csv").write_text("conf,pred,label,region\n0.9,cat,dog,EU\n0.8,dog,dog,US\n")
    run("convert", "t.csv", "t.npz", code=0)
    pairs = calibrant.load_predictions("t.npz")
    assert isinstance(pairs, BinaryPairs)
    assert pairs.correct.tolist() == [False, True]
    assert np.load("t.npz")["region"].tolist() == ["EU", "US"]
    run("convert", "t.csv", "t.safetensors", code=0, says="left out region")
    run("convert", "t.csv", "t.parquet", code=2, says="expected --class-names for classes that are text")
    assert not (home / "t.parquet").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("good.npz good.npz", "expected an output other than the input"),
        ("good.npz o.xls", "expected a name that ends in .npz"),
        ("good.npz o.parquet", "expected one split for .parquet, got val, test; write one alone"),
        ("good.npz o.npz --split late", "expected the split 'late', got only ['test', 'val']"),
        ("a b c", "expected one IN and one OUT"),
        ("o.npz", "expected a FILE"),
        ("good.npz full", "expected a new or empty folder"),
        ("good.npz nowhere/o.npz", "expected a writable place"),
    ],
)
def test_what_is_refused_writes_nothing(arguments: str, said: str, home: Path, good: Path, run: Run) -> None:
    (home / "full").mkdir()
    (home / "full" / "x").touch()
    before = sorted(home.rglob("*"))
    run(f"convert {arguments}", code=2, says=said)
    assert sorted(home.rglob("*")) == before


def test_a_folder_of_tables_becomes_one_that_is_streamed(home: Path, run: Run) -> None:
    for split, seed in (("val", 1), ("test", 2)):
        (home / "in" / split).mkdir(parents=True)
        logits, labels = some_logits(rows=90, classes=3, seed=seed)
        for part in range(3):
            rows = range(30 * part, 30 * part + 30)
            text = "".join(f"{','.join(map(str, logits[row]))},{labels[row]}\n" for row in rows)
            (home / "in" / split / f"{part}.csv").write_text("z0,z1,z2,y\n" + text)
    run("convert in out --columns 'z*' --label y --kind logits", code=0, says="6 Parquet files, 180 rows")
    assert '"test"' in run("evaluate", "out", "--json", code=0).stdout
    run("evaluate", "in", "--columns", "z*", "--label", "y", "--kind", "logits", "--draws", "0", "--json", code=0)
    run("evaluate", "out", "--columns", "z*", code=2, says="convert it with them: calibrant convert out converted")


@pytest.mark.slow
def test_a_table_is_converted_in_bounded_memory(home: Path) -> None:
    rng = np.random.default_rng(0)
    block = "".join(f"{','.join(f'{z:.6f}' for z in row)},1\n" for row in rng.standard_normal((10_000, 20)))
    with open("big.csv", "w") as file:
        file.write(",".join(f"logits_{k}" for k in range(20)) + ",label\n")
        for _ in range(60):
            file.write(block)
    code = (
        "from calibrant.cli import main\n"
        "try:\n    main(['convert', 'big.csv', 'big.parquet'])\nexcept SystemExit as left:\n    assert not left.code\n"
        # the peak of this process; ru_maxrss would begin at what the parent held
        "print(int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]) >> 10)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert pyarrow.parquet.ParquetFile("big.parquet").metadata.num_rows == 600_000
    assert (
        int(done.stdout.split()[-1]) < 900
    )  # MiB, of which PyTorch and Arrow take some 400; the table as float64 is 96 more


@pytest.mark.parametrize("target", ["o.npz", "o.safetensors", "o.parquet", "o.arrow", "o.csv"])
def test_probabilities_are_written_and_how_labels_were_matched_is_kept(target: str, home: Path, run: Run) -> None:
    (home / "z.csv").write_text("id,logit_cat,logit_dog\na,2.0,0.0\nb,-1.0,1.0\nc,0.0,0.0\n")
    (home / "y.csv").write_text("id,label\nc,dog\na,cat\n")
    read = ["z.csv", "--labels", "y.csv", "--missing", "drop"]
    run("convert", *read, target, "--to", "probs", code=0, says="1 of 3 rows without a label dropped")
    back = calibrant.load_predictions(target)
    assert isinstance(back, Predictions)
    np.testing.assert_allclose(back.given_probs.numpy(), [[0.880797, 0.119203], [0.5, 0.5]], atol=1e-6)
    assert back.need_labels().tolist() == [0, 1]
    said = run("inspect", target).stdout
    assert "labels: cat in 1 rows, dog in 1 rows" in said
    assert ("joined on 'id'" in said) == (target != "o.csv")
    run("convert", target, "again.npz", "--to", "logits", code=0)
    logits = np.load("again.npz")["logits"]
    np.testing.assert_allclose(logits[:, 1] - logits[:, 0], [-2, 0], atol=1e-5)
    run("convert", *read[:3], "refused.npz", code=2)
