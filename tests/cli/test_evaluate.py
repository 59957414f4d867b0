"""``calibrant evaluate`` and ``compare``: figures, how files are read, groups, streams, two models."""

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import Run, some_logits

import calibrant
from calibrant import MultiLabel, Pairs, Predictions, metrics, read, save_predictions, statistics
from calibrant.evaluate import multilabel_panel
from calibrant.metrics import ECE, NLL, Accuracy

TABLE = "id,cat,dog,fox,truth,patient,w\n" + "".join(
    f"{n:03d},0.{7 - n % 3},0.{2 + n % 3},0.1,{('cat', 'dog', 'fox', 'cat')[n % 4]},{n // 5},{1 + n % 2}\n"
    for n in range(60)
)
TOLD = "--columns cat,dog,fox --label truth --kind probs"
KEYS = {"file", "split", "calibrator", "metric", "value", "low", "high", "null_high", "n"}


@pytest.fixture
def table(home: Path) -> Path:
    """A table of another program, scores.csv."""
    Path("scores.csv").write_text(TABLE)
    return Path("scores.csv")


def values(found: Any, **where: Any) -> dict[str, float]:
    """Return metric → value of the rows that have these entries."""
    return {
        row["metric"]: row["value"] for row in found["rows"] if all(row.get(key) == one for key, one in where.items())
    }


def test_json_holds_what_the_library_computes(good: Path, run: Run) -> None:
    rows = run("evaluate good.npz --json")["rows"]
    assert all(set(row) == KEYS for row in rows)
    data = read(good, split="test")
    by = {row["metric"]: row for row in rows if row["split"] == "test"}
    for metric in (Accuracy(), NLL(), ECE()):
        row = by[repr(metric)]
        assert (row["value"], row["calibrator"], row["n"], row["file"]) == (metric(data), None, 400, "good.npz")
    assert 0 <= by[repr(ECE())]["low"] <= by[repr(ECE())]["value"] <= by[repr(ECE())]["high"]
    assert 0 < by[repr(ECE())]["null_high"] < 0.1
    rows = run("evaluate good.npz --draws 0 --metric NLL --metric ECE:binning=EqualMass(5),norm=2 --json")["rows"]
    assert {row[key] for row in rows for key in ("low", "high", "null_high")} == {None}
    assert [row["metric"] for row in rows[:2]] == ["NLL()", repr(ECE(calibrant.binning.EqualMass(5), norm=2))]


def test_a_table_has_a_line_per_metric_before_and_after(fitted: Path, run: Run) -> None:
    test = read("good.npz", split="test")
    before, after = (100 * ECE()(data) for data in (test, test.calibrated_by(calibrant.load(fitted))))
    shown = run("evaluate good.npz -c c.safetensors").stdout
    assert ["· val · n = 400" in shown, "· test · n = 400" in shown] == [True, True]
    line = next(line for line in shown.partition("· test ·")[2].splitlines() if line.startswith("ECE %"))
    assert re.findall(r"\d+\.\d+", line)[0] == f"{before:.2f}"
    assert f"{after:.2f}" in line
    plain = " ".join(shown.split())
    assert "val: the calibrator was fitted on these rows" in plain
    assert "test: the calibrator was fitted" not in plain
    found = run("evaluate good.npz --split test -c c.safetensors --json")
    assert found["fitted"]["learned"]["temperature"] == calibrant.load(fitted).temperature
    assert values(found, calibrator=repr(calibrant.load(fitted)))[repr(ECE())] == pytest.approx(after / 100)


def test_an_infinite_loss_is_null_in_json_and_warned_of(home: Path, run: Run) -> None:
    np.savez("zeros.npz", probs=np.array([[1.0, 0.0], [0.5, 0.5]]), labels=np.array([1, 0]))
    assert values(run("evaluate zeros.npz --json --draws 0"))["NLL()"] is None
    done = run("evaluate zeros.npz --draws 0")
    assert "∞" in done.stdout
    assert done.stderr.startswith("warning: expected a positive probability for every label, got 0 in 1 row, so")


def test_the_sentence_is_the_help(table: Path, run: Run) -> None:
    say = "Columns: id, cat, dog, fox, truth, patient, w. Use --columns A,B,… --label C --kind probs|logits"
    done = run("evaluate scores.csv", code=2)
    assert done.stderr == f"error: scores.csv: cannot tell which columns are scores. {say}\n"


