"""Tests every claim of the papers on the records of the training runs, and writes the index of verdicts.

Run ``python -m papers.index`` to write ``papers/index.json``.
"""

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import false_discovery_control, nct, t

from calibrant.study import load_study
from calibrant.study.measures import DERIVED, MEASURES

Record = Mapping[str, Any]
Figures = dict[Any, float]  # seed, or cluster of sets → figure

FOLDER = Path(__file__).parent
LEVEL, POWER = 0.05, 0.8  # the false discovery rate, and the power of the detectable effect
LARGEST_MARGIN = 0.01
MAX_ERROR, MAX_ERROR_GAP = 0.65, 0.05  # beyond these test errors an objective is not comparable with the papers'
CHANCE = 0.05  # if all areas under the ROC curve are this close to 1/2, they do not distinguish the objectives
# Prefixes of measures of weights, training rows and validation rows, whose variance does not depend on test rows.
NO_TEST_ROWS = (
    "temperature", "apart", "classifier_norm", "logit_gap", "line", "nll_train", "tenth", "one", "two", "gamma", "none",
)  # fmt: skip


VERDICTS = {  # verdicts that are counted together
    "shows": ["shows"],
    "opposite": ["shows the opposite"],
    "none": ["no effect above the margin"],
    "unclear": ["unclear", "shows in part"],
    "unfit": ["not comparable", "not decidable"],
    "not run": ["not run"],
}
REGIMES = ("mathematics", "paper", "near", "here")  # explained in ``Line``


