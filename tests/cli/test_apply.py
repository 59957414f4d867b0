"""``calibrant apply``: the file that was read comes back, with calibrated scores and all else as it was."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.conftest import Run, some_logits
from tests.conftest import late

import calibrant
from calibrant import Predictions, read, save_predictions
from calibrant._files import write_arrays
from calibrant.calibrators import HistogramBinning, TemperatureScaling

polars = late("polars")

NAMES = ("cat", "dog", "eel")
PROBS = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.25, 0.5, 0.25]])


@pytest.fixture(autouse=True)
def scaling(home: Path) -> Any:
    """A calibrator of three classes, saved as c.safetensors."""
    found = TemperatureScaling().fit(*some_logits(rows=200, classes=3))
    found.save("c.safetensors")
    return found


def expected(scaling: Any) -> Any:
    return Predictions.from_probs(PROBS).calibrated_by(scaling).probs.numpy()


TABLES = {
    "commas": 'id,p_cat,p_dog,p_eel,note\n007,.7,.2,.1,"a, b"\n\n008,.1,.1,.8,"two\nlines"\n009,.25,.5,.25,x\n',
    "semicolons": "id;p_cat;p_dog;p_eel;note\r\n007;0,7;0,2;0,1;a, b\r\n008;0,1;0,1;0,8;\r\n009;0,25;0,5;0,25;x",
    "padding": "id, p_cat, p_dog, p_eel\n007, 0.7, 0.2, 0.1\n008, .1, .1, .8\n009, .25, .5, .25\n",
}


@pytest.mark.parametrize("text", TABLES.values(), ids=TABLES)
def test_a_table_of_text_comes_back_with_columns_added(text: str, scaling: Any, home: Path, run: Run) -> None:
    Path("s.csv").write_bytes(text.encode())
    run("apply c.safetensors s.csv -o o.csv")
    after = Path("o.csv").read_bytes().decode()
    delimiter = ";" if ";" in text else "\t" if "\t" in text else ","
    old, new = (list(csv.reader(one.splitlines(keepends=True), delimiter=delimiter)) for one in (text, after))
    old, new = ([row for row in rows if row] for rows in (old, new))
    assert [row[: len(old[0])] for row in new] == old
    assert [name.strip() for name in new[0][len(old[0]) :]] == [f"calibrated_p_{name}" for name in NAMES]
    cells = np.array([[float(cell.replace(",", ".")) for cell in row[len(old[0]) :]] for row in new[1:]])
    np.testing.assert_allclose(cells, expected(scaling), rtol=1e-12)
    # every line of the old file begins, or is, a line of the new one
    assert all(line in after for line in text.splitlines())
    np.testing.assert_allclose(read("o.csv", columns="calibrated_*").probs, expected(scaling), rtol=1e-12)
    np.testing.assert_allclose(read("o.csv").probs, PROBS)


def test_bytes_that_are_no_utf8_come_back_and_scores_are_replaced(scaling: Any, run: Run, home: Path) -> None:
    text = b"p_cat,p_dog,p_eel,note\n.7,.2,.1,caf\xe9\n"
    Path("s.csv").write_bytes(text)
    run("apply c.safetensors s.csv -o o.csv")
    assert all(b.startswith(a) for a, b in zip(text.splitlines(), Path("o.csv").read_bytes().splitlines(), strict=True))
    run("apply c.safetensors s.csv -o o.csv --replace")
    np.testing.assert_allclose(read("o.csv").probs, expected(scaling)[:1], rtol=1e-12)
    after = Path("o.csv").read_bytes().splitlines()
    assert (after[0], after[1].rpartition(b",")[2]) == (text.splitlines()[0], b"caf\xe9")


def test_json_lines_and_columns_come_back(scaling: Any, run: Run, home: Path) -> None:
    rows = [{"id": f"00{n}", "at": {"x": [n]}, "probs": row} for n, row in enumerate(PROBS.tolist())]
    Path("s.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run("apply c.safetensors s.jsonl -o o.jsonl")
    found = [json.loads(line) for line in Path("o.jsonl").read_text().splitlines()]
    np.testing.assert_allclose([row.pop("calibrated_probs") for row in found], expected(scaling), rtol=1e-12)
    assert found == rows
    frame = polars.DataFrame({"id": ["a", "b", "c"], **{f"p_{n}": PROBS[:, k] for k, n in enumerate(NAMES)}})
    for name in ("s.parquet", "s.feather"):
        (frame.write_parquet if name.endswith("parquet") else frame.write_ipc)(name)
        run("apply", "c.safetensors", name, "-o", "o" + name[1:])
        back = (polars.read_parquet if name.endswith("parquet") else polars.read_ipc)("o" + name[1:])
        assert back[:, :4].equals(frame)
        np.testing.assert_allclose(back[:, 4:].to_numpy(), expected(scaling), rtol=1e-12)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt"])
def test_arrays_come_back_with_scores_in_their_place(suffix: str, scaling: Any, run: Run, home: Path) -> None:
    logits, labels = some_logits(rows=20, classes=3)
    arrays = {"val_logits": logits, "val_labels": labels, "test_logits": logits[:5], "pixel_size": np.array([0.5])}
    if suffix == ".pt":
        torch.save({name: torch.from_numpy(one) for name, one in arrays.items()}, "a.pt")
    else:
        write_arrays(f"a{suffix}", arrays)
    written = ".npz" if suffix == ".pt" else suffix
    run("apply", "c.safetensors", f"a{suffix}", "-o", f"o{written}")
    for split, rows in (("val", 20), ("test", 5)):
        after = read(f"o{written}", split=split)
        np.testing.assert_allclose(after.logits, scaling(torch.from_numpy(logits[:rows])), rtol=1e-6)
    assert read(f"o{written}", split="val").labels.tolist() == labels.tolist()


def test_one_array_positions_and_one_column_keep_their_shape(scaling: Any, run: Run, home: Path) -> None:
    logits = np.random.default_rng(0).normal(size=(4, 3, 5)).astype(np.float32)
    np.savez("m.npz", logits=logits)
    run("apply c.safetensors m.npz -o o.npz")
    np.testing.assert_allclose(np.load("o.npz")["logits"], logits / scaling.temperature, rtol=1e-5)
    np.save("z.npy", logits[0].T)
    run("apply c.safetensors z.npy --kind logits -o o.npy")
    np.testing.assert_allclose(np.load("o.npy"), logits[0].T / scaling.temperature, rtol=1e-5)
    TemperatureScaling().fit(*some_logits(rows=200, classes=2)).save("two.safetensors")
    Path("s.csv").write_text("id,p\n1,0.9\n2,0.25\n")
    run("apply two.safetensors s.csv -o o.csv")
    after = read("s.csv").calibrated_by(calibrant.load("two.safetensors")).probs[:, 1]
    np.testing.assert_allclose(read("o.csv", columns="calibrated_p").probs[:, 1], after, rtol=1e-12)


def test_decisions_that_were_taken_are_carried_along(run: Run, home: Path) -> None:
    example = calibrant.load_example("cifar10")
    binning = HistogramBinning().fit(example["val"])
    binning.save("b.safetensors")
    names = tuple(f"class {k}" for k in range(10))
    test = Predictions.from_logits(example["test"].logits, example["test"].labels, class_names=names)
    after = test.calibrated_by(binning)
    for suffix in (".csv", ".npz", ".parquet"):
        save_predictions(f"s{suffix}", test)
        run(f"apply b.safetensors s{suffix} -o o{suffix}", *["--replace"] * (suffix != ".npz"))
        back = read(f"o{suffix}")
        assert back.decision is not None
        assert back.decision.tolist() == after.predicted.tolist()
        np.testing.assert_allclose(back.confidence, after.confidence, rtol=1e-6)


def test_what_cannot_be_written_is_refused(run: Run, home: Path) -> None:
    Path("s.csv").write_text(TABLES["commas"])
    for line, said in (
        ("c.safetensors s.csv -o s.csv", "expected an output other than the input, got s.csv for both"),
        ("c.safetensors s.csv -o o.parquet", "the output for s.csv is a .csv file; name an output that ends in .csv"),
    ):
        run(f"apply {line}", code=2, says=said)
    run("apply c.safetensors s.csv -o o.csv")
    run("apply c.safetensors o.csv -o oo.csv", code=2, says="already has a column 'calibrated_p_cat'")
    assert not Path("oo.csv").exists()
