"""CIFAR-10, CIFAR-100, SVHN, Tiny-ImageNet and ImageNet, from the hub or from a folder.

The small data sets are kept as uint8 on the device and augmented in batches. ImageNet is decoded and cropped batch by
batch, and its validation images are the test set.
"""

import io
import math
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from calibrant._files import error_boundary, read_arrays
from calibrant.errors import FileFormatError, optional
from calibrant.study.data._split import (
    CPU,
    DataSet,
    Fold,
    Indices,
    Prepare,
    TensorSplit,
    data_folder,
    draw_rows,
    split_rows,
)
from calibrant.study.record import Flag, Natural, Size, Text, record

if TYPE_CHECKING:
    from PIL.Image import Image

SHARD = re.compile(r"(?P<split>.+)-\d{5}-of-(?P<total>\d{5})\.parquet")
IMAGE_COLUMNS = ("img", "image")
OTHER_NAMES = {"train": ("train",), "test": ("test",), "validation": ("validation", "valid", "val")}


@dataclass(frozen=True)
class HubSource:
    """A data set on the hub, and the papers' defaults for it.

    Args:
        hub: Name of the repository.
        classes: Number of classes K.
        size: Height and width of the images.
        config: Name of the configuration on the hub, and of a subfolder.
        label: Name of the label column.
        test: The test split: ``"test"``, or ``"validation"`` if the test labels are not public.
        rule: Default rule that selects the validation images from the training images.
        validation: Default number of validation images.
        statistics: Key in ``STATISTICS`` of the default mean and standard deviation.
    """

    hub: str
    classes: int
    size: int
    config: str | None = None
    label: str = "label"
    test: str = "test"
    rule: str = "mukhoti"
    validation: int = 5000
    statistics: str = "cifar10"


@dataclass(frozen=True, eq=False)
class RawSplit:
    """The encoded images of one split.

    Args:
        table: Rows with ``{"bytes", "path"}`` under ``column``.
        column: Name of the image column.
        labels: (N,) int64 labels.
        classes: Number of classes K.
        where: Name of the split in error messages.
    """

    table: Any
    column: str
    labels: npt.NDArray[np.int64]
    classes: int
    where: str

    def __len__(self) -> int:
        return len(self.labels)

    def image(self, row: int) -> "Image":
        """Return one image as RGB.

        Raises:
            FileFormatError: If the image is damaged.
        """
        import PIL.Image

        found = self.table[row][self.column]
        # decoders raise many types of errors, each of which means that the image is broken
        with error_boundary("a whole image", f"a broken one in row {row} of {self.where}", "get the data again"):
            return PIL.Image.open(io.BytesIO(found["bytes"]) if found["bytes"] else found["path"]).convert("RGB")


def raw_split(source: HubSource, split: str, folder: str | None) -> RawSplit:
    """Return the encoded images of a split.

    Args:
        source: The data set.
        split: ``"train"``, or ``"test"`` for the test split of ``source``.
        folder: A folder with the hub's parquet files or ``split/class/image`` files; None downloads from the hub.

    Raises:
        FileFormatError: If there is no such folder, split or column, or if labels are out of range.
    """
    with optional("datasets", extra="study"):
        import datasets
    path, config, where = source.hub, source.config, f"{source.hub} on the hub"
    names_of_split = OTHER_NAMES[source.test if split == "test" else split]
    if folder is not None:
        inner = Path(folder) / (config or "")  # in a copy of the hub, each configuration has a folder
        path, config, where = str(inner if inner.is_dir() else folder), None, folder
        _require_all_shards(Path(path), names_of_split)
    else:
        _require_hub(source.hub)
    wanted = f"the split {names_of_split[0]!r} of {where}"
    # the library raises many types of errors: without a network, for missing or broken files, for a full disk
    with error_boundary(wanted, "an error of the reader", "check it, or name a folder"):
        names = datasets.get_dataset_split_names(path, config)
        chosen = next((name for name in names_of_split if name in names), None)
        if chosen is None:
            raise FileFormatError(wanted, f"only {', '.join(names)}", "add its files")
        table = datasets.load_dataset(path, name=config, split=chosen)
    column = next((name for name in IMAGE_COLUMNS if name in table.column_names), None)
    if column is None or source.label not in table.column_names:
        wanted = f"columns {' or '.join(IMAGE_COLUMNS)} and {source.label} in {where}"
        raise FileFormatError(wanted, ", ".join(table.column_names), "rename them as on the hub")
    table = table.cast_column(column, datasets.Image(decode=False))
    classes = getattr(table.features[source.label], "num_classes", None) or source.classes
    labels = np.asarray(table.with_format("numpy")[source.label][:], dtype=np.int64)
    return RawSplit(table, column, check_image_labels(labels, classes, where), classes, f"split {chosen!r} of {where}")


