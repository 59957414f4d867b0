"""Reading by a mapping, and saving: hand values, every format there and back, the rules of the mapping, and what is refused."""

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow as pa
import pytest
import torch

from calibrant import MultiLabel, Predictions, read, save_predictions
from calibrant.data.io import SAVED, Mapped, read_contents
from calibrant.errors import CalibrantError, FileFormatError, InputError

SCORES = "id,cat,dog,fox,truth\n007,.7,.2,.1,cat\n008,.1,.1,.8,fox\n"
TOLD = {"columns": "cat,dog,fox", "label": "truth", "kind": "probs"}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a file and return its path."""

    def write(content: str | bytes, name: str = "scores.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def notes(path: Path, **said: Any) -> str:
    return "\n".join(read_contents(path, Mapped(**said)).notes)


# the mapping


@pytest.mark.parametrize("columns", ["cat,dog,fox", ["cat", "dog", "fox"], "cat, dog, fox"])
def test_three_options_read_any_table(columns: Any, write: Callable[..., Path]) -> None:
    found = read(write(SCORES), columns=columns, label="truth", kind="probs")
    np.testing.assert_allclose(found.probs, [[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
    assert found.labels.tolist() == [0, 2]
    assert found.class_names == ("cat", "dog", "fox")


def test_the_error_is_the_help(write: Callable[..., Path]) -> None:
    path = write(SCORES)
    say = "Columns: id, cat, dog, fox, truth. Say --columns A,B,… --label C --kind probs|logits"
    with pytest.raises(InputError, match=r"^scores\.csv: cannot tell which columns are scores") as caught:
        read(path)
    assert str(caught.value) == f"scores.csv: cannot tell which columns are scores. {say}"
    with pytest.raises(InputError, match="cannot tell whether cat, dog, fox hold probabilities or logits"):
        read(path, columns="cat,dog,fox", label="truth")
    with pytest.raises(InputError, match="cannot tell which column holds the labels") as caught:
        read_contents(path, Mapped(columns="cat,dog,fox", kind="probs"), labelled=True)
    assert str(caught.value).endswith(say)
    wide = write(",".join(f"c{at}" for at in range(99_000)) + "\n" + ",".join("0" for _ in range(99_000)), "wide.csv")
    with pytest.raises(InputError, match=r"Columns: c0, c1, .*c11, … \(99,000 in all\)\. Say"):
        read(wide)


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        ("p_cat,p_dog", "probs"),
        ("logits_cat,logits_dog", "logits"),
    ],
)
@pytest.mark.parametrize(
    "label",
    [
        "label",
        "target",
    ],
)
def test_names_of_the_table_need_no_option(names: str, kind: str, label: str, write: Callable[..., Path]) -> None:
    low = -0.25 if kind == "logits" else 0.25
    found = read(write(f"note,{names},{label}\nx,{low},.75,dog\ny,.5,.5,cat\n"))
    values = found.logits if kind == "logits" else found.given_probs
    assert values is not None
    assert values.tolist() == [[low, 0.75], [0.5, 0.5]]
    assert found.labels.tolist() == [1, 0]
    assert (found.given_probs is None) == (kind == "logits")


@pytest.mark.parametrize("name", ["p", "prob"])
def test_one_column_is_the_probability_of_class_1(name: str, write: Callable[..., Path]) -> None:
    found = read(write(f"{name},y\n.2,0\n.9,1\n.4,1\n"))
    np.testing.assert_allclose(found.probs[:, 1], [0.2, 0.9, 0.4])
    assert found.labels.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    "words",
    [
        ("no", "yes"),
        ("0.0", "1.0"),
    ],
)
def test_labels_of_one_column(words: tuple[str, str], write: Callable[..., Path]) -> None:
    path = write(f"score,churned\n.2,{words[0]}\n.9,{words[1]}\n")
    assert read(path, columns="score", label="churned", kind="probs").labels.tolist() == [0, 1]
    path = write("score,churned\n.2,stayed\n.9,left\n")
    with pytest.raises(
        InputError, match=r"churned is 'stayed' in line 2; beside one column of scores labels must be 0 and 1"
    ):
        read(path, columns="score", label="churned", kind="probs")


def test_a_column_that_names_its_event(write: Callable[..., Path]) -> None:
    path = write("p_left,churned\n.2,stayed\n.9,left\n")
    found = read(path, label="churned")
    assert (found.labels.tolist(), found.class_names) == ([0, 1], ("stayed", "left"))
    assert notes(path, label="churned") == "labels: stayed means 0, left means 1"
    assert read(write("p_left,churned\n.2,0\n.9,1\n"), label="churned").labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("columns", "labels"),
    [
        ("cat prob,dog prob", "cat,dog"),
        ("prob class a,prob class b", "a,b"),
        ("cat,dog", "Cat,DOG"),
        ("cat,dog", "0,1"),
    ],
)
def test_labels_are_names_of_the_columns_or_integers(columns: str, labels: str, write: Callable[..., Path]) -> None:
    one, two = labels.split(",")
    path = write(f"{columns},truth\n.9,.1,{one}\n.2,.8,{two}\n")
    assert read(path, columns=columns, label="truth", kind="probs").labels.tolist() == [0, 1]


def test_which_label_means_which_class_is_said(write: Callable[..., Path]) -> None:
    assert notes(write("p_0,p_1,y\n.9,.1,0\n.2,.8,1\n")) == ""
    assert notes(write("p_cat,p_dog,y\n.9,.1,0\n.2,.8,1\n")) == "labels: 0 means cat, 1 means dog"
    assert notes(write("p_cat,p_dog,y\n.9,.1,dog\n")) == "classes: 0 = cat, 1 = dog"


def test_names_and_integers_are_never_mixed(write: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match=r"y is '0' in line 3; it must be one of the classes 1, 2"):
        read(write("p_1,p_2,y\n.9,.1,1\n.2,.8,0\n"))
    with pytest.raises(InputError, match=r"y is '1' in line 3; it must be .* one of the classes cat, dog"):
        read(write("p_cat,p_dog,y\n.9,.1,cat\n.2,.8,1\n"))
    with pytest.raises(
        InputError, match=r"y is 'eel' in line 3; it must be an integer from 0 to 1 or one of the classes cat, dog"
    ):
        read(write("p_cat,p_dog,y\n.9,.1,cat\n.2,.8,eel\n"))
    with pytest.raises(InputError, match=r"y is empty in line 3"):
        read(write("p_cat,p_dog,y\n.9,.1,cat\n.2,.8,\n"))


def test_numbered_columns_are_sorted_by_their_numbers(write: Callable[..., Path]) -> None:
    names = [f"p_{at}" for at in range(12)]
    order = sorted(names)
    cells = [f"{(at + 1) / 78:.17g}" for at in range(12)]
    row = [cells[names.index(name)] for name in order]
    found = read(write(f"{','.join(order)},y\n{','.join(row)},11\n"))
    assert found.class_names is None
    np.testing.assert_allclose(found.probs[0], [(at + 1) / 78 for at in range(12)])
    assert found.labels.tolist() == [11]


def test_a_pattern_and_a_line_of_csv(write: Callable[..., Path]) -> None:
    path = write('"cat, big","cat, small",dog_s,fox_s,truth\n.5,.5,.25,.75,0\n')
    found = read(path, columns='"cat, big","cat, small"', label="truth", kind="probs")
    assert found.class_names == ("big", "small")
    assert read(path, columns="*_s", label="truth", kind="probs").probs.tolist() == [[0.25, 0.75]]
    with pytest.raises(InputError, match=r"no column matches 'z\*'\. Columns: cat, big"):
        read(path, columns="z*", kind="probs")
    with pytest.raises(InputError, match=r"has no column 'eel'\. Columns:"):
        read(path, columns="fox_s,eel", kind="probs")
    with pytest.raises(InputError, match="must name each column of scores once"):
        read(path, columns="fox_s,fox_s", kind="probs")


def test_two_families_of_names_are_refused(write: Callable[..., Path]) -> None:
    for names in ("p_a,p_b,logit_a,logit_b", "p_a,p_b,prob,x"):
        with pytest.raises(InputError, match="cannot tell which columns are scores"):
            read(write(f"{names}\n.5,.5,.5,.5\n"))
    with pytest.raises(InputError, match="cannot tell which column holds the labels"):
        read(write("p_a,p_b,y,target\n.5,.5,0,1\n"))


def test_columns_that_are_not_named_are_not_parsed(write: Callable[..., Path]) -> None:
    found = read(write('id,model,type,p_cat,p_dog,y,when\n007,golf,x,.9,.1,cat,"a\nb"\n,polo,"y,""z""",.2,.8,dog,\n'))
    assert found.labels.tolist() == [0, 1]
    assert found.features is None