def test_the_options_mean_what_the_arguments_mean(table: Path, run: Run) -> None:
    found = run(
        f"evaluate scores.csv {TOLD} --weights w --groups patient --by patient --json",
        says="note: scores.csv: classes: 0 = cat, 1 = dog",
    )
    data = read(table, columns="cat,dog,fox", label="truth", kind="probs", weights="w", groups="patient")
    assert values(found, group=None)["NLL()"] == pytest.approx(NLL()(data))
    assert all(row["effective"] == pytest.approx(data.effective_count) for row in found["rows"] if "group" not in row)
    assert {row.get("group") for row in found["rows"]} == {None, *(f"patient={k}" for k in range(12))}
    assert {row["n"] for row in found["rows"] if row.get("group")} == {5}
    run(f"evaluate scores.csv {TOLD} --by age", code=2, says="scores.csv has no column 'age'. Columns: id")


def test_score_columns_may_be_named_one_by_one(table: Path, run: Run) -> None:
    together, apart = (
        run(f"evaluate scores.csv {columns} --label truth --kind probs --draws 0").stdout
        for columns in ("--columns cat,dog,fox", "--columns cat,dog --columns fox")
    )
    assert together == apart


def test_splits_of_a_column(run: Run, home: Path) -> None:
    data = Predictions.from_logits(*some_logits(rows=80))
    save_predictions("s.csv", {"val": data[:40], "test": data[40:]})
    assert {row["split"] for row in run("evaluate s.csv --draws 0 --json")["rows"]} == {"val", "test"}
    run("evaluate s.csv --split train", code=2, says="s.csv has no split 'train'; name one of test, val with --split")


@pytest.mark.parametrize("line", ["evaluate", "fit -o c.safetensors", "report"])
def test_a_split_of_a_file_without_splits_is_refused(line: str, table: Path, run: Run) -> None:
    run(f"{line} scores.csv {TOLD} --split nope", code=2, says="error: scores.csv has no splits; leave out --split")


def test_several_labels_are_shown_by_their_names(home: Path, run: Run) -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(300, 3)) * 1.5
    y = (z + rng.logistic(size=z.shape) > 0).astype(int)
    y[rng.random(z.shape) < 0.05] = -1
    data = MultiLabel.from_logits(2 * z, y, names=["cat", "dog", "owl"])
    p = data.probs.tolist()
    lines = [",".join(map(str, [*a, *b])) for a, b in zip(p, y.tolist(), strict=True)]
    Path("tags.csv").write_text("\n".join(["p_cat,p_dog,p_owl,y_cat,y_dog,y_owl", *lines]) + "\n")
    line = "evaluate tags.csv --multilabel --columns p_* --label y_* --draws 50"
    found = run(f"{line} --json")
    expected = [(one.metric, one.average, pytest.approx(one.value)) for one in multilabel_panel(data)]
    assert [(row["metric"], row["average"], row["value"]) for row in found["rows"]] == expected
    assert {row["name"] for row in found["labels"]} == {"cat", "dog", "owl"}
    assert len(found["worst_label"]) == 1
    assert "owl" in run(line).stdout
    run(f"{line} --by y_cat", code=2, says="no effect with --multilabel")


@pytest.fixture
def folder(home: Path) -> Path:
    """A folder of two Parquet files of 500 over-confident rows each."""
    Path("data").mkdir()
    for part in range(2):
        data = Predictions.from_logits(*some_logits(rows=500, seed=part))
        save_predictions(Path("data", f"{part}.parquet"), data)
    return Path("data")


def test_a_folder_is_streamed_with_the_intervals_of_memory(folder: Path, run: Run) -> None:
    run("fit data -m TemperatureScaling -o c.safetensors")
    run("evaluate data -c c.safetensors", code=2, says="expected data that were not used for fitting")
    rows = {row["metric"]: row for row in run("evaluate data --json")["rows"]}
    before = Predictions.cat([read(path) for path in sorted(folder.iterdir())])
    for metric in (metrics.Accuracy(), metrics.NLL(), metrics.Brier(), metrics.ECE()):
        ends, row = statistics.interval(metric, before), rows[repr(metric)]
        assert (row["value"], row["low"], row["high"]) == pytest.approx((metric(before), ends.low, ends.high), rel=1e-9)
    run("evaluate data --by site", code=2, says="--by has no effect on data, which is streamed; leave it out")
    run("evaluate data --metric CanonicalError", code=2, says="needs all rows at once, but data is streamed")


