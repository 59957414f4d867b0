"""Readings that used to give wrong numbers without a sentence: they are right now, or refused."""

import numpy as np
import pytest

import calibrant
from calibrant._core.files import read_arrays, write_arrays
from calibrant.data.formats.layout import Layout
from calibrant.data.formats.reading import read_named
from calibrant.errors import FileFormatError, InputError


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def test_labels_of_another_file_follow_the_key_and_not_the_position(tmp_path):
    scores = write(tmp_path, "scores.csv", "id,probs_0,probs_1\na,.9,.1\nb,.2,.8\nc,.7,.3\n")
    labels = write(tmp_path, "labels.csv", "id,label\nc,0\na,0\nb,1\n")
    data = calibrant.read(scores, labels=labels)
    assert data.labels.tolist() == [0, 1, 0]
    assert "joined on 'id'" in read_named(scores, Layout(labels=labels)).receipt.joined


def test_a_named_key_is_used_and_must_be_in_both_files(tmp_path):
    scores = write(tmp_path, "scores.csv", "n,code,probs_0,probs_1\n1,x,.9,.1\n2,y,.2,.8\n")
    labels = write(tmp_path, "labels.csv", "n,code,label\n2,x,0\n1,y,1\n")
    assert calibrant.read(scores, labels=labels, on="code").labels.tolist() == [0, 1]
    assert calibrant.read(scores, labels=labels, on="n").labels.tolist() == [1, 0]
    with pytest.raises(InputError, match="expected the column 'key' in"):
        calibrant.read(scores, labels=labels, on="key")
    with pytest.raises(InputError, match="labels"):
        calibrant.read(scores, on="code")


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ("id,label\na,0\nz,1\n", "none for 1 of 2 rows \\('b'\\)"),
        ("id,label\na,0\na,1\n", "1 that occur more than once \\('a'\\)"),
    ],
)
def test_keys_that_do_not_match_are_counted_and_refused(tmp_path, labels, said):
    scores = write(tmp_path, "scores.csv", "id,probs_0,probs_1\na,.9,.1\nb,.2,.8\n")
    with pytest.raises(InputError, match=said):
        calibrant.read(scores, labels=write(tmp_path, "labels.csv", labels))


def test_without_a_key_the_position_counts_and_the_note_says_so(tmp_path):
    scores = write(tmp_path, "scores.csv", "probs_0,probs_1\n.9,.1\n.2,.8\n")
    labels = write(tmp_path, "labels.csv", "label\n0\n1\n")
    named = read_named(scores, Layout(labels=labels))
    assert named.arrays["labels"].tolist() == [0, 1]
    assert "by position" in named.notes[0]


@pytest.mark.parametrize("order", [("class_3", "class_0", "class_2", "class_1"), ("P(3)", "P(0)", "P(2)", "P(1)")])
def test_columns_with_numbers_go_by_them(tmp_path, order):
    head = ",".join(order)
    path = write(tmp_path, "scores.csv", f"{head},y\n.1,.7,.1,.1,0\n.6,.2,.1,.1,3\n")
    data = calibrant.read(path, columns="class_*" if "class" in head else "P(*", label="y", kind="probs")
    assert data.probs.tolist() == [[0.7, 0.1, 0.1, 0.1], [0.2, 0.1, 0.1, 0.6]]
    assert data.correct.tolist() == [True, True]


def test_boolean_labels_go_by_the_names_of_the_columns(tmp_path):
    path = write(tmp_path, "scores.csv", "p_True,p_False,y\n.9,.1,True\n.2,.8,False\n")
    data = calibrant.read(path, columns="p_True,p_False", label="y", kind="probs")
    assert data.correct.tolist() == [True, True]
    assert calibrant.read(path, columns="p_*", label="y", kind="probs").labels.tolist() == [0, 1]


def test_signed_labels_go_by_the_names_of_the_columns(tmp_path):
    path = write(tmp_path, "scores.csv", "p_1,p_-1,y\n.9,.1,1\n.2,.8,-1\n")
    assert calibrant.read(path, columns="p_*", label="y", kind="probs").labels.tolist() == [0, 1]


