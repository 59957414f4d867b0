"""Runs what the documentation shows: the code blocks of README.md and docs/, and the examples in docstrings.

The Python blocks and the ``calibrant …`` lines of the bash blocks of one page run in order, Python in one namespace, in an
empty folder that has nothing of a clone but ``tests/fixtures``. A block that cannot run says why in a comment on
the line before it: ``<!-- notest: needs a GPU -->``. All pages but the README run with the slow tests. One whose foreign
package warns of things that are not ours says so: ``<!-- warns: Lightning advises on workers -->``; one that shows what
an older version lacks names the first that has it: ``<!-- needs: scikit-learn 1.8 -->``.
"""

import doctest
import importlib
import importlib.util
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from click import Context, Group
from click.testing import CliRunner
from packaging.version import Version

from calibrant.cli import main

ROOT = Path(__file__).parent.parent
FENCE = re.compile(
    r"^(?:[ ]*<!-- notest(?P<why>.*?)-->\n)?(?P<indent>[ ]*)```(?P<kind>python|bash|toml title=\S+)\n(?P<code>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(r"\d[\d,]*(?:\.(?P<after>\d+))?(?:e[+-]?\d+)?")
# when it was drawn, and names inside a picture, which are hashes of numbers down to the last bit
OF_ONE_DRAWING = re.compile(r"<dc:date>.*?</dc:date>|(?<=[\"#])(?:[pm]|C\w+_)[0-9a-f]{10}\b")
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """One fenced block of a page: its kind (python, bash, a titled TOML file), code, first line, and why it does not run, or None."""

    kind: str
    code: str
    line: int
    why_not: str | None = None

    @property
    def runs(self) -> bool:
        return self.why_not is None


def blocks_of(text: str) -> Iterator[Block]:
    """Yield the python and bash blocks of a Markdown ``text``; one inside a list or a tab is dedented."""
    for match in FENCE.finditer(text):
        indent = len(match["indent"])
        code = "".join(line[indent:] if line.strip() else "\n" for line in match["code"].splitlines(keepends=True))
        why = None if match["why"] is None else match["why"].strip(" :")
        yield Block(match["kind"], code, text.count("\n", 0, match.start("code")), why)


def pages() -> list[Any]:
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = [(path, path.read_text()) for path in found]
    return [
        pytest.param(path, id=path.relative_to(ROOT).as_posix(), marks=marks_of(path, text))
        for path, text in texts
        if any(block.runs for block in blocks_of(text))
    ]


def marks_of(path: Path, text: str) -> list[pytest.MarkDecorator]:
    """Return what a page needs: the slow tests, unless it is the README, and foreign warnings let pass where it says so."""
    marks = [] if path.name == "README.md" else [pytest.mark.slow]
    if "<!-- warns: " in text:
        kinds = ("UserWarning", "DeprecationWarning", "FutureWarning")
        marks += [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in kinds]
    for package, least in re.findall(r"<!-- needs: (\S+) (\S+) -->", text):
        older = Version(version(package)) < Version(least)
        marks.append(pytest.mark.skipif(older, reason=f"shows what {package} below {least} lacks"))
    return marks


def agree(now: str, kept: str) -> bool:
    """Whether two texts have the same words, and numbers that differ by at most 2 % or two of their last digit.

    So much another processor's sums change what a trained network prints (1.3 % was seen). Spaces do not count, since columns
    are as wide as their numbers.
    """
    if NUMBER.sub("#", now).split() != NUMBER.sub("#", kept).split():
        return False
    pairs = [
        (*(float(one[0].replace(",", "")) for one in two), 10.0 ** -len(two[1]["after"] or ""))
        for two in zip(NUMBER.finditer(now), NUMBER.finditer(kept), strict=True)
    ]
    return all(math.isclose(a, b, rel_tol=0.02, abs_tol=2.001 * last) for a, b, last in pairs)


def run_python(block: Block, page: str, namespace: dict[str, Any]) -> None:
    """Run a Python block; one written as a console session is checked against the output it shows."""
    if ">>> " not in block.code:
        exec(compile("\n" * block.line + block.code, page, "exec"), namespace)
        return
    test = doctest.DocTestParser().get_doctest(block.code, namespace, page, page, block.line)
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    told: list[str] = []
    runner.run(test, out=told.append, clear_globs=False)
    namespace.update(test.globs)
    assert runner.summarize(verbose=False).failed == 0, "".join(told)


def commands_of(block: Block) -> list[str]:
    """Return the lines of a bash block that work in any folder; others (pip, make) are for a clone on a person's machine."""
    lines = block.code.replace("\\\n", " ").splitlines()
    return [line for line in lines if block.kind == "bash" and line.startswith(("calibrant ", "mkdir "))]


def run_commands(block: Block) -> None:
    """Run the commands of a block, one that is not ours alone in a shell."""
    for line in commands_of(block):
        if " | " in line or not line.startswith("calibrant "):
            path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
            joined = ["bash", "-o", "pipefail", "-c", line]
            run = subprocess.run(joined, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=120)
            assert run.returncode == 0, f"{line}\n{run.stderr}"
        else:
            done = CliRunner().invoke(main, shlex.split(line, comments=True)[1:])
            assert done.exit_code == 0, f"{line}\n{done.stderr}"


@pytest.mark.parametrize("page", pages())
def test_what_a_page_shows_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [block for block in blocks_of(page.read_text()) if block.runs]
    checkout = tmp_path / "checkout"
    (checkout / "tests").mkdir(parents=True)
    (checkout / "tests" / "fixtures").symlink_to(ROOT / "tests" / "fixtures")  # logs that a page reads lie in a clone
    monkeypatch.chdir(checkout)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with patch.dict(os.environ):
        for block in wanted:
            if block.kind == "python":
                run_python(block, str(page), namespace)
            elif block.kind.startswith("toml"):  # a file that a person saves under its title
                Path(block.kind.split('"')[1]).write_text(block.code)
            else:
                run_commands(block)
    for drawn in checkout.glob("*.svg"):
        kept = ROOT / "docs" / "images" / drawn.name
        # another version of matplotlib draws otherwise
        if not kept.exists() or f"matplotlib=={version('matplotlib')}" not in (ROOT / "constraints.txt").read_text():
            continue
        same = agree(*(OF_ONE_DRAWING.sub("", path.read_text()) for path in (drawn, kept)))
        assert same, f"{kept.name} is not what {page.name} draws: python docs/figures/tutorials.py"


def test_pages_need_a_clone_alone_and_say_what_does_not_run() -> None:
    texts = {path: path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))}
    blocks = [(path, block) for path, text in texts.items() for block in blocks_of(text)]
    assert len(blocks) > 150
    assert [path for path, block in blocks if "../" in block.code] == []
    silent = [(path, block.line) for path, block in blocks if not block.runs and len(block.why_not or "") < 8]
    assert silent == [], "write <!-- notest: why it cannot run here -->"
    for line in (line for _, block in blocks if not block.runs for line in commands_of(block)):
        command, words = main, shlex.split(line, comments=True)[1:]
        while isinstance(command, Group):
            _, command, words = command.resolve_command(Context(command), words)
        command.make_context(line, words)  # its options are known, and their values of their kind