@dataclass(frozen=True)
class Place:
    """The data and network on which claims are tested.

    Args:
        name: Name of the data and network.
        data_set: Name of the data set, as in the lists of the papers' data sets in claims.toml.
        record: The record in ``papers/records`` that contains the figures.
        setting: The setting in this record.
        study: The study whose training runs are used; claims about objectives that are not part of it are not tested.
        scale: The scale of the study.
        command: The command that writes the record, if it is not this study.
        cost: The time that this command takes.
        exact: Whether the units are clusters of sets (exact sign-change test) instead of seeds (t-test).
        looks: How often the number of seeds was fixed. Seeds were added after verdicts had been read, so p-values are
            multiplied by this number.
        by_name: Whether only claims that name this place are tested on it, because another place has more seeds of the same data.
        of: The papers that use this network and training.
        chosen: Dict from kinds of penalty to the objectives with the strength that Wang et al. chose for these data.
    """

    name: str
    data_set: str
    record: str
    setting: str = ""
    study: str = ""
    scale: str = "cpu"
    command: str = ""
    cost: str = ""
    exact: bool = False
    looks: int = 1
    by_name: bool = False
    of: Sequence[str] = ()
    chosen: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, and how it is tested.

    Args:
        text: The claim.
        paper: Author and year.
        place: Table, figure or section.
        quote: The sentence in the paper, or the table cells that are compared.
        claimed: The data sets for which the paper makes the claim; empty for all data sets that it uses.
        falls: Objectives in the order in which the measure falls. Each entry is a list of labels, of which the first one in the
            record is used; ``$focal`` stands for ``Place.chosen["focal"]``.
        measures: The paper's own measure for each entry, a key of ``calibrant.study.measures.MEASURES``.
        printed: The effects that the paper prints, first minus last, in percentage points; temperatures as they are.
        margin: Differences within ± this margin count as no effect. It is half of the median of ``printed`` and at most .01 for
            fractions; it is stated if nothing is printed.
        added: The day on which the claim was added although the records were known; empty for the claims of 2026-11-23.
        looks: How often the seeds were fixed for its measures, if this differs from the place; otherwise 0.
        data: Names of places; empty for all places with training runs.
        also: Names of further places.
        but: Names of places for which the paper itself shows another order.
        same: Whether the paper claims that there is no difference.
        most_error: Networks with a larger test error are not comparable with the papers' networks.
        error_apart: Pairs of networks whose test errors differ by more than this are not comparable either.
        verdict: The verdict on a mathematical statement, which needs no runs.
        note: The reason for the verdict on a mathematical statement.
    """

    text: str
    paper: str
    place: str
    quote: str
    claimed: Sequence[str] = ()
    falls: Sequence[Sequence[str]] = ()
    measures: Sequence[str] = ()
    printed: Sequence[float] = ()
    margin: float = 0.0
    added: str = ""
    looks: int = 0
    data: Sequence[str] = ()
    also: Sequence[str] = ()
    but: Sequence[str] = ()
    same: bool = False
    most_error: float = MAX_ERROR
    error_apart: float = MAX_ERROR_GAP
    verdict: str = ""
    note: str = ""


@dataclass(frozen=True)
class Line:
    """The verdict on one claim at one place.

    Args:
        data: Name of the place, or "theory".
        regime: What the runs have in common with the paper: ``"mathematics"``; ``"paper"``, its data, network and training;
            ``"near"``, its data with another network or shorter training; ``"here"``, data for which it does not make the claim.
        verdict: ``"shows"``; ``"shows in part"`` (first and last differ as claimed, the order between is another); ``"shows the
            opposite"``; ``"no effect above the margin"``; ``"unclear"``; ``"not comparable"``; ``"not decidable"``; ``"not run"``.
        effect: Mean of first minus last, a fraction.
        low: Lower end of its 95 % interval, or None if there is no interval.
        high: Upper end.
        detectable: The effect that this number of seeds would have shown with probability .8; None for fewer than two seeds.
        p: Two-sided p-value, adjusted for looks (Bonferroni) and comparisons (Benjamini and Hochberg).
        units: Number of seeds, or of clusters of sets.
        test_rows: Whether the standard error accounts for the fact that all seeds are tested on the same rows; if not, the verdict
            applies to these rows only.
        note: Why a line is not comparable, or what a mathematical statement rests on.
        comparison: A number that is the same for all lines that rest on the same figures.
    """

    data: str
    regime: str
    verdict: str
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    detectable: float | None = None
    p: float | None = None
    units: int = 0
    test_rows: bool | None = None
    note: str = ""
    comparison: int | None = None

    def plain(self) -> dict[str, Any]:
        """Return the known values of the line as JSON data, with numbers rounded to five digits."""
        known = {key: value for key, value in vars(self).items() if value is not None and value != ""}
        if not self.units:
            del known["units"]
        return {key: float(f"{value:.5g}") if isinstance(value, float) else value for key, value in known.items()}


@dataclass(frozen=True)
class Comparison:
    """The figures on which a claim is tested at one place.

    Args:
        claim: The claim.
        place: The place.
        differences: The differences, first minus last, one per unit.
        ordered: Whether the means are in the claimed order.
        rows: Standard deviation over test sets of the part of the effect that all seeds have in common; 0 if not measured.
        key: A text that is equal for comparisons that rest on the same figures, which count as one test.
    """

    claim: Claim
    place: Place
    differences: tuple[float, ...]
    ordered: bool
    rows: float
    key: str

    def p(self) -> float:
        """Return the two-sided p-value, multiplied by the number of looks."""
        exact, rows = self.place.exact, self.rows
        return self._for_looks(sign_change_p(self.differences) if exact else paired_p(self.differences, rows=rows))

    def equivalence_p(self) -> float:
        """Return the p-value of two one-sided tests that the effect lies within ± the margin, multiplied by the number of looks.

        References:
            Schuirmann 1987.
        """
        sides = (self.differences, [-value for value in self.differences])
        margin = -self.claim.margin
        if self.place.exact:
            return self._for_looks(max(sign_change_p(side, above=margin) for side in sides))
        return self._for_looks(max(paired_p(side, above=margin, rows=self.rows) for side in sides))

    def _for_looks(self, p: float) -> float:
        return min(1.0, (self.claim.looks or self.place.looks) * p)


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads((FOLDER / "claims.toml").read_text(encoding="utf-8"))


@cache
def places() -> tuple[Place, ...]:
    """Return the data and networks on which claims are tested."""
    found = []
    for entry in _file()["data"]:
        scale = f" --scale {entry['scale']}" if "scale" in entry else ""
        found.append(Place(**{"command": f"calibrant study run {entry.get('study')}{scale}", **entry}))
    return tuple(found)


@cache
def claims() -> tuple[Claim, ...]:
    """Return the claims of the papers."""
    found = []
    for entry in _file()["claims"]:
        table = {**entry, **{key: _place_names(entry.get(key, ())) for key in ("data", "also", "but")}}
        if "measure" in table:  # one measure for all entries
            table["measures"] = [table.pop("measure")] * len(table["falls"])
        if "printed" in table:
            table["margin"] = margin_of(table["printed"], measure=table["measures"][0])
        found.append(Claim(**table))
    return tuple(found)


def _place_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of places, with groups replaced by their members."""
    groups = _file()["groups"]
    parts = [_place_names(groups[name]) if name in groups else (name,) for name in names]
    return tuple(name for part in parts for name in part)


