"""The corpus of tables: what says what it holds is read, what does not is refused with a command, no number is wrong, and
``apply`` and ``to_frame`` give each table back with the same probabilities."""

import itertools
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.tables.cases import Case
from benchmarks.tables.colleagues import COLLEAGUES
from benchmarks.tables.corpus import CORPUS
from benchmarks.tables.deployed import DEPLOYED
from benchmarks.tables.elsewhere import ELSEWHERE
from benchmarks.tables.held_out import FRESH, HELD_OUT, LAST_LOOK, LATER, REFUSED, STRANGERS
from benchmarks.tables.measure import outcome, run
from benchmarks.tables.producers import FURTHER, PRODUCERS
from benchmarks.tables.programs import PROGRAMS
from benchmarks.tables.roles import ROLES
from benchmarks.tables.tools import TOOLS
from tests.draws import drawn

import calibrant
from calibrant import Predictions
from calibrant.calibrators import TemperatureScaling  # type: ignore[attr-defined]
from calibrant.data.formats.layout import FOREIGN
from calibrant.data.formats.reading import hold_labels_alone
from calibrant.data.formats.tables import read_table
from calibrant.errors import InputError

READ = [*CORPUS, *FRESH, *REFUSED, *PRODUCERS, *FURTHER, *TOOLS, *COLLEAGUES, *ROLES, *DEPLOYED, *PROGRAMS]
FAST = [*CORPUS, *REFUSED, *PRODUCERS, *TOOLS, *ROLES, *PROGRAMS]
# How ``apply`` writes: what, and whether in place of the scores. A fast case tries one of them in turn, a slow one all.
WAYS = [("probs", False), ("top", False), ("probs", True)]
EVERY = itertools.chain(READ, HELD_OUT, LATER, STRANGERS, LAST_LOOK, ELSEWHERE)


@pytest.mark.parametrize(
    "case", [pytest.param(one, id=one.name, marks=() if one in FAST else pytest.mark.slow) for one in EVERY]
)
@pytest.mark.filterwarnings("ignore:expected text in UTF-8")
def test_outcome(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        truth = case.write(tmp_path)
    except ImportError as error:
        pytest.skip(f"optional package '{error.name}' is not installed")
    what, said, words = outcome(case, truth)
    assert what != "wrong numbers", said
    if case in READ:
        assert what in ("at once", "printed command"), said
    if what != "refused" and not case.pairs:
        assert_round_trip(words, ways=[WAYS[FAST.index(case) % 3]] if case in FAST else WAYS)


def options_of(words: list[str]) -> tuple[str, dict[str, Any]]:
    """Return the file that words of a command name, and the arguments of ``calibrant.read`` that its options are."""
    file, found, rest = "", {}, iter(words)
    for word in rest:
        if word == "--normalize":
            found["normalize"] = True
        elif word.startswith("--"):
            found[word[2:].replace("-", "_")] = next(rest)
        elif file and hold_labels_alone(Path(file)):
            file, found["labels"] = word, file
        elif file:
            found["labels"] = word
        else:
            file = word
    if "class_names" in found:
        found["class_names"] = Path(found["class_names"]).read_text().split()
    return file, found


@cache
def fitted(classes: int) -> TemperatureScaling:
    """Return a temperature of drawn rows, not to be changed."""
    return TemperatureScaling().fit(*drawn(400, classes, dtype=torch.float32))


def plain(cells: list[Any]) -> list[Any]:
    """Return cells with lists that are text as lists, and records as the list of their values by name."""
    lists = [json.loads(one) if isinstance(one, str) and one[:1] in ("[", "{") else one for one in cells]
    return [[one[name] for name in sorted(one)] if isinstance(one, dict) else one for one in lists]


def assert_round_trip(words: list[str], *, ways: list[tuple[str, bool]]) -> None:
    """Hold that ``apply`` writes the rows of a table with the probabilities that Python has, and everything else as it was."""
    file, options = options_of(words)
    words = [one for one in words if one != options.get("labels") or "--labels" in words]
    if options.keys() & {"class_dim", "ignore_index"}:  # of arrays, which ``calibrant.read`` takes as they are
        return
    try:
        data = calibrant.read(file or None, **options)
    except InputError as error:  # the rows of several models, which ``read`` gives one model at a time
        if error.expected != "one split":
            raise
        return
    assert isinstance(data, Predictions)
    scaling = fitted(data.classes)
    scaling.save("c.safetensors")
    after = data.calibrated_by(scaling)
    if data.frame is None or Path(file).is_dir():  # arrays, a log, or a table with its scores in other rows
        return
    source = Path(file)
    before, rows = read_table(source), data.frame.rows
    kept = slice(None) if rows is None else rows.tolist()  # ``apply`` gives rows back that have no label, too
    own = set(data.frame.columns) <= set(
        before.column_names
    )  # else the scores are parts of cells, which cannot be replaced
    for what, replaced in [(what, replaced and own) for what, replaced in ways]:
        extra = ["--replace"] if replaced else []
        target = Path(f"out-{source.stem}.csv" if source.suffix in FOREIGN else f"out-{source.name}")
        code, _, err = run(["apply", "c.safetensors", *words, "--as", what, *extra, "-o", str(target)])
        assert code == 0, err
        given = read_table(target)
        frame = after.to_frame(what=what, instead=replaced)
        if before.column_names[0] == "columnA":  # a file without a title, which comes back without one
            given = given.rename_columns(frame.column_names)
        assert given.num_rows == before.num_rows
        assert given.column_names[: before.num_columns] == before.column_names
        for name in before.column_names:
            if not replaced or name not in data.frame.columns:
                assert given.column(name).to_pylist() == before.column(name).to_pylist()
        new = data.frame.columns if replaced else given.column_names[before.num_columns :]
        assert len(new) > 0
        for name in new:
            cells, expected = map(plain, (given[name].to_pylist(), frame.column(name).to_pylist()))
            if isinstance(expected[0], str):
                assert (
                    list(map(str, np.array(cells)[kept].tolist())) == expected
                )  # a class called 1 is read as a number
            else:
                np.testing.assert_allclose(np.array(cells)[kept], expected, atol=1e-12)
    np.testing.assert_allclose(after[::2].to_frame(what="top").column(-1), after.confidence[::2], atol=1e-6)
