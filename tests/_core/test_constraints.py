"""What a signature declares is checked and converted: the constraints of annotations, and of constructors and methods."""

import inspect
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch

from calibrant._core.constraints import Count, Level, NonNegative, Number, PublicCalls, Share, checked, constraint_of
from calibrant.errors import InputError


class Base(metaclass=PublicCalls):
    def __init__(self, width: NonNegative, *, top: Share = 0.5) -> None:
        self.width, self.top = width, top

    def scaled(self, by: Count) -> float:
        return self.width * by


class Loose(Base):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)


MADE: Any = Base  # wrong calls are what is tested, so mypy must not see the signatures


class TestClasses:
    def test_a_constructor_and_a_method_check_and_convert(self) -> None:
        made = MADE(np.float32(2), top=1)
        assert (type(made.width), type(made.top)) == (float, float)
        assert made.scaled(np.int64(3)) == 6
        for call, message in (
            (lambda: MADE(-1), r"expected width in \[0, inf\), got -1; choose a value in that range"),
            (lambda: MADE(1, top=2), r"expected top in \[0, 1\], got 2"),
            (lambda: Loose(width=1, top=2), r"expected top in \[0, 1\], got 2"),
            (lambda: made.scaled(0), "expected by as an integer ≥ 1, got 0"),
        ):
            with pytest.raises(InputError, match=message):
                call()

    def test_a_signature_shows_what_is_declared(self) -> None:
        assert str(inspect.signature(Base)).startswith("(width: float in [0, ∞), *, top: float in [0, 1] = 0.5)")


@pytest.mark.parametrize(
    ("annotation", "good", "bad", "message"),
    [
        (Count | None, [None, 3], [0, "x"], "an integer ≥ 1"),
        (Literal["a", "b"], ["a"], ["c", 1], "to be one of 'a', 'b'"),
        (Literal[1, 2], [1, 2.0], [True, 3], "to be one of 1, 2"),
        (Literal["auto"] | Level, ["auto", 0.5], ["other", 1.0], "x "),
        (torch.Tensor | NonNegative, [torch.ones(2), 0.0], [-1.0, "x"], r"in \[0, inf\)"),
        (tuple[NonNegative, ...], [(1, 2), [1.5], np.ones(2), ()], [3, (1, -1)], "x"),
        (bool, [True, np.True_], [1, "yes"], "True or False"),
        (Annotated[float, Number(1, keep=True)], [1, 2.5], [0.5], r"in \[1, inf\)"),
    ],
)
def test_an_annotation_declares(annotation: Any, good: list[Any], bad: list[Any], message: str) -> None:
    constraint = constraint_of(annotation)
    for value in good:
        constraint.check(value, "x", None)
    for value in bad:
        with pytest.raises(InputError, match=message):
            constraint.check(value, "x", None)


@pytest.mark.parametrize("annotation", [int, str, torch.Tensor, dict[str, float], Count | dict[str, float]])
def test_a_type_without_a_constraint_declares_nothing(annotation: Any) -> None:
    assert constraint_of(annotation) is None


def test_a_checked_function_keeps_its_name_and_takes_its_arguments_in_any_form() -> None:
    @checked
    def area(width: NonNegative, /, height: NonNegative = 2.0, *rest: float, scale: Count = 1) -> float:
        return width * height * scale + sum(rest)

    assert (area(3), area(3, 4, 5.0), area(3, height=1, scale=2)) == (6.0, 17.0, 6.0)
    assert area.__name__ == "area"
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'width'"):
        area()
