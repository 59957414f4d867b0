"""Damaged files of every format: read, or refused in one sentence; never a traceback."""

import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save


def whole_file(suffix: str) -> bytes:
    logits = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    labels = np.arange(30) % 3
    file = io.BytesIO()
    if suffix == ".npz":
        np.savez(file, val_logits=logits, val_labels=labels, test_logits=logits + 1, test_labels=labels)
    elif suffix == ".safetensors":
        return save({"logits": logits, "labels": labels})
    else:
        column = pa.FixedSizeListArray.from_arrays(pa.array(logits.reshape(-1)), 3)
        pq.write_table(pa.table({"logits": column, "label": pa.array(labels)}), file)
    return file.getvalue()


def damage(content: bytes, rng: random.Random) -> bytes:
    """Return ``content`` with bytes overwritten, cut off or pushed in."""
    changed, where = bytearray(content), rng.randrange(len(content))
    kind = rng.choice(["overwrite", "cut", "insert"])
    if kind == "cut":
        return bytes(changed[:where])
    if kind == "insert":
        changed[where:where] = rng.randbytes(rng.choice([1, 100]))
        return bytes(changed)
    for _ in range(rng.choice([1, 2, 8])):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet"])
def test_damaged_files_are_refused_in_one_sentence(suffix: str, tmp_path: Path, run: Callable[..., Any]) -> None:
    content, rng, refused = whole_file(suffix), random.Random(0), 0
    for turn in range(120):
        path = tmp_path / f"{turn}{suffix}"
        path.write_bytes(damage(content, rng))
        done = run("evaluate", path, "--draws", 0)
        assert done.exit_code in (0, 2), (turn, done.exception)
        if done.exit_code == 2:
            refused += 1
            assert done.stdout == "", turn
            last = done.stderr.splitlines()[-1]
            assert last.startswith("error: "), turn
            assert "expected" in last, (turn, last)
    assert refused > 60
