"""Frozen features of images and texts: networks on them train in seconds.

Features are computed once, without labels, and kept in a file with the digest of its content. Every seed draws its own training,
validation and test rows from one pool, so that a difference over seeds holds beyond one test set, not beyond the pool.
"""

import hashlib
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from calibrant._core.check import refuse
from calibrant._core.files import read_arrays, write_arrays
from calibrant._core.paths import make_folder, shown
from calibrant.errors import FileFormatError, optional
from calibrant.study._checks import Size
from calibrant.study.data._split import DataSet, Fold, Place, TensorSplit, data_folder, need_named_rows
from calibrant.study.data.images import SOURCES, read_images
from calibrant.study.data.text import read_newsgroups

Array = npt.NDArray[Any]

# Draws of rows and of patches are independent of others with the same seed.
DRAW_STREAM, PATCH_STREAM = 20260104, 20260105
SIDE = 6  # pixels of a patch's side, the best of those that Coates et al. tried
SAMPLES = 50_000  # patches from which the whitening is estimated: 460 for each of its 108 dimensions
# They regularise the division by a patch's deviation and by an eigenvalue (Coates & Ng 2012, §3.1).
CONTRAST, WHITENING = 10.0, 0.1
THRESHOLD = 0.25  # of the soft threshold that makes responses sparse (Coates & Ng 2011, §4)
COMPONENTS = 1024  # principal components that are kept in the cache, from which a recipe takes the first
BLOCK = 8  # images whose responses, 729 × patches each, stay in the processor's cache
MOST_WORDS = 50_000  # of the vocabulary behind TF-IDF, by document frequency


@dataclass(frozen=True)
class FeaturePool:
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
class Features(DataSet):
    """Features that are computed once, from which each seed draws its own rows."""

    folder: Place
    cache: Place | None = None
    size: Size = 512
    train: Size = 10_000
    validation: Size = 5_000
    test: Size | None = 5_000

    @abstractmethod
    def features(self) -> FeaturePool:
        """Return the features, from the cache if they are there."""

    def load(self, *, seed: int, fold: int) -> Fold:
        """Return rows that the seed draws.

        Raises:
            InputError: If there are too few.
            FileFormatError: If there are no such data, or the cache cannot be written or has changed.
        """
        found, used = self.features(), self.train + self.validation
        rng = np.random.default_rng([DRAW_STREAM, seed])
        order, held = (rng.permutation(np.flatnonzero(found.test == kind)) for kind in (False, True))
        if not len(held):
            held, order = order[used:], order[:used]
        test = len(held) if self.test is None else self.test
        need_named_rows(used, len(order), what="train + validation rows")
        need_named_rows(test, len(held), what="test rows")
        whole = TensorSplit(torch.from_numpy(found.inputs), torch.from_numpy(found.labels))
        fit, rest = order[: self.train], order[self.train : used]
        return Fold(whole[fit], whole[rest], whole[held[:test]], self.sizes(), digest=found.digest)


@dataclass(frozen=True)
class ImageFeatures(Features):
    """Images as responses to random whitened patches, pooled over quadrants and projected on principal components.

    Each patch of 6×6 pixels is standardised and whitened; its responses to ``patches`` patches drawn at random pass a two-sided
    soft threshold and are averaged over the four quadrants of the image. No label is used.

    Args:
        folder: Folder of the images.
        cache: Folder in which features are kept; None is ``calibrant/features`` in the user's cache.
        size: Number of principal components, at most 1,024.
        train: Number of training rows.
        validation: Number of validation rows.
        test: Number of test rows, drawn from the test images.
        name: ``"features-cifar10"`` or ``"features-cifar100"``.
        patches: Number of filters.
        pool: Training images from which training and validation rows are drawn.

    References:
        Coates, Ng & Lee 2011; Coates & Ng 2011, The importance of encoding versus training with sparse coding.
    """

    name: str = "features-cifar10"
    patches: Size = 400
    pool: Size = 25_000

    @property
    def source(self) -> str:
        """Name of the images."""
        return self.name.removeprefix("features-")

    def __post_init__(self) -> None:
        if self.size > (most := min(8 * self.patches, COMPONENTS)):
            remedy = "lower it" if most == COMPONENTS else "raise patches or lower it"
            raise refuse(f"size in 1 … {most}", f"{self.size}", remedy)

    def sizes(self) -> dict[str, Any]:
        """Return the sizes."""
        return {"classes": SOURCES[self.source].classes, "inputs": self.size}

    def features(self) -> FeaturePool:
        """Return the first ``size`` components."""
        place = data_folder(self.folder, name=self.source)

        def compute() -> tuple[Array, Array, Array]:
            fit, fit_labels = read_images(self.source, "train", str(place))
            held, held_labels = read_images(self.source, "test", str(place))
            rows = np.sort(np.random.default_rng(PATCH_STREAM).permutation(len(fit))[: self.pool])
            inputs = patch_responses(fit[rows], held, patches=self.patches)
            return inputs, np.concatenate([fit_labels[rows], held_labels]), np.arange(len(inputs)) >= len(rows)

        found = _cached(self.cache, {"source": self.source, "patches": self.patches, "pool": self.pool}, place, compute)
        inputs = found.inputs[:, : self.size]
        return replace(found, inputs=inputs / inputs[~found.test].std())


