"""Reads and writes files: path checks, named arrays, and atomic writing.

Every file that Calibrant reads is checked with ``check_source``, and every file that it writes is written with
``atomic_write``. Loading a file never executes code in it. Files are compared by identity, so that links and other
spellings of a path make no difference.
"""

import importlib.util
import json
import os
import stat
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from calibrant.errors import CalibrantError, FileFormatError, InputError

if TYPE_CHECKING:
    import numpy.typing as npt

    Array: TypeAlias = npt.NDArray[Any]
else:  # so that the help of the command line does not import NumPy
    Array = Any
PathLike = str | os.PathLike[str]
SUFFIXES = (".npz", ".safetensors")
_METADATA = "calibrant"  # the entry of a .safetensors file that holds all metadata as JSON


class _LazyArrow:
    """PyArrow and its parts, imported when first used, so that importing Calibrant does not import PyArrow."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # special names that introspection requests from any object
            raise AttributeError(name)
        try:
            return getattr(importlib.import_module("pyarrow"), name)
        except AttributeError:  # a submodule that pyarrow does not import itself
            return importlib.import_module(f"pyarrow.{name}")


pa: Any = _LazyArrow()


def as_path(path: Any, *, name: str = "path") -> Path:
    """Return ``path`` as a Path.

    Raises:
        InputError: If ``path`` is neither text nor a path.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InputError(f"{name} as text or a pathlib.Path", f"{path!r}"[:60], "name a file")
    return Path(text)


def shown(path: PathLike) -> str:
    """Return ``path`` as text that can be printed and stored, even if it is not valid Unicode."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def check_source(path: Any, *, suffixes: Collection[str] = ()) -> Path:
    """Return ``path`` if it is a regular file; pipes and devices, which could block, are not opened.

    Raises:
        InputError: If ``path`` is not a path.
        FileFormatError: If the file is missing, is not a regular file, or does not have one of the ``suffixes``.
    """
    place = as_path(path)
    try:
        mode = place.stat().st_mode
    except OSError as error:
        why = "no such file:" if isinstance(error, FileNotFoundError) else f"{error.strerror!r} for"
        raise FileFormatError("a file", f"{why} {shown(place)}", "check the path") from error
    if not stat.S_ISREG(mode):
        kind = "the folder" if stat.S_ISDIR(mode) else "a pipe or device:"
        raise FileFormatError("a regular file", f"{kind} {shown(place)}", "name a file")
    if suffixes and place.suffix not in suffixes:
        expected = f"a file named {', '.join('*' + suffix for suffix in suffixes)}"
        raise FileFormatError(expected, repr(shown(place.name)), "convert it to one of them")
    return place


def check_target(path: Any, *, inputs: Sequence[PathLike] = ()) -> Path:
    """Return ``path`` if a file can be written there without overwriting one of the ``inputs``; call it before any work.

    Args:
        path: The output.
        inputs: Files to be read, and folders whose files are to be read.

    Raises:
        InputError: If the output is one of the inputs, under any name or link.
        FileFormatError: If the output is not a regular file, or its folder is missing or not writable.
    """
    place = as_path(path)
    for name in inputs if place.exists() else ():
        if os.path.exists(name) and any(one.samefile(name) for one in (place, *place.resolve().parents)):
            raise InputError("an output other than the input", f"{shown(place)} for both", "choose another output")
    if place.exists() and not place.is_file():
        kind = "the folder" if place.is_dir() else "a pipe or device:"
        raise FileFormatError("a file to write", f"{kind} {shown(place)}", "name a file")
    folder = Path(os.path.realpath(place)).parent
    if not os.access(folder, os.W_OK | os.X_OK):
        reason = "no permission to write there" if folder.is_dir() else "no such folder"
        raise FileFormatError("a writable place", f"{reason} for {shown(place)}", "choose another output")
    return place


def check_folder(path: Any) -> Path:
    """Return ``path`` if it is a writable folder, or if such a folder can be created.

    Raises:
        InputError: If the path, or one of its parents, is a file.
        FileFormatError: If there is no permission to write there.
    """
    place = as_path(path)
    there = next(parent for parent in (place, *place.absolute().parents) if os.path.lexists(parent))
    if not there.is_dir():
        raise InputError("a folder to write into", f"{shown(place)}, where {shown(there)} is a file", "name a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise FileFormatError("a writable place", f"no permission to write in {shown(there)}", "choose another folder")
    return place


def check_suffix(path: PathLike, suffixes: Sequence[str], *, what: str) -> None:
    """Check that a file name has one of these suffixes or none.

    Raises:
        InputError: If the name has another suffix.
    """
    if (suffix := Path(path).suffix) and suffix.lower() not in suffixes:
        expected = f"a name that ends in {' or '.join(suffixes)} for {what}"
        raise InputError(expected, repr(shown(Path(path).name)), "rename it")


@contextmanager
def atomic_write(path: PathLike, *, inputs: Sequence[PathLike] = ()) -> Iterator[IO[bytes]]:
    """Open ``path`` for writing bytes, atomically.

    The complete file appears when the block ends without an error; otherwise no file appears. If ``path`` is a link,
    the file that it points to is replaced.

    Args:
        path: The file.
        inputs: Files that must not be overwritten.

    Raises:
        InputError: If ``path`` is one of the inputs.
        FileFormatError: If ``path`` is not a regular file, its folder is missing or not writable, or the disk is full.
    """
    target = Path(os.path.realpath(check_target(path, inputs=inputs)))
    temporary = target.with_name(f".{target.name[:40]}.{os.urandom(4).hex()}.part")
    try:
        with error_boundary("a writable place", shown(path), "choose another output", caught=OSError):
            # not created with ``tempfile``, whose files are private, so that the user's umask applies
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                temporary.chmod(stat.S_IMODE(target.stat().st_mode))
            temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: PathLike, content: str | bytes) -> None:
    """Write ``content`` to ``path`` atomically; text is encoded as UTF-8."""
    with atomic_write(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def one_writer(path: PathLike) -> Iterator[None]:
    """Make other processes wait while this block reads ``path`` and writes its new content.

    The lock is on the folder that contains the file (links are followed), and is released at the latest when the
    process ends. On Windows, which has no such locks, this function has no effect.

    Raises:
        FileFormatError: If the folder does not exist.
    """
    if importlib.util.find_spec("fcntl") is None:
        yield
        return
    import fcntl

    home = os.path.dirname(os.path.realpath(path))
    with error_boundary("a folder to write in", shown(home), "check it", caught=OSError):
        folder = os.open(home, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


@contextmanager
def error_boundary(
    expected: str,
    got: str,
    remedy: Any,
    *,
    kind: type[CalibrantError] = FileFormatError,
    caught: type[Exception] | tuple[type[Exception], ...] = Exception,
) -> Iterator[None]:
    """Convert errors that other libraries raise in the block into a Calibrant error whose ``got`` ends with the reason.

    Calibrant's own errors are raised unchanged.
    """
    try:
        yield
    except CalibrantError:
        raise
    except caught as error:
        raise kind(expected, f"{got} ({reason_of(error)})", remedy) from error


def reason_of(error: Exception) -> str:
    """Return the message of another library's error in one line of at most 160 characters."""
    if "allow_pickle" in str(error):  # NumPy's advice to load the file unsafely
        return "no arrays of numbers or text"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split())[:160] or type(error).__name__


