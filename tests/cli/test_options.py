"""Honour or refuse: every option of every command, read from the application, on every kind of input."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from tests.cli.conftest import Run, some_logits

import calibrant
from calibrant import Predictions
from calibrant.cli import main
from calibrant.operate import Monitor, Sample, sample

Options = dict[str, str]
GROUP = typer.main.get_command(main)

# What each command is called with, FILE standing for the input; "none" is a call without one. Work that takes long is
# recorded in its place: what the options make of it is what they do.
BASES: dict[str, list[str]] = {
    "apply": ["c.safetensors", "FILE", "-o", "OUT/out.npz"],
    "evaluate": ["FILE", "--draws", "10"],
    "fit": ["FILE", "-m", "TemperatureScaling", "-o", "OUT/new.safetensors"],
    "report": ["FILE", "-m", "TemperatureScaling", "-o", "OUT/page.json"],
    "compare": ["FILE", "b.npz"],
    "check": ["FILE", "--max", "ece=.2"],
    "watch": ["STATE", "FILE"],
    "plan": ["FILE", "--draws", "40", "--ece", ".1"],
    "estimate": ["FILE", "--reference", "a.npz"],
    "decide": ["FILE", "--coverage", ".8"],
    "sample": ["FILE", "--budget", "20", "-o", "OUT/to-label.csv"],
    "audit": ["FILE", "labelled.csv"],
    "judge": ["judged.csv", "--human", "human.csv"],
    "convert": ["FILE", "OUT/out.npz"],
    "export": ["c.safetensors", "-o", "OUT/c.onnx"],
    "inspect": ["FILE"],
    "ingest": ["log.jsonl", "OUT/out.npz", "--from", "openai", "--options", "A,B", "--missing", "drop"],
    "theory": ["--figure", "bounds"],
    "demo": [],
    "study list": [],
    "study run": ["sst"],
    "study show": ["sst"],
    "study describe": ["sst", "--scale", "cpu"],
    "study init": [],
    "study claims": [],
    "methods": [],
}
KINDS = ("file", "none", "folder", "splits", "stdin")
STREAMS = {"apply", "evaluate", "fit", "report"}  # these are tried on several files and on a large one, too
FASTER = {"file", "none"}  # kinds whose trials are no slow tests
WITHOUT_FILE = {"watch": ["STATE"], "plan": ["--draws", "40", "--ece", ".1"]}  # commands whose FILE may be left out

# A value that must change something; an option that is not here is tried with a value of its type.
VALUES: dict[str, str | None] = {
    "fit split": "other",
    "fit_split": "other",
    "method": "VectorScaling",
    "evaluate draws": "20",
    "format": "md",
    "check maximum": "ece=.02",
    "ingest source": "inspect",
    "ingest kind": "sequences",
    "ingest labels": "labels.csv",
    "ingest test": "0.5",
    "ingest options": "B,A",
    "ingest normalize": "bytes",
    "ingest missing": "bound",
    "ingest score": "sum",
    "ingest scale": "100",
    "ingest low": "0",
    "ingest least": "0.5",
    "check minimum": "accuracy=.5",
    "check no_worse": "brier=.1",
    "check baseline": "b.npz",
    "check policy": "policy.toml",
    "check by": "part",
    "check inconclusive": "pass",
    "split": "val",
    "calibrator": "c.safetensors",
    "ignore_index": "1",
    "class_dim": "0",
    "class_names": "names.txt",
    "kind": "probs",
    "to": "probs",
    "missing": "drop",
    "labels": "labels.npy",
    "logits": "logits.npy",
    "on": "b.npz",
    "reference": "b.npz",
    "reference_split": "other",
    "ids": "part",
    "time": "2026-01-31T12:00:00+00:00",
    "merge": "other.safetensors",
    "plan draws": "20",
    "plan ece": "0.3",
    "plan accuracy": "0.6",
    "plan true_ece": "0.1",
    "sample budget": "30",
    "sample aim": "nll",
    "sample costs": "costs.csv",
    "sample extend": "labelled.csv",
    "sample output": "OUT/other.csv",
    "audit metric": "brier",
    "audit maximum": "ece=.5",
    "audit minimum": "accuracy=.1",
    "audit by": "part",
    "audit costs": "costs.csv",
    "audit state": "another.sample.json",
    "audit output": "OUT/rows.npz",
    "judge source": "openai",
    "judge human": "fewer.csv",
    "judge scores": "second",
    "judge ratings": "0-2",
    "judge about": "about.csv",
    "judge by": "length",
    "judge target": "population",
    "plan pool": "a.npz",
    "study claims records": "records",
    "decide error": "0.1",
    "decide coverage": "0.5",
    "decide confidence": "0.8",
    "decide by": "class",
    "decide output": "OUT/deployed.safetensors",
    "theory figure": "minimisers",
    "scale": "paper",
    "data": "sets",
    "seeds": "1",
    "only": "Cross-entropy",
    "executor": "ray",
    "address": "nowhere",
    "accelerator": "cpu",
    "workers": "3",
    "columns": "p_*",
    "study show columns": "errors",
    "study show report": "page.md",
    "junit": "OUT/gate.xml",
    "markdown": "OUT/gate.md",
    "prometheus": "OUT/watch.prom",
    "html": "OUT/watch.html",
    "refit": "OUT/refit.safetensors",
    "record": "OUT/record.json",
    "figures": "OUT/figures",
    "report": "OUT/page.md",
    "output": "OUT/pictures",
    "store": "OUT/runs",
}


def commands() -> Iterator[tuple[str, Any]]:
    """Yield ("study run", command) for every command."""
    for name, command in GROUP.commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        yield from [(f"{name} {part}", one) for part, one in inner.items()] if inner else [(name, command)]


def kinds_of(name: str) -> tuple[str, ...]:
    """Return the kinds of input that a command is tried on."""
    if "FILE" not in BASES[name]:
        return ("none",)
    more = ("large", *(("files",) if name in ("evaluate", "report") else ())) if name in STREAMS else ()
    return (*(kind for kind in KINDS if kind != "none" or name in WITHOUT_FILE), *more)


@pytest.fixture(scope="module")
def before() -> dict[tuple[str, str], Any]:
    """What each command said and wrote on a kind of input without an option, run once for all of its options."""
    return {}


def trials() -> Iterator[Any]:
    for name, command in commands():
        for parameter in command.params:
            if parameter.param_type_name != "option" or parameter.name == "help":
                continue
            if (name, parameter.name) == ("apply", "ignore_index"):
                continue  # lets a file pass: see below
            for kind in kinds_of(name):
                if (parameter.name, kind) == ("split", "folder") and name not in STREAMS:
                    continue  # one unnamed split is that split for every command
                fast = kind in FASTER or (kind == "folder" and name in STREAMS)
                marks = [] if fast else [pytest.mark.slow]
                yield pytest.param(name, parameter, kind, id=f"{name}-{parameter.name}-{kind}", marks=marks)


def flag_of(name: str, parameter: Any, out: Path) -> list[str]:
    flag = max(parameter.opts, key=len)
    if getattr(parameter, "is_flag", False):
        return [flag]
    value = VALUES.get(f"{name} {parameter.name}", VALUES.get(parameter.name))
    if value is None:
        value = {int: "3", float: "0.5"}.get(type(parameter.default), "x")
    return [flag, value.replace("OUT", str(out))]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files, folders, calibrators, states and a policy."""
    place = tmp_path_factory.mktemp("beside")
    splits = {}
    for seed, name in enumerate(("val", "test", "other")):
        splits[name] = Predictions.from_logits(*some_logits(rows=200, classes=4, seed=seed))
    calibrant.save_predictions(place / "a.npz", splits)
    other = {name: Predictions.from_logits(data.logits / 3, data.labels) for name, data in splits.items()}
    calibrant.save_predictions(place / "b.npz", other)
    for name, data in splits.items():
        (place / "splits" / name).mkdir(parents=True)
        calibrant.save_predictions(place / "splits" / name / "0.parquet", {"all": data})
    (place / "sets" / "sst").mkdir(parents=True)
    (place / "folder").mkdir()
    for file in ("folder/0.parquet", "large.parquet"):
        calibrant.save_predictions(place / file, {"all": splits["test"]})
    (place / "names.txt").write_text("\n".join("abcd"))
    np.save(place / "labels.npy", splits["other"].labels.numpy())
    np.save(place / "logits.npy", splits["other"].logits.numpy())
    fresh = Predictions.from_logits(*some_logits(rows=120, classes=4, seed=9))
    calibrant.calibrators.TemperatureScaling().fit(fresh).save(place / "c.safetensors")
    (place / "policy.toml").write_text("[minimum]\naccuracy = 0.9\n")
    (place / "log.jsonl").write_text("\n".join(map(answer, range(8))))
    (place / "labels.csv").write_text("id,label\n" + "".join(f"q{i},{'AB'[i % 2]}\n" for i in range(8)))
    Monitor(splits["val"]).save(place / "state.safetensors")
    monitor = Monitor(splits["val"])
    monitor.update(splits["other"])
    monitor.save(place / "other.safetensors")
    drawn = sample(splits["test"], 40)
    drawn = drawn.labelled(splits["test"].need_labels()[drawn.rows])
    write_filled(place / "labelled.csv", drawn)
    drawn.save(place / "labelled.sample.json")
    sample(splits["test"], 40, seed=1).save(place / "another.sample.json")
    (place / "costs.csv").write_text("class,act,wait\n" + "".join(f"{k},{k},{3 - k}\n" for k in range(4)))
    (place / "records").mkdir()
    write_judged(place)
    return place


