"""Places: what may be read or written, by identity and kind; links, pipes, devices; memory limits of control groups."""

import os
import stat
import threading
from pathlib import Path

import numpy as np
import pytest

from calibrant._core import files as _files
from calibrant._core import paths as _places
from calibrant._core.memory import memory_limit
from calibrant.errors import FileFormatError, InputError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.npz"
    np.savez(path, logits=np.eye(2), labels=np.arange(2))
    return path


@pytest.mark.parametrize("link", ["same", "dotted", "symlink", "hard link", "inside a folder", "link to the folder"])
def test_an_input_is_never_written_by_whatever_name(source: Path, link: str) -> None:
    before = source.read_bytes()
    output, inputs = source.parent / "out.npz", [source]
    if link == "same":
        output = source
    elif link == "dotted":
        output = source.parent / "." / source.name
    elif link == "symlink":
        output.symlink_to(source)
    elif link == "hard link":
        output.hardlink_to(source)
    elif link == "inside a folder":
        output, inputs = source, [source.parent]
    else:
        (source.parent / "alias").symlink_to(source.parent, target_is_directory=True)
        output = source.parent / "alias" / source.name
    with pytest.raises(InputError, match=r"expected an output other than the input, got .* for both; choose"):
        _places.check_target(output, inputs=inputs)
    with pytest.raises(InputError, match="other than the input"), _places.atomic_write(output, inputs=inputs) as file:
        file.write(b"gone")
    assert source.read_bytes() == before


def test_links_are_written_through(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name, exists in (("there", True), ("new", False)):
        target, link = tmp_path / "deep" / f"{name}.npz", tmp_path / f"{name}-link.npz"
        if exists:
            target.write_bytes(b"old")
            target.chmod(0o600)
        link.symlink_to(target)
        _files.write_arrays(link, {"logits": np.eye(2)})
        assert link.is_symlink()
        assert np.array_equal(_files.read_arrays(target)["logits"], np.eye(2))
        if exists:
            assert stat.S_IMODE(target.stat().st_mode) == 0o600
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    with pytest.raises(FileFormatError, match="expected a writable place"):
        _places.check_target(circle)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in this file system")
def test_pipes_and_devices_are_neither_replaced_nor_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.npz"
    os.mkfifo(pipe)
    with pytest.raises(FileFormatError, match="expected a regular file, got a pipe at"):
        _files.read_arrays(pipe)
    with pytest.raises(FileFormatError, match="got one without a reader"):
        _files.write_arrays(pipe, {"logits": np.eye(2)})
    heard: list[bytes] = []
    reader = threading.Thread(target=lambda: heard.append(pipe.read_bytes()))
    reader.start()
    while True:  # until the reader has opened it
        try:
            with _places.atomic_write(pipe) as file:
                file.write(b"stream")
            break
        except FileFormatError:
            continue
    reader.join()
    assert heard == [b"stream"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    with _places.atomic_write("/dev/null") as file:
        file.write(b"nothing")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(FileFormatError, match="got a device"):
        _places.check_source("/dev/null")


@pytest.mark.parametrize("path", [None, 3, b"a.npz", [], "", "a\0b.npz"])
def test_what_is_no_path_is_refused(path: object) -> None:
    for call in (_files.read_arrays, _places.check_target, _files.read_metadata):
        with pytest.raises(InputError, match="expected path as"):
            call(path)  # type: ignore[operator]
    with pytest.raises(InputError, match="expected path as"):
        _files.write_arrays(path, {})  # type: ignore[arg-type]


def test_a_name_that_is_no_text_can_be_said(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.npz")
    with pytest.raises(FileFormatError, match=r"no such file: .*caf\\xe9\.npz") as found:
        _files.read_arrays(name)
    str(found.value).encode()
    _files.write_arrays(name, {"logits": np.eye(2)})
    assert "logits" in _files.read_arrays(name)


def test_suffixes_that_say_another_format_are_refused(tmp_path: Path) -> None:
    for name in ("x.html", "x.HTM", "x", "/dev/null"):
        _places.check_suffix(name, (".html", ".htm"), what="an HTML report")
    with pytest.raises(InputError, match=r"ends in \.html or \.htm for an HTML report, got 'x\.pdf'; rename it"):
        _places.check_suffix(tmp_path / "x.pdf", (".html", ".htm"), what="an HTML report")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"sys/fs/cgroup/memory.max": "1048576\n"}, 1 << 20),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "2097152", "sys/fs/cgroup/a/b/memory.max": "max"},
         2 << 20),
        ({"proc/self/cgroup": "5:memory:/x\n4:cpu:/x\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "3145728"}, 3 << 20),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}, None),
        ({"proc/self/cgroup": "0::/../elsewhere\n", "sys/fs/cgroup/memory.max": "max\n"}, None),
        ({"proc/self/cgroup": "nonsense", "sys/fs/cgroup/memory.max": ""}, None),
    ],
)  # fmt: skip
def test_the_limit_of_the_control_group_counts(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory_limit(root=tmp_path) == (physical if expected is None else expected)
