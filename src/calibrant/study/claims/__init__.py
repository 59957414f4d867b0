"""The papers' claims as data: what each says, on which figures it is tested, and the verdict, corrected for the number of tests."""

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from calibrant._core.files import error_boundary
from calibrant.errors import FileFormatError
from calibrant.study._checks import record_of_table
from calibrant.study.claims._inference import (
    LEVEL,
    benjamini_hochberg,
    detectable,
    equivalence_p,
    interval,
    over_shared_units,
    paired_p,
    sign_change_p,
    units_needed,
)
from calibrant.study.load import load_study
from calibrant.study.measures import DERIVED, MEASURES, geometric_mean
from calibrant.study.recipe import resource

__all__ = [
    "DECIDED",
    "ClaimLine",
    "Faithful",
    "Gain",
    "PaperClaim",
    "Place",
    "Threshold",
    "benjamini_hochberg",
    "claim_index",
    "detectable",
    "equivalence_p",
    "faithfulness",
    "focal_gains",
    "focal_threshold",
    "over_shared_units",
    "paired_p",
    "paper_claims",
    "places",
    "read_records",
    "sign_change_p",
]

Record = Mapping[str, Any]
Figures = dict[Any, float]  # seed or set → figure

CORES, HOURS = 2, 8.0  # what "decidable" allows
LARGEST_MARGIN = 0.01
THEORY = "theory"
NO_EFFECT = "no effect above the margin"
DECIDED = ("shows", "shows in part", "shows the opposite", NO_EFFECT)
ROWS = "test-rows"  # the record of what resampled test rows do
_BOTH = (("first", "last"), ("last", "first"))
# Starts of measures of weights, of training rows and of validation rows.
NO_TEST_ROWS = (
    "temperature",
    "apart",
    "classifier_norm",
    "logit_gap",
    "line",
    "nll_train",
    "tenth",
    "one",
    "two",
    "gamma",
)
UNFAITHFUL = "no faithful regime: these features rank the objectives otherwise than"  # the networks that follow


@dataclass(frozen=True)
class Place:
    """Data and network on which claims are tested.

    Args:
        name: Data and network.
        record: The record that holds the figures.
        setting: The setting in that record.
        study: The study that trains there: claims about objectives that it does not have are not tested there.
        scale: Its scale.
        command: What makes the record, if not that study.
        cost: What that takes.
        two_cores: Whether a training fits two cores of a CPU.
        exact: Whether the units are clusters of sets (exact sign-change test) instead of seeds (t-test).
        looks: How often a number of seeds was fixed: more were trained after verdicts had been read, so p-values count as often.
        like: Names of the places with whole networks on the same data, of frozen features.
        by_name: Whether only claims that name it are tested there: others are tested on more seeds of the same data.
        test: The pools that its test rows come from: places with a pool in common share test rows.
        fresh: Whether its first runs came after the margins of 2026-11-23 were set.
    """

    name: str
    record: str
    setting: str = ""
    study: str = ""
    scale: str = "cpu"
    command: str = ""
    cost: str = ""
    two_cores: bool = True
    exact: bool = False
    looks: int = 1
    like: tuple[str, ...] = ()
    by_name: bool = False
    test: tuple[str, ...] = ()
    fresh: bool = False


@dataclass(frozen=True)
class PaperClaim:
    """One claim of a paper, as it is tested.

    Args:
        text: The claim.
        paper: Author and year.
        place: Table, figure or section.
        falls: Objectives in the order in which the measure falls. Each entry lists labels, of which the first that a record
            has is taken, because the papers choose other coefficients for other data.
        measures: The paper's own measure of each entry: keys of ``study.measures.MEASURES``.
        printed: The effects that the paper prints, first minus last, in per cent; temperatures as they are.
        margin: Differences within ± this count as none: half of the middle one of ``printed``, at most .01 of a fraction; stated
            where nothing is printed.
        added: The day on which it was added with the records known; empty for the claims of 2026-11-23, whose margins were set
            before the first runs of ``fresh`` places.
        looks: How often the seeds of its measures were fixed, if otherwise than the place's; 0 for as often.
        data: Names of the places, in the file also of groups of them; empty for all trainings.
        also: Names of further places.
        but: Names of places where the paper itself shows another order.
        same: Whether the paper claims that there is no difference: the opposite is one beyond the margin.
        most_error: Networks with a larger test error are not comparable with the papers' (up to .53).
        error_apart: Nor are pairs whose test errors differ by more than this.
        verdict: Of a mathematical statement, which has no runs.
        note: Why, for such a statement.
    """

    text: str
    paper: str
    place: str
    falls: tuple[tuple[str, ...], ...] = ()
    measures: tuple[str, ...] = ()
    printed: tuple[float, ...] = ()
    margin: float = 0.0
    added: str = ""
    looks: int = 0
    data: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    but: tuple[str, ...] = ()
    same: bool = False
    most_error: float = 0.65
    error_apart: float = 0.05
    verdict: str = ""
    note: str = ""


