"""Every comparison with other libraries, one after the other: ``make bench``, or ``python -m benchmarks``.

    python -m benchmarks                       # metrics, calibrators, losses, report, kernels, growth and limits
    python -m benchmarks metrics --threads 1   # one of them
    python -m benchmarks --json DIR            # keeps records; stopped, it goes on where it was
    python -m benchmarks.page DIR              # the page of the documentation from the records
    python -m benchmarks --list                # what else there is, with a sentence each

Tables go to stdout as Markdown, so ``python -m benchmarks > bench.md`` keeps them.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.records import cores, machine, versions

HERE = Path(__file__).parent
RACES = {"metrics": "metrics", "calibrators": "fits", "losses": "objectives", "report": "reports", "kernels": "kernels"}
ALONE = {"growth": "growth", "limits": "limits"}  # on one thread only


def modules() -> dict[str, str]:
    """Return the first sentence of every benchmark by its name."""
    found = {}
    for path in sorted(HERE.glob("*.py")):
        if not path.stem.startswith("_"):
            found[path.stem] = path.read_text().split('"""')[1].split("\n")[0]
    return found


def commands(names: list[str], threads: list[int], folder: Path | None) -> list[tuple[str, int, list[str]]]:
    """Return (title, threads, arguments of Python) of everything that is asked for."""
    keep = ["--json", str(folder)] if folder else []
    found = []
    for count in threads:
        for name in names:
            if name in RACES:
                arguments = ["-m", "benchmarks.race", RACES[name], "--threads", str(count), *keep]
                found.append((f"{name}, {count} threads" if count > 1 else f"{name}, one thread", count, arguments))
            elif count == 1:
                found.append((f"{name}, one thread", 1, ["-m", f"benchmarks.{ALONE[name]}", *keep]))
    return found


def main() -> int:
    """Run what is named, each in a process of its own; return how many failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [*RACES, *ALONE]
    parser.add_argument("names", nargs="*", default=[], help=f"out of {', '.join(every)}; none means all")
    parser.add_argument("--threads", choices=["1", "all", "both"], default="both", help="which tables to make")
    parser.add_argument("--json", type=Path, help="folder to keep records in")
    parser.add_argument("--list", action="store_true", help="say what there is, and stop")
    options = parser.parse_args()
    if options.list:
        for name, sentence in modules().items():
            print(f"python -m benchmarks.{name:24} {sentence}")
        return 0
    if unknown := sorted(set(options.names) - set(every)):
        parser.error(f"expected names out of {', '.join(every)}, got {', '.join(unknown)}")
    threads = {"1": [1], "all": [cores()], "both": sorted({1, cores()})}[options.threads]
    print(", ".join(f"{name} {value}" for name, value in (machine() | versions()).items()), flush=True)
    failed, start = 0, time.monotonic()
    todo = commands(options.names or every, threads, options.json)
    for number, (title, count, arguments) in enumerate(todo, 1):
        print(f"\n## {title} ({number} of {len(todo)}, {time.monotonic() - start:.0f} s so far)", flush=True)
        environment = os.environ | {name: str(count) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        failed += subprocess.run([sys.executable, *arguments], env=environment, check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
