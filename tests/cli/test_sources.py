"""Files as people have them: source → command → the same figures; and what is refused, with the command that would work."""

import gzip
import json
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch
from tests.cli.conftest import Run, some_logits

import calibrant
from calibrant import Predictions
from calibrant.errors import FileFormatError, InputError

NAMES = ["cat", "dog", "eel", "fox"]
LOGITS, LABELS = some_logits(rows=300, classes=4, seed=5)
PROBS = torch.softmax(torch.tensor(LOGITS, dtype=torch.float64), 1).numpy()
TEXT = np.array(NAMES)[LABELS]


def csv(path: Path, columns: dict[str, Any], *, separator: str = ",", digits: int | None = None) -> None:
    """Write columns as text."""
    lines = [separator.join(columns)]
    for row in zip(*columns.values(), strict=True):
        lines.append(separator.join(f"{v:.{digits}f}" if digits and isinstance(v, float) else str(v) for v in row))
    path.write_text("\n".join(lines) + "\n")


def spread(prefix: str, values: Any, names: Any = range(4)) -> dict[str, Any]:
    return {f"{prefix}{name}": values[:, place] for place, name in enumerate(names)}


ROWS, COLUMNS = LOGITS.astype(float).tolist(), spread("logits_", LOGITS.astype(float)) | {"label": LABELS}
SORTED = [[(k, float(p[k])) for k in np.argsort(-p)] for p in PROBS]  # as a pipeline of a language model has them
HALVES = {"label": np.tile(LABELS, 2), "split": ["dev"] * 300 + ["eval"] * 300}

