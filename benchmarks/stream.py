"""Generated Parquet of any size in bounded memory: evaluated, beside the time PyArrow takes to decode it, and fitted.

    python -m benchmarks.streaming --rows 10000000 --classes 10 --repeats 3
    python -m benchmarks.streaming --rows 10000000 --classes 10 --workers 2 --fit auto --no-evaluate

The folder holds uncompressed files of row groups of at most 128k rows, with page checksums, which every read verifies.
Evaluation takes the panel's sums in one pass. The decoding beside it reads the same columns of the same files in the same
pieces and does nothing with them; both on one thread, in turn, the medians of all repeats. Memory is the peak resident size
above what the imports take, of this process and of the largest worker.
"""

import argparse
import json
import os
import resource
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from calibrant.calibrators import AutoCalibrator, Calibrator, TemperatureScaling
from calibrant.evaluate.panel import PanelRow
from calibrant.scale import (
    evaluate_streamed,
    fit_streamed,
    processes,
    ray_cluster,
)
from calibrant.scale.execute import Executor, in_turn
from calibrant.scale.rows import PIECE_BYTES, ParquetRows, open_parquet

GROUP = 128_000
FILE = 20 * GROUP  # rows of a file
TRUE_TEMPERATURE = 1.7
FITS: dict[str, Callable[[], Calibrator]] = {"temperature": TemperatureScaling, "auto": AutoCalibrator}


def peak(who: int = resource.RUSAGE_SELF) -> int:
    """Return the peak resident size in MiB: of this process, or of the largest worker that has ended."""
    return resource.getrusage(who).ru_maxrss // 1024


def write(folder: Path, rows: int, classes: int) -> None:
    """Write logits whose labels were drawn at temperature 1.7, in row groups of at most 128k rows, without compression."""
    rng = np.random.default_rng(0)
    schema = pa.schema({"logits": pa.list_(pa.float32(), classes), "label": pa.int64()})
    step = max(1, min(GROUP, (64 << 20) // (8 * classes)))
    settings: dict[str, Any] = {"use_dictionary": False, "compression": "none", "write_page_checksum": True}
    for first in range(0, rows, FILE):
        with pq.ParquetWriter(folder / f"{first:012}.parquet", schema, **settings) as writer:
            for start in range(first, min(rows, first + FILE), step):
                here = min(step, rows - start, first + FILE - start)
                logits = 4 * rng.standard_normal((here, classes), dtype=np.float32)
                labels = (logits / TRUE_TEMPERATURE + rng.gumbel(size=logits.shape)).argmax(1)
                column = pa.FixedSizeListArray.from_arrays(pa.array(logits.reshape(-1)), classes)
                writer.write_table(pa.table([column, pa.array(labels)], schema=schema), row_group_size=GROUP)


def decode(folder: Path) -> int:
    """Read all rows as the evaluation does, and do nothing with them; return how many there were."""
    source = ParquetRows(folder)
    step, rows = max(1, PIECE_BYTES // (4 * source.classes)), 0
    for file in source.files:
        with open_parquet(file) as parquet:
            batches = parquet.iter_batches(batch_size=step, columns=["logits", "label"], use_threads=False)
            rows += sum(batch.num_rows for batch in batches)
    return rows


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


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return what ``work`` returns, and its wall seconds."""
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def evaluated(folder: Path, executor: Executor, options: argparse.Namespace) -> dict[str, Any]:
    """Return the record of evaluations beside decodings."""
    murder = Murder(options.kill)
    figures: list[PanelRow] = []
    judging, decoding = [], []
    for _ in range(options.repeats):
        decoding.append(timed(lambda: decode(folder))[1])
        figures, seconds = timed(lambda: evaluate_streamed(folder, executor=executor, progress=murder))
        judging.append(seconds)
    seconds, size = median(judging), sum(file.stat().st_size for file in folder.iterdir())
    rate = options.rows / seconds
    return {
        "seconds_evaluate": round(seconds, 2), "seconds_decode": round(median(decoding), 2),
        "times_decoding": round(seconds / median(decoding), 2), "repeats": options.repeats,
        "rows_per_second": round(rate), "mib_per_second": round(size / seconds / 2**20, 1),
        "figures": {one.metric: one.value for one in figures}, "workers_killed": murder.killed,
        "hours_for_1e9_rows_of_this_width_on_one_core": round(1e9 / rate * options.workers / 3600, 2),
    }  # fmt: skip


def fitted(folder: Path, executor: Executor, name: str) -> dict[str, Any]:
    """Return the record of one fit."""
    passes: set[int] = set()
    found, seconds = timed(
        lambda: fit_streamed(FITS[name](), folder, executor=executor, progress=lambda begun, _, __: passes.add(begun))
    )
    return {"seconds_fit": round(seconds, 1), "passes_fit": len(passes), "fitted": found.learned()}


def main(arguments: list[str] | None = None) -> None:
    """Run and print one JSON record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--executor", choices=("local", "ray"), default="local")
    parser.add_argument("--kill", action="store_true", help="kill a Ray worker in the middle of the evaluation")
    parser.add_argument("--fit", choices=tuple(FITS), help="also fit this calibrator")
    parser.add_argument("--no-evaluate", action="store_true", help="fit only")
    parser.add_argument("--repeats", type=int, default=1, help="evaluations, each beside a decoding")
    parser.add_argument("--folder", type=Path, help="where the data are written and kept; a temporary one if left out")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    executor = make_executor(options.executor, options.workers)
    with tempfile.TemporaryDirectory() as temporary:
        small, folder = Path(temporary, "small"), options.folder or Path(temporary, "rows")
        small.mkdir()
        write(small, 1000, options.classes)
        evaluate_streamed(small)  # imports and first allocations do not count
        warm = peak()
        folder.mkdir(parents=True, exist_ok=True)
        writing = 0.0 if any(folder.iterdir()) else timed(lambda: write(folder, options.rows, options.classes))[1]
        if (found := ParquetRows(folder)).rows != options.rows or found.classes != options.classes:
            parser.error(f"{folder} holds {found.rows} rows of {found.classes} classes: name another folder")
        before = peak()
        record: dict[str, Any] = {
            "rows": options.rows, "classes": options.classes, "workers": options.workers,
            "executor": options.executor, "bytes": sum(file.stat().st_size for file in folder.iterdir()),
            "seconds_write": round(writing, 1),
        }  # fmt: skip
        if not options.no_evaluate:
            record |= evaluated(folder, executor, options)
        if options.fit is not None:
            record |= fitted(folder, executor, options.fit)
    if close := getattr(executor, "close", None):
        close()
    record |= {
        "peak_mib_after_import": peak() - warm, "peak_mib_of_writing": before - warm,
        "peak_mib_of_a_worker": peak(resource.RUSAGE_CHILDREN),
    }  # fmt: skip
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
