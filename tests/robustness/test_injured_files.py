"""Injured files of every kind are read or refused in one sentence, quickly, and leave nothing behind.

``make nightly`` runs these; ``CALIBRANT_SEED=7 make nightly`` tries other injuries.
"""

import os
import random
import re
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.draws import drawn

import calibrant
from calibrant import Predictions
from calibrant.calibrators import TemperatureScaling, VectorScaling
from calibrant.errors import CalibrantError
from calibrant.operate import Monitor
from calibrant.study import load_study
from calibrant.study.load import FOLDER

CASES = 1000  # of each kind
BATCH = 250  # cases that share a process, so that a crash of a reader is seen as one
SLOW = 5.0  # seconds after which a case counts as a hang
SEED = int(os.environ.get("CALIBRANT_SEED", "0"))
READERS: dict[str, Callable[[Path], Any]] = {
    ".npz": lambda path: calibrant.read(path, split="val"),
    ".csv": calibrant.read,
    **dict.fromkeys((".parquet", ".feather", ".jsonl"), calibrant.read),
    ".calibrator": calibrant.load,
    ".monitor": Monitor.load,
    ".toml": load_study,
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[bytes]]:
    """Return good files of every kind."""
    folder = tmp_path_factory.mktemp("good")
    data = Predictions.from_logits(*drawn(40))
    calibrant.save_predictions(folder / "splits.npz", {"val": data[:20], "test": data[20:]})
    for suffix in (".parquet", ".feather", ".jsonl"):
        calibrant.save_predictions(folder / f"whole{suffix}", data)
    rows = (
        ",".join(f"{p:.6f}" for p in row) + f",{y}" for row, y in zip(data.logits.softmax(1), data.labels, strict=True)
    )
    (folder / "table.csv").write_text("\n".join(["p_0,p_1,p_2,p_3,label", *rows]))
    for number, calibrator in enumerate((TemperatureScaling(), VectorScaling())):
        calibrator.fit(*drawn(240)).save(folder / f"{number}.safetensors")
        (folder / f"{number}.safetensors").rename(folder / f"{number}.calibrator")
    Monitor(Predictions.from_logits(*drawn(240))).save(folder / "state.safetensors")
    (folder / "state.safetensors").rename(folder / "state.monitor")
    (folder / "recipe.toml").write_bytes(FOLDER.joinpath("presets", "digits.toml").read_bytes())
    return {kind: [path.read_bytes() for path in sorted(folder.glob(f"*{kind}"))] for kind in READERS}


def injure(content: bytes, rng: random.Random) -> bytes:
    """Return ``content`` with one to four random injuries: bits, cuts, repetitions, extremes, absurd numbers."""
    broken = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at, length = rng.randrange(len(broken) or 1), rng.choice((1, 1, 2, 4, 8, 64))
        numbers = list(re.finditer(rb"\d+", bytes(broken[:400])))
        match rng.randrange(6):
            case 0 if broken:
                broken[at] ^= 1 << rng.randrange(8)
            case 1:
                del broken[at:]
            case 2:
                broken[at : at + length] = rng.randbytes(length)
            case 3:
                broken[at:at] = broken[at : at + length]
            case 4:
                broken[at : at + length] = bytes([rng.choice((0, 1, 0x7F, 0xFF))]) * length
            case 5 if numbers:
                chosen = rng.choice(numbers)
                absurd = rng.choice((b"0", b"-1", b"9" * 18, b"1e9", b"2147483648"))
                broken[chosen.start() : chosen.end()] = absurd
    return bytes(broken)


def faults_of(kind: str, files: list[bytes], seeds: range, folder: Path) -> list[str]:
    """Read one injured file per seed; return a line for each fault."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    suffix = ".safetensors" if kind in (".calibrator", ".monitor") else kind
    faults = []
    for seed in seeds:
        rng = random.Random(f"{kind}{seed}")
        home = folder / str(seed)
        home.mkdir()
        path = home / f"case{suffix}"
        path.write_bytes(injure(rng.choice(files), rng))
        start = time.monotonic()
        try:
            READERS[kind](path)
        except CalibrantError as error:
            if "\n" in str(error):
                faults.append(f"{seed}: more than one line: {error}")
        except Exception as error:  # the very thing that is looked for
            faults.append(f"{seed}: {type(error).__name__}: {error}")
        if (seconds := time.monotonic() - start) > SLOW:
            faults.append(f"{seed}: took {seconds:.1f} s")
        if [entry for entry in home.iterdir() if entry != path]:
            faults.append(f"{seed}: left a file behind")
        path.unlink()
        home.rmdir()
    return faults


@pytest.mark.parametrize("kind", READERS)
def test_injured_files_are_read_or_refused_in_one_sentence(
    kind: str, good: dict[str, list[bytes]], tmp_path: Path
) -> None:
    faults: list[str] = []
    for first in range(SEED, SEED + CASES, BATCH):
        with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
            faults += pool.submit(faults_of, kind, good[kind], range(first, first + BATCH), tmp_path).result()
    assert faults == []
