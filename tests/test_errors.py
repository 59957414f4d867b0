"""The error tree: one base, builtin parents, and a docstring that draws all of it."""

import inspect
import pickle

import pytest

from calibrant import errors
from calibrant._core.check import refuse

NAMES = errors.__all__


@pytest.mark.parametrize("name", NAMES)
def test_every_error_is_in_the_tree_and_in_its_drawing(name: str) -> None:
    cls = getattr(errors, name)
    assert issubclass(cls, errors.CalibrantError | errors.CalibrantWarning)
    assert errors.__doc__ is not None
    assert name in errors.__doc__
    assert inspect.getdoc(cls)


def test_a_missing_package_travels_home_from_worker_processes() -> None:
    error = errors.MissingExtraError("onnx", extra="onnx")
    assert "install it with pip install onnx" in str(pickle.loads(pickle.dumps(error))) == str(error)


def test_builtin_parents_let_foreign_code_catch_them() -> None:
    assert issubclass(errors.InputError, ValueError)
    assert issubclass(errors.FileFormatError, ValueError)
    assert issubclass(errors.FitError, RuntimeError)
    assert issubclass(errors.MissingExtraError, ImportError)


@pytest.mark.parametrize("name", [name for name in NAMES if name[-5:] == "Error" and name != "MissingExtraError"])
def test_an_error_is_one_sentence_and_stays_it_on_the_way_home(name: str) -> None:
    error = getattr(errors, name)(expected="bins as an integer", got="a\nb", remedy="pass bins=15")
    assert str(error) == "expected bins as an integer, got a b; pass bins=15"
    home = pickle.loads(pickle.dumps(error.at("a.csv")))
    assert str(home) == "a.csv: expected bins as an integer, got a b; pass bins=15"
    assert (home.expected, home.got, home.remedy, home.place) == (
        "bins as an integer", "a\nb", "pass bins=15", "a.csv",
    )  # fmt: skip


def test_a_place_is_put_before_the_place_that_is_known() -> None:
    inner = errors.FileFormatError(expected="a", got="b", remedy="c", place="line 3")
    assert str(inner.at("a.jsonl")) == "a.jsonl, line 3: expected a, got b; c"
    assert str(errors.InputError("a sentence").at("a.csv")) == "a.csv: a sentence"
    numbered = errors.InputError("a", "b", "c", row=7)
    assert (str(numbered.at("a.csv")), numbered.at("a.csv").row) == ("a.csv: expected a, got b in row 7; c", 7)


def test_what_was_got_is_cut_where_a_sentence_would_end_to_be_one() -> None:
    assert len(str(refuse("a", "x" * 1000, "c"))) < 150
