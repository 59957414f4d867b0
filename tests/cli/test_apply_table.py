"""``apply`` gives a table back as it was, with calibrated columns beside its scores or instead of them."""

import bz2
import csv
import gzip
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cli.conftest import Run
from tests.draws import drawn

import calibrant
from calibrant.calibrators import TemperatureScaling

TEXT = (
    "id,when,p_cat,p_dog,p_eel,truth,price\n"
    '007,2024-01-02,.7,.2,.1,cat,1.10\n"a,b",2024-02-03,.2,.5,.3,,2\n010,,.1,.1,.8,eel,3.0\n'
)
PROBS = torch.tensor([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8]], dtype=torch.float64)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    logits, labels = drawn(400, 3, seed=3, spread=4)
    TemperatureScaling().fit(logits, labels).save("c.safetensors")
    Path("s.csv").write_text(TEXT)
    return tmp_path


def expected() -> np.ndarray:
    data = calibrant.Predictions.from_probs(PROBS)
    return data.calibrated_by(calibrant.load("c.safetensors")).probs.numpy()


def test_cells_come_back_with_their_characters(home: Path, run: Run) -> None:
    run("apply", "c.safetensors", "s.csv", "--columns", "p_*", "--kind", "probs", "-o", "o.csv", code=0)
    old, new = TEXT.splitlines(), Path("o.csv").read_text().splitlines()
    assert new[0] == old[0] + ",p_cat_calibrated,p_dog_calibrated,p_eel_calibrated"
    assert all(after.startswith(before + ",") for before, after in zip(old, new, strict=True))
    found = np.array([[float(cell) for cell in line.rsplit(",", 3)[1:]] for line in new[1:]])
    np.testing.assert_allclose(found, expected(), atol=1e-12)


def test_decisions_with_their_confidences_are_calibrated_whole(home: Path, run: Run) -> None:
    data = calibrant.Predictions.from_logits(*drawn(900, 3, seed=5, spread=3))
    pairs, truth = data.top_label(), data.need_labels().tolist()
    rows = zip(data.predicted.tolist(), pairs.p.tolist(), truth, strict=True)
    lines = [
        f"{i:04d},{'val' if i < 600 else 'test'},{'abc'[decided]},{p:.6f},{'abc'[true]}"
        for i, (decided, p, true) in enumerate(rows)
    ]
    Path("d.csv").write_text("\n".join(["id,split,predicted_label,score,true_label", *lines]) + "\n")
    run("fit", "d.csv", "-o", "d.safetensors", code=0)
    told = json.loads(
        run("evaluate", "d.csv", "--calibrator", "d.safetensors", "--split", "test", "--json", code=0).stdout
    )
    before, after = (one["value"] for one in told["rows"] if one["metric"].startswith("ECE(binning=EqualWidth"))
    assert after < 0.6 * before
    run("apply", "d.safetensors", "d.csv", "-o", "o.csv", code=0)
    new = Path("o.csv").read_text().splitlines()
    assert new[0] == "id,split,predicted_label,score,true_label,score_calibrated"
    given = calibrant.BinaryPairs.from_decisions([float(one.split(",")[3]) for one in lines], pairs.y.long())
    expected = given.calibrated_by(calibrant.load("d.safetensors"), allow_fit_rows=True).p
    np.testing.assert_allclose([float(one.rsplit(",", 1)[1]) for one in new[1:]], expected, atol=1e-9)
    assert [one.rsplit(",", 1)[0] for one in new[1:]] == lines
    for command, said in (
        (("apply", "d.safetensors", "d.csv", "--as", "top", "-o", "x.csv"), "probs of decisions alone"),
        (("fit", "d.csv", "--keep", "argmax", "-o", "x.safetensors"), "top-label confidences only"),
        (
            ("apply", "d.safetensors", "s.csv", "--columns", "p_*", "--kind", "probs", "-o", "x.csv"),
            "confidences of decisions in s.csv",
        ),
    ):
        assert said in run(*command, code=2).stderr.replace("\n", " ")
        assert not [*Path().glob("x.*")]


