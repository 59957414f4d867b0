"""Summaries of stored runs: measures with their standard deviation over seeds, and tests of the papers' orderings."""

import json
import math
import subprocess
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from calibrant._files import write_whole
from calibrant.binning import EqualMass
from calibrant.calibrators import FocalTemperatureScaling
from calibrant.data.predictions import Predictions
from calibrant.metrics import ECE, NLL, Error, Metric
from calibrant.statistics import null_band
from calibrant.study.measures import COLUMNS, MEASURES, FoldFits, geometric_mean
from calibrant.study.recipe import Claim, Published, Recipe, Study
from calibrant.study.store import Store

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

NULL_DRAWS = 100
SIGNIFICANCE = 0.05  # differences with a smaller p-value are significant


@dataclass(frozen=True, eq=False)
class Measured:
    """One objective with one seed: the pooled test predictions of all folds, before and after calibration.

    Args:
        setting: Label of data and network.
        objective: Label of the loss.
        seed: The seed.
        recipes: The recipes, one per fold.
        fits: Predictions of the folds, and calibrators fitted on their validation data.
        seconds: Training time of all folds.
        validation_uses: How often validation data were used, by purpose.
        device: Device it was trained on.
        versions: Package versions it was trained with.
    """

    setting: str
    objective: str
    seed: int
    recipes: tuple[Recipe, ...]
    fits: FoldFits
    seconds: float
    validation_uses: dict[str, int]
    device: str
    versions: dict[str, str]

    @property
    def before(self) -> Predictions:
        """Test predictions of all folds."""
        return self.fits.before

    @property
    def after(self) -> Predictions:
        """Test predictions of all folds, scaled by each fold's temperature, fitted by log-loss on its validation data."""
        return self.fits.after("at_t")

    @property
    def temperatures(self) -> tuple[float, ...]:
        """T of each fold."""
        return tuple(calibrator.temperature for calibrator in self.fits.calibrators("at_t"))

    def figures(self, names: Iterable[str] = COLUMNS["main"]) -> dict[str, float]:
        """Return measures by name.

        Args:
            names: Keys of ``measures.MEASURES``.
        """
        return {name: self.fits.value(name) for name in names}


@dataclass(frozen=True)
class Summary:
    """One line of a study's table: mean and standard deviation over seeds of each measure.

    Args:
        setting: Name of data and network.
        objective: Name of the loss.
        seeds: Number of seeds.
        mean: Measure → mean over seeds.
        spread: Measure → standard deviation (n − 1) over seeds; NaN for one seed.
        calibrated_mean: Expected ECE of a calibrated model with the probabilities at T, on as many samples (first seed).
        calibrated_high: The 97.5 % limit if calibrated, below which the ECE of such a model lies in 97.5 % of samples.
        rows: Test samples of one seed, all folds together.
    """

    setting: str
    objective: str
    seeds: int
    mean: dict[str, float]
    spread: dict[str, float]
    calibrated_mean: float
    calibrated_high: float
    rows: int


@dataclass(frozen=True)
class Verdict:
    """Whether a paper's ordering reproduces in one setting.

    Args:
        claim: The paper's claim.
        setting: Label of the setting.
        seen: Whether every mean is below the previous one; None if an objective was not run or has no such figure.
        p: p-value of the paired t-test over seeds between the first and the last objective; None below two seeds.
        values: Means in the claimed order.
        p_unpaired: p-value of the equal-variance two-sample t-test between the same, as in Wang et al. (2021).
        seeds: Number of seeds that the first and the last objective share.
    """

    claim: Claim
    setting: str
    seen: bool | None
    p: float | None
    values: tuple[float, ...]
    p_unpaired: float | None = None
    seeds: int = 0

    @property
    def outcome(self) -> str:
        """The verdict as text; differences are tested with two or more seeds, at p < .05 of the paired t-test.

        ``"shows"``; ``"shows in part"``: the first and the last objective differ as claimed, but the order between them is
        another; ``"shows the opposite"``; ``"unclear"``: no significant difference; ``"not run"``.
        """
        if self.seen is None:
            return "not run"
        if self.seeds < 2 or self.p is None or self.p >= SIGNIFICANCE:
            return "unclear"
        if self.values[-1] >= self.values[0]:
            return "shows the opposite"
        return "shows" if self.seen else "shows in part"

    def plain(self) -> dict[str, Any]:
        """Return source, setting, verdict and p-values as JSON data."""
        return {
            "source": self.claim.source,
            "setting": self.setting,
            "verdict": self.outcome,
            "seen": self.seen,
            "p": self.p,
            "p_unpaired": self.p_unpaired,
        }


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return the items of each key, in the order in which the keys come first."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def collect(study: Study, store: Store) -> list[Measured]:
    """Return the finished runs: every setting, objective and seed with all folds finished.

    Args:
        study: The study.
        store: Where its runs are stored.
    """
    groups = grouped(study.cells(), lambda cell: (cell.setting, cell.objective, cell.recipe.seed))
    found = [(where, [cell.recipe for cell in cells]) for where, cells in groups.items()]
    return [_pooled_seeds(where, recipes, store) for where, recipes in found if all(map(store.finished, recipes))]