def margin_of(printed: Sequence[float], *, measure: str) -> float:
    """Return half of the median of a paper's effects, at most .01 for fractions."""
    # the paper itself would not have reported an effect of half the usual size
    half = abs(float(np.median(printed))) / 2
    return min(half / 100, LARGEST_MARGIN) if MEASURES[measure].percent else half


def read_records(folder: Path = FOLDER / "records") -> dict[str, Record]:
    """Return the records in a folder by name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def index(records: Mapping[str, Record]) -> list[tuple[Claim, list[Line]]]:
    """Return every claim with a line for each place where it can be tested.

    A difference counts as shown if its p-value, adjusted over all distinct comparisons, is below .05. Otherwise, the effect
    counts as absent if the adjusted p-value of the equivalence test within the claim's margin is below .05.

    Args:
        records: Dict from names to records, written by ``calibrant study show STUDY --columns all --json`` or ``papers.posthoc``.
    """
    rows = {}  # (place, first entry, last entry) → deviation; an entry is an objective and its measure
    for row in records.get("test-rows", {"sets": ()})["sets"]:
        rows[row["place"], frozenset((row["first"], row["last"]))] = row["deviation"]
    found = [(claim, [_compared(claim, place, records.get(place.record), rows) for place in _places_of(claim)])
             for claim in claims()]  # fmt: skip
    compared = [comparison for _, pairs in found for _, comparison in pairs if comparison is not None]
    adjusted = _adjusted({one.key: one.p() for one in compared})
    # two claims with different margins on the same figures are two tests
    equivalent = _adjusted({(one.key, one.claim.margin): one.equivalence_p() for one in compared if one.claim.margin})
    numbers = {key: number for number, key in enumerate(adjusted, start=1)}
    made = []
    for claim, pairs in found:
        lines = [Line("theory", "mathematics", claim.verdict, note=claim.note)] if claim.verdict else []
        for line, one in pairs:
            if one is not None:
                within = equivalent.get((one.key, claim.margin), 1.0) < LEVEL
                line = replace(line, p=adjusted[one.key], comparison=numbers[one.key])
                line = replace(line, verdict=_verdict(line, one, within=within))
            lines.append(line)
        made.append((claim, lines))
    return made


def _places_of(claim: Claim) -> list[Place]:
    """Return the places where a claim is tested."""
    return [] if claim.verdict else [place for place in places() if _concerns(claim, place)]


def _concerns(claim: Claim, place: Place) -> bool:
    named = place.name in claim.data if claim.data else not (place.exact or place.by_name)
    if not (named or place.name in claim.also) or place.name in claim.but:
        return False
    return place.exact or all(
        _objectives(place.study, place.scale).intersection(one) for one in labels_at(claim, place)
    )


def labels_at(claim: Claim, place: Place) -> list[list[str]]:
    """Return the labels of each entry of a claim at a place; "" if the strength that the paper chose was not trained."""
    return [
        [place.chosen.get(label[1:], "") if label[0] == "$" else label for label in labels] for labels in claim.falls
    ]


def regime_of(claim: Claim, place: Place) -> str:
    """Return ``"paper"``, ``"near"`` or ``"here"``, which ``Line`` explains."""
    if place.data_set not in (claim.claimed or _file()["papers"][claim.paper]):
        return "here"
    return "paper" if claim.paper in place.of else "near"


@cache
def _objectives(study: str, scale: str) -> frozenset[str]:
    return frozenset(objective.label for objective in load_study(study, scale=scale).objectives)


def _compared(
    claim: Claim, place: Place, record: Record | None, rows: Mapping[Any, float]
) -> tuple[Line, Comparison | None]:
    """Return the line of a claim at a place, and the comparison on which it is tested, or None if it cannot be tested."""
    labels, figures, regime = [], [], regime_of(claim, place)
    for alternatives, measure in zip(labels_at(claim, place), claim.measures, strict=True):
        tried = [(label, figures_of(record, place, label, measure)) for label in alternatives]
        label, values = next((pair for pair in tried if pair[1]), (alternatives[0], {}))
        labels.append(label)
        figures.append(values)
    if record is None or not all(figures):
        return Line(place.name, regime, "not run"), None
    # paired by unit, because the objectives of a seed share their data, and the calibrators of a cluster share their rows
    common = sorted(set.intersection(*map(set, figures)))
    if not common:
        return Line(place.name, regime, "unclear", note="the objectives have no seed in common"), None
    means = [float(np.mean([values[unit] for unit in common])) for values in figures]
    line = Line(place.name, regime, "", means[0] - means[-1], units=len(common))
    if "ood_auroc" in claim.measures and max(means) < 0.5 + CHANCE:
        areas = ", ".join(f"{mean:.3f}" for mean in means)
        note = f"no objective distinguishes the images (areas under the ROC curve: {areas})"
        return replace(line, verdict="not decidable", note=note), None
    if not place.exact and (why := _incomparable(claim, place, record, (labels[0], labels[-1]))):
        return replace(line, verdict="not comparable", note=why), None
    ends = [f"{labels[end]} {claim.measures[end]}" for end in (0, -1)]
    tests_rows = not all(measure.startswith(NO_TEST_ROWS) for measure in claim.measures)
    shared = rows.get((place.name, frozenset(ends))) if tests_rows else 0.0
    differences = tuple(figures[0][unit] - figures[-1][unit] for unit in common)
    ordered = all(after < before for before, after in pairwise(means))
    key = " | ".join([place.name, *sorted(ends), str(len(common))])
    one = Comparison(claim, place, differences, ordered, 0.0 if place.exact else shared or 0.0, key)
    low, high = interval(differences, exact=place.exact, rows=one.rows) or (None, None)
    counted = place.exact or shared is not None
    return replace(line, low=low, high=high, detectable=detectable(differences, rows=one.rows), test_rows=counted), one


def figures_of(record: Record | None, place: Place, objective: str, measure: str) -> Figures:
    """Return seed → figure of an objective, or cluster of sets → mean figure of a calibrator.

    Args:
        record: The record.
        place: Whose setting is read.
        objective: Its label; without meaning over sets, whose networks are given.
        measure: A key of ``MEASURES``.
    """
    if record is None:
        return {}
    if place.exact:  # models that share test rows are one unit: each data set counts once
        groups: dict[Any, list[float]] = {}
        for row in record["sets"]:
            if measure in row:
                groups.setdefault(row["cluster"], []).append(row[measure])
        return {cluster: float(np.mean(values)) for cluster, values in groups.items()}
    _, parts, made = DERIVED.get(measure, (None, (measure,), float))
    return {
        row["seed"]: made(*(row[part] for part in parts))
        for row in record["figures"]
        if (row["setting"], row["objective"]) == (place.setting, objective) and all(part in row for part in parts)
    }


def _incomparable(claim: Claim, place: Place, record: Record, objectives: Sequence[str]) -> str:
    """Return why two objectives cannot be compared (large or different test errors), or "" if they can be compared."""
    found = [figures_of(record, place, label, "error") for label in objectives]
    errors = [float(np.mean(list(values.values()))) for values in found]
    if max(errors) > claim.most_error:
        return f"the test error is {max(errors):.0%}, above {claim.most_error:.0%}"
    if (gap := abs(errors[0] - errors[-1])) > claim.error_apart:
        return f"the test errors differ by {gap:.1%}, more than {claim.error_apart:.0%}"
    return ""


def _adjusted(p_values: Mapping[Any, float]) -> dict[Any, float]:
    """Return p-values adjusted by the method of Benjamini and Hochberg (1995), which is valid for positively dependent tests."""
    adjusted = false_discovery_control(list(p_values.values())) if p_values else ()
    return {key: float(p) for key, p in zip(p_values, adjusted, strict=True)}


def _verdict(line: Line, one: Comparison, *, within: bool) -> str:
    effect, differs = line.effect or 0.0, (line.p or 0.0) < LEVEL
    if one.claim.same:  # the claim is refuted only if the whole interval of the difference lies outside the margin
        low, high = line.low or 0.0, line.high or 0.0
        beyond = differs and max(low, -high) > one.claim.margin
        return "shows" if within else "shows the opposite" if beyond else "unclear"
    if differs:
        return "shows the opposite" if effect <= 0 else "shows" if one.ordered else "shows in part"
    return "no effect above the margin" if within else "unclear"


def paired_p(differences: Sequence[float], *, above: float | None = None, rows: float = 0.0) -> float:
    """Return the p-value of the t-test that the mean difference is 0, or that it is at most ``above``.

    For a single difference, or for equal differences, there is no t-statistic, and the exact sign-change test is used.

    Args:
        differences: One difference per seed.
        above: If given, the test is one-sided, with the hypothesis that the mean is at most this value.
        rows: Standard deviation over test sets of the part of the mean that all seeds have in common because they share test
            rows, and that more seeds do not average out. Its square is added to the squared standard error.
    """
    n = len(differences)
    if n < 2 or (np.ptp(differences) == 0 and not rows):
        value, sides = differences[0] - (above or 0.0), 2 if above is None else 1
        beyond = value != 0 if above is None else value > 0
        return sides * 0.5**n if beyond else 1.0  # this many of the 2ⁿ sign patterns are as extreme
    # n − 1 degrees of freedom are conservative, because Welch–Satterthwaite's formula would give more
    statistic = (float(np.mean(differences)) - (above or 0.0)) / standard_error(differences, rows=rows)
    return float(2 * t.sf(abs(statistic), n - 1) if above is None else t.sf(statistic, n - 1))


def standard_error(differences: Sequence[float], *, rows: float = 0.0) -> float:
    """Return the standard error of the mean of two or more differences, including the contribution of shared test rows."""
    return math.hypot(float(np.std(differences, ddof=1)) / math.sqrt(len(differences)), rows)


def sign_change_p(differences: Sequence[float], *, above: float | None = None) -> float:
    """Return the p-value of the exact sign-change test of one difference per cluster (Fisher 1935, §21).

    Under the hypothesis, each difference is as likely as its negative. All 2ⁿ sign patterns are compared with the observed one, so
    the two-sided p-value for n clusters cannot be below 2¹⁻ⁿ.

    Args:
        differences: One difference per independent unit, at most 20.
        above: If given, the test is one-sided, with the hypothesis that the centre is at most this value.
    """
    values = np.asarray(differences, dtype=np.float64) - (above or 0.0)
    signs = np.array(list(product((1.0, -1.0), repeat=len(values))))  # (2ⁿ, n)
    sums, observed = signs @ values, float(values.sum())
    slack = 1e-12 * float(np.abs(values).sum())  # sums of the same numbers in another order are equal
    extreme = np.abs(sums) >= abs(observed) - slack if above is None else sums >= observed - slack
    return float(extreme.mean())


def interval(differences: Sequence[float], *, exact: bool, rows: float) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean difference, or None with fewer than two seeds or six clusters."""
    n = len(differences)
    if n < (6 if exact else 2):
        return None
    if exact:
        return _end(differences), -_end([-value for value in differences])
    mean = float(np.mean(differences))
    half = float(t.ppf(1 - LEVEL / 2, n - 1)) * standard_error(differences, rows=rows)
    return mean - half, mean + half


