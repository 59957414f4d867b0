"""Image data sets from small local folders that are laid out as the hub's are: configurations, columns, shards."""

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import late, needs

from calibrant.errors import FileFormatError, InputError
from calibrant.study.data import load_fold
from calibrant.study.data.images import LazyImages, _centre_crop, _random_part

pytestmark = needs("datasets", "PIL")
datasets, images = late("datasets"), late("PIL.Image")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path.with_name(f"{tmp_path.name}-cache"))
    datasets.disable_progress_bars()


def picture(value: int, side: int, mode: str = "RGB") -> dict[str, Any]:
    """Return an image as the hub's parquet files hold it: its top left pixel 255, its lower right quarter 200."""
    pixels = np.full((side, side), value, dtype=np.uint8)
    pixels[0, 0], pixels[side // 2 :, side // 2 :] = 255, 200
    file = io.BytesIO()
    images.fromarray(pixels).convert(mode).save(file, format="PNG")
    return {"bytes": file.getvalue(), "path": f"{value}.png"}


def shard(path: Path, *, side: int, labels: Sequence[int], image: str = "image", **more: Any) -> None:
    """Write one parquet file; the image of row i is grey i."""
    path.parent.mkdir(parents=True, exist_ok=True)
    label = more.pop("label", "label")
    columns = {image: [picture(i, side) for i in range(len(labels))], label: list(labels), **more}
    features = {image: datasets.Image(), **{name: datasets.Value("int64") for name in columns if name != image}}
    datasets.Dataset.from_dict(columns, features=datasets.Features(features)).to_parquet(str(path))


def greys(split: Any) -> list[int]:
    return split.inputs[:, 1, 1, 0].tolist()


def test_cifar100_is_read_by_its_fine_labels(tmp_path: Path) -> None:
    folder = tmp_path / "cifar100" / "cifar100"
    for split, labels in (("train", list(range(30))), ("test", [99, 0])):
        columns = {"image": "img", "label": "fine_label", "coarse_label": [0] * len(labels)}
        shard(folder / f"{split}-00000-of-00001.parquet", side=32, labels=labels, **columns)
    data = {"name": "cifar100", "folder": str(folder.parent), "validation": 6, "split": "wang", "split_seed": 101}
    fold = load_fold(data)
    order = np.random.RandomState(101).permutation(30)
    assert greys(fold.train) == order[:24].tolist() == fold.train.labels.tolist()
    assert greys(fold.validation) == order[24:].tolist()
    assert fold.test.labels.tolist() == [99, 0]
    assert fold.test.inputs[:, 0, 0, 0].tolist() == [255, 255]
    assert fold.sizes == {"classes": 100, "inputs": 3072}


def test_svhn_is_its_cropped_digits_without_the_extra_ones(tmp_path: Path) -> None:
    for name, count in (("train", 20), ("test", 5), ("extra", 9)):
        labels = [i % 10 for i in range(count)]
        shard(tmp_path / "cropped_digits" / f"{name}-00000-of-00001.parquet", side=32, labels=labels)
    shard(tmp_path / "full_numbers" / "train-00000-of-00001.parquet", side=48, labels=[0] * 4)
    fold = load_fold({"name": "svhn", "folder": str(tmp_path), "validation": 4, "augment": False})
    assert [len(part) for part in (fold.train, fold.validation, fold.test)] == [16, 4, 5]
    listed = list(range(20))
    np.random.RandomState(1).shuffle(listed)
    assert greys(fold.validation) == listed[:4]


def test_tiny_imagenet_is_validated_on_as_many_of_each_class(tmp_path: Path) -> None:
    labels = [k for k in range(4) for _ in range(5)]
    shard(tmp_path / "train-00000-of-00002-1359597a978bc4fa.parquet", side=64, labels=labels[:12])
    shard(tmp_path / "train-00001-of-00002-1359597a978bc4fb.parquet", side=64, labels=labels[12:])
    shard(tmp_path / "valid-00000-of-00001-70d52db3c749a935.parquet", side=64, labels=[3, 1, 199])
    data = {"name": "tiny-imagenet", "folder": str(tmp_path), "validation": 8}
    fold = load_fold(data)
    assert fold.test.labels.tolist() == [3, 1, 199]
    assert torch.bincount(fold.validation.labels).tolist() == [2, 2, 2, 2]
    assert torch.bincount(fold.train.labels).tolist() == [3, 3, 3, 3]
    inputs, _ = fold.test.batch(torch.tensor([0]))
    assert inputs.shape == (1, 3, 64, 64)
    assert inputs[0, :, 0, 0].tolist() == pytest.approx([(1 - 0.485) / 0.229, (1 - 0.456) / 0.224, (1 - 0.406) / 0.225])
    with pytest.raises(InputError, match=r"expected a multiple of 4 .* below 20 for validation, got 7"):
        load_fold({**data, "validation": 7})
    assert not torch.equal(load_fold({**data, "split_seed": 2}).validation.inputs, fold.validation.inputs)


def test_imagenet_is_decoded_on_demand_and_tested_on_its_validation_images(tmp_path: Path) -> None:
    shard(tmp_path / "train-00000-of-00001.parquet", side=70, labels=[k for k in range(3) for _ in range(4)])
    shard(tmp_path / "validation-00000-of-00001.parquet", side=90, labels=[2, 0])
    shard(tmp_path / "test-00000-of-00001.parquet", side=90, labels=[-1] * 3)
    data = {"name": "imagenet", "folder": str(tmp_path), "validation": 3}
    fold = load_fold(data)
    assert [len(part) for part in (fold.train, fold.validation, fold.test)] == [9, 3, 2]
    assert isinstance(fold.train, LazyImages)
    inputs, labels = fold.test.batch(torch.tensor([1, 0]))
    assert (inputs.shape, inputs.dtype, labels.tolist()) == ((2, 3, 224, 224), torch.float32, [0, 2])
    assert float(inputs[0, 0, 80, 80]) == pytest.approx((1 / 255 - 0.485) / 0.229, abs=1e-5)
    drawn = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        drawn.append(fold.train.batch(torch.arange(9), training=True)[0])
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert len(load_fold({**data, "train": 4}).train) == 4


def test_imagenet_from_folders_named_by_class(tmp_path: Path) -> None:
    for split, names in (("train", ("n01", "n02")), ("val", ("n01", "n02"))):
        for name in names:
            (tmp_path / "i" / split / name).mkdir(parents=True)
            for i in range(3):
                found = picture(10 * i, 60, mode="L" if i else "RGB")  # grey files are among the real ones
                (tmp_path / "i" / split / name / f"{i}.png").write_bytes(found["bytes"])
    fold = load_fold({"name": "imagenet", "folder": str(tmp_path / "i"), "validation": 2})
    assert fold.sizes == {"classes": 2, "inputs": 3 * 224 * 224}
    assert [len(part) for part in (fold.train, fold.validation, fold.test)] == [4, 2, 6]
    inputs, labels = fold.test.batch(torch.arange(6))
    assert labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert torch.isfinite(inputs).all()


def test_the_usual_crops() -> None:
    column = np.arange(256, dtype=np.uint8)[:, None]
    ramp = images.fromarray(np.tile(column, (1, 128))).convert("RGB")  # 128 wide, 256 high
    centre = np.asarray(_centre_crop(ramp, 112))  # the shorter side is 128 already
    assert centre.shape == (112, 112, 3)
    assert centre[0, 0, 0] == (256 - 112) // 2
    # half the area, square: a side of 128 = √(16384); the left edge at 0, the upper at ⌊.5 · 129⌋; not mirrored
    half = (0.5 - 0.08) / 0.92
    cut = np.asarray(_random_part(ramp, 128, [[half, 0.5, 0.9, 0.5]] * 10 + [[0.7, 0, 0, 0]]))
    assert cut[0, 0, 0] == 64
    assert cut[-1, 0, 0] == 64 + 127
    turned = ramp.transpose(images.Transpose.ROTATE_90)
    mirrored, plain = (
        np.asarray(_random_part(turned, 128, [[half, 0.5, 0.5, 0.9]] * 10 + [[draw, 0, 0, 0]])) for draw in (0.2, 0.7)
    )
    assert np.array_equal(mirrored, plain[:, ::-1])
    assert not np.array_equal(mirrored, plain)
    thin = ramp.resize((256, 4))  # no part of it is less than 4 : 3
    whole = _random_part(thin, 32, [[1.0, 0.5, 0, 0]] * 10 + [[0.7, 0, 0, 0]])
    assert np.array_equal(np.asarray(whole), np.asarray(_centre_crop(thin, 32)))


def refusal(folder: Path, name: str = "svhn") -> str:
    """Return the sentence with which the data set in ``folder`` is refused, when it is loaded or when its images are."""
    with pytest.raises(FileFormatError) as caught:
        fold = load_fold({"name": name, "folder": str(folder), "validation": 3})
        for part in (fold.train, fold.validation):
            part.batch(torch.arange(len(part)))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_not_as_the_hub_has_it_is_named(tmp_path: Path) -> None:
    zeros = [0] * 9
    shard(tmp_path / "half" / "train-00000-of-00001.parquet", side=32, labels=zeros)
    shard(tmp_path / "much" / "train.parquet", side=32, labels=[0, 10] * 5)
    for part in (0, 2):
        shard(tmp_path / "gap" / f"train-0000{part}-of-00003.parquet", side=32, labels=zeros)
    for folder, said in {
        "none": "expected the folder of svhn, got no such folder",
        "half": "expected the split 'test' of .*half, got only train; add its files",
        "much": r"expected labels in 0 … 9, got 0 … 10 in .*much",
        "gap": r"expected 3 files of the split 'train' in .*, got 2;",
    }.items():
        assert re.search(said, refusal(tmp_path / folder))


@pytest.mark.parametrize("name", ["svhn", "imagenet"])
def test_a_truncated_image_is_named_by_its_row(tmp_path: Path, name: str) -> None:
    whole = picture(9, 32)
    rows = [whole, {"bytes": whole["bytes"][:60], "path": None}, whole, whole]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    for part in ("train", "test", "validation"):
        table = datasets.Dataset.from_dict({"image": rows, "label": [0] * 4}, features=features)
        table.to_parquet(str(tmp_path / f"{part}.parquet"))
    assert "expected a whole image, got a broken one in row 1 of split 'train' of" in refusal(tmp_path, name)


def test_broken_parts_are_named(tmp_path: Path) -> None:
    pixels = np.zeros((4, 32, 32, 3), dtype=np.uint8)
    wanted = r"expected images \(N, 32, 32, 3\) uint8 and labels \(N,\) of whole numbers in .*, N ≥ 1, got "
    for arrays, said in (
        ({"images": pixels}, wanted + r"images \(4, 32, 32, 3\) uint8;"),
        ({"images": pixels, "labels": np.full(4, 10)}, r"expected labels in 0 … 9, got 10 … 10"),
        ({"images": pixels, "labels": np.full(4, "3")}, wanted + r".*, labels \(4,\) <U1"),
    ):
        np.savez(tmp_path / "train.npz", **arrays)
        assert re.search(said, refusal(tmp_path))