def write_judged(place: Path) -> None:
    """Write a judge's scores of two systems, people's labels of some, and columns about the rows."""
    rng = np.random.default_rng(0)
    right = rng.random(200) < 0.7
    first, second = (np.where(rng.random(200) < 0.9, right, ~right).astype(int) for _ in range(2))
    system = np.where(np.arange(200) % 2 == 0, "new", "old")
    lines = [f"q{i},{system[i]},{first[i]},{second[i]},{i}" for i in range(200)]
    (place / "judged.csv").write_text("\n".join(["id,system,score,second,length", *lines]) + "\n")
    labels = [f"q{i},{int(right[i])}" for i in range(100)]
    (place / "human.csv").write_text("\n".join(["id,label", *labels]) + "\n")
    (place / "fewer.csv").write_text("\n".join(["id,label", *labels[:60]]) + "\n")
    about = [f"q{i},{'abc'[i % 3]}" for i in range(200)]
    (place / "about.csv").write_text("\n".join(["id,system", *about]) + "\n")


def write_filled(file: Path, drawn: Sample) -> None:
    """Write the table of a labelled sample as a person hands it back."""
    columns = (drawn.rows.tolist(), drawn.inclusion.tolist(), drawn.labels.tolist())
    lines = ["row,inclusion,label", *(f"{row},{chance!r},{label}" for row, chance, label in zip(*columns, strict=True))]
    file.write_text("\n".join(lines) + "\n")


