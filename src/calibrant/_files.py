"""Arrays in files: read without executing anything, written whole or not at all.

Formats by suffix: ``.npz``, ``.safetensors``, ``.parquet``. Headers are checked against the bytes that are there, and
against the memory of this machine, before anything is unpacked.
"""

import glob
import io
import json
import os
import platform
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import numpy.typing as npt

from calibrant.errors import FileFormatError

Array = npt.NDArray[Any]
T = TypeVar("T")
SUFFIXES = (".npz", ".safetensors", ".parquet")


def read_arrays(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the named arrays of a ``.npz``, ``.safetensors`` or ``.parquet`` file.

    Raises:
        FileFormatError: If the file is missing, truncated, of another kind, holds pickled objects, or claims more
            data than the machine has memory for.
    """
    path = Path(path)
    reader = _by_suffix(path, {".npz": _read_npz, ".safetensors": _read_safetensors, ".parquet": _read_parquet})
    if path.is_dir():
        raise FileFormatError(f"expected a file, got the folder {path}; name a file inside it")
    if not path.exists():
        raise FileFormatError(f"expected a file, got no such file: {path}; check the path")
    try:
        return reader(path)
    except FileFormatError:
        raise
    except PermissionError as error:
        raise FileFormatError(f"expected a readable file, got no permission for {path}; change its mode") from error
    except MemoryError as error:
        raise FileFormatError(
            f"expected arrays that fit in memory, got more in {path}; stream it as parquet"
        ) from error
    except Exception as error:  # the readers of three libraries: whatever they raise means that the file is broken
        raise FileFormatError(
            f"expected a readable {path.suffix} file, got a broken or truncated one: {path} ({reason_of(error)}); "
            "write it again"
        ) from error


def reason_of(error: Exception) -> str:
    """Return what another library's error says, in one line of at most 160 characters."""
    return " ".join(str(error).split())[:160] or type(error).__name__


def write_arrays(
    path: str | os.PathLike[str], arrays: Mapping[str, Array], *, metadata: Mapping[str, str] | None = None
) -> None:
    """Write named arrays to ``path`` in the format of its suffix, atomically."""
    path = Path(path)
    writer: Callable[[IO[bytes]], None]
    if path.suffix == ".npz":

        def writer(file: IO[bytes]) -> None:
            np.savez_compressed(file, allow_pickle=False, **dict(arrays))

    elif path.suffix == ".safetensors":

        def writer(file: IO[bytes]) -> None:
            from safetensors.numpy import save

            contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
            file.write(_with_sorted_header(save(contiguous, metadata=dict(metadata) if metadata else None)))

    else:
        _by_suffix(path, {".parquet": None})

        def writer(file: IO[bytes]) -> None:
            import pyarrow.parquet

            pyarrow.parquet.write_table(_to_table(arrays), file)

    with atomic_write(path) as file:
        writer(file)


def _with_sorted_header(content: bytes) -> bytes:
    """Return a safetensors file with its header's names in order: the library writes metadata in an order of chance."""
    length = int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8 : 8 + length]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # the arrays that follow stay aligned
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a temporary file beside ``path`` for writing bytes; it takes the name only if the block ends without error.

    A process that is killed leaves its temporary file; the next one to write ``path`` on that machine removes it.

    Raises:
        FileFormatError: If the folder is missing or cannot be written, or the disk is full.
    """
    path = Path(path)
    temporary: Path | None = None
    try:
        if path.is_dir():
            raise FileFormatError(f"expected a file to write, got the folder {path}; name a file inside it")
        _remove_leftovers(path)
        mine = f".{path.name}.{os.getpid()}@{platform.node()}."
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=mine, suffix=".part")
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp makes files private; the result is an ordinary one
        temporary.replace(path)
        temporary = None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise FileFormatError(f"expected a writable place, got {reason!r} for {path}; choose another output") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _remove_leftovers(path: Path) -> None:
    """Remove the temporary files for ``path`` of processes of this machine that are no more."""
    start = f".{path.name}."
    for found in path.parent.glob(f"{glob.escape(start)}*@{glob.escape(platform.node())}.*.part"):
        process = found.name.removeprefix(start).split("@")[0]
        if process.isdigit() and not _is_alive(int(process)):
            found.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    if os.name != "posix":  # elsewhere a signal 0 is no question
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        return True
    return True


def _by_suffix(path: Path, known: Mapping[str, T]) -> T:
    if path.suffix not in known:
        raise FileFormatError(
            f"expected a file named {', '.join('*' + s for s in SUFFIXES)}, got {path.name!r}; convert it to one of them"
        )
    return known[path.suffix]


def _available_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _refuse_beyond_memory(size: int, path: Path) -> None:
    limit = _available_memory() // 2
    if size > limit:
        raise FileFormatError(
            f"expected arrays of at most {limit >> 20} MiB (half of this machine's memory), got {size >> 20} MiB in "
            f"{path}; stream it as parquet"
        )


def _read_npz(path: Path) -> dict[str, Array]:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        _refuse_beyond_memory(sum(member.file_size for member in members), path)
        names = [member.filename for member in members]
        if len(set(names)) != len(names):
            raise FileFormatError(f"expected distinct names, got a repeated one in {path}; write the file again")
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
            raise FileFormatError(f"expected npy version 1 or 2, got {version} in {path}; write it with numpy.savez")
        shape, _, dtype = read(file)
        if dtype.hasobject:
            raise FileFormatError(
                f"expected plain numeric arrays, got pickled objects in {member.filename!r} of {path}; "
                "save arrays of numbers (nothing is ever executed on load)"
            )
        expected = int(np.prod([int(s) for s in shape], dtype=object)) * dtype.itemsize
        there = member.file_size - file.tell()
        if expected != there:
            raise FileFormatError(
                f"expected {expected} bytes for shape {shape}, got {there} in {member.filename!r} of {path}; write it again"
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

    if not Path(path).is_file():
        raise FileFormatError(f"expected a file, got no such file: {path}; check the path")
    try:
        with safe_open(path, framework="np") as file:
            return dict(file.metadata() or {})
    except Exception as error:  # the library's own errors share no public base class
        raise FileFormatError(
            f"expected a readable .safetensors file, got a broken one: {path} ({reason_of(error)}); write it again"
        ) from error


def _read_parquet(path: Path) -> dict[str, Array]:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path)
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    _refuse_beyond_memory(sum(group.total_byte_size for group in groups), path)
    table = file.read()
    return {name: _from_column(table.column(name).combine_chunks()) for name in table.column_names}


def _from_column(column: Any) -> Array:
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], type=column.type)
    if column.null_count:
        raise FileFormatError("expected columns without nulls, got some; fill or drop them")
    if pa.types.is_fixed_size_list(column.type):
        values = column.flatten()
        if values.null_count:
            raise FileFormatError("expected columns without nulls, got some; fill or drop them")
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