@dataclass(frozen=True)
class ClaimLine:
    """One claim on one place: a row of the index.

    Args:
        claim: The claim as text.
        paper: Author and year.
        place: Table, figure or section of the paper.
        data: Data and network.
        measure: The paper's own measure; where calibrators are compared, that of the first and of the last.
        verdict: ``"shows"``, ``"shows in part"`` (first and last differ as claimed, the order between is another), ``"shows the
            opposite"``, ``"no effect above the margin"``, ``"not told apart"``, ``"not comparable"`` or ``"not run"``.
        p: Two-sided p-value of first against last: over seeds by the paired t-test, whose standard error has the part of shared
            test rows where that was measured (``rows``), over clusters of sets by exact sign changes. 1 for a single seed and
            where nothing was tested; None for theory.
        p_adjusted: p times the place's looks (Bonferroni), after Benjamini and Hochberg over the distinct comparisons of the
            index; None where nothing was tested.
        effect: Mean of first minus last, a fraction.
        low: Lower end of the effect's 95 % interval, as the test has it; None where there is none.
        high: Its upper end.
        detectable: The effect that as many units would have shown with probability .8; None for fewer than two.
        decidable: Whether two cores could decide it in eight hours; over sets, whether they allow an adjusted p below .05.
        seeds: Number of seeds, or of sets.
        margin: See ``PaperClaim``.
        margin_set: "before" the first runs there, or "after" some of its records were known.
        inside_margin: Whether the effect, be it shown or not, is smaller than the margin.
        test: The pools that the test rows come from.
        same_test: Names of the other places with a pool in common.
        rows: Standard deviation of the effect over test sets, of the part that all seeds have in common, by resampled test rows
            of trainings whose outputs were kept; 0 if the effect rests on no test row; None where it was not measured.
        beyond: Whether the verdict counts other test rows: by ``rows``, or since other sets are other rows; if not, it speaks of
            these test rows. None where there is no verdict of a test.
        p_equivalence: Adjusted p-value of the tests that the effect lies within the margin.
        values: (objective, mean) in the claimed order.
        note: Why a line is not comparable, than which networks its features rank otherwise, or what a mathematical
            statement rests on.
        command: What runs what is missing.
        cost: What that takes.
        comparison: Equal for lines that rest on the same numbers, which count as one test.
    """

    claim: str
    paper: str
    place: str
    data: str
    measure: str
    verdict: str
    p: float | None = None
    p_adjusted: float | None = None
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    detectable: float | None = None
    decidable: bool = True
    seeds: int = 0
    margin: float = 0.0
    margin_set: str = ""
    inside_margin: bool | None = None
    test: tuple[str, ...] = ()
    same_test: tuple[str, ...] = ()
    rows: float | None = None
    beyond: bool | None = None
    p_equivalence: float | None = None
    values: tuple[tuple[str, float], ...] = ()
    note: str = ""
    command: str = ""
    cost: str = ""
    comparison: str = ""

    def plain(self) -> dict[str, Any]:
        """Return the line as JSON data, without the means and the key of the comparison."""
        fields = asdict(self)
        del fields["values"], fields["comparison"]
        return fields


def paper_claims() -> list[PaperClaim]:
    """Return the claims of the papers."""
    found = []
    for entry in _claims_file()["claims"]:
        table = {**entry, **{key: _place_names(entry.get(key, ())) for key in ("data", "also", "but")}}
        if "measure" in table:  # one for all entries
            table["measures"] = [table.pop("measure")] * len(table["falls"])
        if "printed" in table:
            table["margin"] = margin_of(table["printed"], measure=table["measures"][0])
        found.append(record_of_table(PaperClaim, table, where="the claims"))
    return found


