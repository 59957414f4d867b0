"""The measures of a study: metrics of test predictions before and after calibrators fitted on validation predictions."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.binning import EqualMass
from calibrant.calibrators import Calibrator, FocalTemperatureScaling, HistogramBinning, TemperatureScaling
from calibrant.data.predictions import Predictions
from calibrant.errors import BoundWarning
from calibrant.metrics import ECE, NLL, ClasswiseECE, Error, Metric, entropy_rows, ood_auroc


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
    "by_tenths": (" at T by ECE in tenths", lambda: TemperatureScaling(grid="mukhoti")),  # .1, .2 … 10
    "by_mass": (" at T by AdaECE", lambda: TemperatureScaling(grid="komisarenko")),
    "binned": (" binned", HistogramBinning),
    "focal": (" at focal T", FocalTemperatureScaling),
    "focal_by_mass": (" at focal T by AdaECE", lambda: FocalTemperatureScaling("ece")),
    "line_by_mass": (" at focal T by AdaECE, on a line", lambda: FocalTemperatureScaling("ece", search="line")),
}
SHIFTS = {
    "gaussian-noise",
    "gaussian-blur",
    "contrast",
    "jpeg",
}  # sets beside the data whose labels are those of the test data
FEW = 200  # validation samples of a small set (Wang et al. 2021, Figure 3)
# At which T is fitted, for its linearity (Komisarenko & Kull 2024, Figure 8).
LINE_GAMMAS = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0)
# The step of the authors' code, up to 20 instead of 5: an over-confident network's T at γ = 5 is beyond 5.
LINE_GRID = tuple(step / 20 for step in range(1, 401))
Entries = Sequence[Mapping[str, Any]]  # of one fold's trajectory
nats = partial(Measure, percent=False)


def _of_rows(fits: "FoldFits", what: str, *, right: bool) -> float:
    """Return the mean NLL or entropy of the test rows that are right, or of those that are wrong."""
    rows = fits.before.correct if right else ~fits.before.correct
    values = (fits.before.nll if what == "nll" else entropy_rows(fits.before))[rows]
    return float(values.mean()) if len(values) else math.nan


def _excess_uncertain(fits: "FoldFits") -> float:
    pairs = fits.after("by_ece").top_label()
    least = torch.argsort(pairs.p, stable=True)[: len(pairs) // 3]
    return float((pairs.p[least] - pairs.y[least].double()).mean())


def _gap_of_bin(fits: "FoldFits", place: float) -> float:
    """Return |confidence − accuracy| in the bin of equal mass at ``place`` from 0, the lowest, to 1, the highest."""
    pairs = fits.before.top_label()
    gaps = EqualMass(15).table(pairs.p, pairs.y).gap.abs()
    return float(gaps[math.ceil(place * (len(gaps) - 1))])


def temperatures_along(rows: Predictions, gammas: Sequence[float], **options: Any) -> list[float]:
    """Return the T that minimises AdaECE at each γ of the focal map; ``options`` are those of ``FocalTemperatureScaling``."""
    with ignore_bound_warnings():
        made = [FocalTemperatureScaling("ece", gammas=(gamma,), **options) for gamma in gammas]
        return [one.fit(rows.logits, rows.labels).temperature for one in made]


def _departure_from_line(fits: "FoldFits", *, tenth: bool) -> float:
    """Return the largest deviation of T(γ) from its least-squares line, or a tenth of its range: the mean over folds."""
    found = []
    for rows in fits.validation:
        # as in Komisarenko & Kull (2024, Figure 8), who find nearly a line
        at = np.array(temperatures_along(rows, LINE_GAMMAS, grid=LINE_GRID))
        line = np.polyval(np.polyfit(LINE_GAMMAS, at, 1), LINE_GAMMAS)
        found.append(np.ptp(at) / 10 if tenth else np.abs(at - line).max())
    return float(np.mean(found))


def _under_shift(fits: "FoldFits", *, metric: Metric, calibrated: bool) -> float:
    """Return the mean of a metric over the sets whose images are the test images, made worse: their labels are the same."""
    found = []
    for place, (rows, sets) in enumerate(zip(fits.test, fits.ood, strict=False)):
        for name in SHIFTS & sets.keys():
            worse = Predictions.from_logits(sets[name].logits, rows.labels, unchecked_kind=True)
            if calibrated:
                with ignore_bound_warnings():
                    worse = worse.calibrated_by(fits.calibrators("at_t")[place])
            found.append(metric(worse))
    return mean_or_nan(found)


def _logit_gap(epochs: Tensor, logits: Tensor) -> float:
    """Return the mean largest logit of samples right since the first third of the epochs, less that of those right later or never."""
    # 0 stands for never learned, which counts as late; a training is looked at every few epochs, at first perhaps after a third
    learned = epochs > 0
    first = int(torch.where(learned, epochs, epochs.max()).min())
    early = learned & (epochs <= max(first, int(epochs.max()) // 3))
    return float(logits[early].mean() - logits[~early].mean())


def _along(of_fold: Callable[[Entries], float]) -> Callable[["FoldFits"], float]:
    """Return the measure of a trajectory: the mean over folds, NaN for runs without one."""
    return lambda fits: mean_or_nan([of_fold(entries) for entries in fits.trajectories])


def _least(entries: Entries) -> Mapping[str, Any]:
    """Return the entry with the least test NLL."""
    return min(entries, key=lambda entry: entry["test"]["nll"])


def _value_at(part: float, name: str, *, split: str = "test") -> Callable[["FoldFits"], float]:
    """Return the figure ``name`` of a split, at a part of the trajectory from 0, its first entry, to 1, its last; NaN for none."""

    def of_fold(entries: Entries) -> float:
        place = int(part * len(entries) + 1e-9)  # a third of 3 is 1, whatever rounding makes of it
        entry = entries[min(place, len(entries) - 1)]
        found = (entry[split] if split else entry).get(name)
        return math.nan if found is None else float(found)  # None: there are no such samples

    return _along(of_fold)


def _share_of_nll(figures: Mapping[str, Any], kind: str) -> float:
    """Return what wrong or correct samples add to the mean NLL."""
    share = figures["error"] if kind == "wrong" else 1 - figures["error"]
    return float(share * (figures[f"nll_{kind}"] or 0.0))  # None: there are no such samples


def _rise(of_entry: Callable[[Mapping[str, Any]], float]) -> Callable[["FoldFits"], float]:
    """Return by how much a figure of test data rose since the least NLL."""
    return _along(lambda entries: of_entry(entries[-1]["test"]) - of_entry(_least(entries)["test"]))


def _jumps(entries: Entries) -> float:
    late = [entry["test"]["ece"] for entry in entries[len(entries) // 2 :]]
    return float(np.abs(np.diff(late)).mean()) if len(late) > 1 else math.nan


def mean_or_nan(values: Sequence[float]) -> float:
    """Return the mean, NaN for none."""
    return float(np.mean(values)) if values else math.nan


# Of figures of the papers, without a column in a table: what each is called, and how it is measured; NaN if a run did not record it.
CURVES: Mapping[str, tuple[Measure, Callable[["FoldFits"], float]]] = {
    "nll_wrong": (nats("NLL of wrong samples"), lambda fits: _of_rows(fits, "nll", right=False)),
    "nll_correct": (nats("NLL of correct samples"), lambda fits: _of_rows(fits, "nll", right=True)),
    "entropy_wrong": (nats("entropy of wrong samples"), lambda fits: _of_rows(fits, "entropy", right=False)),
    "nll_rise": (nats("rise of NLL"), _rise(lambda figures: float(figures["nll"]))),
    "nll_middle": (nats("NLL, half-way"), _value_at(1 / 2, "nll")),
    "nll_late": (nats("NLL, late"), _value_at(1, "nll")),
    "nll_train_middle": (nats("NLL of training samples, half-way"), _value_at(1 / 2, "nll", split="train")),
    "nll_train_late": (nats("NLL of training samples, late"), _value_at(1, "nll", split="train")),
    # the shares of wrong and correct samples add up to the whole
    **{
        f"nll_rise_{kind}": (nats(f"rise of NLL by {kind} samples"), _rise(partial(_share_of_nll, kind=kind)))
        for kind in ("wrong", "correct")
    },
    **{
        f"entropy_{kind}_{when}": (nats(f"entropy of {kind} samples, {when}"), _value_at(part, f"entropy_{kind}"))
        for kind, (when, part) in product(("correct", "wrong"), (("early", 0), ("late", 1)))
    },
    "ece_at_least_nll": (
        Measure("ECE at the least NLL"),
        _along(lambda entries: float(_least(entries)["test"]["ece"])),
    ),
    "ece_late": (Measure("ECE, late"), _value_at(1, "ece")),
    "ood_auroc": (
        Measure("AUROC of out-of-distribution sets"),
        lambda fits: mean_or_nan(
            [ood_auroc(rows, one) for rows, sets in zip(fits.test, fits.ood, strict=False) for one in sets.values()]
        ),
    ),
    **{
        f"{name}_shifted{after and '_at_t'}": (
            Measure(f"{METRICS[name][0].label} under shift{after}", METRICS[name][0].percent),
            partial(_under_shift, metric=METRICS[name][1], calibrated=bool(after)),
        )
        for name, after in product(("error", "nll", "ece"), ("", " at T"))
    },
    "classifier_norm": (nats("norm of the last layer"), _value_at(1, "classifier_norm", split="")),
    "classifier_norm_early": (nats("norm of the last layer, early"), _value_at(0, "classifier_norm", split="")),
    "ece_optimal_early": (Measure("ECE optimal (oracle), early"), _value_at(1 / 3, "optimal_ece")),
    "ece_optimal_late": (Measure("ECE optimal (oracle), late"), _value_at(1, "optimal_ece")),
    "ece_by_ece_few": (Measure("ECE at T by ECE of few"), lambda fits: fits.after_few("by_ece")),
    "ece_binned_few": (Measure("ECE binned by few"), lambda fits: fits.after_few("binned")),
    # how much lower the ECE is with all validation samples
    "gain_of_samples_by_ece": (
        Measure("gain of samples at T by ECE"),
        lambda fits: fits.after_few("by_ece") - fits.value("ece_by_ece"),
    ),
    "gain_of_samples_binned": (
        Measure("gain of samples binned"),
        lambda fits: fits.after_few("binned") - fits.value("ece_binned"),
    ),
    "ece_jumps": (Measure("mean change of ECE between measured epochs, late"), _along(_jumps)),
    "line_deviation": (
        nats("largest deviation of T by AdaECE from a line in γ"),
        partial(_departure_from_line, tenth=False),
    ),
    "line_tenth": (nats("a tenth of the range of T by AdaECE over γ"), partial(_departure_from_line, tenth=True)),
    "excess_uncertain": (
        Measure("confidence less accuracy of the least confident third at T by ECE"),
        _excess_uncertain,
    ),
    "logit_gap": (
        nats("largest logit, learned early less late"),
        lambda fits: mean_or_nan(
            list(map(_logit_gap, fits.of_training("learned_epochs"), fits.of_training("max_logits")))
        ),
    ),
    **{
        f"gap_{name}": (Measure(f"calibration error of the {name} bin"), partial(_gap_of_bin, place=place))
        for name, place in (("lowest", 0.0), ("middle", 0.5), ("highest", 1.0))
    },
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
        "temperature_by_tenths": "T by ECE in tenths",
        "temperature_by_mass": "T by AdaECE",
        "temperature_focal": "T of focal T",
        "temperature_focal_by_mass": "T of focal T by AdaECE",
        "gamma_focal": "γ of focal T",
        "gamma_focal_by_mass": "γ of focal T by AdaECE",
        "temperature_optimal": "T optimal (oracle)",
        "temperature_train": "T on training data",
        "temperature_test": "T on test data (oracle)",
    }
    found |= {name: nats(label) for name, label in temperatures.items()}
    found |= {name: measure for name, (measure, _) in CURVES.items()}
    return found | {name: measure for name, (measure, *_) in DERIVED.items()}


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


@dataclass(eq=False)
class FoldFits:
    """The test predictions of all folds, before and after each calibrator, computed on first use.

    A calibrator is fitted on the validation predictions of the same fold; only the oracle uses test labels.

    Args:
        validation: Validation predictions of each fold.
        test: Test predictions of each fold.
        trajectories: The trajectory of each fold.
        of_training: Reads ``"learned_epochs"`` or ``"max_logits"`` of the training samples of each fold.
        ood: Predictions of out-of-distribution sets of each fold, by name.

    Examples:
        >>> import math
        >>> from calibrant import Predictions
        >>> seen = Predictions.from_logits([[2 * math.log(4), 0.0]] * 10, [0] * 8 + [1] * 2)
        >>> fits = FoldFits([seen], [Predictions.from_logits([[1.4, 0.0], [0.0, 2.0]], [0, 0])])
        >>> round(fits.value("temperature"), 4), fits.value("error")
        (2.0, 0.5)
    """

    validation: Sequence[Predictions]
    test: Sequence[Predictions]
    trajectories: Sequence[Sequence[Mapping[str, Any]]] = ()
    of_training: Callable[[str], Sequence[Tensor]] = lambda name: ()
    ood: Sequence[Mapping[str, Predictions]] = ()
    _calibrators: dict[str, list[Any]] = field(default_factory=dict, init=False, repr=False)
    _after: dict[str, Predictions] = field(default_factory=dict, init=False, repr=False)
    _values: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def before(self) -> Predictions:
        """Test predictions of all folds, uncalibrated."""
        return Predictions.cat(list(self.test))

    def use(self, name: str, make: Callable[[], Calibrator]) -> None:
        """Fit another calibrator than that of ``CALIBRATORS`` under this name."""
        with ignore_bound_warnings():
            self._calibrators[name] = [make().fit(rows.logits, rows.labels) for rows in self.validation]

    def on_validation(self, name: str, metric: Metric) -> float:
        """Return a metric of the validation predictions themselves after a calibrator that was fitted on them."""
        fitted = zip(self.validation, self.calibrators(name), strict=True)
        return metric(Predictions.cat([rows.calibrated_by(one, allow_fit_rows=True) for rows, one in fitted]))

    def calibrators(self, name: str) -> list[Any]:
        """Return the fitted calibrator of each fold.

        Args:
            name: A key of ``CALIBRATORS``, or ``"optimal"``.
        """
        if name not in self._calibrators:
            make = CALIBRATORS["by_ece" if name == ORACLE else name][1]
            with ignore_bound_warnings():
                if name == ORACLE:  # one for all folds, which minimises the ECE of all test rows
                    self._calibrators[name] = [make().fit(self.before.logits, self.before.labels)] * len(self.test)
                else:
                    self.use(name, make)
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
            return CURVES[measure][1](self)
        number, _, name = measure.partition("_")
        if number == "temperature":
            return geometric_mean([fitted.temperature for fitted in self.calibrators(name or "at_t")])
        if number == "gamma":
            return float(np.mean([fitted.gamma for fitted in self.calibrators(name)]))
        # the longest name: "ece_mass_at_t" is ece_mass at T, not ece
        metric = max((key for key in METRICS if measure == key or measure.startswith(f"{key}_")), key=len)
        stage = measure.removeprefix(metric).removeprefix("_")
        return METRICS[metric][1](self.after(stage) if stage else self.before)

    def after_few(self, name: str) -> float:
        """Return the ECE after a calibrator that was fitted on the first 200 validation samples of each fold."""
        return FoldFits([rows[:FEW] for rows in self.validation], self.test).value(f"ece_{name}")


@contextmanager
def ignore_bound_warnings() -> Iterator[None]:
    """Ignore a warning that is common here: T at its bound where all rows are correct."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BoundWarning)
        yield


def geometric_mean(values: Sequence[Any]) -> float:
    """Return the geometric mean of positive numbers.

    Examples:
        >>> geometric_mean([1.0, 4.0])
        2.0
    """
    # T is a factor: 1/2 and 2 are equally far from 1
    return math.exp(float(np.mean(np.log(values))))
