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
from tests.conftest import posix

from calibrant import _files
from calibrant.errors import FileFormatError, InputError

ARRAYS = {"logits": np.array([[1.5, -2.0], [0.0, 3.0]], dtype=np.float32), "labels": np.array([0, 1])}


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_what_is_written_is_read_back_and_has_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    metadata = {f"name {index}": "ünïcode" for index in range(20)}
    for name in "ab":
        _files.write_arrays(tmp_path / f"{name}{suffix}", {**ARRAYS, "file": np.eye(2)}, metadata=metadata)
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
    read = _files.read_arrays(tmp_path / f"a{suffix}")
    assert read.keys() == {*ARRAYS, "file"}
    for name, array in ARRAYS.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)
    if suffix == ".safetensors":
        assert _files.read_metadata(tmp_path / "a.safetensors") == metadata


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_truncated_files_are_refused_at_every_length(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    _files.write_arrays(path, ARRAYS)
    content = path.read_bytes()
    for length in range(0, len(content) - 1, len(content) // 40):
        path.write_bytes(content[:length])
        with pytest.raises(FileFormatError, match="expected a readable"):
            _files.read_arrays(path)


def test_a_header_that_claims_more_than_the_file_is_refused(tmp_path: Path) -> None:
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 1000), }".ljust(117) + b"\n"
    with zipfile.ZipFile(tmp_path / "claim.npz", "w") as archive:
        archive.writestr("logits.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + b"\0" * 64)
    header = json.dumps({"logits": {"dtype": "F32", "shape": [10**9, 10**3], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "lie.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 8)
    for name in ("claim.npz", "lie.safetensors"):
        with pytest.raises(FileFormatError, match="a broken one"):
            _files.read_arrays(tmp_path / name)


@posix
def test_what_fills_half_of_the_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"half of the memory, got 1,048,576,000 MiB in .*big"):
        _files.refuse_beyond_memory(1000 << 40, tmp_path / "big")


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "executed"),)

    np.savez(tmp_path / "bomb.npz", logits=np.array([Bomb()], dtype=object))
    with pytest.raises(FileFormatError, match="no arrays of numbers or text"):
        _files.read_arrays(tmp_path / "bomb.npz")
    assert not (tmp_path / "executed").exists()


def test_nothing_partial_is_left_when_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "out.npz"
    path.write_bytes(b"before")
    for error, kind, message in (
        (RuntimeError("midway"), RuntimeError, "midway"),
        (OSError(28, "No space left on device"), FileFormatError, "expected a writable place, got .*No space left"),
    ):
        with pytest.raises(kind, match=message), _files.atomic_write(path) as file:
            file.write(b"half")
            raise error
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["out.npz"]


def test_an_input_is_never_written_by_whatever_name(tmp_path: Path) -> None:
    source, link = tmp_path / "in.npz", tmp_path / "out.npz"
    source.write_bytes(b"data")
    link.symlink_to(source)
    for output, given in ((source, source), (tmp_path / "." / "in.npz", source), (link, source), (source, tmp_path)):
        with pytest.raises(InputError, match="output other than the input"):
            _files.check_target(output, inputs=[given])
    with pytest.raises(InputError, match="output other than the input"), _files.atomic_write(link, inputs=[source]):
        raise AssertionError
    assert source.read_bytes() == b"data"


def test_links_are_written_through(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("there", "new"):
        target, link = tmp_path / "deep" / f"{name}.npz", tmp_path / f"{name}-link.npz"
        if name == "there":
            target.write_bytes(b"old")
        link.symlink_to(target)
        _files.write_arrays(link, {"logits": np.eye(2)})
        assert link.is_symlink()
        assert np.array_equal(_files.read_arrays(target)["logits"], np.eye(2))


@posix
def test_what_is_no_file_is_neither_replaced_nor_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    for place, kind in (
        (tmp_path / "pipe.npz", "a pipe or device"),
        (Path("/dev/null"), "a pipe"),
        (tmp_path, "the folder"),
    ):
        with pytest.raises(FileFormatError, match=f"expected a regular file, got {kind}"):
            _files.check_source(place)
        with pytest.raises(FileFormatError, match=f"expected a file to write, got {kind}"):
            _files.write_whole(place, "nothing")
        assert not stat.S_ISREG(place.stat().st_mode)


@posix
def test_a_file_has_the_mode_that_the_user_wants(tmp_path: Path) -> None:
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


@posix
def test_writers_take_turns_by_whatever_name(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    file, link = tmp_path / "deep" / "a", tmp_path / "link"
    file.write_text("")
    link.symlink_to(file)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(append, [str(file), str(link)] * 20))
    assert file.read_text() == 40 * "x"
