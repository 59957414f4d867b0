"""``calibrant sample`` and ``audit``: a table to fill in, its state beside it, a verdict, and the next batch."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import Run, some_logits


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    logits, labels = some_logits(rows=1200)
    path = tmp_path / "pool.npz"
    np.savez(path, logits=logits / 3, labels=labels)
    return path


def fill(table: Path, labels: np.ndarray) -> list[dict[str, str]]:
    """Fill in the labels of a table as a person would."""
    with table.open(newline="") as file:
        lines = list(csv.DictReader(file))
    for line in lines:
        line["label"] = str(labels[int(line["row"])])
    write(table, lines)
    return lines


def write(table: Path, lines: list[dict[str, str]]) -> None:
    with table.open("w", newline="") as file:
        out = csv.DictWriter(file, list(lines[0]))
        out.writeheader()
        out.writerows(lines)


def test_from_pool_to_verdict_in_two_batches(pool: Path, run: Run) -> None:
    labels = np.load(pool)["labels"]
    table, following = pool.with_name("to-label.csv"), pool.with_name("next.csv")
    run("sample", pool, "--budget", 100, "--seed", 1, "-o", table, code=0)
    assert table.read_text().splitlines()[0] == "row,inclusion,batch,batch_rows,label"
    fill(table, labels)
    done = run("audit", pool, table, "--metric", "accuracy", "--min", "accuracy=.2", "--json", code=0)
    told = json.loads(done.stdout)
    assert told["verdict"] == "pass"
    truth = float((np.load(pool)["logits"].argmax(1) == labels).mean())
    assert told["figures"]["accuracy"]["low"] <= truth <= told["figures"]["accuracy"]["high"]
    run("audit", pool, table, "--max", "accuracy=.2", code=1)
    run("audit", pool, table, "--min", f"accuracy={truth}", code=3)
    run("sample", pool, "--budget", 50, "--extend", table, "-o", following, code=0)
    assert len(fill(following, labels)) == 50
    both = run("audit", pool, following, "--json").stdout
    assert json.loads(both)["labels"] == 150
    tables = pool.with_name("tables")
    tables.mkdir()
    for one in (table, following):
        one.rename(tables / one.name)
        state = one.with_suffix(".sample.json")
        state.rename(tables / state.name)
    assert run("audit", pool, tables, "--json").stdout == both
    for state in tables.glob("*.json"):
        state.unlink()
    told = json.loads(run("audit", pool, tables, "--json", says="is not checked").stdout)
    assert told["looks"] == 2
    for name, interval in json.loads(both)["figures"].items():
        for end in ("low", "estimate", "high"):  # the last bit depends on how NumPy adds
            assert told["figures"][name][end] == pytest.approx(interval[end], rel=1e-12)
    # not taken for a first batch
    run("audit", pool, tables / following.name, code=2, says="expected all rows of the sample's batch 1, got 0 of them")


def test_wrong_tables_are_one_sentence(pool: Path, run: Run) -> None:
    labels = np.load(pool)["labels"]
    table = pool.with_name("to-label.csv")
    run("sample", pool, "--budget", 40, "-o", table)
    lines = fill(table, labels)
    # would lose what people gave
    run("sample", pool, "--budget", 40, "-o", table, code=2, says="which has 40 labels; name another file")
    drawn = {int(line["row"]) for line in lines}
    absent = next(row for row in range(1200) if row not in drawn)
    for change, message in (
        ([{**lines[0], "row": str(absent)}, *lines[1:]], f"got one of row {absent}"),
        ([{**lines[0], "label": "0"}, {**lines[0], "label": "1"}], "expected one label a row, got 0 and 1"),
        ([{**lines[0], "label": "cat"}], "expected a label that is the number of a class"),
        ([{**lines[0], "label": "9"}, *lines[1:]], "expected labels from 0 to 3, or -1 for none, got 9"),
        ([{**lines[0], "label": "1_0"}, *lines[1:]], "expected a label that is the number of a class"),
        ([{**lines[0], "row": "x"}, *lines[1:]], "expected the number of a row in the column row"),
        ([{**line, "label": "-1"} for line in lines], "expected at least 10 labelled rows, got 0"),
    ):
        write(table, change)
        run("audit", pool, table, code=2, says=message)
    write(table, lines)
    told = run("audit", pool, table, "--json", code=0).stdout
    text = table.read_text()
    table.write_text(text.replace("label\n", "label,label\n"))
    run("audit", pool, table, code=2, says="expected one column label, got several")
    # as spreadsheets and data frames write it, and as two people gave the same label
    changes = (text.replace(",", ";"), text.replace(",", "\t"), f"{text},,,,\n", text + text.splitlines()[1],
               "\n".join(f"{line}.0" if at else line for at, line in enumerate(text.splitlines())))  # fmt: skip
    for changed in changes:
        table.write_text(changed)
        assert run("audit", pool, table, "--json", code=0).stdout == told
    changed, logits = pool.with_name("changed.npz"), np.load(pool)["logits"]
    logits[7, 1] = np.nextafter(logits[7, 1], np.float32(9))
    for scores in (logits, np.load(pool)["logits"][[1, 0, *range(2, 1200)]]):  # by one last digit, or two rows' order
        np.savez(changed, logits=scores)
        run("audit", changed, table, code=2, says="got others (their digests differ)")
    state = table.with_suffix(".sample.json")
    kept = state.read_text()
    state.write_text(kept[:700])
    run("audit", pool, table, code=2, says="move it away, and audit takes the draw from the table")
    state.write_text(kept)
    write(table, [{name: value for name, value in line.items() if name != "inclusion"} for line in lines])
    run("audit", pool, table, code=0)  # the state has them
    table.with_suffix(".sample.json").unlink()
    run("audit", pool, table, code=2, says="expected the inclusion probability of every row, got none of row")
    write(table, [{**line, "inclusion": ".5"} for line in lines])
    run("audit", pool, table, code=2, says="inclusion probabilities of 1,200 rows, got those of about")
    write(table, lines)
    run("audit", pool, table, code=0)


def test_names_of_classes_are_for_tables_with_words(pool: Path, run: Run) -> None:
    labels = np.load(pool)["labels"]
    table, names = pool.with_name("to-label.csv"), pool.with_name("names.txt")
    names.write_text("ant\nbee\ncat\ndog\n")
    run("sample", pool, "--budget", 40, "-o", table)
    lines = fill(table, labels)
    by_number = run("audit", pool, table, "--json").stdout
    write(table, [{**line, "label": ("ant", "bee", "cat", "dog")[int(line["label"])]} for line in lines])
    assert run("audit", pool, table, "--class-names", names, "--json", code=0).stdout == by_number
    run("sample", pool, "--extend", table, "--class-names", names, "-o", pool.with_name("next.csv"), code=0)


def test_a_table_gives_its_names_of_classes_its_groups_and_a_second_model(pool: Path, run: Run) -> None:
    names = ("ant", "bee", "cat", "dog")
    with np.load(pool) as file:
        kept = dict(file)
    region = np.where(np.arange(1200) % 4 == 0, "north", "south")
    tables = [pool.with_name(f"{name}.csv") for name in ("one", "two", "to-label")]
    for path, noise in zip(tables[:2], (0, 1), strict=True):
        logits = kept["logits"] + noise * np.random.default_rng(0).normal(size=(1200, 4))
        lines = [dict(zip([f"logit_{name}" for name in names], map(repr, row.tolist()), strict=True)) for row in logits]
        write(path, [{**line, "region": where} for line, where in zip(lines, region, strict=True)])
    one, two, table = tables
    choices: list[list[Any]] = [["--aim", "worst group", "--by", "region"], ["--other", two]]
    for settings in choices:
        table.unlink(missing_ok=True)
        run("sample", one, "--budget", 100, "-o", table, *settings, code=0)
        lines = fill(table, kept["labels"])
        by_number = run("audit", one, table, *settings[-2:], "--json", code=0).stdout
        write(table, [{**line, "label": names[int(line["label"])]} for line in lines])
        assert run("audit", one, table, *settings[-2:], "--json", code=0).stdout == by_number
        assert len(json.loads(by_number)["figures"]) == (1 if two in settings else 2)
        run("sample", one, "--extend", table, "-o", pool.with_name("next.csv"), code=2 if two in settings else 0)
    run("audit", one, table, code=2, says="add --other with the second model's file")
    assert f"{one} minus {two}:" in run("audit", one, table, "--other", two, code=0).stdout
    run("sample", one, "--extend", table, "--other", two, "-o", pool.with_name("next.csv"), code=0)
    both = run("audit", one, table, "--other", two, "--other", one, "--min", "accuracy=-1", code=0).stdout
    assert both.count("decided: pass") == 2
    table.unlink()
    run("sample", one, "-o", table)
    fill(table, kept["labels"])
    told = json.loads(run("audit", one, table, "--other", two, "--other", one, "--json", code=0).stdout)["figures"]
    alone = json.loads(run("audit", one, table, "--other", two, "--json", code=0).stdout)["figures"]
    assert told[f"accuracy minus {two}"] == alone["accuracy"]
    assert told[f"accuracy minus {one}"]["estimate"] == 0


def test_a_next_batch_needs_the_state_and_rows_that_are_left(pool: Path, run: Run) -> None:
    table, following = pool.with_name("to-label.csv"), pool.with_name("next.csv")
    run("sample", pool, "--budget", 40, "-o", table)
    for more, message in (
        (["--budget", 1161, "-o", following], "1160"),
        (["-o", table], "output other than the input"),
    ):
        run("sample", pool, "--extend", table, *more, code=2, says=message)
    lines = fill(table, np.load(pool)["labels"])
    run("sample", pool, "--budget", 40, "--extend", table, "-o", following, code=0)
    write(table, [{**lines[0], "label": ""}, *lines[1:]])  # a label that is taken back
    assert json.loads(run("audit", pool, table, following, "--json", code=0).stdout)["labels"] == 39
    following.with_suffix(".sample.json").unlink()
    run("audit", pool, table, following, code=2, says="keep the .sample.json of each beside it")
    following.unlink()
    table.with_suffix(".sample.json").unlink()
    run("sample", pool, "--extend", table, "-o", following, code=2, says="expected the state of the sample")
    assert not following.exists()


def test_labels_that_were_sorted_away_from_their_rows_are_refused(tmp_path: Path, run: Run) -> None:
    pool, table = tmp_path / "pool.csv", tmp_path / "to-label.csv"
    logits, _ = some_logits(rows=300)
    scores = [dict(zip([f"logit_{name}" for name in "abcd"], map(str, row), strict=True)) for row in logits]
    write(pool, [{"id": f"{row:04}", **one} for row, one in enumerate(scores)])
    run("sample", pool, "--budget", 40, "-o", table, code=0)
    lines = fill(table, np.zeros(300, int))
    write(table, [{**line, "id": line["id"].lstrip("0") or "0"} for line in lines])  # as spreadsheets do
    run("audit", pool, table, code=0)
    write(table, [{**line, "row": other["row"]} for line, other in zip(lines, lines[1:] + lines[:1], strict=True)])
    run("audit", pool, table, code=2, says="sort all columns together")


def test_labelled_rows_are_handed_to_other_commands_with_their_weights(pool: Path, run: Run) -> None:
    table, rows = pool.with_name("to-label.csv"), pool.with_name("rows.npz")
    run("sample", pool, "--budget", 200, "-o", table)
    fill(table, np.load(pool)["labels"])
    run("audit", pool, table, "-o", rows, code=0)
    reference = pool.with_name("reference.npz")
    np.savez(reference, logits=np.load(pool)["logits"], labels=np.load(pool)["labels"])
    page, state = pool.with_name("page.md"), pool.with_name("s.safetensors")
    for words in (
        ("fit", rows, "--method", "TemperatureScaling", "-o", pool.with_name("c.safetensors")),
        ("evaluate", rows, "--json"),
        ("compare", rows, rows),
        ("report", rows, "-o", page),
        ("watch", state, "--reference", reference),
        ("watch", state, rows),
    ):
        done = run(*words, code=0)
    assert "drawn with unequal probabilities" in page.read_text()
    assert re.search(r"note: .*rows.npz: [0-9]+ of 200 rows are watched", " ".join(done.stderr.split()))
    run("watch", state, rows, code=2, says="expected new rows")  # the same file again
    run("audit", pool, table, "-o", pool, code=2, says="output other than the input")


def test_labels_are_planned_before_any_is_given(pool: Path, run: Run) -> None:
    told = json.loads(run(f"plan --pool {pool} --half-width .05 --price 2 --draws 10 --json", code=0).stdout)
    assert 50 <= told["labels"] < told["labels_even"]
    assert told["curve"][0]["money"] == 100
    assert "without the scores" in run("plan", "--pool", pool, "--draws", 10).stdout
    for more, message in (
        (["--pool", pool, "--ece", ".1"], "got --ece for --pool"),
        (["--half-width", ".1"], "got --half-width for a call without --pool; add --pool, or leave it out"),
        ([pool, "--pool", pool], "got --pool for FILE; leave it out"),
    ):
        run("plan", *more, code=2, says=message)


def test_the_models_answers_are_shown_only_if_asked_for(pool: Path, run: Run) -> None:
    held, table = np.load(pool), pool.with_name("t.csv")
    names = pool.with_name("names.txt")
    names.write_text("\n".join("abcdefghij"[: held["logits"].shape[1]]))
    run("sample", pool, "--budget", 40, "-o", table, code=0)
    assert "answer" not in table.read_text()
    run("sample", pool, "--budget", 40, "--answers", "--class-names", names, "-o", table, code=0)
    with table.open(newline="") as file:
        for line in csv.DictReader(file):
            assert line["answer"] == "abcdefghij"[int(held["logits"][int(line["row"])].argmax())]
    fill(table, held["labels"])  # a column more does not disturb the audit
    run("audit", pool, table, code=0)
    alone, decided = pool.with_name("alone.npz"), np.arange(60) % 3
    np.savez(alone, conf=np.linspace(0.1, 0.9, 60), pred=decided, label=np.zeros(60, int))
    run("sample", alone, "--budget", 20, "--answers", "-o", pool.with_name("a.csv"), code=0)
    with pool.with_name("a.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            assert int(line["answer"]) == decided[int(line["row"])]
