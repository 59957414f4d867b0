"""Runs a race: measures time in interleaved rounds in one process, the memory of a call, and the error of each result.

The first call of every contender is a warm-up, whose result is checked. Then all contenders take turns in random order, so that
other activity on the machine affects all of them equally. Before each call, the memory of the previous call is returned to the
system, because freeing gigabytes within the next call would count against it. With one thread, the CPU time of this process is
measured, with more threads the wall-clock time. A contender whose first call takes longer than a bound is timed by this call
alone. Calibrant is then timed by a second call, because its first call compiles loops, which are cached.
"""

import ctypes
import gc
import math
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Call = Callable[[], Any]
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
BUDGET = 2.0  # seconds of rounds a race, beyond the fewest
MAX_ROUNDS, MIN_ROUNDS = 15, 5
BOUND = 4.0  # seconds: slower ones are timed once
DRAWS = 1000
CLOSE = 1.05  # ratios within 5 % are a tie


@dataclass(frozen=True)
class Setup:
    """The contenders of a race, Calibrant first, and the error of a result.

    Args:
        calls: Dict from names to functions that return a result.
        error: Function that returns the error of a result in the unit of the race, or None if there is nothing to compare.
        floors: Names that are shown for reference and not ranked, because they bound the others or perform another task.
        left_out: Dict from libraries to the reason why they do not take part.
        notes: Dict from contenders to remarks about their results.
    """

    calls: dict[str, Call]
    error: Callable[[Any], float | None]
    floors: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Race:
    """A task at one size, which is one row of a table.

    Args:
        name: Short name of the task.
        title: Description of the task.
        rows: Number of rows N.
        classes: Number of classes K.
        error_is: Description of the error that ``Setup.error`` returns.
        make: Function of N and K that builds the data and the contenders.
    """

    name: str
    title: str
    rows: int
    classes: int
    error_is: str
    make: Callable[[int, int], Setup]


def run(race: Race, threads: int) -> dict[str, Any]:
    """Return the record of one race."""
    setup = race.make(race.rows, race.classes)
    clock = time.process_time if threads == 1 else time.perf_counter
    seconds: dict[str, list[float]] = {}
    errors: dict[str, float | None] = {}
    for name, call in setup.calls.items():
        start = clock()
        answer = call()
        seconds[name] = [clock() - start]
        errors[name] = setup.error(answer)
        del answer
    ours = next(iter(setup.calls))
    if seconds[ours][0] > BOUND:
        start = clock()
        setup.calls[ours]()
        seconds[ours] = [clock() - start]
    slow = {name for name, spent in seconds.items() if spent[0] > BOUND}
    quick = [name for name in setup.calls if name not in slow]
    _rounds({name: setup.calls[name] for name in quick}, seconds, clock)
    contenders = [
        {
            "name": name,
            "role": "ours" if name == ours else "floor" if name in setup.floors else "peer",
            "seconds": [float(f"{value:.4g}") for value in seconds[name]],
            "ratio": None if name == ours else ratio(seconds[name], seconds[ours]),
            "peak_bytes": peak(call) if threads == 1 and name not in slow else None,
            "error": None if (error := errors[name]) is None else float(f"{error:.3g}"),
            "note": setup.notes.get(name, "") or ("timed once" if name in slow else ""),
        }
        for name, call in setup.calls.items()
    ]
    return {
        "name": race.name,
        "title": race.title,
        "rows": race.rows,
        "classes": race.classes,
        "threads": threads,
        "clock": "CPU" if threads == 1 else "wall",
        "error_is": race.error_is,
        "contenders": contenders,
        "left_out": setup.left_out,
    }


def _rounds(calls: dict[str, Call], seconds: dict[str, list[float]], clock: Callable[[], float]) -> None:
    """Replace the warm-up times in ``seconds`` with those of rounds in random order."""
    count = max(MIN_ROUNDS, min(MAX_ROUNDS, int(BUDGET / max(1e-9, sum(seconds[name][0] for name in calls)))))
    for name in calls:
        seconds[name] = []
    order, shuffled = list(calls), random.Random(0)
    for _ in range(count):
        shuffled.shuffle(order)
        for name in order:
            _give_back()
            start = clock()
            calls[name]()
            seconds[name].append(clock() - start)


