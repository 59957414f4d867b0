"""Data sets: every sample where it belongs, splits apart, the papers' index lists."""

import gzip
import hashlib
import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.study.samples import study_text, write_images, write_texts

from calibrant import Predictions
from calibrant.errors import FileFormatError, InputError
from calibrant.metrics import ECE, NLL, Error, ood_auroc
from calibrant.study import Store, load_study
from calibrant.study.build import make_model
from calibrant.study.data import load_fold
from calibrant.study.data._split import TensorSplit, split_rows
from calibrant.study.data.images import CropAndFlip
from calibrant.study.data.ood import KINDS, ood_splits, outside_of
from calibrant.study.data.text import TreeSplit, parse
from calibrant.study.measures import Measured, Run
from calibrant.study.run import run_study
from calibrant.study.train import predict


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
    assert (len(fit), len(held)) == (45_000, 5000)
    assert np.array_equal(np.sort(np.concatenate([fit, held])), np.arange(50_000))
    with pytest.raises(InputError, match="expected validation in 1 … 9 samples, got 10"):
        split_rows(10, validation=10, rule="wang", seed=0)


def test_images_come_in_parts_and_are_normalised_as_asked(tmp_path: Path) -> None:
    made = write_images(tmp_path, train=(30, 20), test=10)
    data = {"name": "cifar10", "folder": str(tmp_path), "validation": 5, "statistics": "imagenet", "train": 12}
    fold = load_fold(data)
    assert [len(part) for part in (fold.train, fold.validation, fold.test)] == [12, 5, 10]
    inputs, labels = fold.test.batch(torch.tensor([3]))
    assert labels.tolist() == [3]
    expected = (made["test-0"][3] / 255 - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
    assert np.allclose(inputs[0].numpy(), expected.transpose(2, 0, 1), atol=1e-6)
    _, held = split_rows(50, validation=5, rule="mukhoti", seed=1)
    whole = np.concatenate([made["train-0"], made["train-1"]])
    assert np.array_equal(fold.validation.inputs.numpy(), whole[held])


def test_more_images_than_there_are_cannot_be_requested(tmp_path: Path) -> None:
    write_images(tmp_path, train=(50,), test=10)
    data = {"name": "cifar10", "folder": str(tmp_path), "validation": 5}
    assert len(load_fold({**data, "train": 45, "test": 10}).train) == 45
    with pytest.raises(InputError, match=r"expected at most 45 train images of cifar10 .*, got 46; ask for fewer"):
        load_fold({**data, "train": 46})
    with pytest.raises(InputError, match="expected at most 10 test images of cifar10, got 11; ask for fewer"):
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "sizes", "classes"),
    [
        ({"name": "sst"}, [6920, 872, 1821], 2),
        ({"name": "20news", "vocabulary": 2000, "length": 40}, [11314 - 900, 900, 7532], 20),
        ({"name": "cifar10"}, [45_000, 5000, 10_000], 10),
    ],
)
def test_data_have_their_published_sizes(options: dict[str, Any], sizes: list[int], classes: int, data: Path) -> None:
    pytest.importorskip("datasets", reason="optional package 'datasets' is not installed")
    fold = load_fold({**options, "folder": str(data / options["name"])})
    assert [len(part) for part in (fold.train, fold.validation, fold.test)] == sizes
    assert fold.test.labels.unique().tolist() == list(range(classes))
    assert len(fold.train.batch(torch.arange(3), training=True)[1]) >= 3


@pytest.mark.parametrize(
    "line",
    [
        "(3 (2 a)",
        "(3 (2 a) (2 b) (2 c))",
        "(x a)",
    ],
)
def test_a_broken_tree_is_refused(line: str) -> None:
    with pytest.raises(FileFormatError, match="expected"):
        parse(line)


def test_missing_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"expected train\.txt or train\.txt\.gz"):
        load_fold({"name": "sst", "folder": str(tmp_path)})
    with pytest.raises(FileFormatError, match=r"expected train\*\.parquet"):
        load_fold({"name": "20news", "folder": str(tmp_path)})
    with gzip.open(tmp_path / "train.txt.gz", "wt") as file:
        file.write("(3 (2 a)\n")
    with pytest.raises(FileFormatError, match="expected one tree per line"):
        load_fold({"name": "sst", "folder": str(tmp_path)})


