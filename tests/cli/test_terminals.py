"""Every command's text fits a terminal of 80 columns: no longer line, no word cut in two."""

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calibrant.cli import main

BEFORE = Path(__file__).parents[1] / "data" / "before-1.0"
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
    "inspect files/table.csv --columns logits_* --kind logits --label label",
    "plan --pool files/unlabelled.npz --half-width .05",
    "methods losses",
    "theory --figure bounds",
]
WORD = re.compile(r"[^\s│┃─━═|]+")


def shown(line: str, width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    done = CliRunner().invoke(main, line.split())
    assert done.exit_code in (0, 1, 3), done.output
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("line", dict.fromkeys(LINES))
def test_a_terminal_of_80_columns_is_enough(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("files", "calibrators", "study"):
        shutil.copytree(BEFORE / place, tmp_path / place)
    shutil.copy(BEFORE / "study" / "small.toml", tmp_path)
    monkeypatch.chdir(tmp_path)
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