def _place_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return names of places, those of a group in its place."""
    groups = _claims_file()["groups"]
    parts = [_place_names(groups[name]) if name in groups else (name,) for name in names]
    return tuple(name for part in parts for name in part)


def margin_of(printed: Sequence[float], *, measure: str) -> float:
    """Return half of the middle one of a paper's effects, at most .01 for fractions.

    Examples:
        >>> round(margin_of([0.08, 0.44, 0.79, 0.66], measure="ece_by_ece"), 5)
        0.00275
    """
    # half an effect of the usual size is one that the paper itself would not have named
    half = abs(float(np.median(printed))) / 2
    return min(half / 100, LARGEST_MARGIN) if MEASURES[measure].percent else half


@cache
def places() -> tuple[Place, ...]:
    """Return the data and networks on which claims are tested."""
    found = []
    for entry in _claims_file()["data"]:
        scale = f" --scale {entry['scale']}" if "scale" in entry else ""
        table = {"command": f"calibrant study run {entry.get('study')}{scale}", **entry}
        found.append(record_of_table(Place, table, where="the places of claims"))
    return tuple(found)


def claim_index(records: Mapping[str, Record] | None = None) -> list[ClaimLine]:
    """Return the verdict on every claim on every place where it can be tested.

    A difference counts as shown if its p-value, adjusted after Benjamini and Hochberg over all distinct comparisons of the
    index, is below .05; otherwise the effect counts as absent if the equivalence tests within the claim's margin, adjusted in
    the same way, are.

    Args:
        records: Name → record written by ``record_of``, or by ``benchmarks.posthoc``. If left out, the package's own.

    Examples:
        >>> lines = claim_index()
        >>> {line.verdict for line in lines if line.data == "theory"} <= {"shows", "shows the opposite"}
        True
    """
    kept = packaged_records() if records is None else records
    rows = rows_of(kept)
    found: list[tuple[ClaimLine, _Compared | None]] = []
    for claim in paper_claims():
        if claim.verdict:
            line = ClaimLine(claim.text, claim.paper, claim.place, THEORY, THEORY, claim.verdict, note=claim.note)
            found.append((line, None))
        else:
            concerned = [place for place in places() if _concerns(claim, place)]
            found += [_compared(claim, place, kept.get(place.record), rows) for place in concerned]
    otherwise: dict[str, list[str]] = {}
    for one in faithfulness(kept):
        if not one.holds:
            otherwise.setdefault(one.features, []).append(one.network)
    notes = {features: f"{UNFAITHFUL} {'; '.join(networks)}" for features, networks in otherwise.items()}
    return [replace(line, note=line.note or notes.get(line.data, "")) for line in _with_verdicts(found)]


def _concerns(claim: PaperClaim, place: Place) -> bool:
    named = place.name in claim.data if claim.data else not (place.exact or place.by_name)
    if not (named or place.name in claim.also) or place.name in claim.but:
        return False
    known = frozenset() if place.exact else _objectives_of_study(place.study, place.scale)
    return place.exact or all(known.intersection(labels) for labels in claim.falls)


@cache
def _objectives_of_study(study: str, scale: str) -> frozenset[str]:
    return frozenset(objective.label for objective in load_study(study, scale=scale).objectives)


@dataclass(frozen=True)
class _Compared:
    """What a line is tested on: differences per unit, and whether the means between are in the claimed order."""

    claim: PaperClaim
    place: Place
    differences: tuple[float, ...]
    ordered: bool
    seconds: float
    rows: float  # of the shared test rows; 0 where it was not measured

    @cached_property
    def p(self) -> float:
        return sign_change_p(self.differences) if self.place.exact else paired_p(self.differences, rows=self.rows)

    def corrected(self, p: float) -> float:
        """Return a p-value times the looks (Bonferroni)."""
        return min(1.0, (self.claim.looks or self.place.looks) * p)


def _compared(
    claim: PaperClaim, place: Place, record: Record | None, rows: Mapping[Any, float]
) -> tuple[ClaimLine, _Compared | None]:
    """Return the line of a claim at a place, and what it is tested on, if it can be."""
    measure = " → ".join(dict.fromkeys((claim.measures[0], claim.measures[-1])))
    line = ClaimLine(
        claim.text, claim.paper, claim.place, place.name, measure, "not run", p=1.0,
        decidable=place.two_cores, margin=claim.margin, command=place.command, cost=place.cost,
        margin_set="before" if place.fresh and not claim.added else "after", test=place.test,
        same_test=tuple(p.name for p in places() if p.name != place.name and {*p.test} & {*place.test}),
    )  # fmt: skip
    labels, figures = _chosen(claim, place, record)
    if record is None or not all(figures):
        return line, None
    # paired by unit: a seed's objectives share their data, a cluster's calibrators their rows
    figures = over_shared_units(figures)
    common = set.intersection(*map(set, figures))
    values = tuple((label, float(np.mean([*found.values()]))) for label, found in zip(labels, figures, strict=True))
    units = len(record["sets"]) if place.exact else len(common)
    line = replace(line, values=values, seeds=units, effect=values[0][1] - values[-1][1])
    if not common:
        return replace(line, verdict="not told apart", note="no seed in common"), None
    ends = (labels[0], labels[-1])
    if not place.exact and (why := _incomparable(claim, place, record, ends)):
        return replace(line, verdict="not comparable", decidable=False, note=why), None
    key = sorted([f"{labels[0]} {claim.measures[0]}", f"{labels[-1]} {claim.measures[-1]}"])
    shared = None if place.exact else rows_of_line(claim, place, ends, rows)
    differences = tuple(figures[0][unit] - figures[-1][unit] for unit in figures[0])
    ordered = all(after < before for (_, before), (_, after) in pairwise(values))
    tested = _Compared(claim, place, differences, ordered, _seconds_a_unit(record, place, ends), shared or 0.0)
    low, high = interval(differences, exact=place.exact, rows=tested.rows) or (None, None)
    line = replace(
        line,
        p=tested.p,
        detectable=detectable(differences, rows=tested.rows),
        low=low,
        high=high,
        inside_margin=abs(values[0][1] - values[-1][1]) < claim.margin,
        rows=shared,
        beyond=place.exact or shared is not None,
        comparison=" | ".join([place.name, *key, str(units)]),  # other units are another test
    )
    return line, tested


def _chosen(claim: PaperClaim, place: Place, record: Record | None) -> tuple[list[str], list[Figures]]:
    """Return the label and the figures that the record has for each entry of a claim; empty where it has none."""
    labels: list[str] = []
    figures: list[Figures] = []
    for alternatives, measure in zip(claim.falls, claim.measures, strict=True):
        tried = [(label, figures_of(record, place, label, measure)) for label in alternatives]
        label, found = next((pair for pair in tried if pair[1]), (alternatives[0], {}))
        labels.append(label)
        figures.append(found)
    return labels, figures


def figures_of(record: Record | None, place: Place, objective: str, measure: str) -> Figures:
    """Return seed → figure of an objective, or cluster of sets → mean figure of a calibrator.

    Args:
        record: The record.
        place: Whose setting is read.
        objective: Its label; without meaning over sets, whose networks are given.
        measure: A key of ``study.measures.MEASURES``.
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


