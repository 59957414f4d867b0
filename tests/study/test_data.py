"""Data sets: every sample where it belongs, splits apart, the papers' index lists, a user's own data, out-of-distribution sets."""

import hashlib
import io
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.study.samples import finish, write_images

from calibrant import Predictions
from calibrant.errors import FileFormatError, InputError
from calibrant.metrics import ood_auroc
from calibrant.study import Recipe, Store, Training
from calibrant.study.data import load_fold
from calibrant.study.data._split import TensorSplit, split_rows
from calibrant.study.data.images import CropAndFlip
from calibrant.study.data.ood import KINDS
from calibrant.study.measures import Measured, Run


def test_every_digit_is_tested_once_and_the_splits_are_apart() -> None:
    pytest.importorskip("sklearn", reason="optional package 'sklearn' is not installed")
    folds = [load_fold({"name": "digits"}, seed=3, fold=fold) for fold in range(5)]
    tested = torch.cat([fold.test.inputs for fold in folds])
    assert torch.unique(tested, dim=0).shape == (1797, 64)
    other = load_fold({"name": "digits"}, seed=4)
    assert torch.equal(folds[0].test.inputs, other.test.inputs)
    assert not torch.equal(folds[0].train.inputs, other.train.inputs)
    for fold in folds:
        parts = [part.inputs for part in (fold.train, fold.validation, fold.test)]
        assert [len(part) for part in parts][:2] == [400, 400]
        assert len(torch.unique(torch.cat(parts), dim=0)) == sum(len(part) for part in parts)


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
    assert len(held) == 5000
    assert np.array_equal(np.sort(np.concatenate([fit, held])), np.arange(50_000))
    with pytest.raises(InputError, match="expected validation in 1 … 9 samples, got 10"):
        split_rows(10, validation=10, rule="wang", seed=0)


def test_images_come_in_parts_and_are_normalised_as_asked(tmp_path: Path) -> None:
    made = write_images(tmp_path, train=(30, 20), test=10)
    data = {"name": "cifar10", "folder": str(tmp_path), "validation": 5, "statistics": "imagenet"}
    fold = load_fold({**data, "train": 12})
    assert [len(part) for part in (fold.train, fold.validation, fold.test)] == [12, 5, 10]
    inputs, labels = fold.test.batch(torch.tensor([3]))
    assert labels.tolist() == [3]
    expected = (made["test-0"][3] / 255 - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
    assert np.allclose(inputs[0].numpy(), expected.transpose(2, 0, 1), atol=1e-6)
    _, held = split_rows(50, validation=5, rule="mukhoti", seed=1)
    whole = np.concatenate([made["train-0"], made["train-1"]])
    assert np.array_equal(fold.validation.inputs.numpy(), whole[held])
    assert len(load_fold({**data, "train": 45}).train) == 45
    with pytest.raises(InputError, match=r"expected at most 45 train images of cifar10 .*, got 46; ask for fewer"):
        load_fold({**data, "train": 46})


def test_every_augmented_image_is_a_window_of_the_padded_one_or_its_mirror() -> None:
    pixels = torch.arange(16 * 3 * 64, dtype=torch.float32).reshape(16, 3, 8, 8) % 251
    augment = CropAndFlip(pad=2, black=(-1.0, -2.0, -3.0))
    out = augment(pixels, torch.Generator().manual_seed(0))
    assert torch.equal(out, augment(pixels, torch.Generator().manual_seed(0)))
    seen = set()
    for image, changed in zip(pixels, out, strict=True):
        padded = torch.tensor([-1.0, -2.0, -3.0])[:, None, None].repeat(1, 12, 12)
        padded[:, 2:10, 2:10] = image
        windows = {(r, c, m): padded[:, r : r + 8, c : c + 8] for r in range(5) for c in range(5) for m in (0, 1)}
        (hit,) = (key for key, w in windows.items() if torch.equal(changed, w.flip(2) if key[2] else w))
        seen.add(hit)
    assert len(seen) > 8
    assert {mirrored for _, _, mirrored in seen} == {0, 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "sizes", "classes"),
    [({"name": "sst"}, [6920, 872, 1821], 2), ({"name": "20news", "vocabulary": 2000}, [11314 - 900, 900, 7532], 20)],
)
def test_data_have_their_published_sizes(options: dict[str, Any], sizes: list[int], classes: int, data: Path) -> None:
    fold = load_fold({**options, "folder": str(data / options["name"])})
    assert [len(part) for part in (fold.train, fold.validation, fold.test)] == sizes
    assert fold.test.labels.unique().tolist() == list(range(classes))
    assert len(fold.train.batch(torch.arange(3), training=True)[1]) >= 3