TRAIN = ["(3 (2 a) (4 (1 b) (2 c)))", "(0 (1 b) (2 a))", "(2 (2 a) (2 c))", "(4 good)"]

GLOVE = ["a .1 .2 .3", "good -1 0 1", "new day 4 5 6", "fine 7 8 9", "unused 1 1 1"]


def trees(folder: Path) -> Path:
    (folder / "train.txt").write_text("\n".join(TRAIN))
    (folder / "dev.txt").write_text("(1 fine)\n(2 a)\n(3 good)\n")
    (folder / "test.txt").write_text("(0 odd)\n(4 good)\n")
    (folder / "glove.txt").write_text("\n".join(GLOVE) + "\n")
    return folder


class Fixed(torch.nn.Module):
    """Gives each root the same logits."""

    def __init__(self, logits: list[list[float]]) -> None:
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, batch: Any) -> torch.Tensor:
        return self.logits[: len(batch.asked)]


def test_neutral_nodes_are_learned_and_never_decided_for(tmp_path: Path) -> None:
    fold = load_fold({"name": "sst", "folder": str(trees(tmp_path)), "classes": 3})
    assert (fold.sizes["classes"], len(fold.train), len(fold.validation), len(fold.test)) == (3, 3, 2, 2)
    assert fold.train.labels.tolist() == [2, 0, 2]
    _, labels = fold.train.batch(torch.tensor([0]), training=True)
    assert sorted(labels.tolist()) == [0, 1, 1, 2, 2]  # b; a and c; the inner node and the root
    # p = (.2, .5, .3) twice: neutral is likeliest, positive is decided, with its own .3
    logits = torch.tensor([0.2, 0.5, 0.3]).log().tolist()
    found = predict(Fixed([logits, logits]), fold.test)
    assert found.predicted.tolist() == [2, 2]
    assert found.confidence.tolist() == pytest.approx([0.3, 0.3])
    assert Error()(found) == 0.5
    assert ECE()(found) == pytest.approx(0.2)
    assert NLL()(found) == pytest.approx(-(torch.tensor([0.2, 0.3]).log().mean().item()))
    assert found[torch.tensor([1])].predicted.tolist() == [2]
    assert predict(Fixed([logits, logits]), TreeSplit(fold.test.trees)).predicted.tolist() == [1, 1]
    with pytest.raises(InputError, match="expected classes"):
        load_fold({"name": "sst", "folder": str(tmp_path), "classes": 5})


def test_words_take_their_vectors_from_the_file_and_the_rest_random_ones(tmp_path: Path) -> None:
    data = {"name": "sst", "folder": str(trees(tmp_path)), "glove": "glove.txt"}
    fold, again, other = (load_fold(data, seed=seed) for seed in (0, 0, 1))
    vectors = fold.sizes["vectors"]
    # a, b, c, good from the training trees, fine (dev) and odd (test): each word has a vector of its own, as in the authors' code
    assert vectors.shape == (1 + 6, 3) == (fold.sizes["vocabulary"], 3)
    place = {word: i for i, word in enumerate(["a", "b", "c", "fine", "good", "odd"], start=1)}
    assert vectors[place["a"]].tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert vectors[place["fine"]].tolist() == [7, 8, 9]
    assert fold.test.batch(torch.tensor([0]))[0].words.tolist() == [place["odd"]]
    assert torch.equal(vectors, again.sizes["vectors"])
    same = (vectors == other.sizes["vectors"]).all(dim=1)
    assert same.tolist() == [False, True, False, False, True, True, False]
    model = make_model({"type": "TreeLSTM", "embedding": 3, "hidden": 4}, sizes=fold.sizes)
    assert torch.equal(model.embedding.weight, vectors)
    assert model.embedding.weight.requires_grad
    with pytest.raises(InputError, match="expected arguments of TreeLSTM"):
        make_model({"type": "TreeLSTM", "embedding": 4}, sizes=fold.sizes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "expected a file of word vectors, got no such file"),
        ("a 1 2 3\nb 1 2\n", "expected a word and 3 numbers in line 2 of .*, got 2 numbers"),
        ("a 1 nan 3\n", "expected a word and 3 numbers in line 1 of .*got NaN or infinity"),
    ],
)
def test_a_broken_file_of_vectors_is_named_by_its_line(tmp_path: Path, text: str | None, said: str) -> None:
    file = trees(tmp_path) / "broken.txt"
    if text is not None:
        file.write_text(text)
    with pytest.raises(FileFormatError, match=said):
        load_fold({"name": "sst", "folder": str(tmp_path), "glove": "broken.txt"})


