"""What the tests of studies share: a small study as a file, images as arrays, and texts as the hub has them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def study_text(
    losses: Mapping[str, str],
    *,
    data: str,
    training: str,
    seeds: str = "[0, 1]",
    model: str = 'type = "MLP", hidden = [8]',
) -> str:
    """A study of digits as TOML; ``losses`` holds the table of each objective's loss by its label."""
    text = f'name = "small"\ntitle = "t"\nabout = "a"\nseeds = {seeds}\ndata = {{ name = "digits", {data} }}\n'
    text += f"model = {{ {model} }}\ntraining = {{ {training} }}\n"
    return text + "".join(
        f'[[objectives]]\nlabel = "{label}"\nloss = {{ type = {loss} }}\n' for label, loss in losses.items()
    )


def write_images(
    folder: Path, *, train: tuple[int, ...] = (30,), test: int = 12, side: int = 32, seed: int = 0
) -> dict[str, np.ndarray]:
    """Write parts of so many random images each, and return them by the names of their files."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    counts = {**{f"train-{part}": count for part, count in enumerate(train)}, "test-0": test}
    made = {name: rng.integers(0, 256, (count, side, side, 3), dtype=np.uint8) for name, count in counts.items()}
    for name, pixels in made.items():
        np.savez(folder / f"{name}.npz", images=pixels, labels=np.arange(len(pixels)) % 10)
    return made


def write_texts(folder: Path, **columns: Any) -> Path:
    """Write the same columns as training and as test texts."""
    pa = pytest.importorskip("pyarrow", reason="optional package 'pyarrow' is not installed")
    import pyarrow.parquet

    for name in ("train", "test"):
        pyarrow.parquet.write_table(pa.table(columns), folder / f"{name}.parquet")
    return folder