def test_weights_groups_features_and_splits(write: Callable[..., Path]) -> None:
    path = write(
        "p_a,p_b,y,w,patient,age,region,split\n.9,.1,a,2,x,30,EU,val\n.2,.8,b,1,y,40,US,test\n.3,.7,b,3,x,50,EU,val\n"
    )
    found = read(path, weights="w", groups="patient", split="val", features=["age", "region"])
    assert found.weights.tolist() == [2, 3]
    assert found.groups[0] == found.groups[1]
    assert found.features["age"].tolist() == [30, 50]
    assert found.features["region"].tolist() == ["EU", "EU"]
    with pytest.raises(InputError, match=r"has several splits: name one of test, val by split"):
        read(path)
    with pytest.raises(InputError, match=r"has no split 'train': name one of test, val by split"):
        read(path, split="train")
    assert len(read(write("p_a,p_b,y\n.9,.1,a\n"), split="test")) == 1


# dialects


@pytest.mark.parametrize(
    "text",
    [
        "p_cat;p_dog;y\r\n0,9;0,1;cat\r\n0,25;0,75;dog\r\n",
        "p_cat\tp_dog\ty\n0.9\t0.1\tcat\n0.25\t0.75\tdog",
        "\ufeffp_cat,p_dog,y\n0.9,0.1,cat\n0.25,0.75,dog\n",
        'p_cat,"p_dog","y"\n"0.9","0.1","cat"\n0.25,0.75,"dog"\n',
        "p_cat, p_dog , y\n 0.9, 0.1, cat\n0.25, 0.75 , dog \n",
        "p_cat,p_dog,y\n\n0.9,0.1,cat\n\n0.25,7.5e-1,dog\n\n",
    ],
)
def test_dialects(text: str, write: Callable[..., Path]) -> None:
    found = read(write(text))
    np.testing.assert_allclose(found.probs, [[0.9, 0.1], [0.25, 0.75]])
    assert found.labels.tolist() == [0, 1]


