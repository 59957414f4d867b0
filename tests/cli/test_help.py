"""``calibrant --help`` and the help of every command wait for nothing: what they load, and that they say what is so."""

import ast
import inspect
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.conftest import some_logits
from tests.cli.test_options import write_filled, write_judged
from typer.testing import CliRunner

import calibrant
from calibrant.cli import Commands, _application, main
from calibrant.cli._io import print_table
from calibrant.cli.study import TABLES
from calibrant.operate import sample

HELP = """
import sys
from calibrant.cli import main
try:
    main(ARGUMENTS, prog_name="calibrant")
except SystemExit as end:
    assert end.code == 0, end.code
print(sorted(sys.modules), file=sys.stderr)
"""

ITS_OWN = {"calibrant", "calibrant.errors", *(f"calibrant.cli{part}" for part in ("", "._application"))}

HEAVY = {"torch", "numpy", "scipy", "numba", "matplotlib", "pyarrow", "jinja2", "sklearn", "pandas", "safetensors"}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]], ids=" ".join)
def test_help_and_version_load_the_command_line_library_alone(arguments: list[str]) -> None:
    script = HELP.replace("ARGUMENTS", repr(arguments))
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=here)
    loaded = set(ast.literal_eval(done.stderr))
    assert {name for name in loaded if name.partition(".")[0] == "calibrant"} == ITS_OWN
    assert {name.partition(".")[0] for name in loaded} & HEAVY == set()
    if arguments == ["--help"]:
        assert [name for name in Commands.names if f" {name} " not in done.stdout] == []


@pytest.mark.parametrize("name", Commands.names)
def test_the_help_says_of_a_command_what_the_command_says(name: str) -> None:
    command = _application.load_command(name, Commands.names[name])
    assert command.name == name
    assert " ".join(_application.summary_of(name, Commands.names[name]).split()) == " ".join(
        command.help.split("\n\n")[0].split()
    )


EVERY_HELP = """
import importlib.abc, json, sys, time
from typer.testing import CliRunner
from calibrant.cli import main

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HEAVY:
            raise ImportError(f"the help imports {name}")

sys.meta_path.insert(0, Blocked())
said = {}
for words in WORDS:
    result = CliRunner().invoke(main, [*words, "--help"], catch_exceptions=False)
    assert result.exit_code == 0, (words, result.output)
    said[" ".join(words)] = result.output
print(json.dumps(said))
"""

STUDY = ("list", "run", "describe", "init", "show", "claims")


def test_the_help_of_every_command_loads_no_library_of_numbers() -> None:
    words = [[name] for name in Commands.names] + [["study", name] for name in STUDY]
    script = EVERY_HELP.replace("HEAVY", repr(HEAVY)).replace("WORDS", repr(words))
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=here)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [name for name in STUDY if f" {name} " not in said["study"]] == []
    assert all("--help" in text for text in said.values())


def test_what_the_help_says_without_loading_it_is_so() -> None:
    from calibrant.cli._options import Page
    from calibrant.cli.methods import FAMILIES, NAMES

    assert NAMES == calibrant.theory.FIGURES
    assert Page.margin == calibrant.report.MARGIN  # type: ignore[attr-defined]
    assert all(inspect.ismodule(getattr(calibrant, name)) for name in FAMILIES)


BEFORE = Path(__file__).parents[1] / "fixtures" / "before-1.0"

COMMANDS = json.loads((BEFORE / "commands.json").read_text())

LINES = [
    *(
        one["arguments"].replace(" --json", "")
        for one in COMMANDS.values()
        if "--format json" not in one["arguments"] and not one["arguments"].startswith("theory")
    ),
    "study describe mukhoti-table1",
    "study show small.toml --store study/runs --columns all",
    "study claims",
    "plan --pool files/unlabelled.npz --half-width .05",
    "methods losses",
    "apply calibrators/TemperatureScaling-3.safetensors files/probs.npz -o {tmp}/out.npz",
    "export calibrators/TemperatureScaling-3.safetensors -o {tmp}/c.onnx",
    "sample files/unlabelled.npz --budget 50 -o {tmp}/to-label.csv",
    "report files/splits.npz -o {tmp}/report.html",
    "study init {tmp}/own.toml",
    "ingest language/choices.jsonl {tmp}/c.npz --from openai --options positive,negative --labels language/choices.csv",
    "theory --figure bounds",
    "audit pool.npz labelled.csv --metric accuracy --metric ece",
    "judge judged.csv --human human.csv",
]

WORD = re.compile(r"[^\s│┃─━═|]+")


def shown(line: str, width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    done = CliRunner().invoke(main, line.split())
    assert done.exit_code in (0, 1, 3), done.output
    return done.stdout


def test_the_lines_for_80_columns_are_of_every_command_but_the_demo_which_shows_a_study() -> None:
    assert set(Commands.names) - {line.split()[0] for line in LINES} == {"demo"}


@pytest.mark.parametrize("width", [30, 60, 70, 75, 77, 80, 100, 120, 200])
def test_a_table_has_every_word_whole_at_every_width(width: int) -> None:
    header = ["objective", *TABLES["main"][3]]
    rows = [["Cross-entropy", "2.6", "0.09", "5.01", "0.07", "3.51", "0.80", "4.0", "5.92"]]
    screen = Console(width=width, file=io.StringIO())
    print_table(screen, header, rows, title="Some figures")
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, shown.splitlines())) <= width
    words = {word for cell in ("Some figures", *header, *rows[0]) for word in cell.split()}
    assert words <= set(re.split(r"[\s:]+", shown))


@pytest.mark.slow
@pytest.mark.parametrize("line", dict.fromkeys(LINES))
def test_a_terminal_of_80_columns_is_enough(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("files", "calibrators", "study"):
        shutil.copytree(BEFORE / place, tmp_path / place)
    shutil.copytree(BEFORE.parent / "language", tmp_path / "language")
    shutil.copy(BEFORE / "study" / "small.toml", tmp_path)
    monkeypatch.chdir(tmp_path)
    write_judged(tmp_path)
    pool = calibrant.Predictions.from_logits(*some_logits())
    calibrant.save_predictions("pool.npz", {"test": pool})
    drawn = sample(pool, 30)
    drawn = drawn.labelled(pool.need_labels()[drawn.rows])
    drawn.save("labelled.sample.json")
    write_filled(tmp_path / "labelled.csv", drawn)
    texts = []
    for width in (80, 400):
        scratch = tmp_path / str(width)
        scratch.mkdir()
        shutil.copy(BEFORE / "operate" / "watch.safetensors", scratch)
        texts.append(shown(line.format(tmp=str(width)), width, monkeypatch).replace(f"{width}/", "/"))
    narrow, wide = texts
    # a path, and a command to be copied, cannot break
    rows = [
        row for row in narrow.splitlines() if max(map(len, row.split()), default=0) < 60 and "run: calibrant" not in row
    ]
    assert [row for row in rows if len(row) > 80] == []
    pieces = {piece for word in WORD.findall(wide) for piece in (word, *re.split(r"(?<=[-/])", word))}
    cut = [word for word in WORD.findall(narrow) if word not in pieces and word.rstrip(":") not in pieces]
    assert cut == [], "words that a wide terminal does not have"
