"""The wheel, installed into an empty environment with the core's dependencies alone, works and brings nothing more."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# one process, so that the wheel is built and installed once
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.xdist_group("wheel")]

ROOT = Path(__file__).parent.parent
EXTRAS = {"datasets", "lightning", "onnx", "pandas", "polars", "pytest", "ray", "sklearn", "torchmetrics"}


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run ``command`` without this process' paths; its output is in the error if it fails."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The interpreter of an environment that holds the freshly built wheel and the core's dependencies.

    It takes more than a gigabyte of disk, so nothing is compiled ahead and it is removed with the module's last test.
    """
    folder = tmp_path_factory.mktemp("wheel")
    try:
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
        (wheel,) = folder.glob("calibrant-*.whl")
        run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
        python = folder / "venv" / "bin" / "python"
        run(python, "-m", "pip", "install", "-q", "--no-compile", "-c", ROOT / "constraints.txt", wheel, cwd=folder)
        yield python
    finally:
        shutil.rmtree(folder)


def test_the_examples_and_the_first_screen_of_the_readme_run(python: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    outputs = re.findall(r"^>>> (.*)\n(.*)$", blocks[1], flags=re.MULTILINE)
    code = blocks[0] + "\n" + "\n".join(line if line.startswith("print") else f"print({line})" for line, _ in outputs)
    assert run(python, "-c", code, cwd=tmp_path).stdout.splitlines() == [expected for _, expected in outputs]
    commands = re.findall(r"^calibrant (.*)$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert commands
    for command in commands:
        run(python.parent / "calibrant", *shlex.split(command), cwd=tmp_path)
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_typing_information_and_recipes_are_in_the_wheel(python: Path, tmp_path: Path) -> None:
    code = "import calibrant, pathlib; print(*(p.name for p in pathlib.Path(calibrant.__file__).parent.rglob('*') if p.is_file()))"
    installed = set(run(python, "-c", code, cwd=tmp_path).stdout.split())
    files = [path for path in (ROOT / "src" / "calibrant").rglob("*") if path.is_file()]
    source = {path.name for path in files if "__pycache__" not in path.parts}
    assert "py.typed" in installed
    assert source - installed == set()


def test_no_extra_is_brought_along(python: Path, tmp_path: Path) -> None:
    code = f"import importlib.util; print(*(n for n in {sorted(EXTRAS)!r} if importlib.util.find_spec(n)))"
    assert run(python, "-c", code, cwd=tmp_path).stdout.split() == []
