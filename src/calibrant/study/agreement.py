"""Comparison of a paper's figures with ours: which orderings of its table reproduce."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated

from calibrant._core.constraints import Kind, checked
from calibrant.study.measures import MEASURES
from calibrant.study.recipe import AnyStudy
from calibrant.study.tables import Summary

__all__ = ["Agreement", "agreements", "printed_beside"]

AnySummary = Annotated[Summary, Kind(Summary, "pass one of study.summarise")]
ONE = "T = 1"  # compared with fitted temperatures: above 1 the model is over-confident, below under-confident


@dataclass(frozen=True)
class Agreement:
    """Which pairs in one column of a paper's table have the same order here.

    Args:
        setting: Label of our setting.
        measure: The column.
        agree: Pairs of objectives, the paper's larger first, with the same order here.
        disagree: Pairs of objectives with another order here.
    """

    setting: str
    measure: str
    agree: tuple[tuple[str, str], ...]
    disagree: tuple[tuple[str, str], ...]


@checked
def printed_beside(study: AnyStudy, line: AnySummary) -> dict[str, float]:
    """Return the figures printed in the paper for one line of our table: measure → value.

    Args:
        study: The study.
        line: A line of its table.
    """
    like = {setting.label: setting.like for setting in study.settings}
    places = {"", line.setting, like.get(line.setting) or line.setting}
    return {p.measure: p.value for p in study.published if p.objective == line.objective and p.setting in places}


@checked
def agreements(study: AnyStudy, lines: Sequence[AnySummary]) -> list[Agreement]:
    """Return for each setting and measure which pairs of objectives have the paper's order; ties in print are left out.

    For temperatures, T = 1 is compared as one more objective, which tells over- from under-confidence.

    Args:
        study: The study.
        lines: The result of ``summarise``, with the published measures.
    """
    found = []
    for setting in dict.fromkeys(line.setting for line in lines):
        rows = [(line, printed_beside(study, line)) for line in lines if line.setting == setting]
        for measure in MEASURES:
            both = {line.objective: (p[measure], line.mean[measure]) for line, p in rows if measure in p}
            if both and measure.startswith("temperature"):
                both[ONE] = (1.0, 1.0)
            pairs = [pair if both[pair[0]][0] > both[pair[1]][0] else pair[::-1] for pair in combinations(both, 2)]
            pairs = [(a, b) for a, b in pairs if both[a][0] != both[b][0]]
            if pairs:
                same = tuple(pair for pair in pairs if both[pair[0]][1] > both[pair[1]][1])
                found.append(Agreement(setting, measure, same, tuple(pair for pair in pairs if pair not in same)))
    return found
