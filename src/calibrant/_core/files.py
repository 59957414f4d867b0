"""Arrays in files: read without executing anything, written whole or not at all.

Formats by suffix: ``.npz``, ``.safetensors`` (tables are ``data.formats``'s). Headers are checked against the bytes that are there, and
against the memory of this machine, before anything is unpacked.
"""

import hashlib
import importlib
import importlib.util
import io
import json
import os
import re
import shlex
import time
import zipfile
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from calibrant._core.memory import memory_limit
from calibrant._core.paths import as_path, atomic_write, check_source, shown
from calibrant.errors import CalibrantError, FileFormatError, InputError, Remedy

Array = npt.NDArray[Any]


class _Arrow:
    """PyArrow and its parts, ``pa.parquet`` too, imported when first used: who reads no table does not wait for it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what inspection asks of any object
            raise AttributeError(name)
        try:
            return getattr(importlib.import_module("pyarrow"), name)
        except AttributeError:  # a part that pyarrow does not import by itself
            return importlib.import_module(f"pyarrow.{name}")


pa: Any = _Arrow()
MEND_LINE = "complete that line, or put the cell that holds the separator in quotes"
SUFFIXES = (".npz", ".safetensors")
_COMPRESSED = (".gz", ".bz2", ".zst")
# times that a file may unpack to: LZ4, which .arrow and .feather have, reaches 255 on zeros alone, scores some ten
_UNPACKED = {**dict.fromkeys(_COMPRESSED, 250), ".arrow": 125, ".feather": 125}
_PATIENCE = 60  # seconds that a writer waits for another
_SEAL = "seal"  # the name of a sealed file's digest among its metadata


def read_arrays(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the named arrays of a ``.npz`` or ``.safetensors`` file.

    Raises:
        FileFormatError: If the file is missing, truncated, of another kind, holds pickled objects, or claims more
            data than the machine has memory for.
    """
    path = check_source(path, suffixes=SUFFIXES)
    try:
        return _read_npz(path) if path.suffix == ".npz" else _arrays_of(_read_whole(path))
    except FileFormatError:
        raise
    except MemoryError as error:
        raise FileFormatError(
            "arrays that fit in memory", f"more in {shown(path)}", "save them as .parquet, which is streamed"
        ) from error
    except Exception as error:  # the readers of two libraries: whatever they raise means that the file is broken
        raise broken(path, error) from error


def broken(path: Path, error: Exception) -> FileFormatError:
    """Return the error of a file that its reader cannot read."""
    suffix = next((one for one in reversed(path.suffixes) if one not in _COMPRESSED), path.suffix)
    # Arrow's words; read in parallel it does not know the line
    ragged = re.search(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+): (.{0,60})", str(error))
    if ragged is not None:
        line, wanted, found, text = ragged.groups()
        got = f"{found} in {f'line {line}' if line else f'the line {text!r}'}"
        return FileFormatError(f"{wanted} cells in each line of {shown(path)}", got, MEND_LINE)
    got = f"a broken or truncated one: {shown(path)} ({reason_of(error)})"
    return FileFormatError(f"a readable {suffix} file", got, "write it again")


def unpickled(path: Path, words: str) -> Remedy:
    """Return the remedy for pickled objects in a file of NumPy: on the command line what makes a file without them."""
    new = str(path.with_name(f"{path.stem}-plain.npz"))
    program = (
        f"import numpy; x = numpy.load({str(path)!r}, allow_pickle=True); x = x if hasattr(x, 'items') else x.item() if not x.shape "
        f"else {{{path.stem!r}: x}}; numpy.savez({new!r}, **{{k: numpy.array(numpy.asarray(v).tolist()) for k, v in x.items()}})"
    )
    command = f"{words}; if you trust who wrote it, run: python -c {shlex.quote(program)}"
    return Remedy(words, command=command, instead=(shown(path), new))


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a regular file in UTF-8.

    Raises:
        InputError: If ``path`` is no path.
        FileFormatError: If the file is missing, a pipe or device, not readable, or not UTF-8.
    """
    place = check_source(path)
    try:
        return place.read_text(encoding="utf-8-sig")  # without the mark that some editors put first
    except OSError as error:
        raise FileFormatError(
            "a readable file", f"{error.strerror or reason_of(error)!r} for {shown(place)}", "check it"
        ) from error
    except UnicodeDecodeError as error:
        raise FileFormatError(
            "text in UTF-8",
            f"the byte {error.object[error.start]:#04x} at place {error.start} of {shown(place)}",
            "save it as UTF-8",
        ) from error


def reason_of(error: Exception) -> str:
    """Return what another library's error says, in one line of at most 160 characters."""
    return " ".join(str(error).split())[:160] or type(error).__name__