def ratio(theirs: list[float], ours: list[float]) -> list[float]:
    """Return the ratio of medians with its 95 % bootstrap interval over rounds, or only the ratio if one was timed once."""
    value = statistics.median(theirs) / statistics.median(ours)
    if len(theirs) != len(ours):
        return [float(f"{value:.3g}")]
    draw = random.Random(1)
    found = []
    for _ in range(DRAWS):
        index = [draw.randrange(len(ours)) for _ in ours]
        found.append(statistics.median([theirs[i] for i in index]) / statistics.median([ours[i] for i in index]))
    found.sort()
    return [float(f"{part:.3g}") for part in (value, found[DRAWS // 40 - 1], found[-DRAWS // 40])]


def peak(call: Call) -> int | None:
    """Return the peak memory of a call in bytes, minus that before it; None if the system does not report it."""
    try:
        _give_back()
        CLEAR.write_text("5")  # sets the high-water mark back
    except OSError:
        return None
    before = _resident("VmRSS")
    call()
    return max(0, _resident("VmHWM") - before)


def _give_back() -> None:
    """Collect garbage, and on Linux return free memory from the allocator to the system."""
    gc.collect()
    if STATUS.exists():
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _resident(key: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024


def significant(value: float, digits: int = 3) -> str:
    """Return ``value`` with a few significant digits, without an exponent if it is easy to read."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{places}f}" if places < 7 else f"{value:.{digits - 1}e}"


def show(record: dict[str, Any]) -> None:
    """Print the table of one record."""
    print(f"\n### {heading(record)}\n")
    print("\n".join(table(record)), flush=True)


def heading(record: dict[str, Any]) -> str:
    """Return the title of a record with its size."""
    threads = "one thread" if record["threads"] == 1 else f"{record['threads']} threads"
    return f"{record['title']}, N = {record['rows']:,}, K = {record['classes']:,}, {threads}"


def table(record: dict[str, Any]) -> list[str]:
    """Return the Markdown lines of one record."""
    lines = [
        f"| | {record['clock']} time, ms | times ours | 95 % interval | peak MiB | {record['error_is']} |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for one in record["contenders"]:
        ratio_ = one["ratio"] or [1.0]
        interval = f"{significant(ratio_[1])} – {significant(ratio_[2])}" if len(ratio_) == 3 else ""
        memory = "–" if one["peak_bytes"] is None else f"{one['peak_bytes'] / 2**20:.1f}"
        error = "–" if one["error"] is None else f"{one['error']:.1e}"
        note = f" ({one['note']})" if one["note"] else ""
        role = ", for reference" if one["role"] == "floor" else ""
        milliseconds = significant(1000 * statistics.median(one["seconds"]))
        lines.append(
            f"| {one['name']}{role}{note} | {milliseconds} | {significant(ratio_[0])} | {interval} | {memory} | {error} |"
        )
    lines += [f"| {name} | left out: {why} | | | | |" for name, why in record["left_out"].items()]
    return lines


def summary(records: list[dict[str, Any]]) -> list[str]:
    """Return a Markdown table with a line for every race in which another library takes part."""
    lines = ["| task | N | K | ours, ms | next | times ours | |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for record in records:
        peers = sorted((one for one in record["contenders"] if one["role"] == "peer"), key=lambda one: one["ratio"][0])
        if peers:
            ours = significant(1000 * statistics.median(record["contenders"][0]["seconds"]))
            parts = [significant(part) for part in peers[0]["ratio"]]
            shown = f"{parts[0]} ({parts[1]} – {parts[2]})" if len(parts) == 3 else parts[0]
            cells = (f"{record['rows']:,}", f"{record['classes']:,}", ours, peers[0]["name"], shown)
            lines.append(f"| {record['title']} | {' | '.join(cells)} | {verdict(peers[0]['ratio'])} |")
    return lines


def verdict(ratio: list[float]) -> str:
    """Return the verdict for the ratio of the fastest other library's time to ours, given with its interval."""
    if ratio[0] * CLOSE >= 1:
        return "first" if ratio[0] >= 1 else "within 5 % of first"
    return "behind" if max(ratio) < 1 else "no significant difference"
