"""Reading by a mapping, and saving: hand values, every format there and back, the rules of the mapping, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import late

from calibrant import MultiLabel, Predictions, read, save_predictions
from calibrant.data.io import SAVED, Mapped, read_contents
from calibrant.errors import CalibrantError, FileFormatError, InputError

pandas, polars, pa = late("pandas"), late("polars"), late("pyarrow")

SCORES = "id,cat,dog,fox,truth\n007,.7,.2,.1,cat\n008,.1,.1,.8,fox\n"
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file and return its path."""

    def write(content: str | bytes, name: str = "scores.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def notes(path: Path, **said: Any) -> str:
    return "\n".join(read_contents(path, Mapped(**said)).notes)


def test_three_options_read_any_table(write: Write) -> None:
    for columns in ("cat,dog,fox", ["cat", "dog", "fox"]):
        found = read(write(SCORES), columns=columns, label="truth", kind="probs")
        np.testing.assert_allclose(found.probs, [[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
        assert (found.labels.tolist(), found.class_names) == ([0, 2], ("cat", "dog", "fox"))


def test_the_error_is_the_help(write: Write) -> None:
    path = write(SCORES)
    say = "Columns: id, cat, dog, fox, truth. Use --columns A,B,… --label C --kind probs|logits"
    for said, what in (
        (Mapped(), "which columns are scores"),
        (Mapped("cat,dog,fox"), "whether the scores are probabilities or logits"),
        (Mapped("cat,dog,fox", kind="probs"), "which column holds the labels"),
    ):
        with pytest.raises(InputError) as caught:
            read_contents(path, said, labelled=True)
        assert str(caught.value) == f"scores.csv: cannot tell {what}. {say}"
    for names in ("p_a,p_b,logit_a,logit_b", "p_a,p_b,prob,x", "p_a,p_b,y,target"):  # which could mean two things
        with pytest.raises(InputError, match="cannot tell which column"):
            read(write(f"{names}\n.5,.5,0,1\n"))
    wide = write(",".join(f"c{at}" for at in range(99_000)) + "\n" + "0," * 98_999 + "0", "wide.csv")
    with pytest.raises(InputError, match=r"Columns: c0, c1, .*c11, … \(99,000 in all\)\. Use"):
        read(wide)


@pytest.mark.parametrize(("names", "kind"), [("p_cat,p_dog", "probs"), ("logits_cat,logits_dog", "logits")])
@pytest.mark.parametrize("label", ["label", "target"])
def test_names_of_the_table_need_no_option(names: str, kind: str, label: str, write: Write) -> None:
    low = -0.25 if kind == "logits" else 0.25
    found = read(write(f"note,{names},{label}\nx,{low},.75,dog\ny,.5,.5,cat\n"))
    assert (found.given_probs is None) == (kind == "logits")
    assert found.labels.tolist() == [1, 0]
    assert (found.logits if kind == "logits" else found.probs).tolist() == [[low, 0.75], [0.5, 0.5]]


@pytest.mark.parametrize("words", [("0.0", "1.0"), ("no", "yes"), ("False", "True")])
def test_one_column_is_the_probability_of_class_1_or_of_its_event(words: tuple[str, str], write: Write) -> None:
    for name in ("p", "prob"):
        found = read(write(f"{name},y\n.2,{words[0]}\n.9,{words[1]}\n.4,{words[1]}\n"))
        np.testing.assert_allclose(found.probs[:, 1], [0.2, 0.9, 0.4])
        assert found.labels.tolist() == [0, 1, 1]
    found = read(write(f"p_left,churned\n.2,{words[0]}\n.9,{words[1]}\n"), label="churned")
    assert found.class_names == ("not left", "left")


def test_the_event_of_one_column_may_be_a_label(write: Write) -> None:
    path = write("p_left,churned\n.2,stayed\n.9,left\n")
    found = read(path, label="churned")
    assert (found.labels.tolist(), found.class_names) == ([0, 1], ("stayed", "left"))
    assert notes(path, label="churned") == "classes: 0 = stayed, 1 = left"
    path = write("score,churned\n.2,stayed\n.9,left\n")
    with pytest.raises(InputError, match=r"'stayed' in line 2; it must be an integer .* or one of the classes no, yes"):
        read(path, columns="score", label="churned", kind="probs")


@pytest.mark.parametrize(
    ("columns", "labels"),
    [("cat prob,dog prob", "cat,dog"), ("prob class a,prob class b", "a,b"), ("prob class a,prob class b", "class a,class b"),
     ("cat,dog", "Cat,DOG"), ("cat,dog", "0,1"), ("p1,p2", "1,2"), ("a,b", "0.0,1.0")],
)  # fmt: skip
def test_labels_are_names_of_the_columns_or_integers(columns: str, labels: str, write: Write) -> None:
    one, two = labels.split(",")
    path = write(f"{columns},truth\n.9,.1,{one}\n.2,.8,{two}\n")
    assert read(path, columns=columns, label="truth", kind="probs").labels.tolist() == [0, 1]


def test_which_label_means_which_class_is_said(write: Write) -> None:
    for rows, said in (
        ("p_0,p_1,y\n.9,.1,0\n.2,.8,1\n", ""),
        ("p_cat,p_dog,y\n.9,.1,0\n.2,.8,1\n", "labels: 0 means cat, 1 means dog"),
        ("p_cat,p_dog,y\n.9,.1,dog\n", "classes: 0 = cat, 1 = dog"),
    ):
        assert notes(write(rows)) == said


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("1,2,y\n.9,.1,1\n.2,.8,0", "the label is '0' in line 3; it must be one of the classes 1, 2"),
        ("cat,dog,y\n.9,.1,cat\n.2,.8,1", "is '1' in line 3; it must be an integer from 0 to 1 or one of the classes cat, dog"),
        ("cat,dog,y\n.9,.1,0\n.2,.8,2", "is '2' in line 3; it must be an integer from 0 to 1 or one of"),
        ("cat,dog,y\n.9,.1,cat\n.2,.8,", "the label is empty in line 3; leave out rows without a label"),
    ],
)  # fmt: skip
def test_names_and_integers_are_never_mixed(rows: str, said: str, write: Write) -> None:
    with pytest.raises(InputError) as caught:
        read(write("p_" + rows.replace(",", ",p_", 1) + "\n"))
    assert said in str(caught.value)


def test_numbered_columns_are_sorted_by_their_numbers(write: Write) -> None:
    names = [f"p_{at}" for at in range(12)]
    cells = {name: (at + 1) / 78 for at, name in enumerate(names)}
    order = sorted(names)
    found = read(write(f"{','.join(order)},y\n{','.join(repr(cells[name]) for name in order)},11\n"))
    assert found.class_names is None
    np.testing.assert_allclose(found.probs[0], list(cells.values()))
    assert found.labels.tolist() == [11]


def test_a_pattern_and_a_line_of_csv(write: Write) -> None:
    path = write('"cat, big","cat, small",dog_s,fox_s,truth\n.5,.5,.25,.75,0\n')
    told: dict[str, Any] = {"label": "truth", "kind": "probs"}
    assert read(path, columns='"cat, big","cat, small"', **told).class_names == ("big", "small")
    assert read(path, columns="*_s", **told).probs.tolist() == [[0.25, 0.75]]
    for columns, said in (
        ("z*", r"no column matches 'z\*'\. Columns: cat, big"),
        ("fox_s,fox_s", "each score column once"),
    ):
        with pytest.raises(InputError, match=said):
            read(path, columns=columns, kind="probs")


def test_weights_groups_features_and_splits(write: Write) -> None:
    rows = (
        "p_a,p_b,y,w,patient,age,region,split",
        ".9,.1,a,2,x,30,EU,val",
        ".2,.8,b,1,y,40,US,test",
        ".3,.7,b,3,x,50,EU,val",
    )
    path = write("\n".join(rows))
    found = read(path, weights="w", groups="patient", split="val", features=["age", "region"])
    assert found.weights.tolist() == [2, 3]
    assert found.groups[0] == found.groups[1]
    assert (found.features["age"].tolist(), found.features["region"].tolist()) == ([30, 50], ["EU", "EU"])
    with pytest.raises(InputError, match=r"has several splits; name one of test, val with --split"):
        read(path)
    with pytest.raises(InputError, match=r"scores\.csv has no splits; leave out --split"):
        read(write("p_a,p_b,y\n.9,.1,a\n"), split="test")


@pytest.mark.parametrize(
    ("named", "twice"),
    [
        ({"label": "p_a"}, "p_a"),
        ({"groups": "y"}, "y"),
        ({"weights": "p_b"}, "p_b"),
        ({"weights": "w", "groups": "w"}, "w"),
        ({"weights": "w", "on": "w", "labels": "y.csv"}, "w"),
    ],
)
def test_one_column_has_one_purpose(named: dict[str, Any], twice: str, write: Write) -> None:
    with pytest.raises(InputError, match=f"'{twice}' is named for two purposes; name another column"):
        read(write("p_a,p_b,y,w\n.9,.1,a,2\n.2,.8,b,1\n"), **named)


def test_rows_may_be_matched_by_their_group(write: Write) -> None:
    path = write("patient,p_a,p_b\n7,.4,.6\n8,.3,.7\n7,.9,.1\n")
    labels = write("patient,label\n8,a\n7,b\n", "labels.csv")
    found = read(path, labels=labels, on="patient", groups="patient")
    assert found.labels.tolist() == [1, 0, 1]
    assert found.groups[0] == found.groups[2] != found.groups[1]


def test_a_column_with_a_standard_name_may_hold_labels(write: Write) -> None:
    found = read(write("p_a,p_b,decision\n.9,.1,b\n"), label="decision")
    assert (found.labels.tolist(), found.decision) == ([1], None)


@pytest.mark.parametrize(
    "text",
    [
        "p_cat;p_dog;y\r\n0,9;0,1;cat\r\n0,25;0,75;dog\r\n",
        "p_cat\tp_dog\ty\n0.9\t0.1\tcat\n0.25\t0.75\tdog",
        "p_cat|p_dog|y\n0.9|0.1|cat\n0.25|0.75|dog",
        "\ufeffp_cat,p_dog,y\n0.9,0.1,cat\n0.25,0.75,dog\n",
        'p_cat,"p_dog","y"\n"0.9","0.1","cat"\n0.25,0.75,"dog"\n',
        "p_cat, p_dog , y\n 0.9, 0.1, cat\n0.25, 0.75 , dog \n",
        "p_cat,p_dog,y\n\n0.9,0.1,cat\n\n0.25,7.5e-1,dog\n\n",
        f"p_cat,p_dog,y,text\n.9,.1,cat,short\n.25,.75,dog,{'x' * (5 << 20)}\n",  # longer than a block
    ],
)
def test_dialects(text: str, write: Write) -> None:
    found = read(write(text))
    np.testing.assert_allclose(found.probs, [[0.9, 0.1], [0.25, 0.75]])
    assert found.labels.tolist() == [0, 1]


def test_rounded_rows_are_divided_and_others_refused(write: Write) -> None:
    path = write("p_a,p_b,p_c,y\n.33,.33,.33,a\n.5,.25,.25,b\n")
    np.testing.assert_allclose(read(path).probs, [[1 / 3] * 3, [0.5, 0.25, 0.25]])
    assert notes(path).startswith(
        "1 rows of rounded probabilities are divided by their sums, which differ from 1 by up to"
    )
    with pytest.raises(InputError, match=r"scores.csv, line 3: p_a, p_b, p_c sum to 0.997; .* must sum to 1"):
        read(write("p_a,p_b,p_c,y\n.5,.25,.25,b\n.333,.333,.331,a\n"))
    with pytest.raises(InputError, match="line 2: p_a, p_b, p_c sum to 100; these look like percentages; divide by"):
        read(write("p_a,p_b,p_c,y\n50,25,25,b\n33,33,33,a\n"))


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("p_a,p_b,y\n.6,.4,a\n.5,.3,b\n.1,.2,a\n", {}, "line 3: p_a, p_b sum to 0.8"),  # a forgotten third class
        ("p_a,p_b,y\n.6,.4,b\n.5,.5,z\n.5,.5,\n.5,.5,c\n", {}, "the label is 'z' in line 3"),
        ("p_a,p_b,y\n.6,.4,A\n.5,.5,z\n", {}, "the label is 'z' in line 3"),  # capitals do not matter
        ("p_a,p_b,y\n.6,.4,0\n1.5,-.5,1\n2,-1,1\n", {}, "line 3: expected probabilities in [0, 1], got 1.5; say"),
        ("p,y\n.6,0\n1.5,1\n-3,1\n", {}, "line 3: expected probs in [0, 1], got 1.5; pass"),
        ("logit_a,logit_b,y\n1,2,0\n1,inf,0\n", {}, "line 3: expected finite logits"),
        ("p_a,p_b,y,w\n.6,.4,0,1\n.6,.4,0,-2\n.6,.4,0,-3\n", {"weights": "w"}, "line 3: expected finite weights ≥ 0, got -2;"),
        ("p_a,p_b,y,g\n.6,.4,0,x\n.6,.4,0,\n", {"groups": "g"}, "line 3: expected groups without empty entries, got an empty one;"),
        ("p_a,p_b,y_a,y_b\n.6,.9,0,1\n.6,.9,0,7\n", {"multilabel": True, "label": "y_*"}, "line 3: expected labels 0, 1, or -1"),
    ],
)  # fmt: skip
def test_the_first_wrong_line_is_named(columns: str, options: dict[str, Any], message: str, write: Write) -> None:
    with pytest.raises(InputError) as caught:
        read(write(columns), **options)
    assert message in str(caught.value)
    assert "row" not in str(caught.value).split(";")[0]


