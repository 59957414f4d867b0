"""A saved calibrator that was altered is refused, or, where an old file has no digest, gives at least normalised, finite rows."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.contracts.test_calibrators import FAMILY, content_of, fitted
from torch import Tensor

from calibrant import load
from calibrant.errors import CalibrantError

FILES = 100  # a class, whose own checks are tried
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -1.0, 1.0, 1e308, -1e308, 1e-308, 1e30, 2.0**63)
WHOLE_NUMBERS = (0, -1, 1, 2, 3, 5, 1 << 26, 1 << 40, -(1 << 62), (1 << 63) - 1)


def altered(value: Tensor, rng: np.random.Generator) -> Tensor:
    """Return ``value`` with one thing changed: an entry, a bit, the order, the shape or the dtype."""
    kind = int(rng.integers(7))
    flat = value.clone().reshape(-1)
    if kind == 5 or not flat.numel():
        shape = (*value.shape, 1) if rng.integers(2) else (int(rng.integers(1, 9)),)
        return torch.ones(shape, dtype=value.dtype)
    if kind == 6:
        return value.to([torch.float32, torch.int64, torch.uint8, torch.float16][int(rng.integers(4))])
    at = int(rng.integers(flat.numel()))
    if kind == 4:
        return flat.flip(0).reshape(value.shape)
    if kind == 3:
        return (-flat if rng.integers(2) else flat * float(rng.normal(0, 100))).to(value.dtype).reshape(value.shape)
    if kind == 2:
        bits = flat.numpy().view(np.uint8)
        bits[int(rng.integers(bits.size))] ^= 1 << int(rng.integers(8))
    elif value.is_floating_point():
        flat[at] = SPECIAL[int(rng.integers(len(SPECIAL)))]
    else:
        flat[at] = torch.tensor(WHOLE_NUMBERS[int(rng.integers(len(WHOLE_NUMBERS)))]).to(value.dtype)
    return flat.reshape(value.shape)


def same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()


def altered_files(name: str, path: Path) -> Iterator[str]:
    """Write ``FILES`` files of class ``name`` without a digest, each with one buffer altered, and yield what was altered."""
    fitted(name).save(path)
    arrays, metadata = content_of(path)
    metadata = {key: value for key, value in metadata.items() if key != "digest"}
    metadata["format"] = "calibrant-calibrator-1"
    rng, keys = np.random.default_rng(0), sorted(arrays)
    for trial in range(FILES):
        key = keys[trial % len(keys)]
        change = altered(arrays[key], rng)
        if not same(change, arrays[key]):
            save_file({**arrays, key: change.contiguous()}, path, metadata=metadata)
            yield f"{key} of {name}, trial {trial}"


def probes() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(40, 4, generator=generator, dtype=torch.float64)
    return torch.cat([rows * scale for scale in (0.01, 1.0, 10.0, 300.0)])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # of PyTorch, about shapes that no fit gives
@pytest.mark.parametrize("name", FAMILY)
def test_an_altered_file_without_digest_is_refused_or_gives_normal_rows(name: str, tmp_path: Path) -> None:
    path, tried = tmp_path / "c.safetensors", 0
    for what in altered_files(name, path):
        tried += 1
        try:
            loaded = load(path)
        except CalibrantError:
            continue
        # with another number of classes it answers another model, and refuses our rows
        for rows in (probes(), probes().float()) if int(loaded.classes) == 4 else ():
            answer = loaded(rows)
            total = torch.softmax(answer.double(), dim=1).sum(dim=1)
            assert answer.shape == rows.shape, what
            assert not bool(torch.isnan(answer).any() | (answer == math.inf).any()), what
            assert bool(((total - 1).abs() < 1e-6).all()), what
    assert tried > FILES / 2


@pytest.mark.parametrize("name", FAMILY)
def test_a_bit_that_changed_anywhere_in_a_state_is_noticed(name: str, tmp_path: Path) -> None:
    path, rng = tmp_path / "state.safetensors", np.random.default_rng(FAMILY.index(name))
    fitted(name).save(path)
    content = path.read_bytes()
    header = int.from_bytes(content[:8], "little") + 8
    places = [*rng.integers(8, header, 20), *rng.integers(0, len(content), 20)]  # its numbers stand in the header, too
    for at in places:
        broken = bytearray(content)
        broken[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(broken)
        with pytest.raises(CalibrantError):
            load(path)
