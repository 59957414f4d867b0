"""Calls every public callable with wrong arguments, one at a time; each call must end in a value or in one sentence of ours.

``test_hostile.py`` holds every family to it. Whatever a family's ``__all__`` lists is found by itself: a new parameter name only needs a
valid value in ``VALID``.
"""

import contextlib
import copy
import dataclasses
import importlib
import inspect
import io
import itertools
import math
import os
import re
import signal
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

import calibrant
from calibrant import Predictions
from calibrant.errors import CalibrantError

for _variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):  # as in tests/conftest.py: the libraries are imported later
    os.environ.setdefault(_variable, "1")

# Every family is held clean by test_hostile.py.
FAMILIES = [
    "adapters.dataframes", "adapters.lightning", "adapters.mlflow", "adapters.onnx", "adapters.sklearn", "adapters.torchmetrics",
    "adapters.transformers", "binning", "calibrant", "calibrators", "data.multilabel", "data.predictions", "data.splits",
    "data.top_k", "errors", "evaluate", "functional", "language", "losses", "metrics", "operate", "plot", "report", "rows",
    "scale", "scores", "statistics", "study", "study.data", "study.figures", "study.models", "testing",
    "theory", "vocabulary",
]  # fmt: skip

# Callables that are not called with wrong arguments, each with its reason.
EXCLUDED = {
    "errors.Remedy": "made by the code that refuses",
    "scale.ray_cluster": "starts a cluster; tests/scale/test_execute.py holds its arguments",
    "scale.processes": "starts processes; tests/scale/test_execute.py holds its arguments",
    "binning.BinTable": "made by from_pairs of a binning",
    "binning.MassSketch": "made by from_pairs of a binning",
    "operate.Sample": "made by sample; tests/operate/audit holds the arguments of its methods",
    "theory.FocalTerms": "made by the theory's functions",
    "theory.Minimum": "made by minimiser",
}
LONGEST_MESSAGE = 600
SECONDS = 20

ROWS, CLASSES = 60, 4


