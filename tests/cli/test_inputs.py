"""How every command reads its files: the options of the mapping, notes, standard input, and labels elsewhere."""

import io
import json
from pathlib import Path

import polars
import pytest
from tests.cli.conftest import Run, some_logits

import calibrant
from calibrant import Predictions, save_predictions

TABLE = "id,cat,dog,fox,truth,patient,w\n" + "".join(
    f"{n:03d},0.{7 - n % 3},0.{2 + n % 3},0.1,{('cat', 'dog', 'fox', 'cat')[n % 4]},{n // 5},{1 + n % 2}\n"
    for n in range(60)
)
TOLD = "--columns cat,dog,fox --label truth --kind probs"


@pytest.fixture
def table(home: Path) -> Path:
    """A table of another program, scores.csv."""
    path = Path("scores.csv")
    path.write_text(TABLE)
    return path


def figures(done: object) -> dict[str, float]:
    return {row["metric"]: row["value"] for row in json.loads(done.stdout)["rows"]}


def test_the_sentence_is_the_help(table: Path, run: Run) -> None:
    done = run("evaluate scores.csv", code=2)
    names = "id, cat, dog, fox, truth, patient, w"
    say = f"Columns: {names}. Say --columns A,B,… --label C --kind probs|logits"
    assert done.stderr == f"error: scores.csv: cannot tell which columns are scores. {say}\n"
    done = run("evaluate scores.csv --columns cat,dog,fox --kind probs", code=2)
    assert done.stderr == f"error: scores.csv: cannot tell which column holds the labels. {say}\n"


def test_the_options_mean_what_the_arguments_mean(table: Path, run: Run) -> None:
    done = run(f"evaluate scores.csv {TOLD} --weights w --groups patient --json", code=0)
    data = calibrant.read(
        "scores.csv", columns="cat,dog,fox", label="truth", kind="probs", weights="w", groups="patient"
    )
    assert figures(done)["Accuracy()"] == pytest.approx(calibrant.metrics.Accuracy()(data))
    assert figures(done)["NLL()"] == pytest.approx(calibrant.metrics.NLL()(data))
    assert done.stderr == "note: scores.csv: classes: 0 = cat, 1 = dog, 2 = fox\n"


@pytest.mark.parametrize(
    "how",
    [
        "semicolons",
        "npz",
        "parquet",
    ],
)
def test_standard_input_is_told_by_its_first_bytes(how: str, table: Path, run: Run) -> None:
    data = calibrant.read(table, columns="cat,dog,fox", label="truth", kind="probs")
    if how == "semicolons":
        content = TABLE.replace(",", ";").replace("0.", "0,").encode()
        done = run(f"evaluate - {TOLD} --json", input=content, code=0)
    else:
        save_predictions(f"s.{how}", data)
        done = run("evaluate - --json", input=Path(f"s.{how}").read_bytes(), code=0)
    assert figures(done)["NLL()"] == pytest.approx(calibrant.metrics.NLL()(data))


def test_labels_in_a_file_of_their_own(table: Path, run: Run) -> None:
    frame = polars.read_csv(io.StringIO(TABLE), schema_overrides={"id": polars.String})
    frame.select("id", "cat", "dog", "fox").write_csv("s.csv")
    frame.select("id", "truth").reverse().write_csv("y.csv")
    frame.select("truth").write_csv("plain.csv")
    expected = figures(run(f"evaluate scores.csv {TOLD} --json", code=0))
    columns = "--columns cat,dog,fox --kind probs --json"
    assert figures(run(f"evaluate s.csv {columns} --labels plain.csv", code=0)) == expected
    assert figures(run(f"evaluate s.csv {columns} --labels y.csv --label truth --on id", code=0)) == expected
    run(f"evaluate s.csv {columns} --labels y.csv --label truth", code=2, says="or in another order: id is '059'")
    run(f"evaluate s.csv {columns} --on id", code=2, says="on names the column that joins a file of labels")
    run(f"evaluate s.csv {columns} --labels no.csv", code=2, says="no such file: no.csv")


def test_every_command_takes_the_mapping(table: Path, run: Run) -> None:
    run(f"fit scores.csv {TOLD} -m TemperatureScaling -o c.safetensors", code=0)
    run(f"evaluate scores.csv {TOLD} -c c.safetensors --draws 0", code=0)
    run(f"check scores.csv {TOLD} --min accuracy=.01", code=0)
    run("apply c.safetensors scores.csv --columns cat,dog,fox --kind probs -o o.csv", code=0)
    run(f"compare none c.safetensors scores.csv {TOLD}", code=0)
    run(f"report scores.csv {TOLD} -m none -o r.json", code=0)
    run(f"watch s.safetensors --reference scores.csv {TOLD}", code=0)


def test_splits_of_a_column(run: Run, home: Path) -> None:
    logits, labels = some_logits(rows=80)
    data = Predictions.from_logits(logits, labels)
    save_predictions("s.csv", {"val": data[:40], "test": data[40:]})
    rows = json.loads(run("evaluate s.csv --json", code=0).stdout)["rows"]
    assert {row["split"] for row in rows} == {"val", "test"}
    run("evaluate s.csv --split train", code=2, says="s.csv has no split 'train': name one of test, val by split")
    run("fit s.csv -m TemperatureScaling -o c.safetensors", code=0)


def test_groups_of_a_column_that_is_no_feature(table: Path, run: Run) -> None:
    rows = json.loads(run(f"evaluate scores.csv {TOLD} --by w --json", code=0).stdout)["rows"]
    assert {row.get("group") for row in rows} == {None, "w=1", "w=2"}
    run(f"evaluate scores.csv {TOLD} --by age", code=2, says="scores.csv has no column 'age'. Columns: id")


def test_two_models_are_matched_by_a_column_or_in_order(table: Path, run: Run) -> None:
    frame = polars.read_csv(io.StringIO(TABLE), schema_overrides={"id": polars.String})
    other = frame.with_columns(cat=0.5, dog=0.3, fox=0.2)
    other.write_csv("b.csv")
    other.sample(fraction=1, shuffle=True, seed=1).write_csv("shuffled.csv")
    in_order = run(f"compare scores.csv b.csv {TOLD} --json", code=0).stdout
    assert run(f"compare scores.csv b.csv {TOLD} --on id --json", code=0).stdout == in_order
    run(
        f"compare scores.csv shuffled.csv {TOLD}",
        code=2,
        says="its rows are others than those of scores.csv, or in another order",
    )
    joined = json.loads(run(f"compare scores.csv shuffled.csv {TOLD} --on id --json", code=0).stdout)
    assert joined["rows"] == json.loads(in_order)["rows"]


def test_an_example_stands_for_a_file(run: Run) -> None:
    run("evaluate --example sst --split test --draws 0", code=0)
    run("evaluate --example nope", code=2, says="expected --example to be one of 20news, cifar10, sst")
    run("fit a.npz --example sst -o c.safetensors", code=2, says="a.npz and --example are two inputs; leave one out")
    run("evaluate", code=2, says="name a FILE of predictions, or an example: --example cifar10")
