"""Sentences and newsgroup texts as the tokens of a pretrained network: ``data = {name = "sst", tokenizer = "…"}``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import check_count
from calibrant._core.constraints import Count, Natural, Seed, checked
from calibrant._core.files import reason_of
from calibrant.errors import FileFormatError, InputError, MissingExtraError
from calibrant.study.data._labelled_text import read_texts
from calibrant.study.data._papers import split_rows
from calibrant.study.data._requests import check_only_fold, check_options, data_folder
from calibrant.study.data._split import Fold, TensorSplit
from calibrant.study.data.text import BINARY, leaves_of, roots_of

BRACKETS = {"-LRB-": "(", "-RRB-": ")"}


@dataclass(frozen=True)
class Trim:
    """Removes the columns of token ids (B, length) that are padding in all rows.

    Args:
        pad: Id of the padding token.
    """

    pad: int

    def __call__(self, ids: Tensor) -> Tensor:
        """Return ids (B, longest) int64."""
        used = (ids != self.pad).any(dim=0).nonzero()
        return ids[:, : int(used.max()) + 1 if len(used) else 1].long()


def sst_tokens(
    *, seed: int, fold: int, folder: str, tokenizer: str, length: int = 128, train: int | None = None
) -> Fold:
    """Return the sentences of the binary treebank, without their trees.

    Args:
        seed: Draws the training sentences if ``train`` is given.
        fold: 0.
        folder: As for the trees.
        tokenizer: A folder with a tokenizer's files, or a name on the hub.
        length: Number of tokens that are kept, from the beginning.
        train: Number of training sentences to use; None is all.

    Raises:
        InputError: If an option has an impossible value.
        FileFormatError: If there are no such files.
        MissingExtraError: If ``transformers`` is not installed.
    """
    check_options({"seed": seed, "fold": fold, "tokenizer": tokenizer, "length": length, "train": train})
    check_only_fold(fold)
    place = data_folder(folder, name="sst")
    parts: list[tuple[list[str], np.ndarray]] = []
    for name in ("train", "dev", "test"):
        roots = [root for root in roots_of(place, name) if root[0] in BINARY]
        texts = [" ".join(BRACKETS.get(word, word) for word in leaves_of(root)) for root in roots]
        parts.append((texts, np.asarray([BINARY[root[0]] for root in roots], dtype=np.int64)))
    if train is not None:
        rows = np.random.default_rng(seed).permutation(len(parts[0][0]))[:train]
        parts[0] = ([parts[0][0][row] for row in rows], parts[0][1][rows])
    return _tokenised(parts, tokenizer, length, classes=2)


@checked
def newsgroups_tokens(
    *,
    seed: Seed,
    fold: Natural,
    folder: str,
    tokenizer: str,
    length: Count = 256,
    validation: Natural = 900,
    train: Count | None = None,
) -> Fold:
    """Return 20 Newsgroups (bydate) as tokens; validation texts are drawn from the training ones.

    Args:
        seed: Draws the validation texts, and the training texts if ``train`` is given.
        fold: 0.
        folder: As for words.
        tokenizer: A folder with a tokenizer's files, or a name on the hub.
        length: Number of tokens that are kept, from the beginning.
        validation: Number of validation texts.
        train: Number of training texts to use; None is all.

    Raises:
        InputError: If an option has an impossible value.
        FileFormatError: If there are no such files.
        MissingExtraError: If ``transformers`` is not installed.
    """
    check_options({"seed": seed, "fold": fold, "tokenizer": tokenizer, "length": length, "train": train})
    check_options({"validation": validation})
    check_only_fold(fold)
    place = data_folder(folder, name="20news")
    texts, labels = read_texts(place, "train", classes=20)
    fit, held = split_rows(len(texts), validation=validation, rule="plain", seed=seed)
    fit = fit[:train] if train is not None else fit
    parts = [([texts[row] for row in rows], labels[rows]) for rows in (fit, held)]
    return _tokenised([*parts, read_texts(place, "test", classes=20)], tokenizer, length, classes=20)


def _tokenised(parts: Sequence[tuple[list[str], np.ndarray]], name: str, length: int, *, classes: int) -> Fold:
    check_count(length, name="length", low=2)  # the tokenizer adds a first and a last token
    tokenizer = _load(name)
    pad = tokenizer.pad_token_id
    splits = []
    for texts, labels in parts:
        encoded = tokenizer(texts, truncation=True, max_length=length, padding="max_length", return_tensors="np")
        ids = torch.from_numpy(np.asarray(encoded["input_ids"], dtype=np.int32))
        splits.append(TensorSplit(ids, torch.from_numpy(labels), prepare=Trim(pad)))
    sizes = {"classes": classes, "vocabulary": len(tokenizer), "padding": pad}
    return Fold(splits[0], splits[1], splits[2], sizes)


def _load(name: str) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingExtraError("transformers", extra="transformers") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # no folder, no network, broken files: the library raises many kinds
        raise FileFormatError("a tokenizer's folder or name", f"{name!r} ({reason_of(error)})", "check it") from error
    if tokenizer.pad_token_id is None:
        raise InputError("a tokenizer with padding", f"{name!r} without", "choose an encoder's, as BERT's")
    return tokenizer