def _require_hub(repository: str) -> None:
    """Raise an error if a data set on the hub cannot be reached; ``datasets`` would repeat its requests for a minute."""
    import huggingface_hub

    if huggingface_hub.constants.HF_HUB_OFFLINE:  # reads the hub's cache
        return
    name = next(name for name, source in SOURCES.items() if source.hub == repository)
    remedy = f"connect to it, or put the data into a folder FOLDER/{name} and pass --data FOLDER"
    with error_boundary(f"the data set {repository} on the Hugging Face hub", "no access", remedy):
        huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(repository, "README.md", repo_type="dataset"))


def check_image_labels(labels: npt.NDArray[np.int64], classes: int, where: str) -> npt.NDArray[np.int64]:
    """Return ``labels``, or raise ``FileFormatError`` if one is not in [0, K)."""
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        got = f"{labels.min()} … {labels.max()} in {where}"
        raise FileFormatError(f"labels in 0 … {classes - 1}", got, "check that these are the right data")
    return labels


def _require_all_shards(folder: Path, splits: Sequence[str]) -> None:
    """Raise an error if files of a split are missing.

    The file names state how many files there are. Without this check, the remaining files would be read as if they were all.
    """
    for file in folder.rglob("*-of-*.parquet"):
        named = SHARD.fullmatch(file.name)
        if named and named["split"] in splits:
            parts = len(list(file.parent.glob(f"{named['split']}-*-of-{named['total']}.parquet")))
            if parts != int(named["total"]):
                wanted = f"{int(named['total'])} files of the split {named['split']!r} in {file.parent}"
                raise FileFormatError(wanted, f"{parts}", "get the data again")


STATISTICS: Mapping[str, tuple[tuple[float, float, float], tuple[float, float, float]]] = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),  # torrvision's, for CIFAR-100 too
    "cifar100": ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # Wang et al.'s code, for CIFAR-10 too
}
# for random crops: fraction of the area, aspect ratio, and number of draws before the centre is used instead
AREA, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10
TESTED_ON_VALIDATION: Mapping[str, Any] = {"test": "validation", "rule": "per-class", "statistics": "imagenet"}
SOURCES = {
    "cifar10": HubSource("uoft-cs/cifar10", 10, 32, config="plain_text"),
    "cifar100": HubSource("uoft-cs/cifar100", 100, 32, config="cifar100", label="fine_label"),
    "svhn": HubSource("ufldl-stanford/svhn", 10, 32, config="cropped_digits"),
    "tiny-imagenet": HubSource("zh-plus/tiny-imagenet", 200, 64, **TESTED_ON_VALIDATION, validation=10_000),
    "imagenet": HubSource("ILSVRC/imagenet-1k", 1000, 224, **TESTED_ON_VALIDATION, validation=50_000),
}
SMALL = tuple(name for name in SOURCES if name != "imagenet")  # kept in memory
Corrupted = Literal["gaussian-blur", "contrast", "jpeg"]  # corruptions of test images, as out-of-distribution sets
DECODERS = 8  # threads
PAD = 4  # pixels added before a random crop, for both 32×32 and 64×64 images, as in the code of Mukhoti et al. (2020)


def normalised(images: Tensor, *, mean: Sequence[float], deviation: Sequence[float]) -> Tensor:
    """Return uint8 images (B, H, W, 3) as standardised float32 images (B, 3, H, W)."""
    centre, scale = images.new_tensor([mean, deviation], dtype=torch.float32)
    return ((images.float() / 255 - centre) / scale).permute(0, 3, 1, 2)