# What a command reads, the split that it finds, and what the rows are.
SOURCES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "evaluate --logits z.npy --labels y.npy": ("all", "logits", {"z.npy": LOGITS, "y.npy": LABELS}),
    "evaluate p.npy --kind probs --labels y.txt": ("all", "probs", {"p.npy": PROBS, "y.txt": LABELS}),
    "evaluate run1_logits.npy --labels y.csv --label truth": (
        "all", "logits", {"run1_logits.npy": LOGITS, "y.csv": {"truth": LABELS}}
    ),
    "evaluate arrays": ("test", "logits", {"arrays/test_logits.npy": LOGITS, "arrays/test_labels.npy": LABELS}),
    "evaluate a.npz": ("all", "logits", {"a.npz": {"logits": LOGITS, "labels": LABELS}}),
    "evaluate arr.npz --kind logits --label arr_1": ("all", "logits", {"arr.npz": {"arr_0": LOGITS, "arr_1": LABELS}}),
    "evaluate hf.npz": ("all", "logits", {"hf.npz": {"predictions": LOGITS, "label_ids": LABELS}}),
    "evaluate names.npz": (
        "all", "logits", {"names.npz": {"logits": LOGITS, "labels": TEXT, "class_names": np.array(NAMES)}}
    ),
    "evaluate a.safetensors": ("all", "logits", {"a.safetensors": {"all": Predictions.from_logits(LOGITS, LABELS)}}),
    "evaluate dict.pt": (
        "all", "logits", {"dict.pt": {"logits": torch.tensor(LOGITS), "labels": torch.tensor(LABELS), "epoch": 3}}
    ),
    "evaluate pair.pt --kind logits": ("all", "logits", {"pair.pt": (torch.tensor(LOGITS), torch.tensor(LABELS))}),
    "evaluate splits.pth --split val": (
        "val", "logits", {"splits.pth": {"val": {"logits": torch.tensor(LOGITS), "labels": torch.tensor(LABELS)}}}
    ),
    "evaluate own.csv": ("all", "logits", {"own.csv": COLUMNS}),
    "evaluate s.csv --columns 'p_*' --label truth --kind probs": (
        "all", "probs",
        {"s.csv": {"id": range(300)} | spread("p_", PROBS, NAMES) | {"truth": TEXT, "region": ["EU", "US"] * 150}},
    ),
    "evaluate r.csv --columns cat,dog,eel,fox --label y --kind probs --normalize": (
        "all", "rounded", {"r.csv": spread("", PROBS.round(3), NAMES) | {"y": TEXT}}
    ),
    "evaluate n.csv --columns 'z*' --label y --kind logits --class-names names.txt": (
        "all", "logits", {"n.csv": spread("z", LOGITS.astype(float)) | {"y": TEXT}, "names.txt": NAMES}
    ),
    "evaluate one.csv --columns 'z*' --label y --kind logits": (
        "all", "logits", {"one.csv": spread("z", LOGITS.astype(float), range(1, 5)) | {"y": LABELS + 1}}
    ),
    "evaluate list.csv --columns scores --label y --kind logits": (
        "all", "logits", {"list.csv": {"scores": [f'"{json.dumps(row)}"' for row in ROWS], "y": LABELS}}
    ),
    "evaluate t.tsv --columns 'z*' --label y --kind logits": (
        "all", "logits", {"t.tsv": spread("z", LOGITS.astype(float)) | {"y": LABELS}}
    ),
    "evaluate parts.csv --split eval": (
        "eval", "logits", {"parts.csv": spread("logits_", np.tile(LOGITS.astype(float), (2, 1))) | HALVES}
    ),
    "evaluate bin.csv --columns score --label y --kind probs": (
        "all", "binary", {"bin.csv": {"score": PROBS[:, 0], "y": (LABELS == 0).astype(int)}}
    ),
    "evaluate top.csv": (
        "all", "pairs",
        {"top.csv": {"confidence": PROBS.max(1), "prediction": np.array(NAMES)[PROBS.argmax(1)], "label": TEXT}},
    ),
    "evaluate rows.jsonl": (
        "all", "logits",
        {"rows.jsonl": [{"logits": z, "label": y, "text": "…"} for z, y in zip(ROWS, LABELS.tolist(), strict=True)]},
    ),
    "evaluate pipe.jsonl --columns scores --label gold --kind probs": (
        "all", "probs",
        {"pipe.jsonl": [
            {"scores": [{"label": NAMES[k], "score": p} for k, p in row], "gold": gold}
            for row, gold in zip(SORTED, TEXT.tolist(), strict=True)
        ]},
    ),
    "evaluate pipe.json --columns scores --labels gold.txt --kind probs": (
        "all", "probs",
        {"pipe.json": [[{"label": f"LABEL_{k}", "score": p} for k, p in row] for row in SORTED], "gold.txt": LABELS},
    ),
    "evaluate list.parquet": (
        "all", "logits", {"list.parquet": {"logits": LOGITS.tolist(), "label": LABELS, "x": ["…"] * 300}}
    ),
    "evaluate wide.parquet --columns 'p*' --label truth --kind probs": (
        "all", "probs", {"wide.parquet": spread("p", PROBS) | {"truth": pa.array(LABELS.astype(np.int8))}}
    ),
    "evaluate large.arrow --columns logits --label y --kind logits": (
        "all", "logits",
        {"large.arrow": {"logits": pa.array(LOGITS.tolist(), type=pa.large_list(pa.float32())), "y": LABELS}},
    ),
    "evaluate cats.feather --columns 'p_*' --label y --kind probs": (
        "all", "probs", {"cats.feather": spread("p_", PROBS, NAMES) | {"y": pa.array(TEXT).dictionary_encode()}}
    ),
    "evaluate tables": (
        "all", "logits",
        {f"tables/{at}.csv": {name: one[100 * at : 100 * at + 100] for name, one in COLUMNS.items()} for at in range(3)},
    ),
    "evaluate named --split test": ("test", "logits", {"named/valid.csv": COLUMNS, "named/test.csv": COLUMNS}),
    "evaluate runs --split holdout": (
        "holdout", "logits",
        {f"runs/{split}/{name}.npy": one for split in ("calibration", "holdout") for name, one in
         (("logits", LOGITS), ("labels", LABELS))},
    ),
}  # fmt: skip