def _pooled_seeds(where: tuple[str, str, int], recipes: Sequence[Recipe], store: Store) -> Measured:
    runs = [store.load(recipe) for recipe in recipes]
    # the most of any fold: what a row of validation data was used for, not what all folds add up to
    uses: dict[str, int] = {"fit the temperature": 1}
    for run in runs:
        for purpose, count in run.record["validation_uses"].items():
            uses[purpose] = max(uses.get(purpose, 0), count)
    return Measured(
        *where,
        recipes=tuple(recipes),
        fits=FoldFits(
            [run.validation for run in runs],
            [run.test for run in runs],
            [store.trajectory(recipe) for recipe in recipes],
            lambda name: [getattr(store, name)(recipe) for recipe in recipes],
            [run.ood for run in runs],
        ),
        seconds=sum(run.record["seconds"] for run in runs),
        validation_uses=uses,
        device=runs[0].record["device"],
        versions=runs[0].record["versions"],
    )


def summarise(measured: Sequence[Measured], *, names: Sequence[str] = COLUMNS["main"]) -> list[Summary]:
    """Return the mean and the standard deviation (n − 1) over seeds for each setting and objective.

    Args:
        measured: The result of ``collect``.
        names: Keys of ``measures.MEASURES``.
    """
    groups = grouped(measured, lambda item: (item.setting, item.objective))
    return [_summarise_setting(where, items, names) for where, items in groups.items()]