def test_labels_in_a_file_of_their_own(write: Write, tmp_path: Path) -> None:
    path = write("id,p_a,p_b\nx1,.4,.6\nx2,.3,.7\n")
    np.save(tmp_path / "y.npy", [1, 0])
    in_order = {
        "y.txt": "b\na\n",
        "one.csv": "truth\nb\na\n",
        "y.csv": "id,label\nx1,b\nx2,a\n",
        "y.jsonl": '{"label": "b"}\n{"label": "a"}\n',
    }
    for labels in (*(write(text, name) for name, text in in_order.items()), tmp_path / "y.npy"):
        assert read(path, labels=labels).labels.tolist() == [1, 0], labels
    shuffled = write("id,truth\nx2,a\nx9,a\nx1,b\n", "other.csv")
    assert read(path, labels=shuffled, label="truth", on="id").labels.tolist() == [1, 0]
    padded = write("id,label\n1,b\n01,a\n", "padded.csv")  # two different ids
    assert read(write("id,p_a,p_b\n01,.4,.6\n1,.3,.7\n"), labels=padded, on="id").labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("text", "on", "said"),
    [
        ("id,label\n1001,a\n1000,b\n", None, "has other rows than scores.csv, or another order: id in row 0 is '1001'"),
        ("label\na\nb\na\n", None, "has 3 labels for 2 rows"),
        ("id,label\n1000,a\n1000,b\n1001,a\n", "id", "'id' is '1000' twice; it must identify each row"),
        ("id,label\n1000,a\n1002,b\n", "id", "lacks the row whose id is '1001'"),
    ],
)  # fmt: skip
def test_labels_of_other_rows_are_refused(text: str, on: str | None, said: str, write: Write) -> None:
    path = write("id,p_a,p_b\n1000,.4,.6\n1001,.3,.7\n")
    with pytest.raises(InputError) as caught:
        read(path, labels=write(text, "y.csv"), on=on)
    assert said in str(caught.value)