@cache
def sample() -> tuple[torch.Tensor, torch.Tensor]:
    """Return over-confident logits (60, 4) and labels."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(ROWS, CLASSES, generator=generator)
    return logits, torch.multinomial(torch.softmax(logits / 2, dim=1), 1, generator=generator)[:, 0]


def predictions() -> Predictions:
    return Predictions.from_logits(*sample())


@cache
def fitted() -> Any:
    return calibrant.calibrators.TemperatureScaling().fit(*sample())


def several() -> calibrant.MultiLabelPredictions:
    """Return the same logits with several labels a row."""
    return calibrant.MultiLabelPredictions.from_logits(sample()[0], _several_labels())


def _several_labels() -> torch.Tensor:
    return (torch.arange(ROWS)[:, None] + torch.arange(CLASSES)) % 3 % 2


def _several_file() -> Path:
    path = Path(tempfile.mkdtemp()) / "labels.parquet"
    calibrant.save_multilabel(path, {"all": several()})
    return path


@cache
def _fitted_several() -> Any:
    return calibrant.calibrators.MultiLabelCalibrator().fit(several())


def parquet() -> Path:
    path = Path(tempfile.mkdtemp()) / "rows.parquet"
    calibrant.save_predictions(path, {"all": predictions()})
    return path


@cache
def _classifier() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression().fit(sample()[0].numpy(), sample()[1].numpy() % 2)


def _frame() -> Any:
    import pyarrow

    return pyarrow.table({f"p{k}": sample()[0][:, k].numpy() for k in range(CLASSES)})


# Plain values, by parameter name as below.
PLAIN: dict[str, Any] = {
    "gamma": 2.0, "factor": 2.0, "temperature": 2.0, "gammas": (5.0, 3.0),
    "losses.ScheduledFocalLoss.gammas": (5.0, 3.0), "milestones": (10,), "smoothing": 0.1, "strength": 0.1, "ece": 0.1,
    "seed": 0, "draws": 20, "epoch": 3, "p0": 0.2, "name": "focal", "title": "Title", "header": ("a", "b"),
    "report.Table.rows": [("1", "2")], "file": "rows.npz", "split": "test", "report.Model.name": "mine",
    "columns": ["p0", "p1", "p2", "p3"], "adapters.mlflow.log_panel.figures": {"ECE": 0.1},
    "language.parse_confidence.text": "85 %", "language.token_classes.vocabulary": ["Ġthe", "ing", "."],
    "language.token_classes.tokens": [0, 1, 2], "what": "a metric", "rates": [0.1, 0.2, 0.3, 0.4], "class_index": 1,
    "study.Training.epochs": 1, "weighted": False, "batch": 32, "study.data.data_set.data": {"name": "digits"},
    "study.data.load_fold.data": {"name": "digits"}, "data.top_k.TopK.temperature.vocabulary": 100, "about": "A study.",
    "seeds": (0, 1), "study.load_study.name": "digits", "inputs": 8, "vocabulary": 50,
}  # fmt: skip

# A valid value for each parameter name; "family.Callable.parameter" comes before the bare name.
VALID: dict[str, Callable[[], Any]] = {
    "logits": lambda: sample()[0],
    "log_probs": lambda: torch.log_softmax(sample()[0].double(), dim=1),
    "probs": lambda: torch.softmax(sample()[0].double(), dim=1),
    "targets": lambda: torch.softmax(sample()[0], dim=1),
    "b": lambda: Predictions.from_logits(sample()[0] / 2, sample()[1]),
    "outside": lambda: Predictions.from_logits(sample()[0] / 3),
    "score": lambda: calibrant.scores.FocalScore(2.0),
    "pairs": lambda: (1.0, calibrant.losses.CrossEntropyLoss()),
    "out": lambda: Path(tempfile.mkdtemp()) / "out.parquet",
    "splits": lambda: {"test": predictions()},
    "classes": lambda: CLASSES,
    "loss": lambda: calibrant.losses.CrossEntropyLoss(),
    "hidden": lambda: torch.randn(ROWS, 8),
    "by": lambda: torch.arange(ROWS) % 3,
    "weight": lambda: torch.ones(CLASSES),
    "nll": lambda: torch.rand(ROWS),
    "loader": lambda: [(torch.randn(3, 8), torch.zeros(3, dtype=torch.int64))],
    "parts": lambda: [predictions(), predictions()],
    "generator": lambda: torch.Generator().manual_seed(0),
    "s": lambda: torch.tensor([0.5, -0.5], dtype=torch.float64),
    "X": lambda: sample()[0].numpy(),
    "table": lambda: calibrant.binning.EqualWidth(5).table(predictions().top_label().p, predictions().top_label().y),
    "models": lambda: {"a": predictions()},
    "y_prob": lambda: np.linspace(0.01, 0.99, ROWS),
    "estimator": _classifier,
    "report.write_report.models": lambda: [calibrant.report.Model("a", predictions())],
    "report.write_report.path": lambda: Path(tempfile.mkdtemp()) / "report.json",
    "adapters.dataframes.from_table.table": _frame,
    "adapters.onnx.export.path": lambda: Path(tempfile.mkdtemp()) / "c.onnx",
}


def _binned() -> Any:
    return calibrant.metrics.ECE().cells(predictions())


@cache
def _study() -> Any:
    return importlib.import_module("calibrant.study").load_study("digits")


def _recipe() -> Any:
    return next(iter(_study().cells())).recipe


def _chunk() -> Any:
    return importlib.import_module("calibrant.rows").Chunk(sample()[0], labels=sample()[1])


def _drawn_rows() -> Any:
    drawn = calibrant.operate.sample(predictions(), min(20, ROWS))
    return drawn.labelled(predictions().labels[drawn.rows])  # type: ignore[index]


def _monitor() -> Any:
    return calibrant.operate.Monitor(predictions())


def _deployed() -> Any:
    return calibrant.operate.Deployed(fitted(), calibrant.operate.thresholds((1 - torch.eye(CLASSES)).tolist()))


def _saved(made: Any, name: str) -> Path:
    path = Path(tempfile.mkdtemp()) / name
    made.save(path)
    return path


def _new(name: str) -> Callable[[], Path]:
    return lambda: Path(tempfile.mkdtemp()) / name


def _judged() -> calibrant.language.Log:
    """Return a log of one judge's answer, whose options are A and B, yes and no, and the levels 1 to 5."""
    names = ("A", "B", "yes", "no", "1", "2", "3", "4", "5")
    top = {name: -2.0 - place / 10 for place, name in enumerate(names)}
    token = calibrant.language.Token("A", -2.0, top)
    return calibrant.language.Log((calibrant.language.Response("1", "Confidence: 80 %", (token,)),))


