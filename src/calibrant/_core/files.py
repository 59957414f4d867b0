"""Arrays in files: read without executing anything, written whole or not at all.

Formats by suffix: ``.npz``, ``.safetensors``, ``.parquet``. Headers are checked against the bytes that are there, and
against the memory of this machine, before anything is unpacked.
"""

import io
import json
import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from calibrant._core.memory import memory_limit
from calibrant._core.paths import as_path, atomic_write, check_source, shown
from calibrant.errors import FileFormatError

Array = npt.NDArray[Any]
SUFFIXES = (".npz", ".safetensors", ".parquet")


def read_arrays(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the named arrays of a ``.npz``, ``.safetensors`` or ``.parquet`` file.

    Raises:
        FileFormatError: If the file is missing, truncated, of another kind, holds pickled objects, or claims more
            data than the machine has memory for.
    """
    path = check_source(path, suffixes=SUFFIXES)
    readers = {".npz": _read_npz, ".safetensors": _read_safetensors, ".parquet": _read_parquet}
    try:
        return readers[path.suffix](path)
    except FileFormatError:
        raise
    except MemoryError as error:
        raise FileFormatError(
            "arrays that fit in memory", f"more in {shown(path)}", "save them as .parquet, which is streamed"
        ) from error
    except Exception as error:  # the readers of three libraries: whatever they raise means that the file is broken
        raise FileFormatError(
            f"a readable {path.suffix} file",
            f"a broken or truncated one: {shown(path)} ({reason_of(error)})",
            "write it again",
        ) from error


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


def write_arrays(
    path: str | os.PathLike[str], arrays: Mapping[str, Array], *, metadata: Mapping[str, str] | None = None
) -> None:
    """Write named arrays to ``path`` in the format of its suffix, atomically; parquet pages carry checksums."""
    path = as_path(path)
    if path.suffix not in SUFFIXES:
        raise FileFormatError(
            f"a file named {', '.join('*' + s for s in SUFFIXES)}", f"{shown(path.name)!r}", "name it so"
        )
    writer: Callable[[IO[bytes]], None]
    if path.suffix == ".npz":

        def writer(file: IO[bytes]) -> None:
            _write_npz(file, arrays)

    elif path.suffix == ".safetensors":

        def writer(file: IO[bytes]) -> None:
            from safetensors.numpy import save

            contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}  # keeps the shape ()
            file.write(_with_sorted_header(save(contiguous, metadata=dict(metadata) if metadata else None)))

    else:

        def writer(file: IO[bytes]) -> None:
            import pyarrow.parquet

            pyarrow.parquet.write_table(_to_table(arrays), file, write_page_checksum=True)

    with atomic_write(path) as file:
        writer(file)


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


def _refuse_beyond_memory(size: int, path: Path) -> None:
    limit = memory_limit() // 2
    if size > limit:
        raise FileFormatError(
            f"arrays of at most {limit >> 20} MiB (half of the memory this process may use)",
            f"{size >> 20} MiB in {shown(path)}",
            "save them as .parquet, which is streamed",
        )


def _read_npz(path: Path) -> dict[str, Array]:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        _refuse_beyond_memory(sum(member.file_size for member in members), path)
        names = [member.filename for member in members]
        if len(set(names)) != len(names):
            raise FileFormatError("distinct names", f"a repeated one in {shown(path)}", "write the file again")
        for member in members:
            _check_npy_header(archive, member, path)
        return {
            member.filename.removesuffix(".npy"): np.lib.format.read_array(
                io.BytesIO(archive.read(member)), allow_pickle=False
            )
            for member in members
        }


def _check_npy_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> None:
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
        if read is None:
            raise FileFormatError("npy version 1 or 2", f"{version} in {shown(path)}", "write it with numpy.savez")
        shape, _, dtype = read(file)
        if dtype.hasobject:
            raise FileFormatError(
                "plain numeric arrays",
                f"pickled objects in {member.filename!r} of {shown(path)}",
                "save arrays of numbers (nothing is ever executed on load)",
            )
        expected = int(np.prod([int(s) for s in shape], dtype=object)) * dtype.itemsize
        there = member.file_size - file.tell()
        if expected != there:
            raise FileFormatError(
                f"{expected} bytes for shape {shape}",
                f"{there} in {member.filename!r} of {shown(path)}",
                "write it again",
            )


def _read_safetensors(path: Path) -> dict[str, Array]:
    from safetensors.torch import load

    _refuse_beyond_memory(path.stat().st_size, path)
    tensors = load(path.read_bytes())
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
        raise FileFormatError(
            "a readable .safetensors file", f"a broken one: {shown(place)} ({reason_of(error)})", "write it again"
        ) from error


def _read_parquet(path: Path) -> dict[str, Array]:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path, page_checksum_verification=True)
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    _refuse_beyond_memory(sum(group.total_byte_size for group in groups), path)
    table = file.read()
    return {name: _from_column(table.column(name).combine_chunks()) for name in table.column_names}


def _from_column(column: Any) -> Array:
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], type=column.type)
    if column.null_count:
        raise FileFormatError("columns without nulls", "some", "fill or drop them")
    if pa.types.is_fixed_size_list(column.type):
        values = column.flatten()
        if values.null_count:
            raise FileFormatError("columns without nulls", "some", "fill or drop them")
        flat: Array = values.to_numpy(zero_copy_only=False)
        return flat.reshape(-1, column.type.list_size)
    result: Array = column.to_numpy(zero_copy_only=False)
    return result


def _to_table(arrays: Mapping[str, Array]) -> Any:
    import pyarrow as pa

    columns = {}
    for name, array in arrays.items():
        if array.ndim == 2:
            flat = pa.array(np.ascontiguousarray(array).reshape(-1))
            columns[name] = pa.FixedSizeListArray.from_arrays(flat, array.shape[1])
        else:
            columns[name] = pa.array(array)
    return pa.table(columns)
