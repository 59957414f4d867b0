"""Compares the speed of metrics, calibrators, losses and the report with other libraries, at fixed sizes.

    python -m benchmarks.race                                 # everything, about 20 minutes (also `make bench`)
    python -m benchmarks.race metrics --threads 1             # one family on one thread
    python -m benchmarks.race --json DIR                      # stores records, and resumes an interrupted run
    python -m benchmarks.race --table benchmarks/records      # the table in docs/evidence.md, from records

Libraries that are not installed are left out. benchmarks/race/peers.txt names the versions that were measured.
"""

import argparse
import importlib
import json
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path

import torch

from benchmarks.race import run, show, summary
from benchmarks.records import Store, cores, machine, versions

FAMILIES = ("metrics", "calibrators", "losses", "report")


def race(family: str, threads: int, folder: Path | None, only: str) -> None:
    """Run the races of one family that are not yet in its records, and print their tables."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(threads)
    races = [one for one in importlib.import_module(f"benchmarks.race.{family}").RACES if only in one.name]
    store = Store(folder, family)
    for number, one in enumerate(races, 1):
        key = {"name": one.name, "rows": one.rows, "classes": one.classes, "threads": threads}
        if (record := store.find(key)) is None:
            record = run(one, threads)
            store.add(record)
        show(record)
        print(f"\n({family} {number} of {len(races)})", flush=True)


def table(folder: Path) -> str:
    """Return one table of all records with one thread."""
    kept = [folder / f"bench-{family}.json" for family in FAMILIES]
    records = [one for path in kept if path.exists() for one in json.loads(path.read_text())["records"]]
    return "\n".join(summary([one for one in records if one["threads"] == 1]))


def main() -> int:
    """Run each family in a separate process, because libraries read the number of threads at import; return how many failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"{', '.join(FAMILIES)}; all by default")
    parser.add_argument("--threads", choices=["1", "all", "both"], default="both")
    parser.add_argument("--json", type=Path, help="folder in which records are stored")
    parser.add_argument("--only", default="", help="run only the races whose names contain this text")
    parser.add_argument(
        "--table", type=Path, metavar="DIR", help="print the table of these records instead of running races"
    )
    parser.add_argument("--in-process", type=int, metavar="THREADS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := sorted(set(options.families) - set(FAMILIES)):
        parser.error(f"expected families among {', '.join(FAMILIES)}, got {', '.join(unknown)}")
    if options.table:
        print(table(options.table))
        return 0
    if options.in_process:
        race(options.families[0], options.in_process, options.json, options.only)
        return 0
    print(", ".join(f"{name} {value}" for name, value in (machine() | versions()).items()), flush=True)
    failed = 0
    for threads in {"1": [1], "all": [cores()], "both": sorted({1, cores()})}[options.threads]:
        for family in options.families or FAMILIES:
            print(f"\n## {family}, {threads} thread{'s' * (threads > 1)}", flush=True)
            command = [sys.executable, "-m", "benchmarks.race", family, "--in-process", str(threads)]
            command += ["--only", options.only] + (["--json", str(options.json)] if options.json else [])
            environment = os.environ | {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
            failed += subprocess.run(command, env=environment, check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
