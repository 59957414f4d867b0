"""Predictions of several labels a row in files of every format."""

from pathlib import Path

import numpy as np
import pytest
import torch

import calibrant
from calibrant import MultiLabelPredictions, load_multilabel, read_multilabel, save_multilabel
from calibrant.data.splits import multilabel_batches
from calibrant.errors import CalibrantError, FileFormatError, InputError


def made(rows: int = 30, *, probs: bool = False) -> MultiLabelPredictions:
    generator = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(rows, 3, generator=generator)
    y = torch.randint(-1, 2, (rows, 3), generator=generator)
    beside = {
        "names": ["cat", "dog", "größer_1"],
        "groups": torch.arange(rows) // 2,
        "weights": torch.arange(rows) + 0.5,
        "features": {"site": ["a", "b"] * (rows // 2), "age": torch.arange(rows)},
    }
    if probs:
        return MultiLabelPredictions.from_probs(torch.sigmoid(z), y, **beside)  # type: ignore[arg-type]
    return MultiLabelPredictions.from_logits(z, y, **beside)  # type: ignore[arg-type]


def same(one: MultiLabelPredictions, other: MultiLabelPredictions) -> None:
    assert one.names == other.names
    assert torch.allclose(one.logits.float(), other.logits.float(), rtol=1e-5, atol=1e-6)  # text holds nine digits
    for name in ("labels", "groups", "weights"):
        assert torch.equal(getattr(one, name), getattr(other, name))
    assert (one.given_probs is None) == (other.given_probs is None)
    assert one.features["site"].tolist() == other.features["site"].tolist()
    assert torch.equal(one.features["age"], other.features["age"])  # type: ignore[arg-type]


@pytest.mark.parametrize("probs", [False, True], ids=["logits", "probs"])
@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet", ".arrow", ".csv", ".tsv", ".jsonl"])
def test_what_is_saved_is_read_again(suffix: str, probs: bool, tmp_path: Path) -> None:
    path = tmp_path / f"p{suffix}"
    save_multilabel(path, {"all": made(probs=probs)})
    same(read_multilabel(path), made(probs=probs))


def test_splits_and_batches(tmp_path: Path) -> None:
    save_multilabel(tmp_path / "p.npz", {"val": made(), "test": made(20)})
    assert list(load_multilabel(tmp_path / "p.npz")) == ["val", "test"]
    assert len(read_multilabel(tmp_path / "p.npz", split="validation")) == 30
    with pytest.raises(InputError, match="name one by split"):
        read_multilabel(tmp_path / "p.npz")
    folder = tmp_path / "folder"
    folder.mkdir()
    for number in range(3):
        save_multilabel(folder / f"{number}.parquet", {"all": made()[10 * number : 10 * number + 10]})
    same(MultiLabelPredictions.cat(list(multilabel_batches(folder))), made())
    same(read_multilabel(folder), made())


def test_columns_are_matched_by_name_and_not_by_order(tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    file.write_text("p_cat,p_dog,y_dog,y_cat,group\n0.9,0.4,0,1,3\n0.2,0.7,-1,0,4\n")
    found = read_multilabel(file, columns="p_*", label="y_*", kind="probs")
    assert found.names == ("cat", "dog")
    assert found.labels.tolist() == [[1, 0], [0, -1]]
    assert found.groups is not None
    lists = tmp_path / "lists.jsonl"
    lists.write_text('{"logits": [2.0, -1.0], "labels": [1, 0]}\n{"logits": [0.5, 3.0], "labels": [0, -1]}\n')
    assert read_multilabel(lists).labels.tolist() == [[1, 0], [0, -1]]  # type: ignore[union-attr]


def test_what_cannot_be_read_is_refused_in_one_sentence(tmp_path: Path) -> None:
    def csv(text: str) -> Path:
        path = tmp_path / "bad.csv"
        path.write_text(text)
        return path

    def npz(**arrays: object) -> Path:
        np.savez(tmp_path / "bad.npz", **arrays)  # type: ignore[arg-type]
        return tmp_path / "bad.npz"

    options = {"columns": "p_*", "label": "y_*", "kind": "probs"}
    cases = [
        (lambda: read_multilabel(csv("p_a,y_b\n0.5,1\n"), **options), "a column of labels for each"),
        (lambda: read_multilabel(csv("a,b\n1,2\n")), "columns='p_\\*'"),
        (lambda: read_multilabel(csv("p_a,y_a\n0.5,\n0.7,1\n"), **options), "empty cell"),
        (lambda: read_multilabel(csv("p_a,y_a\n0.5,2\n"), **options), "-1 for a missing one"),
        (lambda: read_multilabel(csv("p_a,y_a\nx,1\n"), **options), "numbers, .* in the column 'p_a'"),
        (lambda: read_multilabel(npz(logits=np.eye(3) * 5, labels=np.arange(3))), "one class a row"),
        (lambda: read_multilabel(npz(conf=np.ones(3), pred=np.ones(3), label=np.ones(3))), "top-label"),
        (lambda: read_multilabel(npz(logits=np.eye(3) * 5), columns="p_*", kind="probs"), "for a table"),
        (lambda: read_multilabel(tmp_path / "absent.npz"), "absent"),
        (lambda: save_multilabel(tmp_path / "x.parquet", {"val": made(), "test": made()}), "one split"),
        (lambda: save_multilabel(tmp_path / "x.npz", {"val": calibrant.BinaryPairs.from_probs([0.5], [1])}), "MultiLabelPredictions"),
        (lambda: calibrant.load_predictions(npz(logits=np.eye(3) * 5, labels=np.tri(3, dtype=int))), "MultiLabelPredictions"),
    ]  # fmt: skip
    for call, text in cases:
        with pytest.raises(CalibrantError, match=text) as caught:
            call()  # type: ignore[no-untyped-call]
        assert "\n" not in str(caught.value)
        assert isinstance(caught.value, InputError | FileFormatError)
    assert not list(tmp_path.glob("x.*"))
