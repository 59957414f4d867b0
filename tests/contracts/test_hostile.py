"""Every public callable that takes data or options answers wrong ones by a value or by one sentence of ours, never by another error."""

import copy
import importlib
import inspect
import math
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.draws import drawn

import calibrant
from calibrant import Predictions
from calibrant.errors import CalibrantError

FAMILIES = [
    "binning", "calibrators", "calibrant", "evaluate", "functional", "losses", "metrics", "operate", "plot", "scores",
    "statistics", "theory",
]  # fmt: skip
METHODS = {
    "__call__", "forward", "fit", "update", "from_logits", "from_probs", "from_binary_logits", "from_binary_probs", "calibrated_by",
    "one_vs_rest", "predict_proba", "adapt", "decide",
}  # fmt: skip
LONGEST = 600
CLASSES = 4
LOGITS, LABELS = drawn(60, CLASSES, dtype=torch.float32)


def predictions() -> Predictions:
    return Predictions.from_logits(LOGITS, LABELS)


# A valid value of every parameter without a default; "Callable.parameter" comes before the bare name.
VALID: dict[str, Callable[[], Any]] = {
    "logits": lambda: LOGITS,
    "labels": lambda: LABELS,
    "log_probs": lambda: LOGITS.double().log_softmax(dim=1),
    "probs": lambda: LOGITS.double().softmax(dim=1),
    "from_binary_logits.logits": lambda: LOGITS[:, 0],
    "from_binary_probs.probs": lambda: LOGITS[:, 0].sigmoid(),
    "from_binary_logits.labels": lambda: LABELS % 2,
    "from_binary_probs.labels": lambda: LABELS % 2,
    "targets": lambda: LOGITS.softmax(dim=1),
    "data": predictions,
    "predictions": predictions,
    "validation": predictions,
    "reference": predictions,
    "inside": predictions,
    "outside": lambda: Predictions.from_logits(LOGITS / 3),
    "a": predictions,
    "b": lambda: Predictions.from_logits(LOGITS / 2, LABELS),
    "paired_square_test.a": lambda: calibrant.metrics.ECE().cells(predictions()),
    "paired_square_test.b": lambda: calibrant.metrics.ECE().cells(predictions()),
    "table": lambda: calibrant.binning.EqualWidth(5).table(predictions().confidence, predictions().correct.double()),
    "null": lambda: torch.rand(20, dtype=torch.float64),
    "metric": calibrant.metrics.ECE,
    "calibrator": lambda: calibrant.calibrators.TemperatureScaling().fit(LOGITS, LABELS),
    "loss": calibrant.losses.CrossEntropyLoss,
    "hidden": lambda: torch.randn(60, 8),
    "forward.weight": lambda: torch.randn(CLASSES, 8),
    "stages": calibrant.calibrators.TemperatureScaling,
    "score": lambda: calibrant.scores.FocalScore(2.0),
    "pairs": lambda: (1.0, calibrant.losses.CrossEntropyLoss()),
    "costs": lambda: (1 - torch.eye(CLASSES)).tolist(),
    "rule": lambda: calibrant.operate.thresholds((1 - torch.eye(CLASSES)).tolist()),
    "levels": lambda: [0.5],
    "by": lambda: "labels",
    "gamma": lambda: 2.0,
    "gammas": lambda: (5.0, 3.0),
    "milestones": lambda: (10,),
    "smoothing": lambda: 0.1,
    "strength": lambda: 0.1,
    "factor": lambda: 2.0,
    "p0": lambda: 0.2,
    "temperature": lambda: 2.0,
    "classes": lambda: 2,
    "class_index": lambda: 1,
    "s": lambda: torch.tensor([0.5, -0.5], dtype=torch.float64),
    "models": lambda: {"a": predictions()},
    "ece": lambda: 0.1,
    "maximum": lambda: {"ece": 0.1},
}

