"""Broken files by the thousand, commands killed at random moments and full disks: benchmarks/ tries more of them."""

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.fuzz import READERS, good_files


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "said"),
    [  # thirteen kinds of file, as many of each
        ("fuzz --cases 20000", ["20,007 inputs tried", " 0 faults"]),
        ("robustness --kills 5 --full 3 --only apply --only fit", [" 0 faults", " 0 faults"]),
    ],
)
def test_broken_files_killed_commands_and_full_disks_end_in_one_sentence_or_the_same_bytes(
    command: str, said: list[str]
) -> None:
    words = [sys.executable, "-W", "ignore", "-m", *f"benchmarks.{command}".split()]
    run = subprocess.run(words, cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert all(run.stdout.count(one) == said.count(one) for one in said), run.stdout


def test_every_reader_has_good_files_to_injure() -> None:
    for kind, (_, read) in READERS.items():
        assert good_files(kind)
        for path in good_files(kind)[:3]:
            read(path)
