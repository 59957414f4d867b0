"""Broken and hostile files by the thousand: every one must be read or refused in one sentence, fast, without a trace.

    python -m benchmarks.fuzz --cases 20000
    python -m benchmarks.fuzz --minutes 10 --seed 7

Each case is a good file with bytes flipped, cut, doubled or overwritten, or a header field replaced by an absurd one. The
good files are those of every kind that the tests keep (tests/fixtures), read by the reader of their kind.
Cases run in worker processes, so that a crash of a reader is seen as what it is. The command prints how many cases were
tried, how many were refused, and exits with 1 if any crashed, hung, raised something else, or left a file behind.
"""

import argparse
import itertools
import random
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import calibrant
from calibrant.errors import CalibrantError
from calibrant.language import read_openai
from calibrant.operate import Deployed, Monitor
from calibrant.operate.check import Policy
from calibrant.operate.decide import read_costs
from calibrant.scale import evaluate_streamed
from calibrant.study import load_study

SLOW = 5.0  # seconds after which a case counts as a hang
BATCH = 250  # cases that share a process
KEPT = Path(__file__).parent.parent / "tests" / "fixtures"

# Every reader, by the kind of file that it reads: good files of that kind, and what is called on an injured one.
READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "splits": ("before-1.0/files/splits.*", calibrant.load_splits),
    "table": ("before-1.0/files/table.*", calibrant.read),
    "tensors": ("before-1.0/files/tensors.pt", calibrant.read),
    "several labels": ("before-1.0/files/labels.*", calibrant.load_multilabel),
    "pairs": ("before-1.0/files/pairs.*", calibrant.load_splits),
    "stream": ("before-1.0/files/whole.parquet", evaluate_streamed),
    "costs": ("before-1.0/files/costs.csv", read_costs),
    "calibrator": ("before-1.0/calibrators/*.safetensors", calibrant.load),
    "monitor": ("before-1.0/operate/[mw]*.safetensors", Monitor.load),
    "deployed": ("before-1.0/operate/deployed*.safetensors", Deployed.load),
    "study": ("before-1.0/study/small.toml", load_study),
    "policy": ("policy.toml", Policy.from_file),
    "log": ("language/*.jsonl", read_openai),
}


def good_files(kind: str) -> list[Path]:
    """Return the valid files of ``kind`` that the tests keep."""
    return sorted(KEPT.glob(READERS[kind][0]))


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
    warnings.simplefilter("ignore")
    outcomes: Counter[str] = Counter()
    faults: list[str] = []
    good, read = good_files(kind), READERS[kind][1]
    with tempfile.TemporaryDirectory() as home:
        for seed in seeds:
            random_ = random.Random(f"{kind}{seed}")
            chosen = random_.choice(good)
            folder = Path(home) / str(seed)
            folder.mkdir()
            path = folder / f"case{chosen.suffix}"
            path.write_bytes(mutate(chosen.read_bytes(), random_))
            case = f"{kind} ({chosen.name}) seed {seed}"
            start = time.monotonic()
            try:
                read(path)
                outcomes["read"] += 1
            except CalibrantError as error:
                outcomes["refused"] += 1
                if "\n" in str(error):
                    faults.append(f"{case}: more than one line: {error}")
            except Exception as error:  # the very thing that is looked for
                faults.append(f"{case}: {type(error).__name__}: {error}")
            if time.monotonic() - start > SLOW:
                faults.append(f"{case}: took {time.monotonic() - start:.1f} s")
            if left := [entry.name for entry in folder.iterdir() if entry != path]:
                faults.append(f"{case}: left {left}")
            shutil.rmtree(folder)
    return outcomes, faults


def main(arguments: list[str] | None = None) -> int:
    """Run the cases and print the counts; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=20_000, help="inputs in all, the same number of each kind")
    parser.add_argument("--minutes", type=float, default=0, help="go on for so long instead")
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    options = parser.parse_args(arguments)
    outcomes: Counter[str] = Counter()
    faults: list[str] = []
    start = time.monotonic()
    end = options.seed + (sys.maxsize if options.minutes else -(-options.cases // len(READERS)))
    for first, kind in ((first, kind) for first in itertools.count(options.seed, BATCH) for kind in READERS):
        if first >= end or (options.minutes and time.monotonic() - start > 60 * options.minutes):
            break
        last = min(first + BATCH, end)
        with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
            try:
                counts, wrong = pool.submit(try_cases, kind, range(first, last)).result()
            except BrokenProcessPool:
                counts, wrong = Counter(), [f"{kind} seeds {first} to {last}: the reader crashed"]
        outcomes += counts
        faults += wrong
    seconds = time.monotonic() - start
    print(
        f"{sum(outcomes.values()):,} inputs tried in {seconds:.0f} s: {outcomes['refused']:,} refused in one sentence, "
        f"{outcomes['read']:,} read, {len(faults)} faults"
    )
    print("\n".join(faults[:20]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