def test_one_score_beside_text_needs_the_positive_value(tmp_path):
    path = write(tmp_path, "scores.csv", "score,y\n.9,yes\n.2,no\n")
    with pytest.raises(InputError, match="positive='yes'"):
        calibrant.read(path, columns="score", label="y", kind="probs")
    assert calibrant.read(path, columns="score", label="y", kind="probs", positive="yes").labels.tolist() == [1, 0]
    assert calibrant.read(path, columns="score", label="y", kind="probs", positive="no").labels.tolist() == [0, 1]
    with pytest.raises(InputError, match="two values, 'maybe' one of them"):
        calibrant.read(path, columns="score", label="y", kind="probs", positive="maybe")
    two = write(tmp_path, "two.csv", "probs_0,probs_1,label\n.9,.1,0\n")
    with pytest.raises(InputError, match="one score a row"):
        calibrant.read(two, positive="0")


def test_numbers_can_be_positive(tmp_path):
    path = write(tmp_path, "scores.csv", "score,y\n.9,1\n.2,-1\n")
    assert calibrant.read(path, columns="score", label="y", kind="probs", positive=1).labels.tolist() == [1, 0]


def test_sigmoids_of_one_vs_rest_classifiers_are_not_called_logits(tmp_path):
    path = write(tmp_path, "scores.csv", "cat,dog,y\n.9,.7,cat\n.2,.3,dog\n")
    with pytest.raises(FileFormatError, match="one-vs-rest") as caught:
        calibrant.read(path)
    assert "kind='logits'" not in str(caught.value)


def test_two_arrays_of_labels_are_refused(tmp_path):
    write_arrays(
        tmp_path / "a.npz", {"logits": np.eye(2) * 3, "labels": np.array([0, 1]), "label_ids": np.array([1, 0])}
    )
    with pytest.raises(FileFormatError, match="labels and label_ids"):
        calibrant.read(tmp_path / "a.npz")
    write_arrays(
        tmp_path / "b.npz", {"predictions": np.eye(2) * 3, "labels": np.array([0, 1]), "label_ids": np.array([1, 0])}
    )
    with pytest.raises(FileFormatError, match="labels and label_ids"):
        calibrant.read(tmp_path / "b.npz")
    write_arrays(tmp_path / "c.npz", {"logits": np.eye(2) * 3, "label_ids": np.array([1, 0])})
    assert calibrant.read(tmp_path / "c.npz").labels.tolist() == [1, 0]


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_one_probability_a_row_is_not_read_as_a_logit(tmp_path, shape):
    np.save(tmp_path / "q.npy", np.array([0.2, 0.9, 0.4]).reshape(shape))
    np.save(tmp_path / "t.npy", np.array([0, 1, 0]))
    with pytest.raises(InputError, match="one number between 0 and 1 a row"):
        calibrant.read(logits=tmp_path / "q.npy", labels=tmp_path / "t.npy")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt"])
def test_a_split_without_a_name_beside_a_named_one_reads_alike_in_every_format(tmp_path, suffix):
    from calibrant.data.formats.writing import write_named

    z, y = np.array([[2.0, 0.0], [0.0, 2.0]]), np.array([0, 1])
    write_named(tmp_path / f"a{suffix}", {"logits": z, "labels": y, "test_logits": -z, "test_labels": y})
    assert sorted(calibrant.load_splits(tmp_path / f"a{suffix}")) == ["all", "test"]
    assert calibrant.load_predictions(tmp_path / f"a{suffix}", "test").correct.tolist() == [False, False]


def test_arrays_called_as_the_arguments_of_numpy_survive(tmp_path):
    names = {"file": np.arange(3), "allow_pickle": np.eye(2), "logits": np.zeros((1, 2))}
    write_arrays(tmp_path / "a.npz", names)
    found = read_arrays(tmp_path / "a.npz")
    assert {name: found[name].tolist() for name in names} == {name: one.tolist() for name, one in names.items()}
    with np.load(tmp_path / "a.npz") as other:
        assert sorted(other.files) == sorted(names)
