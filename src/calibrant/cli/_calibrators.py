"""Calibrators by the name on the command line, their description, and predictions that they accept."""

import inspect
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from calibrant import calibrators
from calibrant._core.config import json_data, to_plain
from calibrant._files import shown
from calibrant.calibrators import SHORT_NAMES, Calibrator, MultiLabelCalibrator
from calibrant.calibrators.auto import Evidence
from calibrant.data.leakage import check_not_fitted_on
from calibrant.data.multilabel import MultiLabel
from calibrant.data.pairs import Pairs
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError, LeakError, NotFittedError
from calibrant.report.model import in_one_line

Data = Predictions | Pairs | MultiLabel
AUTO, OF_LABELS = (
    "auto",
    "PlattScaling",
)  # the methods if none is named: of one class, and of each of several labels a row


def make_calibrator(name: str, *, features: list[str] | None = None) -> Calibrator:
    """Return the calibrator of class ``name`` with its defaults; ``auto``, ``temperature``, … are short names.

    Args:
        name: Of the class, or one of ``SHORT_NAMES``.
        features: Columns it goes by, or ``["all"]``.

    Raises:
        InputError: If it needs arguments, or goes by no features.
    """
    method = SHORT_NAMES.get(name, name)
    if method == "MultiLabelCalibrator":
        remedy = "add --multilabel, and name the method of each label, such as PlattScaling"
        raise InputError("a method for one label", method, remedy)
    if features is not None:
        return _by_features(method, features)
    try:
        return getattr(calibrators, method)()
    except (TypeError, InputError) as error:  # of an argument without a default, which no option gives
        raise InputError("a method that needs no arguments", method, "construct and save it in Python") from error


def _by_features(method: str, columns: list[str]) -> Calibrator:
    named = {name: getattr(calibrators, name) for name in calibrators.__all__}
    by = {name: one for name, one in named.items() if "columns" in inspect.signature(one).parameters}
    if method not in by:
        raise InputError(f"--method {' or '.join(by)} with --features", f"{method}", "leave one of them out")
    every = columns == ["all"]
    if every and inspect.signature(by[method]).parameters["columns"].default is not None:
        raise InputError(f"--features as names for {method}", "all", "write region,age")
    made: Calibrator = by[method](None if every else columns)
    return made


def load_fitted(path: str | None, *, several: bool = False) -> Any:
    """Return the saved calibrator of rows with one class, or several labels, each; None without a path."""
    if path is None:
        return None
    loaded = calibrators.load(path)
    if loaded.multi_label != several:
        expected, remedy = (
            ("several labels", "leave --multilabel out") if several else ("one class", "add --multilabel")
        )
        raise InputError(f"a calibrator for {expected} a row", f"{type(loaded).__name__} in {shown(path)}", remedy)
    return loaded


def fitted_on(data: Data, calibrator: Calibrator | MultiLabelCalibrator) -> bool:
    """Say whether ``data`` holds rows that ``calibrator`` was fitted on."""
    data = Predictions.from_pairs(data) if isinstance(data, Pairs) else data
    try:
        check_not_fitted_on(data.logits, calibrator.fit_rows, data.labels if isinstance(data, Predictions) else None)
    except LeakError:
        return True
    return False


def in_words(calibrator: Calibrator | MultiLabelCalibrator) -> str:
    """Return a calibrator in one line; of several labels how many of them, and how many keep the calibrator of all."""
    if not isinstance(calibrator, MultiLabelCalibrator):
        return in_one_line(calibrator)
    kept = sum(fact.pooled == 1 for fact in calibrator.labels_fitted)
    return f"{len(calibrator.names)} labels through {type(calibrator.base).__name__}, {kept} as the pool"


def calibrator_facts(calibrator: Calibrator | MultiLabelCalibrator) -> dict[str, Any]:
    """Return class, configuration and learned numbers as JSON data; of several labels what each was fitted on."""
    if isinstance(calibrator, MultiLabelCalibrator):
        facts = [asdict(fact) for fact in calibrator.labels_fitted]
        return {"type": type(calibrator).__name__, "repr": in_one_line(calibrator), "labels": facts}
    learned: dict[str, Any] = {}
    for cls in reversed(type(calibrator).__mro__):
        for name, member in vars(cls).items():
            # of our own classes: what nn.Module has as properties was not learned
            if isinstance(member, property) and name != "fitted" and cls.__module__.startswith("calibrant."):
                with suppress(NotFittedError):  # priors that a further step learns
                    value = getattr(calibrator, name)
                    learned |= {name: value} if isinstance(value, bool | int | float | str) else {}
    return {
        "type": type(calibrator).__name__,
        "config": json_data(to_plain(calibrator.config())),
        "learned": json_data(learned),
        "repr": in_one_line(calibrator),
        "evidence": json_data(evidence_of(calibrator)),
    }


def evidence_of(calibrator: Calibrator | MultiLabelCalibrator) -> Evidence | None:
    """Return why an automatic choice fell as it did, or None for any other calibrator."""
    return calibrator.evidence if isinstance(calibrator, calibrators.AutoCalibrator) else None
