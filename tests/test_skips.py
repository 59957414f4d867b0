"""A skip that skips.toml does not allow is a failure."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.mark.parametrize(("reason", "code"), [("no CUDA device", 0), ("it failed on Monday", 1)])
@pytest.mark.slow
def test_only_listed_reasons_may_skip(reason: str, code: int, tmp_path: Path) -> None:
    for name in ("conftest.py", "skips.toml"):
        shutil.copy(TESTS / name, tmp_path / name)
    (tmp_path / "test_it.py").write_text(f"import pytest\ndef test_it():\n    pytest.skip({reason!r})\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", ".", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == code, done.stdout
    assert ("does not allow" in done.stdout) == bool(code)


def test_every_allowed_skip_says_why() -> None:
    entries = tomllib.loads((TESTS / "skips.toml").read_text())["skip"]
    assert [entry for entry in entries if len(entry.get("why", "")) < 15] == []
