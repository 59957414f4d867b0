"""``apply`` gives a table back as it was, with calibrated columns beside its scores or instead of them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cli.conftest import Run

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
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(400, 3, generator=generator, dtype=torch.float64) * 4
    labels = torch.multinomial(torch.softmax(logits / 2, 1), 1, generator=generator)[:, 0]
    TemperatureScaling().fit(logits, labels).save("c.safetensors")
    Path("s.csv").write_text(TEXT)
    return tmp_path


def expected() -> np.ndarray:
    data = calibrant.Predictions.from_probs(PROBS)
    return data.calibrated_by(calibrant.load("c.safetensors")).probs.numpy()


def test_cells_come_back_with_their_characters(home: Path, run: Run) -> None:
    done = run("apply", "c.safetensors", "s.csv", "--columns", "p_*", "--kind", "probs", "-o", "o.csv")
    assert done.exit_code == 0, done.stderr
    old, new = TEXT.splitlines(), Path("o.csv").read_text().splitlines()
    assert new[0] == old[0] + ",p_cat_calibrated,p_dog_calibrated,p_eel_calibrated"
    assert all(after.startswith(before + ",") for before, after in zip(old, new, strict=True))
    found = np.array([[float(cell) for cell in line.rsplit(",", 3)[1:]] for line in new[1:]])
    np.testing.assert_allclose(found, expected(), atol=1e-12)


def test_columns_instead_labels_and_the_top(home: Path, run: Run) -> None:
    read = ["apply", "c.safetensors", "s.csv", "--columns", "p_*", "--kind", "probs"]
    assert run(*read, "--replace", "-o", "o.csv").exit_code == 0
    lines = Path("o.csv").read_text().splitlines()
    assert lines[0] == TEXT.splitlines()[0]
    assert float(lines[1].split(",")[2]) == pytest.approx(expected()[0, 0])
    assert run(*read, "--as", "top", "--suffix", "_c", "-o", "t.csv").exit_code == 0
    head, first = Path("t.csv").read_text().splitlines()[:2]
    assert head.endswith(",predicted_c,confidence_c")
    assert first.split(",")[-2] == "cat"
    assert run(*read, "--as", "sums", "-o", "u.csv").exit_code == 2
    assert not Path("u.csv").exists()


def test_lines_of_json_keep_nested_cells_and_dates(home: Path, run: Run) -> None:
    rows = [
        {"id": f"0{n}", "at": "2024-01-02T03:04:05", "meta": {"a": [n]}, "probs": row}
        for n, row in enumerate(PROBS.tolist())
    ]
    Path("s.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run("apply", "c.safetensors", "s.jsonl", "-o", "o.jsonl")
    assert done.exit_code == 0, done.stderr
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
    done = run("apply", "c.safetensors", "s.parquet", "-o", "o.parquet")
    assert done.exit_code == 0, done.stderr
    found = pq.read_table("o.parquet")
    assert found.select(table.column_names).equals(table)
    np.testing.assert_allclose(found.column("probs_2_calibrated").to_numpy(), expected()[:, 2], atol=1e-12)


def test_arrays_hold_probabilities_when_asked(home: Path, run: Run) -> None:
    np.savez("a.npz", probs=PROBS.numpy(), ids=np.arange(3))
    assert run("apply", "c.safetensors", "a.npz", "--as", "probs", "-o", "o.npz").exit_code == 0
    with np.load("o.npz") as found:
        assert sorted(found.files) == ["ids", "probs"]
        np.testing.assert_allclose(
            found["probs"], expected(), atol=1e-6
        )  # arrays are written as the logits' float32 has them
    assert run("apply", "c.safetensors", "a.npz", "--as", "top", "-o", "p.npz").exit_code == 2