@contextmanager
def error_boundary(
    expected: str,
    got: str,
    remedy: str | Remedy,
    *,
    kind: type[CalibrantError] = FileFormatError,
    caught: type[Exception] | tuple[type[Exception], ...] = Exception,
) -> Iterator[None]:
    """Raise what other code raises in the block as an error of ours, whose ``got`` ends in the reason; our own errors pass."""
    try:
        yield
    except CalibrantError:
        raise
    except caught as error:
        raise kind(expected, f"{got} ({reason_of(error)})", remedy) from error


def write_arrays(
    path: str | os.PathLike[str], arrays: Mapping[str, Array], *, metadata: Mapping[str, str] | None = None
) -> None:
    """Write named arrays to ``path`` in the format of its suffix, one of ``SUFFIXES``, atomically."""
    path = as_path(path)
    with atomic_write(path) as file:
        if path.suffix == ".npz":
            _write_npz(file, arrays)
        else:
            from safetensors.numpy import save

            contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}  # keeps the shape ()
            file.write(_with_sorted_header(save(contiguous, metadata=dict(metadata) if metadata else None)))


def write_sealed(
    path: str | os.PathLike[str], arrays: Mapping[str, Array], *, metadata: Mapping[str, str], what: str
) -> None:
    """Write ``what`` as one ``.safetensors`` file with a digest of all of it, atomically.

    Raises:
        InputError: If the path does not end in .safetensors.
    """
    place = as_path(path)
    if place.suffix != ".safetensors":
        raise InputError(f"a path of {what} that ends in .safetensors", f"{shown(place)!r}", "rename it")
    write_arrays(
        place, arrays, metadata={**metadata, _SEAL: hash_arrays(json.dumps(dict(metadata), sort_keys=True), arrays)}
    )


def read_sealed(
    path: str | os.PathLike[str], *, format: str, what: str, former: Set[str]
) -> tuple[dict[str, Array], dict[str, str]]:
    """Return arrays and metadata of a file of ``format`` that ``write_sealed`` wrote.

    Both come from one reading, so that a writer who replaces the file meanwhile is not seen half. A file of before version
    1.0 has no seal and no more than the metadata ``former``; who reads it checks what it has instead.

    Raises:
        FileFormatError: If it is missing, of another format, or not as it was written.
    """
    place = as_path(path)
    if place.suffix != ".safetensors":
        raise FileFormatError(f"{what} (.safetensors)", shown(place), f"name {what} first, then other files")
    content = _read_whole(check_source(place))
    try:
        length = int.from_bytes(content[:8], "little")
        metadata = dict(json.loads(content[8 : 8 + length]).get("__metadata__", {}))
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise broken(place, error) from error
    if metadata.get("format") != format:
        raise FileFormatError(what, f"another kind of file: {shown(place)}", "make it with save")
    # the library's own errors share no public base class
    with error_boundary(f"{what}, whole", f"a broken one: {shown(place)}", "restore it from a copy"):
        arrays = _arrays_of(content)
        seal = metadata.pop(_SEAL, None)
        known = metadata.keys() <= {"format", *former}
        if seal != hash_arrays(json.dumps(metadata, sort_keys=True), arrays) if seal else not known:
            raise ValueError("its content is not what was saved")
    return arrays, metadata


@contextmanager
def one_writer(path: str | os.PathLike[str]) -> Iterator[None]:
    """Keep other processes from changing ``path`` between the reading of its content and the writing of the next.

    The lock is on the folder, so that no file is left beside the state, and the system takes it back when a process ends,
    however it ends. Windows knows no such lock: there, who writes at the same time must take turns.

    Raises:
        FileFormatError: If another process has it for ``_PATIENCE`` seconds, or there is no such folder.
    """
    if importlib.util.find_spec("fcntl") is None:
        yield
        return
    import fcntl

    # of the file itself, whatever link leads to it
    place, end = Path(os.path.realpath(as_path(path))), time.monotonic() + _PATIENCE
    try:
        folder = os.open(place.parent, os.O_RDONLY)
    except OSError as error:
        raise FileFormatError(
            "a folder to write in", f"{error.strerror or reason_of(error)!r} for {shown(place.parent)}", "check it"
        ) from error
    try:
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > end:
                    expected, got = f"{shown(place)} free to be written", f"another process in it for {_PATIENCE} s"
                    raise FileFormatError(expected, got, "wait for that, and repeat") from error
                time.sleep(0.02)
        yield
    finally:
        os.close(folder)