def test_rows_longer_than_a_block(write: Callable[..., Path]) -> None:
    long = "x" * (5 << 20)
    found = read(write(f"p_a,p_b,y,text\n.5,.5,a,short\n.25,.75,b,{long}\n"))
    assert found.labels.tolist() == [0, 1]


# sums


def test_rounded_rows_are_divided_with_a_note(write: Callable[..., Path]) -> None:
    path = write("p_a,p_b,p_c,y\n.33,.33,.33,a\n.5,.25,.25,b\n")
    found = read(path)
    np.testing.assert_allclose(found.probs, [[1 / 3] * 3, [0.5, 0.25, 0.25]])
    assert notes(path).startswith("1 rows of rounded probabilities are divided by their sums, up to 0.01 from 1")


@pytest.mark.parametrize(("cells", "total"), [("33,33,34", "100"), (".3,.3,.1", "0.7"), (".333,.333,.331", "0.997")])
def test_other_sums_are_refused_with_columns_and_line(cells: str, total: str, write: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match=rf"scores.csv, line 3: p_a, p_b, p_c sum to {total}; .* must sum to 1"):
        read(write(f"p_a,p_b,p_c,y\n.5,.25,.25,b\n{cells},a\n"))


# labels elsewhere


def test_labels_in_a_file_of_their_own(write: Callable[..., Path], tmp_path: Path) -> None:
    path = write("id,p_a,p_b\nx1,.4,.6\nx2,.3,.7\n")
    np.save(tmp_path / "y.npy", [1, 0])
    for labels in (
        write("b\na\n", "y.txt"),
        write("truth\nb\na\n", "one.csv"),
        write("id,label\nx1,b\nx2,a\n", "y.csv"),
        write('{"id": "x1", "label": "b"}\n{"id": "x2", "label": "a"}\n', "y.jsonl"),
        tmp_path / "y.npy",
    ):
        assert read(path, labels=labels).labels.tolist() == [1, 0], labels
    shuffled = write("id,truth\nx2,a\nx9,a\nx1,b\n", "other.csv")
    assert read(path, labels=shuffled, label="truth", on="id").labels.tolist() == [1, 0]


