"""The measures of a study: metrics of test predictions before and after calibrators fitted on validation predictions."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.binning import EqualMass
from calibrant.calibrators import Calibrator, FocalTemperatureScaling, HistogramBinning, TemperatureScaling
from calibrant.data.predictions import Predictions
from calibrant.errors import BoundWarning, DuplicateRowsWarning
from calibrant.metrics import ECE, NLL, ClasswiseECE, Error, Metric, ood_auroc


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
    "line_by_mass": (" at focal T by AdaECE, on a line", lambda: FocalTemperatureScaling("ece", search="line")),
}
FEW = 200  # validation samples of a small set (Wang et al. 2021, Figure 3)
# At which T is fitted, for its linearity (Komisarenko & Kull 2024, Figure 8).
LINE_GAMMAS = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0)
# The step of the authors' code, up to 20 instead of 5: an over-confident network's T at γ = 5 is beyond 5.
LINE_GRID = tuple(step / 20 for step in range(1, 401))
# Of figures of the papers, without a column in a table: what each measures stands at its function in Fits.
CURVES: Mapping[str, Measure] = {
    "nll_wrong": Measure("NLL of wrong samples", percent=False),
    "nll_correct": Measure("NLL of correct samples", percent=False),
    "entropy_wrong": Measure("entropy of wrong samples", percent=False),
    "nll_rise": Measure("rise of NLL", percent=False),
    "nll_middle": Measure("NLL, half-way", percent=False),
    "nll_late": Measure("NLL, late", percent=False),
    "nll_train_middle": Measure("NLL of training samples, half-way", percent=False),
    "nll_train_late": Measure("NLL of training samples, late", percent=False),
    "nll_rise_wrong": Measure("rise of NLL by wrong samples", percent=False),
    "nll_rise_correct": Measure("rise of NLL by correct samples", percent=False),
    **{
        f"entropy_{kind}_{when}": Measure(f"entropy of {kind} samples, {when}", percent=False)
        for kind, when in product(("correct", "wrong"), ("early", "late"))
    },
    "ece_at_least_nll": Measure("ECE at the least NLL"),
    "ece_late": Measure("ECE, late"),
    "ood_auroc": Measure("AUROC of out-of-distribution sets"),
    "classifier_norm": Measure("norm of the last layer", percent=False),
    "classifier_norm_early": Measure("norm of the last layer, early", percent=False),
    "ece_optimal_early": Measure("ECE optimal (oracle), early"),
    "ece_optimal_late": Measure("ECE optimal (oracle), late"),
    "ece_by_ece_few": Measure("ECE at T by ECE of few"),
    "ece_binned_few": Measure("ECE binned by few"),
    "gain_of_samples_by_ece": Measure("gain of samples at T by ECE"),
    "gain_of_samples_binned": Measure("gain of samples binned"),
    "ece_jumps": Measure("mean change of ECE between measured epochs, late"),
    "line_deviation": Measure("largest deviation of T by AdaECE from a line in γ", percent=False),
    "line_tenth": Measure("a tenth of the range of T by AdaECE over γ", percent=False),
    "excess_uncertain": Measure("confidence less accuracy of the least confident third at T by ECE"),
    "logit_gap": Measure("largest logit, learned early less late", percent=False),
    "gap_lowest": Measure("calibration error of the lowest bin"),
    "gap_middle": Measure("calibration error of the middle bin"),
    "gap_highest": Measure("calibration error of the highest bin"),
}
# Made of others, seed by seed: their label, what they are made of, and how.
DERIVED: Mapping[str, tuple[Measure, tuple[str, ...], Callable[..., float]]] = {
    "apart_by_ece": (
        Measure("distance of T by ECE from 1, |ln T|", percent=False),
        ("temperature_by_ece",),
        lambda t: abs(math.log(t)),
    ),
    "gain_by_ece": (Measure("gain of T by ECE in ECE"), ("ece", "ece_by_ece"), lambda raw, after: raw - after),
    "generalisation": (
        Measure("ln of T on test data over T on training data", percent=False),
        ("temperature_test", "temperature_train"),
        lambda test, train: math.log(test / train),
    ),
    **{
        name: (Measure(f"{value:g}", percent=False), (of,), lambda _, value=value: value)
        for name, of, value in (
            ("tenth", "temperature_by_ece", math.log(1.1)),
            ("one", "temperature", 1.0),
            ("one_train", "temperature_train", 1.0),
            ("two", "temperature_by_ece", 2.0),
        )
    },
    "none": (Measure("0"), ("ece",), lambda _: 0.0),
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
    derived = {name: measure for name, (measure, _, _) in DERIVED.items()}
    return found | {name: Measure(label, percent=False) for name, label in temperatures.items()} | {**CURVES, **derived}


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


class FoldFits:
    """The test predictions of all folds, before and after each calibrator, computed on first use.

    A calibrator is fitted on the validation predictions of the same fold; only the oracle uses test labels.

    Args:
        validation: Validation predictions of each fold.
        test: Test predictions of each fold.
        trajectories: The trajectory of each fold.
        learned: Reads the learned epochs and the largest logits of the training samples of each fold.
        ood: Predictions of out-of-distribution sets of each fold, by name.

    Examples:
        >>> import math
        >>> from calibrant import Predictions
        >>> seen = Predictions.from_logits([[2 * math.log(4), 0.0]] * 10, [0] * 8 + [1] * 2)
        >>> fits = FoldFits([seen], [Predictions.from_logits([[1.4, 0.0], [0.0, 2.0]], [0, 0])])
        >>> round(fits.value("temperature"), 4), fits.value("error")
        (2.0, 0.5)
    """

    def __init__(
        self,
        validation: Sequence[Predictions],
        test: Sequence[Predictions],
        trajectories: Sequence[Sequence[Mapping[str, Any]]] = (),
        learned: Callable[[], Sequence[tuple[Tensor, Tensor]]] = tuple,
        ood: Sequence[Mapping[str, Predictions]] = (),
    ) -> None:
        self.validation, self.test, self.trajectories, self.learned = validation, test, trajectories, learned
        self.ood = ood
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
            with ignore_bound_warnings():
                if name == ORACLE:  # one for all folds, which minimises the ECE of all test rows
                    self._calibrators[name] = [make().fit(self.before.logits, self.before.labels)] * len(self.test)
                else:
                    self._calibrators[name] = [make().fit(rows.logits, rows.labels) for rows in self.validation]
        return self._calibrators[name]

    def after(self, name: str) -> Predictions:
        """Return the test predictions of all folds calibrated by ``name``: see ``calibrators``."""
        if name not in self._after:
            with ignore_bound_warnings():
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
            found = [entries[-1].get(FROM_TRAJECTORY[measure], {}).get("temperature") for entries in self.trajectories]
            return geometric_mean(found) if found and None not in found else math.nan
        if measure in DERIVED:
            _, parts, made = DERIVED[measure]
            return made(*map(self.value, parts))
        if measure in CURVES:
            return self._curve(measure)
        number, _, name = measure.partition("_")
        if number == "temperature":
            return geometric_mean([fitted.temperature for fitted in self.calibrators(name or "at_t")])
        if number == "gamma":
            return float(np.mean([fitted.gamma for fitted in self.calibrators(name)]))
        # the longest name: "ece_mass_at_t" is ece_mass at T, not ece
        metric = max((key for key in METRICS if measure == key or measure.startswith(f"{key}_")), key=len)
        stage = measure.removeprefix(metric).removeprefix("_")
        return METRICS[metric][1](self.after(stage) if stage else self.before)

    def _curve(self, measure: str) -> float:
        """Return a measure of the papers' figures; NaN if a run did not record what it needs."""
        what, _, which = measure.rpartition("_")
        if measure in ("nll_wrong", "nll_correct", "entropy_wrong"):
            rows = self.before.correct if which == "correct" else ~self.before.correct
            log_p = self.before.log_probs[rows]
            values = self.before.nll[rows] if what == "nll" else torch.special.entr(log_p.exp()).sum(dim=1)
            return float(values.mean()) if len(values) else math.nan
        if measure == "ood_auroc":
            folds = zip(self.test, self.ood, strict=False)
            return _mean_or_nan([ood_auroc(rows, outside) for rows, sets in folds for outside in sets.values()])
        if measure == "excess_uncertain":
            pairs = self.after("by_ece").top_label()
            least = torch.argsort(pairs.p, stable=True)[: len(pairs) // 3]
            return float((pairs.p[least] - pairs.y[least].double()).mean())
        if what == "gap":
            pairs = self.before.top_label()
            gaps = EqualMass(15).table(pairs.p, pairs.y).gap.abs()
            return float(gaps[{"lowest": 0, "middle": len(gaps) // 2, "highest": -1}[which]])
        if measure.endswith("_few"):
            return self._after_few(what.removeprefix("ece_"))
        if what.startswith("gain_of_samples"):  # how much lower the ECE is with all validation samples
            name = measure.removeprefix("gain_of_samples_")
            return self._after_few(name) - self.value(f"ece_{name}")
        if what == "line":
            return float(np.mean([_departure_from_line(rows, which) for rows in self.validation]))
        if measure == "logit_gap":
            return _mean_or_nan([_logit_gap(*found) for found in self.learned()])
        return _mean_or_nan([_along(entries, measure) for entries in self.trajectories])

    def _after_few(self, name: str) -> float:
        """Return the ECE after a calibrator that was fitted on the first 200 validation samples of each fold."""
        with ignore_bound_warnings():
            few = [rows[:FEW] for rows in self.validation]
            fitted = [CALIBRATORS[name][1]().fit(rows.logits, rows.labels) for rows in few]
            after = [rows.calibrated_by(calibrator) for rows, calibrator in zip(self.test, fitted, strict=True)]
        return ECE()(Predictions.cat(after))


def _along(entries: Sequence[Mapping[str, Any]], measure: str) -> float:
    """Return a measure of a trajectory: "early" is its first entry, and for optimal ECE the one at a third of it."""
    least, end = min(entries, key=lambda entry: entry["test"]["nll"])["test"], entries[-1]
    last = end["test"]
    name, _, which = measure.rpartition("_")
    if measure == "ece_jumps":
        late = [entry["test"]["ece"] for entry in entries[len(entries) // 2 :]]
        return float(np.abs(np.diff(late)).mean()) if len(late) > 1 else math.nan
    if measure.removeprefix("nll_").removeprefix("train_") in ("middle", "late"):
        entry = end if which == "late" else entries[len(entries) // 2]
        return float(entry["train" if "train" in measure else "test"]["nll"])
    if measure == "nll_rise":
        return float(last["nll"] - least["nll"])
    if measure in ("ece_at_least_nll", "ece_late"):
        return float((last if measure == "ece_late" else least)["ece"])
    if measure.startswith("entropy"):
        found = (last if which == "late" else entries[0]["test"])[name]
        return math.nan if found is None else float(found)  # None: there are no such samples
    if measure.startswith("nll_rise"):
        # since the least NLL; the shares of wrong and correct samples add up to the whole
        kind = measure.removeprefix("nll_rise_")
        return _share_of_nll(last, kind) - _share_of_nll(least, kind)
    if measure.startswith("classifier_norm"):
        return float(entries[0 if measure.endswith("early") else -1].get("classifier_norm", math.nan))
    entry = entries[len(entries) // 3 if measure.endswith("early") else -1]
    return float(entry["test"].get("optimal_ece", math.nan))


def _share_of_nll(figures: Mapping[str, Any], kind: str) -> float:
    """Return what wrong or correct samples add to the mean NLL."""
    share = figures["error"] if kind == "wrong" else 1 - figures["error"]
    return share * (figures[f"nll_{kind}"] or 0.0)  # None: there are no such samples


def _departure_from_line(rows: Predictions, which: str) -> float:
    """Return the largest deviation of T(γ) from its least-squares line, or a tenth of its range."""
    with ignore_bound_warnings():
        fits = [
            FocalTemperatureScaling("ece", gammas=(gamma,), grid=LINE_GRID).fit(rows.logits, rows.labels)
            for gamma in LINE_GAMMAS
        ]
    # T along γ, by AdaECE as in Komisarenko & Kull (2024, Figure 8), who find nearly a line
    found = np.array([fitted.temperature for fitted in fits])
    if which == "tenth":
        return float(np.ptp(found)) / 10
    return float(np.abs(found - np.polyval(np.polyfit(LINE_GAMMAS, found, 1), LINE_GAMMAS)).max())


def _logit_gap(epochs: Tensor, logits: Tensor) -> float:
    """Return the mean largest logit of samples right since the first third of the epochs, less that of those right later or never."""
    # 0 stands for never learned, which counts as late; a training is looked at every few epochs, at first perhaps after a third
    learned = epochs > 0
    first = int(torch.where(learned, epochs, epochs.max()).min())
    early = learned & (epochs <= max(first, int(epochs.max()) // 3))
    return float(logits[early].mean() - logits[~early].mean())


def _mean_or_nan(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


@contextmanager
def ignore_bound_warnings() -> Iterator[None]:
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
    # T is a factor: 1/2 and 2 are equally far from 1
    return math.exp(float(np.mean(np.log(values))))
