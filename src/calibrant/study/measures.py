"""The measures of a study: metrics of test predictions before and after calibrators fitted on validation predictions."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from calibrant.binning import EqualMass
from calibrant.calibrators import Calibrator, FocalTemperatureScaling, HistogramBinning, TemperatureScaling
from calibrant.data.predictions import Predictions
from calibrant.errors import BoundWarning, DuplicateRowsWarning
from calibrant.metrics import ECE, NLL, ClasswiseECE, Error, Metric

__all__ = ["COLUMNS", "MEASURES", "Fits", "Measure", "quietly"]


@dataclass(frozen=True)
class Measure:
    """One column of a study's table.

    Args:
        label: Its heading, without the unit.
        percent: Whether tables show it in per cent; the value itself is a fraction.
        digits: Decimals in tables.
    """

    label: str
    percent: bool = True
    digits: int = 2

    def shown(self, value: float) -> str:
        """Return ``value`` as formatted in tables, without the unit.

        Examples:
            >>> Measure("ECE").shown(0.0435)
            '4.35'
        """
        return f"{100 * value if self.percent else value:.{self.digits}f}"

    @property
    def heading(self) -> str:
        """The label with its unit."""
        return f"{self.label} %" if self.percent else self.label


METRICS: Mapping[str, tuple[Measure, Metric]] = {
    "error": (Measure("error"), Error()),
    "nll": (Measure("NLL", percent=False), NLL()),
    "ece": (Measure("ECE"), ECE()),
    "ece_mass": (Measure("AdaECE"), ECE(EqualMass(15))),
    "ece_class": (Measure("classwise ECE"), ClasswiseECE()),
}
CALIBRATORS: Mapping[str, tuple[str, Callable[[], Calibrator]]] = {
    "at_t": (" at T", TemperatureScaling),
    "by_ece": (" at T by ECE", lambda: TemperatureScaling("ece")),
    "by_mass": (" at T by AdaECE", lambda: TemperatureScaling(grid="komisarenko")),
    "binned": (" binned", HistogramBinning),
    "focal": (" at focal T", FocalTemperatureScaling),
    "focal_by_mass": (" at focal T by AdaECE", lambda: FocalTemperatureScaling("ece")),
}
ORACLE = "optimal"  # the temperature with the lowest ECE on the test data themselves
FROM_TRAJECTORY = {"temperature_train": "train", "temperature_test": "test"}


def _measures() -> dict[str, Measure]:
    stages = {
        "": "",
        **{f"_{name}": words for name, (words, _) in CALIBRATORS.items()},
        f"_{ORACLE}": " optimal (oracle)",
    }
    found = {
        f"{name}{stage}": Measure(measure.label + words, measure.percent, measure.digits)
        for name, (measure, _) in METRICS.items()
        for stage, words in stages.items()
    }
    temperatures = {
        "temperature": "T",
        "temperature_by_ece": "T by ECE",
        "temperature_by_mass": "T by AdaECE",
        "temperature_focal": "T of focal T",
        "temperature_focal_by_mass": "T of focal T by AdaECE",
        "gamma_focal": "γ of focal T",
        "gamma_focal_by_mass": "γ of focal T by AdaECE",
        "temperature_optimal": "T optimal (oracle)",
        "temperature_train": "T on training data",
        "temperature_test": "T on test data (oracle)",
    }
    return found | {name: Measure(label, percent=False) for name, label in temperatures.items()}


MEASURES: Mapping[str, Measure] = _measures()
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "main": ("error", "nll", "ece", "nll_at_t", "ece_at_t", "temperature"),
    "calibrators": (
        "ece", "ece_at_t", "ece_by_ece", "temperature_by_ece", "ece_binned",
        "ece_focal", "gamma_focal", "temperature_focal", "ece_optimal",
    ),
    "errors": (
        "ece_mass", "ece_mass_at_t", "ece_mass_by_ece", "ece_class", "ece_class_at_t", "ece_class_by_ece",
    ),
}  # fmt: skip


class Fits:
    """The test predictions of all folds, before and after each calibrator, computed on first use.

    A calibrator is fitted on the validation predictions of the same fold; only the oracle uses test labels.

    Args:
        validation: Validation predictions of each fold.
        test: Test predictions of each fold.
        ends: The last entry of each fold's trajectory.

    Examples:
        >>> import math
        >>> from calibrant import Predictions
        >>> seen = Predictions.from_logits([[2 * math.log(4), 0.0]] * 10, [0] * 8 + [1] * 2)
        >>> fits = Fits([seen], [Predictions.from_logits([[1.4, 0.0], [0.0, 2.0]], [0, 0])], [{}])
        >>> round(fits.value("temperature"), 4), fits.value("error")
        (2.0, 0.5)
    """

    def __init__(
        self, validation: Sequence[Predictions], test: Sequence[Predictions], ends: Sequence[Mapping[str, Any]]
    ) -> None:
        self.validation, self.test, self.ends = validation, test, ends
        self._calibrators: dict[str, list[Any]] = {}
        self._after: dict[str, Predictions] = {}
        self._values: dict[str, float] = {}

    @cached_property
    def before(self) -> Predictions:
        """Test predictions of all folds, uncalibrated."""
        return Predictions.cat(list(self.test))

    def calibrators(self, name: str) -> list[Any]:
        """Return the fitted calibrator of each fold.

        Args:
            name: ``"at_t"``, ``"by_ece"``, ``"by_mass"``, ``"binned"``, ``"focal"``, ``"focal_by_mass"`` or ``"optimal"``.
        """
        if name not in self._calibrators:
            make = CALIBRATORS["by_ece" if name == ORACLE else name][1]
            with quietly():
                if name == ORACLE:  # one for all folds, which minimises the ECE of all test rows
                    self._calibrators[name] = [make().fit(self.before.logits, self.before.labels)] * len(self.test)
                else:
                    self._calibrators[name] = [make().fit(rows.logits, rows.labels) for rows in self.validation]
        return self._calibrators[name]

    def after(self, name: str) -> Predictions:
        """Return the test predictions of all folds calibrated by ``name``: see ``calibrators``."""
        if name not in self._after:
            with quietly():
                self._after[name] = Predictions.cat(
                    [
                        rows.calibrated_by(calibrator, allow_fit_rows=name == ORACLE)
                        for rows, calibrator in zip(self.test, self.calibrators(name), strict=True)
                    ]
                )
        return self._after[name]

    def value(self, measure: str) -> float:
        """Return a measure; NaN if the run did not record it.

        Args:
            measure: A key of ``MEASURES``.
        """
        if measure not in self._values:
            self._values[measure] = self._value(measure)
        return self._values[measure]

    def _value(self, measure: str) -> float:
        if measure in FROM_TRAJECTORY:
            found = [end.get(FROM_TRAJECTORY[measure], {}).get("temperature") for end in self.ends]
            return geometric_mean(found) if None not in found else math.nan
        number, _, name = measure.partition("_")
        if number == "temperature":
            return geometric_mean([fitted.temperature for fitted in self.calibrators(name or "at_t")])
        if number == "gamma":
            return float(np.mean([fitted.gamma for fitted in self.calibrators(name)]))
        metric = max((key for key in METRICS if measure == key or measure.startswith(f"{key}_")), key=len)
        stage = measure.removeprefix(metric).removeprefix("_")
        return METRICS[metric][1](self.after(stage) if stage else self.before)


@contextmanager
def quietly() -> Iterator[None]:
    """Ignore two warnings that are common here: T at its bound where all rows are correct, and equal logits of saturated rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BoundWarning)
        warnings.simplefilter("ignore", DuplicateRowsWarning)
        yield


def geometric_mean(values: Sequence[Any]) -> float:
    """Return the geometric mean of positive numbers.

    Examples:
        >>> geometric_mean([1.0, 4.0])
        2.0
    """
    return math.exp(float(np.mean(np.log(values))))
