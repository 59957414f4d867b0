"""CIFAR-10, CIFAR-100, SVHN, Tiny-ImageNet: from the hub or a folder, as uint8 on the device, augmented in batches."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.check import check_choice
from calibrant._core.files import read_arrays
from calibrant.errors import FileFormatError, InputError
from calibrant.study.data._hub import Source, check_classes, raw_split
from calibrant.study.data._papers import split_rows
from calibrant.study.data._requests import check_name, check_only_fold, check_options, data_folder, options_from
from calibrant.study.data._split import Fold, TensorSplit

SOURCES = {
    "cifar10": Source("uoft-cs/cifar10", 10, 32, config="plain_text"),
    "cifar100": Source("uoft-cs/cifar100", 100, 32, config="cifar100", label="fine_label"),
    "svhn": Source("ufldl-stanford/svhn", 10, 32, config="cropped_digits"),
    "tiny-imagenet": Source(
        "zh-plus/tiny-imagenet",
        200,
        64,
        test="validation",
        rule="per-class",
        validation=10_000,
        statistics="imagenet",
    ),
}
DECODERS = 4  # threads
PAD = 4  # pixels before a random crop, for 32×32 and 64×64 images alike, as in Mukhoti et al. (2020), code
STATISTICS: Mapping[str, tuple[tuple[float, float, float], tuple[float, float, float]]] = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),  # torrvision's, for CIFAR-100 too
    "cifar100": ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # Wang et al.'s code, for CIFAR-10 too
}


@dataclass(frozen=True)
class Normalise:
    """Converts uint8 images (B, H, W, 3) to standardised float32 images (B, 3, H, W)."""

    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]

    def __call__(self, images: Tensor) -> Tensor:
        """Return the network's input."""
        mean, deviation = images.new_tensor([self.mean, self.deviation], dtype=torch.float32)
        return ((images.float() / 255 - mean) / deviation).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class CropAndFlip:
    """Crops (after padding) and mirrors each image of a batch at random, in one indexing operation.

    Args:
        pad: Number of pixels added on each side, with the value of a normalised black pixel.
        black: That value for each channel.
    """

    pad: int
    black: tuple[float, float, float]

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return images (B, C, H, W) cropped and mirrored."""
        count, _, height, width = images.shape
        black = images.new_tensor(self.black)[:, None, None]
        padded = F.pad(images - black, (self.pad,) * 4) + black
        draw = torch.randint(0, 2 * self.pad + 1, (2, count), generator=generator, device=images.device)
        mirrored = torch.rand(count, generator=generator, device=images.device) < 0.5
        rows = draw[0][:, None] + torch.arange(height, device=images.device)  # (B, H)
        columns = torch.arange(width, device=images.device).expand(count, width)
        columns = torch.where(mirrored[:, None], width - 1 - columns, columns) + draw[1][:, None]  # (B, W)
        index = torch.arange(count, device=images.device)[:, None, None]
        return padded.permute(0, 2, 3, 1)[index, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def images(name: str, *, seed: int, fold: int, **options: Any) -> Fold:
    """Return an image data set.

    Args:
        name: A key of ``SOURCES``.
        seed: Draws the training images if fewer than all are requested.
        fold: 0; these data sets have fixed test sets.
        options: Fields of ``Options``.

    Raises:
        InputError: If the name or an option is unknown or has an impossible value.
        FileFormatError: If there are no such files.
    """
    source = SOURCES[check_name(name, SOURCES)]
    chosen = options_from(Options, options, name=name)
    check_options({"seed": seed, "fold": fold, **{k: v for k, v in options.items() if v is not None}})
    check_only_fold(fold)
    return _fold(source, chosen, seed=seed, name=name)


@dataclass(frozen=True)
class Options:
    """Options of an image data set in a recipe.

    Args:
        folder: A folder with the hub's files, or with ``train*.npz`` and ``test*.npz`` parts that contain ``images``
            (N, H, W, 3) uint8 and ``labels``; None downloads from the hub.
        split: ``"mukhoti"``, ``"wang"``, ``"plain"`` or ``"per-class"``: the rule that selects the validation images from the
            training images. None, here and for ``validation`` and ``statistics``, is the papers' choice for the data set.
        split_seed: Seed of that rule; 1 in Mukhoti et al.'s code, 101 … in Wang et al.'s.
        validation: Number of validation images.
        statistics: ``"cifar10"``, ``"cifar100"`` or ``"imagenet"``: mean and standard deviation of the channels.
        augment: Whether training images are cropped and mirrored.
        train: Number of training images to use; None is all.
        test: Number of test images to use; None is all.
    """

    folder: str | None = None
    split: str | None = None
    split_seed: int = 1
    validation: int | None = None
    statistics: str | None = None
    augment: bool = True
    train: int | None = None
    test: int | None = None


def _fold(source: Source, options: Options, *, seed: int, name: str) -> Fold:
    statistics = source.statistics if options.statistics is None else options.statistics
    mean, deviation = STATISTICS[check_choice(statistics, name="statistics", choices=STATISTICS)]
    pixels, labels = read_images(name, "train", options.folder)
    count = source.validation if options.validation is None else options.validation
    rule = source.rule if options.split is None else options.split
    fit, held = split_rows(len(labels), validation=count, rule=rule, seed=options.split_seed, labels=labels)
    if options.train is not None:
        _check_enough(options.train, len(fit), "train", name)
        fit = np.random.default_rng(seed).permutation(fit)[: options.train]
    prepare = Normalise(mean, deviation)
    whole = TensorSplit(torch.from_numpy(pixels), torch.from_numpy(labels), prepare)
    test_pixels, test_labels = read_images(name, "test", options.folder)
    test = TensorSplit(torch.from_numpy(test_pixels), torch.from_numpy(test_labels), prepare)
    if options.test is not None:
        _check_enough(options.test, len(test), "test", name)
        test = test[torch.from_numpy(np.random.default_rng(0).permutation(len(test))[: options.test])]
    black = tuple(-m / d for m, d in zip(mean, deviation, strict=True))
    return Fold(
        train=whole[torch.from_numpy(fit)],
        validation=whole[torch.from_numpy(held)],
        test=test,
        sizes={"classes": source.classes, "inputs": 3 * source.size**2},
        augment=CropAndFlip(PAD, black) if options.augment else None,  # type: ignore[arg-type]
    )


def _check_enough(requested: int, found: int, split: str, name: str) -> None:
    """Raise if fewer images are there than the recipe names: its record would be that of another experiment."""
    if requested > found:
        raise InputError(
            f"{split} in 1 … {found} images of {name} (those found, without validation images)",
            f"{requested}",
            "ask for fewer, or complete the data",
        )


def test_pixels(name: str, folder: str | None) -> np.ndarray:
    """Return the test images (N, H, W, 3) uint8 of a data set, as out-of-distribution data of another one.

    Args:
        name: A key of ``SOURCES``.
        folder: As in ``Options``.
    """
    return read_images(name, "test", folder)[0]


@lru_cache(maxsize=4)
def read_images(name: str, split: str, folder: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the images (N, H, W, 3) uint8 and labels (N,) int64 of a split."""
    if folder is not None:
        data_folder(folder, name=name)
    source = SOURCES[name]
    parts = sorted(Path(folder).glob(f"{split}*.npz")) if folder is not None else []
    if parts:
        read = [_read_part(part, source) for part in parts]
        return np.concatenate([pixels for pixels, _ in read]), np.concatenate([labels for _, labels in read])
    raw = raw_split(source, split, folder)
    size = (source.size, source.size)
    with ThreadPoolExecutor(DECODERS) as pool:  # decoding releases the interpreter's lock
        images = pool.map(lambda row: np.asarray(raw.image(row).resize(size), dtype=np.uint8), range(len(raw)))
        pixels = np.empty((len(raw), *size, 3), dtype=np.uint8)
        for row, image in enumerate(images):
            pixels[row] = image
    return pixels, raw.labels


def _read_part(part: Path, source: Source) -> tuple[np.ndarray, np.ndarray]:
    arrays = read_arrays(part)
    if not {"images", "labels"} <= set(arrays):
        raise FileFormatError(f"the arrays images and labels in {part}", f"{sorted(arrays)}", "rename them")
    pixels, labels = arrays["images"], arrays["labels"]
    shape = (len(labels), source.size, source.size, 3)
    if pixels.dtype != np.uint8 or pixels.shape != shape:
        raise FileFormatError(
            f"images {shape} uint8 in {part}, one for each label", f"{pixels.shape} {pixels.dtype}", "convert them"
        )
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels):
        raise FileFormatError(
            f"labels (N,) of whole numbers in {part}, N ≥ 1",
            f"{labels.shape} {labels.dtype}",
            "convert them, or get the data again",
        )
    return pixels, check_classes(labels.astype(np.int64), source.classes, str(part))