def answer(number: int) -> str:
    """Return a line of a language model's log; the first one lacks the option B."""
    top = [{"token": "A", "logprob": -0.5 - number / 10}, {"token": "C" if number == 0 else "B", "logprob": -1.5}]
    token = {"token": "A", "logprob": top[0]["logprob"], "top_logprobs": top}
    return json.dumps(
        {"id": f"q{number}", "choices": [{"message": {"content": "A"}, "logprobs": {"content": [token]}}]}
    )


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
        for name in ("cli.study.say_study", "cli.study.say_study_json"):
            monkeypatch.setattr(f"calibrant.{name}", recorder(name))
        for name in ("study.tables.summarise", "report.write_report"):
            monkeypatch.setattr(f"calibrant.{name}", recorder(name))
        answers = {
            "study.collect": [],
            "study.tables.verdicts_on": [],
            "cli.study.tables_of": ["a table"],
            "cli.study.claim_lines": [],
            "cli.study.validation_note": "",
        }
        for name, answer in answers.items():
            monkeypatch.setattr(f"calibrant.{name}", recorder(name, answer))
    return calls


@pytest.mark.parametrize(("name", "parameter", "kind"), list(trials()))
def test_an_option_has_an_effect_or_is_refused(
    name: str,
    parameter: Any,
    kind: str,
    home: Path,
    before: dict[tuple[str, str], Any],
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(home)
    calls = recorded(monkeypatch, name)
    monkeypatch.setattr("calibrant.cli._options.STREAMED_BYTES", 1000)

    def start(*arguments: Any, **options: Any) -> Any:
        calls.append((arguments, options))
        return map

    for runner in ("processes", "ray_cluster"):  # what they would run is the same; neither is started
        monkeypatch.setattr(f"calibrant.scale.{runner}", start)
    file = {"file": "a.npz", "stdin": "-", "large": "large.parquet", "files": "a.npz b.npz"}.get(kind, kind)
    data = (home / "a.npz").read_bytes() if kind == "stdin" else None

    def outcome(extra: list[str], where: str) -> tuple[Any, ...]:
        out = tmp_path / where
        out.mkdir()
        monkeypatch.chdir(out if name in {"study init", "theory", "demo"} else home)
        shutil.copy(home / "state.safetensors", out / "state.safetensors")
        base = WITHOUT_FILE[name] if kind == "none" and name in WITHOUT_FILE else BASES[name]
        # the option that is tried replaces the same one of the base; a calibrator and a method exclude each other
        for flag in {*parameter.opts, *(["-m"] if parameter.name == "calibrator" else [])} & set(base) if extra else ():
            base = base[: base.index(flag)] + base[base.index(flag) + 2 :]
        words = {"FILE": file, "STATE": str(out / "state.safetensors")}
        if kind in {"folder", "large", "splits"}:  # streamed: into a folder, and a report fits nothing on its only rows
            words |= {"OUT/out.npz": "OUT/out"} | ({"TemperatureScaling": "none"} if name == "report" else {})
        placed = [
            part for word in [*base, *extra] for part in words.get(word, word).split(" " if word == "FILE" else "\n")
        ]
        arguments = [word.replace("OUT", str(out)) for word in placed]
        calls.clear()
        done = run(*name.split(), *arguments, input=data)
        written = {
            str(place.relative_to(out)): place.read_bytes() for place in sorted(out.rglob("*")) if place.is_file()
        }
        said = " ".join((done.stdout + done.stderr).replace(str(out), "").split())
        return done, (done.exit_code, said, written, list(calls))

    if (name, kind) not in before:
        before[name, kind] = outcome([], "base")
    base, plain = before[name, kind]
    if base.exit_code == 2:  # this command reads no such input, and says so
        assert kind in ({"splits"} if name in STREAMS else {"folder", "splits"}) or name == "compare", base.output
        assert re.match(r"error: .*expected .*; ", base.stderr), base.stderr
        return
    done, after = outcome(flag_of(name, parameter, Path("OUT")), "tried")
    if done.exit_code == 2:
        assert re.match(r"error: .*expected .*; ", done.stderr), done.output
        assert done.stderr.count("\n") == 1
        assert done.stdout == ""
        assert set(after[2]) == {"state.safetensors"}, "a refused call wrote"
        assert after[2]["state.safetensors"] == (home / "state.safetensors").read_bytes()
    else:
        assert done.exit_code in {0, 1, 3}, done.output
        assert after != plain, f"{name} {parameter.name} on {kind}: accepted, and nothing is different"


def test_apply_passes_rows_without_a_label_where_they_are_named(home: Path, tmp_path: Path, run: Run) -> None:
    logits, labels = some_logits(rows=20, classes=4)
    labels[3] = -100
    np.savez(tmp_path / "in.npz", logits=logits, labels=labels)
    arguments = ["apply", home / "c.safetensors", tmp_path / "in.npz", "-o", tmp_path / "out.npz"]
    run(*arguments, code=2)
    run(*arguments, "--ignore-index", "-100", code=0)


def test_every_command_is_held() -> None:
    assert {name for name, _ in commands()} == set(BASES)


@pytest.mark.parametrize(
    "arguments",
    [
        ["study", "run", "digits", "--scale", "paper"],
        ["study", "describe", "digits", "--scale", "gpu"],
        ["study", "run", "digits", "--data", "folder"],
        ["study", "run", "sst", "--data", "folder"],
        ["check", "a.npz", "--max", "ece=.2", "--baseline", "b.npz"],
        ["watch", "state.safetensors", "--split", "val"],
        ["watch", "state.safetensors", "a.npz", "--reference-split", "val"],
        ["watch", "state.safetensors", "--ids", "part"],
        ["plan", "--split", "val"],
        ["plan", "a.npz", "--accuracy", ".9"],
        ["sample", "a.npz", "-o", "new.csv", "--by", "part"],
        ["sample", "--logits", "logits.npy", "--labels", "labels.npy", "-o", "new.csv"],
        *(
            ["sample", "a.npz", "--extend", "labelled.csv", "-o", "new.csv", *more]
            for more in (["--aim", "nll"], ["--by", "part"], ["--costs", "costs.csv"], ["--seed", "1"])
        ),
        ["audit", "a.npz", "labelled.csv", "--costs", "costs.csv"],
        ["audit", "a.npz", "labelled.csv", "--max", "ece=.1", "--max", "ece=.9"],
        ["audit", "a.npz", "labelled.csv", "--class-names", "names.txt"],
    ],
    ids=" ".join,
)
def test_what_would_have_no_effect_is_refused(
    arguments: list[str], home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    before = (home / "state.safetensors").read_bytes()
    done = run(*arguments, code=2)
    assert re.match(r"error: .*expected .*; ", done.stderr)
    assert (home / "state.safetensors").read_bytes() == before
    assert not list(home.glob("new.*"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "in.npz", "--max", "ece=.5", "--junit", "hard.npz"],
        ["check", "in.npz", "--max", "ece=.5", "--markdown", "in.npz"],
        ["check", "a.npz", "--policy", "in.npz", "--markdown", "in.npz"],
        ["check", "a.npz", "--max", "ece=.5", "--no-worse", "brier=.1", "--baseline", "in.npz", "--junit", "in.npz"],
        ["watch", "new.safetensors", "--reference", "in.npz", "--html", "hard.npz"],
        ["watch", "new.safetensors", "--reference", "in.npz", "--html", "new.safetensors"],
        ["watch", "in.npz", "--reference", "in.npz"],
        ["convert", "in.npz", "hard.npz"],
    ],
    ids=" ".join,
)
def test_an_output_never_overwrites_what_is_read(
    arguments: list[str], home: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(home / "a.npz", "in.npz")
    shutil.copy(home / "a.npz", "a.npz")
    (tmp_path / "hard.npz").hardlink_to(tmp_path / "in.npz")
    before = (tmp_path / "in.npz").read_bytes()
    done = run(*arguments, code=2)
    assert re.match(r"error: .*expected .*; ", done.stderr)
    assert (tmp_path / "in.npz").read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.npz", "hard.npz", "in.npz"]
