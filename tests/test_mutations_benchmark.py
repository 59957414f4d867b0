"""The mutations of the mathematics: the same places every time, found again where the code moved, put in as written."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.mutations import Mutation, draw, find, mutate, outcome, read_mutations, shares, sites, summary

from benchmarks import mutations

LOSS = '''
"""A loss."""
class Loss:
    def rows(self, p, y):
        """Return the loss."""
        if p.dim() > 2:
            raise ValueError(f"{p.dim() + 1} axes")
        check_all(p + 1)
        names = ["a"] + list(y)
        return (p - y) * 2 if p.max() <= 1 else -p[1:]

def sums(p):
    total = 0
    for one in range(len(p)):
        total = total + p[one] * p[one]
    return total
'''


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "losses").mkdir()
    (tmp_path / "losses" / "loss.py").write_text(LOSS)
    (tmp_path / "words.py").write_text("def f(x):\n    return x + 1\n")
    return tmp_path


def test_what_computes_is_changed_and_what_checks_or_words_is_not(package: Path) -> None:
    found = {(one.kind, one.text, one.mutated) for one in sites(package)}
    assert found == {
        ("sign", "p - y", "p + y"), ("term", "p - y", "p"), ("factor", "(p - y) * 2", "(p - y) / 2"),
        ("factor", "(p - y) * 2", "p - y"), ("off-by-one", "(p - y) * 2", "(p - y) * 3"),
        ("bound", "p.max() <= 1", "p.max() < 1"), ("off-by-one", "p.max() <= 1", "p.max() <= 2"),
        ("extreme", "p.max()", "p.min()"), ("sign", "-p[1:]", "p[1:]"), ("off-by-one", "1:", "2:"),
        ("off-by-one", "range(len(p))", "range(len(p) - 1)"), ("sign", "total + p[one] * p[one]", "total - p[one] * p[one]"),
        ("term", "total + p[one] * p[one]", "total"), ("factor", "p[one] * p[one]", "p[one] / p[one]"),
        ("factor", "p[one] * p[one]", "p[one]"),
    }  # fmt: skip


def test_every_place_can_be_found_and_changed(package: Path) -> None:
    before = ast.unparse(ast.parse(LOSS))
    for one in sites(package):
        place = find(package, one)
        assert place is not None
        changed = mutate(LOSS, place, one.mutated)
        mutated = one.mutated if one.text == "1:" else f"({one.mutated})"
        assert ast.unparse(ast.parse(changed)) == ast.unparse(ast.parse(before.replace(one.text, mutated, 1)))
        assert ast.unparse(ast.parse(changed)) != before


def test_the_same_seed_draws_the_same(package: Path) -> None:
    drawn = draw(package, count=4, seed=1)
    assert drawn == draw(package, count=4, seed=1)
    assert len({(one.name, one.text, one.mutated) for one in drawn}) == 4
    assert [one.number for one in drawn] == [0, 1, 2, 3]
    assert {one.name for one in drawn} == {"Loss.rows", "sums"}
    assert any(draw(package, count=4, seed=seed) != drawn for seed in range(2, 9))


def test_families_share_by_the_square_root() -> None:
    assert shares({"a": 100, "b": 25, "c": 1, "d": 0}, 16) == {"a": 10, "b": 5, "c": 1}
    assert shares({"a": 2, "b": 10_000}, 50) == {"a": 1, "b": 49}
    assert sum(shares({name: size for size, name in enumerate("abcdefghij")}, 13).values()) == 13


def test_what_moved_is_found_by_its_name_and_text(package: Path) -> None:
    whole = next(one for one in sites(package) if one.mutated == "p + y")
    (package / "losses" / "loss.py").unlink()
    mutations._INDEX.clear()
    assert find(package, whole) is None
    # a name of its own, other lines, and the same expression in a function that is another
    (package / "core.py").write_text(
        "def other(p, y):\n    return p - y\n\n" + LOSS.replace("class Loss", "class Renamed")
    )
    mutations._INDEX.clear()
    place = find(package, whole)
    assert (place.module, place.name, place.lines) == ("core.py", "Renamed.rows", (13, 13))
    mutations._INDEX.clear()
    (package / "core.py").write_text(LOSS.replace("(p - y) * 2", "(p - y) * 3 + (p - y)"))
    again = find(package, replace(whole, nth=1))
    assert again is not None
    assert (
        mutate(LOSS.replace("(p - y) * 2", "(p - y) * 3 + (p - y)"), again, "p + y").count("(p - y) * 3 + ((p + y))")
        == 1
    )


def test_a_table_maps_by_hand_what_is_written_anew(tmp_path: Path) -> None:
    one = Mutation(3, "losses", "sign", "losses/a.py", "f", "return a - b", "a - b", "a + b")
    (tmp_path / "moved.json").write_text('{"3": {"name": "g", "text": "c - b", "mutated": "c + b"}}')
    table = mutations.read_moved(tmp_path / "moved.json")
    for name, source in {"old": "def f(a, b):\n    return a - b\n", "new": "def g(c, b):\n    return c - b\n"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text(source)
    old, new = (mutations.located(tmp_path / name, one, table) for name in ("old", "new"))
    assert (old[0], old[1].name) == (one, "f")
    assert (new[0].mutated, new[1].name) == ("c + b", "g")
    assert mutations.located(tmp_path / "new", one, mutations.read_moved(tmp_path / "none.json")) is None


def test_expressions_over_lines_and_beyond_ascii() -> None:
    source = 'def f(a, b):\n    "φ"; c = "é"; return (a -\n        b) * 2\n'
    node = ast.parse(source).body[0].body[2].value.left  # type: ignore[attr-defined]
    place = mutations.Place("m.py", "f", (node.lineno, node.end_lineno), (node.col_offset, node.end_col_offset))
    assert mutate(source, place, "a + b") == 'def f(a, b):\n    "φ"; c = "é"; return ((a + b)) * 2\n'


def test_the_nearest_tests_run_first(tmp_path: Path) -> None:
    (tmp_path / "tests" / "losses").mkdir(parents=True)
    for name, text in {"test_a": "x", "test_b": "sums(1)", "test_loss": "", "test_c": "Loss sums rows"}.items():
        (tmp_path / "tests" / "losses" / f"{name}.py").write_text(text)
    one = Mutation(0, "losses", "sign", "losses/_loss.py", "Loss.rows", "", "", "")
    assert [Path(file).stem for file in mutations.tests_of(tmp_path, one, None)] == [
        "test_loss",
        "test_c",
        "test_a",
        "test_b",
    ]


@pytest.mark.slow
def test_a_mutation_is_noticed_or_not(tmp_path: Path) -> None:
    (tmp_path / "src" / "calibrant" / "losses").mkdir(parents=True)
    (tmp_path / "tests" / "losses").mkdir(parents=True)
    module = tmp_path / "src" / "calibrant" / "losses" / "loss.py"
    module.write_text("def f(a, b):\n    return a - b\n\ndef g(a):\n    return a + 1\n")
    (tmp_path / "tests" / "losses" / "test_f.py").write_text(
        "from calibrant.losses.loss import f\ndef test_f():\n    assert f(3, 1) == 2\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    (tmp_path / "mutation_budget.py").write_text(mutations._PLUGIN)
    for path in (tmp_path / "src" / "calibrant", module.parent):
        (path / "__init__.py").write_text("")
    found = {}
    for one in sites(tmp_path / "src" / "calibrant"):
        place = find(tmp_path / "src" / "calibrant", one)
        assert place is not None
        found[one.name, one.mutated] = outcome(tmp_path, place, one)
    assert {key: line["outcome"] for key, line in found.items()} == {
        ("f", "a + b"): "killed", ("f", "a"): "killed", ("g", "a - 1"): "survived", ("g", "a"): "survived",
        ("g", "a + 2"): "survived",
    }  # fmt: skip
    assert found["f", "a"]["by"] == "tests/losses/test_f.py::test_f"
    assert module.read_text().count("return a - b") == 1


def test_the_record_names_a_hundred_of_every_family() -> None:
    drawn = read_mutations()
    assert [one.number for one in drawn] == list(range(100))
    assert {one.family for one in drawn} == set(mutations.FAMILIES)
    assert len({(one.module, one.name, one.nth, one.text, one.mutated) for one in drawn}) == 100
    lines = [{"number": one.number, "outcome": "killed"} for one in drawn[:7]]
    assert summary(drawn, lines).splitlines()[-1].split() == ["all", "7", "0", "0", "0", "0"]
    cut = summary(drawn, [{"number": 0, "outcome": "survived", "whole": False}])
    assert cut.splitlines()[-1].split() == ["all", "0", "0", "1", "0", "0"]


def test_what_ran_before_is_recorded_once() -> None:
    before = mutations.read_results(mutations.RECORD.with_name("mutations-before.jsonl"))
    numbers = [line["number"] for line in before]
    assert len(set(numbers)) == len(numbers) > 0
    assert set(numbers) <= {one.number for one in read_mutations()}
    # a kill names the test that noticed, or that it made a loop endless
    assert all(line["by"] for line in before if line["outcome"] == "killed")