@pytest.mark.parametrize("key", ["id", "Id"])
def test_labels_of_other_rows_are_refused(key: str, write: Callable[..., Path]) -> None:
    path = write("id,p_a,p_b\n1000,.4,.6\n1001,.3,.7\n")
    for rows in ("1001,a\n1000,b\n", "1000.0,a\n1001.0,b\n"):
        with pytest.raises(
            InputError,
            match=r"its rows are others than those of scores.csv, or in another order: id is '100.* join them by on",
        ):
            read(path, labels=write(f"{key},label\n{rows}", "y.csv"))
    with pytest.raises(InputError, match="has 3 labels for 2 rows"):
        read(path, labels=write("label\na\nb\na\n", "y.csv"))
    with pytest.raises(InputError, match="'id' is '1000' twice; it must name each row once"):
        read(path, labels=write("id,label\n1000,a\n1000,b\n1001,a\n", "y.csv"), on="id")
    with pytest.raises(InputError, match="lacks the row whose id is such as '1001'"):
        read(path, labels=write("id,label\n1000,a\n1002,b\n", "y.csv"), on="id")
    with pytest.raises(InputError, match="on names the column that joins a file of labels"):
        read(path, on="id")


# arrays


def test_arrays_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    logits = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    np.savez(path, val_logits=logits, val_labels=[0, 1, 2, 0, 1, 2], test_logits=logits[:4], test_labels=np.array(list("abca")),
             class_names=np.array(list("abc")))  # fmt: skip
    val, test = read(path, split="val"), read(path, split="test")
    np.testing.assert_array_equal(val.logits, logits)
    assert (test.labels.tolist(), test.class_names) == ([0, 1, 2, 0], ("a", "b", "c"))
    np.savez(path, arr_0=logits, arr_1=[0, 1, 2, 0, 1, 2])
    assert len(read(path, columns="arr_0", label="arr_1", kind="logits")) == 6
    with pytest.raises(
        InputError, match=r"cannot tell which array holds the scores\. Arrays: arr_0, arr_1\. Say --columns"
    ):
        read(path)
    np.savez(path, logits=logits, probs=logits, labels=[0, 1, 2, 0, 1, 2])
    with pytest.raises(InputError, match="has logits and probs; name one by columns"):
        read(path)


def test_an_array_of_splits_beside_names_of_classes(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "s.npz",
        logits=np.eye(5)[:, :3] * 9,
        labels=[0, 1, 2, 0, 1],
        split=list("vvtvt"),
        class_names=list("abc"),
    )
    assert read(tmp_path / "s.npz", split="t").labels.tolist() == [2, 1]


def test_one_array_and_tensors(tmp_path: Path) -> None:
    np.save(tmp_path / "z.npy", [[1.0, 2.0], [3.0, 0.5]])
    assert read(tmp_path / "z.npy", kind="logits").logits.tolist() == [[1, 2], [3, 0.5]]
    with pytest.raises(InputError, match=r"z\.npy: cannot tell whether the scores are probabilities or logits"):
        read(tmp_path / "z.npy")
    torch.save(
        {"logits": 2 * torch.eye(2), "labels": torch.tensor([0, 1]), "class_names": ["a", "b"]}, tmp_path / "d.pt"
    )
    found = read(tmp_path / "d.pt")
    assert (found.labels.tolist(), found.class_names) == ([0, 1], ("a", "b"))
    torch.save({"logits": 2 * torch.eye(2), "model": object()}, tmp_path / "d.pt")
    with pytest.raises(FileFormatError, match=r"d\.pt"):
        read(tmp_path / "d.pt")


def test_positions_of_one_image_are_one_group(tmp_path: Path) -> None:
    logits = np.random.default_rng(1).normal(size=(2, 3, 4))
    np.savez(tmp_path / "m.npz", logits=logits, labels=np.zeros((2, 4), dtype=int))
    found = read(tmp_path / "m.npz")
    assert (len(found), found.groups.tolist()) == (8, [0] * 4 + [1] * 4)
    np.testing.assert_array_equal(found.logits[1], logits[0, :, 1])


# frames


@pytest.mark.parametrize("library", ["pandas", "polars", "arrow"])
def test_frames(library: str) -> None:
    columns = {"id": ["a", "b"], "p_cat": [0.9, 0.25], "p_dog": [0.1, 0.75], "truth": ["cat", "dog"], "age": [3, 4]}
    make: Any = {"pandas": pandas.DataFrame, "polars": polars.DataFrame, "arrow": pa.table}[library]
    found = read(make(columns), label="truth", features=["age"])
    assert (found.labels.tolist(), found.class_names) == ([0, 1], ("cat", "dog"))
    assert found.features["age"].tolist() == [3, 4]
    frame = pandas.DataFrame({0: [0.9], 1: [0.1], "y": pandas.Categorical(["1"])})
    assert read(frame, columns="0,1", kind="probs").labels.tolist() == [1]
    with pytest.raises(InputError, match="expected a path or a data frame, got list"):
        read([[0.5, 0.5]])


