"""Frozen features of images and texts, and arrays of the user's own: networks on them train in seconds.

Features are computed once, without labels, and kept in a file with the digest of its content. Every seed draws its own training,
validation and test rows, so that a difference over seeds holds beyond one test set.
"""

import hashlib
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from calibrant._core.arguments import check_text
from calibrant._core.check import refuse
from calibrant._core.files import read_arrays, write_arrays
from calibrant._core.paths import as_path, shown
from calibrant.errors import FileFormatError, InputError, MissingExtraError
from calibrant.study.data._labelled_text import body_of, read_texts
from calibrant.study.data._requests import Record, check_only_fold, check_options, data_folder, options_from
from calibrant.study.data._split import Fold, TensorSplit
from calibrant.study.data.images import SOURCES, read_images
from calibrant.study.data.own import fold_of_function
from calibrant.study.resolve import imported

Array = npt.NDArray[Any]

DRAW_STREAM, PATCH_STREAM = (
    20260104,
    20260105,
)  # make draws of rows and of patches independent of others with the same seed
SIDE = 6  # pixels of a patch's side, the best of those that Coates et al. tried
SAMPLES = 50_000  # patches from which the whitening is estimated: 460 for each of its 108 dimensions
CONTRAST, WHITENING = (
    10.0,
    0.1,
)  # regularise the division by a patch's deviation and by an eigenvalue (Coates & Ng 2012, §3.1)
THRESHOLD = 0.25  # of the soft threshold that makes responses sparse (Coates & Ng 2011, §4)
COMPONENTS = 1024  # principal components that are kept in the cache, from which a recipe takes the first
BLOCK = 8  # images whose responses, 729 × patches each, stay in the processor's cache
MOST_WORDS = 50_000  # of the vocabulary behind TF-IDF, by document frequency


@dataclass(frozen=True)
class Pool:
    """Rows from which each seed draws its own.

    Args:
        inputs: (N, …) float32.
        labels: (N,) int64.
        test: (N,) whether test rows may be drawn from a row, the others being for training and validation; all False if any
            row may serve for either.
        digest: SHA-256 of the arrays, in hexadecimal digits.
    """

    inputs: Array
    labels: Array
    test: Array
    digest: str


@dataclass(frozen=True)
class ImageOptions:
    """Options of image features.

    Args:
        folder: Folder of the images.
        cache: Folder in which features are kept; None is ``calibrant/features`` in the user's cache.
        size: Number of principal components, at most 1,024.
        patches: Number of filters.
        pool: Training images from which training and validation rows are drawn.
        train: Number of training rows.
        validation: Number of validation rows.
        test: Number of test rows, drawn from the test images.
    """

    folder: str
    cache: str | None = None
    size: int = 512
    patches: int = 400
    pool: int = 25_000
    train: int = 10_000
    validation: int = 5_000
    test: int = 5_000


def image_features(source: str, *, seed: int, fold: int, **options: Any) -> Fold:
    """Return images as responses to random whitened patches, pooled over quadrants and projected on principal components.

    Each patch of 6×6 pixels is standardised and whitened; its responses to ``patches`` patches drawn at random pass a two-sided
    soft threshold and are averaged over the four quadrants of the image. No label is used.

    Args:
        source: ``"cifar10"`` or ``"cifar100"``.
        seed: Draws training, validation and test rows.
        fold: 0.
        options: Fields of ``ImageOptions``.

    References:
        Coates, Ng & Lee 2011; Coates & Ng 2011, The importance of encoding versus training with sparse coding.
    """
    chosen = _checked(ImageOptions, options, name=f"features-{source}", seed=seed, fold=fold)
    if chosen.size > (most := min(8 * chosen.patches, COMPONENTS)):
        remedy = "lower it" if most == COMPONENTS else "raise patches or lower it"
        raise refuse(f"size in 1 … {most}", f"{chosen.size}", remedy)
    place = data_folder(chosen.folder, name=source)

    def compute() -> tuple[Array, Array, Array]:
        fit, fit_labels = read_images(source, "train", str(place))
        held, held_labels = read_images(source, "test", str(place))
        rows = np.sort(np.random.default_rng(PATCH_STREAM).permutation(len(fit))[: chosen.pool])
        inputs = patch_responses(fit[rows], held, patches=chosen.patches)
        return inputs, np.concatenate([fit_labels[rows], held_labels]), np.arange(len(inputs)) >= len(rows)

    found = _cached(chosen.cache, {"source": source, "patches": chosen.patches, "pool": chosen.pool}, place, compute)
    inputs = found.inputs[:, : chosen.size]
    found = replace(found, inputs=inputs / inputs[~found.test].std())
    return _draw(found, chosen, seed=seed, classes=SOURCES[source].classes)