def modules() -> list[Any]:
    """Return the names of all modules; those of the adapters import other libraries for seconds, so they are slow."""
    paths = [path.relative_to(ROOT / "src").with_suffix("") for path in sorted((ROOT / "src").rglob("*.py"))]
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths if path.name != "__main__"]
    return [pytest.param(name, marks=[pytest.mark.slow] * name.startswith("calibrant.adapters.")) for name in names]


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings_give_what_they_show(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        module = importlib.import_module(name)
    except ImportError:
        if not name.startswith("calibrant.adapters."):
            raise
        pytest.skip(f"optional package {name.rsplit('.', 1)[1]!r} is not installed")
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    told: list[str] = []
    # what the module defines, and torch: whatever else an example uses it imports, so that it runs when it is copied
    own = {key: value for key, value in vars(module).items() if getattr(value, "__module__", None) == name}
    for test in doctest.DocTestFinder().find(module, name):
        test.globs = {**own, "torch": importlib.import_module("torch")}
        runner.run(test, out=told.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(told)


def test_the_concepts_have_the_pictures_that_their_script_draws(tmp_path: Path) -> None:
    script = importlib.util.spec_from_file_location("concepts", ROOT / "docs" / "figures" / "concepts.py")
    concepts = importlib.util.module_from_spec(script)
    script.loader.exec_module(concepts)
    kept = {path.stem for path in (ROOT / "docs" / "figures" / "concepts").iterdir()}
    assert kept == set(concepts.FIGURES)
    first = concepts.draw("notions", tmp_path).read_bytes()
    assert concepts.draw("notions", tmp_path).read_bytes() == first


def test_a_wrong_output_on_a_page_is_found() -> None:
    with pytest.raises(AssertionError, match="Expected"):
        run_python(Block("python", ">>> 1 + 1\n3\n", 0), "page", {})
    assert agree("ECE 4.31 %, 1,783 rows", "ECE  4.30 %, 1,782 rows\n")
    assert not agree("ECE 4.40 %, 1,782 rows", "ECE 4.30 %, 1,782 rows")
    assert not agree("NLL 4.30 %, 1,782 rows", "ECE 4.30 %, 1,782 rows")
