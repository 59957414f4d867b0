"""Honour or refuse: every option of every command, read from the application, on every kind of input."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from tests.cli.conftest import Run, some_logits

import calibrant
from calibrant import Predictions
from calibrant.cli import main

GROUP = typer.main.get_command(main)
KINDS = ("file", "files", "folder", "splits", "large", "stdin")
INPUTS = {"apply": "one", "evaluate": "many", "fit": "one", "report": "many"}  # how many FILEs a command takes
OUTPUTS = {"apply": ".npz", "fit": ".safetensors", "report": ".json"}

# A value that must change something, for options whose effect depends on the data. Any other option is tried with a value
# of its type, so that a new one is tried without being listed.
VALUES: dict[str, Any] = {
    "split": "val",
    "fit_split": "other",
    "calibrator": "c.safetensors",
    "class_dim": 0,
    "ignore_index": 1,
    "class_names": "names.txt",
    "method": "VectorScaling",
    "draws": 20,
    "executor": "ray",
    "address": "nowhere",
    "workers": 2,
    "format": "md",
    "output": "other",
}


def options() -> Iterator[tuple[str, str]]:
    """Yield (command, parameter) of every option of the commands that read files of predictions."""
    for name in INPUTS:
        for parameter in GROUP.commands[name].params:  # type: ignore[attr-defined]
            if parameter.param_type_name == "option" and parameter.name not in {"help", "output"}:
                if (name, parameter.name) != ("apply", "ignore_index"):  # lets a file pass: see below
                    yield name, parameter.name


def flag_of(command: str, name: str) -> list[str]:
    """Return the option with a value other than its default."""
    [parameter] = [p for p in GROUP.commands[command].params if p.name == name]  # type: ignore[attr-defined]
    flag = max(parameter.opts, key=len)
    if getattr(parameter, "is_flag", False):
        return [flag]
    if (command, name) == ("fit", "split"):
        return [flag, "other"]  # its default is val
    if name in VALUES:
        return [flag, str(VALUES[name])]
    numbers = {int: "3", float: "0.5"}
    return [flag, numbers.get(type(parameter.default), "x")]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files, a folder of shards, a folder of splits, and a calibrator fitted on other rows."""
    place = tmp_path_factory.mktemp("options")
    splits = {}
    for seed, name in enumerate(("val", "test", "other")):
        splits[name] = Predictions.from_logits(*some_logits(rows=120, classes=4, seed=seed))
    calibrant.save_predictions(place / "a.npz", splits)
    calibrant.save_predictions(place / "b.npz", splits)
    for name, data in splits.items():
        (place / "splits" / name).mkdir(parents=True)
        calibrant.save_predictions(place / "splits" / name / "0.parquet", {"all": data})
    (place / "folder").mkdir()
    calibrant.save_predictions(place / "folder" / "0.parquet", {"all": splits["test"]})
    calibrant.save_predictions(place / "large.parquet", {"all": splits["test"]})
    fresh = Predictions.from_logits(*some_logits(rows=120, classes=4, seed=9))
    calibrant.calibrators.TemperatureScaling().fit(fresh.logits, fresh.labels).save(place / "c.safetensors")
    (place / "names.txt").write_text("\n".join("abcd"))
    return place


@pytest.fixture(scope="module")
def before() -> dict[tuple[str, ...], Any]:
    """What each command said and wrote without an option, run once for all of its options."""
    return {}


def trials() -> Iterator[Any]:
    """Yield (command, option, kind of input), the less usual kinds as slow tests."""
    for command, option in options():
        for kind in KINDS:
            if kind != "files" or INPUTS[command] == "many":
                marks = [] if kind in {"file", "folder"} else [pytest.mark.slow]
                yield pytest.param(command, option, kind, id=f"{command}-{option}-{kind}", marks=marks)


@pytest.mark.parametrize(("command", "option", "kind"), list(trials()))
def test_an_option_has_an_effect_or_is_refused(
    command: str,
    option: str,
    kind: str,
    home: Path,
    before: dict[tuple[str, ...], Any],
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setattr("calibrant.cli._options.STREAMED_BYTES", 1000)
    started: list[Any] = []

    def start(*arguments: Any, **options: Any) -> Any:
        started.append((arguments, options))
        return map

    for name in ("processes", "ray_cluster"):  # what they would run is the same; neither is started
        monkeypatch.setattr(f"calibrant.scale.{name}", start)
    files = {"files": ["a.npz", "b.npz"], "stdin": ["-"], "file": ["a.npz"], "large": ["large.parquet"]}.get(
        kind, [kind]
    )
    data = Path("a.npz").read_bytes() if kind == "stdin" else None
    streamed = kind in {"folder", "large", "splits"}

    def outcome(extra: list[str], name: str) -> tuple[Any, ...]:
        out = tmp_path / name
        suffix = "" if command == "apply" and streamed else OUTPUTS.get(command, "")
        if "md" in extra:
            suffix = ".md"
        place = out.with_suffix(suffix)
        method = []
        if command in {"fit", "report"} and option not in {"method", "calibrator"}:
            method = ["-m", "none" if command == "report" and kind in {"folder", "large"} else "TemperatureScaling"]
        elif command == "report":
            method = ["-m", "none"] if extra[:1] != ["--method"] and extra[:1] != ["--calibrator"] else []
        quick = ["--draws", "10"] if command == "evaluate" and option != "draws" and not streamed else []
        arguments = (["c.safetensors"] if command == "apply" else []) + files + method + quick + extra
        if (key := (command, *arguments)) in before:
            return before[key]
        started.clear()
        done = run(command, *arguments, *(["-o", str(place)] if command in OUTPUTS else []), input=data)
        written = b""
        if place.is_file():
            written = place.read_bytes()
        elif place.is_dir():
            written = b"".join(file.read_bytes() for file in sorted(place.iterdir()))
        said = re.sub(rf"{re.escape(str(tmp_path))}\S*", "", done.stdout + done.stderr)
        before[key] = done, (" ".join(said.split()), written, list(started))
        return before[key]

    base, plain = outcome([], "base")
    if base.exit_code:
        assert kind == "splits", base.output  # apply reads one data set, not a folder of splits
        return
    done, after = outcome(flag_of(command, option), "tried")
    if done.exit_code == 2:
        assert re.match(r"error: .*expected .*; ", done.stderr), done.stderr
        assert done.stderr.count("\n") == 1
        assert "Traceback" not in done.stderr
        assert done.stdout == ""
    else:
        assert done.exit_code == 0, done.output
        assert after != plain, f"{command} {option} on {kind}: accepted, and nothing is different"


def test_apply_passes_rows_without_a_label_where_they_are_named(home: Path, tmp_path: Path, run: Run) -> None:
    logits, labels = some_logits(rows=20, classes=4)
    labels[3] = -100
    np.savez(tmp_path / "in.npz", logits=logits, labels=labels)
    arguments = ["apply", home / "c.safetensors", tmp_path / "in.npz", "-o", tmp_path / "out.npz"]
    assert run(*arguments).exit_code == 2
    assert run(*arguments, "--ignore-index", "-100").exit_code == 0