def test_lists_in_columns(tmp_path: Path) -> None:
    frame = polars.DataFrame({"probs": [[0.9, 0.1], [0.25, 0.75]], "label": [0, 1]})
    frame.write_parquet(tmp_path / "l.parquet")
    frame.write_ndjson(tmp_path / "l.jsonl")
    for source in (frame, tmp_path / "l.parquet", tmp_path / "l.jsonl"):
        assert read(source).probs.tolist() == [[0.9, 0.1], [0.25, 0.75]]
    ranked = polars.DataFrame({"scores": [[0.9, 0.1], [0.75, 0.25]], "labels": [[0, 1], [1, 0]]})
    with pytest.raises(InputError, match="cannot tell which columns are scores"):
        read(ranked)
    with pytest.raises(InputError, match=r"column 'labels' holds .*list.*, not one value per row"):
        read(ranked, columns="scores", kind="probs")


# there and back


def some(kind: str, names: tuple[str, ...] | None) -> Predictions:
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(7, 3)).astype(np.float32)
    beside = {
        "groups": [1, 1, 2, 2, 3, 3, 3],
        "weights": rng.random(7) + 0.5,
        "features": {"age": rng.integers(0, 9, 7), "region": np.array(list("xyxyxyx"))},
        "class_names": names,
    }
    labels = [0, 1, 0, 1, 1, 0, 0]  # the last class has no label
    if kind == "logits":
        return Predictions.from_logits(logits, labels, **beside)
    return Predictions.from_probs(torch.softmax(torch.from_numpy(logits), dim=1), labels, **beside)


@pytest.mark.parametrize("suffix", SAVED)
@pytest.mark.parametrize("kind", ["logits", "probs"])
@pytest.mark.parametrize("names", [None, ("cat", 'big, "old" dog', "007")])
def test_own_files_are_read_without_options(kind: str, names: Any, suffix: str, tmp_path: Path) -> None:
    data, path = some(kind, names), tmp_path / f"own{suffix}"
    for parts in (data, {"val": data[:3], "test": data[3:]}, {"all": data[:1]}):
        save_predictions(path, parts)
        for split, before in (parts if isinstance(parts, dict) else {"all": parts}).items():
            after = read(path, split=split)
            np.testing.assert_array_equal(*(one.logits if kind == "logits" else one.probs for one in (after, before)))
            assert (after.given_probs is None) == (kind == "logits")
            assert after.labels.tolist() == before.labels.tolist()
            assert after.class_names == names
            np.testing.assert_array_equal(after.weights, before.weights)
            assert after.groups.tolist() == before.groups.tolist()
            assert after.features["age"].tolist() == before.features["age"].tolist()
            assert after.features["region"].tolist() == before.features["region"].tolist()


@pytest.mark.parametrize("suffix", SAVED)
def test_decisions_and_rows_without_labels_come_back(suffix: str, tmp_path: Path) -> None:
    data = Predictions(2 * torch.eye(3), decision=torch.tensor([0, 2, 2]), class_names=("a", "b", "c"))
    save_predictions(tmp_path / f"own{suffix}", data)
    found = read(tmp_path / f"own{suffix}")
    assert found.labels is None
    assert found.decision.tolist() == [0, 2, 2]


@pytest.mark.parametrize("suffix", SAVED)
@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_several_labels_come_back(suffix: str, kind: str, tmp_path: Path) -> None:
    make = MultiLabel.from_logits if kind == "logits" else MultiLabel.from_probs
    data = make(
        [[0.9, 0.4], [0.2, 0.7]] if kind == "probs" else [[2.0, -1.0], [0.5, 3.0]],
        [[1, 0], [-1, 1]],
        names=["cat", "a,b"],
    )
    save_predictions(tmp_path / f"own{suffix}", data)
    found = read(tmp_path / f"own{suffix}", multilabel=True)
    assert (found.names, found.labels.tolist()) == (data.names, data.labels.tolist())
    np.testing.assert_array_equal(found.probs, data.probs)


def test_several_labels_of_a_table(write: Callable[..., Path]) -> None:
    path = write("p_cat,p_dog,y_dog,y_cat\n0.9,0.4,0,1\n0.2,0.7,-1,0\n")
    found = read(path, columns="p_*", label="y_*", multilabel=True)
    assert (found.names, found.labels.tolist()) == (("cat", "dog"), [[1, 0], [0, -1]])
    with pytest.raises(InputError, match="cannot tell which columns hold the labels"):
        read(path, columns="p_*", label="z_*", multilabel=True)


