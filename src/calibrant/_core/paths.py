"""Places in the file system: what may be read, what may be written, and writing whole files or nothing.

Every file that Calibrant reads passes ``check_source``; every file that it writes passes ``check_target`` and is written
by ``atomic_write``. Files are compared by identity (device and inode), so links and spellings make no difference.
"""

import errno
import glob
import io
import os
import platform
import stat
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from calibrant.errors import FileFormatError, InputError

PathLike = str | os.PathLike[str]
# What predictions are written as, by the ending of the name. It stands here since help lists it, and must not load the readers.
WRITABLE_TABLES = (".parquet", ".arrow", ".feather", ".csv", ".tsv", ".jsonl", ".xlsx")
WRITABLE = (".npz", ".safetensors", ".pt", *WRITABLE_TABLES)
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def as_path(path: Any, *, name: str = "path") -> Path:
    """Return ``path`` as a Path.

    Raises:
        InputError: If it is neither text nor a path.
    """
    if not isinstance(path, str | os.PathLike) or isinstance(found := os.fspath(path), bytes):
        raise InputError(f"{name} as text or a pathlib.Path", f"{type(path).__name__}", "name a file")
    if not found or "\0" in found:
        raise InputError(f"{name} as a name of a file", f"{found!r}", "name one")
    return Path(found)


def shown(path: PathLike) -> str:
    """Return ``path`` as text that can be printed and stored, whatever bytes its name has."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def check_source(path: Any, *, suffixes: Collection[str] = ()) -> Path:
    """Return ``path`` if it is a regular file that can be read, without opening what could block.

    Args:
        path: What was given.
        suffixes: What its name must end in; empty allows any.

    Raises:
        InputError: If it is no path.
        FileFormatError: If it is missing, a folder, a pipe, a device, or not readable, or has another suffix.
    """
    place = as_path(path)
    if suffixes and place.suffix not in suffixes and not place.is_dir():
        raise FileFormatError(
            f"a file named {', '.join('*' + s for s in suffixes)}",
            f"{shown(place.name)!r}",
            "convert it to one of them",
        )
    try:
        mode = place.stat().st_mode
    except OSError as error:
        why = "no such file:" if isinstance(error, FileNotFoundError) else f"{error.strerror!r} for"
        raise FileFormatError("a file", f"{why} {shown(place)}", "check the path") from error
    if stat.S_ISDIR(mode):
        raise FileFormatError("a file", f"the folder {shown(place)}", "name a file inside it")
    if not stat.S_ISREG(mode):
        raise FileFormatError(
            "a regular file",
            f"{_KINDS.get(stat.S_IFMT(mode), 'something else')} at {shown(place)}",
            "copy what it gives to a file",
        )
    if not os.access(place, os.R_OK):
        raise FileFormatError("a readable file", f"no permission for {shown(place)}", "change its mode")
    return place


def check_target(path: Any, *, inputs: Sequence[PathLike] = ()) -> Path:
    """Return ``path`` if a file can be written there without destroying one of the ``inputs``, before any work is done.

    Args:
        path: What was given.
        inputs: Files that the work reads, and folders whose files it reads; missing ones are left out.

    Raises:
        InputError: If it is one of the inputs, by whatever name or link.
        FileFormatError: If it is a folder, a block device or a socket, or its folder is missing or cannot be written.
    """
    place = as_path(path)
    try:
        target = _target_of(place, inputs)
    except OSError as error:
        raise _unwritable(place, error.strerror or str(error)) from error
    if target is None:  # a pipe or character device: opened only when there is something to write
        return place
    if not target.parent.is_dir():
        raise _unwritable(place, "no such folder")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise _unwritable(place, "no permission to write there")
    return place


def check_folder(path: Any) -> Path:
    """Return ``path`` if it is a folder that can be written into, or can be made.

    Raises:
        InputError: If it, or what it lies in, is a file.
        FileFormatError: If there is no permission to write there.
    """
    place = as_path(path)
    there = next(found for found in (place, *place.absolute().parents) if os.path.lexists(found))
    if not there.is_dir():
        raise InputError("a folder to write into", f"{shown(place)} where {shown(there)} is a file", "name a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise FileFormatError("a writable place", f"no permission to write in {shown(there)}", "choose another folder")
    return place


def check_suffix(path: PathLike, suffixes: Sequence[str], *, what: str) -> None:
    """Refuse a file name whose suffix says that it holds something else; one without a suffix, and devices, may pass.

    Raises:
        InputError: If it ends in another suffix.
    """
    place = Path(path)
    if place.suffix and place.suffix.lower() not in suffixes and not _is_special(place):
        raise InputError(
            f"a name that ends in {' or '.join(suffixes)} for {what}", f"{shown(place.name)!r}", "rename it"
        )


def same_file(one: PathLike, other: PathLike) -> bool:
    """Return whether two paths name one existing file, by identity."""
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):
        return False


@contextmanager
def atomic_write(path: PathLike, *, inputs: Sequence[PathLike] = ()) -> Iterator[IO[bytes]]:
    """Open ``path`` for writing bytes: the file appears whole when the block ends without error, or not at all.

    Links are written through to the file they name; a pipe or character device is written at the end of the block.
    A process that is killed leaves its temporary file; the next one to write ``path`` on that machine removes it.

    Args:
        path: The file.
        inputs: Files that must not be overwritten.

    Raises:
        InputError: If ``path`` is one of the inputs.
        FileFormatError: If it is a folder, its folder is missing or cannot be written, or the disk is full.
    """
    place = as_path(path)
    temporary: Path | None = None
    try:
        target = _target_of(place, inputs)
        if target is None:
            content = io.BytesIO()
            yield content
            _write_special(place, content.getbuffer())
            return
        _remove_leftovers(target)
        prefix = f".{target.name[:40]}.{os.getpid()}@{platform.node()}."  # says whose it is, for who finds it left over
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=prefix, suffix=".part")
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(_mode_for(target))
        temporary.replace(target)
        temporary = None
    except OSError as error:
        raise _unwritable(place, error.strerror or type(error).__name__) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_whole(path: PathLike, content: str | bytes) -> None:
    """Write ``content``, text as UTF-8, to ``path`` by ``atomic_write``."""
    with atomic_write(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def make_folder(folder: Path, *, what: str, remedy: str) -> Path:
    """Return ``folder``, made with its parents if it is not there; ``what`` is to be written into it.

    Raises:
        FileFormatError: If it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileFormatError(f"a writable {what}", f"{error.strerror!r} for {shown(folder)}", remedy) from error
    return folder