def _scored() -> calibrant.language.Log:
    """Return a log of one answer with samples and another program's score."""
    return calibrant.language.Log((calibrant.language.Response("1", "A", samples=("A", "B"), scores={"x": 0.5}),))


def _written(name: str, content: str) -> Path:
    path = Path(tempfile.mkdtemp()) / name
    path.write_text(content)
    return path


VALID |= {
    "log": _judged,
    "language.judge_audit.judge": lambda: [0.0, 1.0] * 20,
    "language.judge_rows.judge": lambda: [0.0, 1.0] * 100,
    "language.judge_audit.human": lambda: [0, 1, 1, 1] * 10,
    "language.read_judged.path": lambda: _written("judged.csv", "id,score\n1,0.5\n"),
    "language.read_uqlm.path": lambda: _written("scored.jsonl", '{"response": "A", "exact_match": 0.5}'),
    "language.read_lm_polygraph.path": lambda: _written("scored.jsonl", '{"uncertainty": 0.5}'),
    "language.read_labels.path": lambda: _written("labels.csv", "id,label\n1,A\n"),
    "language.read_openai.path": lambda: _written("log.jsonl", '{"choices": [{"text": "A"}]}'),
    "language.read_lm_eval.path": lambda: _written(
        "samples_t.jsonl", '{"doc_id": 1, "arguments": [], "resps": [["A"]]}'
    ),
    "language.read_inspect.path": lambda: _written("log.json", '{"eval": {}, "samples": [{"id": 1}]}'),
}

VALID |= {
    "index": lambda: _binned().index,
    "null": lambda: torch.rand(20, dtype=torch.float64),
    "local": lambda: importlib.import_module("calibrant.rows").MemoryRows.of(*sample()),
    "rows.chunks_of.rows": lambda: _chunk(),
    "rows.LazyRows.chunks": lambda: lambda: iter([_chunk()]),
    "rows.MemoryRows.chunks": lambda: [_chunk()],
    "device": lambda: torch.device("cpu"),
    "recipe": _recipe,
    "study": _study,
    "store": lambda: importlib.import_module("calibrant.study").Store(tempfile.mkdtemp()),
    "training": lambda: importlib.import_module("calibrant.study").Training(1, 32),
    "settings": lambda: _study().settings,
    "objectives": lambda: _study().objectives,
    "outcome": lambda: importlib.import_module("calibrant.study.train").Outcome(
        predictions(), predictions(), [], torch.zeros(3), torch.zeros(3), 1, {}, 0.1, "cpu"
    ),
    "costs": lambda: (1 - torch.eye(CLASSES)).tolist(),
    "rule": lambda: calibrant.operate.thresholds((1 - torch.eye(CLASSES)).tolist()),
    "operate.Deployed.save.path": _new("deployed.safetensors"),
    "operate.Deployed.load.path": lambda: _saved(_deployed(), "deployed.safetensors"),
    "operate.Monitor.save.path": _new("state.safetensors"),
    "operate.Monitor.load.path": lambda: _saved(_monitor(), "state.safetensors"),
    "operate.audit.sample": lambda: _drawn_rows(),
    **{
        f"losses.Binary{kind}Loss.forward.labels": _several_labels
        for kind in ("CrossEntropy", "Focal", "LabelSmoothing")
    },
    "correct": lambda: torch.ones(3, 4),
}


