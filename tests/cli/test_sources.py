"""Files as people have them: source → command → the same figures; and what is refused, with the command that would work."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch
from tests.cli.conftest import some_logits

import calibrant
from calibrant import Predictions

Run = Callable[..., Any]
NAMES = ["cat", "dog", "eel", "fox"]
LOGITS, LABELS = some_logits(rows=300, classes=4, seed=5)
PROBS = torch.softmax(torch.tensor(LOGITS, dtype=torch.float64), 1).numpy()
TEXT = np.array(NAMES)[LABELS]
WRITERS: dict[str, Callable[[Path], None]] = {}


def source(command: str, *, rows: str = "all", reads: str = "logits") -> Callable[..., Any]:
    """Register a function that writes what ``command`` reads into a folder."""

    def add(write: Callable[[Path], None]) -> Callable[[Path], None]:
        WRITERS[command] = write
        EXPECTED[command] = (rows, reads)
        return write

    return add


EXPECTED: dict[str, tuple[str, str]] = {}


def csv(path: Path, columns: dict[str, Any], *, separator: str = ",", digits: int | None = None) -> None:
    """Write columns as text."""
    lines = [separator.join(columns)]
    for row in zip(*columns.values(), strict=True):
        lines.append(separator.join(f"{v:.{digits}f}" if digits and isinstance(v, float) else str(v) for v in row))
    path.write_text("\n".join(lines) + "\n")


def spread(prefix: str, values: Any, names: Any = range(4)) -> dict[str, Any]:
    return {f"{prefix}{name}": values[:, place] for place, name in enumerate(names)}


@source("evaluate --logits z.npy --labels y.npy")
def npy_pair(home: Path) -> None:
    np.save(home / "z.npy", LOGITS)
    np.save(home / "y.npy", LABELS)


@source("evaluate p.npy --kind probs --labels y.txt", reads="probs")
def npy_probs_and_text_labels(home: Path) -> None:
    np.save(home / "p.npy", PROBS)
    (home / "y.txt").write_text("\n".join(map(str, LABELS)) + "\n")


@source("evaluate run1_logits.npy --labels y.csv --label truth")
def npy_named_logits(home: Path) -> None:
    np.save(home / "run1_logits.npy", LOGITS)
    csv(home / "y.csv", {"truth": LABELS})


@source("evaluate arrays", rows="test")
def folder_of_npy(home: Path) -> None:
    (home / "arrays").mkdir()
    np.save(home / "arrays" / "test_logits.npy", LOGITS)
    np.save(home / "arrays" / "test_labels.npy", LABELS)


@source("evaluate a.npz")
def npz(home: Path) -> None:
    np.savez(home / "a.npz", logits=LOGITS, labels=LABELS)


@source("evaluate arr.npz --kind logits --label arr_1")
def npz_without_names(home: Path) -> None:
    np.savez(home / "arr.npz", LOGITS, LABELS)


@source("evaluate hf.npz")
def npz_of_a_trainer(home: Path) -> None:
    np.savez(home / "hf.npz", predictions=LOGITS, label_ids=LABELS)


@source("evaluate names.npz")
def npz_with_text_labels(home: Path) -> None:
    np.savez(home / "names.npz", logits=LOGITS, labels=TEXT, class_names=np.array(NAMES))


@source("evaluate a.safetensors")
def safetensors(home: Path) -> None:
    calibrant.save_predictions(home / "a.safetensors", {"all": Predictions.from_logits(LOGITS, LABELS)})


@source("evaluate dict.pt")
def pt_dict(home: Path) -> None:
    torch.save({"logits": torch.tensor(LOGITS), "labels": torch.tensor(LABELS), "epoch": 3}, home / "dict.pt")


@source("evaluate pair.pt --kind logits")
def pt_pair(home: Path) -> None:
    torch.save((torch.tensor(LOGITS), torch.tensor(LABELS)), home / "pair.pt")


@source("evaluate splits.pth --split val", rows="val")
def pt_nested(home: Path) -> None:
    torch.save({"val": {"logits": torch.tensor(LOGITS), "labels": torch.tensor(LABELS)}}, home / "splits.pth")


@source("evaluate own.csv")
def csv_with_our_names(home: Path) -> None:
    csv(home / "own.csv", spread("logits_", LOGITS.astype(float)) | {"label": LABELS})


@source("evaluate s.csv --columns 'p_*' --label truth --kind probs", reads="probs")
def csv_with_text_labels(home: Path) -> None:
    csv(home / "s.csv", {"id": range(300)} | spread("p_", PROBS, NAMES) | {"truth": TEXT, "region": ["EU", "US"] * 150})


@source("evaluate r.csv --columns cat,dog,eel,fox --label y --kind probs --normalize", reads="rounded")
def csv_of_rounded_probabilities(home: Path) -> None:
    csv(home / "r.csv", spread("", PROBS, NAMES) | {"y": TEXT}, digits=3)


@source("evaluate n.csv --columns 'z*' --label y --kind logits --class-names names.txt")
def csv_with_names_of_classes(home: Path) -> None:
    csv(home / "n.csv", spread("z", LOGITS.astype(float)) | {"y": TEXT})
    (home / "names.txt").write_text("\n".join(NAMES))


@source("evaluate one.csv --columns 'z*' --label y --kind logits")
def csv_counting_from_one(home: Path) -> None:
    csv(home / "one.csv", spread("z", LOGITS.astype(float), range(1, 5)) | {"y": LABELS + 1})


@source("evaluate list.csv --columns scores --label y --kind logits")
def csv_with_lists_as_text(home: Path) -> None:
    rows = [f'"{json.dumps(row)}",{label}' for row, label in zip(LOGITS.astype(float).tolist(), LABELS, strict=True)]
    (home / "list.csv").write_text("\n".join(["scores,y", *rows]))


@source("evaluate t.tsv --columns 'z*' --label y --kind logits")
def tsv(home: Path) -> None:
    csv(home / "t.tsv", spread("z", LOGITS.astype(float)) | {"y": LABELS}, separator="\t")


@source("evaluate parts.csv --split eval", rows="eval")
def csv_with_a_column_of_splits(home: Path) -> None:
    twice = np.concatenate([LOGITS, LOGITS]).astype(float)
    columns = spread("logits_", twice) | {"label": np.tile(LABELS, 2), "split": ["dev"] * 300 + ["eval"] * 300}
    csv(home / "parts.csv", columns)


@source("evaluate bin.csv --columns score --label y --kind probs", reads="binary")
def csv_of_binary_probabilities(home: Path) -> None:
    csv(home / "bin.csv", {"score": PROBS[:, 0], "y": (LABELS == 0).astype(int)})


@source("evaluate top.csv", reads="pairs")
def csv_of_top_labels(home: Path) -> None:
    csv(home / "top.csv", {"confidence": PROBS.max(1), "prediction": np.array(NAMES)[PROBS.argmax(1)], "label": TEXT})


@source("evaluate rows.jsonl")
def jsonl(home: Path) -> None:
    rows = [
        {"logits": z, "label": int(y), "text": "…"} for z, y in zip(LOGITS.astype(float).tolist(), LABELS, strict=True)
    ]
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@source("evaluate pipe.jsonl --columns scores --label gold --kind probs", reads="probs")
def jsonl_of_a_pipeline(home: Path) -> None:
    def scores(p: Any) -> list[dict[str, Any]]:
        return [{"label": NAMES[k], "score": float(p[k])} for k in np.argsort(-p)]

    rows = [{"scores": scores(p), "gold": gold} for p, gold in zip(PROBS, TEXT.tolist(), strict=True)]
    (home / "pipe.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@source("evaluate pipe.json --columns scores --labels gold.txt --kind probs", reads="probs")
def json_of_a_pipeline(home: Path) -> None:
    rows = [[{"label": f"LABEL_{k}", "score": float(p[k])} for k in np.argsort(-p)] for p in PROBS]
    (home / "pipe.json").write_text(json.dumps(rows))
    (home / "gold.txt").write_text("\n".join(map(str, LABELS)))


@source("evaluate list.parquet")
def parquet_of_lists(home: Path) -> None:
    table = {"logits": LOGITS.tolist(), "label": pa.array(TEXT).dictionary_encode().cast(pa.string()), "x": ["…"] * 300}
    pa.parquet.write_table(pa.table(table | {"label": LABELS}), home / "list.parquet")


@source("evaluate wide.parquet --columns 'p*' --label truth --kind probs", reads="probs")
def parquet_of_columns(home: Path) -> None:
    truth = pa.array(LABELS.astype(np.int8))
    pa.parquet.write_table(pa.table(spread("p", PROBS) | {"truth": truth}), home / "wide.parquet")


@source("evaluate large.arrow --columns logits --label y --kind logits")
def arrow_stream_of_large_lists(home: Path) -> None:
    column = pa.array(LOGITS.tolist(), type=pa.large_list(pa.float32()))
    table = pa.table({"logits": column, "y": LABELS})
    with pa.OSFile(str(home / "large.arrow"), "wb") as out, pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)


@source("evaluate cats.feather --columns 'p_*' --label y --kind probs", reads="probs")
def feather_with_categories(home: Path) -> None:
    table = pa.table(spread("p_", PROBS, NAMES) | {"y": pa.array(TEXT).dictionary_encode()})
    pyarrow.feather.write_feather(table, str(home / "cats.feather"))


@source("evaluate tables")
def folder_of_csv(home: Path) -> None:
    (home / "tables").mkdir()
    for place in range(3):
        part = slice(100 * place, 100 * place + 100)
        columns = spread("logits_", LOGITS[part].astype(float)) | {"label": LABELS[part]}
        csv(home / "tables" / f"{place}.csv", columns)


@source("evaluate named --split test", rows="test")
def folder_of_files_called_as_splits(home: Path) -> None:
    (home / "named").mkdir()
    for split in ("valid", "test"):
        csv(home / "named" / f"{split}.csv", spread("logits_", LOGITS.astype(float)) | {"label": LABELS})


@source("evaluate runs --split holdout", rows="holdout")
def folder_of_folders(home: Path) -> None:
    for split in ("calibration", "holdout"):
        (home / "runs" / split).mkdir(parents=True)
        np.save(home / "runs" / split / "logits.npy", LOGITS)
        np.save(home / "runs" / split / "labels.npy", LABELS)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", WRITERS)
def test_a_source_is_read(command: str, home: Path, run: Run) -> None:
    WRITERS[command](home)
    split, reads = EXPECTED[command]
    names = ["Accuracy", "ECE"] if reads == "pairs" else ["Brier", "ECE"]
    done = run(
        *shlex.split(command), "--draws", "0", "--json", *(part for name in names for part in ("--metric", name))
    )
    assert done.exit_code == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert {(row["split"], row["n"]) for row in rows} == {(split, 300)}
    binary = Predictions.from_binary_probs(PROBS[:, 0], (LABELS == 0).astype(int))
    whole = {
        "logits": Predictions.from_logits(LOGITS, LABELS),
        "probs": Predictions.from_probs(PROBS, LABELS),
        "rounded": Predictions.from_probs(PROBS.round(3) / PROBS.round(3).sum(1, keepdims=True), LABELS),
        "binary": binary,
        "pairs": Predictions.from_probs(PROBS, LABELS).top_label(),
    }[reads]
    metrics = [getattr(calibrant.metrics, name)() for name in names]
    assert [row["value"] for row in rows] == pytest.approx([metric(whole) for metric in metrics], abs=2e-6)


def test_the_page_lists_these_sources() -> None:
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
    listed = re.findall(r"^\| .* \| `calibrant (evaluate [^`]*)` \|", page, flags=re.MULTILINE)
    assert sorted(listed) == sorted(WRITERS)
    assert len(listed) >= 25