# What takes the place of an argument: each one gets every fourth of these in turn.
WRONG: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "text": lambda: "abc",
    "-1": lambda: -1,
    "nan": lambda: math.nan,
    "a list": lambda: [1, "a"],
    "predictions": predictions,
    "float matrix": lambda: torch.randn(60, CLASSES),
    "another number of rows": lambda: torch.randn(61, CLASSES),
    "three axes": lambda: torch.randn(2, 3, 4),
    "no rows": lambda: torch.empty(0, CLASSES),
    "complex": lambda: torch.zeros(60, CLASSES, dtype=torch.complex64),
    "NaN matrix": lambda: torch.full((60, CLASSES), math.nan),
    "+inf matrix": lambda: torch.full((60, CLASSES), math.inf),
    "labels K": lambda: torch.full((60,), CLASSES),
    "labels on another device": lambda: torch.empty(60, dtype=torch.int64, device="meta"),
    "objects": lambda: np.array([object()] * 60),
    "a path": lambda: Path("missing") / "x.npz",
}
STEP = 4


def subjects(family: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield a name and what is called of all that ``family`` exports: functions, constructors, and methods that users call."""
    module = calibrant if family == "calibrant" else importlib.import_module(f"calibrant.{family}")
    for name in ["Predictions"] if module is calibrant else module.__all__:
        member = getattr(module, name)
        if not callable(member) or inspect.isabstract(member):
            continue
        if module is not calibrant and not made_by_the_library(member):
            yield name, member
        if inspect.isclass(member) and (owner := instance(member)) is not None:
            for method in sorted((METHODS - ({"__call__"} if hasattr(owner, "forward") else set())) & set(dir(owner))):
                yield f"{name}.{method}", getattr(owner, method)


def made_by_the_library(member: Any) -> bool:
    """Return whether this is a record that functions return and that checks nothing."""
    if not inspect.isclass(member):
        return False
    return issubclass(member, tuple) or (len(member.__mro__) == 2 and not METHODS & set(dir(member)))


@cache
def instance(cls: type) -> Any:
    """Return an object of a class, a calibrator fitted; None for a record that functions return."""
    if cls is Predictions:
        return predictions()
    if made_by_the_library(cls):
        return None
    positional, named = arguments(cls.__name__, cls)
    made = cls(*positional, **named)
    if isinstance(made, calibrant.calibrators.Calibrator):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made.fit(LOGITS, LABELS)
    return made


def arguments(
    where: str, call: Callable[..., Any], wrong: str = "", value: Any = None
) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and named arguments: valid ones for what is required, ``value`` for the parameter ``wrong``."""
    positional, named = [], {}
    for name, parameter in inspect.signature(call).parameters.items():
        if name == wrong:
            chosen = value
        elif parameter.default is not inspect.Parameter.empty or parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        else:
            chosen = VALID.get(f"{where.rpartition('.')[2]}.{name}", VALID.get(name, lambda: None))()
        if parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL):
            positional.append(chosen)
        else:
            named[name] = chosen
    return positional, named


def fault(where: str, call: Callable[..., Any], wrong: str, value: Any) -> str | None:
    """Return what is wrong with how ``call`` takes ``value`` as the argument ``wrong``, or None."""
    positional, named = arguments(where, call, wrong, value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = (
                copy.deepcopy(call)(*positional, **named)
                if where.endswith((".fit", ".update"))
                else call(*positional, **named)
            )
    except CalibrantError as error:
        text = str(error)
        return None if text and "\n" not in text and len(text) <= LONGEST else f"says {text[:200]!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "returns NaN" if isinstance(answer, float) and math.isnan(answer) else None


@pytest.mark.parametrize("family", FAMILIES)
def test_wrong_arguments_get_one_sentence(family: str) -> None:
    faults, turn = [], 0
    for where, call in subjects(family):
        for name, parameter in inspect.signature(call).parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                continue
            turn += 1
            for value in list(WRONG)[turn % STEP :: STEP]:
                if (found := fault(where, call, name, WRONG[value]())) is not None:
                    faults.append(f"{where}({name}={value}): {found}")
    assert turn > 1
    assert not faults, "\n".join(faults)


def test_a_fault_is_found() -> None:
    def careless(labels: Any) -> float:
        return float(labels)

    assert "ValueError" in str(fault("careless", careless, "labels", "abc"))
    assert fault("careless", careless, "labels", 1.5) is None
    assert fault("careless", careless, "labels", math.nan) == "returns NaN"