def _incomparable(claim: PaperClaim, place: Place, record: Record, objectives: Sequence[str]) -> str:
    found = [figures_of(record, place, label, "error") for label in objectives]
    errors = [float(np.mean(list(errors.values()))) for errors in found]
    largest, apart = max(errors), abs(errors[0] - errors[-1])
    if largest > claim.most_error:
        return f"test error {largest:.0%}, above {claim.most_error:.0%}"
    if apart > claim.error_apart:
        return f"test errors {apart:.1%} apart, above {claim.error_apart:.0%}"
    return ""


def _seconds_a_unit(record: Record | None, place: Place, objectives: Sequence[str]) -> float:
    if record is None or place.exact:
        return 0.0
    rows = [
        row["seconds"]
        for row in record["figures"]
        if row["setting"] == place.setting and row["objective"] in objectives
    ]
    return float(np.mean(rows)) * len(set(objectives)) if rows else 0.0


def rows_of(records: Mapping[str, Record]) -> dict[tuple[str, str, str], float]:
    """Return (place, first entry, last entry) → standard deviation of the effect that shared test rows give all seeds alike.

    An entry is an objective and its measure: "Cross-entropy ece".
    """
    record = records.get(ROWS, {"sets": ()})
    return {(row["place"], *(row[end] for end in ends)): row["deviation"] for row in record["sets"] for ends in _BOTH}