def measures_needed(study: Study, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the names of all measures that the tables ``columns``, the published figures and the claims of a study need.

    Args:
        study: The study.
        columns: Keys of ``measures.COLUMNS``.
    """
    named = [name for table in ("main", *columns) for name in COLUMNS[table]]
    return tuple(dict.fromkeys([*named, *(p.measure for p in study.published), *(c.measure for c in study.claims)]))


def _summarise_setting(where: tuple[str, str], items: list[Measured], names: Sequence[str]) -> Summary:
    figures = [item.figures(names) for item in items]
    columns = {name: np.array([f[name] for f in figures]) for name in figures[0]}
    calibrated = null_band(ECE(), items[0].after, draws=NULL_DRAWS)
    return Summary(
        *where,
        seeds=len(items),
        mean={name: float(values.mean()) for name, values in columns.items()},
        spread={name: float(values.std(ddof=1)) if len(values) > 1 else math.nan for name, values in columns.items()},
        calibrated_mean=calibrated.estimate,
        calibrated_high=calibrated.high,
        rows=len(items[0].after),
    )


@dataclass(frozen=True)
class OneGamma:
    """Focal temperature scaling with one γ for all seeds of an objective, as in Komisarenko & Kull (2024, Table 1).

    Args:
        setting: Label of data and network.
        objective: Label of the loss.
        gamma: The published γ with the least validation AdaECE, each at its best T, in the mean over seeds.
        temperature: Geometric mean of T over seeds.
        ece: Mean over seeds of the AdaECE on test data.
        spread: Its standard deviation (n − 1).
    """

    setting: str
    objective: str
    gamma: float
    temperature: float
    ece: float
    spread: float


def one_gamma(measured: Sequence[Measured]) -> list[OneGamma]:
    """Return for each setting and objective with two seeds or more what one γ for all of them gives.

    Args:
        measured: The result of ``collect``.
    """
    metric = ECE(EqualMass(15))
    found = []
    for (setting, objective), items in grouped(measured, lambda item: (item.setting, item.objective)).items():
        if len(items) < 2:
            continue
        tried = []
        for gamma in FocalTemperatureScaling.published:
            make = partial(FocalTemperatureScaling, "ece", gammas=(gamma,), grid="komisarenko")
            fits = [replace(item.fits) for item in items]
            for one in fits:
                one.use("focal_by_mass", make)
            tried.append((float(np.mean([one.on_validation("focal_by_mass", metric) for one in fits])), gamma, fits))
        _, gamma, fits = min(tried, key=lambda entry: entry[0])
        errors = [one.value("ece_mass_focal_by_mass") for one in fits]
        temperature = geometric_mean([one.value("temperature_focal_by_mass") for one in fits])
        found.append(
            OneGamma(setting, objective, gamma, temperature, float(np.mean(errors)), float(np.std(errors, ddof=1)))
        )
    return found


def printed_beside(study: Study, line: Summary) -> dict[str, Published]:
    """Return the figures printed in the paper for one line of our table, by measure.

    Args:
        study: The study.
        line: A line of its table.
    """
    like = {setting.label: setting.like for setting in study.settings}
    places = {"", line.setting, like.get(line.setting) or line.setting}
    return {p.measure: p for p in study.published if p.objective == line.objective and p.setting in places}


def verdicts_on(study: Study, measured: Sequence[Measured]) -> list[Verdict]:
    """Return a verdict for each claim and setting: whether the ordering reproduces in ``measured``.

    Args:
        study: The study.
        measured: The result of ``collect``.
    """
    found = []
    for setting in study.settings:
        here = [item for item in measured if item.setting == setting.label]
        for claim in study.claims:
            if setting.label not in claim.but:
                runs = [[item for item in here if item.objective == name] for name in claim.falls]
                by_seed = [{item.seed: item.fits.value(claim.measure) for item in items} for items in runs]
                found.append(verdict_on_claim(claim, setting.label, by_seed))
    return found


def verdict_on_claim(claim: Claim, setting: str, by_seed: Sequence[Mapping[int, float]]) -> Verdict:
    """Return the verdict on a claim from the figures of each of its objectives.

    Args:
        claim: The paper's claim.
        setting: Label of the setting.
        by_seed: For each objective of ``claim.falls``, seed → figure; only shared seeds are used, if there are any.

    Examples:
        >>> from calibrant.study import Claim
        >>> claim = Claim("b is lower than a", "a paper", "ece", ("a", "b"))
        >>> verdict_on_claim(claim, "digits", [{0: 0.10, 1: 0.12, 2: 0.11}, {0: 0.05, 1: 0.06, 2: 0.07}]).outcome
        'shows'
    """
    if not all(by_seed) or any(math.isnan(value) for values in by_seed for value in values.values()):
        return Verdict(claim, setting, None, None, ())
    # objectives of one seed share the order of samples and the test rows, so that their difference has less noise than either
    shared = sorted(set.intersection(*map(set, by_seed)))
    if shared:  # means over the same seeds are not shifted by one that is missing
        by_seed = [{seed: values[seed] for seed in shared} for values in by_seed]
    means = tuple(float(np.mean(list(values.values()))) for values in by_seed)
    seen = all(after < before for before, after in pairwise(means))
    first, last = list(by_seed[0].values()), list(by_seed[-1].values())
    return Verdict(
        claim, setting, seen, _paired(first, last) if shared else None, means, _unpaired(first, last), len(shared)
    )


def _paired(first: list[float], last: list[float]) -> float | None:
    """Return the two-sided p-value of the paired t-test, or None where it is undefined: one difference, or equal ones."""
    if len({a - b for a, b in zip(first, last, strict=True)}) < 2:
        return None
    from scipy.stats import ttest_rel

    return float(ttest_rel(first, last).pvalue)


def _unpaired(first: list[float], last: list[float]) -> float | None:
    """Return the two-sided p-value of the equal-variance two-sample t-test, or None where it is undefined."""
    if min(len(first), len(last)) < 2 or len(set(first)) == len(set(last)) == 1:
        return None
    from scipy.stats import ttest_ind

    return float(ttest_ind(first, last).pvalue)


def rows(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Return the figures as plain rows, one per seed, calibrator and metric, in the layout of ``evaluate --json``.

    Args:
        measured: The result of ``collect``.
    """
    metrics: list[Metric] = [Error(), NLL(), ECE(), ECE(EqualMass())]
    found = []
    for item in measured:
        where = {"file": None, "split": "test", "setting": item.setting, "objective": item.objective, "seed": item.seed}
        for calibrator, data in ((None, item.before), ("TemperatureScaling", item.after)):
            for metric in metrics:
                null_high = None
                if metric.measures_calibration:
                    null_high = null_band(metric, data, draws=NULL_DRAWS).high
                value = {"calibrator": calibrator, "metric": repr(metric), "value": metric(data)}
                found.append({**where, **value, "low": None, "high": None, "null_high": null_high, "n": len(data)})
    return found


def record_of(study: Study, measured: Sequence[Measured], *, path: Path, columns: Sequence[str] = ()) -> None:
    """Write the record of a study as JSON: figures of every seed, verdicts on claims, and provenance.

    Args:
        study: The study.
        measured: The result of ``collect``.
        path: A ``.json`` file.
        columns: Keys of ``measures.COLUMNS``, in addition to "main" and the measures that the study publishes and claims; with all
            of them, every measure is recorded.
    """
    names = list(MEASURES) if set(columns) == set(COLUMNS) else measures_needed(study, columns)
    figures = [
        {"setting": m.setting, "objective": m.objective, "seed": m.seed, "n": len(m.before), "seconds": m.seconds}
        | {name: round(value, 6) for name, value in m.figures(names).items() if not math.isnan(value)}
        | {"validation_uses": m.validation_uses}
        for m in measured
    ]
    record = {
        "study": study.name,
        "title": study.title,
        "about": " ".join(study.about.split()),
        "recipe": {"settings": [asdict(s) for s in study.settings], "training": dict(study.training)},
        "objectives": [asdict(objective) for objective in study.objectives],
        "figures": figures,
        "claims": [{"text": v.claim.text, **v.plain()} for v in verdicts_on(study, measured)],
        "provenance": {
            "commit": _commit(),
            "versions": measured[0].versions if measured else {},
            "devices": sorted({m.device for m in measured}),
            "seconds": round(sum(m.seconds for m in measured), 1),
        },
    }
    write_whole(path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def _commit() -> str | None:
    """Return the commit of Calibrant's own repository; None for an installed package, or without git."""
    package = Path(__file__).resolve().parents[1]
    if not (package.parents[1] / ".git").exists():  # where it is installed, a repository around it is someone else's
        return None
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=package, capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return found.stdout.strip() or None