@dataclass(frozen=True)
class TextOptions:
    """Options of text features.

    Args:
        folder: As for words.
        cache: As for images.
        size: Number of singular vectors, or of hash buckets.
        kind: ``"tfidf"`` or ``"hashed"`` (words and pairs of words).
        split: ``"random"``, as in Mukhoti et al.'s code, or ``"date"``: test rows from the later texts.
        headers: Whether a text's header, up to its first empty line, is kept.
        train: Number of training rows.
        validation: Number of validation rows.
        test: Number of test rows; None is all that are left.
    """

    folder: str
    cache: str | None = None
    size: int = 300
    kind: str = "tfidf"
    split: str = "random"
    headers: bool = False
    train: int = 10_000
    validation: int = 900
    test: int | None = None


def text_features(*, seed: int, fold: int, **options: Any) -> Fold:
    """Return 20 Newsgroups as TF-IDF of words, projected on singular vectors, or as hashed n-grams of words.

    Args:
        seed: Draws training, validation and test rows.
        fold: 0.
        options: Fields of ``TextOptions``.
    """
    chosen = _checked(TextOptions, options, name="features-20news", seed=seed, fold=fold)
    place = data_folder(chosen.folder, name="20news")

    def compute() -> tuple[Array, Array, Array]:
        parts = [read_texts(place, name, classes=20) for name in ("train", "test")]
        texts = [text if chosen.headers else body_of(text) for part, _ in parts for text in part]
        labels = np.concatenate([found for _, found in parts])
        test_rows = (np.arange(len(texts)) >= len(parts[0][0])) & (chosen.split == "date")
        return _text_vectors(texts, size=chosen.size, kind=chosen.kind), labels, test_rows

    described = {name: getattr(chosen, name) for name in ("size", "kind", "split", "headers")}
    return _draw(
        _cached(chosen.cache, {"source": "20news", **described}, place, compute), chosen, seed=seed, classes=20
    )


@dataclass(frozen=True)
class Counts:
    """Numbers of rows; None for test rows is all that are left."""

    train: int
    validation: int
    test: int | None


def array_features(
    *,
    seed: int,
    fold: int,
    files: str,
    train: int | None = None,
    validation: int | None = None,
    test: int | None = None,
) -> Fold:
    """Return arrays that a user saved.

    Args:
        seed: Draws training, validation and test rows.
        fold: 0.
        files: A ``.npz`` or ``.safetensors`` file with ``inputs`` (N, …), ``labels`` (N,) in 0 … K − 1, and possibly ``test`` (N,):
            1 for test rows, 0 for the others.
        train: Number of training rows; None is all that are left.
        validation: Number of validation rows; None is a tenth of those that are not test rows.
        test: Number of test rows; None is a fifth, or all with ``test`` = 1.
    """
    check_options({"seed": seed, "train": train, "validation": validation, "test": test})
    check_only_fold(fold)
    found = _pool_of(as_path(files, name="files"))
    classes = int(found.labels.max()) + 1
    rest = int((~found.test).sum())
    if test is None:
        test = int(found.test.sum()) or rest // 5
    rest -= 0 if found.test.any() else test
    validation = max(1, rest // 10) if validation is None else validation
    train = rest - validation if train is None else train
    return _draw(found, Counts(train, validation, test), seed=seed, classes=classes)


def own_data(*, seed: int, fold: int, module: str, **options: Any) -> Fold:
    """Return the data of a user's own function.

    Args:
        seed: Passed on.
        fold: Passed on.
        module: ``"module:function"``; it returns a ``Fold``, {"train": (x, y), "val": …, "test": …}, or inputs and labels
            of training, validation and test rows: three pairs. It is given ``seed`` and ``fold`` if it has such arguments.
        options: The other options of the recipe's data, passed on.
    """
    load = imported(check_text(module, name="module"), what="data")
    accepted = inspect.signature(load).parameters
    every = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in accepted.values())
    taken = {name: value for name, value in (("seed", seed), ("fold", fold)) if every or name in accepted}
    found = load(**taken, **options)
    if isinstance(found, Fold):
        return found
    if isinstance(found, Mapping):
        return fold_of_function(found, module)
    try:
        splits = [TensorSplit(torch.as_tensor(inputs), torch.as_tensor(labels).long()) for inputs, labels in found]
        train, validation, test = splits
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"a Fold or three pairs of inputs and labels from {module!r}",
            f"{type(found).__name__} ({error})",
            "return them",
        ) from error
    sizes = {"classes": int(max(int(split.labels.max()) for split in splits)) + 1, "inputs": train.inputs[0].numel()}
    return Fold(train, validation, test, sizes)