@dataclass(frozen=True, eq=False)
class LazyImages:
    """A split whose images are decoded when a batch is requested.

    Args:
        raw: The encoded images.
        rows: (N,) row numbers of the images in ``raw``.
        labels: (N,) int64 labels.
        size: Height and width of the network's input. Images are resized so that their shorter side is ``size · 8 / 7``,
            and the centre is cropped.
        augment: Whether training images are cropped at random and half of them are mirrored.
        prepare: Function that normalises a batch.
        device: Device of the batches.
        decided: As in ``Split``.
    """

    raw: RawSplit
    rows: np.ndarray
    labels: Tensor
    size: int
    augment: bool
    prepare: Prepare
    device: torch.device = CPU
    decided: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, places: np.ndarray) -> "LazyImages":
        return replace(self, rows=self.rows[places], labels=self.labels[torch.from_numpy(places)])

    def to(self, device: torch.device) -> "LazyImages":
        """Return the split with batches on ``device``."""
        return replace(self, labels=self.labels.to(device), device=device)

    def batch(self, rows: Tensor, *, training: bool = False) -> tuple[Tensor, Tensor]:
        """Return normalised images (B, 3, size, size) and labels (B,).

        Random crops are drawn by PyTorch's global generator.
        """
        draws = torch.rand(len(rows), TRIES + 1, 4).tolist() if training and self.augment else None

        def work(place: int) -> np.ndarray:
            image = self.raw.image(int(self.rows[places[place]]))
            cut = _centre_crop(image, self.size) if draws is None else _random_part(image, self.size, draws[place])
            return np.asarray(cut, dtype=np.uint8)

        places = rows.tolist()
        with ThreadPoolExecutor(DECODERS) as pool:
            pixels = np.stack(list(pool.map(work, range(len(places)))))
        return self.prepare(torch.from_numpy(pixels).to(self.device)), self.labels[rows]