def test_newsgroups_are_read_as_keras_does_in_the_authors_code(tmp_path: Path) -> None:
    texts = [f"From: x\n\na Good-day, odd a text{row}" for row in range(19)] + ["no header a"]
    write_texts(trees(tmp_path), text=texts[:10], label=[0] * 10)
    pa = pytest.importorskip("pyarrow", reason="optional package 'pyarrow' is not installed")
    pa.parquet.write_table(pa.table({"text": texts[10:], "label": [1] * 10}), tmp_path / "test.parquet")
    data = {
        "name": "20news",
        "folder": str(tmp_path),
        "split": "mukhoti",
        "headers": False,
        "words": "keras",
        "length": 8,
    }
    fold = load_fold({**data, "validation": 3, "glove": "glove.txt"}, seed=5)
    order = list(range(20))
    np.random.RandomState(1).shuffle(order)  # np.random.seed(1), np.random.shuffle: whatever the study's seed
    for part, rows in ((fold.train, order[:13]), (fold.validation, order[13:16]), (fold.test, order[16:])):
        assert part.labels.tolist() == [int(row >= 10) for row in rows]
    place = order[:13].index(next(row for row in order[:13] if row != 19))
    # by frequency over all texts: a, good, day, odd; padding stands before the words
    assert fold.train.batch(torch.tensor([place]))[0][0].tolist()[:7] == [0, 0, 1, 2, 3, 4, 1]
    vectors = fold.sizes["vectors"]
    assert vectors[1].tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert not vectors[0].any()
    assert not vectors[4].any()  # "odd" is not in the file
    model = make_model({"type": "PooledTextCNN", "embedding": 3, "kernel": 1}, sizes=fold.sizes)
    assert torch.equal(model.embedding.weight, vectors)
    assert not model.embedding.weight.requires_grad
    with pytest.raises(InputError, match="expected glove without a tokenizer"):
        load_fold({**data, "glove": "glove.txt", "tokenizer": "any"})


TEXT = study_text(
    {"CE": '"CrossEntropyLoss"'},
    data="train = 400, validation = 60",
    seeds="[0]",
    model='type = "MLP", hidden = [16]',
    training="epochs = 4, batch = 20, lr = 0.05, momentum = 0.9, measure_every = 4",
)

NOISE = 'data = { name = "digits", ood = ["gaussian-noise", { name = "pure-noise", deviation = 0.5 }],'


def noisy(kind: str, inside: TensorSplit, *, seed: int = 0, **options: float) -> torch.Tensor:
    return KINDS[kind](**options).of(inside, name=kind, seed=seed, folder=None).inputs


def bytes_of(count: int = 40, value: int = 128) -> TensorSplit:
    return TensorSplit(torch.full((count, 32, 32, 3), value, dtype=torch.uint8), torch.zeros(count, dtype=torch.int64))


