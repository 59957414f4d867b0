"""Readings that used to give wrong numbers without a sentence: they are right now, or refused."""

import numpy as np
import pytest

import calibrant
from calibrant._core.files import read_arrays, write_arrays
from calibrant.data.formats.layout import Layout
from calibrant.data.formats.reading import read_named
from calibrant.data.formats.writing import write_named
from calibrant.errors import FileFormatError, InputError


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


PLAIN = "probs_0,probs_1\n.9,.1\n.2,.8\n"
KEYED = "id,probs_0,probs_1\na,.9,.1\nb,.2,.8\n"
TWO_KEYS = "n,code,probs_0,probs_1\n1,x,.9,.1\n2,y,.2,.8\n"
OTHER_KEYS = "n,code,label\n2,x,0\n1,y,1\n"


@pytest.mark.parametrize(
    ("scores", "labels", "options", "found", "said"),
    [
        (KEYED, "id,label\nc,0\na,0\nb,1\n", {}, [0, 1], "joined on 'id'"),
        (KEYED, "id,label\nb,1\na,0\n", {}, [0, 1], "joined on 'id'"),
        (TWO_KEYS, OTHER_KEYS, {"on": "code"}, [0, 1], "joined on 'code'"),
        (TWO_KEYS, OTHER_KEYS, {"on": "n"}, [1, 0], "joined on 'n'"),
        (PLAIN, "label\n0\n1\n", {}, [0, 1], "by position"),
    ],
)
def test_labels_of_another_file_follow_the_key_and_else_the_position(tmp_path, scores, labels, options, found, said):
    path, beside = write(tmp_path, "scores.csv", scores), write(tmp_path, "labels.csv", labels)
    assert calibrant.read(path, labels=beside, **options).labels.tolist() == found
    assert said in read_named(path, Layout(labels=beside, **options)).notes[0]


@pytest.mark.parametrize(
    ("scores", "labels", "options", "said"),
    [
        (KEYED, "id,label\na,0\nz,1\n", {}, "none for 1 of 2 rows \\('b'\\)"),
        (KEYED, "id,label\na,0\na,1\n", {}, "1 that occur more than once \\('a'\\)"),
        (TWO_KEYS, OTHER_KEYS, {"on": "key"}, "expected the column 'key' in"),
        (TWO_KEYS, None, {"on": "code"}, "labels"),
    ],
)
def test_keys_that_do_not_match_are_refused(tmp_path, scores, labels, options, said):
    beside = {} if labels is None else {"labels": write(tmp_path, "labels.csv", labels)}
    with pytest.raises(InputError, match=said):
        calibrant.read(write(tmp_path, "scores.csv", scores), **beside, **options)


@pytest.mark.parametrize("order", [("class_3", "class_0", "class_2", "class_1"), ("P(3)", "P(0)", "P(2)", "P(1)")])
def test_columns_with_numbers_go_by_them(tmp_path, order):
    head = ",".join(order)
    path = write(tmp_path, "scores.csv", f"{head},y\n.1,.7,.1,.1,0\n.6,.2,.1,.1,3\n")
    data = calibrant.read(path, columns="class_*" if "class" in head else "P(*", label="y", kind="probs")
    assert data.probs.tolist() == [[0.7, 0.1, 0.1, 0.1], [0.2, 0.1, 0.1, 0.6]]
    assert data.correct.tolist() == [True, True]


BOOLEAN = "p_True,p_False,y\n.9,.1,True\n.2,.8,False\n"
TEXT, SIGNED = "score,y\n.9,yes\n.2,no\n", "score,y\n.9,1\n.2,-1\n"


