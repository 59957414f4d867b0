"""Summarises stored runs: measures with their standard deviation over seeds, and tests of the papers' orderings."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from calibrant.study.measures import COLUMNS, MEASURES, Measured
from calibrant.study.recipe import Claim, Study
from calibrant.study.store import Store

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

SIGNIFICANCE = 0.05  # differences with a smaller p-value are significant


@dataclass(frozen=True)
class Summary:
    """One line of a study's table: the mean and standard deviation of each measure over seeds.

    Args:
        setting: Label of the data set and network.
        objective: Label of the loss.
        seeds: Number of seeds.
        mean: Dict from measures to means over seeds.
        spread: Dict from measures to standard deviations (n − 1) over seeds; NaN for one seed.
        rows: Number of test samples of one seed, over all folds.
    """

    setting: str
    objective: str
    seeds: int
    mean: dict[str, float]
    spread: dict[str, float]
    rows: int


@dataclass(frozen=True)
class Verdict:
    """The result of testing whether a paper's ordering reproduces in one setting.

    Args:
        claim: The paper's claim.
        setting: Label of the setting.
        seen: Whether every mean is below the previous one; None if an objective was not run or lacks the measure.
        p: p-value of the paired t-test over seeds between the first and the last objective; None with fewer than two seeds.
        values: Means of the objectives in the claimed order.
        p_unpaired: p-value of the equal-variance two-sample t-test between the same objectives, as in Wang et al. (2021).
        seeds: Number of seeds that the first and the last objective have in common.
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
        """The verdict as text.

        It is one of ``"shows"``, ``"shows in part"`` (the first and the last objective differ as claimed, but those between
        them are in another order), ``"shows the opposite"``, ``"unclear"`` (no significant difference) and ``"not run"``. A
        difference is significant if there are at least two seeds and p < .05 in the paired t-test.
        """
        if self.seen is None:
            return "not run"
        if self.seeds < 2 or self.p is None or self.p >= SIGNIFICANCE:
            return "unclear"
        if self.values[-1] >= self.values[0]:
            return "shows the opposite"
        return "shows" if self.seen else "shows in part"


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return a dict from keys to the items that have them, in the order of the keys' first occurrence."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def collect(study: Study, store: Store) -> list[Measured]:
    """Return the finished runs of a study, one item for each setting, objective and seed whose folds are all finished.

    Args:
        study: The study.
        store: The store of its runs.

    Returns:
        The finished runs, in the order of the study.

    Raises:
        FileFormatError: If a file of a finished run is damaged or belongs to another recipe.

    Examples:
        >>> from calibrant.study import Store, load_study
        >>> collect(load_study("digits"), Store("empty"))
        []
    """
    found = []
    for where, cells in grouped(study.cells(), lambda cell: (cell.setting, cell.objective, cell.recipe.seed)).items():
        recipes = [cell.recipe for cell in cells]
        if all(map(store.finished, recipes)):
            found.append(Measured([store.load(recipe) for recipe in recipes], *where, recipes))
    return found


def summarise(measured: Sequence[Measured], *, names: Sequence[str] = COLUMNS["main"]) -> list[Summary]:
    """Return the mean and the standard deviation (n − 1) of measures over seeds, for each setting and objective.

    Args:
        measured: The result of ``collect``.
        names: Keys of ``measures.MEASURES``.
    """
    found = []
    for where, items in grouped(measured, lambda item: (item.setting, item.objective)).items():
        columns = {name: [item.value(name) for item in items] for name in names}
        mean = {name: float(np.mean(values)) for name, values in columns.items()}
        spread = {name: deviation(values) for name, values in columns.items()}
        found.append(Summary(*where, len(items), mean, spread, len(items[0].before)))
    return found


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation (n − 1) of ``values``, or NaN if there is only one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def measures_needed(study: Study) -> tuple[str, ...]:
    """Return the names of all measures that a study's tables, published figures and claims need."""
    named = [name for table in study.columns for name in COLUMNS[table]]
    return tuple(dict.fromkeys([*named, *(p.measure for p in study.published), *(c.measure for c in study.claims)]))


