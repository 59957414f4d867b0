"""Commands killed at random moments and on full disks (benchmarks/robustness.py does it more often, and to a study too)."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_commands_end_in_the_same_bytes_and_full_disks_in_one_sentence() -> None:
    root = Path(__file__).parent.parent
    options = ["--kills", "5", "--full", "3", "--only", "apply", "--only", "fit"]
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.robustness", *options]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count(" 0 faults") == 2
