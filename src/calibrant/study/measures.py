"""The measures of a study: metrics of test predictions, before and after calibrators fitted on validation predictions.

A measure is a function of the predictions and trajectories of all folds. Tables and figures refer to measures by name.
"""

import math
import operator
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from calibrant.binning import EqualMass
from calibrant.calibrators import Calibrator, FocalTemperatureScaling, HistogramBinning, TemperatureScaling
from calibrant.data.predictions import Predictions
from calibrant.errors import BoundWarning
from calibrant.metrics import ECE, NLL, ClasswiseECE, Error, Metric, entropy_rows, ood_auroc
from calibrant.statistics import null_band

if TYPE_CHECKING:
    from calibrant.study.recipe import Recipe

METRICS: Mapping[str, tuple[str, Metric]] = {
    "error": ("error", Error()),
    "nll": ("NLL", NLL()),
    "ece": ("ECE", ECE()),
    "ece_mass": ("AdaECE", ECE(EqualMass(15))),
    "ece_class": ("classwise ECE", ClasswiseECE()),
}
CALIBRATORS: Mapping[str, tuple[str, Callable[[], Calibrator]]] = {
    "at_t": ("T", TemperatureScaling),
    "by_ece": ("T by ECE", lambda: TemperatureScaling("ece")),
    "by_tenths": ("T by ECE in steps of .1", lambda: TemperatureScaling(grid="mukhoti")),  # .1, .2 … 10
    "by_mass": ("T by AdaECE", lambda: TemperatureScaling(grid="komisarenko")),
    "binned": ("after binning", HistogramBinning),
    "focal": ("focal T", FocalTemperatureScaling),
    "focal_by_mass": ("focal T by AdaECE", lambda: FocalTemperatureScaling("ece")),
    "line_by_mass": ("focal T by AdaECE, along a line", lambda: FocalTemperatureScaling("ece", search="line")),
}
ORACLE = "optimal"  # the temperature with the lowest ECE on the test data themselves
# out-of-distribution sets that have the same labels as the test data
SHIFTS = {"gaussian-noise", "gaussian-blur", "contrast", "jpeg"}
FEW = 200  # validation samples of a small set (Wang et al. 2021, Figure 3)
# Values of γ at which T is fitted, to see how linear T(γ) is (Komisarenko & Kull 2024, Figure 8).
LINE_GAMMAS = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0)
# The step size of the authors' code, but up to 20 instead of 5, because an over-confident network's T at γ = 5 exceeds 5.
LINE_GRID = tuple(step / 20 for step in range(1, 401))
Entries = Sequence[Mapping[str, Any]]  # a trajectory


