"""The error tree: one base, a docstring that draws all of it, and sentences that survive pickling."""

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


def test_an_error_is_one_sentence_with_place_and_travels_home() -> None:
    error = errors.InputError(expected="bins as an integer", got="a\nb", remedy="pass bins=15")
    assert str(error) == "expected bins as an integer, got a b; pass bins=15"
    home = pickle.loads(pickle.dumps(error.at("line 3").at("a.csv")))
    assert isinstance(home, ValueError)
    assert str(home) == "a.csv, line 3: expected bins as an integer, got a b; pass bins=15"
    missing = errors.MissingExtraError("onnx", extra="onnx")
    assert 'pip install "calibrant[onnx]"' in str(pickle.loads(pickle.dumps(missing))) == str(missing)
    numbered = errors.InputError("a", "b", "c", row=7)
    assert (str(numbered.at("a.csv")), numbered.at("a.csv").row) == ("a.csv: expected a, got b in row 7; c", 7)
    assert len(str(refuse("a", "x" * 1000, "c"))) < 150
