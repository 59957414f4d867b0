"""Broken and hostile files by the thousand: every one must be read or refused in one sentence, fast, without a trace.

    python -m benchmarks.fuzz --cases 20000

Each case is a good file with bytes flipped, cut, doubled or overwritten, or a header field replaced by an absurd one.
Cases run in worker processes, so that a crash of a reader is seen as what it is. The command prints how many cases were
tried, how many were refused, and exits with 1 if any crashed, hung, raised something else, or left a file behind.
"""

import argparse
import random
import re
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib import resources
from multiprocessing import get_context
from pathlib import Path

import numpy as np

import calibrant
from calibrant import Predictions
from calibrant.calibrators import TemperatureScaling
from calibrant.errors import CalibrantError
from calibrant.scale import evaluate_streamed
from calibrant.study import load_study

SLOW = 5.0  # seconds after which a case counts as a hang
KINDS = (".npz", ".safetensors", ".parquet", ".calibrator.safetensors", ".folder.parquet", ".study.toml")


def suffix_of(kind: str) -> str:
    """Return the file suffix of ``kind``."""
    return "." + kind.rsplit(".", 1)[-1]


def good_file(kind: str, folder: Path) -> bytes:
    """Return the bytes of a valid file of ``kind``."""
    if kind == ".study.toml":
        return resources.files("calibrant.study").joinpath("presets", "digits.toml").read_bytes()
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 40)
    data = Predictions.from_logits((rng.normal(size=(40, 4)) + 2 * np.eye(4)[labels]).astype(np.float32), labels)
    path = folder / f"good{suffix_of(kind)}"
    if kind.startswith(".calibrator"):
        TemperatureScaling().fit(data.logits, data.need_labels()).save(path)
    else:
        calibrant.save_predictions(path, {"all": data})
    content = path.read_bytes()
    path.unlink()
    return content


def mutate(content: bytes, random_: random.Random) -> bytes:
    """Return ``content`` with one to four random injuries."""
    broken = bytearray(content)
    for _ in range(random_.randint(1, 4)):
        if not broken:
            break
        at, length = random_.randrange(len(broken)), random_.choice((1, 1, 2, 4, 8, 64))
        match random_.randrange(6):
            case 0:
                broken[at] ^= 1 << random_.randrange(8)
            case 1:
                del broken[at:]
            case 2:
                broken[at : at + length] = random_.randbytes(length)
            case 3:
                broken[at:at] = broken[at : at + length]
            case 4:
                extreme = random_.choice((0, 1, 0x7F, 0xFF))
                broken[at : at + length] = bytes([extreme]) * length
            case _:  # a number in a text header becomes an absurd one
                numbers = list(re.finditer(rb"\d+", bytes(broken[:400])))
                if numbers:
                    chosen = random_.choice(numbers)
                    absurd = random_.choice((b"0", b"-1", b"9" * 18, b"1e9", b"2147483648"))
                    broken[chosen.start() : chosen.end()] = absurd
    return bytes(broken)


def try_cases(kind: str, seeds: range) -> tuple[Counter[str], list[str]]:
    """Read one mutated file a seed; return the counts of outcomes and a line for each fault."""
    import warnings

    warnings.simplefilter("ignore")
    outcomes: Counter[str] = Counter()
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        content = good_file(kind, folder)
        for seed in seeds:
            path = folder / f"case{suffix_of(kind)}"
            path.write_bytes(mutate(content, random.Random(f"{kind}{seed}")))
            start = time.monotonic()
            try:
                read(kind, path)
                outcomes["read"] += 1
            except CalibrantError as error:
                outcomes["refused"] += 1
                if "\n" in str(error):
                    faults.append(f"{kind} seed {seed}: more than one line: {error}")
            except Exception as error:  # the very thing that is looked for
                faults.append(f"{kind} seed {seed}: {type(error).__name__}: {error}")
            if time.monotonic() - start > SLOW:
                faults.append(f"{kind} seed {seed}: took {time.monotonic() - start:.1f} s")
            path.unlink()
            if left := [entry.name for entry in folder.iterdir()]:
                faults.append(f"{kind} seed {seed}: left {left}")
    return outcomes, faults


def read(kind: str, path: Path) -> None:
    """Read ``path`` as a user would."""
    if kind.startswith(".calibrator"):
        calibrant.load(path)
    elif kind.startswith(".folder"):
        evaluate_streamed(path)
    elif kind.startswith(".study"):
        load_study(path)
    else:
        calibrant.load_splits(path)


def main(arguments: list[str] | None = None) -> int:
    """Run the cases and print the counts; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=20_000, help="inputs in all")
    options = parser.parse_args(arguments)
    outcomes: Counter[str] = Counter()
    faults: list[str] = []
    each = -(-options.cases // len(KINDS))
    jobs = [(kind, range(i, min(i + 500, each))) for kind in KINDS for i in range(0, each, 500)]
    start = time.monotonic()
    for kind, seeds in jobs:
        with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
            try:
                counts, wrong = pool.submit(try_cases, kind, seeds).result()
            except BrokenProcessPool:
                counts, wrong = Counter(), [f"{kind} seeds {seeds}: the reader crashed"]
        outcomes += counts
        faults += wrong
    seconds = time.monotonic() - start
    tried = sum(outcomes.values())
    print(
        f"{tried:,} inputs tried in {seconds:.0f} s: {outcomes['refused']:,} refused in one sentence, "
        f"{outcomes['read']:,} read, {len(faults)} faults"
    )
    print("\n".join(faults[:20]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