@dataclass(frozen=True)
class TextFeatures(Features):
    """20 Newsgroups as TF-IDF of words, projected on singular vectors, or as hashed n-grams of words.

    Args:
        folder: As for words.
        cache: As for images.
        size: Number of singular vectors, or of hash buckets.
        train: Number of training rows.
        validation: Number of validation rows.
        test: Number of test rows; None is all that are left.
        kind: ``"tfidf"`` or ``"hashed"`` (words and pairs of words).
        split: ``"random"``, as in Mukhoti et al.'s code, or ``"date"``: test rows from the later texts.
        headers: Whether a text's header, up to its first empty line, is kept.
    """

    outside = ()

    size: Size = 300
    validation: Size = 900
    test: Size | None = None
    kind: Literal["tfidf", "hashed"] = "tfidf"
    split: Literal["random", "date"] = "random"
    headers: bool = False

    def sizes(self) -> dict[str, Any]:
        """Return the sizes."""
        return {"classes": 20, "inputs": self.size}

    def features(self) -> FeaturePool:
        """Return the vectors."""

        def compute() -> tuple[Array, Array, Array]:
            texts, labels, count = read_newsgroups(self.folder, headers=self.headers)
            test_rows = (np.arange(len(texts)) >= count) & (self.split == "date")
            return _text_vectors(texts, size=self.size, kind=self.kind), labels, test_rows

        described = {name: getattr(self, name) for name in ("size", "kind", "split", "headers")}
        place = data_folder(self.folder, name="20news")
        return _cached(self.cache, {"source": "20news", **described}, place, compute)


def patch_responses(fit: Array, held: Array, *, patches: int) -> Array:
    """Return principal components (N + M, ≤ 1024) of the responses of images (N, H, W, 3) uint8 and (M, H, W, 3).

    All statistics are those of ``fit``.
    """
    rng = np.random.default_rng(PATCH_STREAM)
    sample, filters = (_standardised(_random_patches(fit, count, rng)) for count in (SAMPLES, patches))
    values, vectors = torch.linalg.eigh(sample.T @ sample / SAMPLES)  # patches have mean 0, and about 0 over patches
    whiten = vectors @ torch.diag((values + WHITENING).rsqrt()) @ vectors.T  # ZCA: stays closest to the pixels
    filters = filters @ whiten
    # (W x)ᵀ f = xᵀ (W f): the whitening moves into the filters, as does the mean of x, which filters of mean 0 do not see
    filters = filters / filters.norm(dim=1, keepdim=True) @ whiten
    filters = filters - filters.mean(dim=1, keepdim=True)
    kernels = filters.float().reshape(patches, SIDE, SIDE, 3).permute(0, 3, 1, 2).contiguous()
    blocks = [block for part in (fit, held) for block in torch.from_numpy(part).split(BLOCK)]
    raw = torch.cat([_quadrant_responses(block, kernels) for block in blocks])
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


def _quadrant_responses(images: torch.Tensor, kernels: torch.Tensor) -> torch.Tensor:
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
    with optional("scikit-learn", extra="study"):
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
    if kind == "hashed":
        found = HashingVectorizer(n_features=size, ngram_range=(1, 2)).transform(texts).toarray()
    else:
        counts = TfidfVectorizer(sublinear_tf=True, max_features=MOST_WORDS, min_df=2).fit_transform(texts)
        found = TruncatedSVD(size, random_state=0).fit_transform(counts)
    return (found / found.std()).astype(np.float32)


def _cached(
    cache: Path | None, described: Mapping[str, Any], source: Path, compute: Callable[[], tuple[Array, Array, Array]]
) -> FeaturePool:
    """Return features from the cache, or compute and keep them there; the name says what they were computed from."""
    key = hashlib.sha256(repr(sorted(described.items())).encode())
    for path in sorted(source.rglob("*")):
        if path.suffix in (".parquet", ".npz") and path.name.startswith(("train", "test")):
            key.update(f"{path.relative_to(source)} {path.stat().st_size}".encode())
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "calibrant" / "features"
    file = (cache or usual) / f"{described['source']}-{key.hexdigest()[:16]}.npz"
    if not file.is_file():
        # before features are computed for minutes
        make_folder(file.parent, what="folder for features", remedy="set cache in [data]")
        inputs, labels, test = compute()
        digest = np.array(_digest_of_pool(inputs, labels, test))
        write_arrays(file, {"inputs": inputs, "labels": labels, "test": test.astype(np.int8), "digest": digest})
    found = file.stat()
    return _pool_from_cache(file, (found.st_mtime_ns, found.st_size))


@lru_cache(maxsize=2)
def _pool_from_cache(path: Path, stamp: tuple[int, int]) -> FeaturePool:
    arrays = read_arrays(path)
    parts = [arrays.get(name, np.empty(0)) for name in ("inputs", "labels", "test")]
    digest = _digest_of_pool(*parts)
    if str(arrays.get("digest")) != digest:
        wanted = f"the features of {shown(path)} as they were computed"
        raise FileFormatError(wanted, "others: the file has changed", "delete it")
    inputs, labels, test = parts
    return FeaturePool(inputs.astype(np.float32), labels.astype(np.int64), test.astype(bool), digest)


def _digest_of_pool(inputs: Array, labels: Array, test: Array) -> str:
    found = hashlib.sha256()
    for array in (inputs, labels, test.astype(np.int8)):
        found.update(repr((array.shape, array.dtype.str)).encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()