def _checked(record: type[Record], options: Mapping[str, Any], *, name: str, seed: int, fold: int) -> Record:
    check_options({"seed": seed, **options})
    check_only_fold(fold)
    return options_from(record, options, name=name)


def patch_responses(fit: Array, held: Array, *, patches: int) -> Array:
    """Return principal components (N + M, ≤ 1024) of the responses of images (N, H, W, 3) uint8 and (M, H, W, 3).

    All statistics are those of ``fit``.
    """
    rng = np.random.default_rng(PATCH_STREAM)
    sample, filters = (_standardised(_random_patches(fit, count, rng)) for count in (SAMPLES, patches))
    values, vectors = torch.linalg.eigh(
        sample.T @ sample / SAMPLES
    )  # patches have mean 0 each, and about 0 over patches
    whiten = vectors @ torch.diag((values + WHITENING).rsqrt()) @ vectors.T  # ZCA: stays closest to the pixels
    filters = filters @ whiten
    # (W x)ᵀ f = xᵀ (W f): the whitening moves into the filters, as does the mean of x, which filters of mean 0 do not see
    filters = filters / filters.norm(dim=1, keepdim=True) @ whiten
    filters = filters - filters.mean(dim=1, keepdim=True)
    kernels = filters.float().reshape(patches, SIDE, SIDE, 3).permute(0, 3, 1, 2).contiguous()
    blocks = [block for part in (fit, held) for block in torch.from_numpy(part).split(BLOCK)]
    raw = torch.cat([_pooled(block, kernels) for block in blocks])
    rows = raw[: len(fit)]
    raw = (raw - rows.mean(dim=0)) / rows.std(dim=0).clamp_min(1e-6)
    _, components = torch.linalg.eigh((raw[: len(fit)].T @ raw[: len(fit)]).double() / len(fit))
    found = raw @ components.flip(1)[:, :COMPONENTS].float()  # largest variance first
    return (found / found[: len(fit)].std()).numpy()  # one scale for all: whitening them would raise the noise


def _random_patches(images: Array, count: int, rng: np.random.Generator) -> torch.Tensor:
    """Return patches (``count``, SIDE · SIDE · 3) float64 from random places of random images."""
    limits = (len(images), images.shape[1] - SIDE + 1, images.shape[2] - SIDE + 1)
    places = zip(*(rng.integers(limit, size=count) for limit in limits), strict=True)
    return torch.from_numpy(np.stack([images[i, t : t + SIDE, c : c + SIDE].ravel() for i, t, c in places])).double()


def _standardised(patches: torch.Tensor) -> torch.Tensor:
    """Return patches (N, D) with mean 0 and about unit variance each, so that brightness and contrast do not matter."""
    centred = patches - patches.mean(dim=1, keepdim=True)
    return centred / (centred.square().mean(dim=1, keepdim=True) + CONTRAST).sqrt()


def _pooled(images: torch.Tensor, kernels: torch.Tensor) -> torch.Tensor:
    """Return responses (B, 8 × patches) of images (B, H, W, 3) to kernels of mean 0, averaged over quadrants."""
    pixels = images.permute(0, 3, 1, 2).float()  # (B, 3, H, W)
    mean = F.avg_pool2d(pixels, SIDE, stride=1).mean(dim=1, keepdim=True)  # of each patch: (B, 1, H', W')
    square = F.avg_pool2d(pixels.square(), SIDE, stride=1).mean(dim=1, keepdim=True)
    response = F.conv2d(pixels, kernels).div_((square - mean.square() + CONTRAST).sqrt_())  # (B, patches, H', W')
    signed = F.softshrink(response, THRESHOLD)
    # averages over quadrants as one product; the negative part needs no array of its own: (−s)₊ = s₊ − s
    quadrants = F.adaptive_avg_pool2d(torch.eye(signed.shape[2] * signed.shape[3]).reshape(-1, *signed.shape[2:]), 2)
    averages = quadrants.flatten(1)  # (H'W', 4)
    both = signed.flatten(2) @ averages  # (B, patches, 4)
    positive = signed.relu_().flatten(2) @ averages
    return torch.cat([positive, positive - both], dim=1).flatten(1)


def _text_vectors(texts: list[str], *, size: int, kind: str) -> Array:
    try:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
    except ImportError as error:
        raise MissingExtraError("scikit-learn", extra="study") from error
    if kind == "hashed":
        found = HashingVectorizer(n_features=size, ngram_range=(1, 2)).transform(texts).toarray()
    else:
        counts = TfidfVectorizer(sublinear_tf=True, max_features=MOST_WORDS, min_df=2).fit_transform(texts)
        found = TruncatedSVD(size, random_state=0).fit_transform(counts)
    return (found / found.std()).astype(np.float32)


