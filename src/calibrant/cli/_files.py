"""``-`` as a file name: stdin is read to its end, its format told by its first bytes; stdout is written at the end."""

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

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
        raise FileFormatError("expected predictions on stdin, got nothing; pipe a .npz, .safetensors or .parquet file")
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
        _check_writable(Path(name), inputs)
        yield name
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "stdout" + suffix)
        yield str(path)
        sys.stdout.buffer.write(path.read_bytes())
        sys.stdout.buffer.flush()


def _check_writable(path: Path, inputs: Sequence[str]) -> None:
    if path.resolve() in {Path(name).resolve() for name in inputs if name != STREAM}:
        raise InputError(f"expected an output other than the input, got {path} for both; choose another output")
    reason = "no such folder" if not path.parent.is_dir() else "no permission to write there"
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise FileFormatError(f"expected a writable place, got {reason} for {path}; choose another output")


def check_outputs(*files: Path | None, folder: Path | None = None) -> None:
    """Refuse places that cannot be written, before any work is done and before any other file is.

    Args:
        files: Files to write; None is left out.
        folder: A folder to write into, made where it is missing.

    Raises:
        InputError: For a folder in a file's place, or a file in the folder's.
        FileFormatError: For a place without its folder, or without the permission to write there.
    """
    for path in files:
        if path is not None and path.is_dir():
            raise InputError(f"expected a file to write, got the folder {path}; name a file inside it")
        if path is not None:
            _check_writable(path, ())
    if folder is None:
        return
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise InputError(f"expected a folder to write into, got {folder} where {there} is a file; name a folder")
    if not os.access(there, os.W_OK):
        raise FileFormatError(
            f"expected a writable place, got no permission to write in {there}; choose another folder"
        )


def _suffix(content: bytes) -> str:
    if content.startswith(b"PK"):
        return ".npz"
    if content.startswith(b"PAR1"):
        return ".parquet"
    return ".safetensors"