@dataclass(frozen=True, eq=False)
class Run:
    """The result of a finished training run on one fold: predictions, and what was recorded during training.

    Args:
        validation: Predictions for the validation samples, on which calibrators are fitted.
        test: Predictions for the test samples.
        ood: Predictions for out-of-distribution sets by name, without labels, for ``metrics.ood_auroc(test, ood[name])``.
        trajectory: Entries of figures, one every ``measure_every`` epochs.
        learned_epochs: (N train,) epoch since which each training sample is classified correctly; 0 for never.
        max_logits: (N train,) largest logit of each training sample, from the network that was kept.
        record: The epoch that was kept, how often validation data were used for each purpose, the seconds and the device;
            also the recipe and the versions once the run is stored.

    Examples:
        >>> from calibrant import Predictions
        >>> predictions = Predictions.from_logits([[2.0, 0.0]], [0])
        >>> Run(predictions, predictions, record={"epoch": 20}).record["epoch"]
        20
    """

    validation: Predictions
    test: Predictions
    ood: Mapping[str, Predictions] = field(default_factory=dict)
    trajectory: Sequence[Mapping[str, Any]] = ()
    learned_epochs: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    max_logits: Tensor = field(default_factory=lambda: torch.empty(0))
    record: Mapping[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Measured:
    """The runs of one objective with one seed, and their pooled test predictions before and after each calibrator.

    A calibrator is fitted on the validation predictions of the same fold. Only the oracle uses test labels. Everything is
    computed on first use.

    Args:
        runs: The runs, one per fold.
        setting: Label of the data set and network.
        objective: Label of the loss.
        seed: Seed of the runs.
        recipes: The recipes, one per fold.

    Examples:
        >>> import math
        >>> from calibrant import Predictions
        >>> validation = Predictions.from_logits([[2 * math.log(4), 0.0]] * 10, [0] * 8 + [1] * 2)
        >>> measured = Measured([Run(validation, Predictions.from_logits([[1.4, 0.0], [0.0, 2.0]], [0, 0]))])
        >>> round(measured.value("temperature"), 4), measured.value("error")
        (2.0, 0.5)
    """

    runs: Sequence[Run]
    setting: str = ""
    objective: str = ""
    seed: int = 0
    recipes: "Sequence[Recipe]" = ()
    _calibrators: dict[str, list[Any]] = field(default_factory=dict, init=False, repr=False)
    _after: dict[str, Predictions] = field(default_factory=dict, init=False, repr=False)
    _values: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    @property
    def validation(self) -> list[Predictions]:
        """The validation predictions of each fold."""
        return [run.validation for run in self.runs]

    @cached_property
    def before(self) -> Predictions:
        """The uncalibrated test predictions of all folds."""
        return Predictions.cat([run.test for run in self.runs])

    @property
    def temperatures(self) -> list[float]:
        """The temperature T of each fold, fitted by log-loss on its validation data."""
        return [calibrator.temperature for calibrator in self.calibrators("at_t")]

    @property
    def validation_uses(self) -> Counter[str]:
        """How often each validation row was used for each purpose, as the largest count over the folds."""
        counts = (Counter(run.record["validation_uses"]) for run in self.runs)
        return reduce(operator.or_, counts, Counter({"fit the temperature": 1}))

    def calibrators(self, name: str) -> list[Any]:
        """Return the fitted calibrator of each fold.

        Args:
            name: A key of ``CALIBRATORS``, or ``"optimal"`` for one temperature that minimises the ECE of all test rows.
        """
        if name not in self._calibrators:
            self._calibrators[name] = (
                fit_each(CALIBRATORS["by_ece"][1], [self.before]) * len(self.runs)
                if name == ORACLE
                else fit_each(CALIBRATORS[name][1], self.validation)
            )
        return self._calibrators[name]

    def after(self, name: str) -> Predictions:
        """Return the test predictions of all folds after the calibrators ``name``, or uncalibrated ones for ``""``."""
        if not name:
            return self.before
        if name not in self._after:
            tests = [run.test for run in self.runs]
            self._after[name] = calibrate_folds(tests, self.calibrators(name), allow_fit_rows=name == ORACLE)
        return self._after[name]

    def value(self, measure: str) -> float:
        """Return the value of a measure, or NaN if the run did not record what it needs.

        Args:
            measure: A key of ``MEASURES``.
        """
        if measure not in self._values:
            self._values[measure] = MEASURES[measure].of(self)
        return self._values[measure]


def fit_each(make: Callable[[], Calibrator], parts: Sequence[Predictions]) -> list[Any]:
    """Return calibrators from ``make``, one fitted on each of ``parts``."""
    with ignore_bound_warnings():
        return [make().fit(rows) for rows in parts]


def calibrate_folds(
    parts: Sequence[Predictions], calibrators: Sequence[Calibrator], *, allow_fit_rows: bool = False
) -> Predictions:
    """Return the predictions of all folds, each calibrated by the calibrator of its fold."""
    with ignore_bound_warnings():
        pairs = zip(parts, calibrators, strict=True)
        return Predictions.cat([rows.calibrated_by(one, allow_fit_rows=allow_fit_rows) for rows, one in pairs])


@contextmanager
def ignore_bound_warnings() -> Iterator[None]:
    """Ignore the warning that T is at its bound, which is common here, because all rows of a split can be correct."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BoundWarning)
        yield


def geometric_mean(values: Sequence[Any]) -> float:
    """Return the geometric mean of positive numbers.

    Examples:
        >>> geometric_mean([1.0, 4.0])
        2.0
    """
    # T is a factor, so 1/2 and 2 are equally far from 1
    return math.exp(float(np.mean(np.log(values))))


def mean_or_nan(values: Sequence[float]) -> float:
    """Return the mean of ``values``, or NaN if there are none."""
    return float(np.mean(values)) if values else math.nan


def temperatures_along(rows: Predictions, gammas: Sequence[float], **options: Any) -> list[float]:
    """Return the T that minimises the AdaECE at each γ of the focal map.

    Args:
        rows: The predictions to fit on.
        gammas: The values of γ.
        options: Further options of ``FocalTemperatureScaling``.
    """
    makes = [partial(FocalTemperatureScaling, "ece", gammas=(gamma,), **options) for gamma in gammas]
    return [fit_each(make, [rows])[0].temperature for make in makes]


@dataclass(frozen=True)
class Measure:
    """A number that is computed from a run, and its format in tables.

    Args:
        label: The heading in tables, without the unit.
        of: The function that computes the number. It returns NaN if the run did not record what is needed.
        percent: Whether tables show the number in percent; the value itself is a fraction.
    """

    label: str
    of: Callable[[Measured], float]
    percent: bool = True

    def shown(self, value: float, spread: float = math.nan) -> str:
        """Return ``value`` as text for tables, without the unit, and its standard deviation ``spread`` unless that is NaN.

        Examples:
            >>> Measure("ECE", lambda measured: measured.value("ece")).shown(0.0435, 0.004)
            '4.35±.40'
        """
        scale = 100 if self.percent else 1
        around = "" if math.isnan(spread) else f"±{scale * spread:.2f}".replace("±0.", "±.")
        return f"{scale * value:.2f}{around}"

    @property
    def heading(self) -> str:
        """The label with its unit."""
        return f"{self.label} %" if self.percent else self.label


nats = partial(Measure, percent=False)


def _metric(measured: Measured, *, metric: Metric, stage: str) -> float:
    """Return a metric of the test predictions after the calibrators ``stage``."""
    return metric(measured.after(stage))


def _temperature(measured: Measured, *, name: str) -> float:
    """Return the geometric mean over folds of the temperatures of the calibrators ``name``."""
    return geometric_mean([one.temperature for one in measured.calibrators(name)])


def _gamma(measured: Measured, *, name: str) -> float:
    """Return the mean over folds of the γ of the calibrators ``name``."""
    return float(np.mean([one.gamma for one in measured.calibrators(name)]))


def _best_temperature(measured: Measured, *, split: str) -> float:
    """Return the temperature that gives a split's predictions after the last epoch the lowest log-loss."""
    found = [run.trajectory[-1].get(split, {}).get("temperature") for run in measured.runs if run.trajectory]
    return geometric_mean(found) if found and None not in found else math.nan


def _of_rows(measured: Measured, *, what: str, right: bool) -> float:
    """Return the mean NLL or entropy of the test rows that are classified correctly (``right``) or incorrectly."""
    rows = measured.before.correct if right else ~measured.before.correct
    values = (measured.before.nll if what == "nll" else entropy_rows(measured.before))[rows]
    return float(values.mean()) if len(values) else math.nan


def _excess_uncertain(measured: Measured) -> float:
    """Return the confidence minus the accuracy of the least confident third of the test rows, at T by ECE."""
    pairs = measured.after("by_ece").top_label()
    least = torch.argsort(pairs.p, stable=True)[: len(pairs) // 3]
    return float((pairs.p[least] - pairs.y[least].double()).mean())


def _departure_from_line(measured: Measured, *, tenth: bool) -> float:
    """Return the mean over folds of the largest deviation of T(γ) from its least-squares line, or of a tenth of its range."""
    found = []
    for rows in measured.validation:
        # as in Komisarenko & Kull (2024, Figure 8), who find that T(γ) is nearly a line
        at = np.array(temperatures_along(rows, LINE_GAMMAS, grid=LINE_GRID))
        line = np.polyval(np.polyfit(LINE_GAMMAS, at, 1), LINE_GAMMAS)
        found.append(np.ptp(at) / 10 if tenth else np.abs(at - line).max())
    return float(np.mean(found))


def _ood_auroc(measured: Measured) -> float:
    """Return the mean AUROC over folds and out-of-distribution sets."""
    return mean_or_nan([ood_auroc(run.test, outside) for run in measured.runs for outside in run.ood.values()])


def _under_shift(measured: Measured, *, metric: Metric, at_t: bool) -> float:
    """Return the mean of a metric over the corrupted versions of the test images, which keep their labels."""
    found = []
    for fold, run in enumerate(measured.runs):
        for name in SHIFTS & run.ood.keys():
            worse = Predictions.from_logits(run.ood[name].logits, run.test.labels, unchecked_kind=True)
            found.append(metric(calibrate_folds([worse], [measured.calibrators("at_t")[fold]]) if at_t else worse))
    return mean_or_nan(found)


def _with_few(measured: Measured, *, name: str) -> float:
    """Return the ECE after fitting a calibrator on the first 200 validation samples of each fold."""
    return Measured([Run(run.validation[:FEW], run.test) for run in measured.runs]).value(f"ece_{name}")


def _logit_gap(measured: Measured) -> float:
    """Return the mean largest logit of samples learned in the first third of the epochs minus that of all other samples."""
    found = []
    for epochs, logits in ((run.learned_epochs, run.max_logits) for run in measured.runs if len(run.max_logits)):
        # 0 means never learned, which counts as late; a third of the epochs may be over before the first measured epoch
        learned = epochs > 0
        first = int(torch.where(learned, epochs, epochs.max()).min())
        early = learned & (epochs <= max(first, int(epochs.max()) // 3))
        found.append(float(logits[early].mean() - logits[~early].mean()))
    return mean_or_nan(found)


def _along(of_fold: Callable[[Entries], float]) -> Callable[[Measured], float]:
    """Return a measure that averages ``of_fold`` over the folds' trajectories; NaN for runs without a trajectory."""
    return lambda measured: mean_or_nan([of_fold(run.trajectory) for run in measured.runs if run.trajectory])


def _value_at(part: float, name: str, *, split: str = "test") -> Callable[[Measured], float]:
    """Return the measure that reads the figure ``name`` of a split from the entry at ``part`` of the trajectory.

    A ``part`` of 0 is the first entry, and 1 is the last.
    """

    def of_fold(entries: Entries) -> float:
        place = int(part * len(entries) + 1e-9)  # so that a third of 3 is 1 despite rounding
        entry = entries[min(place, len(entries) - 1)]
        found = (entry[split] if split else entry).get(name)
        return math.nan if found is None else float(found)  # None: there are no such samples

    return _along(of_fold)


def _least(entries: Entries) -> Mapping[str, Any]:
    """Return the figures of the test data at the epoch with the lowest test NLL."""
    tests: list[Mapping[str, Any]] = [entry["test"] for entry in entries]
    return min(tests, key=lambda figures: float(figures["nll"]))


def _rise(of_entry: Callable[[Mapping[str, Any]], float]) -> Callable[[Measured], float]:
    """Return the measure of how much a figure of the test data has risen since the epoch with the lowest test NLL."""
    return _along(lambda entries: of_entry(entries[-1]["test"]) - of_entry(_least(entries)))


def _share_of_nll(figures: Mapping[str, Any], *, kind: str) -> float:
    """Return the part of the mean NLL that incorrectly or correctly classified samples contribute."""
    share = figures["error"] if kind == "wrong" else 1 - figures["error"]
    return float(share * (figures[f"nll_{kind}"] or 0.0))  # None: there are no such samples


def _jumps(entries: Entries) -> float:
    """Return the mean absolute change of the test ECE between entries in the second half of the trajectory."""
    late = [entry["test"]["ece"] for entry in entries[len(entries) // 2 :]]
    return float(np.abs(np.diff(late)).mean()) if len(late) > 1 else math.nan


# Measures that are computed from other measures, seed by seed: the label, the names of the other measures, and the function.
DERIVED: Mapping[str, tuple[str, tuple[str, ...], Callable[..., float]]] = {
    "apart_by_ece": ("distance of T by ECE from 1, |ln T|", ("temperature_by_ece",), lambda t: abs(math.log(t))),
    "gain_by_ece": ("decrease of the ECE at T by ECE", ("ece", "ece_by_ece"), operator.sub),
    "gain_of_samples_by_ece": (
        f"decrease of the ECE at T by ECE, from all instead of {FEW} samples",
        ("ece_by_ece_few", "ece_by_ece"),
        operator.sub,
    ),
    "gain_of_samples_binned": (
        f"decrease of the ECE after binning, from all instead of {FEW} samples",
        ("ece_binned_few", "ece_binned"),
        operator.sub,
    ),
    # constants that claims compare measures with
    "tenth": (f"{math.log(1.1):g}", ("temperature_by_ece",), lambda _: math.log(1.1)),
    "one": ("1", ("temperature",), lambda _: 1.0),
    "one_train": ("1", ("temperature_train",), lambda _: 1.0),
    "two": ("2", ("temperature_by_ece",), lambda _: 2.0),
    "none": ("0", ("ece",), lambda _: 0.0),
}


def _derived(measured: Measured, *, name: str) -> float:
    """Return the measure ``name`` of ``DERIVED``."""
    _, parts, made = DERIVED[name]
    return made(*map(measured.value, parts))


SAMPLES = {"correct": "correctly classified", "wrong": "misclassified"}
STAGES = {
    "": "",
    **{f"_{name}": f" at {words}" if "T" in words else f" {words}" for name, (words, _) in CALIBRATORS.items()},
}
STAGES[f"_{ORACLE}"] = " at optimal T (oracle)"
MEASURES: Mapping[str, Measure] = {
    **{
        f"{name}{stage}": Measure(label + words, partial(_metric, metric=metric, stage=stage[1:]), name != "nll")
        for (name, (label, metric)), (stage, words) in product(METRICS.items(), STAGES.items())
    },
    "temperature": nats("T", partial(_temperature, name="at_t")),
    **{
        f"temperature_{name}": nats(label, partial(_temperature, name=name))
        for name, label in [
            *((name, CALIBRATORS[name][0]) for name in ("by_ece", "by_tenths", "by_mass")),
            ("focal", "focal T"),
            ("focal_by_mass", "focal T by AdaECE"),
            (ORACLE, "optimal T (oracle)"),
        ]
    },
    "ece_by_chance": Measure(
        "limit if calibrated", lambda measured: null_band(ECE(), measured.after("at_t"), draws=100).high
    ),
    "gamma_focal": nats("γ with focal T", partial(_gamma, name="focal")),
    "gamma_focal_by_mass": nats("γ with focal T by AdaECE", partial(_gamma, name="focal_by_mass")),
    "temperature_train": nats("T on training data", partial(_best_temperature, split="train")),
    "temperature_test": nats("T on test data (oracle)", partial(_best_temperature, split="test")),
    # used in figures of the papers, but not a column of any table
    "nll_wrong": nats("NLL of misclassified samples", partial(_of_rows, what="nll", right=False)),
    "nll_correct": nats("NLL of correctly classified samples", partial(_of_rows, what="nll", right=True)),
    "entropy_wrong": nats("entropy of misclassified samples", partial(_of_rows, what="entropy", right=False)),
    "nll_rise": nats("rise of NLL after its minimum", _rise(lambda figures: float(figures["nll"]))),
    "nll_middle": nats("NLL, half-way", _value_at(1 / 2, "nll")),
    "nll_late": nats("NLL, late", _value_at(1, "nll")),
    "nll_train_middle": nats("NLL of training samples, half-way", _value_at(1 / 2, "nll", split="train")),
    "nll_train_late": nats("NLL of training samples, late", _value_at(1, "nll", split="train")),
    # the contributions of misclassified and of correctly classified samples add up to the whole rise
    **{
        f"nll_rise_{kind}": nats(f"rise of NLL due to {words} samples", _rise(partial(_share_of_nll, kind=kind)))
        for kind, words in SAMPLES.items()
    },
    **{
        f"entropy_{kind}_{when}": nats(f"entropy of {words} samples, {when}", _value_at(part, f"entropy_{kind}"))
        for (kind, words), (when, part) in product(SAMPLES.items(), (("early", 0), ("late", 1)))
    },
    "ece_at_least_nll": Measure(
        "ECE in the epoch with the lowest NLL", _along(lambda entries: float(_least(entries)["ece"]))
    ),
    "ece_late": Measure("ECE, late", _value_at(1, "ece")),
    "ood_auroc": Measure("AUROC for out-of-distribution data", _ood_auroc),
    **{
        f"{name}_shifted{'_at_t' if at_t else ''}": Measure(
            f"{METRICS[name][0]} under shift{' at T' if at_t else ''}",
            partial(_under_shift, metric=METRICS[name][1], at_t=at_t),
            name != "nll",
        )
        for name, at_t in product(("error", "nll", "ece"), (False, True))
    },
    "classifier_norm": nats("norm of the last layer", _value_at(1, "classifier_norm", split="")),
    "classifier_norm_early": nats("norm of the last layer, early", _value_at(0, "classifier_norm", split="")),
    "ece_optimal_early": Measure("ECE at optimal T (oracle), early", _value_at(1 / 3, "optimal_ece")),
    "ece_optimal_late": Measure("ECE at optimal T (oracle), late", _value_at(1, "optimal_ece")),
    "ece_by_ece_few": Measure(f"ECE at T by ECE, from {FEW} samples", partial(_with_few, name="by_ece")),
    "ece_binned_few": Measure(f"ECE after binning, from {FEW} samples", partial(_with_few, name="binned")),
    "ece_jumps": Measure("mean change of ECE between measured epochs, late", _along(_jumps)),
    "line_deviation": nats(
        "largest deviation of T by AdaECE from a line in γ", partial(_departure_from_line, tenth=False)
    ),
    "line_tenth": nats("a tenth of the range of T by AdaECE over γ", partial(_departure_from_line, tenth=True)),
    "excess_uncertain": Measure("confidence − accuracy of the least confident third, at T by ECE", _excess_uncertain),
    "logit_gap": nats("largest logit of samples learned early, minus those learned late", _logit_gap),
    **{
        name: Measure(label, partial(_derived, name=name), percent=name.startswith(("gain", "none")))
        for name, (label, *_) in DERIVED.items()
    },
}
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "main": ("error", "nll", "ece", "nll_at_t", "ece_at_t", "temperature", "ece_by_chance"),
    "calibrators": (
        "ece", "ece_at_t", "ece_by_ece", "temperature_by_ece", "ece_binned",
        "ece_focal", "gamma_focal", "temperature_focal", "ece_optimal",
    ),
    "errors": (
        "ece_mass", "ece_mass_at_t", "ece_mass_by_ece", "ece_class", "ece_class_at_t", "ece_class_by_ece",
    ),
}  # fmt: skip
