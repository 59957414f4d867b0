"""Predictions in files: every layout the design names, and the sentence for a layout it does not."""

from pathlib import Path

import numpy as np
import pytest

import calibrant
from calibrant import Predictions
from calibrant.errors import FileFormatError, InputError

LOGITS = np.array([[2.0, 0.5, -1.0], [0.0, 3.0, 0.0]], dtype=np.float32)
LABELS = np.array([0, 2])


def test_val_and_test_splits(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, validation_logits=LOGITS, validation_labels=LABELS, test_logits=LOGITS[:1], test_labels=LABELS[:1])
    splits = calibrant.load_splits(path)
    assert {name: len(data) for name, data in splits.items()} == {"validation": 2, "test": 1}
    assert len(calibrant.load_predictions(path)) == 1
    assert len(calibrant.load_predictions(path, "val")) == 2
    with pytest.raises(FileFormatError, match=r"the split 'train', got only \['test', 'validation'\]"):
        calibrant.load_predictions(path, "train")


def test_an_unnamed_split_is_whichever_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, probs=np.array([[0.25, 0.75]]), labels=np.array([1]), groups=np.array(["a"]))
    for split in ("val", "test"):
        data = calibrant.load_predictions(path, split)
        assert isinstance(data, Predictions)
        assert data.confidence.tolist() == [0.75]
        assert data.groups is not None


def test_a_file_without_predictions_and_one_with_bad_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, images=np.zeros(3))
    with pytest.raises(FileFormatError, match=r"named logits, probs or conf .* got \['images'\]"):
        calibrant.load_splits(path)
    np.savez(path, val_logits=LOGITS, val_labels=np.array([0, 3]))
    with pytest.raises(InputError, match=r"split 'val': expected labels in \[0, 3\), got 3 in row 1"):
        calibrant.load_splits(path)
    np.savez(path, conf=np.array([0.5]))
    with pytest.raises(InputError, match="pred and label beside conf"):
        calibrant.load_splits(path)


@pytest.mark.parametrize(
    "names",
    [
        ("logits", "probs"), ("logits", "conf"), ("probs", "conf"), ("val_logits", "val_probs"), ("label", "labels"),
        ("group", "groups"), ("test_label", "test_labels"), ("val_logits", "validation_logits"),
        ("val_logits", "Val_logits"), ("valid_logits", "validation_probs"), ("logits", "all_logits"),
        ("logits", "Logits"), ("test_labels", "test_Labels"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("order", [1, -1])
def test_a_file_that_can_be_read_in_two_ways_is_refused(tmp_path: Path, names: tuple[str, ...], order: int) -> None:
    path = tmp_path / "a.npz"
    stem = "test_" if names[0].startswith("test_") else ""
    needed = {} if any("logits" in n or "probs" in n for n in names) else {stem + "logits": LOGITS}
    shapes = {name: LOGITS if name.endswith(("logits", "probs")) else LABELS for name in names[::order]}
    np.savez(path, **needed | shapes)
    with pytest.raises(FileFormatError, match=r"expected one array of each meaning, got .* and .*; keep"):
        calibrant.load_splits(path)
    with pytest.raises(FileFormatError, match="expected one array of each meaning"):
        calibrant.load_predictions(path, "test")


def test_rows_to_ignore_are_dropped_in_every_layout(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    labels = np.array([0, 9])
    np.savez(path, conf=np.float32([0.75, 0.6]), pred=np.int16([0, 1]), label=labels, group=np.array([3, 4]))
    pairs = calibrant.load_predictions(path, ignore_index=9)
    assert (pairs.confidence.tolist(), pairs.correct.tolist()) == ([0.75], [True])
    assert pairs.groups is not None
    with pytest.raises(InputError, match="got conf, which has none"):
        calibrant.load_predictions(path, class_dim=2)
    np.savez(path, logits=LOGITS, labels=labels, decision=np.array([2, 1]))
    assert calibrant.load_predictions(path, ignore_index=9).predicted.tolist() == [2]
    np.savez(path, probs=np.array([[0.5, 0.5], [0.25, 0.75]]), labels=np.array([0, 1]), decision=np.array([1, 0]))
    assert calibrant.load_predictions(path).predicted.tolist() == [1, 0]


def test_saving_refuses_what_is_no_split_and_slips_of_position(tmp_path: Path) -> None:
    data = Predictions.from_logits(LOGITS, LABELS)
    path = tmp_path / "a.npz"
    for splits in (None, data, [data], {}, {"a": None}, {1: data}, {"": data}, {"val": data, "valid": data}):
        with pytest.raises(InputError, match=r"expected .*, got .*; "):
            calibrant.save_predictions(path, splits)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="expected path as text"):
        calibrant.save_predictions({"test": data}, path)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="one split called 'all'"):
        calibrant.save_predictions(tmp_path / "b.parquet", {"val": data, "test": data})
    assert not path.exists()
