"""Small files of every data set of the studies, so that the matrix of wrong arguments can read real ones."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.study import data

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film")
TEXTS = 1000  # more than the 900 that are validated on


@cache
def treebank() -> Path:
    """Return a folder with the three files of the treebank."""
    folder = Path(tempfile.mkdtemp())
    for name in ("train", "dev", "test"):
        (folder / f"{name}.txt").write_text("(4 (3 good) (2 film))\n(0 (1 bad) (2 film))\n" * 6)
    return folder


@cache
def newsgroups() -> Path:
    """Return a folder with training and test texts."""
    import pyarrow
    import pyarrow.parquet

    folder = Path(tempfile.mkdtemp())
    table = pyarrow.table({"text": ["good film", "bad film"] * (TEXTS // 2), "label": [0, 1] * (TEXTS // 2)})
    for name in ("train", "test"):
        pyarrow.parquet.write_table(table, folder / f"{name}.parquet")
    return folder


@cache
def cifar10() -> Path:
    """Return a folder with a few images."""
    folder = Path(tempfile.mkdtemp())
    for name in ("train", "test"):
        np.savez(folder / f"{name}.npz", images=np.zeros((60, 32, 32, 3), np.uint8), labels=np.arange(60) % 10)
    return folder


@cache
def tokenizer() -> str:
    """Return a folder with a small tokenizer."""
    import transformers

    folder = Path(tempfile.mkdtemp())
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt"), do_lower_case=True).save_pretrained(folder)
    return str(folder)


def images(
    name: Any,
    *,
    seed: Any,
    fold: Any,
    folder: Any = None,
    split: Any = None,
    split_seed: Any = 1,
    validation: Any = 20,
    statistics: Any = None,
    augment: Any = True,
    train: Any = None,
    test: Any = None,
) -> data.Fold:
    """Return an image data set from the folder above; each option that ``images`` passes on has a name here."""
    options = {"split": split, "split_seed": split_seed, "validation": validation, "statistics": statistics}
    options |= {"augment": augment, "train": train, "test": test}
    return data.images(name, seed=seed, fold=fold, folder=cifar10() if folder is None else folder, **options)