def test_nulls_in_lists_beside_the_scores_stay(home: Path, run: Run) -> None:
    rows = [
        {"probs": one, "label": 0, "history": [0.5, None], "tags": [1] * (1 + (one[0] > 0.5))} for one in PROBS.tolist()
    ]
    Path("n.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    run("apply", "c.safetensors", "n.jsonl", "-o", "o.jsonl", code=0)
    found = [json.loads(line) for line in Path("o.jsonl").read_text().splitlines()]
    assert [{name: one[name] for name in rows[0]} for one in found] == rows
    np.testing.assert_allclose([one["probs_calibrated"] for one in found], expected(), atol=1e-9)


def test_a_calibrator_knows_its_classes_by_name(home: Path, run: Run) -> None:
    data = calibrant.Predictions.from_logits(*drawn(400, 3, seed=5, spread=3))
    rows = [
        (*(f"{p:.6f}" for p in one), "cba"[y])
        for one, y in zip(data.probs.tolist(), data.need_labels().tolist(), strict=True)
    ]
    Path("f.csv").write_text("p_c,p_b,p_a,truth\n" + "\n".join(map(",".join, rows)) + "\n")
    Path("other.csv").write_text(
        "p_a,p_b,p_c,truth\n" + "\n".join(",".join((*one[2::-1], one[3])) for one in rows) + "\n"
    )
    run("fit", "f.csv", "--method", "VectorScaling", "--split", "all", "-o", "v.safetensors", code=0)
    for command in (
        ("evaluate", "other.csv", "--calibrator", "v.safetensors"),
        ("apply", "v.safetensors", "other.csv", "-o", "x.csv"),
    ):
        said = run(*command, code=2).stderr
        assert "the classes that the calibrator was fitted on, in order: c, b, a, got a, b, c" in said
    run("apply", "v.safetensors", "f.csv", "-o", "one.csv", code=0)
    run("apply", "v.safetensors", "other.csv", "--columns", "p_c,p_b,p_a", "--kind", "probs", "-o", "two.csv", code=0)
    one, two = (
        calibrant.read(
            file, columns=("p_c_calibrated", "p_b_calibrated", "p_a_calibrated"), kind="probs", label="truth"
        )
        for file in ("one.csv", "two.csv")
    )
    assert torch.allclose(one.logits, two.logits, atol=1e-5)


@pytest.mark.parametrize("sign", ["", "%", " %"])
def test_percentages_come_back_as_such(sign: str, home: Path, run: Run) -> None:
    rows = [",".join(f"{100 * p:g}{sign}" for p in row) for row in PROBS.tolist()]
    Path("p.csv").write_text("\n".join(["p_cat,p_dog,p_eel", *rows]) + "\n")
    more = [] if sign else ["--normalize", "--columns", "p_*", "--kind", "probs"]
    run("apply", "c.safetensors", "p.csv", *more, "-o", "o.csv", code=0)
    cells = [line.split(",")[3:] for line in Path("o.csv").read_text().splitlines()[1:]]
    assert all(cell.endswith(sign) for row in cells for cell in row)
    found = np.array([[float(cell.removesuffix(sign)) for cell in row] for row in cells])
    np.testing.assert_allclose(found, 100 * expected(), atol=1e-6)


def test_a_table_of_logits_keeps_its_columns_cells_and_text(home: Path, run: Run) -> None:
    text = "id,logits_0,logits_1,logits_2,truth,price\n007,2.0,.50,-1,cat,1.10\n008,0.1,.2,.3,,2\n"
    Path("z.csv").write_text(text)
    run("apply", "c.safetensors", "z.csv", "-o", "o.csv", code=0)
    rows = list(csv.reader(io.StringIO(Path("o.csv").read_text())))
    old = list(csv.reader(io.StringIO(text)))
    assert [row[:1] + row[4:] for row in rows] == [row[:1] + row[4:] for row in old]
    logits = torch.tensor([[2.0, 0.5, -1.0], [0.1, 0.2, 0.3]], dtype=torch.float64)
    after = calibrant.load("c.safetensors")(logits).numpy()
    np.testing.assert_allclose(np.array(rows[1:])[:, 1:4].astype(float), after, atol=1e-6)


@pytest.mark.parametrize("name", ["s.csv", "s.csv.gz", "s.tsv", "s.csv.bz2"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_dialect_comes_back_as_it_was(name: str, encoding: str, home: Path, run: Run) -> None:
    """Semicolons, decimal commas, ids with zeros, a formula, quotes and line ends in cells, in any encoding and compression."""
    text = (
        'id;p_cat;p_dog;p_eel;note\n007;0,7;0,2;0,1;=1+1\n010;0,2;0,5;0,3;"two\nlines; ""x"""\n011;0,1;0,1;0,8;1,10\n'
    )
    pack = {".gz": gzip, ".bz2": bz2}.get(Path(name).suffix)
    content = text.encode(encoding)
    Path(name).write_bytes(content if pack is None else pack.compress(content))
    run("apply", "c.safetensors", name, "-o", f"o{name[1:]}", code=0)
    written = Path(f"o{name[1:]}").read_bytes()
    written = written if pack is None else pack.decompress(written)
    assert written[:2] == content[:2]
    old, new = (
        list(csv.reader(io.StringIO(one.decode(encoding), newline=""), delimiter=";")) for one in (content, written)
    )
    assert [row[:5] for row in new] == old
    found = np.array([[float(cell.replace(",", ".")) for cell in row[5:]] for row in new[1:]])
    np.testing.assert_allclose(found, expected(), atol=1e-12)


def test_a_class_that_begins_as_a_formula_does_is_no_formula(home: Path, run: Run) -> None:
    Path("s.csv").write_text("p_=A1,p_-1,p_b\n.7,.2,.1\n.2,.5,.3\n.1,.1,.8\n")
    run("apply", "c.safetensors", "s.csv", "--as", "label", "-o", "o.csv", code=0)
    assert [line.split(",")[3] for line in Path("o.csv").read_text().splitlines()[1:]] == ["'=A1", "-1", "b"]


def test_a_workbook_comes_back_with_its_formulas(home: Path, run: Run) -> None:
    openpyxl = pytest.importorskip("openpyxl", reason="optional package 'openpyxl' is not installed")
    book = openpyxl.Workbook()
    for row in [
        ["id", "p_cat", "p_dog", "p_eel", "sum"],
        *([f"0{n}", *row, f"=SUM(B{n + 2})"] for n, row in enumerate(PROBS.tolist())),
    ]:
        book.active.append(row)
    book.save("s.xlsx")
    run("apply", "c.safetensors", "s.xlsx", "-o", "o.xlsx", code=0)
    rows = [list(row) for row in openpyxl.load_workbook("o.xlsx").active.iter_rows(values_only=True)]
    assert [row[:5] for row in rows] == [list(row) for row in book.active.iter_rows(values_only=True)]
    np.testing.assert_allclose(np.array([row[5:] for row in rows[1:]], dtype=float), expected(), atol=1e-12)


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_json_comes_back_in_its_layout(layout: str, home: Path, run: Run) -> None:
    rows = [{"id": n, "at": {"x": [n]}, "probs": row} for n, row in enumerate(PROBS.tolist())]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    Path("s.json").write_text(json.dumps(rows if layout == "rows" else columns))
    run("apply", "c.safetensors", "s.json", "-o", "o.json", code=0)
    found = json.loads(Path("o.json").read_text())
    new = found.pop("probs_calibrated") if layout == "columns" else [row.pop("probs_calibrated") for row in found]
    np.testing.assert_allclose(new, expected(), atol=1e-12)
    assert found == (rows if layout == "rows" else columns)


def test_scores_in_parts_of_cells_keep_their_rows(home: Path, run: Run) -> None:
    names = ["cat", "dog", "eel"]
    rows = [
        {"instance": {"id": n}, "prediction": {"classes": names, "scores": row}} for n, row in enumerate(PROBS.tolist())
    ]
    Path("v.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run("apply", "c.safetensors", "v.jsonl", "-o", "o.jsonl", code=0)
    found = [json.loads(line) for line in Path("o.jsonl").read_text().splitlines()]
    new = [[row.pop(f"scores_{name}_calibrated") for name in names] for row in found]
    np.testing.assert_allclose(new, expected(), atol=1e-12)
    assert found == rows
    run("apply", "c.safetensors", "v.jsonl", "--replace", "-o", "r.jsonl", code=2, says="leave --replace out")


def test_columns_instead_labels_and_the_top(home: Path, run: Run) -> None:
    read = ["apply", "c.safetensors", "s.csv", "--columns", "p_*", "--kind", "probs"]
    run(*read, "--replace", "-o", "o.csv", code=0)
    lines = Path("o.csv").read_text().splitlines()
    assert lines[0] == TEXT.splitlines()[0]
    assert float(lines[1].split(",")[2]) == pytest.approx(expected()[0, 0])
    run(*read, "--as", "top", "--suffix", "_c", "-o", "t.csv", code=0)
    head, first = Path("t.csv").read_text().splitlines()[:2]
    assert head.endswith(",predicted_c,confidence_c")
    assert first.split(",")[-2] == "cat"
    run(*read, "--as", "sums", "-o", "u.csv", code=2)
    assert not Path("u.csv").exists()


def test_lines_of_json_keep_nested_cells_and_dates(home: Path, run: Run) -> None:
    rows = [
        {"id": f"0{n}", "at": "2024-01-02T03:04:05", "meta": {"a": [n]}, "probs": row}
        for n, row in enumerate(PROBS.tolist())
    ]
    Path("s.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run("apply", "c.safetensors", "s.jsonl", "-o", "o.jsonl", code=0)
    found = [json.loads(line) for line in Path("o.jsonl").read_text().splitlines()]
    np.testing.assert_allclose([row.pop("probs_calibrated") for row in found], expected(), atol=1e-12)
    assert found == rows


def test_parquet_keeps_types(home: Path, run: Run) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(
        {
            "kind": pa.array(["x", "y", "x"]).dictionary_encode(),
            "at": pa.array([1, None, 3], type=pa.timestamp("ms")),
            **{f"probs_{k}": PROBS[:, k].numpy() for k in range(3)},
        }
    )
    pq.write_table(table, "s.parquet")
    run("apply", "c.safetensors", "s.parquet", "-o", "o.parquet", code=0)
    found = pq.read_table("o.parquet")
    assert found.select(table.column_names).equals(table)
    np.testing.assert_allclose(found.column("probs_2_calibrated").to_numpy(), expected()[:, 2], atol=1e-12)


def test_arrays_hold_probabilities_when_asked(home: Path, run: Run) -> None:
    np.savez("a.npz", probs=PROBS.numpy(), ids=np.arange(3))
    run("apply", "c.safetensors", "a.npz", "--as", "probs", "-o", "o.npz", code=0)
    with np.load("o.npz") as found:
        assert sorted(found.files) == ["ids", "probs"]
        np.testing.assert_allclose(
            found["probs"], expected(), atol=1e-6
        )  # arrays are written as the logits' float32 has them
    run("apply", "c.safetensors", "a.npz", "--as", "top", "-o", "p.npz", code=2)