def verdicts_on(study: Study, measured: Sequence[Measured]) -> list[Verdict]:
    """Return a verdict for each claim and setting on whether the runs reproduce the ordering.

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
                by_seed = [{item.seed: item.value(claim.measure) for item in items} for items in runs]
                found.append(verdict_on_claim(claim, setting.label, by_seed))
    return found


def verdict_on_claim(claim: Claim, setting: str, by_seed: Sequence[Mapping[int, float]]) -> Verdict:
    """Return the verdict on a claim from the figures of each of its objectives.

    Args:
        claim: The paper's claim.
        setting: Label of the setting.
        by_seed: For each objective in ``claim.falls``, a dict from seeds to figures. If there are shared seeds, only these
            are used.

    Examples:
        >>> from calibrant.study import Claim
        >>> claim = Claim("b is lower than a", "a paper", "ece", ("a", "b"))
        >>> verdict_on_claim(claim, "digits", [{0: 0.10, 1: 0.12, 2: 0.11}, {0: 0.05, 1: 0.06, 2: 0.07}]).outcome
        'shows'
    """
    if not all(by_seed) or any(math.isnan(value) for values in by_seed for value in values.values()):
        return Verdict(claim, setting, None, None, ())
    # objectives with the same seed share the order of samples and the test rows, so their difference is less noisy than either
    shared = sorted(set.intersection(*map(set, by_seed)))
    if shared:  # compare means over the same seeds, so that a missing seed does not shift one of them
        by_seed = [{seed: values[seed] for seed in shared} for values in by_seed]
    means = tuple(float(np.mean(list(values.values()))) for values in by_seed)
    seen = all(after < before for before, after in pairwise(means))
    first, last = list(by_seed[0].values()), list(by_seed[-1].values())
    # without variation, neither test is defined
    paired = bool(shared) and len({a - b for a, b in zip(first, last, strict=True)}) > 1
    unpaired = min(len(first), len(last)) > 1 and max(len(set(first)), len(set(last))) > 1
    from scipy.stats import ttest_ind, ttest_rel

    return Verdict(
        claim,
        setting,
        seen,
        float(ttest_rel(first, last).pvalue) if paired else None,
        means,
        float(ttest_ind(first, last).pvalue) if unpaired else None,
        len(shared),
    )


def record_of(study: Study, measured: Sequence[Measured]) -> dict[str, Any]:
    """Return the record of a study as JSON data: the figures of every seed, the verdicts on claims, and the provenance.

    Args:
        study: The study. If it shows all tables, every measure is recorded, otherwise those of ``measures_needed``.
        measured: The result of ``collect``, not empty.
    """
    names = list(MEASURES) if {*COLUMNS} == {*study.columns} else measures_needed(study)
    figures: list[dict[str, Any]] = []
    for m in measured:
        values = {name: round(m.value(name), 6) for name in names}
        seconds = float(sum(run.record["seconds"] for run in m.runs))
        where = {"setting": m.setting, "objective": m.objective, "seed": m.seed, "n": len(m.before), "seconds": seconds}
        known = {name: value for name, value in values.items() if math.isfinite(value)}
        figures.append({**where, **known, "validation_uses": m.validation_uses})
    return {
        "study": study.name,
        "title": study.title,
        "about": " ".join(study.about.split()),
        "recipe": {"settings": [asdict(s) for s in study.settings], "training": dict(study.training)},
        "objectives": [asdict(objective) for objective in study.objectives],
        "figures": figures,
        "claims": [
            {
                "text": verdict.claim.text,
                "source": verdict.claim.source,
                "setting": verdict.setting,
                "verdict": verdict.outcome,
                "seen": verdict.seen,
                "p": verdict.p,
                "p_unpaired": verdict.p_unpaired,
            }
            for verdict in verdicts_on(study, measured)
        ],
        "provenance": {
            "versions": measured[0].runs[0].record["versions"],
            "devices": sorted({run.record["device"] for m in measured for run in m.runs}),
            "seconds": round(sum(figure["seconds"] for figure in figures), 1),
        },
    }
