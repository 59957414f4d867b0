"""Word vectors from a GloVe text file: one word and its numbers per line."""

import math
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import FileFormatError

MISSING = (-0.05, 0.05)  # mean and standard deviation of random vectors for other words, as in Mukhoti et al.'s code


def read_glove(path: Path, *, words: Set[str]) -> dict[str, list[float]]:
    """Return the vectors of those ``words`` that are in the file.

    Args:
        path: A text file such as glove.840B.300d.txt; a word may contain spaces.
        words: The words to read, in the file's case.

    Raises:
        FileFormatError: If there is no such file, or a line does not have a word and as many numbers as the first line.
    """
    if not path.is_file():
        raise FileFormatError("a file of word vectors", f"no such file: {path}", "check the path")
    found: dict[str, list[float]] = {}
    numbers = 0
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for place, line in enumerate(file, start=1):
            numbers = numbers or line.rstrip().count(" ")
            word, *values = line.rstrip().rsplit(" ", numbers)
            if numbers < 2 or len(values) != numbers:
                raise _broken(path, place, numbers, f"{len(values)} numbers")
            if word in words:
                found[word] = _finite(values, path, place)
    if not numbers:
        raise FileFormatError("a word and its numbers per line", f"an empty file: {path}", "get it again")
    return found


def table_of(found: Mapping[str, Sequence[float]], words: Sequence[str], *, seed: int) -> Tensor:
    """Return vectors (1 + words, size), row 0 for unknown words; words without a vector get a random one.

    Args:
        found: The result of ``read_glove``.
        words: The words in order of their index, which counts from 1.
        seed: Draws the vectors of other words.

    Raises:
        FileFormatError: If no word was found.
    """
    if not found:
        raise FileFormatError("vectors for words of the trees", "none", "check the file's language and case")
    mean, deviation = MISSING
    size = len(next(iter(found.values())))
    table = np.random.default_rng(seed).normal(mean, deviation, (len(words) + 1, size))
    for place, word in enumerate(words, start=1):
        if word in found:
            table[place] = found[word]
    return torch.from_numpy(table.astype(np.float32))


def _finite(values: Sequence[str], path: Path, place: int) -> list[float]:
    try:
        numbers = [float(value) for value in values]
    except ValueError as error:
        raise _broken(path, place, len(values), str(error)) from error
    if not all(map(math.isfinite, numbers)):
        raise _broken(path, place, len(values), "NaN or infinity")
    return numbers


def _broken(path: Path, place: int, numbers: int, got: str) -> FileFormatError:
    expected = f"{numbers} numbers" if numbers >= 2 else "two numbers or more"
    return FileFormatError(
        f"a word and {expected} in line {place} of {path}", f"{got}", "get the file again, without a header"
    )