def _unwritable(place: Path, reason: str) -> FileFormatError:
    return FileFormatError("a writable place", f"{reason} for {shown(place)}", "choose another output")


def _target_of(place: Path, inputs: Sequence[PathLike]) -> Path | None:
    """Return the regular file that is written for ``place``, links followed; None for a pipe or character device.

    Raises:
        InputError: For one of the inputs.
        FileFormatError: For a folder, a block device or a socket.
        OSError: For links that lead in a circle.
    """
    for name in inputs:
        found = Path(name)
        parts = [found, *found.glob("*"), *found.glob("*/*.parquet")] if found.is_dir() else [found]
        if any(same_file(place, part) for part in parts):
            raise InputError("an output other than the input", f"{shown(place)} for both", "choose another output")
    try:
        mode = place.stat().st_mode
    except FileNotFoundError:
        return Path(os.path.realpath(place))  # new, or what a dangling link names
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        return None
    if stat.S_ISDIR(mode):
        raise FileFormatError("a file to write", f"the folder {shown(place)}", "name a file inside it")
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise FileFormatError("a file to write", f"{kind} at {shown(place)}", "choose another output")
    target = Path(os.path.realpath(place))
    return target if target.exists() else place  # /dev/stdout of a file that was deleted


def _is_special(place: Path) -> bool:
    try:
        return not stat.S_ISREG(place.stat().st_mode)
    except OSError:
        return False


def _write_special(place: Path, content: memoryview) -> None:
    try:
        handle = os.open(place, os.O_WRONLY | os.O_NONBLOCK)  # a pipe that nobody reads would block for ever
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise FileFormatError(
                "a pipe that is read", f"one without a reader at {shown(place)}", "start the reader first"
            ) from error
        raise
    os.set_blocking(handle, True)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def _mode_for(target: Path) -> int:
    """Return the mode a written file gets: what it had, or what the user's mask says."""
    if target.exists():
        return stat.S_IMODE(target.stat().st_mode)
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask  # mkstemp makes files private; the result is an ordinary one


def _remove_leftovers(target: Path) -> None:
    """Remove the temporary files for ``target`` of processes of this machine that are no more."""
    start = f".{target.name[:40]}."
    for found in target.parent.glob(f"{glob.escape(start)}*@{glob.escape(platform.node())}.*.part"):
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
