"""Files: a round trip in both formats of arrays, a refusal in one sentence for broken or hostile ones, whole files or nothing."""

import json
import os
import stat
import struct
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from calibrant import _files
from calibrant.errors import FileFormatError, InputError

ARRAYS = {"logits": np.array([[1.5, -2.0], [0.0, 3.0]], dtype=np.float32), "labels": np.array([0, 1])}


def npy_bytes(header: str, body: bytes) -> bytes:
    """Return an npy member with this header text, whatever it claims."""
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def write_zip(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_what_is_written_is_read_back(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    _files.write_arrays(path, ARRAYS)
    read = _files.read_arrays(path)
    assert read.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_truncated_files_are_refused_at_every_length(tmp_path: Path, suffix: str) -> None:
    whole = tmp_path / f"whole{suffix}"
    _files.write_arrays(whole, ARRAYS)
    content = whole.read_bytes()
    cut = tmp_path / f"cut{suffix}"
    for length in range(0, len(content) - 1, max(1, len(content) // 40)):
        cut.write_bytes(content[:length])
        with pytest.raises(FileFormatError, match="expected"):
            _files.read_arrays(cut)


@pytest.mark.parametrize("name", ["missing.npz", "missing.safetensors", "a.pt", "folder.npz"])
def test_missing_foreign_and_folder_paths(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(FileFormatError, match=r"expected a (regular )?file"):
        _files.read_arrays(tmp_path / name)


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    marker = tmp_path / "executed"

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(marker),)

    path = tmp_path / "bomb.npz"
    np.savez(path, logits=np.array([Bomb()], dtype=object), labels=np.array([0]))
    with pytest.raises(FileFormatError, match="Object arrays cannot be loaded"):
        _files.read_arrays(path)
    assert not marker.exists()


def test_a_header_that_claims_more_than_the_file_holds_is_refused(tmp_path: Path) -> None:
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 1000), }"
    path = write_zip(tmp_path / "claim.npz", {"logits.npy": npy_bytes(header, b"\0" * 64)})
    with pytest.raises(FileFormatError, match="a broken one"):
        _files.read_arrays(path)


def test_a_safetensors_header_that_lies_is_refused(tmp_path: Path) -> None:
    header = json.dumps({"logits": {"dtype": "F32", "shape": [10**9, 10**3], "data_offsets": [0, 8]}}).encode()
    path = tmp_path / "lie.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 8)
    with pytest.raises(FileFormatError, match="a broken one"):
        _files.read_arrays(path)


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    metadata = {f"name {index}": "ünïcode" for index in range(20)}
    for suffix in (".npz", ".safetensors"):
        for name in "ab":
            _files.write_arrays(tmp_path / f"{name}{suffix}", ARRAYS, metadata=metadata)
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
    assert _files.read_metadata(tmp_path / "a.safetensors") == metadata


def test_nothing_partial_is_left_when_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "out.npz"
    path.write_bytes(b"before")
    with pytest.raises(RuntimeError, match="midway"), _files.atomic_write(path) as file:
        file.write(b"half")
        raise RuntimeError("midway")
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["out.npz"]
    with (
        pytest.raises(FileFormatError, match="expected a writable place"),
        _files.atomic_write(tmp_path / "no" / "x.npz"),
    ):
        pass


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="No space left"), _files.atomic_write(tmp_path / "x.npz"):
        raise OSError(28, "No space left on device")
    assert os.listdir(tmp_path) == []


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
        _files.check_target(output, inputs=inputs)
    with pytest.raises(InputError, match="other than the input"), _files.atomic_write(output, inputs=inputs) as file:
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


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in this file system")
def test_pipes_and_devices_are_neither_replaced_nor_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.npz"
    os.mkfifo(pipe)
    for place in (pipe, Path("/dev/null")):
        with pytest.raises(FileFormatError, match="expected a regular file, got a pipe or device"):
            _files.check_source(place)
        with pytest.raises(FileFormatError, match="expected a file to write, got a pipe or device"):
            _files.write_whole(place, "nothing")
        assert not stat.S_ISREG(place.stat().st_mode)


def test_a_new_file_has_the_mode_that_the_user_wants_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    for mask, mode in ((0o077, 0o600), (0o002, 0o664)):
        before = os.umask(mask)
        try:
            _files.write_whole(tmp_path / f"{mask}", "new")
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / f"{mask}").stat().st_mode) == mode
    old = tmp_path / "old"
    old.write_text("old")
    old.chmod(0o640)
    _files.write_whole(old, "new")
    assert (stat.S_IMODE(old.stat().st_mode), old.read_text()) == (0o640, "new")


def append(path: str) -> None:
    with _files.one_writer(path):
        _files.write_whole(path, _files.read_text(path) + "x")


def test_writers_take_turns_by_whatever_name(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    file, link = tmp_path / "deep" / "a", tmp_path / "link"
    file.write_text("")
    link.symlink_to(file)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(append, [str(file), str(link)] * 20))
    assert file.read_text() == 40 * "x"
    with pytest.raises(FileFormatError, match="a folder to write in"), _files.one_writer(tmp_path / "none" / "a"):
        pass


def test_more_than_half_of_the_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"half of the memory, got 1,048,576,000 MiB in .*big"):
        _files.refuse_beyond_memory(1000 << 40, tmp_path / "big")


@pytest.mark.parametrize("path", [None, 3, b"a.npz", [], "", "a\0b.npz"])
def test_what_is_no_path_is_refused(path: object) -> None:
    for call in (_files.read_arrays, _files.check_target, _files.read_metadata):
        with pytest.raises(InputError, match="expected path as"):
            call(path)
    with pytest.raises(InputError, match="expected path as"):
        _files.write_arrays(path, {})


def test_a_name_that_is_no_text_can_be_said(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.npz")
    with pytest.raises(FileFormatError, match=r"no such file: .*caf\\xe9\.npz") as found:
        _files.read_arrays(name)
    str(found.value).encode()
    _files.write_arrays(name, {"logits": np.eye(2)})
    assert "logits" in _files.read_arrays(name)


def test_suffixes_that_say_another_format_are_refused(tmp_path: Path) -> None:
    for name in ("x.html", "x.HTM", "x"):
        _files.check_suffix(name, (".html", ".htm"), what="an HTML report")
    with pytest.raises(InputError, match=r"ends in \.html or \.htm for an HTML report, got 'x\.pdf'; rename it"):
        _files.check_suffix(tmp_path / "x.pdf", (".html", ".htm"), what="an HTML report")