def test_arrays_by_name(tmp_path: Path) -> None:
    path, logits = tmp_path / "a.npz", np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    labels = [0, 1, 2, 0, 1, 2]
    held = {"val_logits": logits, "val_labels": labels, "test_logits": logits[:4], "test_labels": list("abca")}
    np.savez(path, **held, class_names=list("abc"))
    val, test = read(path, split="val"), read(path, split="test")
    np.testing.assert_array_equal(val.logits, logits)
    assert (test.labels.tolist(), test.class_names) == ([0, 1, 2, 0], ("a", "b", "c"))
    np.savez(path, logits=logits, labels=labels, split=list("vvtvtv"), class_names=list("abc"))
    assert read(path, split="t").labels.tolist() == [2, 1]
    np.savez(path, arr_0=logits, arr_1=labels)
    assert len(read(path, columns="arr_0", label="arr_1", kind="logits")) == 6
    with pytest.raises(InputError, match=r"which arrays are scores\. Arrays: arr_0, arr_1\. Use --columns"):
        read(path)
    np.savez(path, logits=logits.reshape(2, 3, 3), labels=np.zeros((2, 3), dtype=int))
    found = read(path)  # positions of one image are one group
    assert (len(found), found.groups.tolist()) == (6, [0] * 3 + [1] * 3)
    np.testing.assert_array_equal(found.logits[1], logits.reshape(2, 3, 3)[0, :, 1])