@pytest.mark.parametrize("name", ["", " cat", "*"])
def test_names_that_no_table_can_hold_are_refused(name: str, tmp_path: Path) -> None:
    data = Predictions(torch.eye(2), class_names=(name, "dog"))
    with pytest.raises(InputError, match="cannot name a class in a file"):
        save_predictions(tmp_path / "a.csv", data)
    assert not list(tmp_path.iterdir())


def test_saving_refuses(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="must end in one of"):
        save_predictions(tmp_path / "a.xlsx", some("logits", None))
    with pytest.raises(InputError, match="expected predictions, or a dict of split"):
        save_predictions(tmp_path / "a.npz", {"val": 3})
    with pytest.raises(InputError, match="expected splits with the same classes"):
        save_predictions(tmp_path / "a.npz", {"val": some("logits", None), "test": some("logits", ("a", "b", "c"))})
    with pytest.raises(InputError, match="JSON cannot hold"):
        save_predictions(tmp_path / "a.jsonl", Predictions(torch.tensor([[0.0, -torch.inf]])))
    assert not list(tmp_path.iterdir())


def test_what_apply_added_is_not_read(write: Callable[..., Path]) -> None:
    path = write("p_cat,p_dog,y,calibrated_p_cat,calibrated_p_dog\n.9,.1,cat,.75,.25\n")
    assert read(path).probs.tolist() == [[0.9, 0.1]]
    assert notes(path).endswith("calibrated_p_cat, calibrated_p_dog are not read; --columns 'calibrated_*' reads them")
    assert read(path, columns="calibrated_*").probs.tolist() == [[0.75, 0.25]]
    assert read(path, columns="calibrated_*").labels.tolist() == [0]


# bad input


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", "", "a.csv is empty"),
        ("a.csv", "p_a,p_b,y\n.5,.5,a\n.5,.5\n", "a.csv, line 3 has 2 cells, the header 3"),
        ("a.csv", "p_a,p_b,y\n.5,.5,a\n\n.5,,a\n", "a.csv, line 4: an empty cell in the column 'p_b' is no number"),
        ("a.csv", 'p_a,p_b,y\n.5,.5,"a\nb"\n.5,.5x,a\n', "a.csv, line 4: '.5x' in the column 'p_b' is no number"),
        ("a.csv", b"\xff\xfe\x00" * 50, "a.csv is no table of text in UTF-8"),
        ("a.csv", "p_a,p_a,y\n.5,.5,a\n", "a.csv has two columns 'p_a'"),
        ("a.jsonl", "[" * 20_000, "a.jsonl, line 1 is no JSON"),
        ("a.jsonl", '{"p_a": 0.5, "p_b": 0.5}\n{"p_a": 1}\n', "a.jsonl, line 2: the score in 'p_b' is missing or NaN"),
        ("a.jsonl", '{"probs": [0.5, 0.5]}\n{"probs": [1]}\n', "the lists in 'probs' are empty or of unlike length"),
        ("a.parquet", "PAR1nothing", "is broken, or no"),
        ("a.xlsx", "PK", "read others as a data frame: calibrant.read(frame)"),
    ],
)
def test_bad_files_are_one_sentence(name: str, content: str | bytes, said: str, write: Callable[..., Path]) -> None:
    with pytest.raises(CalibrantError) as caught:
        read(write(content, name))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_that_is_no_text_is_a_broken_file(tmp_path: Path) -> None:
    save_predictions(tmp_path / "a.feather", some("probs", None))
    content = (tmp_path / "a.feather").read_bytes()
    (tmp_path / "a.feather").write_bytes(content.replace(b"groups", b"grou\x9bs"))
    with pytest.raises(FileFormatError, match="is broken"):
        read(tmp_path / "a.feather")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".feather", ".npz", ".safetensors"])
def test_injured_files_are_read_or_refused(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    save_predictions(path, some("probs", ("a", "b", "c")))
    whole, rng = path.read_bytes(), random.Random(0)
    for _ in range(60):
        injured = bytearray(whole)
        for _ in range(rng.choice([1, 3, 20])):
            injured[rng.randrange(len(injured))] = rng.randrange(256)
        path.write_bytes(injured[: rng.choice([len(injured), rng.randrange(len(injured))])])
        with suppress(CalibrantError):  # and no other error
            read(path)