# Of predictions with several labels a row, which two families export.
_SEVERAL: dict[str, Callable[[], Any]] = {
    "from_probs.probs": lambda: torch.sigmoid(sample()[0]),
    "from_outputs.probs": lambda: torch.sigmoid(sample()[0]),
    "calibrated_by.calibrator": _fitted_several,
    "collect.loader": lambda: [(torch.randn(3, 8), torch.zeros(3, CLASSES))],
    "cat.parts": lambda: [several(), several()],
    "names": lambda: several().names,
    "select.labels": lambda: [0, "label 2"],
    "label.label": lambda: 0,
}
VALID |= {
    f"{home}.MultiLabelPredictions.{name}": made
    for home in ("data.multilabel", "calibrant")
    for name, made in _SEVERAL.items()
} | {
    "data.splits.save_multilabel.splits": lambda: {"all": several()},
    "calibrant.save_multilabel.splits": lambda: {"all": several()},
    "scale.evaluate_multilabel_streamed.source": _several_file,
    **{
        f"{home}.{name}.path": _several_file
        for home in ("data.splits", "calibrant")
        for name in ("load_multilabel", "read_multilabel")
    },
}


# What several parameters take.
SHARED: list[tuple[Callable[[], Any], str]] = [
    (lambda: sample()[1], "labels"),
    (predictions, "predictions data validation a inside plot.CalibrationDisplay.data before reference pool"),
    (lambda: calibrant.metrics.Accuracy(), "metric testing.check_metric.metric"),
    (lambda: calibrant.calibrators.TemperatureScaling(), "calibrator stages"),
    (
        fitted,
        (
            "scale.apply_streamed.calibrator data.predictions.Predictions.calibrated_by.calibrator module "
            "adapters.onnx.export.module adapters.mlflow.log_calibrator.calibrator operate.Deployed.calibrator "
        ),
    ),
    (parquet, "path"),
    (lambda: torch.rand(ROWS, dtype=torch.float64), "rows"),
    (lambda: nn.Linear(8, CLASSES), "linear model"),
    (lambda: Path(tempfile.mkdtemp()), "root"),
    (lambda: ROWS, "samples rows.LazyRows.count rows.MemoryRows.count"),
    (lambda: sample()[1].numpy() % 2, "y_true plot.CalibrationDisplay.from_estimator.y"),
    (list, "measured"),
    (
        lambda: sample()[1].numpy(),
        "adapters.sklearn.CalibratedClassifier.fit.y",
    ),
    (lambda: _scored(), "language.scored.log language.sampled.log"),
    (_monitor, "operate.Monitor.merge.other"),
    (
        several,
        "evaluate.multilabel_panel.predictions calibrators.MultiLabelCalibrator.fit.predictions evaluate.label_table.predictions",
    ),
]
VALID |= {name: make for make, names in SHARED for name in names.split()}
VALID |= {name: lambda value=value: copy.copy(value) for name, value in PLAIN.items()}


def _masked() -> Any:
    return np.ma.masked_array(np.zeros((ROWS, CLASSES)), mask=np.eye(ROWS, CLASSES))


def _nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the first of a process says that they are a prototype
        return torch.nested.nested_tensor([torch.randn(2, CLASSES), torch.randn(3, CLASSES)])


def _float8() -> torch.Tensor:
    return torch.zeros(ROWS, CLASSES).to(torch.float8_e4m3fn)


def _ragged() -> Any:
    return [[1.0, 2.0], [3.0]]