def test_one_array_and_tensors(tmp_path: Path) -> None:
    np.save(tmp_path / "z.npy", [[1.0, 2.0], [3.0, 0.5]])
    assert read(tmp_path / "z.npy", kind="logits").logits.tolist() == [[1, 2], [3, 0.5]]
    held = {"logits": 2 * torch.eye(2), "labels": torch.tensor([0, 1]), "class_names": ["a", "b"]}
    torch.save(held, tmp_path / "d.pt")
    found = read(tmp_path / "d.pt")
    assert (found.labels.tolist(), found.class_names) == ([0, 1], ("a", "b"))
    torch.save({**held, "model": object()}, tmp_path / "d.pt")
    with pytest.raises(
        FileFormatError, match=r"d\.pt is broken or holds objects other than tensors, which are not loaded; save a dict"
    ):
        read(tmp_path / "d.pt")


@pytest.mark.parametrize("make", [lambda c: pandas.DataFrame(c), lambda c: polars.DataFrame(c), lambda c: pa.table(c)])
def test_frames(make: Any) -> None:
    columns = {"id": ["a", "b"], "p_cat": [0.9, 0.25], "p_dog": [0.1, 0.75], "truth": ["cat", "dog"], "age": [3, 4]}
    found = read(make(columns), label="truth", features=["age"])
    assert (found.labels.tolist(), found.class_names) == ([0, 1], ("cat", "dog"))
    assert found.features["age"].tolist() == [3, 4]
    frame = pandas.DataFrame({0: [0.9], 1: [0.1], "y": pandas.Categorical(["1"], categories=["no row", "1"])})
    assert read(frame, columns="0,1", kind="probs").labels.tolist() == [1]


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