def hash_arrays(head: str, arrays: Mapping[str, Array]) -> str:
    """Return a hash of a text and of every name, shape and number: whichever bit changes is noticed."""
    found = hashlib.sha256(head.encode())
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _write_npz(file: IO[bytes], arrays: Mapping[str, Array]) -> None:
    """Write a compressed ``.npz``; ``numpy.savez`` takes names as keywords, so arrays called file or allow_pickle collide."""
    with zipfile.ZipFile(file, "w", compression=zipfile.ZIP_DEFLATED, allowZip64=True) as archive:
        for name, values in arrays.items():
            # a fixed time of each member: the same arrays give the same bytes
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(values), allow_pickle=False)


def _with_sorted_header(content: bytes) -> bytes:
    """Return a safetensors file with its header's names in order: the library writes metadata in an order of chance."""
    length = int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8 : 8 + length]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # the arrays that follow stay aligned
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def refuse_beyond_memory(size: int, path: Path) -> None:
    """Refuse a file of more bytes than half of the memory, or that a small file unpacks to: no scores are so alike.

    A GiB is always read. Compressed text of scores takes some ten times its size in memory, as JSON a hundred times.

    Args:
        size: Bytes of memory that its content takes.
        path: The file, or folder.

    Raises:
        FileFormatError: Naming both sizes.
    """
    most, whose = memory_limit() // 2, "half of the memory this process may use"
    times = _UNPACKED.get(path.suffix.lower(), 1000)
    if path.is_file() and max(1 << 30, times * path.stat().st_size) < most:
        most, whose = max(1 << 30, times * path.stat().st_size), f"1 GiB, or {times:,} times the file"
    if size > most:
        raise FileFormatError(
            f"data of at most {most >> 20:,} MiB ({whose})",
            f"{size >> 20:,} MiB in {shown(path)}",
            "write tables as a folder of .parquet files, which is streamed",
        )


def _read_npz(path: Path) -> dict[str, Array]:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        refuse_beyond_memory(sum(member.file_size for member in members), path)
        names = [member.filename for member in members]
        if len(set(names)) != len(names):
            raise FileFormatError("distinct names", f"a repeated one in {shown(path)}", "write the file again")
        return {
            member.filename.removesuffix(".npy"): np.lib.format.read_array(
                io.BytesIO(archive.read(member)), allow_pickle=False
            )
            for member in members
            if _holds_numbers(archive, member, path)
        }


def _holds_numbers(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> bool:
    """Return whether a member is an array as its header says, or one pickled object, such as a dict of settings, which stays unread."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
        if read is None:
            raise FileFormatError("npy version 1 or 2", f"{version} in {shown(path)}", "write it with numpy.savez")
        shape, _, dtype = read(file)
        if dtype.hasobject and not shape:
            return False
        if dtype.hasobject:
            raise FileFormatError(
                "plain numeric arrays",
                f"pickled objects in {member.filename!r} of {shown(path)}",
                unpickled(path, "save arrays of numbers (nothing is ever executed on load)"),
            )
        expected = int(np.prod([int(s) for s in shape], dtype=object)) * dtype.itemsize
        there = member.file_size - file.tell()
        if expected != there:
            raise FileFormatError(
                f"{expected} bytes for shape {shape}",
                f"{there} in {member.filename!r} of {shown(path)}",
                "write it again",
            )
    return True


def _read_whole(path: Path) -> bytes:
    refuse_beyond_memory(path.stat().st_size, path)
    return path.read_bytes()


def _arrays_of(content: bytes) -> dict[str, Array]:
    """Return the arrays of a safetensors file; formats of 8 bits and bfloat16, which NumPy lacks, as float32."""
    from safetensors.torch import load

    tensors = load(content)
    return {
        name: (
            tensor.float()
            if (tensor.dtype.is_floating_point and tensor.dtype.itemsize < 2) or str(tensor.dtype) == "torch.bfloat16"
            else tensor
        ).numpy()
        for name, tensor in tensors.items()
    }


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the text metadata of a ``.safetensors`` file.

    Raises:
        FileFormatError: If it is missing or broken.
    """
    from safetensors import safe_open

    place = check_source(path)
    try:
        with safe_open(place, framework="np") as file:
            return dict(file.metadata() or {})
    except Exception as error:  # the library's own errors share no public base class
        raise broken(place, error) from error