# What is passed in place of each argument, by a name for the printed row.
HOSTILE: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "str": lambda: "abc",
    "empty str": lambda: "",
    "bytes": lambda: b"abc",
    "0": lambda: 0,
    "-1": lambda: -1,
    "7": lambda: 7,
    "2**70": lambda: 2**70,
    "10**400": lambda: 10**400,
    "-10**5000": lambda: -(10**5000),  # beyond floats, and beyond what Python writes in digits
    "1.5": lambda: 1.5,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "True": lambda: True,
    "complex": lambda: 1j,
    "[]": list,
    "[1, 'a']": lambda: [1, "a"],
    "[None]": lambda: [None],
    "ragged": _ragged,
    "{}": dict,
    "object": object,
    "function": lambda: len,
    "class": lambda: Predictions,
    "Predictions": predictions,
    "module": lambda: nn.Linear(2, 2),
    "float matrix": lambda: torch.randn(ROWS, CLASSES),
    "matrix of other rows": lambda: torch.randn(ROWS + 1, CLASSES),
    "matrix of other classes": lambda: torch.randn(ROWS, CLASSES + 1),
    "3-d": lambda: torch.randn(2, 3, 4),
    "0-d": lambda: torch.tensor(1.0),
    "empty matrix": lambda: torch.empty(0, CLASSES),
    "empty": lambda: torch.empty(0),
    "bool": lambda: torch.zeros(ROWS, CLASSES, dtype=torch.bool),
    "complex matrix": lambda: torch.zeros(ROWS, CLASSES, dtype=torch.complex64),
    "integer matrix": lambda: torch.zeros(ROWS, CLASSES, dtype=torch.int64),
    "float8": _float8,
    "float16": lambda: torch.zeros(ROWS, CLASSES, dtype=torch.float16),
    "nested": _nested,
    "sparse": lambda: torch.eye(ROWS, CLASSES).to_sparse(),
    "meta": lambda: torch.empty(ROWS, CLASSES, device="meta"),
    "meta labels": lambda: torch.empty(ROWS, dtype=torch.int64, device="meta"),
    "nan matrix": lambda: torch.full((ROWS, CLASSES), math.nan),
    "inf matrix": lambda: torch.full((ROWS, CLASSES), math.inf),
    "-inf matrix": lambda: torch.full((ROWS, CLASSES), -math.inf),
    "float labels": lambda: torch.zeros(ROWS),
    "labels K": lambda: torch.full((ROWS,), CLASSES),
    "labels -1": lambda: torch.full((ROWS,), -1),
    "labels 2**40": lambda: torch.full((ROWS,), 1 << 40),
    "masked array": _masked,
    "object array": lambda: np.array([object()] * ROWS),
    "string array": lambda: np.array(["a"] * ROWS),
    "missing path": lambda: Path(tempfile.gettempdir()) / "calibrant-missing" / "x.npz",
    "directory": lambda: Path(tempfile.mkdtemp()),
    "non-UTF-8 name": lambda: os.fsdecode(b"/tmp/\xff\xfe.npz"),
    "name with NUL": lambda: "a\0b.npz",
}


@dataclass(frozen=True)
class Case:
    """One call: ``call`` with the argument ``parameter`` replaced by the value named ``value``."""

    where: str
    parameter: str
    value: str

    def __str__(self) -> str:
        return f"{self.where}({self.parameter}={self.value})"


def members(family: str) -> Iterator[tuple[str, Any]]:
    """Yield ("family.name", object) for what ``family`` exports and can be called."""
    try:
        module = importlib.import_module("calibrant" if family == "calibrant" else f"calibrant.{family}")
    except ModuleNotFoundError as error:
        if str(error.name).startswith("calibrant"):
            raise
        return  # an optional package
    for name in _exported(module):
        value = getattr(module, name)
        where = f"{family}.{name}"
        if where in EXCLUDED or not callable(value) or _is_result(value) or _is_abstract(value):
            continue
        yield where, value


def _exported(module: types.ModuleType) -> list[str]:
    declared = getattr(module, "__all__", None)
    if declared is not None:
        return list(declared)
    return [n for n, v in vars(module).items() if n[0] != "_" and getattr(v, "__module__", "") == module.__name__]


def _is_abstract(value: Any) -> bool:
    return inspect.isclass(value) and (
        inspect.isabstract(value) or getattr(value, "_is_protocol", False) or issubclass(value, BaseException)
    )


def _is_result(value: Any) -> bool:
    """Say whether ``value`` is a plain record that functions return: nobody makes one by hand."""
    return (
        inspect.isclass(value)
        and dataclasses.is_dataclass(value)
        and "__post_init__" not in vars(value)
        and value.__init__.__code__.co_filename == "<string>"  # made by the decorator: it checks nothing
        and not any("__call__" in vars(base) for base in value.__mro__)
        and not any(isinstance(v, classmethod) for v in vars(value).values())
    )