def write(home: Path, command: str) -> None:
    """Write the files that ``command`` reads, each as its name ends."""
    for name, content in SOURCES[command][2].items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        match path.suffix:
            case ".npy":
                np.save(path, content)
            case ".npz":
                np.savez(path, **content)
            case ".pt" | ".pth":
                torch.save(content, path)
            case ".csv" | ".tsv":
                csv(path, content, separator="\t" if path.suffix == ".tsv" else ",")
            case ".jsonl" | ".json":
                rows = content if path.suffix == ".jsonl" else [content]
                path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            case ".txt":
                path.write_text("\n".join(map(str, content)) + "\n")
            case ".parquet":
                pa.parquet.write_table(pa.table(content), path)
            case ".feather":
                pyarrow.feather.write_feather(pa.table(content), str(path))
            case ".arrow":
                with pa.OSFile(str(path), "wb") as out, pa.ipc.new_stream(out, pa.table(content).schema) as stream:
                    stream.write_table(pa.table(content))
            case _:
                calibrant.save_predictions(path, content)


@pytest.mark.parametrize("command", SOURCES)
def test_a_source_is_read(command: str, home: Path, run: Run) -> None:
    write(home, command)
    split, reads, _ = SOURCES[command]
    names = ["Accuracy", "ECE"] if reads == "pairs" else ["Brier", "ECE"]
    done = run(
        *shlex.split(command),
        "--draws",
        "0",
        "--json",
        *(part for name in names for part in ("--metric", name)),
        code=0,
    )
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
    page = (Path(__file__).parents[2] / "docs" / "files.md").read_text()
    listed = re.findall(r"^\| .* \| `calibrant (evaluate [^`]*)` \|", page, flags=re.MULTILINE)
    assert set(listed) < set(SOURCES)
    assert len(listed) >= 25


