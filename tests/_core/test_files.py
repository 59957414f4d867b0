"""Files: a round trip in every format, and a refusal in one sentence for every broken or hostile one."""

import io
import json
import os
import platform
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import calibrant
from calibrant._core import files as _files
from calibrant._core import paths as _places
from calibrant.data.formats import tables
from calibrant.errors import FileFormatError

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
    with pytest.raises(FileFormatError, match="expected a file"):
        _files.read_arrays(tmp_path / name)


def test_a_mistyped_folder_is_missing_and_a_foreign_suffix_foreign(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"expected a file, got no such file: .*nothere'?; check the path"):
        calibrant.read(tmp_path / "nothere")
    for name in ("nothere.xyz", "there"):
        (tmp_path / "there").write_text("")
        with pytest.raises(FileFormatError, match=f"got '{name}'; convert it to one of them"):
            calibrant.read(tmp_path / name)


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    marker = tmp_path / "executed"

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(marker),)

    path = tmp_path / "bomb.npz"
    np.savez(path, logits=np.array([Bomb()], dtype=object), labels=np.array([0]))
    with pytest.raises(FileFormatError, match=r"pickled objects in 'logits.npy'.*nothing is ever executed"):
        _files.read_arrays(path)
    assert not marker.exists()


def test_one_pickled_object_beside_arrays_stays_unread(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **ARRAYS, metrics=np.array({"loss": 0.5}, dtype=object))
    assert _files.read_arrays(tmp_path / "a.npz").keys() == ARRAYS.keys()


def test_a_header_that_claims_more_than_the_file_holds_is_refused(tmp_path: Path) -> None:
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 1000), }"
    path = write_zip(tmp_path / "claim.npz", {"logits.npy": npy_bytes(header, b"\0" * 64)})
    with pytest.raises(FileFormatError, match="bytes for shape"):
        _files.read_arrays(path)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000, 1000), }"
    path = write_zip(tmp_path / "bomb.npz", {"logits.npy": npy_bytes(header, b"\0" * 4_000_000)})
    assert path.stat().st_size < 50_000
    monkeypatch.setattr(_files, "memory_limit", lambda: 4_000_000)
    with pytest.raises(FileFormatError, match="half of the memory this process may use"):
        _files.read_arrays(path)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_a_compressed_batch_is_refused_before_it_is_unpacked(
    codec: str, stream: bool, whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa

    table = pa.table({"probs_0": np.zeros(500_000), "kind": pa.array(["x", "y"] * 250_000).dictionary_encode()})
    path, options = tmp_path / "a.arrow", pa.ipc.IpcWriteOptions(compression=codec)
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "w") as file, new(file, table.schema, options=options) as writer:
        writer.write(table)

    def read() -> list[int]:
        return [tables.read_table(path).num_rows] if whole else [one.num_rows for one in tables.batches_of(path)]

    assert sum(read()) == 500_000
    monkeypatch.setattr(_files, "memory_limit", lambda: 4_000_000)
    monkeypatch.setattr(tables, "_ipc_batches", lambda *_: pytest.fail("it was unpacked"))
    with pytest.raises(FileFormatError, match="half of the memory this process may use"):
        read()


def test_repeated_names_are_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(2))
    path = tmp_path / "twice.npz"
    with zipfile.ZipFile(path, "w") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("a.npy", buffer.getvalue())
        archive.writestr("a.npy", buffer.getvalue())
    with pytest.raises(FileFormatError, match="repeated"):
        _files.read_arrays(path)


def test_a_safetensors_header_that_lies_is_refused(tmp_path: Path) -> None:
    header = json.dumps({"logits": {"dtype": "F32", "shape": [10**9, 10**3], "data_offsets": [0, 8]}}).encode()
    path = tmp_path / "lie.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 8)
    with pytest.raises(FileFormatError, match="broken or truncated"):
        _files.read_arrays(path)


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    metadata = {f"name {index}": "ünïcode" for index in range(20)}
    written = set()
    for index in range(8):  # the library's own order of metadata changes from file to file
        path = tmp_path / f"{index}.safetensors"
        _files.write_arrays(path, ARRAYS, metadata=metadata)
        written.add(path.read_bytes())
    assert len(written) == 1
    assert _files.read_metadata(path) == metadata
    assert all(np.array_equal(array, ARRAYS[name]) for name, array in _files.read_arrays(path).items())


def test_nothing_partial_is_left_when_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "out.npz"
    path.write_bytes(b"before")
    with pytest.raises(RuntimeError, match="midway"), _places.atomic_write(path) as file:
        file.write(b"half")
        raise RuntimeError("midway")
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["out.npz"]
    with (
        pytest.raises(FileFormatError, match="expected a writable place"),
        _places.atomic_write(tmp_path / "no" / "x.npz"),
    ):
        pass


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="No space left"), _places.atomic_write(tmp_path / "x.npz"):
        raise OSError(28, "No space left on device")
    assert os.listdir(tmp_path) == []


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "a.npz"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    here = platform.node()
    names = {
        f".a.npz.{gone.pid}@{here}.x1.part": False,
        f".a.npz.{os.getpid()}@{here}.x2.part": True,  # alive
        f".a.npz.{gone.pid}@elsewhere-{here}.x3.part": True,  # another machine's
        f".b.npz.{gone.pid}@{here}.x4.part": True,  # another file's
        ".a.npz.notes.part": True,
    }
    for name in names:
        (tmp_path / name).touch()
    _files.write_arrays(target, {"logits": np.eye(2)})
    assert {name: (tmp_path / name).exists() for name in names} == names
    assert target.exists()