def test_one_large_file_is_streamed_to_the_same_numbers(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for size in (1 << 40, 1000):
        monkeypatch.setattr("calibrant.cli.options.STREAMED_BYTES", size)
        run(f"fit data/0.parquet -m TemperatureScaling -o {size}.safetensors")
        run(f"apply {size}.safetensors data/0.parquet -o {size}.parquet")
        measured = values(run("evaluate data/0.parquet --draws 0 --metric NLL --metric ECE --json"))
        after = read(f"{size}.parquet", columns="calibrated_logits").logits.numpy()
        found.append((measured, calibrant.load(f"{size}.safetensors").temperature, after))
    (memory, one, whole), (stream, other, parts) = found
    assert stream == pytest.approx(memory, rel=1e-12)
    assert other == pytest.approx(one, rel=1e-9)
    np.testing.assert_allclose(parts, whole, rtol=1e-6)


def test_the_first_line_says_which_model_is_better(fitted: Path, arrays: dict[str, np.ndarray], run: Run) -> None:
    np.savez("better.npz", test_logits=arrays["test_logits"] / 3, test_labels=arrays["test_labels"])
    shown = run("compare good.npz better.npz").stdout
    assert "95 %: interval of this difference alone; p: adjusted for the number of metrics (Holm)" in " ".join(
        shown.split()
    )
    assert shown.startswith("B is better calibrated than A")
    found = run("compare good.npz better.npz --json")
    assert [row["winner"] for row in found["rows"]][1] == "b"
    assert " ".join(found["verdict"].split()) in " ".join(shown.split())
    assert run("compare none c.safetensors good.npz").stdout.startswith("B is better calibrated than A")


def test_two_models_are_matched_by_a_column_or_in_order(table: Path, run: Run) -> None:
    import polars

    frame = polars.read_csv(io.StringIO(TABLE), schema_overrides={"id": polars.String})
    other = frame.with_columns(cat=0.5, dog=0.3, fox=0.2)
    other.write_csv("b.csv")
    other.sample(fraction=1, shuffle=True, seed=1).write_csv("shuffled.csv")
    in_order = run(f"compare scores.csv b.csv {TOLD} --json")
    assert run(f"compare scores.csv b.csv {TOLD} --on id --json") == in_order
    run(f"compare scores.csv shuffled.csv {TOLD}", code=2, says="match rows by a column of both files, with --on")
    assert run(f"compare scores.csv shuffled.csv {TOLD} --on id --json")["rows"] == in_order["rows"]
    Path("other.csv").write_text(TABLE.replace("0.1,dog,0,", "0.1,cat,0,"))
    said = "scores.csv and other.csv have different labels for the same id '001'"
    run(f"compare scores.csv other.csv {TOLD} --on id", code=2, says=said)
    Path("short.csv").write_text(TABLE.replace("\n001,", "\n1,"))  # another row than 001
    run(f"compare scores.csv short.csv {TOLD} --on id", code=2, says="lacks the row whose id is '001'")


FIGURES = json.loads((Path(__file__).parents[1] / "fixtures" / "published_figures.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES["logits"])
def test_published_figures_to_the_printed_digits(name: str, data: Path, run: Run) -> None:
    file = data / "logits" / f"{name}.npz"
    fitted = run("fit", file, "-m", "TemperatureScaling", "-o", "c.safetensors", "--json")["fitted"]
    found = run("evaluate", file, "-c", "c.safetensors", "--draws", 0, "--json")
    n = {row["split"]: row["n"] for row in found["rows"]}
    val, test = (values(found, split=split, calibrator=None) for split in ("val", "test"))
    after = values(found, split="test", calibrator=fitted["repr"])
    accuracy, ece, nll = map(repr, (Accuracy(), ECE(), NLL()))
    got = [f"{n['val']} / {n['test']}", f"{100 * val[accuracy]:.2f} / {100 * test[accuracy]:.2f}", f"{100 * test[ece]:.2f}",
           f"{test[nll]:.4f}", f"{fitted['learned']['temperature']:.3f}", f"{100 * after[ece]:.2f}", f"{after[nll]:.4f}"]  # fmt: skip
    assert got == FIGURES["logits"][name]


@pytest.mark.parametrize("name", FIGURES["toplabel"])
def test_top_label_figures_to_the_printed_digits(name: str, data: Path) -> None:
    held = np.load(data / "toplabel" / f"{name}.npz")
    pairs = Pairs.from_top_label(held["conf"], held["pred"], held["label"])
    got = [str(len(pairs)), f"{100 * Accuracy()(pairs):.2f}", f"{100 * ECE()(pairs):.2f}"]
    assert got == FIGURES["toplabel"][name]