def test_noise_is_added_to_the_test_images_as_cifar_10_c_does() -> None:
    inside = bytes_of()
    found = noisy("gaussian-noise", inside)
    difference = found.float() - 128
    assert found.dtype == torch.uint8
    assert float(difference.std()) == pytest.approx(25.5, rel=0.01)  # 0.1 of 255: severity 5
    assert float(difference.mean()) == pytest.approx(-0.5, abs=0.2)  # rounded down
    assert int(noisy("gaussian-noise", bytes_of(value=255)).min()) < 255
    assert torch.equal(noisy("gaussian-noise", inside, deviation=0), inside.inputs)
    assert torch.equal(found, noisy("gaussian-noise", inside))
    assert not torch.equal(found, noisy("gaussian-noise", inside, seed=1))
    # a saturated pixel of pure noise, N(.5, 1): P(x < 0) = P(x > 1) = .309
    pure = noisy("pure-noise", inside)
    assert float((pure == 0).double().mean()) == pytest.approx(0.31, abs=0.01)
    assert float((pure == 255).double().mean()) == pytest.approx(0.31, abs=0.01)


@pytest.mark.parametrize("severity", [1, 5])
def test_corruptions_are_those_of_cifar_10_c(severity: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    inside = TensorSplit(torch.from_numpy(pixels), torch.tensor([2, 0, 1]))

    def worse(kind: str) -> np.ndarray:
        found = KINDS[kind](severity=severity).of(inside, name=kind, seed=0, folder=None)
        assert torch.equal(found.labels, inside.labels)
        return found.inputs.numpy()

    deviation, factor, quality = {1: (0.4, 0.75, 80), 5: (1.0, 0.15, 40)}[severity]
    x = pixels / 255
    # the kernel written out, over nearest pixels beyond the edge
    reach = int(4 * deviation + 0.5)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / deviation) ** 2)
    kernel /= kernel.sum()
    padded = np.pad(x, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="edge")
    rows = sum(w * padded[:, i : i + 32] for i, w in enumerate(kernel))
    blurred = sum(w * rows[:, :, i : i + 32] for i, w in enumerate(kernel))
    assert np.abs(worse("gaussian-blur") - np.floor(255 * blurred)).max() <= 1  # a sum in another order may round down
    mean = x.mean(axis=(1, 2), keepdims=True)
    expected = (np.clip(mean + factor * (x - mean), 0, 1) * 255).astype(np.uint8)
    assert np.abs(worse("contrast").astype(int) - expected).max() <= 1
    image = pytest.importorskip("PIL.Image", reason="optional package 'PIL' is not installed")
    file = io.BytesIO()
    image.fromarray(pixels[1]).save(file, "JPEG", quality=quality)
    assert np.array_equal(worse("jpeg")[1], np.asarray(image.open(file)))


def test_measures_under_shift_are_those_of_the_test_labels() -> None:
    test = Predictions.from_logits([[3.0, 0.0], [0.0, 1.0]], [0, 0])
    worse = Predictions.from_logits([[0.0, 1.0], [2.0, 0.0]])
    noise = Predictions.from_logits([[9.0, 0.0]])  # not of the test images: no label is known
    fits = Measured([Run(test, test, {"jpeg": worse, "pure-noise": noise})])
    assert fits.value("error_shifted") == 0.5
    assert fits.value("nll_shifted") == pytest.approx((math.log1p(math.e) + math.log1p(math.exp(-2))) / 2)
    temperature = fits.calibrators("at_t")[0].temperature
    scaled = (math.log1p(math.exp(1 / temperature)) + math.log1p(math.exp(-2 / temperature))) / 2
    assert fits.value("nll_shifted_at_t") == pytest.approx(scaled)


def test_another_data_set_is_taken_from_beside_and_normalised_as_the_data_are(tmp_path: Path) -> None:
    write_images(tmp_path / "cifar10")
    small = write_images(tmp_path / "svhn", test=7, seed=1)["test-0"]
    large = write_images(tmp_path / "tiny-imagenet", side=64, seed=2)["test-0"]
    data = {"name": "cifar10", "folder": str(tmp_path / "cifar10"), "validation": 5}
    ood: list[Any] = ["svhn", "gaussian-noise", {"name": "tiny-imagenet", "test": 5}]
    fold = load_fold({**data, "ood": ood})
    assert {name: len(split) for name, split in fold.ood.items()} == {
        "svhn": 7, "gaussian-noise": 12, "tiny-imagenet": 5
    }  # fmt: skip
    inputs, _ = fold.ood["svhn"].batch(torch.tensor([3]))
    mean, deviation = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2023, 0.1994, 0.2010])
    assert np.allclose(inputs[0].numpy(), ((small[3] / 255 - mean) / deviation).transpose(2, 0, 1), atol=1e-5)
    row = np.random.default_rng(0).permutation(12)[0]
    found = fold.ood["tiny-imagenet"].inputs[0]
    kernel = torch.tensor([1.0, 3.0, 3.0, 1.0]) / 8  # triangle of width 2 at half-pixel centres
    patch = torch.from_numpy(large[row][9:13, 19:23].astype(np.float32))
    expected = torch.einsum("i,j,ijc->c", kernel, kernel, patch)
    assert torch.allclose(found[5, 10].float(), expected, atol=0.51)
    without = load_fold(data)
    assert without.ood == {}
    assert torch.equal(without.test.labels, fold.test.labels)