def test_the_page_opens_with_what_is_said_of_two_tables(home: Path, run: Run) -> None:
    two, text = PROBS[:, 2:].sum(1), np.where(LABELS > 1, "dog", "cat")
    csv(home / "scores.csv", {"id": range(300), "p_cat": 1 - two, "p_dog": two, "truth": text})
    csv(home / "churn.csv", {"customer": range(300), "churn_score": two, "churned": np.where(LABELS > 1, "yes", "no")})
    page = (Path(__file__).parents[2] / "docs" / "files.md").read_text()
    shown = page.partition("```text\n")[2].partition("```")[0].split("$ calibrant ")[1:]
    assert len(shown) == 2
    for command, _, said in (one.partition("\n") for one in shown):
        assert run(*shlex.split(command)).stderr.split() == said.split()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the refusals below are about."""
    home = tmp_path_factory.mktemp("made")
    csv(home / "s.csv", {"id": range(300)} | spread("p_", PROBS.clip(0.001), NAMES) | {"truth": TEXT}, digits=3)
    csv(home / "o.csv", {f"p{k}": PROBS[:, k] for k in (1, 3, 2)} | {"p0": PROBS[:, 0], "y": LABELS})
    csv(home / "gap.csv", spread("p", PROBS) | {"y": [""] * 300})
    csv(home / "two.csv", spread("logits_", LOGITS.astype(float)) | {"label": LABELS, "labels": LABELS})
    np.savez(home / "target.npz", val_logits=LOGITS, val_target=LABELS, test_logits=LOGITS, test_target=LABELS)
    torch.save({"probs": torch.tensor(PROBS), "y": torch.tensor(LABELS)}, home / "y.pt")
    holes = spread("p_", PROBS.astype(object)) | {"truth": LABELS}
    holes["p_2"] = [*PROBS[:7, 2], "", *PROBS[8:11, 2], "", *PROBS[12:, 2]]
    csv(home / "hole.csv", holes)
    csv(home / "word.csv", holes | {"p_2": ["0.5x", *PROBS[1:, 2]]})
    (home / "hole.csv.gz").write_bytes(gzip.compress((home / "hole.csv").read_bytes()))
    (home / "book.xlsx").write_bytes(b"PK")
    csv(home / "blank.csv", spread("p_", PROBS, NAMES) | {"truth": [*TEXT[:3], "", *TEXT[4:]]})
    csv(home / "percent.csv", spread("p_", 100 * PROBS, NAMES) | {"truth": TEXT}, digits=1)
    two = {"y_true": LABELS > 1, "y_pred": PROBS.argmax(1) > 1, "y_score": PROBS[:, 2:].sum(1)}
    csv(home / "shop.csv", two)
    np.savez(home / "log.npz", val_log_probs=np.log(PROBS), val_labels=LABELS)
    np.savez(home / "hot.npz", logits=LOGITS, labels=1 - np.eye(4)[LABELS])
    (home / "log.jsonl").write_text('{"doc_id": 0, "arguments": [["a", "b"]], "resps": [[[-1.0, false]]]}\n')
    csv(home / "breed.csv", spread("p_", PROBS, NAMES) | {"breed": TEXT}, digits=2)
    np.savez(home / "words.npz", logits=LOGITS, labels=TEXT)
    csv(home / "far.csv", spread("p", 2 * PROBS) | {"y": LABELS})
    np.save(home / "z.npy", LOGITS)
    np.save(home / "y.npy", LABELS)
    np.savez(home / "both.npz", logits=LOGITS, probs=PROBS[::-1], labels=LABELS)
    np.savez(
        home / "two.npz", dev_logits=LOGITS, dev_labels=LABELS, calibration_logits=LOGITS, calibration_labels=LABELS
    )
    torch.save(torch.nn.Linear(2, 2), home / "model.pt")
    (home / "ragged.jsonl").write_text('{"logits": [1.0, 2.0], "label": 0}\n{"logits": [1.0], "label": 0}\n')
    (home / "bytes.csv").write_bytes(b"\xff\xfe\x81,\x90\n\xef\x01,2\n")
    (home / "bytes.txt").write_bytes(b"\xff\xfe\x81")
    (home / "three.txt").write_text("cat\ndog\neel\n")
    (home / "mixed").mkdir()
    (home / "mixed" / "a.csv").write_text("a\n1\n")
    (home / "mixed" / "b.tsv").write_text("a\n1\n")
    return home


@pytest.fixture
def screen(made: Path, home: Path) -> Path:
    """The working directory with those files."""
    shutil.copytree(made, home, dirs_exist_ok=True)
    return home


READ_S = "s.csv --normalize --columns 'p_*' --label truth --kind probs"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("evaluate s.csv", f"run: calibrant evaluate {READ_S}"),
        ("fit s.csv -o c.safetensors", "run: calibrant fit s.csv -o c.safetensors --normalize --columns 'p_*'"),
        ("evaluate z.npy --labels y.npy", "run: calibrant evaluate z.npy --labels y.npy --kind logits"),
        ("evaluate s.csv --columns 'p_*' --label truth", "add --kind probs, or --kind logits"),
        ("evaluate s.csv --columns 'p_*' --label truth --kind logits", "use --kind probs --normalize"),
        ("evaluate s.csv --columns 'p_*' --label truth --kind probs", "--label truth --kind probs --normalize"),
        (
            "evaluate s.csv --columns 'q_*' --kind probs",
            "got id, p_cat, p_dog, p_eel, p_fox, truth; name some of these",
        ),
        (
            "evaluate breed.csv --columns 'p_*' --kind probs --normalize",
            "run: calibrant evaluate breed.csv --columns 'p_*' --kind probs --normalize --label breed",
        ),
        (
            "evaluate far.csv --columns 'p*' --label y --kind probs --normalize",
            "sum to 1 within 0.05 to normalize, got 2 in",
        ),
        ("evaluate gap.csv --columns 'p*' --label y --kind probs", "expected"),
        (
            "evaluate hole.csv --columns 'p_*' --label truth --kind probs",
            "an empty cell in the column 'p_2' at row 7 (line 9) of hole.csv and 1 more",
        ),
        (
            "convert hole.csv whole.parquet --columns 'p_*' --label truth --kind probs",
            "an empty cell in the column 'p_2' at row 7 (line 9) of hole.csv and 1 more",
        ),
        (
            "evaluate blank.csv --columns 'p_*' --label truth --kind probs",
            "an empty cell in the column 'truth' at row 3 (line 5) of blank.csv",
        ),
        (
            "evaluate percent.csv",
            "run: calibrant evaluate percent.csv --normalize --columns 'p_*' --label truth --kind probs",
        ),
        (
            "evaluate percent.csv --columns 'p_*' --label truth --kind probs",
            "got rows that sum to 100 in percent.csv; run: calibrant evaluate percent.csv",
        ),
        (
            "evaluate percent.csv --columns 'p_*' --label truth --kind logits",
            "got rows that sum to 100 in percent.csv; run: calibrant evaluate percent.csv",
        ),
        ("evaluate shop.csv", "if these are confidences of decisions, call their column confidence; else run: "),
        ("evaluate log.npz", "got val_log_probs in log.npz; name it val_logits: log-probabilities are logits"),
        ("evaluate hot.npz", "got shape (300, 4); add --multilabel"),
        ("evaluate log.jsonl", "run: calibrant ingest log.jsonl log.npz --from lm-eval && calibrant evaluate log.npz"),
        (
            "evaluate words.npz",
            "if the scores are of cat, dog, eel, fox in this order, run: printf '%s\\n' cat dog eel fox > names.txt && calibrant",
        ),
        ("evaluate hole.csv", "an empty cell in the column 'p_2' at row 7 (line 9) of hole.csv and 1 more"),
        (
            "evaluate word.csv --columns 'p_*' --label truth --kind probs",
            "got string in 'p_2' of word.csv ('0.5x' at row 0 (line 2))",
        ),
        ("evaluate hole.csv.gz --label truth", "an empty cell in the column 'p_2' at row 7 (line 9) of hole.csv.gz"),
        ("convert book.xlsx book.npz", "expected"),  # openpyxl, or a workbook that is not broken
        ("evaluate two.csv", "expected one array of each meaning, got labels and label"),
        ("evaluate both.npz", "expected one array of each meaning, got logits and probs"),
        ("evaluate two.npz --split val", "got 'dev' and 'calibration'; name the one that is meant"),
        ("evaluate model.pt --kind logits", "got a broken file, or objects that only executed code could restore"),
        ("evaluate ragged.jsonl", "expected lists of one length"),
        ("evaluate bytes.csv", "expected a readable .csv file"),
        ("evaluate z.npy --kind logits --labels bytes.txt", "expected text in UTF-8, got the byte"),
        (f"evaluate {READ_S} --class-names three.txt", "expected --class-names for 4 classes, got 3 for s.csv"),
        ("evaluate mixed", "got .csv and .tsv; name the file that is meant"),
        ("evaluate z.npy --kind logits --labels y.npy --columns p", "got z in z.npy; leave --columns out"),
        ("evaluate z.npy --kind logits --labels y.npy --normalize", "got none in z.npy; leave --normalize out"),
        ("evaluate z.npy --kind logits --labels y.npy --label y", "which holds one column; leave --label out"),
        (
            "evaluate z.npy --kind likely",
            "'--kind': 'likely' is not one of 'logits', 'probs', 'one-vs-rest'; correct them",
        ),
        ("evaluate --logits z.npy z.npy", "expected --logits or a FILE, got both"),
        ("evaluate --example sst --columns p", "got --columns for an example"),
        ("evaluate", "try --example cifar10"),
        ("fit s.csv --example sst -o c.safetensors", "leave one out"),
        ("compare z.npy z.npy --logits z.npy", "got --logits; leave it out"),
        ("plan --kind logits", "expected a FILE of predictions, got none"),
    ],
)
def test_what_is_refused_is_said_with_what_would_work(command: str, said: str, screen: Path, run: Run) -> None:
    before = sorted(screen.iterdir())
    done = run(*shlex.split(command), code=2)
    assert re.search(r"^error: .*expected .*, got .*; ", done.stderr, flags=re.MULTILINE)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(screen.iterdir()) == before


def test_the_command_that_a_refusal_prints_works(screen: Path, run: Run) -> None:
    for refused in (
        "evaluate s.csv",
        "evaluate z.npy --labels y.npy",
        "evaluate percent.csv",
        "evaluate shop.csv",
        "evaluate breed.csv --columns 'p_*' --kind probs --normalize",
    ):
        said = run(*shlex.split(refused)).stderr
        command = said.strip().partition("run: calibrant ")[2]
        run(*shlex.split(command), "--draws", "0", code=0)


def test_normalizing_is_said(screen: Path, run: Run) -> None:
    done = run("evaluate", *shlex.split(READ_S), "--draws", "0")
    assert re.search(r"note: s\.csv: normalized: sums of rows differed from 1 by up to 0\.00\d", done.stderr)


def test_columns_go_by_their_numbers_and_not_by_the_order_of_the_file(screen: Path) -> None:
    data = calibrant.read("o.csv", columns="p0,p1,p2,p3", label="y", kind="probs")
    np.testing.assert_allclose(data.probs, PROBS)
    np.testing.assert_allclose(calibrant.read("o.csv", columns="p*", label="y", kind="probs").probs, PROBS)


def test_read_in_python(screen: Path) -> None:
    data = calibrant.read("s.csv", columns="p_*", label="truth", kind="probs", normalize=True)
    assert data.need_labels().tolist() == LABELS.tolist()
    assert torch.equal(calibrant.read(logits="z.npy", labels="y.npy").logits, torch.tensor(LOGITS))
    with pytest.raises(
        FileFormatError, match=r"pass columns='p_\*', label='truth', kind='probs', normalize=True to calibrant"
    ):
        calibrant.read("s.csv")
    with pytest.raises(InputError, match="got both or neither"):
        calibrant.read()
    with pytest.raises(InputError, match=r"expected one split, got \['calibration', 'dev'\]"):
        calibrant.read("two.npz")
    assert len(calibrant.read("two.npz", split="dev")) == 300
    for wrong in ({"kind": 3}, {"columns": 3}, {"label": 3}, {"normalize": 1}, {"class_names": "abc"}, {"labels": 3}):
        with pytest.raises(InputError, match=r"expected .*, got .*; "):
            calibrant.read("s.csv", **wrong)  # type: ignore[arg-type]


def test_metrics_bins_and_groups(home: Path, run: Run) -> None:
    regions = np.array(["EU", "US"] * 150)
    np.savez(home / "a.npz", test_logits=LOGITS, test_labels=LABELS, test_region=regions)

    def rows(*options: str) -> list[dict[str, Any]]:
        return list(json.loads(run("evaluate", "a.npz", "--draws", "0", "--json", *options, code=0).stdout)["rows"])

    [ece] = rows("--metric", "ECE:bins=20,norm=2")
    assert ece["metric"] == "ECE(binning=EqualWidth(bins=20), norm=2)"
    assert [row["metric"] for row in rows("--metric", "ECE:binning=EqualMass", "--bins", "7")] == [
        "ECE(binning=EqualMass(bins=7, ties='together'), norm=1)"
    ]
    assert any("EqualWidth(bins=30)" in row["metric"] for row in rows("--bins", "30"))
    parts = rows("--metric", "NLL", "--by", "region")
    assert [row.get("group") for row in parts] == [None, "region=EU", "region=US"]
    data = Predictions.from_logits(LOGITS, LABELS)
    assert parts[1]["value"] == pytest.approx(calibrant.metrics.NLL()(data[torch.tensor(regions == "EU")]))
    for option, said in (
        (["--metric", "EC"], "did you mean ECE?"),
        (["--metric", "ECE:bin=3"], "expected options of ECE among binning, bins, norm"),
        (["--metric", "ECE:bins"], "as option=value"),
        (["--metric", "NLL", "--bins", "3"], "expected a metric with bins"),
        (["--by", "nowhere"], "expected the column 'nowhere' in a.npz"),
    ):
        run("evaluate", "a.npz", *option, code=2, says=said)


@pytest.mark.parametrize(
    "command", ["fit {} -o c.safetensors", "report {} -m none -o r.json", "apply t.safetensors {} -o o.csv"]
)
def test_every_command_reads_a_table(command: str, screen: Path, run: Run) -> None:
    calibrant.calibrators.TemperatureScaling().fit(LOGITS, LABELS).save("t.safetensors")
    run(*shlex.split(command.format(READ_S)), *(["-m", "TemperatureScaling"] if "fit" in command else []), code=0)
    if "report" in command:
        model = json.loads((screen / "r.json").read_text())["models"][0]
        assert {part["name"] for part in model["classes"]} == set(NAMES)
    if "apply" in command:
        after = calibrant.read("o.csv", columns="p_*_calibrated", label="truth", kind="probs")
        assert after.need_labels().tolist() == LABELS.tolist()


def test_two_tables_are_compared_and_one_is_checked(screen: Path, run: Run) -> None:
    options = shlex.split(READ_S)
    run("compare", "s.csv", "s.csv", *options[1:], code=0)
    run("check", *options, "--max", "error=.9", code=0)
    run("watch", "state.safetensors", "--reference", "s.csv", *options[1:], code=0)


@pytest.mark.parametrize("name", ["s.csv", "z.npy", "rows.jsonl", "t.tsv", "dict.pt"])
def test_stdin_is_read_by_its_first_bytes(name: str, screen: Path, run: Run) -> None:
    for command in SOURCES:
        if name in command and not (screen / name).exists():
            write(screen, command)
    options = {
        "s.csv": "--columns 'p_*' --label truth --kind probs --normalize",
        "z.npy": "--labels y.npy --kind logits",
        "t.tsv": "--columns 'z*' --label y --kind logits",
    }
    run("evaluate -", *shlex.split(options.get(name, "")), "--draws", "0", input=(screen / name).read_bytes(), code=0)


def test_splits_of_streamed_rows_are_files_called_so(home: Path, run: Run) -> None:
    (home / "shards").mkdir()
    for split in ("valid", "test"):
        data = Predictions.from_logits(LOGITS, LABELS)
        calibrant.save_predictions(home / "shards" / f"{split}.parquet", {"all": data})
    rows = json.loads(run("evaluate", "shards", "--json", "--metric", "ECE:bins=20").stdout)["rows"]
    assert [(row["split"], row["n"]) for row in rows] == [("test", 300), ("valid", 300)]
    assert {row["metric"] for row in rows} == {"ECE(binning=EqualWidth(bins=20), norm=1)"}
    run("fit", "shards", "-m", "TemperatureScaling", "-o", "c.safetensors", code=0)
    run(
        "evaluate shards --metric KernelECE",
        code=2,
        says="expected metrics that are sums for shards, which is streamed",
    )
    table = pa.parquet.read_table(home / "shards" / "test.parquet")
    (home / "one").mkdir()
    pa.parquet.write_table(table.append_column("split", pa.array(["test"] * 300)), home / "one" / "0.parquet")
    run("evaluate", "one", code=2, says="got a column split in one/0.parquet")


def test_weights_and_features_in_a_table_are_honoured(home: Path, run: Run) -> None:
    weights = 1 + np.arange(300) % 3
    columns = spread("logits_", LOGITS.astype(float)) | {"label": LABELS}
    csv(home / "w.csv", columns | {"frequency_weights": weights, "feature:region": ["EU", "US"] * 150})
    repeated = Predictions.from_logits(LOGITS.repeat(weights, axis=0), LABELS.repeat(weights))
    done = run("evaluate", "w.csv", "--metric", "NLL", "--by", "region", "--draws", "0", "--json", code=0)
    rows = json.loads(done.stdout)["rows"]
    assert [row.get("group") for row in rows] == [None, "region=EU", "region=US"]
    assert rows[0]["value"] == pytest.approx(calibrant.metrics.NLL()(repeated), abs=1e-6)
    run("fit", "w.csv", "-m", "TemperatureScaling", "-o", "c.safetensors", code=0)
    whole = calibrant.calibrators.TemperatureScaling().fit(repeated)
    assert calibrant.load("c.safetensors").temperature == pytest.approx(whole.temperature, abs=1e-5)
    run("report", "w.csv", "-o", "r.json", code=0)


def test_a_header_without_rows_and_a_name_that_is_no_utf_8_are_named(home: Path, run: Run) -> None:
    (home / "empty.csv").write_text("logits_0,logits_1,label\n")
    run("evaluate", home / "empty.csv", says="at least one row, got none in")
    odd = Path(os.fsdecode(os.fsencode(home) + b"/a\xff.csv"))
    csv(odd, {**spread("logits_", LOGITS), "label": LABELS})
    assert "rename" in run("evaluate", odd, code=2, says="a file name in UTF-8").stderr


def test_a_column_that_repeats_the_largest_logit_is_no_class(tmp_path: Path) -> None:
    rows = "2.0,0.5,-1.0,2.0,cat\n0.1,1.5,0.3,1.5,dog\n-1.0,0.0,0.7,0.7,eel\n"
    (tmp_path / "a.csv").write_text("logit_cat,logit_dog,logit_eel,logit_best,label\n" + rows)
    with pytest.raises(FileFormatError, match="columns='logit_cat,logit_dog,logit_eel'"):
        calibrant.read(tmp_path / "a.csv")