# --- Data of the user's own ------------------------------------------------------------------------------------------

LOADERS = """
import numpy as np
import torch

def load(*, seed, fold=0, rows=40):
    rng = np.random.default_rng(seed + fold)
    x, y = rng.normal(size=(3, rows, 2, 3)), np.arange(rows) % 3
    pairs = torch.utils.data.TensorDataset(torch.tensor(x[1]), torch.tensor(y))
    return {"train": (x[0], y), "val": pairs, "test": (x[2], y)}

def names():
    return {**load(seed=0), "val": (np.ones((3, 6)), np.array([0.5, 1.0, 2.0]))}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data_of_a_test.py").write_text(LOADERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "data_of_a_test", raising=False)
    return tmp_path


def test_a_function_gives_arrays_or_data_sets(home: Path) -> None:
    fold = load_fold({"name": "module", "module": "data_of_a_test:load", "rows": 30, "folds": 2}, seed=2, fold=1)
    expected = np.random.default_rng(3).normal(size=(3, 30, 2, 3))
    for place, split in enumerate((fold.train, fold.validation, fold.test)):
        inputs, labels = split.batch(torch.arange(30))
        assert np.allclose(inputs, expected[place])
        assert torch.equal(labels, torch.arange(30) % 3)
    assert dict(fold.sizes) == {"classes": 3, "inputs": 6}
    with pytest.raises(InputError, match=r"labels \(N,\) of 0, 1, … in 'val'"):
        load_fold({"name": "module", "module": "data_of_a_test:names"})


# --- Out-of-distribution sets ----------------------------------------------------------------------------------------


def outside(kind: str, inside: TensorSplit, *, seed: int = 0, **options: float) -> torch.Tensor:
    found = KINDS[kind](**options).of(inside, name=kind, seed=seed, folder=None)
    assert torch.equal(found.labels, inside.labels)
    return found.inputs


def grey(value: int = 128) -> TensorSplit:
    return TensorSplit(torch.full((40, 32, 32, 3), value, dtype=torch.uint8), torch.zeros(40, dtype=torch.int64))


def test_noise_is_added_to_the_test_images_as_cifar_10_c_does() -> None:
    found = outside("gaussian-noise", grey())
    difference = found.float() - 128
    assert found.dtype == torch.uint8
    assert float(difference.std()) == pytest.approx(25.5, rel=0.01)  # 0.1 of 255: severity 5
    assert float(difference.mean()) == pytest.approx(-0.5, abs=0.2)  # rounded down
    assert int(outside("gaussian-noise", grey(255)).min()) < 255
    assert torch.equal(outside("gaussian-noise", grey(), deviation=0), grey().inputs)
    assert torch.equal(found, outside("gaussian-noise", grey()))
    assert not torch.equal(found, outside("gaussian-noise", grey(), seed=1))
    # a saturated pixel of pure noise, N(.5, 1): P(x < 0) = P(x > 1) = .309
    pure = outside("pure-noise", grey())
    for end in (0, 255):
        assert float((pure == end).double().mean()) == pytest.approx(0.31, abs=0.01)


@pytest.mark.parametrize(("severity", "deviation", "factor", "quality"), [(1, 0.4, 0.75, 80), (5, 1.0, 0.15, 40)])
def test_corruptions_are_those_of_cifar_10_c(severity: int, deviation: float, factor: float, quality: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    inside = TensorSplit(torch.from_numpy(pixels), torch.tensor([2, 0, 1]))
    kinds = ("gaussian-blur", "contrast", "jpeg")
    blurred, pale, compressed = (outside(kind, inside, severity=severity).numpy() for kind in kinds)
    x = pixels / 255
    # the kernel written out, over nearest pixels beyond the edge
    reach = int(4 * deviation + 0.5)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / deviation) ** 2)
    kernel /= kernel.sum()
    padded = np.pad(x, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="edge")
    rows = sum(w * padded[:, i : i + 32] for i, w in enumerate(kernel))
    expected = sum(w * rows[:, :, i : i + 32] for i, w in enumerate(kernel))
    assert np.abs(blurred - np.floor(255 * expected)).max() <= 1  # a sum in another order may round down
    mean = x.mean(axis=(1, 2), keepdims=True)
    expected = (np.clip(mean + factor * (x - mean), 0, 1) * 255).astype(np.uint8)
    assert np.abs(pale.astype(int) - expected).max() <= 1
    image = pytest.importorskip("PIL.Image", reason="optional package 'PIL' is not installed")
    file = io.BytesIO()
    image.fromarray(pixels[1]).save(file, "JPEG", quality=quality)
    assert np.array_equal(compressed[1], np.asarray(image.open(file)))


def test_measures_under_shift_are_those_of_the_test_labels() -> None:
    test = Predictions.from_logits([[3.0, 0.0], [1.0, 0.0]], [0, 1])
    worse = Predictions.from_logits([[0.0, 1.0], [0.0, 2.0]])
    noise = Predictions.from_logits([[9.0, 0.0]])  # not of the test images: no label is known
    measured = Measured([Run(test, test, {"jpeg": worse, "pure-noise": noise})])
    assert measured.value("error_shifted") == 0.5
    assert measured.value("nll_shifted") == pytest.approx((math.log1p(math.e) + math.log1p(math.exp(-2))) / 2)
    (temperature,) = measured.temperatures
    scaled = (math.log1p(math.exp(1 / temperature)) + math.log1p(math.exp(-2 / temperature))) / 2
    assert measured.value("nll_shifted_at_t") == pytest.approx(scaled)


def test_another_data_set_is_taken_from_beside_and_normalised_as_the_data_are(tmp_path: Path) -> None:
    write_images(tmp_path / "cifar10")
    small = write_images(tmp_path / "svhn", test=7, seed=1)["test-0"]
    large = write_images(tmp_path / "tiny-imagenet", side=64, seed=2)["test-0"]
    data = {"name": "cifar10", "folder": str(tmp_path / "cifar10"), "validation": 5}
    fold = load_fold({**data, "ood": ["svhn", "gaussian-noise", "tiny-imagenet"]})
    assert {name: len(split) for name, split in fold.ood.items()} == {
        "svhn": 7,
        "gaussian-noise": 12,
        "tiny-imagenet": 12,
    }
    inputs, _ = fold.ood["svhn"].batch(torch.tensor([3]))
    mean, deviation = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2023, 0.1994, 0.2010])
    assert np.allclose(inputs[0].numpy(), ((small[3] / 255 - mean) / deviation).transpose(2, 0, 1), atol=1e-5)
    kernel = torch.tensor([1.0, 3.0, 3.0, 1.0]) / 8  # triangle of width 2 at half-pixel centres
    patch = torch.from_numpy(large[0][9:13, 19:23].astype(np.float32))
    expected = torch.einsum("i,j,ijc->c", kernel, kernel, patch)
    assert torch.allclose(fold.ood["tiny-imagenet"].inputs[0][5, 10].float(), expected, atol=0.51)
    with pytest.raises(FileFormatError, match="expected the folder of the ood set 'cifar100', got no such folder"):
        load_fold({**data, "ood": ["cifar100"]})


def test_the_network_kept_predicts_them_and_a_store_keeps_them(tmp_path: Path) -> None:
    data: dict[str, Any] = {"name": "digits", "train": 400, "validation": 60}
    plan = Training(epochs=4, batch=20, lr=0.05, momentum=0.9, measure_every=4)
    plain = Recipe(data, {"type": "MLP", "hidden": [16]}, {"type": "CrossEntropyLoss"}, plan)
    ood = ["gaussian-noise", {"name": "pure-noise", "deviation": 0.5}]
    noisy = Recipe({**data, "ood": ood}, plain.model, plain.loss, plan)
    assert plain.fingerprint != noisy.fingerprint
    store, first = Store(tmp_path / "runs"), finish(plain)
    store.save(noisy, finish(noisy))
    second = store.load(noisy)
    assert torch.equal(first.test.logits, second.test.logits)  # training did not see them
    assert first.trajectory == second.trajectory
    assert first.ood == {}
    assert sorted(second.ood) == ["gaussian-noise", "pure-noise"]
    for rows in second.ood.values():
        assert (rows.logits.dtype, rows.labels, len(rows)) == (torch.float32, None, len(second.test))
    areas = {name: ood_auroc(second.test, rows) for name, rows in second.ood.items()}
    assert areas["pure-noise"] > 0.6
    assert abs(areas["gaussian-noise"] - 0.5) < 0.1  # little beside the noise that the digits have
    (store.folder(noisy) / "ood.npz").unlink()
    with pytest.raises(FileFormatError, match=r"ood\.npz"):
        store.load(noisy)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"name": "digits", "ood": ["noise"]}, "expected ood sets among gaussian-noise, pure-noise, got 'noise'"),
        ({"name": "digits", "ood": [{"name": "pure-noise", "sd": 1}]}, "expected a key of PureNoise, got 'sd'"),
        ({"name": "sst", "folder": ".", "ood": ["pure-noise"]}, r"expected ood sets among none \(text\), got 'pure-noise'"),
    ],
)  # fmt: skip
def test_what_cannot_be_paired_is_named(data: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        load_fold(data)
