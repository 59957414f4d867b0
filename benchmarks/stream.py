"""Evaluates and fits a folder of Parquet files in bounded memory, and compares the time with that for decoding the files.

    python -m benchmarks.stream                                     # 10 million rows of 10 classes, about 2 minutes
    python -m benchmarks.stream --rows 100000000 --repeats 1 --fit --ray 2 --folder D   # 4 GB in D, about 10 minutes

The first part runs on one thread in one process. Decoding with PyArrow reads the same columns of the same files without using
them; it alternates with the evaluation, and medians are reported. Memory is the peak resident size minus that after the imports.
With --ray, Ray workers perform the same evaluation, and one of them is killed during the run; the figures must be bit-identical.
"""

import argparse
import json
import os
import resource
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from calibrant.calibrators import TemperatureScaling
from calibrant.scale import batches, evaluate, on_ray

GROUP = 128_000  # rows of a row group
FILE = 20 * GROUP
TEMPERATURE = 1.7  # at which the labels are drawn


def write(folder: Path, rows: int, classes: int) -> None:
    """Write uncompressed files of logits with labels drawn at temperature 1.7."""
    rng = np.random.default_rng(0)
    schema = pa.schema({"logits": pa.list_(pa.float32(), classes), "label": pa.int64()})
    step = max(1, min(GROUP, (64 << 20) // (8 * classes)))
    for first in range(0, rows, FILE):
        path = folder / f"{first:012}.parquet"
        with pq.ParquetWriter(path, schema, use_dictionary=False, compression="none") as writer:
            for start in range(first, min(rows, first + FILE), step):
                here = min(step, rows - start, first + FILE - start)
                logits = 4 * rng.standard_normal((here, classes), dtype=np.float32)
                labels = (logits / TEMPERATURE + rng.gumbel(size=logits.shape)).argmax(1)
                column = pa.FixedSizeListArray.from_arrays(pa.array(logits.reshape(-1)), classes)
                writer.write_table(pa.table([column, pa.array(labels)], schema=schema), row_group_size=GROUP)


def decode(folder: Path) -> int:
    """Read all rows without using them, and return their number."""
    rows = 0
    for path in sorted(folder.glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            rows += sum(batch.num_rows for batch in file.iter_batches(batch_size=GROUP, use_threads=False))
    return rows


def seconds(work: Callable[[], Any]) -> float:
    """Return the wall seconds of a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak_mib() -> int:
    """Return the peak resident size of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def measure(folder: Path, *, repeats: int, fit: bool) -> dict[str, Any]:
    """Return the times and the memory of one folder."""
    decoding, evaluating = [], []
    for _ in range(repeats):
        decoding.append(seconds(lambda: decode(folder)))
        evaluating.append(seconds(lambda: evaluate(batches(folder))))
    rows = decode(folder)
    found: dict[str, Any] = {
        "rows": rows,
        "bytes": sum(path.stat().st_size for path in folder.iterdir()),
        "seconds_decode": round(median(decoding), 2),
        "seconds_evaluate": round(median(evaluating), 2),
        "rows_per_second": round(rows / median(evaluating)),
    }
    if fit:
        calibrator = TemperatureScaling()
        found["seconds_fit"] = round(seconds(lambda: calibrator.fit(batches(folder))), 2)
        found["temperature"] = round(calibrator.temperature, 4)
    return found


def kill_a_worker(victims: list[int], done: threading.Event) -> None:
    """Wait ten seconds, kill the first process that works on a Ray task, and add its number to ``victims``."""
    done.wait(10.0)
    while not victims and not done.wait(0.2):
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            if place.read_bytes().startswith(b"ray::_call"):
                victims.append(int(place.parent.name))
                os.kill(victims[0], signal.SIGKILL)
                break


def measure_ray(folder: Path, workers: int) -> dict[str, Any]:
    """Evaluate with Ray workers, killing one after ten seconds, and compare the figures with those of one process."""
    import ray

    ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)
    victims: list[int] = []
    done = threading.Event()
    killer = threading.Thread(target=kill_a_worker, args=(victims, done))
    killer.start()
    start = time.perf_counter()
    found = evaluate(on_ray(folder))
    taken = time.perf_counter() - start
    done.set()
    killer.join()
    ray.shutdown()
    return {"seconds_ray": round(taken, 2), "killed": len(victims), "ray_equals": found == evaluate(batches(folder))}


def main() -> None:
    """Write the folder if it is empty, measure it, and print one JSON record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--fit", action="store_true", help="also fit a temperature")
    parser.add_argument(
        "--ray", type=int, metavar="WORKERS", help="also evaluate with this many Ray workers, and kill one of them"
    )
    parser.add_argument(
        "--folder", type=Path, help="folder in which the rows are written and kept; a temporary folder by default"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        small, folder = Path(temporary, "small"), options.folder or Path(temporary, "rows")
        small.mkdir()
        folder.mkdir(parents=True, exist_ok=True)
        write(small, 1000, options.classes)
        measure(small, repeats=1, fit=options.fit)  # imports and first allocations do not count
        if not any(folder.iterdir()):
            write(folder, options.rows, options.classes)
        before = peak_mib()
        found = measure(folder, repeats=options.repeats, fit=options.fit)
        found |= {"classes": options.classes, "peak_mib_beyond": peak_mib() - before}
        if options.ray:
            found |= measure_ray(folder, options.ray)
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