def some(kind: str, names: tuple[str, ...] | None) -> Predictions:
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(7, 3)).astype(np.float32)
    features = {"age": rng.integers(0, 9, 7), "size": rng.random(7)}
    more: dict[str, Any] = {"weights": rng.random(7) + 0.5, "features": features, "class_names": names}
    labels = [0, 1, 0, 1, 1, 0, 0]  # the last class has no label
    make = Predictions.from_logits if kind == "logits" else Predictions.from_probs
    scores = torch.from_numpy(logits)
    return make(scores if kind == "logits" else scores.softmax(dim=1), labels, groups=[1, 1, 2, 2, 3, 3, 3], **more)


@pytest.mark.parametrize("suffix", SAVED)
@pytest.mark.parametrize("kind", ["logits", "probs"])
@pytest.mark.parametrize("names", [None, ("cat", 'big, "old" dog', "007")])
def test_own_files_are_read_without_options(kind: str, names: Any, suffix: str, tmp_path: Path) -> None:
    data, path = some(kind, names), tmp_path / f"own{suffix}"
    for parts in ({"all": data}, {"val": data[:3], "test": data[3:]}, {"all": data[:1]}):
        save_predictions(path, parts)
        for split, before in parts.items():
            after = read(path, split=split)
            assert (after.given_probs is None) == (kind == "logits")
            assert after.class_names == names
            one, other = (rows.stored() | {kind: getattr(rows, kind)} for rows in (after, before))
            assert one.keys() == other.keys()
            for name in one:
                np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize("suffix", SAVED)
def test_decisions_text_and_several_labels_come_back(suffix: str, tmp_path: Path) -> None:
    path, decision = tmp_path / f"own{suffix}", torch.tensor([0, 2, 2])
    save_predictions(path, Predictions(2 * torch.eye(3), decision=decision, class_names=("a", "b", "c")))
    assert (read(path).labels, read(path).decision.tolist()) == (None, [0, 2, 2])
    data = MultiLabel.from_probs([[0.9, 0.4], [0.2, 0.7]], [[1, 0], [-1, 1]], names=["cat", "a,b"])
    save_predictions(path, data)
    found = read(path, multilabel=True)
    assert (found.names, found.labels.tolist()) == (data.names, data.labels.tolist())
    np.testing.assert_array_equal(found.probs, data.probs)
    text = Predictions(2 * torch.eye(2), features={"site": np.array(["x", "zü"])})
    if suffix == ".safetensors":
        with pytest.raises(InputError, match=r"'feature:site' is text, but \.safetensors holds only numbers"):
            save_predictions(path, text)
    else:
        save_predictions(path, text)
        assert read(path).features["site"].tolist() == ["x", "zü"]


