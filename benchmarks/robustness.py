"""Killed at random moments, and out of disk at random sizes: the same answer in the end, and never a part of a file.

    python -m benchmarks.robustness --kills 60 --full 40

Each command (evaluate, fit, apply and report on a folder, a study of two trainings) is run once undisturbed. Then it is
started again and again in a fresh folder and killed with SIGKILL after a random time, until it is left to end: its output
must be the same to the byte (a study's tables, predictions and trajectories), whatever stands under its name in between
must be whole, and nothing may be left over. For a full disk, files may grow to a random size only: the command must say
one sentence, exit with 2 and leave every file that was there as it was; run again with room, it must give the same bytes.
Commands run in forks of this process, which has imported everything, so that the time is spent in the work.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

import calibrant
from calibrant import Predictions
from calibrant.calibrators import TemperatureScaling
from calibrant.cli import main as command

STUDY = """
name = "tiny"
title = "Two trainings"
about = "Killed and gone on with."
seeds = [0]
data = { name = "digits" }
model = { type = "MLP" }
training = { epochs = 4, batch = 64 }
[[objectives]]
label = "CE"
loss = { type = "CrossEntropyLoss" }
[[objectives]]
label = "F"
loss = { type = "FocalLoss", gamma = 2 }
"""
COMMANDS = {
    "evaluate": ["evaluate", "data", "-c", "c.safetensors", "--json"],
    "fit": ["fit", "data", "-m", "EnsembleTemperatureScaling", "-o", "fitted.safetensors"],
    "apply": ["apply", "c.safetensors", "data", "-o", "out"],
    "report": ["report", "data", "-c", "c.safetensors", "-o", "report.html"],
    "study": ["study", "run", "study.toml", "--store", "store"],
}
MOST_KILLS = 6  # of one run, before it is left to end
TIMES = ("seconds", "started", "finished", "created", "date")  # keys of a study's records that may differ


@dataclass
class Tally:
    """What was done to a command, and what was wrong."""

    runs: int = 0
    kills: int = 0
    full: int = 0
    refused: int = 0
    faults: list[str] = field(default_factory=list)


def prepare(home: Path) -> None:
    """Write the inputs that the commands share: a folder of three files, a calibrator and a study."""
    (home / "data").mkdir(parents=True)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        logits = 4 * torch.randn(1000, 10, generator=generator)
        labels = torch.softmax(logits / 2, 1).multinomial(1, generator=generator)[:, 0]
        path = home / "data" / f"{seed}.parquet"
        calibrant.save_predictions(path, {"all": Predictions.from_logits(logits, labels)})
        table = pq.read_table(path)
        pq.write_table(table, path, row_group_size=250)
    fresh = 3 * torch.randn(200, 10, generator=torch.Generator().manual_seed(99))
    TemperatureScaling().fit(fresh, (fresh / 2).softmax(1).multinomial(1)[:, 0]).save(home / "c.safetensors")
    (home / "study.toml").write_text(STUDY)


def copy_of(inputs: Path, home: Path) -> Path:
    """Return ``home`` with the inputs in it, times of change included."""
    shutil.copytree(inputs, home, copy_function=shutil.copy2)
    return home


def start(arguments: list[str], home: Path, *, largest: int | None = None) -> int:
    """Run a command in a fork, in ``home``; files may grow to ``largest`` bytes. Returns the process."""
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        os.chdir(home)
        for name, number in (("stdout", 1), ("stderr", 2)):
            os.dup2(os.open(home / f".{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        if largest is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
        try:
            command(arguments)
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else int(left.code is not None)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException as error:  # a fork must end here, whatever happens
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    os._exit(code)


def end_of(process: int, *, after: float | None = None) -> int | None:
    """Return the exit code; None if it was killed, ``after`` so many seconds."""
    if after is not None:
        limit = time.monotonic() + after
        while time.monotonic() < limit:
            done, status = os.waitpid(process, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        os.kill(process, signal.SIGKILL)
    status = os.waitpid(process, 0)[1]
    code = os.waitstatus_to_exitcode(status)
    return None if code == -signal.SIGKILL else code


def answer_of(name: str, home: Path) -> dict[str, bytes]:
    """Return what a command gave: the bytes of its files, or what it printed; of a study without times."""
    if name == "evaluate":
        return {"stdout": (home / ".stdout").read_bytes()}
    place = {"fit": "fitted.safetensors", "apply": "out", "report": "report.html", "study": "store"}[name]
    found = [home / place] if (home / place).is_file() else sorted(p for p in (home / place).rglob("*") if p.is_file())
    return {str(path.relative_to(home)): _content(path) for path in found}


def _content(path: Path) -> bytes:
    if path.suffix == ".npz":  # a zip holds times; the arrays are what counts
        with np.load(path) as arrays:
            return b"".join(name.encode() + arrays[name].tobytes() for name in sorted(arrays.files))
    if path.suffix in (".json", ".jsonl"):
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        return json.dumps([_without_times(json.loads(line)) for line in lines], sort_keys=True).encode()
    return path.read_bytes()


def _without_times(value: object) -> object:
    if isinstance(value, dict):
        return {k: _without_times(v) for k, v in value.items() if not any(word in k for word in TIMES)}
    return [_without_times(item) for item in value] if isinstance(value, list) else value


def broken_files(home: Path) -> Iterator[str]:
    """Yield a line for each file under its final name that is not whole."""
    for path in home.rglob("*"):
        if path.is_dir() or path.name.startswith(".") or path.name.endswith(".part"):
            continue
        try:
            if path.suffix == ".parquet":
                pq.read_table(path)
            elif path.suffix == ".safetensors" and path.parent == home:
                calibrant.load(path)
            elif path.suffix == ".html" and not path.read_text().rstrip().endswith("</html>"):
                yield f"{path.relative_to(home)} ends early"
            elif path.suffix in (".npz", ".json"):
                _content(path)
        except Exception as error:  # the very thing that is looked for
            yield f"{path.relative_to(home)}: {type(error).__name__}: {error}"


def left_over(home: Path) -> list[str]:
    """Return names of temporary files and checkpoints that a finished command left behind."""
    parts = [str(p.relative_to(home)) for p in home.rglob("*.part")]
    checkpoints = [str(p.relative_to(home)) for p in home.glob("calibrant-runs/streams/*")]
    return parts + checkpoints


def kill_runs(
    name: str, inputs: Path, work: Path, expected: dict[str, bytes], seconds: float, tally: Tally, kills: int
) -> None:
    """Kill ``name`` until ``kills`` kills are reached, each run being left to end after some."""
    rng = random.Random(name)
    before = tally.kills
    while tally.kills - before < kills:
        home = copy_of(inputs, work / f"{name}-{tally.runs}")
        code: int | None = None
        for _ in range(rng.randint(1, MOST_KILLS)):
            code = end_of(start(COMMANDS[name], home), after=rng.random() * seconds)
            if code is not None:
                break
            tally.kills += 1
            tally.faults += [f"{name}, killed: {line}" for line in broken_files(home)]
        if code is None:
            code = end_of(start(COMMANDS[name], home))
        tally.runs += 1
        judge(name, home, code, expected, tally, what="killed and gone on with")
        shutil.rmtree(home)


def judge(name: str, home: Path, code: int | None, expected: dict[str, bytes], tally: Tally, *, what: str) -> None:
    """Note what is wrong with a run that has ended."""
    if code != 0:
        tally.faults.append(f"{name}, {what}: exit code {code}: {(home / '.stderr').read_text()[-300:]}")
        return
    answer = answer_of(name, home)
    if answer != expected:
        differing = [key for key in {*answer, *expected} if answer.get(key) != expected.get(key)]
        tally.faults.append(f"{name}, {what}: another answer in {differing}")
    if left := left_over(home):
        tally.faults.append(f"{name}, {what}: left {left}")


def fill_disk(name: str, inputs: Path, work: Path, expected: dict[str, bytes], tally: Tally, times: int) -> None:
    """Run ``name`` with room for files of a random size only, then again with room."""
    rng = random.Random(name)
    biggest = max(len(content) for content in expected.values())
    for _ in range(times):
        home = copy_of(inputs, work / f"{name}-full-{tally.full}")
        (home / "kept.txt").write_text("kept")
        largest = int(biggest ** rng.random()) + 200  # enough for the sentence itself
        code = end_of(start(COMMANDS[name], home, largest=largest))
        said = (home / ".stderr").read_text()
        tally.full += 1
        if code == 2:
            tally.refused += 1
            errors = [line for line in said.splitlines() if line.startswith("error: ")]
            if len(errors) != 1 or "Traceback" in said:
                tally.faults.append(f"{name}, disk of {largest}: not one sentence: {said[-400:]}")
        elif code != 0:
            tally.faults.append(f"{name}, disk of {largest}: exit code {code}: {said[-400:]}")
        tally.faults += [f"{name}, disk of {largest}: {line}" for line in broken_files(home)]
        if (home / "kept.txt").read_text() != "kept":
            tally.faults.append(f"{name}, disk of {largest}: another file was changed")
        judge(name, home, end_of(start(COMMANDS[name], home)), expected, tally, what="with room again")
        shutil.rmtree(home)


def main(arguments: list[str] | None = None) -> int:
    """Run all and print a line a command; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=60, help="of each command")
    parser.add_argument("--full", type=int, default=40, help="full disks for each command")
    parser.add_argument("--only", choices=list(COMMANDS), action="append", help="this command; may be repeated")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        inputs, work = Path(folder, "inputs"), Path(folder)
        prepare(inputs)
        for name in options.only or COMMANDS:
            home = copy_of(inputs, work / "undisturbed")
            began = time.monotonic()
            code = end_of(start(COMMANDS[name], home))
            seconds = time.monotonic() - began
            tally = Tally()
            if code:
                tally.faults.append(f"{name}, undisturbed: exit code {code}: {(home / '.stderr').read_text()[-400:]}")
            else:
                expected = answer_of(name, home)
                kill_runs(name, inputs, work, expected, seconds, tally, options.kills)
                fill_disk(name, inputs, work, expected, tally, options.full)
            shutil.rmtree(home)
            print(
                f"{name}: {tally.kills} kills in {tally.runs} runs, {tally.full} full disks of which {tally.refused} were "
                f"refused in one sentence, {len(tally.faults)} faults; one run takes {seconds:.1f} s",
                flush=True,
            )
            faults += tally.faults
    print("\n".join(faults[:20]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
