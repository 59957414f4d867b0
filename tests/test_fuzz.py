"""Broken and hostile files by the thousand (benchmarks/fuzz.py tries more of them)."""

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.fuzz import READERS, good_files


@pytest.mark.slow
def test_broken_files_are_refused_in_one_sentence_fast_and_without_a_trace() -> None:
    root = Path(__file__).parent.parent
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.fuzz", "--cases", "20000"]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.startswith("20,007 inputs tried")  # thirteen kinds of file, as many of each
    assert " 0 faults" in run.stdout


def test_every_reader_has_good_files_to_injure() -> None:
    for kind, (_, read) in READERS.items():
        assert good_files(kind)
        for path in good_files(kind)[:3]:
            read(path)
