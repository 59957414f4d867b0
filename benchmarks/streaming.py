"""Generated Parquet of any size, evaluated in bounded memory: rows a second, peak memory, and what a larger job costs.

    python -m benchmarks.streaming --rows 10000000 --classes 10

The file is written in row groups of at most 128k rows, evaluated with the panel's sums, and its temperature is fitted.
Memory is the peak resident size above what the imports take. The estimate at the end scales the measured rate to 10⁹ rows.
"""

import argparse
import json
import os
import resource
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from calibrant.calibrators import TemperatureScaling
from calibrant.scale import (
    Executor,
    evaluate_streamed,
    fit_streamed,
    in_turn,
    processes,
    ray_cluster,
)

GROUP = 128_000
TRUE_TEMPERATURE = 1.7


def peak() -> int:
    """Return the peak resident size in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def write(path: Path, rows: int, classes: int) -> None:
    """Write logits whose labels were drawn at temperature 1.7, in row groups of at most 128k rows."""
    rng = np.random.default_rng(0)
    schema = pa.schema({"logits": pa.list_(pa.float32(), classes), "label": pa.int64()})
    step = max(1, min(GROUP, (64 << 20) // (8 * classes)))
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for start in range(0, rows, step):
            logits = 4 * rng.standard_normal((min(step, rows - start), classes), dtype=np.float32)
            labels = (logits / TRUE_TEMPERATURE + rng.gumbel(size=logits.shape)).argmax(1)
            column = pa.FixedSizeListArray.from_arrays(pa.array(logits.reshape(-1)), classes)
            writer.write_table(pa.table([column, pa.array(labels)], schema=schema), row_group_size=GROUP)


def make_executor(name: str, workers: int) -> Executor:
    """Return the executor that the options name."""
    if name == "ray":
        return ray_cluster(workers=workers)
    return in_turn if workers == 1 else processes(workers)


class Murder:
    """A progress function that kills one Ray worker with SIGKILL when half of the rows are done."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self.killed = 0

    def __call__(self, done: int, total: int) -> None:
        if not self.wanted or self.killed or 2 * done < total:
            return
        for status in Path("/proc").glob("[0-9]*/cmdline"):
            if status.read_bytes().startswith(b"ray::_work"):
                os.kill(int(status.parent.name), signal.SIGKILL)
                self.killed += 1
                return


def timed(work: object) -> tuple[object, float]:
    """Return what ``work`` returns, and its wall seconds."""
    start = time.perf_counter()
    result = work()  # type: ignore[operator]
    return result, time.perf_counter() - start


def main(arguments: list[str] | None = None) -> None:
    """Run and print one JSON record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--executor", choices=("local", "ray"), default="local")
    parser.add_argument("--kill", action="store_true", help="kill a Ray worker in the middle of the evaluation")
    parser.add_argument("--no-fit", action="store_true", help="evaluate only")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    executor = make_executor(options.executor, options.workers)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.parquet")
        write(path, 1000, options.classes)
        evaluate_streamed(path)  # imports and first allocations do not count
        warm = peak()
        _, writing = timed(lambda: write(path, options.rows, options.classes))
        before = max(peak(), warm)
        murder = Murder(options.kill)
        figures, judging = timed(lambda: evaluate_streamed(path, executor=executor, progress=murder))
        fitted, fitting = (
            (None, 0.0)
            if options.no_fit
            else timed(lambda: fit_streamed(TemperatureScaling(), path, executor=executor))
        )
        size = path.stat().st_size
    rate = options.rows / judging
    record = {
        "rows": options.rows, "classes": options.classes, "workers": options.workers, "bytes": size,
        "seconds_write": round(writing, 1), "seconds_evaluate": round(judging, 1), "seconds_fit": round(fitting, 1),
        "rows_per_second": round(rate), "mib_per_second": round(size / judging / 2**20, 1),
        "peak_mib_after_import": peak() - warm, "peak_mib_of_writing": before - warm,
        "temperature": fitted and fitted.temperature, "workers_killed": murder.killed,
        "figures": {one.metric: one.value for one in figures},
        "hours_for_1e9_rows_of_this_width_on_one_core": round(1e9 / rate * options.workers / 3600, 2),
    }  # fmt: skip
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