def rows_of_line(claim: PaperClaim, place: Place, labels: Sequence[str], rows: Mapping[Any, float]) -> float | None:
    """Return what ``ClaimLine.rows`` holds: None where it was not measured."""
    ends = [f"{labels[i]} {claim.measures[i]}" for i in (0, -1)]
    return 0.0 if not any(map(rests_on_test_rows, claim.measures)) else rows.get((place.name, *ends))


def rests_on_test_rows(measure: str) -> bool:
    """Return whether a measure is one of test rows, instead of weights, training or validation rows."""
    return not measure.startswith(NO_TEST_ROWS) and measure != "none"


def _with_verdicts(found: Sequence[tuple[ClaimLine, _Compared | None]]) -> list[ClaimLine]:
    """Return the lines with p-values adjusted over distinct comparisons, and their verdicts."""
    tested = [(line, item) for line, item in found if item is not None]
    adjusted = _adjusted({line.comparison: item.corrected(item.p) for line, item in tested})
    # The margin belongs to the comparison's test: two claims with other margins on the same numbers are two tests.
    within = {
        (line.comparison, margin): item.corrected(
            equivalence_p(item.differences, margin=margin, exact=item.place.exact, rows=item.rows)
        )
        for line, item in tested
        if (margin := item.claim.margin)
    }
    equivalent = _adjusted(within)
    attainable = list({line.comparison: item.p for line, item in tested}.values())
    decided = []
    for line, item in found:
        if item is not None:
            p, p_equivalence = adjusted[line.comparison], equivalent.get((line.comparison, item.claim.margin))
            line = replace(line, p_adjusted=p, p_equivalence=p_equivalence)
            possible = _decidable(item, attainable)
            line = replace(line, verdict=_verdict_of_line(line, item), decidable=possible)
        decided.append(line)
    return decided


def _adjusted(p_values: Mapping[Any, float]) -> dict[Any, float]:
    return dict(zip(p_values, benjamini_hochberg(list(p_values.values())), strict=True))


def _verdict_of_line(line: ClaimLine, item: _Compared) -> str:
    differs = line.p_adjusted is not None and line.p_adjusted < LEVEL
    within = line.p_equivalence is not None and line.p_equivalence < LEVEL
    if item.claim.same:  # a difference inside the margin is none that the claim denies
        beyond = differs and line.effect is not None and abs(line.effect) > line.margin
        return "shows" if within else "shows the opposite" if beyond else "not told apart"
    if differs:
        if line.effect is not None and line.effect <= 0:
            return "shows the opposite"
        return "shows" if item.ordered else "shows in part"
    return NO_EFFECT if within else "not told apart"


def _decidable(item: _Compared, p_values: Sequence[float]) -> bool:
    """Return whether two cores decide a comparison: by their hours for seeds, by the least possible p for clusters of sets.

    Where test rows are shared, no number of seeds may do.
    """
    if item.place.exact:
        least = 2.0 ** (1 - len(item.differences))
        others = list(p_values)
        others.remove(item.p)
        return benjamini_hochberg([least, *others])[0] < LEVEL
    if not item.place.two_cores or len(item.differences) < 2:
        return item.place.two_cores
    effect = max(abs(float(np.mean(item.differences))), item.claim.margin)
    # the seeds that the observed effect, or the margin if that is larger, needs for a power of .8
    needed = units_needed(item.differences, effect=effect, rows=item.rows)
    return needed is not None and needed * item.seconds / 3600 / CORES <= HOURS


@cache
def _claims_file() -> dict[str, Any]:
    return tomllib.loads(resource("claims", "claims.toml"))


def read_records(folder: Path) -> dict[str, Record]:
    """Return the records of studies in a folder, by the name of their file; other JSON files are left out.

    Args:
        folder: Where ``calibrant study show STUDY --record FILE`` wrote them.

    Raises:
        FileFormatError: If a file is not JSON, a record has no figures or a broken row, or the folder has no record.
    """
    found: dict[str, Record] = {}
    for path in sorted(folder.glob("*.json")):
        with error_boundary(f"JSON in {path}", "something else", "write the record again"):
            record = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(record, dict) and ("objectives" in record or "sets" in record):
            wanted, got = _fault_of(record, path.stem)
            if wanted:
                raise FileFormatError(f"{wanted} in {path}", got, "write the record again")
            found[path.stem] = record
    if not found:
        remedy = "write some there with calibrant study show STUDY --record FILE"
        raise FileFormatError(f"records of studies (*.json) in {folder}", "none", remedy)
    return found


