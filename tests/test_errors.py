"""The error tree: one base, builtin parents, and a docstring that draws all of it."""

import inspect
import pickle

import pytest

from calibrant import errors


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_in_the_tree_and_in_its_drawing(name: str) -> None:
    cls = getattr(errors, name)
    assert issubclass(cls, errors.CalibrantError | errors.CalibrantWarning)
    assert errors.__doc__ is not None
    assert name in errors.__doc__
    assert inspect.getdoc(cls)


def test_builtin_parents_let_foreign_code_catch_them() -> None:
    assert issubclass(errors.InputError, ValueError)
    assert issubclass(errors.FileFormatError, ValueError)
    assert issubclass(errors.FitError, RuntimeError)
    assert issubclass(errors.MissingExtraError, ImportError)
    assert "pip install onnx installs it" in str(errors.MissingExtraError("onnx", extra="onnx"))


@pytest.mark.parametrize("name", errors.__all__)
def test_errors_travel_home_from_worker_processes(name: str) -> None:
    cls = getattr(errors, name)
    error = cls("onnx", extra="onnx") if cls is errors.MissingExtraError else cls("a sentence")
    home = pickle.loads(pickle.dumps(error))
    assert (type(home), str(home)) == (cls, str(error))
