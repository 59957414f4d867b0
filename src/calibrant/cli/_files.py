"""``-`` as a file name: stdin is read to its end, its format told by its first bytes; stdout is written at the end."""

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from calibrant._places import check_folder, check_target, same_file, shown
from calibrant.errors import FileFormatError, InputError

STREAM = "-"


@contextmanager
def readable(name: str) -> Iterator[str]:
    """Give a path to read for ``name``: itself, or what stands on stdin if it is ``-``."""
    if name != STREAM:
        yield name
        return
    content = sys.stdin.buffer.read()
    if not content:
        raise FileFormatError("expected predictions on stdin, got nothing; pipe a file of predictions")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "stdin" + _suffix(content))
        path.write_bytes(content)
        yield str(path)


@contextmanager
def writable(name: str, *, suffix: str, inputs: Sequence[str] = ()) -> Iterator[str]:
    """Give a path to write for ``name``: itself, or a file that goes to stdout when the block has ended without error.

    Raises:
        InputError: Before the block if ``name`` is one of the ``inputs``.
        FileFormatError: Before the block if ``name`` cannot be written, so that no work is done in vain.
    """
    if name != STREAM:
        check_target(name, inputs=[place for place in inputs if place != STREAM])
        yield name
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "stdout" + suffix)
        yield str(path)
        sys.stdout.buffer.write(path.read_bytes())
        sys.stdout.buffer.flush()


def check_outputs(*files: Path | None, folder: Path | None = None, inputs: Sequence[str] = ()) -> None:
    """Refuse places that cannot be written, before any work is done and before any other file is.

    Args:
        files: Files to write; None is left out.
        folder: A folder to write into, made where it is missing.
        inputs: Files that the command reads.

    Raises:
        InputError: For an input, for one file twice, or a file in the folder's place.
        FileFormatError: For a place without its folder, or without the permission to write there.
    """
    places = [check_target(path, inputs=inputs) for path in files if path is not None]
    resolved = [os.path.realpath(place) for place in places]
    for index, place in enumerate(places):
        if any(same_file(place, other) for other in places[:index]) or resolved[index] in resolved[:index]:
            raise InputError(f"expected an output a file, got {shown(place)} twice; name two")
    if folder is not None:
        check_folder(folder)


def _suffix(content: bytes) -> str:
    """Return the suffix of what the first bytes say: the formats' own marks, else text with commas or tabs."""
    if content.startswith(b"PK"):
        return ".npz" if b".npy" in content[:200] else ".pt"
    for mark, suffix in (
        (b"PAR1", ".parquet"),
        (b"ARROW1", ".arrow"),
        (b"\x93NUMPY", ".npy"),
        (b"{", ".jsonl"),
        (b"[", ".json"),
    ):
        if content.startswith(mark):
            return suffix
    if content[8:9] == b"{":
        return ".safetensors"
    line = content.split(b"\n", 1)[0]
    if b"\t" in line:
        return ".tsv"
    return ".csv" if b"," in line else ".safetensors"