def _fault_of(record: Record, name: str) -> tuple[str, str]:
    """Return what a record should have and what it has instead: figures, and in each row what every comparison reads."""
    if not {"figures", "sets"} & record.keys():
        return "figures", "a record without them"
    if name not in {ROWS, *(place.record for place in places())}:  # others in the folder are none of its business
        return "", ""
    kind = "figures" if "figures" in record else "sets"
    of_sets = ("place", "first", "last", "deviation") if name == ROWS else ("cluster",)
    needed = ("setting", "objective", "seed", "seconds", "error") if kind == "figures" else of_sets
    if not isinstance(record[kind], list):
        return f"a list of {kind}", type(record[kind]).__name__
    seen = set()
    for number, row in enumerate(record[kind], start=1):
        where = f"in row {number} of {kind}"
        missing = [key for key in needed if key not in row] if isinstance(row, dict) else needed
        if missing:
            return f"{', '.join(missing)} {where}", "a row without"
        for key in row.keys() & {*MEASURES, "seconds", "deviation"}:
            if not isinstance(row[key], int | float) or not math.isfinite(row[key]):
                return f"a number for {key} {where}", f"{row[key]!r}"
        unit = tuple(str(row[key]) for key in needed[:3])
        if kind == "figures" and unit in seen:
            return f"a seed once {where}", f"{', '.join(unit)} again"
        seen.add(unit)
    return "", ""


def packaged_records() -> dict[str, Record]:
    """Return the figures that the index rests on: those of the records that the project publishes."""
    found: dict[str, Record] = json.loads(resource("claims", "records.json"))
    return found


# Measures of a gain; after scaling as the papers do, by the T of least ECE on validation rows.
RAW, AFTER = "ece", "ece_by_ece"
DRAWS = 2000  # resampled data sets behind the interval of the threshold
FAITHFUL = 0.8  # the least rank correlation of a faithful regime


@dataclass(frozen=True)
class Gain:
    """The gain of a focal loss over cross-entropy on one data set.

    Args:
        data: Data and network.
        gamma: γ of the focal loss.
        seeds: Number of seeds shared with cross-entropy.
        temperature: Temperature fitted to cross-entropy, geometric mean over seeds.
        raw: ECE of cross-entropy minus that of the focal loss, before calibration: mean, low, high; the 95 % t-interval of
            the mean over seeds, NaN for one seed.
        after: The same after temperature scaling of both by ECE; NaN where no seed has it.
    """

    data: str
    gamma: float
    seeds: int
    temperature: float
    raw: tuple[float, float, float]
    after: tuple[float, float, float]


def focal_gains(records: Mapping[str, Record]) -> list[Gain]:
    """Return the gain of every focal loss on every data set that has a record with cross-entropy, comparable by its test error.

    Args:
        records: As for ``claim_index``.
    """
    found = []
    for place in places():
        record = records.get(place.record)
        if record is None or place.by_name or "objectives" not in record:
            continue
        errors = figures_of(record, place, "Cross-entropy", "error")
        if not errors or float(np.mean([*errors.values()])) > PaperClaim.most_error:
            continue
        for objective in record["objectives"]:
            loss = objective["loss"]
            if loss["type"] != "FocalLoss":
                continue
            pairs = {
                measure: _gains_over_seeds(record, place, str(objective["label"]), measure) for measure in (RAW, AFTER)
            }
            temperatures = figures_of(record, place, "Cross-entropy", "temperature")
            if pairs[RAW] and temperatures:
                mean = geometric_mean([*temperatures.values()])
                ends = [interval(gains) or (math.nan, math.nan) for gains in pairs.values()]
                means = [float(np.mean(gains)) if gains else math.nan for gains in pairs.values()]
                raw, after = ((one, *two) for one, two in zip(means, ends, strict=True))
                found.append(Gain(place.name, float(loss["gamma"]), len(pairs[RAW]), mean, raw, after))
    return found


