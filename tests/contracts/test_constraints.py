"""Every constraint that a public callable declares: a value that it refuses gets one sentence about that argument."""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch
from tests.contracts import hostile

from calibrant._core.constraints import (
    CallPlan,
    Count,
    Level,
    NonNegative,
    Number,
    PublicCalls,
    Share,
    checked,
    constraint_of,
)
from calibrant.errors import InputError

Declared = tuple[str, Callable[..., Any], inspect.Signature, CallPlan]


def declared(family: str) -> Iterator[Declared]:
    """Yield name, a call that takes arguments by name, signature and plan of what ``family`` exports, and of its methods."""
    for where, member in hostile.members(family):
        plan = getattr(member, "plan", None)
        if isinstance(plan, CallPlan):
            yield where, member, inspect.signature(member), plan
        for name, method in inspect.getmembers(member, inspect.isfunction) if inspect.isclass(member) else ():
            plan = getattr(method, "plan", None)
            if isinstance(plan, CallPlan):
                blank = object.__new__(member)  # the arguments are checked before anything of the object is read
                yield f"{where}.{name}", method.__get__(blank), inspect.signature(method), plan


def hold(where: str, call: Callable[..., Any], signature: inspect.Signature, plan: CallPlan) -> None:
    """Hold that each declared argument is checked, and that its default fits what is declared."""
    for name, constraint in plan.names.items():
        parameter = signature.parameters.get(name)
        default = inspect.Parameter.empty if parameter is None else parameter.default
        if default is not inspect.Parameter.empty and repr(default) != "<factory>":  # a dataclass makes it at each call
            assert constraint.check(default, name, None) == default, f"{where}({name})"
        if parameter is not None and parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            continue
        # An array is compared entry by entry: asked `== "all"` it has no truth value, so every check must ask its type first.
        for foreign in (np.array(["a", "b"]), np.ma.masked_array([1.0, 2.0]), np.array([None, "x"])):
            with contextlib.suppress(InputError):
                constraint.check(foreign, name, None)
        for bad in constraint.refused:
            if parameter is not None and bad is None and parameter.default is None:
                continue
            with pytest.raises(InputError) as caught:
                call(**{name: bad})
            sentence = f"{where}({name}={bad!r}): {caught.value}"
            assert hostile.SENTENCE.match(str(caught.value)), sentence
            assert "\n" not in str(caught.value), sentence
            assert name in caught.value.expected or name == caught.value.argument, sentence


@pytest.mark.parametrize("family", hostile.FAMILIES)
def test_what_is_declared_is_checked(family: str) -> None:
    found = list(declared(family))
    assert found or family not in {"losses", "metrics", "calibrators", "statistics", "operate"}
    for one in found:
        hold(*one)


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
            (lambda: MADE(), "got no width; pass width"),
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
    with pytest.raises(InputError, match="got no width; pass width"):
        area()  # type: ignore[call-arg]


# What the mathematics of each asks for, said a second time, so that a bound that moves is seen.
RANGES = {
    "calibrators.AdaptiveTemperatureScaling": {"by": "each 'confidence' or 'entropy'", "knots": "≥ 0", "ridge": "in (0, ∞)"},
    "calibrators.AutoCalibrator": {"folds": "≥ 2", "keep": "'argmax' or 'order'"},
    "calibrators.BoostedScaling": {"depth": "1 … 8", "most_trees": "≥ 1", "folds": "≥ 2"},
    "calibrators.FocalCalibration": {"gamma": "> −1"},
    "calibrators.FocalTemperatureScaling": {"gammas": "each > −1", "prior": "in (0, ∞)"},
    "calibrators.FeatureScaling": {"ridge": "in (0, ∞)"},
    "calibrators.GroupScaling": {"strength": "in (0, ∞)", "folds": "≥ 2"},
    "calibrators.HistogramBinning": {"empty": "'identity' or 'midpoint' or 'nearest'", "floor": "in [0, 0.5]"},
    "calibrators.IsotonicCalibration": {"floor": "in [0, 1)"},
    "calibrators.KernelScaling": {"waves": "≥ 1", "ridge": "in (0, ∞)"},
    "calibrators.PriorShift": {"priors": "each in [0, 1]", "rates": "each in (0, 1]", "method": "'em' or 'bbse'", "floor": "in [0, 1)"},
    "calibrators.ScalingBinning": {"bins": "1 … 1048576"},
    "calibrators.SplineCalibration": {"knots": "≥ 3"},
    "calibrators.StructuredMatrixScaling": {"prior": "in (0, ∞)", "strength": "in [0, ∞)"},
    "calibrators.TemperatureMixture": {"mixing": "'laplace' or 'fit' or in [0, 1)"},
    "calibrators.VectorScaling": {"ridge": "in [0, ∞)", "prior": "in (0, ∞)"},
    "calibrators.BiasScaling": {"prior_rows": "in (0, ∞)"},
    "metrics.CalibrationLoss": {"score": "'brier' or 'log'"},
    "metrics.ECE": {"norm": "1 or 2"},
    "metrics.Entropy": {"where": "'all' or 'correct' or 'wrong'"},
    "metrics.SmoothECE": {"cells": "16 … 16777216"},
    "operate.estimate": {"sensitivity": "in [0, 1]"},
    "operate.abstain": {"error": "in (0, 1)", "coverage": "in (0, 1)", "confidence": "in (0, 1)", "by": "'class' or 'group'"},
    "operate.net_benefit": {"at": "each in (0, 1)"},
    "evaluate.subgroups": {"depth": "≥ 1", "bins": "2 … 1000", "level": "in (0, 1)", "minimum": "≥ 1"},
    "statistics.bootstrap": {"draws": "1 … 1000000"},
    "statistics.interval": {"draws": "2 … 1000000", "level": "in (0, 1)"},
    "statistics.null_band": {"draws": "1 … 1000000"},
}  # fmt: skip


@pytest.mark.parametrize("where", RANGES)
def test_a_range_is_what_the_mathematics_asks_for(where: str) -> None:
    family = where.rpartition(".")[0]
    names = dict(hostile.members(family))[where].plan.names
    assert {argument: repr(names[argument]) for argument in RANGES[where]} == RANGES[where]
