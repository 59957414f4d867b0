"""Nothing is accepted and ignored: every option × command × kind of input × output format, read from the application.

An option changes what a command answers, prints or writes, or it is refused in one sentence with nothing written. The
fast part draws from the product by a seed; the slow one walks it whole and asks that each option has an effect somewhere.
"""

import random
import re
import shutil
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import typer
from tests.cli.conftest import Run, in_one_sentence, some_logits

import calibrant
from calibrant import Predictions, scale
from calibrant.cli import main
from calibrant.operate import Monitor

GROUP: Any = typer.main.get_command(main)

# How each command is called: FILE stands for the input, OUT for a folder to write in, a second line for another use of it,
# which is not tried in every format.
LINES: dict[str, list[str]] = {
    "evaluate": ["FILE --draws 10"],
    "fit": ["FILE -m TemperatureScaling -o OUT/c.safetensors", "a.npz -o OUT/c.safetensors"],
    "apply": ["c.safetensors FILE -o OUT/o.npz"],
    "report": ["FILE -m none -o OUT/o.json", "FILE -m TemperatureScaling -o OUT/o.json"],
    "compare": ["FILE b.npz"],
    "check": ["FILE --max ece=.2", "FILE --no-worse nll=.5 --baseline b.npz"],
    "watch": ["OUT/state.safetensors FILE", "OUT/state.safetensors", "OUT/new.safetensors --reference a.npz"],
    "export": ["c.safetensors -o OUT/c.onnx"],
    "demo": [""],
    "study list": [""],
    "study run": ["sst", "interpolation"],
    "study show": ["sst", "sst --figures OUT/figures"],
    "study claims": [""],
    "methods": [""],
}

KINDS = ("file", "table", "pairs", "several", "folder", "splits", "large", "stdin")
FILES = {
    "file": "a.npz",
    "table": "a.csv",
    "pairs": "pairs.npz",
    "several": "m.npz",
    "large": "large.parquet",
    "stdin": "-",
}
STREAMED = {"folder", "splits", "large"}
# Other formats of what a command writes.
SUFFIXES = {"apply": (".parquet", ".csv"), "report": (".md", ".html")}
OUTPUTS = ("as_json", "output", "format")
UNNAMED = ("split", "reference_split")

# A value that must change something; an option that is not here is tried with a value of its type.
VALUES: dict[str, str | None] = {
    "check max": "ece=.02",
    "check min": "accuracy=.5",
    "check no_worse": "brier=.1",
    "check baseline": "a.npz",
    "check by": "part",
    "split": "val",
    "calibrator": "c.safetensors",
    "ignore_index": "1",
    "class_dim": "0",
    "kind": "probs",
    "to": "probs",
    "missing": "drop",
    "labels": "labels.npy",
    "logits": "logits.npy",
    "on": "b.npz",
    "reference": "b.npz",
    "reference_split": "other",
    "study claims paper": "wang",
    "scale": "paper",
    "data": "sets",
    "seeds": "1",
    "only": "Cross-entropy",
    "setting": "CIFAR-10",
    "executor": "ray",
    "address": "nowhere",
    "accelerator": "cpu",
    "workers": "3",
    "columns": "p_*",
    "study show columns": "errors",
    "study show report": "page.md",
    "record": "OUT/record.json",
    "figures": "OUT/figures",
    "report": "OUT/page.md",
    "output": "OUT/pictures",
    "store": "OUT/runs",
    "class_names": "names.txt",
    "fit split": "other",
    "fit_split": "other",
    "method": "VectorScaling",
    "features": "part",
    "evaluate metric": "NLL",
    "evaluate by": "part",
    "evaluate draws": "0",
    "apply what": "label",
    "apply output": "OUT/other.npz",
    "fit output": "OUT/other.safetensors",
    "export output": "OUT/other.onnx",
    "report output": "OUT/other.json",
    "report by": "part",
    "report error_limit": "0.2",
    "format": "md",
    "bins": "7",
    "width": "column",
    "costs": "costs.csv",
    "example": "sst",
}
OF_TABLES = {
    "to": "logits",
    "kind": "logits",
    "columns": "p_d,p_c,p_b,p_a",
    "label": "part",
    "on": "id",
    "split": "other",
}


