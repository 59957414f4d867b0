"""What CONTRIBUTING.md says of the tree and of ``make`` holds."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
TREE = re.search(r"    src/calibrant/\n(.*?)    tests/", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)


def listed() -> set[str]:
    """Return the files and folders (with a slash) of the tree in CONTRIBUTING.md."""
    return {
        word
        for line in TREE[1].splitlines()
        for word in line.strip().split("  ")[0].split()
        if word[-3:] == ".py" or word[-1] == "/"
    }


def test_the_tree_names_what_exists_and_every_public_part() -> None:
    source = ROOT / "src" / "calibrant"
    present = {path.name + "/" for path in source.iterdir() if (path / "__init__.py").exists()}
    present |= {path.name for path in source.glob("*.py")}
    assert listed() <= present
    assert {name for name in present if name[0] != "_"} <= listed()


def test_folders_of_tests_mirror_the_tree() -> None:
    tests, source = ROOT / "tests", ROOT / "src" / "calibrant"
    folders = {path.parent.relative_to(tests) for path in tests.glob("*/**/test_*.py")}
    beside = {Path("contracts"), Path("benchmarks")}  # what all of a family keep, and the programs beside the package
    assert {folder for folder in folders - beside if not (source / folder / "__init__.py").exists()} == set()


def planned(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", "--dry-run", "--assume-old=.venv/dev", "test", *arguments]
    outside = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    return subprocess.run(command, cwd=ROOT, env=outside, capture_output=True, text=True, timeout=60, check=False)


def test_one_family_is_tested_alone_and_a_mistyped_one_is_refused() -> None:
    assert planned("FAMILY=losses").stdout.rstrip().endswith("tests/losses tests/contracts/test_losses.py")
    wrong = planned("FAMILY=loss")
    assert wrong.returncode == 2
    assert "got loss; write FAMILY=losses, for example" in wrong.stderr