def _cached(
    cache: str | None, described: Mapping[str, Any], source: Path, compute: Callable[[], tuple[Array, Array, Array]]
) -> Pool:
    """Return features from the cache, or compute and keep them there; the name says what they were computed from."""
    key = hashlib.sha256(repr(sorted(described.items())).encode())
    for path in sorted(source.rglob("*")):
        if path.suffix in (".parquet", ".npz") and path.name.startswith(("train", "test")):
            key.update(f"{path.relative_to(source)} {path.stat().st_size}".encode())
    file = _cache_folder(cache) / f"{described['source']}-{key.hexdigest()[:16]}.npz"
    if not file.is_file():
        try:  # before features are computed for minutes
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileFormatError(
                "a writable folder for features", f"{error.strerror!r} for {shown(file.parent)}", "set cache in [data]"
            ) from error
        inputs, labels, test = compute()
        digest = np.array(_digest(inputs, labels, test))
        write_arrays(file, {"inputs": inputs, "labels": labels, "test": test.astype(np.int8), "digest": digest})
    return _pool_of(file)


def _cache_folder(cache: str | None) -> Path:
    if cache is not None:
        return as_path(cache, name="cache")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "calibrant" / "features"


@lru_cache(maxsize=2)
def _read(path: Path, stamp: tuple[int, int]) -> Pool:
    arrays = read_arrays(path)
    if not {"inputs", "labels"} <= set(arrays):
        raise FileFormatError(
            f"the arrays inputs and labels in {shown(path)}", ", ".join(sorted(arrays)), "rename them"
        )
    inputs, labels = arrays["inputs"], arrays["labels"]
    test = arrays.get("test", np.zeros(len(labels), dtype=np.int8))
    if inputs.ndim < 2 or inputs.dtype.kind not in "fiu" or not np.isfinite(inputs).all():
        raise FileFormatError(
            f"finite inputs (N, …) in {shown(path)}", f"{inputs.shape} {inputs.dtype}", "convert them"
        )
    if (
        labels.ndim != 1
        or labels.dtype.kind not in "iu"
        or not len(labels) == len(inputs) == len(test)
        or labels.min() < 0
    ):
        raise FileFormatError(
            f"labels ({len(inputs)},) of whole numbers ≥ 0 in {shown(path)}",
            f"{labels.shape} {labels.dtype}",
            "convert them",
        )
    inputs, labels, test = inputs.astype(np.float32), labels.astype(np.int64), test.astype(bool)
    digest = _digest(inputs, labels, test)
    if "digest" in arrays and str(arrays["digest"]) != digest:
        raise FileFormatError(
            f"the features of {shown(path)} as they were computed", "others: the file has changed", "delete it"
        )
    return Pool(inputs, labels, test, digest)


def _pool_of(path: Path) -> Pool:
    try:
        found = path.stat()
    except OSError as error:
        raise FileFormatError("a file of features", f"no such file: {shown(path)}", "check the path") from error
    return _read(path, (found.st_mtime_ns, found.st_size))


def _digest(inputs: Array, labels: Array, test: Array) -> str:
    found = hashlib.sha256()
    for array in (inputs, labels, test.astype(np.int8)):
        found.update(repr((array.shape, array.dtype.str)).encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def _draw(pool: Pool, counts: ImageOptions | TextOptions | Counts, *, seed: int, classes: int) -> Fold:
    rng, used = np.random.default_rng([DRAW_STREAM, seed]), counts.train + counts.validation
    order, held = (rng.permutation(np.flatnonzero(pool.test == kind)) for kind in (False, True))
    if not len(held):
        held, order = order[used:], order[:used]
    test = len(held) if counts.test is None else counts.test
    for name, requested, found in (("train + validation", used, len(order)), ("test", test, len(held))):
        if not 0 < requested <= found:
            raise InputError(f"{name} in 1 … {found} rows", f"{requested}", "ask for fewer")
    whole = TensorSplit(torch.from_numpy(pool.inputs), torch.from_numpy(pool.labels))
    parts = (order[: counts.train], order[counts.train : used], held[:test])
    train, validation, tested = (whole[torch.from_numpy(rows)] for rows in parts)
    sizes = {"classes": classes, "inputs": int(np.prod(pool.inputs.shape[1:]))}
    return Fold(train, validation, tested, sizes=sizes, digest=pool.digest)