@dataclass(frozen=True)
class Faithful:
    """How a head on frozen features ranks objectives, against a network on the same data that was trained whole.

    Args:
        features: Place of the features.
        network: Place of the network.
        objectives: Number of objectives that both have.
        ece: Spearman's correlation of their mean raw ECE.
        temperature: That of their mean T.
    """

    features: str
    network: str
    objectives: int
    ece: float
    temperature: float

    @property
    def holds(self) -> bool:
        """Whether both are .8 or more."""
        return min(self.ece, self.temperature) > FAITHFUL - 1e-9  # ranks give .8 as .7999999999999999


def faithfulness(records: Mapping[str, Record]) -> list[Faithful]:
    """Return how faithful each place of frozen features is to each place that it is ``like``; those without figures are left out.

    Args:
        records: As for ``claim_index``.
    """
    from scipy.stats import spearmanr

    found, by_name = [], {place.name: place for place in places()}
    for place in by_name.values():
        for other in (by_name[name] for name in place.like):
            here, there = (_means(records.get(one.record), one) for one in (place, other))
            labels = sorted(here.keys() & there.keys())
            if len(labels) > 2:
                pairs = [([here[label][i] for label in labels], [there[label][i] for label in labels]) for i in (0, 1)]
                found.append(Faithful(place.name, other.name, len(labels), *(float(spearmanr(*p)[0]) for p in pairs)))
    return found


def _means(record: Record | None, place: Place) -> dict[str, tuple[float, float]]:
    """Return objective → mean raw ECE and mean T."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for row in () if record is None else record["figures"]:
        if row["setting"] == place.setting and "temperature" in row:
            groups.setdefault(row["objective"], []).append((row["ece"], row["temperature"]))
    return {label: (float(np.mean(rows, axis=0)[0]), float(np.mean(rows, axis=0)[1])) for label, rows in groups.items()}


def _gains_over_seeds(record: Record, place: Place, objective: str, measure: str) -> list[float]:
    base = figures_of(record, place, "Cross-entropy", measure)
    focal = figures_of(record, place, objective, measure)
    return [base[seed] - focal[seed] for seed in sorted(base.keys() & focal.keys())]


@dataclass(frozen=True)
class Threshold:
    """The temperature fitted to cross-entropy above which a focal loss lowers ECE.

    Args:
        temperature: Where the line of the gain over log T crosses 0; NaN if it does not increase.
        low: 2.5 % quantile over resampled data sets.
        high: 97.5 % quantile.
        sets: Number of data sets.
    """

    temperature: float
    low: float
    high: float
    sets: int


def focal_threshold(gains: Sequence[Gain], *, gamma: float = 3.0, after: bool = False, seed: int = 0) -> Threshold:
    """Return where the least-squares line of the gain over log T crosses 0, with an interval over data sets.

    Data sets are resampled with replacement; a resample whose line does not increase has no crossing (an infinite T).

    Args:
        gains: The result of ``focal_gains``.
        gamma: γ of the focal loss.
        after: Whether to use the gain after temperature scaling.
        seed: Seed of the resampling.
    """
    chosen = [gain for gain in gains if gain.gamma == gamma and not (after and math.isnan(gain.after[0]))]
    x = np.log([gain.temperature for gain in chosen])
    y = np.array([(gain.after if after else gain.raw)[0] for gain in chosen])
    if len(chosen) < 3:
        return Threshold(math.nan, math.nan, math.nan, len(chosen))
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, len(x), size=(DRAWS, len(x)))
    # through two data sets any line fits: such a resample tells nothing of the spread
    drawn = [_crossing(x[row], y[row]) for row in rows if len(set(row)) > 2]
    low, high = (float(np.quantile(drawn, q, method="inverted_cdf")) for q in (0.025, 0.975))
    crossing = _crossing(x, y)
    return Threshold(crossing if math.isfinite(crossing) else math.nan, low, high, len(chosen))


def _crossing(x: np.ndarray, y: np.ndarray) -> float:
    """Return exp(x₀), x₀ the zero of the least-squares line; infinity if its slope is not positive."""
    # the line ȳ + b (x − x̄) is 0 at x̄ − ȳ/b; e^50 stands for a crossing out of reach
    spread = float(((x - x.mean()) ** 2).sum())
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread if spread > 0 else 0.0
    return math.exp(min(50.0, float(x.mean()) - float(y.mean()) / slope)) if slope > 0 else math.inf