def _centre_crop(image: "Image", size: int) -> "Image":
    """Return the centre of the image, after resizing its shorter side to ``size · 8 / 7`` (256 for 224, as usual for ImageNet)."""
    from PIL.Image import Resampling

    shorter = round(size * 8 / 7)
    factor = shorter / min(image.size)
    width, height = (max(shorter, round(side * factor)) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    return image.resize((width, height), Resampling.BILINEAR).crop((left, top, left + size, top + size))


def _random_part(image: "Image", size: int, draws: list[list[float]]) -> "Image":
    """Return a random crop of 8 to 100 % of the area with aspect ratio 3:4 to 4:3, resized to ``size``.

    Half of the crops are mirrored.

    References:
        Szegedy et al. 2015 §6, as in the usual ImageNet code.
    """
    from PIL.Image import Resampling, Transpose

    width, height = image.size
    cut = _centre_crop(image, size)
    for area, ratio, right, down in draws[:TRIES]:
        # the area and the logarithm of the ratio are uniform, so that 3:4 is as frequent as 4:3
        pixels = width * height * (AREA[0] + (AREA[1] - AREA[0]) * area)
        sides = math.exp(math.log(RATIO[0]) + (math.log(RATIO[1]) - math.log(RATIO[0])) * ratio)
        w, h = round(math.sqrt(pixels * sides)), round(math.sqrt(pixels / sides))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(right * (width - w + 1)), int(down * (height - h + 1))
            cut = image.resize((size, size), Resampling.BILINEAR, box=(left, top, left + w, top + h))
            break
    return cut.transpose(Transpose.FLIP_LEFT_RIGHT) if draws[-1][0] < 0.5 else cut


@dataclass(frozen=True)
class CropAndFlip:
    """An augmentation that pads, crops and mirrors each image of a batch at random, in one indexing operation.

    Args:
        pad: Number of black pixels added on each side.
        black: Value of a normalised black pixel in each channel.
    """

    pad: int
    black: tuple[float, float, float]

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return the images (B, C, H, W), cropped and mirrored."""
        count, _, height, width = images.shape
        black = images.new_tensor(self.black)[:, None, None]
        # F.pad fills with 0, so black is subtracted first and added again, which makes the border black
        padded = F.pad(images - black, (self.pad,) * 4) + black
        draw = torch.randint(0, 2 * self.pad + 1, (2, count), generator=generator, device=images.device)
        mirrored = torch.rand(count, generator=generator, device=images.device) < 0.5
        rows = draw[0][:, None] + torch.arange(height, device=images.device)  # (B, H)
        columns = torch.arange(width, device=images.device).expand(count, width)
        # column c of a mirrored image is column width − 1 − c of the crop
        columns = torch.where(mirrored[:, None], width - 1 - columns, columns) + draw[1][:, None]  # (B, W)
        index = torch.arange(count, device=images.device)[:, None, None]
        return padded.permute(0, 2, 3, 1)[index, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


@record
class Images(DataSet):
    """An image data set in ``SOURCES``. The images of ImageNet are decoded batch by batch.

    If ``split``, ``validation`` or ``statistics`` is None, the papers' choice for the data set is used.

    Args:
        name: Name of the data set.
        folder: A folder with the hub's files, with ``split/class/image`` files, or with ``train*.npz`` and ``test*.npz``
            parts that contain ``images`` (N, H, W, 3) uint8 and ``labels``; None downloads from the hub.
        split: The rule that selects the validation images from the training images, as in ``split_rows``.
        split_seed: Seed of this rule; 1 in Mukhoti et al.'s code, and 101 … in Wang et al.'s code.
        validation: Number of validation images.
        statistics: Name of the mean and standard deviation that normalise the channels.
        augment: Whether training images are cropped and mirrored at random.
        train: Number of training images to use, drawn by the seed; None uses all.
    """

    outside = (*DataSet.outside, *get_args(Corrupted), *SMALL)

    name: Text
    folder: Path | None = None
    split: Literal["mukhoti", "wang", "plain", "per-class"] | None = None
    split_seed: Annotated[Natural, Field(lt=2**32)] = 1  # the limit of NumPy's legacy generator
    validation: Size | None = None
    statistics: Literal["cifar10", "cifar100", "imagenet"] | None = None
    augment: Flag = True
    train: Size | None = None

    def sizes(self) -> dict[str, Any]:
        """Return the sizes."""
        source = SOURCES[self.name]
        return {"classes": source.classes, "inputs": 3 * source.size**2}

    def load(self, *, seed: int, fold: int) -> Fold:
        """Return the splits.

        Raises:
            InputError: If there are fewer images than requested.
            FileFormatError: If there are no such files.
        """
        source = SOURCES[self.name]
        mean, deviation = STATISTICS[self.statistics or source.statistics]
        prepare = partial(normalised, mean=mean, deviation=deviation)
        (whole, labels, classes), (test, _, _) = (self._read(split, prepare) for split in ("train", "test"))
        rule, count = self.split or source.rule, self.validation or source.validation
        fit, held = split_rows(len(labels), validation=count, rule=rule, seed=self.split_seed, labels=labels)
        fit = draw_rows(fit, self.train, seed=seed, what=f"train images of {self.name} (those not for validation)")
        black = (-mean[0] / deviation[0], -mean[1] / deviation[1], -mean[2] / deviation[2])
        crops = self.augment and self.name != "imagenet"  # ImageNet is cropped while it is decoded
        sizes = {**self.sizes(), "classes": classes}
        return Fold(whole[fit], whole[held], test, sizes, augment=CropAndFlip(PAD, black) if crops else None)

    def _read(self, split: str, prepare: Prepare) -> tuple[Any, Indices, int]:
        """Return a split, its labels (N,) and the number of classes K."""
        place = None if self.folder is None else str(data_folder(self.folder, name=self.name))
        if self.name == "imagenet":
            raw = raw_split(SOURCES[self.name], split, place)
            labels = torch.from_numpy(raw.labels)
            lazy = LazyImages(raw, np.arange(len(raw)), labels, SOURCES[self.name].size, self.augment, prepare)
            return lazy, raw.labels, raw.classes
        pixels, found = read_images(self.name, split, place)
        images = TensorSplit(torch.from_numpy(pixels), torch.from_numpy(found), prepare)
        return images, found, SOURCES[self.name].classes


@lru_cache(maxsize=4)
def read_images(name: str, split: str, folder: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the images (N, H, W, 3) uint8 and labels (N,) int64 of a split."""
    source = SOURCES[name]
    parts = sorted(Path(folder).glob(f"{split}*.npz")) if folder is not None else []
    if parts:
        read = [_read_shard(part, source) for part in parts]
        return np.concatenate([pixels for pixels, _ in read]), np.concatenate([labels for _, labels in read])
    raw = raw_split(source, split, folder)
    size = (source.size, source.size)
    with ThreadPoolExecutor(DECODERS) as pool:  # decoding releases the interpreter's lock
        images = pool.map(lambda row: np.asarray(raw.image(row).resize(size), dtype=np.uint8), range(len(raw)))
        pixels = np.empty((len(raw), *size, 3), dtype=np.uint8)
        for row, image in enumerate(images):
            pixels[row] = image
    return pixels, raw.labels


def _read_shard(part: Path, source: HubSource) -> tuple[np.ndarray, np.ndarray]:
    """Return the images (N, H, W, 3) and labels (N,) in one ``.npz`` file.

    Raises:
        FileFormatError: If the file does not contain such arrays.
    """
    arrays, side = read_arrays(part), source.size
    pixels, labels = (arrays.get(name, np.empty(0)) for name in ("images", "labels"))
    whole = labels.ndim == 1 and labels.dtype.kind in "iu" and len(labels)
    if not whole or pixels.dtype != np.uint8 or pixels.shape != (len(labels), side, side, 3):
        got = ", ".join(f"{name} {array.shape} {array.dtype}" for name, array in arrays.items())
        wanted = f"images (N, {side}, {side}, 3) uint8 and labels (N,) of whole numbers in {part}, N ≥ 1"
        raise FileFormatError(wanted, got, "rename or convert them")
    return pixels, check_image_labels(labels.astype(np.int64), source.classes, str(part))