def read_text(path: PathLike) -> str:
    """Return the text of a regular UTF-8 file, without a byte order mark.

    Raises:
        FileFormatError: If the file is missing, not a regular file, not readable, or not in UTF-8.
    """
    place = check_source(path)
    with error_boundary("text in UTF-8", shown(place), "save it as UTF-8"):
        return place.read_text(encoding="utf-8-sig")


def refuse_beyond_memory(size: int, path: Path) -> None:
    """Check that content fits in half of this machine's memory, except on Windows.

    Args:
        size: Size of the content in bytes.
        path: The file, for the error message.

    Raises:
        FileFormatError: If the content is too large; the error names both sizes.
    """
    if not hasattr(os, "sysconf"):  # Windows, where the standard library does not tell the memory
        return
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    if size > most:
        expected = f"data of at most {most >> 20:,} MiB, half of the memory"
        got = f"{size >> 20:,} MiB in {shown(path)}"
        raise FileFormatError(expected, got, "save a folder of .parquet files, which is streamed")


def read_arrays(path: PathLike) -> dict[str, Array]:
    """Return the named arrays in a ``.npz`` or ``.safetensors`` file.

    Dtypes that NumPy lacks (bfloat16, float8) become float32.

    Raises:
        FileFormatError: If the file is missing, broken, of another kind, or contains pickled objects.
    """
    import numpy as np

    place = check_source(path, suffixes=SUFFIXES)
    with unbroken(place):
        if place.suffix == ".npz":
            with open(place, "rb") as content, np.load(content, allow_pickle=False) as file:
                refuse_beyond_memory(sum(member.file_size for member in file.zip.infolist()), place)
                return {name: file[name] for name in file.files}
        import torch
        from safetensors.torch import load

        narrow = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
        arrays = load(place.read_bytes()).items()
        return {name: (one.float() if one.dtype in narrow else one).numpy() for name, one in arrays}


def read_metadata(path: PathLike) -> dict[str, str]:
    """Return the text metadata of a ``.safetensors`` file.

    Raises:
        FileFormatError: If the file is missing or broken.
    """
    from safetensors import safe_open

    place = check_source(path, suffixes=SUFFIXES[1:])
    with unbroken(place), safe_open(place, framework="np") as file:
        return dict(json.loads((file.metadata() or {}).get(_METADATA, "{}")))


def unbroken(place: Path) -> Any:
    return error_boundary(f"a readable {place.suffix} file", f"a broken one: {shown(place)}", "write it again")


def write_arrays(path: PathLike, arrays: Mapping[str, Array], *, metadata: Mapping[str, str] | None = None) -> None:
    """Write named arrays atomically in the format of the path's suffix, which must be one of ``SUFFIXES``.

    The same arrays always give the same bytes.
    """
    import numpy as np

    with atomic_write(path) as file:
        if Path(path).suffix == ".npz":
            # like numpy.savez, except that an array may be called "file" and no timestamp is written
            with zipfile.ZipFile(file, "w", compression=zipfile.ZIP_DEFLATED) as archive:
                for name, values in arrays.items():
                    entry = zipfile.ZipInfo(f"{name}.npy")
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    with archive.open(entry, "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, np.asanyarray(values), allow_pickle=False)
            return
        from safetensors.numpy import save

        # safetensors writes several metadata entries in a different order in each call, so all of them are in one
        entries = {_METADATA: json.dumps(metadata or {}, sort_keys=True, ensure_ascii=False)}
        file.write(save({name: np.asarray(one, order="C") for name, one in arrays.items()}, metadata=entries))
