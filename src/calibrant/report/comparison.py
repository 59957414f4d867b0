"""The comparison of the models of a report that were evaluated on the same rows."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations

from calibrant.data.pairs import are_events
from calibrant.errors import InputError
from calibrant.evaluate.compare import Comparison, compared
from calibrant.report.finding import Finding
from calibrant.report.model import Claims, Model
from calibrant.report.wording import listed

LEVEL = 0.95
MOST_PAIRS = 6  # of models that are compared: more than four models would fill the first screen with sentences


@dataclass(frozen=True)
class Pair:
    """Two models of a report that were evaluated on the same rows.

    Args:
        a: Name of one.
        b: Name of the other.
        calibrated: Whether a model with a calibrator is compared as calibrated by it.
        found: Their comparison, at a level that accounts for the number of pairs.
    """

    a: str
    b: str
    calibrated: bool
    found: Comparison


def pairs_of(models: Sequence[Model]) -> list[Pair]:
    """Return the comparison of each pair of a few models on the rows that both were evaluated on; empty where none share them.

    Args:
        models: As for a report; each as it would be used: calibrated, if it has a calibrator.
    """
    used = [one.before if one.after is None else one.after for one in models]
    names = [one.name for one in models]
    names = [name if names.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(names, start=1)]
    # without true classes nothing tells whether rows are the same
    comparable = [at for at, data in enumerate(used) if are_events(data) or data.labels is not None]
    calibrated = any(one.after is not None for one in models)
    pairs, found = list(combinations(comparable, 2)), []
    for a, b in pairs if len(pairs) <= MOST_PAIRS else ():
        with suppress(InputError):  # other rows: nothing to pair
            level = 1 - (1 - LEVEL) / len(pairs)
            comparison = compared(used[a], used[b], (names[a], names[b]), level=level)
            found.append(Pair(names[a], names[b], calibrated, comparison))
    return found


def better_of(pairs: Sequence[Pair], findings: Sequence[Finding]) -> list[Claims]:
    """Return what to do and the verdicts on ``pairs`` as sentences under a heading; nothing without pairs.

    Args:
        pairs: From ``pairs_of``.
        findings: Those of the same models.
    """
    if not pairs:
        return []
    lost, score = set(), ""
    for pair in pairs:
        # one proper score decides: it counts calibration and ranking together
        row = next(one for name in ("NLL", "Brier", "") for one in pair.found.rows if one.metric.startswith(name))
        score = "log-loss" if row.metric.startswith("NLL") else row.metric.split("(")[0]
        lost |= {"a": {pair.b}, "b": {pair.a}}.get(row.winner or "", set())
    best = sorted({name for pair in pairs for name in (pair.a, pair.b)} - lost)
    todo = f"{listed(best)} cannot be told apart by their {score} on these rows: take the simpler, or label more rows."
    if len(best) == 1:
        then = [found.advice.headline for found in findings if found.model.name == best[0]]
        todo = " ".join([f"take {best[0]}, which has the better {score}.", *then])
    calibrated = ", each as calibrated" if any(pair.calibrated for pair in pairs) else ""
    return [Claims("Which model" + calibrated, [f"What to do: {todo}", *(pair.found.verdict for pair in pairs)])]
