"""ImageNet, decoded and cropped batch by batch; its validation images are the test set."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from calibrant.study.data._hub import RawSplit, Source, raw_split
from calibrant.study.data._papers import split_rows
from calibrant.study.data._requests import check_only_fold, check_options, data_folder, options_from
from calibrant.study.data._split import Fold
from calibrant.study.data.images import STATISTICS, Normalise

if TYPE_CHECKING:
    from PIL.Image import Image

SOURCE = Source("ILSVRC/imagenet-1k", 1000, 224, test="validation", rule="per-class", validation=50_000)
AREA, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10
CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class LazyImages:
    """Images of a split that are decoded when a batch is made.

    Args:
        raw: The encoded images.
        rows: (N,) their row numbers in ``raw``.
        labels: (N,) int64.
        size: Height and width given to the network; the shorter side is ``size · 8 / 7`` before the centre is cropped.
        augment: Whether training images are cropped at random and half of them mirrored.
        workers: Number of decoding threads.
        device: Device of the batches.
    """

    raw: RawSplit
    rows: np.ndarray
    labels: Tensor
    size: int
    augment: bool
    workers: int
    device: torch.device = CPU

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def decided(self) -> tuple[int, ...]:
        """Empty: a prediction may have any class."""
        return ()

    def __getitem__(self, places: np.ndarray) -> "LazyImages":
        return replace(self, rows=self.rows[places], labels=self.labels[torch.from_numpy(places)])

    def to(self, device: torch.device) -> "LazyImages":
        """Return the split with batches on ``device``."""
        return replace(self, labels=self.labels.to(device), device=device)

    def batch(self, rows: Tensor, *, training: bool = False) -> tuple[Tensor, Tensor]:
        """Return normalised images (B, 3, size, size) and labels (B,); random crops are drawn by torch's global generator."""
        draws = torch.rand(len(rows), TRIES + 1, 4).tolist() if training and self.augment else None

        def work(place: int) -> np.ndarray:
            image = self.raw.image(int(self.rows[places[place]]))
            cut = _centre(image, self.size) if draws is None else _random_part(image, self.size, draws[place])
            return np.asarray(cut, dtype=np.uint8)

        places = rows.tolist()
        with ThreadPoolExecutor(self.workers) as pool:
            pixels = np.stack(list(pool.map(work, range(len(places)))))
        prepare: Callable[[Tensor], Tensor] = Normalise(*STATISTICS["imagenet"])
        return prepare(torch.from_numpy(pixels).to(self.device)), self.labels[rows]


def imagenet(*, seed: int, fold: int, **options: Any) -> Fold:
    """Return ImageNet, tested on its 50,000 validation images and validated on a sample of its training images.

    Args:
        seed: Draws the training images if the option ``train`` is given.
        fold: 0.
        options: Fields of ``ImageNetOptions``.

    Raises:
        InputError: If an option is unknown or has an impossible value.
        FileFormatError: If there are no such files.
    """
    chosen = options_from(ImageNetOptions, options, name="imagenet")
    check_options({"seed": seed, "fold": fold, **vars(chosen)})
    check_only_fold(fold)
    return _fold(chosen, seed=seed)


@dataclass(frozen=True)
class ImageNetOptions:
    """Options of ImageNet in a recipe.

    Args:
        folder: A folder with the hub's parquet files, or ``train/class/*.JPEG`` and ``val/class/*.JPEG``; None downloads from
            the hub.
        split_seed: Draws the validation images, equally many of each class.
        validation: Number of validation images.
        size: Height and width given to the network.
        augment: Whether training images are cropped at random and mirrored.
        workers: Number of decoding threads.
        train: Number of training images to use; None is all.
        test: Number of test images to use; None is all.
    """

    folder: str | None = None
    split_seed: int = 1
    validation: int = SOURCE.validation
    size: int = SOURCE.size
    augment: bool = True
    workers: int = 8
    train: int | None = None
    test: int | None = None


def _fold(options: ImageNetOptions, *, seed: int) -> Fold:
    if options.folder is not None:
        data_folder(options.folder, name="imagenet")
    parts = {name: _lazy(raw_split(SOURCE, name, options.folder), options) for name in ("train", "test")}
    whole, tested = parts["train"], parts["test"]
    labels = whole.labels.numpy()
    fit, held = split_rows(
        len(whole), validation=options.validation, rule=SOURCE.rule, seed=options.split_seed, labels=labels
    )
    if options.train is not None:
        fit = np.random.default_rng(seed).permutation(fit)[: options.train]
    if options.test is not None:
        tested = tested[np.random.default_rng(0).permutation(len(tested))[: options.test]]
    sizes = {"classes": whole.raw.classes, "inputs": 3 * options.size**2}
    return Fold(whole[fit], whole[held], tested, sizes)


def _lazy(raw: RawSplit, options: ImageNetOptions) -> LazyImages:
    rows, labels = np.arange(len(raw)), torch.from_numpy(raw.labels)
    return LazyImages(raw, rows, labels, options.size, options.augment, options.workers)


def _centre(image: "Image", size: int) -> "Image":
    """Return the centre crop of the image after resizing its shorter side to ``size · 8 / 7`` (256 for 224)."""
    from PIL.Image import Resampling

    shorter = round(size * 8 / 7)
    factor = shorter / min(image.size)
    width, height = (max(shorter, round(side * factor)) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    return image.resize((width, height), Resampling.BILINEAR).crop((left, top, left + size, top + size))


def _random_part(image: "Image", size: int, draws: list[list[float]]) -> "Image":
    """Return a random crop of 8 to 100 % of the area and aspect ratio 3:4 to 4:3, resized to ``size``, mirrored half of the time.

    References:
        Szegedy et al. 2015 §6, as in the usual ImageNet code.
    """
    from PIL.Image import Resampling, Transpose

    width, height = image.size
    box: tuple[int, int, int, int] | None = None
    for area, ratio, right, down in draws[:TRIES]:
        pixels = width * height * (AREA[0] + (AREA[1] - AREA[0]) * area)
        sides = math.exp(math.log(RATIO[0]) + (math.log(RATIO[1]) - math.log(RATIO[0])) * ratio)
        w, h = round(math.sqrt(pixels * sides)), round(math.sqrt(pixels / sides))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(right * (width - w + 1)), int(down * (height - h + 1))
            box = (left, top, left + w, top + h)
            break
    cut = _centre(image, size) if box is None else image.resize((size, size), Resampling.BILINEAR, box=box)
    return cut.transpose(Transpose.FLIP_LEFT_RIGHT) if draws[-1][0] < 0.5 else cut