def test_several_labels_of_a_table(write: Write) -> None:
    path = write("p_cat,p_dog,y_dog,y_cat\n0.9,0.4,0,1\n0.2,0.7,-1,0\n")
    found = read(path, columns="p_*", label="y_*", multilabel=True)
    assert (found.names, found.labels.tolist()) == (("cat", "dog"), [[1, 0], [0, -1]])


def test_names_of_labels_and_scores_that_differ_are_listed(write: Write) -> None:
    path = write("p_cat,p_dog,y_1,y_2\n.5,.1,1,0\n")
    said = r"scores\.csv: the scores are of cat, dog, but 'y_\*' matches labels of 1, 2; these names must agree"
    with pytest.raises(InputError, match=said):
        read(path, label="y_*", multilabel=True)


def test_labels_that_are_no_file_are_refused() -> None:
    frame = pandas.DataFrame({"p_a": [0.1, 0.2], "p_b": [0.9, 0.8]})
    with pytest.raises(
        InputError, match="expected labels as the path of a file, got Series; add the labels to the frame"
    ):
        read(frame, labels=pandas.Series(["a", "b"]))


def test_saving_refuses(tmp_path: Path) -> None:
    plain, named = some("logits", None), some("logits", ("a", "b", "c"))
    bad_names = [Predictions(torch.eye(2), class_names=(name, "dog")) for name in ("", " cat", "*")]
    for name, data, said in (
        ("a.xlsx", plain, "must end in one of"),
        ("a.npz", {"val": 3}, "expected predictions, or a dict of split → predictions, got int"),
        ("a.npz", {"val": plain, "test": named}, "expected splits with the same classes"),
        ("a.jsonl", Predictions(torch.tensor([[0.0, -torch.inf]])), "JSON cannot hold"),
        *(("a.csv", bad, "cannot name a class in a file") for bad in bad_names),
    ):
        with pytest.raises(CalibrantError, match=said):
            save_predictions(tmp_path / name, data)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", "", "a.csv is empty"),
        ("a.csv", b"p_a,p_b,y\n.5,.5,\xf6\n", "a.csv is not text in UTF-8; save it as UTF-8"),
        ("a.npz", b"\0" * 50, "(no arrays of numbers or text); write it again"),
        ("a.csv", "p_a,p_b,y\n.5,.5,a\n\n1.1,-.1,a\n", "a.csv, line 4: expected probabilities in [0, 1], got 1.1"),
        ("a.csv", "p_a,p_b,y\n.5,.5,a\n.5,.5\n", "a.csv, line 3 cannot be read: Expected 3 columns, got 2: .5,.5"),
        ("a.csv", "p_a,p_b,y\n.5,.5,a\n\n.5,,a\n", "a.csv, line 4: the score in 'p_b' is missing or NaN"),
        ("a.csv", 'p_a,p_b,y\n.5,.5,"a\nb"\n.5,.5x,a\n', "a.csv, line 4, column 'p_b' cannot be read: CSV conversion error"),
        ("a.csv", "p_a;p_b;y\n0,5;0,5;a\n0,5;x;a\n", "a.csv, line 3, column 'p_b' cannot be read"),
        ("a.csv", "p_a,p_a,y\n.5,.5,a\n", "a.csv has two columns 'p_a'"),
        ("a.jsonl", '[{"p_a": 1, "p_b": 0}]', "a.jsonl: row 0 is not a JSON object; write one object per line"),
        ("a.jsonl", "[" * 20_000, "a.jsonl: row 0 is not a JSON"),
        ("a.jsonl", '{"p_a": 0.5, "p_b": 0.5}\n{"p_a": 1}\n', "a.jsonl, row 1: the score in 'p_b' is missing or NaN"),
        ("a.jsonl", '{"p_a": "x", "p_b": 1}\n{"p_a": 1, "p_b": 0}\n', "mixes values of different types"),
        ("a.parquet", "PAR1nothing", "expected a readable .parquet file, got a broken one"),
        ("a.xlsx", "PK", "read others as a data frame: calibrant.read(frame)"),
    ],
)  # fmt: skip
def test_bad_files_are_one_sentence(name: str, content: str | bytes, said: str, write: Write) -> None:
    with pytest.raises(CalibrantError) as caught:
        read(write(content, name))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