@pytest.mark.parametrize(
    ("text", "options", "labels"),
    [
        (BOOLEAN, {"columns": "p_True,p_False"}, [0, 1]),
        (BOOLEAN, {"columns": "p_*"}, [0, 1]),
        ("p_1,p_-1,y\n.9,.1,1\n.2,.8,-1\n", {"columns": "p_*"}, [0, 1]),
        (TEXT, {"columns": "score", "positive": "yes"}, [1, 0]),
        (TEXT, {"columns": "score", "positive": "no"}, [0, 1]),
        (SIGNED, {"columns": "score", "positive": 1}, [1, 0]),
    ],
)
def test_labels_go_by_the_names_of_the_columns_or_the_positive_value(tmp_path, text, options, labels):
    path = write(tmp_path, "scores.csv", text)
    assert calibrant.read(path, label="y", kind="probs", **options).labels.tolist() == labels


def test_a_calibrator_of_an_event_refuses_what_the_event_is_not(tmp_path):
    sides = np.random.default_rng(0).random(60)
    lines = "\n".join(f"{p},{1 - p},{'yes' if p > 0.4 else 'no'}" for p in sides)
    path = write(tmp_path, "scores.csv", f"churns,stays,y\n{lines}\n")
    churns, stays = (
        calibrant.read(path, columns=column, label="y", kind="probs", positive=value)
        for column, value in (("churns", "yes"), ("stays", "no"))
    )
    assert churns.class_names == ("not yes", "yes")
    fitted = calibrant.calibrators.PlattScaling().fit(churns)
    with pytest.raises(InputError, match="in order: not yes, yes, got not no, no"):
        stays.calibrated_by(fitted, allow_fit_rows=True)
    # a score alone does not say what it is, and two named columns may be the same event
    bare = calibrant.read(path, columns="churns", kind="probs", label=None)
    named = calibrant.Predictions.from_probs(churns.probs, churns.labels, class_names=["no", "yes"])
    for rows in (bare, named):
        answer = rows.calibrated_by(fitted, allow_fit_rows=True)
        np.testing.assert_allclose(answer.probs, churns.calibrated_by(fitted, allow_fit_rows=True).probs)


@pytest.mark.parametrize(
    ("text", "options", "error", "said"),
    [
        (TEXT, {"columns": "score", "label": "y", "kind": "probs"}, InputError, "positive='yes'"),
        (
            TEXT,
            {"columns": "score", "label": "y", "kind": "probs", "positive": "maybe"},
            InputError,
            "two values, 'maybe' one of them",
        ),
        ("probs_0,probs_1,label\n.9,.1,0\n", {"positive": "0"}, InputError, "one score a row"),
        ("cat,dog,y\n.9,.7,cat\n.2,.3,dog\n", {}, FileFormatError, "one-vs-rest"),
    ],
)
def test_readings_that_are_open_are_refused(tmp_path, text, options, error, said):
    with pytest.raises(error, match=said) as caught:
        calibrant.read(write(tmp_path, "scores.csv", text), **options)
    assert "kind='logits'" not in str(caught.value)


@pytest.mark.parametrize("scores", ["logits", "predictions"])
def test_two_arrays_of_labels_are_refused(tmp_path, scores):
    arrays = {scores: np.eye(2) * 3, "label_ids": np.array([1, 0])}
    write_arrays(tmp_path / "a.npz", {**arrays, "labels": np.array([0, 1])})
    with pytest.raises(FileFormatError, match="labels and label_ids"):
        calibrant.read(tmp_path / "a.npz")
    write_arrays(tmp_path / "b.npz", arrays)
    assert calibrant.read(tmp_path / "b.npz").labels.tolist() == [1, 0]


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_one_probability_a_row_is_not_read_as_a_logit(tmp_path, shape):
    np.save(tmp_path / "q.npy", np.array([0.2, 0.9, 0.4]).reshape(shape))
    np.save(tmp_path / "t.npy", np.array([0, 1, 0]))
    with pytest.raises(InputError, match="one number between 0 and 1 a row"):
        calibrant.read(logits=tmp_path / "q.npy", labels=tmp_path / "t.npy")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt"])
def test_a_split_without_a_name_beside_a_named_one_reads_alike_in_every_format(tmp_path, suffix):
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