def parameters(call: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return {
        name: parameter
        for name, parameter in inspect.signature(call).parameters.items()
        if name not in {"self", "cls"} and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }


def valid(where: str, name: str) -> Any:
    """Return a valid value for the parameter ``name`` of ``where``.

    Raises:
        KeyError: If ``VALID`` has none.
    """
    make = VALID.get(f"{where}.{name}", VALID.get(name))
    if make is None:
        raise KeyError(f"no valid value for {where}({name}): add one to VALID in tests/contracts/hostile.py")
    return make()


def arguments(where: str, call: Callable[..., Any], case: Case | None) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and keyword arguments: valid for what is required, hostile for the case's parameter."""
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for name, parameter in parameters(call).items():
        chosen = case is not None and name == case.parameter
        if not chosen and parameter.default is not inspect.Parameter.empty:
            continue
        if not chosen and parameter.kind is inspect.Parameter.VAR_POSITIONAL and f"{where}.{name}" not in VALID:
            if name not in VALID:
                continue
        value = HOSTILE[case.value]() if chosen and case is not None else valid(where, name)
        if parameter.kind in {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL}:
            positional.append(value)
        else:
            keywords[name] = value
    return positional, keywords


def subjects(family: str) -> Iterator[tuple[str, Callable[[], Callable[..., Any]]]]:
    """Yield (name, maker of what is called): functions, constructors, and the public methods of instances."""
    for where, value in members(family):
        yield where, lambda value=value: value  # type: ignore[misc]
        if not inspect.isclass(value):
            continue
        for name in _methods(value):
            yield f"{where}.{name}", lambda where=where, value=value, name=name: _method(where, value, name)


def _methods(cls: type) -> list[str]:
    found = []
    for name in dir(cls):
        raw = inspect.getattr_static(cls, name)
        function = raw.__func__ if isinstance(raw, classmethod | staticmethod) else raw
        ours = inspect.isfunction(function) and function.__module__.startswith("calibrant")
        if name == "forward" and cls.__module__.startswith("calibrant.study"):
            continue  # a network's: it is called by the training loop
        if ours and (name[0] != "_" or name in {"__call__", "__getitem__"}) and name in USERS_CALL:
            found.append(name)
    return found


# The methods that users call; the rest is called by the library with what it has checked.
USERS_CALL = {
    "__call__", "__getitem__", "forward", "fit", "fit_from", "save", "affine", "fold_into", "update", "set_epoch",
    "interval", "state", "from_nll", "from_logits", "from_probs", "from_binary_logits", "from_binary_probs",
    "collect", "cat", "calibrated_by", "one_vs_rest", "predict", "predict_proba", "from_predictions",
    "from_estimator", "adapt", "from_sampling_rates", "decide", "temperature", "label", "load", "merge", "watches",
    "from_outputs", "select", "pooled",
}  # fmt: skip


def _method(where: str, cls: type, name: str) -> Callable[..., Any]:
    if isinstance(inspect.getattr_static(cls, name), classmethod | staticmethod):
        return getattr(cls, name)  # type: ignore[no-any-return]
    return getattr(_instance(where, cls), name)  # type: ignore[no-any-return]


def _instance(where: str, cls: type) -> Any:
    if cls is Predictions:
        return predictions()
    if cls is calibrant.MultiLabelPredictions:
        return several()
    if cls is calibrant.BinaryPairs:
        return predictions().top_label()
    if cls is calibrant.calibrators.MultiLabelCalibrator:
        return copy.deepcopy(_fitted_several())
    if issubclass(cls, calibrant.calibrators.Calibrator):
        return copy.deepcopy(_fitted(where, cls))  # a fit is slow, and what is called may change it
    positional, keywords = arguments(where, cls, None)
    return cls(*positional, **keywords)


@cache
def _fitted(where: str, cls: type) -> Any:
    positional, keywords = arguments(where, cls, None)
    made = cls(*positional, **keywords)
    logits, labels = sample()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return made.fit(logits, labels)
        except CalibrantError:
            if cls.__name__ not in {"PlattScaling", "BetaCalibration", "QuadraticScaling", "VennAbers"}:
                raise
            return made.fit(logits[:, :2], labels % 2)


def cases(
    family: str, *, values: Iterable[str] = tuple(HOSTILE)
) -> Iterator[tuple[Case, Callable[[], Callable[..., Any]]]]:
    """Yield every case of ``family`` with one of ``values``, and the maker of what it calls."""
    for where, make in subjects(family):
        try:
            names = list(parameters(make()))
        except KeyError:  # told by `unknown`
            continue
        for name in names:
            for value in values:
                yield Case(where, name, value), make


def unknown(family: str) -> list[str]:
    """Return what is missing in ``VALID`` to call everything of ``family``."""
    missing = []
    for where, make in subjects(family):
        try:
            arguments(where, make(), None)
        except KeyError as error:
            missing.append(str(error))
    return missing


class _HangsError(Exception):
    pass


@contextlib.contextmanager
def _limit(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise _HangsError

    # the processor's time, since a busy machine is slow; what only waits is stopped by the clock, later
    limits = {signal.SIGPROF: (signal.ITIMER_PROF, seconds), signal.SIGALRM: (signal.ITIMER_REAL, 10 * seconds)}
    before = {number: signal.signal(number, stop) for number in limits}
    try:
        for timer, limit in limits.values():
            signal.setitimer(timer, limit)
        yield
    finally:
        for number, (timer, _) in limits.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


SENTENCE = re.compile(r"expected .+", re.DOTALL)


def fault(case: Case, call: Callable[..., Any]) -> str | None:
    """Return what is wrong with how ``call`` takes the hostile argument, or None."""
    positional, keywords = arguments(case.where, call, case)
    quiet = io.StringIO()
    try:
        with (
            _limit(SECONDS),
            torch.device("meta") if case.where.startswith("study.models") else contextlib.nullcontext(),  # no weights
            warnings.catch_warnings(),
            contextlib.redirect_stdout(quiet),
            contextlib.redirect_stderr(quiet),
        ):
            warnings.simplefilter("ignore")
            answer = call(*positional, **keywords)
    except CalibrantError as error:
        return _fault_of_message(str(error))
    except pytest.skip.Exception:  # what assert_calibrated says of too few rows
        return None
    except _HangsError:
        return f"hangs for {SECONDS} s"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
    return "returns NaN" if isinstance(answer, float) and math.isnan(answer) else None


def _fault_of_message(text: str) -> str | None:
    if "\n" in text or len(text) > LONGEST_MESSAGE:
        return f"more than one short sentence: {text[:120]!r}"
    return None if SENTENCE.match(text) or "expected" in text else f"no 'expected …, got …' in {text[:120]!r}"


@contextlib.contextmanager
def _surroundings(scratch: Path) -> Iterator[None]:
    """Make MLflow write into ``scratch``, and end its run there, which would be the next one's, too."""
    names = {"TRACKING_URI": scratch.as_uri(), "ALLOW_FILE_STORE": "true", "EXPERIMENT_NAME": "hostile"}
    with mock.patch.dict(os.environ, {f"MLFLOW_{name}": value for name, value in names.items()}):
        try:
            yield
        finally:
            if "mlflow" in sys.modules:
                sys.modules["mlflow"].end_run()


def faults(family: str, *, values: Iterable[str] = tuple(HOSTILE), step: int = 1) -> Iterator[tuple[Case, str]]:
    """Yield (case, what is wrong) for every ``step``-th case of ``family`` with one of ``values``; runs in a scratch folder."""
    here = Path.cwd()
    with (
        tempfile.TemporaryDirectory() as scratch,
        _surroundings(Path(scratch)),
        mock.patch("tempfile.tempdir", scratch),
    ):
        os.chdir(scratch)
        try:
            lacking = set()
            for case, make in itertools.islice(cases(family, values=values), 0, None, step):
                try:
                    wrong = fault(case, make())
                except KeyError as error:
                    wrong = None if case.where in lacking else str(error)
                    lacking.add(case.where)
                if wrong:
                    yield case, wrong
        finally:
            os.chdir(here)
