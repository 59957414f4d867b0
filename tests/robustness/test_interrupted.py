"""Commands killed at random moments, or out of disk, give the same bytes in the end and never a part of a file.

``make nightly`` runs these. Each command runs undisturbed once; then in fresh folders, killed after random times until it is left
to end, and with files limited to random sizes, where it must exit with 2 and one sentence. Studies: tests/study.
"""

import os
import random
import resource
import shutil
import signal
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from tests.draws import drawn

import calibrant
from calibrant import Predictions
from calibrant.calibrators import TemperatureScaling
from calibrant.cli import main as command

# command: its arguments, and the file or folder that it writes (None: what it prints)
COMMANDS: dict[str, tuple[list[str], str | None]] = {
    "evaluate": (["evaluate", "data", "-c", "c.safetensors", "--json"], None),
    "fit": (["fit", "data", "-m", "EnsembleTemperatureScaling", "-o", "fitted.safetensors"], "fitted.safetensors"),
    "apply": (["apply", "c.safetensors", "data", "-o", "out"], "out"),
    "report": (["report", "data/0.parquet", "-c", "c.safetensors", "-o", "report.html"], "report.html"),
}
RUNS, MAX_KILLS = 5, 4  # of each command; kills of one run before it is left to end
SEED = os.environ.get("CALIBRANT_SEED", "0")
pytestmark = pytest.mark.timeout(1800)  # a report alone takes ten seconds, dozens of times


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a Parquet folder of three files and a calibrator."""
    home = tmp_path_factory.mktemp("inputs")
    (home / "data").mkdir()
    for seed in range(3):
        path = home / "data" / f"{seed}.parquet"
        calibrant.save_predictions(path, {"all": Predictions.from_logits(*drawn(1000, 10, seed=seed))})
        pq.write_table(pq.read_table(path), path, row_group_size=250)
    TemperatureScaling().fit(*drawn(200, 10, seed=99)).save(home / "c.safetensors")
    return home


def start(arguments: list[str], home: Path, *, largest: int | None = None) -> int:
    """Start a command in ``home``, whose files may grow to ``largest`` bytes; return the number of the process.

    It is a fork of this process, which has imported everything, so that kills fall into the work.
    """
    if number := os.fork():
        return number
    code = 70
    try:
        os.chdir(home)
        for name, descriptor in (("stdout", 1), ("stderr", 2)):
            os.dup2(os.open(home / f".{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        torch.set_num_threads(1)
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


def killed(number: int, seconds: float) -> bool:
    """Kill a process after so many seconds, and return whether it was still running."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if os.waitpid(number, os.WNOHANG)[0]:
            return False
        time.sleep(0.002)
    os.kill(number, signal.SIGKILL)
    os.waitpid(number, 0)
    return True


def ended(arguments: list[str], home: Path, *, largest: int | None = None) -> tuple[int, str]:
    """Run a command to its end, and return its exit code and what it printed on stderr."""
    code = os.waitstatus_to_exitcode(os.waitpid(start(arguments, home, largest=largest), 0)[1])
    return code, (home / ".stderr").read_text()


def output(home: Path, written: str | None) -> dict[str, bytes]:
    """Return the bytes of what a command wrote by relative path, without the hidden .part files that SIGKILL leaves behind."""
    place = home / (written or ".stdout")
    files = [place] if place.is_file() else sorted(place.rglob("[!.]*.*"))
    return {str(path.relative_to(home)): path.read_bytes() for path in files}


def assert_whole(home: Path) -> None:
    """Assert that each file under its final name can be read."""
    for path in home.rglob("*"):
        if path.is_dir() or path.name.startswith(".") or path.name.endswith(".part"):
            continue
        if path.suffix == ".parquet":
            pq.read_table(path)
        elif path.suffix == ".safetensors" and path.parent == home:
            calibrant.load(path)
        elif path.suffix == ".html":
            assert path.read_text().rstrip().endswith("</html>")


Case = tuple[list[str], str | None, dict[str, bytes], float]


@pytest.fixture(scope="module", params=COMMANDS)
def case(request: pytest.FixtureRequest, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Return a command's arguments, where it writes, what it gives undisturbed, and its seconds."""
    arguments, written = COMMANDS[request.param]
    home, began = Path(shutil.copytree(inputs, tmp_path_factory.mktemp("undisturbed") / "home")), time.monotonic()
    code, errors = ended(arguments, home)
    assert code == 0, errors
    return arguments, written, output(home, written), time.monotonic() - began


@pytest.mark.parametrize("number", range(RUNS))
def test_a_killed_command_gives_the_same_when_run_again(number: int, case: Case, inputs: Path, tmp_path: Path) -> None:
    arguments, written, expected, seconds = case
    rng = random.Random(f"{SEED}{arguments}{number}")
    home = Path(shutil.copytree(inputs, tmp_path / "killed"))
    for _ in range(rng.randint(1, MAX_KILLS)):
        if not killed(start(arguments, home), rng.random() * seconds):
            break
        assert_whole(home)
    assert ended(arguments, home)[0] == 0
    assert output(home, written) == expected


@pytest.mark.parametrize("number", range(RUNS))
def test_a_full_disk_is_one_sentence_and_changes_no_file(number: int, case: Case, inputs: Path, tmp_path: Path) -> None:
    arguments, written, expected, _ = case
    rng = random.Random(f"{SEED}{arguments}{number}")
    home = Path(shutil.copytree(inputs, tmp_path / "full"))
    largest = int(max(map(len, expected.values())) ** rng.random()) + 500  # enough for progress and the sentence itself
    code, errors = ended(arguments, home, largest=largest)
    assert code in (0, 2), errors
    assert errors.count("error: ") == (code == 2), errors
    assert "Traceback" not in errors
    assert_whole(home)
    assert list(home.rglob("*.part")) == []
    assert ended(arguments, home)[0] == 0
    assert output(home, written) == expected
