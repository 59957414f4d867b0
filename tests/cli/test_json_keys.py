"""The JSON of every command keeps the keys, the exit code and the values that it had before version 1.0."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

HOME = Path(__file__).parent.parent / "data" / "before-1.0"
BEFORE = json.loads((HOME / "commands.json").read_text())
SAID_OTHERWISE = {"keep_argmax=False": "keep=None"}  # in texts, as the changelog says


def keys_of(value: Any, path: str = "") -> set[str]:
    """Return the paths of all keys; the members of a list share one."""
    if isinstance(value, dict):
        found = {f"{path}/{name}" for name in value}
        return found | {one for name, inner in value.items() for one in keys_of(inner, f"{path}/{name}")}
    if isinstance(value, list):
        return {one for inner in value for one in keys_of(inner, f"{path}/*")}
    return set()


def empty_lists(value: Any, path: str = "") -> set[str]:
    """Return the paths of lists without members, such as the gains of a report whose errors are too few to test one."""
    inner = (
        value.items() if isinstance(value, dict) else (("*", one) for one in value) if isinstance(value, list) else ()
    )
    found = {one for name, member in inner for one in empty_lists(member, f"{path}/{name}")}
    return found | ({path} if value == [] else set())


def assert_same(found: Any, expected: Any, path: str = "") -> None:
    """Numbers are equal to 1e-6 and all else exactly; keys and rows may come in addition."""
    if isinstance(expected, dict):
        for name, value in expected.items():
            assert_same(found[name], value, f"{path}/{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), path
        for number, value in enumerate(expected):
            assert_same(found[number], value, f"{path}/{number}")
    elif isinstance(expected, float) and isinstance(found, float | int):
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-6), path
    elif isinstance(expected, str):
        for before, now in SAID_OTHERWISE.items():
            expected = expected.replace(before, now)
        assert found == expected, path
    else:
        assert found == expected, path


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "theory" else name for name in BEFORE]
)
def test_a_command_says_in_json_what_it_said(
    name: str, tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = BEFORE[name]
    for place in ("files", "calibrators", "study"):
        shutil.copytree(HOME / place, tmp_path / place)
    monkeypatch.chdir(tmp_path)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    shutil.copy(HOME / "operate" / "watch.safetensors", scratch)
    done = run(*before["arguments"].format(tmp=scratch).split())
    assert done.exit_code == before["exit"], done.output
    written = scratch / "report.json"
    shown = json.loads(written.read_text() if written.exists() else done.stdout)
    there, empty = keys_of(shown), tuple(f"{path}/" for path in empty_lists(shown))
    assert {key for key in set(before["keys"]) - there if not key.startswith(empty)} == set()
    if before["values"] is not None:
        assert_same(shown, before["values"])
