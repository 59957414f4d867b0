"""What needs no mathematics is refused before PyTorch loads: every command, in a process in which PyTorch cannot be imported."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import typer

from calibrant.cli import main

# A call of each command that reads or writes files, every input there; what each call lacks is made below.
CALLS = {
    "evaluate": "f.npz",
    "fit": "f.npz -o o.safetensors",
    "apply": "c.safetensors f.npz -o o.npz",
    "compare": "f.npz g.npz",
    "check": "f.npz --max ece=.2",
    "plan": "f.npz --ece .1",
    "watch": "s.safetensors f.npz",
    "estimate": "f.npz --reference g.npz",
    "decide": "f.npz --coverage .8",
    "sample": "f.npz --budget 20 -o o.csv",
    "audit": "f.npz l.csv",
    "judge": "t.csv --human l.csv",
    "report": "f.npz",
    "inspect": "f.npz",
    "convert": "f.npz o.npz",
    "export": "c.safetensors -o o.onnx",
    "ingest": "t.csv o.npz --from openai",
}
THERE = ("f.npz", "g.npz", "c.safetensors", "l.csv", "t.csv")
OF_INPUTS = ("--kind nope", "--missing nope", "--class-names nothere", "--logits g.npz", "--class-dim x")
MORE = """
fit f.npz -o o.safetensors --method Nope
fit f.npz -o o.npz
fit f.npz -o o.safetensors --multilabel --features a
fit f.npz -o o.safetensors --keep x
fit f.npz -o - --json
fit -o o.safetensors
fit f.npz --example cifar10 -o o.safetensors
fit f.npz
report f.npz --method Nope
report f.npz --method auto -c c.safetensors
report f.npz --format pdf
report f.npz --multilabel --by a
evaluate
evaluate --example nope
evaluate f.npz --metric Nope
evaluate f.npz --draws -1
evaluate f.npz --multilabel --by a
check f.npz
check f.npz --policy nothere
apply c.safetensors f.npz -o o.npz --as x
convert f.npz
convert f.npz o.npz --to x
convert f.npz o.xyz
export c.safetensors -o o.txt
judge t.csv
judge t.csv --human l.csv --target x
ingest t.csv o.npz
ingest t.csv o.npz --from openai --as x
decide f.npz
decide f.npz --coverage .8 --error .1
decide f.npz --coverage .8 -o o.txt
inspect
methods x
demo --workers 0
study init there.toml --nope
theory --nope
"""
BLOCKED = """
import contextlib, io, json, sys, time

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("torch is blocked")

sys.meta_path.insert(0, Blocked())
from calibrant.cli import main

for words in json.load(sys.stdin):
    said, start, code = io.StringIO(), time.process_time(), 0
    with contextlib.redirect_stderr(said):
        try:
            main(words)
        except SystemExit as left:
            code = left.code
    print(json.dumps([words, code, said.getvalue(), time.process_time() - start]))
"""


def faults() -> list[list[str]]:
    """Return calls that are to be refused: a file that is missing, a place that cannot be written, an input overwritten …"""
    found = [shlex.split(line) for line in MORE.strip().splitlines()]
    for command, text in CALLS.items():
        words = shlex.split(text)
        changed = {word: ("nothere" + Path(word).suffix,) for word in words if word in THERE}
        inputs = next(word for word in words if word in THERE)
        changed |= {word: ("nofolder/" + word, inputs) for word in words if word.startswith("o.")}
        for old, others in changed.items():
            found += [[command, *(other if word == old else word for word in words)] for other in others]
        found.append([command, *words, "--nope"])
        if command not in ("export", "judge", "ingest"):
            found += [[command, *words, *shlex.split(option)] for option in OF_INPUTS]
    return found


def test_every_command_refuses_before_pytorch_loads(tmp_path: Path) -> None:
    calls = faults()
    commands = typer.main.get_command(main).commands  # type: ignore[attr-defined]
    assert {words[0] for words in calls} == set(commands)
    for name in THERE:
        (tmp_path / name).write_text("id,label\n1,a\n")
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(outcomes) == len(calls) > 150
    for words, code, said, seconds in outcomes:
        assert code == 2, (words, said)
        assert said.startswith("error: expected "), (words, said)
        assert said.count("\n") == 1, (words, said)
        assert seconds < 1, (words, seconds)  # of CPU
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(THERE)