class Cell(NamedTuple):
    """One call of a command without further options: its line, the kind of its input, and what is looked at."""

    line: str
    kind: str
    format: str


def commands() -> Iterator[tuple[str, Any]]:
    """Yield ("study run", command) for every command."""
    for name, command in GROUP.commands.items():
        inner = getattr(command, "commands", None)
        yield from [(f"{name} {part}", one) for part, one in inner.items()] if inner else [(name, command)]


def cells(name: str, command: Any) -> list[Cell]:
    """Return every way in which a command is called."""
    has = {parameter.name for parameter in command.params}
    found = []
    for line in LINES[name]:
        kinds = [kind for kind in KINDS if kind != "several" or "multilabel" in has] if "FILE" in line else ["none"]
        written = SUFFIXES.get(name, ()) if line == LINES[name][0] else ()
        formats = ["", *(["--json"] if "as_json" in has else []), *written]
        # a page of figures takes a second: its words and numbers are those of the other formats
        found += [Cell(line, *one) for one in product(kinds, formats) if one[1] != ".html" or one[0] == "file"]
    return found


def tried(name: str, parameter: Any, kind: str) -> list[str]:
    """Return the option with a value other than its default."""
    flag = max(parameter.opts, key=len)
    if getattr(parameter, "is_flag", False):
        return [flag]
    value = OF_TABLES.get(parameter.name) if kind == "table" else None
    value = value or VALUES.get(f"{name} {parameter.name}", VALUES.get(parameter.name))
    return [flag, value or {int: "3", float: "0.5"}.get(type(parameter.default), "x")]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of every kind, a calibrator and a state."""
    place = tmp_path_factory.mktemp("options")
    splits = {
        name: Predictions.from_logits(
            *some_logits(rows=200, seed=seed),
            features={name: np.arange(200) % n for name, n in (("part", 2), ("third", 3))},
        )
        for seed, name in enumerate(("val", "test", "other"))
    }
    test = splits["test"]
    other = {name: Predictions.from_logits(data.logits / 3, data.labels) for name, data in splits.items()}
    for name, data in splits.items():
        (place / "splits" / name).mkdir(parents=True)
        calibrant.save_predictions(place / "splits" / name / "0.parquet", {"all": data})
    (place / "sets" / "sst").mkdir(parents=True)
    (place / "folder").mkdir()
    for file in ("folder/0.parquet", "large.parquet"):
        calibrant.save_predictions(place / file, {"all": test})
    for name, one in (("a", splits), ("b", other)):
        calibrant.save_predictions(place / f"{name}.npz", one)
        rows = zip(one["test"].probs.tolist(), one["test"].need_labels().tolist(), strict=True)
        lines = [f"{i},{i % 2},{'abcd'[label]},{','.join(map(repr, row))}" for i, (row, label) in enumerate(rows)]
        (place / f"{name}.csv").write_text("\n".join(["id,part,label,p_a,p_b,p_c,p_d", *lines]) + "\n")
    pairs = test.top_label()
    np.savez(place / "pairs.npz", conf=pairs.p, pred=test.predicted, label=test.need_labels())
    several = {"logits": test.logits, "labels": (test.logits > 1).long()}
    np.savez(
        place / "m.npz",
        **{f"{name}_{key}": one[at:] for key, one in several.items() for name, at in (("val", 50), ("test", 0))},
    )
    (place / "names.txt").write_text("\n".join("dcba"))
    (place / "few.txt").write_text("\n".join("abc"))
    two = some_logits(rows=200, classes=2)
    np.savez(place / "two.npz", test_logits=two[0], test_labels=two[1], val_logits=two[0] / 2, val_labels=two[1])
    (place / "two.csv").write_text("class,act,wait\n0,0,2\n1,3,0\n")
    np.save(place / "labels.npy", splits["other"].need_labels().numpy())
    np.save(place / "logits.npy", splits["other"].logits.numpy())
    calibrant.calibrators.TemperatureScaling().fit(*some_logits(rows=120, seed=9)).save(place / "c.safetensors")
    Monitor(splits["val"]).save(place / "state.safetensors")
    (place / "costs.csv").write_text("class,act,wait\n" + "".join(f"{k},{k},{3 - k}\n" for k in range(4)))
    (place / "records").mkdir()
    (place / "records" / "digits-all.json").write_text('{"objectives": [], "figures": []}')
    return place


def recorded(monkeypatch: pytest.MonkeyPatch, command: str) -> list[Any]:
    """Put a recorder in place of trainings and of what is made of them, and return its list."""
    calls: list[Any] = []
    if command.partition(" ")[0] not in ("study", "demo"):
        return calls

    def recorder(name: str, answer: Any = None) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.append((name, repr([getattr(one, "root", one) for one in arguments]), repr(options)))
            return answer

        return call

    monkeypatch.setattr("calibrant.cli.study._show", recorder("_show"))
    for name in ("run_with_bars", "train_aloud"):
        monkeypatch.setattr(f"calibrant.cli.study.{name}", recorder(name))
    monkeypatch.setattr("calibrant.study.preflight.check_study", recorder("check_study"))
    if command == "demo":
        for name in ("say_study", "say_study_json", "_write_study_report"):
            monkeypatch.setattr(f"calibrant.cli.study.{name}", recorder(name))
        monkeypatch.setattr("calibrant.cli.study.tables_of", recorder("tables_of", ["a table"]))
        for name in ("collect", "tables.verdicts_on", "tables.summarise"):
            monkeypatch.setattr(f"calibrant.study.{name}", recorder(name, []))
    return calls


class Walk:
    """Calls of one command with and without an option."""

    def __init__(self, name: str, home: Path, out: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name, self.home, self.out, self.run, self.patch = name, home, out, run, monkeypatch
        self.calls = recorded(monkeypatch, name)

    def call(self, cell: Cell, extra: list[str]) -> tuple[Any, tuple[Any, ...]]:
        """Return what a call answers, and what of it is compared with the call without the option."""
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir()
        self.patch.chdir(self.out if self.name == "demo" else self.home)
        shutil.copy(self.home / "state.safetensors", self.out)
        line, kind, form = cell
        line = line.replace(".npz", ".csv") if kind == "table" else line
        if form.startswith("."):
            line = re.sub(r"OUT/o\.\w+", f"OUT/o{form}", line)
        elif self.name == "apply":
            line = line.replace("OUT/o.npz", "OUT/o") if kind in STREAMED else line
        words = [
            *line.split(),
            *(form.split() if form.startswith("-") else []),
            *(["--multilabel"] if kind == "several" else []),
        ]
        for flag in {{"--method": "-m", "--output": "-o"}.get(one, one) for one in extra[:1]} & {*words}:
            at = words.index(flag)  # given instead of the line's own
            del words[at : at + len(extra)]
        words = [
            FILES.get(kind, kind) if word == "FILE" else word.replace("OUT", str(self.out)) for word in [*words, *extra]
        ]
        self.calls.clear()
        data = (self.home / "a.npz").read_bytes() if kind == "stdin" else None
        done = self.run(*self.name.split(), *words, input=data)
        files = {
            str(one.relative_to(self.out)): one.read_bytes() for one in sorted(self.out.rglob("*")) if one.is_file()
        }
        said = " ".join((done.stdout + done.stderr).replace(str(self.out), "").split())
        return done, (done.exit_code, said, files, list(self.calls))

    def fault(self, cell: Cell, parameter: Any, plain: tuple[Any, ...]) -> str | None:
        """Return what is wrong with the option: None where it has an effect, "" where it is refused as it should be."""
        option = tried(self.name, parameter, cell.kind)
        done, after = self.call(cell, option)
        where = f"{option} on {cell}"
        if done.exit_code == 2:
            written = {path.name: path.read_bytes() for path in self.out.iterdir()}
            kept = written == {"state.safetensors": (self.home / "state.safetensors").read_bytes()}
            return "" if in_one_sentence(done) and kept else f"{where}: {done.output}, wrote {list(written)}"
        if done.exit_code not in (0, 1, 3):
            return f"{where}: {done.output}"
        return None if after != plain else f"{where}: accepted, and nothing is different"


@pytest.fixture
def walk(home: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Walk]:
    """A walk over a command; no process or cluster is started, a Parquet file of some kilobytes is streamed."""
    monkeypatch.setattr("calibrant.cli._options.STREAMED_BYTES", 1000)

    def begin(name: str) -> Walk:
        found = Walk(name, home, tmp_path / "out", run, monkeypatch)
        read = scale.batches  # what a cluster would read is the same; that it would is compared
        monkeypatch.setattr(scale, "on_ray", lambda *a, **k: (found.calls.append((a, repr(k))), read(*a, **k))[1])
        return found

    return begin


def options(name: str, command: Any, cell: Cell) -> list[Any]:
    """Return the options that are tried in a cell."""
    line = " ".join([cell.line, cell.format, "--multilabel" * (cell.kind == "several")])
    # one unnamed split is that split for every command; what leads elsewhere has no part in a file beside
    left = UNNAMED * (cell.kind in ("table", "pairs", "folder", "large")) + OUTPUTS * ("." in cell.format)
    found = [one for one in command.params if one.param_type_name == "option" and one.name not in ("help", *left)]
    return [one for one in found if " ".join(tried(name, one, cell.kind)) not in line]


def test_every_command_is_held() -> None:
    assert {name for name, _ in commands()} == set(LINES)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        pytest.param(*one, marks=[pytest.mark.slow] * (one[0] == "export"), id=one[0]) for one in commands()
    ],  # seconds a call
)
def test_a_drawn_option_has_an_effect_or_is_refused(name: str, command: Any, walk: Callable[[str], Walk]) -> None:
    rng, tour = random.Random(f"{name} 1"), walk(name)
    found = [cell for cell in cells(name, command) if cell.format != ".html"]
    for cell in rng.sample(found, k=len(found)):
        done, plain = tour.call(cell, [])
        if done.exit_code != 2:  # otherwise this command reads no such input, and says so
            break
    assert done.exit_code in (0, 1, 3), done.output
    tries = options(name, command, cell)
    assert not list(filter(None, (tour.fault(cell, one, plain) for one in rng.sample(tries, k=min(3, len(tries))))))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "command"), list(commands()), ids=[name for name, _ in commands()])
def test_every_option_has_an_effect_or_is_refused_everywhere(
    name: str, command: Any, walk: Callable[[str], Walk]
) -> None:
    tour, faults, own = walk(name), [], {one.name for one in command.params if one.param_type_name == "option"}
    for other, one in commands():
        # --format has an effect beside a name without an ending alone
        own -= {parameter.name for parameter in one.params} if other != name else {"help", "format"}
    for cell in cells(name, command):
        done, plain = tour.call(cell, [])
        if done.exit_code == 2:  # this command reads no such input, or does not write it so
            assert cell.kind not in ("file", "none") or cell.format.startswith("."), done.output
            assert in_one_sentence(done), done.output
            continue
        for parameter in options(name, command, cell):
            fault = tour.fault(cell, parameter, plain)
            faults += [fault] if fault else []
            own -= {parameter.name} if fault is None else set()
    assert not faults, "\n".join(faults)
    assert not own, f"refused everywhere: {own}"


@pytest.mark.parametrize(
    "line",
    [
        "study run digits --scale paper",
        "study run digits --data folder",
        "check a.npz --max ece=.1 --max ece=.9",
    ],
)
def test_what_would_have_no_effect_is_refused(line: str, home: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    assert in_one_sentence(run(*line.split(), code=2))
    assert not list(home.glob("new.*"))


def test_apply_passes_rows_without_a_label_where_they_are_named(tmp_path: Path, home: Path, run: Run) -> None:
    logits, labels = some_logits(rows=20)
    labels[3] = -100
    np.savez(tmp_path / "in.npz", logits=logits, labels=labels)
    arguments = ["apply", home / "c.safetensors", tmp_path / "in.npz", "-o", tmp_path / "out.npz"]
    run(*arguments, code=2)
    run(*arguments, "--ignore-index", "-100", code=0)