def _end(differences: Sequence[float]) -> float:
    """Return the largest centre that the one-sided sign-change test rejects at half the level."""

    def excess(centre: float) -> float:
        return sign_change_p(differences, above=centre) - LEVEL / 2

    # excess is a step function of the centre, and brentq finds its jump
    return float(brentq(excess, min(differences) - 1e-9, max(differences), xtol=1e-9))


def detectable(differences: Sequence[float], *, rows: float) -> float | None:
    """Return the mean difference that a t-test at .05 on this many units finds with probability .8; None for a single unit."""
    if len(differences) < 2:
        return None
    return _noncentrality(len(differences)) * standard_error(differences, rows=rows)


@cache
def _noncentrality(units: int) -> float:
    """Return δ with P(|t| > its critical value) = .8 for a noncentral t with parameter δ."""
    limit = float(t.ppf(1 - LEVEL / 2, units - 1))
    # the lower tail adds less than 1e-3 to a power of .8; δ is below 4 × limit, even for two units
    return float(brentq(lambda delta: float(nct.sf(limit, units - 1, delta)) - POWER, 0.1, 4 * limit + 4))


def counts_of(claims: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the number of comparisons with each verdict, by paper and regime and in total, below the names of the columns.

    Each comparison counts once, even if several claims or papers rest on it.

    Args:
        claims: The claims as the index has them.
    """
    lines = [
        (claim["paper"], line["regime"], line["verdict"], line.get("comparison", (claim["number"], line["data"])))
        for claim in claims
        for line in claim["lines"]
    ]
    rows = [["paper", "rests on", "all", *VERDICTS]]
    for name in [*dict.fromkeys(claim["paper"] for claim in claims), "all papers"]:
        for regime in REGIMES:
            found = {line[2:] for line in lines if line[1] == regime and name in (line[0], "all papers")}
            groups = [{one for verdict, one in found if verdict in kinds} for kinds in VERDICTS.values()]
            if found:
                rows.append([name, regime, str(len({one for _, one in found})), *(str(len(group)) for group in groups)])
    return rows


def text_of(records: Mapping[str, Record]) -> str:
    """Return the index as JSON, with the command that produces the figures of each place, the counts, and one claim per line."""
    made = {place.name: f"{place.command} ({place.cost})" if place.cost else place.command for place in places()}
    rows = [
        {"number": number, "claim": claim.text, "paper": claim.paper, "place": claim.place, "quote": claim.quote,
         "measure": " → ".join(dict.fromkeys(claim.measures)), "margin": float(f"{claim.margin:.5g}"),
         "lines": [line.plain() for line in lines]}
        for number, (claim, lines) in enumerate(index(records), start=1)
    ]  # fmt: skip
    counts, lines = (
        ",\n".join(json.dumps(row, ensure_ascii=False) for row in part) for part in (counts_of(rows), rows)
    )
    places_made = json.dumps(made, ensure_ascii=False, indent=1)
    return f'{{"places": {places_made},\n"counts": [\n{counts}\n],\n"claims": [\n{lines}\n]}}\n'


if __name__ == "__main__":
    (FOLDER / "index.json").write_text(text_of(read_records()), encoding="utf-8")
