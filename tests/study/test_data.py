"""Data sets: every sample where it belongs, splits apart, the papers' index lists."""

import gzip
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calibrant.errors import FileFormatError, InputError
from calibrant.study.data import load_fold
from calibrant.study.data._split import split_rows
from calibrant.study.data.images import CropAndFlip, Normalise
from calibrant.study.data.text import parse


def test_every_digit_is_tested_once_and_the_splits_are_apart() -> None:
    pytest.importorskip("sklearn", reason="optional package 'sklearn' is not installed")
    folds = [load_fold({"name": "digits"}, seed=3, fold=fold) for fold in range(5)]
    tested = torch.cat([fold.test.inputs for fold in folds])  # type: ignore[attr-defined]
    assert torch.unique(tested, dim=0).shape == (1797, 64)
    for fold in folds:
        parts = [part.inputs for part in (fold.train, fold.validation, fold.test)]  # type: ignore[attr-defined]
        assert [len(part) for part in parts][:2] == [400, 400]
        assert len(torch.unique(torch.cat(parts), dim=0)) == sum(len(part) for part in parts)


def test_a_seed_draws_other_training_images_and_the_same_test_images() -> None:
    pytest.importorskip("sklearn", reason="optional package 'sklearn' is not installed")
    first, second = (load_fold({"name": "digits"}, seed=seed) for seed in (0, 1))
    assert torch.equal(first.test.inputs, second.test.inputs)  # type: ignore[attr-defined]
    assert not torch.equal(first.train.inputs, second.train.inputs)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"name": "digit"}, "expected a data set of .*digits.*got 'digit'"),
        ({"name": "digits", "nois": 1}, "expected options folds, .* of data set .digits., got .nois."),
        ({"name": "digits", "train": 1400, "validation": 400}, "expected train \\+ validation ≤ 1437, got 1800"),
    ],
)
def test_what_cannot_be_loaded_is_named(data: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        load_fold(data)


def test_the_validation_images_of_mukhoti_et_al_are_those_of_the_vector(vectors: dict[str, dict[str, Any]]) -> None:
    vector = vectors["split_mukhoti_cifar"]
    fit, held = split_rows(vector["inputs"]["n"], validation=5000, rule="mukhoti", seed=vector["inputs"]["seed"])
    assert held[:10].tolist() == vector["expected"]["val_first10"]
    assert fit[:5].tolist() == vector["expected"]["train_first5"]
    assert (len(held), len(fit)) == (vector["expected"]["n_val"], 45_000)


@pytest.mark.parametrize(
    ("rule", "seed", "hashes"),
    [  # SHA-256 of the int64 lists that np.random.seed, then shuffle of a list or permutation, give (numpy 2.4)
        ("mukhoti", 1, ("342cfbdd821873094f2c3a8cfd5ad76e", "43b49072da2ed7dd73f069cc9cfaa9ea")),
        ("wang", 101, ("ae2a7c0290520a984916a02894e215f8", "1fed58c20941892b33c3343c0d2f410f")),
    ],
)
def test_index_lists_are_the_authors_index_for_index(rule: str, seed: int, hashes: tuple[str, str]) -> None:
    found = split_rows(50_000, validation=5000, rule=rule, seed=seed)
    assert tuple(hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()[:32] for rows in found) == hashes


def test_a_plain_split_is_whole_and_one_without_training_samples_is_refused() -> None:
    fit, held = split_rows(50_000, validation=5000, rule="plain", seed=101)
    assert (len(fit), len(held)) == (45_000, 5000)
    assert np.array_equal(np.sort(np.concatenate([fit, held])), np.arange(50_000))
    with pytest.raises(InputError, match="expected validation in 1 … 9 samples, got 10"):
        split_rows(10, validation=10, rule="wang", seed=0)


def write_images(folder: Path, *, train: tuple[int, ...] = (30, 20), test: int = 10) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    made = {}
    for part, count in enumerate(train):
        made[f"train-{part}"] = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    made["test-0"] = rng.integers(0, 256, (test, 32, 32, 3), dtype=np.uint8)
    for name, pixels in made.items():
        np.savez(folder / f"{name}.npz", images=pixels, labels=np.arange(len(pixels)) % 10)
    return made


def test_images_come_in_parts_and_are_normalised_as_asked(tmp_path: Path) -> None:
    made = write_images(tmp_path)
    data = {"name": "cifar10", "folder": str(tmp_path), "validation": 5, "statistics": "imagenet", "train": 12}
    fold = load_fold(data)
    assert [len(part) for part in (fold.train, fold.validation, fold.test)] == [12, 5, 10]
    inputs, labels = fold.test.batch(torch.tensor([3]))
    assert labels.tolist() == [3]
    expected = (made["test-0"][3] / 255 - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
    assert np.allclose(inputs[0].numpy(), expected.transpose(2, 0, 1), atol=1e-6)
    _, held = split_rows(50, validation=5, rule="mukhoti", seed=1)
    whole = np.concatenate([made["train-0"], made["train-1"]])
    assert np.array_equal(fold.validation.inputs.numpy(), whole[held])  # type: ignore[attr-defined]


def test_more_images_than_there_are_cannot_be_requested(tmp_path: Path) -> None:
    write_images(tmp_path)
    data = {"name": "cifar10", "folder": str(tmp_path), "validation": 5}
    assert len(load_fold({**data, "train": 45, "test": 10}).train) == 45
    with pytest.raises(InputError, match=r"expected train in 1 … 45 images of cifar10 .*, got 46; ask for fewer"):
        load_fold({**data, "train": 46})
    with pytest.raises(InputError, match=r"expected test in 1 … 10 images of cifar10 .*, got 11; ask for fewer"):
        load_fold({**data, "test": 11})


def test_every_augmented_image_is_a_window_of_the_padded_one_or_its_mirror() -> None:
    pixels = torch.arange(16 * 3 * 64, dtype=torch.float32).reshape(16, 3, 8, 8) % 251
    augment = CropAndFlip(pad=2, black=(-1.0, -2.0, -3.0))
    out = augment(pixels, torch.Generator().manual_seed(0))
    again = augment(pixels, torch.Generator().manual_seed(0))
    assert torch.equal(out, again)
    seen = set()
    for image, changed in zip(pixels, out, strict=True):
        padded = torch.empty(3, 12, 12)
        padded[:] = torch.tensor([-1.0, -2.0, -3.0])[:, None, None]
        padded[:, 2:10, 2:10] = image
        windows = {(r, c, m): padded[:, r : r + 8, c : c + 8] for r in range(5) for c in range(5) for m in (0, 1)}
        hits = [key for key, w in windows.items() if torch.equal(changed, w.flip(2) if key[2] else w)]
        assert len(hits) == 1
        seen.add(hits[0])
    assert len(seen) > 8
    assert {mirrored for _, _, mirrored in seen} == {0, 1}


def test_normalising_takes_batches_of_bytes() -> None:
    out = Normalise((0.5, 0.5, 0.5), (0.5, 0.25, 1.0))(torch.full((1, 2, 2, 3), 255, dtype=torch.uint8))
    assert out[0, :, 0, 0].tolist() == [1.0, 2.0, 0.5]


@pytest.mark.slow
def test_the_treebank_has_its_published_sizes(data: Path) -> None:
    fold = load_fold({"name": "sst", "folder": str(data / "sst")})
    assert [len(part) for part in (fold.train, fold.validation, fold.test)] == [6920, 872, 1821]
    assert fold.test.labels.unique().tolist() == [0, 1]
    _, labels = fold.train.batch(torch.arange(3), training=True)
    assert len(labels) > 3


@pytest.mark.slow
def test_the_newsgroups_have_their_published_sizes(data: Path) -> None:
    fold = load_fold({"name": "20news", "folder": str(data / "20news"), "vocabulary": 2000, "length": 40})
    assert [len(part) for part in (fold.train, fold.validation, fold.test)] == [11314 - 900, 900, 7532]
    words, _ = fold.test.batch(torch.arange(100))
    assert words.shape == (100, 40)
    assert int(words.min()) >= 0
    assert int(words.max()) < 2000
    assert len(fold.test.labels.unique()) == 20


@pytest.mark.slow
def test_cifar10_has_its_published_sizes(data: Path) -> None:
    pytest.importorskip("datasets", reason="optional package 'datasets' is not installed")
    fold = load_fold({"name": "cifar10", "folder": str(data / "cifar10")})
    assert [len(part) for part in (fold.train, fold.validation, fold.test)] == [45_000, 5000, 10_000]
    assert torch.bincount(fold.test.labels).tolist() == [1000] * 10


@pytest.mark.parametrize("line", ["(3 (2 a)", "(3 (2 a) (2 b) (2 c))", "(x a)", "(3 a) (2 b)", "word"])
def test_a_broken_tree_is_refused(line: str) -> None:
    with pytest.raises(FileFormatError, match="expected"):
        parse(line)


def test_missing_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"expected train\.txt or train\.txt\.gz"):
        load_fold({"name": "sst", "folder": str(tmp_path)})
    with pytest.raises(FileFormatError, match=r"expected train\*\.parquet"):
        load_fold({"name": "20news", "folder": str(tmp_path)})
    with pytest.raises(FileFormatError, match="expected the folder of cifar10, got no such folder"):
        load_fold({"name": "cifar10", "folder": str(tmp_path / "none")})
    with gzip.open(tmp_path / "train.txt.gz", "wt") as file:
        file.write("(3 (2 a)\n")
    with pytest.raises(FileFormatError, match="expected one tree per line"):
        load_fold({"name": "sst", "folder": str(tmp_path)})