def test_the_network_kept_predicts_them_and_a_store_keeps_them(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="optional package 'lightning' is not installed")
    for name, text in (("plain", TEXT), ("noisy", TEXT.replace('data = { name = "digits",', NOISE))):
        (tmp_path / f"{name}.toml").write_text(text)
    store = Store(tmp_path / "runs")
    plain, noisy = (next(load_study(tmp_path / f"{name}.toml").cells()).recipe for name in ("plain", "noisy"))
    for name in ("plain", "noisy"):
        list(run_study(load_study(tmp_path / f"{name}.toml"), store, accelerator="cpu"))
    assert plain.fingerprint != noisy.fingerprint
    assert plain.fingerprint == replace(noisy, data={k: v for k, v in noisy.data.items() if k != "ood"}).fingerprint
    first, second = store.load(plain), store.load(noisy)
    assert torch.equal(first.test.logits, second.test.logits)  # training did not see them
    assert first.trajectory == second.trajectory
    assert first.ood == {}
    assert sorted(second.ood) == ["gaussian-noise", "pure-noise"]
    for outside in second.ood.values():
        assert (outside.logits.dtype, outside.labels, len(outside)) == (torch.float32, None, len(second.test))
    areas = {name: ood_auroc(second.test, outside) for name, outside in second.ood.items()}
    assert areas["pure-noise"] > 0.6
    assert abs(areas["gaussian-noise"] - 0.5) < 0.1  # little beside the noise that the digits have
    (store.folder(noisy) / "ood.npz").unlink()
    with pytest.raises(FileFormatError, match=r"ood\.npz"):
        store.load(noisy)


@pytest.mark.parametrize(
    ("ood", "said"),
    [
        (["noise"], "expected ood sets of gaussian-noise, pure-noise, got 'noise'"),
        (
            [{"name": "pure-noise", "sd": 1}],
            "ood set 'pure-noise': expected a key of PureNoise, got 'sd'; it has mean, deviation",
        ),
        (["pure-noise", "pure-noise"], "expected each of the ood sets once, got 'pure-noise' twice"),
    ],
)
def test_what_cannot_be_paired_is_named(ood: Any, said: str) -> None:
    pytest.importorskip("sklearn", reason="optional package 'sklearn' is not installed")
    with pytest.raises(InputError, match=said):
        load_fold({"name": "digits", "ood": ood})


def test_a_set_that_is_not_there_and_text_are_named(tmp_path: Path) -> None:
    write_images(tmp_path / "cifar10")
    data = {"name": "cifar10", "folder": str(tmp_path / "cifar10"), "validation": 5, "ood": ["svhn"]}
    with pytest.raises(FileFormatError, match="expected the folder of the ood set 'svhn', got no such folder"):
        load_fold(data)
    words = TensorSplit(torch.zeros(3, 5, dtype=torch.int32), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(InputError, match="expected images or rows of numbers beside ood sets, got TensorSplit"):
        ood_splits(outside_of(["pure-noise"], known=list(KINDS)), inside=words, seed=0, folder=None)
    with pytest.raises(InputError, match=r"expected ood sets of none \(text\), got 'pure-noise'"):
        load_fold({"name": "sst", "folder": str(tmp_path), "ood": ["pure-noise"]})
